"""Mutants of the repair planner: when it acts by itself, under which key, what counts as repaired, what is held."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "services/repair-planner/trueup_repair_planner/core"
SERVICE: Final = "services/repair-planner/trueup_repair_planner"
TESTS: Final = "tests/repair_planner"

MUTANTS: Final = (
    Mutant(
        name="repair-without-approval",
        law="what a playbook gives to a person does not begin by itself",
        rows="Q5",
        file=f"{CORE}/plan.py",
        old="due_at=due_at if automatic else None,",
        new="due_at=due_at,",
        killers=(f"{TESTS}/test_plan.py::test_what_needs_a_person_waits_without_a_time",),
    ),
    Mutant(
        name="repair-without-budget",
        law="after the last try a person gets it",
        rows="R9 Q5",
        file=f"{CORE}/plan.py",
        old="count >= playbook.attempts_max",
        new="count >= 1000 * playbook.attempts_max",
        killers=(f"{TESTS}/test_plan.py::test_each_try_waits_twice_as_long_and_after_the_last_a_person_gets_it",),
    ),
    Mutant(
        name="tries-forgotten-with-each-letter",
        law="tries are counted by the work, not by the exception",
        rows="R9",
        file=f"{SERVICE}/desk.py",
        old="history = [item for item in known if item.tenant == row.tenant and item.subject_key == subject]\n"
        "        planned",
        new="history = [item for item in known if item.exception_id == row.exception_id and subject]\n        planned",
        killers=(f"{TESTS}/test_execution.py::test_a_redrive_that_dies_again_is_another_exception_and_the_second_try",),
    ),
    Mutant(
        name="repair-under-a-random-key",
        law="a repair that is asked for again is asked for under the same key",
        rows="I1 I5",
        file=f"{CORE}/calls.py",
        old='key = f"repair:{row.repair_id}"',
        new='key = f"repair:{row.repair_id}:{row.version}"',
        killers=(f"{TESTS}/test_execution.py::test_a_planner_that_dies_after_asking_asks_again_under_the_same_key",),
    ),
    Mutant(
        name="accepted-is-repaired",
        law="a 202 is not a repair: only what was seen closes an exception",
        rows="Q7",
        file=f"{SERVICE}/execution.py",
        old="row, repair = course.sent(row, repair, now, PLANNER, **changes, verify_until=until, due_at=due)",
        new="row, repair = course.sent(row, repair, now, PLANNER, **changes, verify_until=until, due_at=due)\n"
        '            row, repair = course.verified(row.evolve(left_as="x"), repair, "operation_success", now, PLANNER)',
        killers=(f"{TESTS}/test_execution.py::test_a_200_is_no_repair_the_next_try_follows_and_in_the_end_a_person",),
    ),
    Mutant(
        name="silence-is-a-refusal",
        law="an answer that did not come says nothing",
        rows="X4",
        file=f"{CORE}/calls.py",
        old="if answer.status == 0 or answer.status in _PASSING:",
        new="if answer.status in _PASSING:",
        killers=(f"{TESTS}/test_calls.py::test_no_answer_and_passing_ones_say_nothing_and_are_asked_again",),
    ),
    Mutant(
        name="decision-about-anything",
        law="the planner's decision is about the one command whose place its repair takes",
        rows="G7",
        file="services/gateway/trueup_gateway/core/acceptance.py",
        old="if bound is not None and bound != submission.supersedes:",
        new="if bound is not None and submission.supersedes is None:",
        killers=(
            "tests/gateway/test_supersedes.py::"
            "test_a_repairers_decision_covers_the_command_it_was_made_about_and_no_other",
        ),
    ),
    Mutant(
        name="replaced-while-unknown",
        law="nothing takes the place of a command whose outcome is not known",
        rows="O6 X4",
        file="libs/common/trueup_common/contracts/states.py",
        old="REPLACEABLE: Final = ANSWERED - {OperationState.NEEDS_REVIEW}",
        new="REPLACEABLE: Final = ANSWERED",
        killers=(
            "tests/gateway/test_supersedes.py::test_nothing_takes_the_place_of_what_has_not_ended_or_is_not_known",
        ),
    ),
    Mutant(
        name="two-heirs-of-one-identity",
        law="a business identity passes on once",
        rows="O6 I2",
        file="services/orchestrator/trueup_orchestrator/store.py",
        old="SET identity = NULL, state_version = state_version + 1\n  WHERE command_id = ANY($1::text[]) AND identity",
        new="SET state_version = state_version + 1\n  WHERE command_id = ANY($1::text[]) AND identity",
        killers=(
            "tests/orchestrator/test_supersedes.py::"
            "test_the_identity_of_what_succeeded_passes_on_to_its_repair_and_to_nobody_else",
        ),
    ),
    Mutant(
        name="outage-without-hold",
        law="while an incident is open, automatic repairs of its slice wait",
        rows="D4",
        file=f"{SERVICE}/desk.py",
        old='held = {} if repair.approval_required else {"held": True, "due_at": None}',
        new="held = {}",
        killers=(
            f"{TESTS}/test_execution.py::test_many_exceptions_of_one_cause_are_one_incident_and_their_repairs_are_held",
        ),
    ),
    Mutant(
        name="any-end-of-a-probe-is-recovery",
        law="the others follow only after a probe that held",
        rows="D4",
        file=f"{CORE}/probe.py",
        old="if probe is not None and probe.status is RepairStatus.DONE:",
        new="if probe is not None:",
        killers=(
            f"{TESTS}/test_execution.py::test_a_probe_that_fails_holds_the_rest_and_the_next_waits_twice_as_long",
        ),
    ),
    Mutant(
        name="end-of-command-closes-the-exception",
        law="only a closed obligation closes an exception",
        rows="Q8",
        file=f"{CORE}/course.py",
        old="if row.left_as is not None:\n            row = lifecycle.finish(row, resolution",
        new="if row is not None:\n            row = lifecycle.finish(row, resolution",
        killers=(
            f"{TESTS}/test_execution.py::"
            "test_the_end_of_an_operator_command_closes_no_exception_whose_obligation_is_open",
        ),
    ),
    Mutant(
        name="left-to-its-case-past-the-deadline",
        law="nothing is left to its case for longer than its deadline, or than a person wants",
        rows="Q4 Q5",
        file=f"{CORE}/plan.py",
        old="bool(row.envelope.get(UNDOING)) and row.escalations_count == 0",
        new="bool(row.envelope.get(UNDOING))",
        killers=(
            f"{TESTS}/test_left_to_case.py::test_a_person_who_escalates_has_it_planned_for",
            f"{TESTS}/test_store.py::test_nothing_is_left_to_its_case_for_longer_than_its_deadline",
        ),
    ),
    Mutant(
        name="given-back-to-nobody",
        law="what its case does not take back by itself any more is planned for at once",
        rows="Q5 Q8",
        file=f"{SERVICE}/desk.py",
        old="return bool(missed) or anew or taken_up",
        new="return bool(missed) or anew",
        killers=(f"{TESTS}/test_left_to_case.py::test_what_is_given_back_is_planned_for_at_once",),
    ),
)
