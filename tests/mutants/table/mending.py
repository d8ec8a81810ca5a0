"""Mutants of the closed loop: what ends a repair, what counts as a try, what an incident holds, who hears the end."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, Seeds

PLANNER: Final = "services/repair-planner/trueup_repair_planner"
ORCHESTRATOR: Final = "services/orchestrator/trueup_orchestrator/core"
GATEWAY: Final = "services/gateway/trueup_gateway"
RECONCILER: Final = "services/reconciler/trueup_reconciler/core"
COURSE: Final = "tests/repair_planner/test_course.py"
EXECUTION: Final = "tests/repair_planner/test_execution.py"
CASE_ACTS: Final = "tests/orchestrator/test_case_acts.py"
OUTSIDERS: Final = Seeds(60, theme="outsiders", sagas=False)

MUTANTS: Final = (
    Mutant(
        name="bad-end-is-no-try",
        law="work that ends badly again has had its repair, whichever word of it comes first",
        rows="Q7 R9",
        file=f"{PLANNER}/core/course.py",
        old="elif repair.status in SENT and why in ENDED_OTHERWISE:",
        new="elif repair.status in SENT and why in VERIFIED_BY:",
        killers=(f"{COURSE}::test_work_that_dies_in_turn_as_this_and_as_that_reaches_a_person",),
    ),
    Mutant(
        name="closed-while-it-goes-on",
        law="a redrive that was accepted closes nothing: where it got is seen first",
        rows="Q7 Q8",
        file=f"{PLANNER}/core/lifecycle.py",
        old="row.repair_status in PENDING and resolution in GOES_ON:",
        new="row.repair_status in PENDING and resolution not in GOES_ON:",
        killers=(f"{COURSE}::test_what_goes_on_again_closes_nothing_until_it_was_seen_where_it_got",),
    ),
    Mutant(
        name="one-message-forgets-what-was-tried",
        law="whoever hears how one repair ended looks at all that was tried there",
        rows="R9",
        file=f"{PLANNER}/handler.py",
        old="related_repairs(sorted(subjects), sorted(names), sorted(wanted.operator_commands))",
        new="related_repairs(sorted(wanted.subjects), sorted(wanted.exceptions), sorted(wanted.operator_commands))",
        killers=(f"{EXECUTION}::test_a_redrive_that_ends_as_it_began_is_counted_and_in_the_end_a_person_has_it",),
    ),
    Mutant(
        name="repairs-read-before-their-exceptions",
        law="whoever closes an exception withdraws what another replica planned meanwhile",
        rows="Q8 M2",
        file=f"{PLANNER}/handler.py",
        old=(
            "        exceptions = await tx.exceptions(sorted(names))\n"
            "        names |= {row.exception_id for row in exceptions}\n"
            "        subjects = wanted.subjects | {subject_of_row(row) for row in exceptions}"
            " | {item.subject_key for item in told}\n"
            "        repairs = await tx.related_repairs("
            "sorted(subjects), sorted(names), sorted(wanted.operator_commands))\n"
        ),
        new=(
            "        repairs = await tx.related_repairs(\n"
            "            sorted(wanted.subjects), sorted(names), sorted(wanted.operator_commands)\n"
            "        )\n"
            "        exceptions = await tx.exceptions(sorted(names))\n"
        ),
        killers=(f"{EXECUTION}::test_whoever_closes_an_exception_withdraws_what_another_replica_planned_meanwhile",),
    ),
    Mutant(
        name="late-word-begins-another-repair",
        law="word of a repair that is over finds the one in flight, and makes none beside it",
        rows="I5 O6",
        file=f"{PLANNER}/desk.py",
        old="        if named is not None and named.in_flight:",
        new="        if named is not None:",
        killers=(f"{EXECUTION}::test_word_of_a_redrive_that_is_over_finds_the_one_that_was_planned_since",),
    ),
    Mutant(
        name="incident-leaves-what-it-holds",
        law="an incident is not over while it holds a repair",
        rows="D4 Q8",
        file=f"{PLANNER}/core/probe.py",
        old="if standing.open_count == 0 and standing.held_count == 0:",
        new="if standing.open_count == 0:",
        killers=(f"{COURSE}::test_an_incident_is_not_over_while_it_holds_a_repair",),
    ),
    Mutant(
        name="stored-row-replaces-the-folded-one",
        law="what was folded just now is not replaced by what another replica stored meanwhile",
        rows="L5 Q8",
        file=f"{PLANNER}/desk.py",
        old="            if row.exception_id not in self.exceptions:",
        new="            if row.exception_id not in self._stored:",
        killers=(f"{COURSE}::test_what_is_new_on_the_desk_is_not_replaced_by_what_another_replica_stored_meanwhile",),
    ),
    Mutant(
        name="resumed-and-never-ended",
        law="an act ends: also one that only settled a conflict and began a step anew",
        rows="O3 O7",
        file=f"{ORCHESTRATOR}/case_acts.py",
        old="    if not any(in_hand(row) for row in redriven):",
        new="    if not redriven:",
        killers=(f"{CASE_ACTS}::test_resuming_from_a_conflict_ends_although_nothing_was_redriven",),
    ),
    Mutant(
        name="first-cancel-unheard",
        law="of two cancels at once each hears how it ended",
        rows="I5 L12",
        file=f"{ORCHESTRATOR}/acts.py",
        old='if asked.get("ended", entry == "turned") or',
        new='if not asked.get("ended", entry == "turned") or',
        killers=(f"{CASE_ACTS}::test_of_two_cancels_at_once_each_hears_how_it_ended",),
    ),
    Mutant(
        name="cancelled-case-taken-by-another",
        law="an act is judged by what the acts before it did, however messages were gathered",
        rows="L12 L14 I5",
        file=f"{ORCHESTRATOR}/case_acts.py",
        old="    take_cancel(fold)  #",
        new="    #",
        killers=(f"{CASE_ACTS}::test_a_case_that_was_sent_backwards_is_nobody_elses_any_more",),
    ),
    Mutant(
        name="overtaken-cancel-unheard",
        law="who cancelled hears who took the case from there",
        rows="L12 S3",
        file=f"{ORCHESTRATOR}/case_acts.py",
        old="    overtake(fold, asked)\n    if fold.instance.direction != Direction.FORWARD:",
        new="    if fold.instance.direction != Direction.FORWARD:",
        killers=(f"{CASE_ACTS}::test_a_cancel_that_only_made_a_case_a_persons_is_overtaken",),
    ),
    Mutant(
        name="undone-effect-repaired",
        law="what its own case takes back is not put there again by a repair",
        rows="R9 S4",
        file=f"{ORCHESTRATOR}/replacing.py",
        old="        if row.compensation_state is not CompensationState.NONE\n",
        new="        if row.compensation_state is CompensationState.COMPENSATION_FAILED\n",
        killers=("tests/orchestrator/test_supersedes.py::test_what_its_case_takes_back_is_not_repaired",),
    ),
    Mutant(
        name="pivot-of-the-last-commit",
        law="after the pivot nothing is undone, also where a finding told of it a moment ago",
        rows="S3 E3 L14",
        file=f"{ORCHESTRATOR}/operators.py",
        old="        instance = instance.evolve(pivot=pivot_of_all(fold.operations.values()))\n",
        new="        pass\n",
        killers=(f"{CASE_ACTS}::test_a_finding_that_the_pivot_happened_is_heard_before_the_next_act",),
    ),
    Mutant(
        name="undoing-never-ends",
        law="a person who undoes a case hears when nothing of it stands any more",
        rows="O3 Q7",
        file=f"{ORCHESTRATOR}/case_acts.py",
        old="_undo(fold, asked, ended=False)",
        new="_undo(fold, asked)",
        killers=(f"{CASE_ACTS}::test_a_person_may_decide_to_undo",),
    ),
    Mutant(
        name="undone-is-no-repair",
        law="an exception ends with the case that a person takes back, and its repair held",
        rows="Q7 Q8",
        file="services/repair-planner/trueup_repair_planner/core/operators.py",
        old="elif status == InstanceStatus.COMPENSATED:",
        new="elif status == InstanceStatus.CLOSED:",
        killers=(
            "tests/repair_planner/test_course.py::"
            "test_what_a_person_decides_to_undo_is_over_when_nothing_of_it_stands_any_more",
        ),
    ),
    Mutant(
        name="closed-with-something-out",
        law="nobody closes a case of which something is still out",
        rows="L14 L15",
        file=f"{ORCHESTRATOR}/operators.py",
        old="if not (out and action is A.MARK_RESOLVED))",
        new="if not (out and action is A.PAUSE))",
        killers=(f"{CASE_ACTS}::test_nobody_closes_a_case_of_which_something_is_still_out",),
    ),
    Mutant(
        name="resolved-read-as-undone",
        law="a cancelled case that a person closes is resolved: nobody calls undone what nobody undid",
        rows="S4 L14",
        file=f"{ORCHESTRATOR}/case_acts.py",
        old="Direction.PERSON.value, cancel=None",
        new="Direction.PERSON.value",
        killers=(f"{CASE_ACTS}::test_a_cancelled_case_that_a_person_closes_is_resolved_and_not_said_to_be_undone",),
    ),
    Mutant(
        name="undone-by-the-clock",
        law="of one case the later dispatch has the higher number, whatever clocks and sequences do",
        rows="S3",
        file=f"{ORCHESTRATOR}/launch.py",
        old="max(sequence, 1 + max(other.dispatch_sequence for other in fold.operations.values()))",
        new="sequence",
        killers=(
            "tests/orchestrator/test_saga_paths.py::test_a_clock_that_is_set_back_does_not_turn_the_order_of_undoing",
        ),
    ),
    Mutant(
        name="case-not-shown-is-no-case",
        law="an exception whose case is not shown yet is not one about no case",
        rows="Q8 O3",
        file=f"{GATEWAY}/core/operators.py",
        old='return (exception.workflow_id or "").startswith("wf_") and',
        new='return (exception.workflow_id or "").startswith("wf:") and',
        killers=("tests/gateway/test_operators.py::test_nobody_acts_on_the_trouble_of_a_case_that_is_not_shown_yet",),
    ),
    Mutant(
        name="rewritten-for-ever",
        law="a target that keeps what it wants is written to within the repair budget, and no more",
        rows="R9",
        file=f"{RECONCILER}/budget.py",
        old="    if row.tried_at is None or _held(row, now, budget):",
        new="    if row.tried_at is None or budget.holds_seconds:",
        killers=(OUTSIDERS,),
    ),
    Mutant(
        name="ours-called-unmanaged",
        law="only what stands in no ledger is called unmanaged",
        rows="R10",
        file="services/adapters/trueup_adapters/core/survey.py",
        old="if mark.operation_id not in known)",
        new="if mark.operation_id in known)",
        killers=(OUTSIDERS,),
    ),
    Mutant(
        name="removed-and-still-reported",
        law="what a whole later survey does not find any more is over",
        rows="R10 Q8",
        file=f"{RECONCILER}/survey.py",
        old="gone = [name for name in row.standing if name not in row.found] if not row.passed_over_count else []",
        new="gone = [name for name in row.standing if name in row.found] if row.passed_over_count else []",
        killers=(OUTSIDERS,),
    ),
    Mutant(
        name="planned-beside-an-incident",
        law="while an incident is open, what is planned in its slice is held too",
        rows="D4",
        file=f"{PLANNER}/desk.py",
        old='held = {"held": True, "due_at": None} if waits else {}',
        new="held = {} if waits else {}",
        killers=(Seeds(120, theme="outage", sagas=False),),
    ),
    Mutant(
        name="batch-over-before-its-acts",
        law="a batch is over when the last of its acts has ended: done + failed + skipped = total",
        rows="O5",
        file=f"{GATEWAY}/batches.py",
        old="        if await tx.open_items(batch.batch_id):\n            return batch",
        new="        if await tx.open_items(batch.batch_id) > 1:\n            return batch",
        killers=(Seeds(120, theme="operators", sagas=False),),
    ),
)
