"""Mutants of what operators may do and of what follows: looked at first, one at a time, refused with what is left."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "services/orchestrator/trueup_orchestrator/core"
GATEWAY: Final = "services/gateway/trueup_gateway"
CONTRACTS: Final = "libs/common/trueup_common/contracts"
ACTS: Final = "tests/orchestrator/test_operators.py"
CASES: Final = "tests/orchestrator/test_case_acts.py"
EDGE: Final = "tests/gateway/test_operators.py"
BATCHES: Final = "tests/gateway/test_batches.py"
TABLE: Final = "tests/common/test_operators.py"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="redriven-without-a-look",
        law="what may have happened is looked at before it is sent again",
        rows="Q6 E3",
        file=f"{CORE}/again.py",
        old="looks = maybe_sent(fold.operation)",
        new="looks = fold.operation is None",
        killers=(f"{ACTS}::test_a_redrive_looks_first_and_keeps_the_exception_until_it_is_true",),
    ),
    Mutant(
        name="acted-upon-is-repaired",
        law="only what becomes true closes an exception",
        rows="Q7 Q8",
        file=f"{CORE}/obligations.py",
        old="kept = _kept(fold, row) if in_hand(row) else {}",
        new="kept: dict[Owed, Cause] = {}",
        killers=(f"{ACTS}::test_a_redrive_looks_first_and_keeps_the_exception_until_it_is_true",),
    ),
    Mutant(
        name="acted-upon-needs-no-owner",
        law="doubt has an owner, also of an operation that somebody acts on",
        rows="P3 O3",
        file=f"{CORE}/obligations.py",
        old="        if kept:\n            demanded",
        new="        if in_hand(row):\n            demanded",
        killers=(f"{ACTS}::test_doubt_has_an_owner_whoever_acts_on_it",),
    ),
    Mutant(
        name="key-of-another-taken-back",
        law="an effect that another command did since is not done again",
        rows="I2 O5",
        file=f"{CORE}/operators.py",
        old="ground.rival is not None:",
        new='ground.rival == "":',
        killers=(f"{ACTS}::test_whoever_has_the_key_or_the_identity_by_now_stays_alone",),
    ),
    Mutant(
        name="table-asked-once",
        law="whoever performs an act asks the table again",
        rows="O3 I5",
        file=f"{CORE}/operators.py",
        old="if action not in available:",
        new="if action not in OperatorAction:",
        killers=(f"{ACTS}::test_a_second_click_has_no_second_effect",),
    ),
    Mutant(
        name="reconcile-sends",
        law="to reconcile is to look and nothing else",
        rows="O3",
        file=f"{CORE}/settlement.py",
        old="elif in_hand(row) and row.operator_action == OperatorAction.RECONCILE:",
        new="elif in_hand(row) and row.operator_action == OperatorAction.CANCEL:",
        killers=(f"{ACTS}::test_to_reconcile_is_to_look_and_nothing_else",),
    ),
    Mutant(
        name="absent-sent-again",
        law="after a person found nothing there, a resend needs a new approval",
        rows="E3",
        file=f"{CONTRACTS}/operators.py",
        old="return permitted and not operation.settled_absent and",
        new="return permitted and",
        killers=(
            f"{ACTS}::test_a_person_settles_an_unknown_as_absent_and_a_resend_needs_a_new_approval",
            f"{TABLE}::test_the_laws_of_operations_hold_in_every_combination",
        ),
    ),
    Mutant(
        name="revoked-sent-again",
        law="what was taken back stays taken back",
        rows="G5",
        file=f"{CONTRACTS}/operators.py",
        old="permitted = operation.undoes or not case.revoked",
        new="permitted = operation.undoes or case.single or not case.revoked",
        killers=(
            f"{ACTS}::test_nothing_is_sent_under_revoked_authority",
            f"{EDGE}::test_revoked_authority_cannot_be_renewed",
        ),
    ),
    Mutant(
        name="repairs-settle",
        law="the planner's identity looks and tries again, and nothing else",
        rows="G7",
        file=f"{GATEWAY}/core/operators.py",
        old="frozenset({A.RECONCILE, A.REDRIVE})",
        new="frozenset({A.RECONCILE, A.REDRIVE, A.SETTLE})",
        killers=(f"{EDGE}::test_repairs_have_a_narrow_identity",),
    ),
    Mutant(
        name="two-repairs-at-once",
        law="one dead letter has one repair in flight",
        rows="O6 I5",
        file=f"{GATEWAY}/store/operators.py",
        old="AND state = 'ACCEPTED' AND (holds_command = $2",
        new="AND state = 'DONE' AND (holds_command = $2",
        killers=(f"{EDGE}::test_one_dead_letter_has_one_repair_in_flight",),
    ),
    Mutant(
        name="second-word-counts",
        law="how an act ended is said once",
        rows="O3",
        file=f"{GATEWAY}/store/operators.py",
        old="WHERE operator_command_id = $1 AND tenant = $2 AND state = 'ACCEPTED'",
        new="WHERE operator_command_id = $1 AND tenant = $2",
        killers=(f"{EDGE}::test_a_redrive_goes_out_once_and_its_end_comes_back",),
    ),
    Mutant(
        name="settled-by-free-text",
        law="a finding needs evidence",
        rows="E3",
        file=f"{GATEWAY}/core/operators.py",
        old="    elif not evidence:\n",
        new="    elif evidence is None:\n",
        killers=(f"{EDGE}::test_a_settlement_needs_what_makes_it_one",),
    ),
    Mutant(
        name="resolved-on-an-old-look",
        law="resolved is what was seen a moment ago",
        rows="O3 R5",
        file=f"{GATEWAY}/core/operators.py",
        old="and now - seen.observed_at <= timedelta(seconds=OBSERVATION_SECONDS_MAX)",
        new="and seen.observed_at <= now",
        killers=(f"{EDGE}::test_resolved_is_what_was_just_seen",),
    ),
    Mutant(
        name="withdrawn-never-asked-again",
        law="what was withdrawn when a person took over is asked anew when they hand back",
        rows="L14",
        file=f"{CORE}/case_acts.py",
        old="        elif state.phase is StepPhase.WITHDRAWN:\n",
        new="        elif state.phase is StepPhase.WITHDRAWN and state.attached:\n",
        killers=(f"{CASES}::test_a_case_that_is_taken_over_sends_nothing_new_and_comes_back_on_purpose",),
    ),
    Mutant(
        name="cancelled-while-taken-over",
        law="what is out when a case is handed back is not to be cancelled any more",
        rows="L14",
        file=f"{CORE}/case_acts.py",
        old="fold.at(row.command_id).set(cancel_requested=False)",
        new="fold.at(row.command_id).set(cancel_requested=True)",
        killers=(f"{CASES}::test_what_is_out_when_a_case_is_taken_over_settles_and_stays",),
    ),
    Mutant(
        name="bad-end-turns-the-case-back",
        law="a bad end that a person has turns the case no more",
        rows="O3 L14",
        file=f"{CORE}/saga.py",
        old="if state.phase is not StepPhase.FAILED or state.held:",
        new="if state.phase is not StepPhase.FAILED:",
        killers=(f"{CASES}::test_another_bad_end_stays_with_the_person",),
    ),
    Mutant(
        name="unused-time-saved-up",
        law="a batch keeps its rate",
        rows="O5",
        file=f"{GATEWAY}/core/batches.py",
        old="max(next_at, now - timedelta(seconds=1))",
        new="next_at",
        killers=(
            f"{BATCHES}::test_the_pace_saves_nothing_up",
            f"{BATCHES}::test_a_batch_pauses_stops_and_keeps_its_rate",
        ),
    ),
    Mutant(
        name="stopped-batch-goes-on",
        law="what a stopped batch has not asked for is skipped for good",
        rows="O5",
        file=f"{GATEWAY}/api/batches.py",
        old="        if after is BatchState.STOPPED:\n",
        new="        if after is BatchState.DONE:\n",
        killers=(f"{BATCHES}::test_a_batch_pauses_stops_and_keeps_its_rate",),
    ),
    Mutant(
        name="glass-broken-for-ever",
        law="break-glass has a time limit",
        rows="D4",
        file=f"{CONTRACTS}/governance.py",
        old="(expires_at is not None and expires_at <= now)",
        new="(kind == FREEZE and expires_at is not None and expires_at <= now)",
        killers=("tests/gateway/test_governance.py::test_a_broken_glass_ends_by_itself_and_covers_its_scope_only",),
    ),
)
