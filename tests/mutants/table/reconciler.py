"""Mutants of the reconciler: verdicts on unknowns, drift, and when it looks again."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "services/reconciler/trueup_reconciler/core"
SETTLE: Final = "tests/reconciler/test_settle.py"
DRIFT: Final = "tests/reconciler/test_drift.py"
BELIEVED: Final = f"{SETTLE}::test_absence_is_not_believed_without_access_too_early_or_with_an_older_attempt_at_large"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="absent-without-access",
        law="MISSING needs proof of access, whatever the adapter says",
        rows="E3 R11",
        file=f"{CORE}/settle.py",
        old='        ("no_proof_of_access", not finding.proof_of_access),\n',
        new="",
        killers=(BELIEVED,),
    ),
    Mutant(
        name="absent-while-an-older-attempt-is-at-large",
        law="MISSING needs the older fence shut out",
        rows="E3 E5",
        file=f"{CORE}/settle.py",
        old="answer.fence < row.fence),",
        new="answer.fence < row.request_fence),",
        killers=(BELIEVED,),
    ),
    Mutant(
        name="absent-too-early",
        law="MISSING needs the late window to have passed",
        rows="E3 X8",
        file=f"{CORE}/settle.py",
        old="for at in (answer.provable_at, row.late_until))),",
        new="for at in (answer.provable_at,))),",
        killers=(BELIEVED,),
    ),
    Mutant(
        name="absent-although-it-was-seen",
        law="an older answer that saw the effect bars absence",
        rows="E3",
        file=f"{CORE}/settle.py",
        old='        ("effect_seen_before", row.effect_seen),\n',
        new="",
        killers=(f"{SETTLE}::test_an_answer_of_an_older_look_moves_nothing_but_bars_absence",),
    ),
    Mutant(
        name="several-candidates-confirmed",
        law="several effects are ambiguous, never confirmed",
        rows="E3",
        file=f"{CORE}/settle.py",
        old="if finding.candidates > 1 or finding.verdict is FindVerdict.AMBIGUOUS:",
        new="if finding.verdict is FindVerdict.AMBIGUOUS:",
        killers=(f"{SETTLE}::test_several_candidates_are_ambiguous_never_missing_and_never_confirmed",),
    ),
    Mutant(
        name="look-under-the-same-fence",
        law="every look raises the fence",
        rows="E5 E3",
        file=f"{CORE}/settle.py",
        old="    fence = row.fence + 1\n",
        new="    fence = row.fence\n",
        killers=(f"{SETTLE}::test_a_request_looks_at_once_under_a_higher_fence_and_says_that_it_started",),
    ),
    Mutant(
        name="stale-look-decides",
        law="only the look in hand decides; every other answer is evidence",
        rows="E5",
        file=f"{CORE}/settle.py",
        old="if row.state is not SettlementState.FINDING or answer.find_id != row.find_id:",
        new="if row.state is not SettlementState.FINDING:",
        killers=(f"{SETTLE}::test_an_answer_of_an_older_look_moves_nothing_but_bars_absence",),
    ),
    Mutant(
        name="looks-for-ever",
        law="when budget or time run out the answer is unknown and a person's",
        rows="R6 E3",
        file=f"{CORE}/settle.py",
        old="(row.finds_count >= FINDS_MAX or business >= row.deadline_at):",
        new="row.finds_count >= 10 * FINDS_MAX:",
        killers=(f"{SETTLE}::test_a_spent_deadline_or_budget_hands_the_outcome_to_a_person_as_unknown",),
    ),
    Mutant(
        name="exhausted-read-as-absent",
        law="an exhausted budget is unknown, never a guess",
        rows="E3",
        file=f"{CORE}/settle.py",
        old="Finding(verdict=FindVerdict.UNKNOWN, reason=f",
        new="Finding(verdict=FindVerdict.MISSING, reason=f",
        killers=(f"{SETTLE}::test_a_spent_deadline_or_budget_hands_the_outcome_to_a_person_as_unknown",),
    ),
    Mutant(
        name="hidden-read-as-deleted",
        law="absent only with proof of access: what is hidden has not drifted",
        rows="R11 E4",
        file=f"{CORE}/drift.py",
        old="if seen.verdict is ProbeVerdict.MISSING and not seen.proof_of_access:",
        new="if seen.verdict is ProbeVerdict.MISSING and seen.value is not None:",
        killers=(f"{DRIFT}::test_not_knowing_is_neither_healthy_nor_drift_and_keeps_open_what_is_open",),
    ),
    Mutant(
        name="last-arrival-is-desired",
        law="desired elements are ordered by revision and dispatch, never by arrival",
        rows="R1",
        file=f"{CORE}/drift.py",
        old="if row is not None and fresh.rank < row.rank:",
        new="if row is not None and fresh.established_at < row.established_at:",
        killers=(
            f"{DRIFT}::test_the_higher_revision_then_the_later_dispatch_owns_the_desired_value_in_every_order_of_arrival",
        ),
    ),
    Mutant(
        name="window-judged-by-the-answer",
        law="a look that was asked for inside the window finds no drift, whenever its answer comes",
        rows="R4",
        file=f"{CORE}/drift.py",
        old="within_window=asked_at < row.window_until)",
        new="within_window=now < row.window_until)",
        killers=(f"{DRIFT}::test_an_observation_asked_inside_the_window_is_no_drift_even_when_it_is_read_later",),
    ),
    Mutant(
        name="unknown-is-healthy",
        law="UNKNOWN is neither healthy nor drifted",
        rows="E4 L15",
        file="libs/common/trueup_common/contracts/compare.py",
        old="        return Phase.UNKNOWN\n",
        new="        return Phase.HEALTHY\n",
        killers=("tests/common/test_compare.py::test_the_phase_of_every_observation",),
    ),
    Mutant(
        name="healthy-never-seen-again",
        law="verification goes on after success",
        rows="R8",
        file=f"{CORE}/visit.py",
        old="    return now + entry(STEADY_SECONDS, same_count)",
        new="    return now + entry(STEADY_SECONDS, same_count) * 365",
        killers=(f"{DRIFT}::test_healthy_objects_are_seen_again_ever_more_rarely_and_a_change_starts_over",),
    ),
    Mutant(
        name="visits-beyond-the-rate",
        law="visits keep the rate of their tenant and system",
        rows="R6",
        file=f"{CORE}/visit.py",
        old="        if at > now:\n",
        new="        if at > now + timedelta(hours=1):\n",
        killers=(f"{DRIFT}::test_visits_of_one_system_keep_the_rate_and_none_is_lost",),
    ),
)
