"""Mutants of what people do and see: approvals and their rows, signals, views, and the exceptions of the planner."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

GATEWAY: Final = "services/gateway/trueup_gateway"
PLANNER: Final = "services/repair-planner/trueup_repair_planner"
APPROVALS: Final = "tests/gateway/test_approvals.py"
FOLDING: Final = "tests/gateway/test_approval_folding.py"
LIFECYCLE: Final = "tests/repair_planner/test_lifecycle.py"

PEOPLE: Final = (
    Mutant(
        name="approval-of-changed-content-kept",
        law="changed content voids the approval of the old one",
        rows="S6",
        file=f"{GATEWAY}/core/approval.py",
        old="elif older.status == APPROVED and older.content_sha256 != row.content_sha256:",
        new="elif older.status == APPROVED and not row.content_sha256:",
        killers=(
            f"{FOLDING}::test_new_content_voids_the_approval_of_the_old",
            f"{APPROVALS}::test_a_new_question_voids_the_one_before",
        ),
    ),
    Mutant(
        name="timer-too-early-expires",
        law="an approval expires only past its own expiry",
        rows="S6 L7",
        file=f"{GATEWAY}/core/approval.py",
        old='asked.action == "expire" and self._now >= row.expires_at:',
        new='asked.action == "expire":',
        killers=(
            f"{FOLDING}::test_a_timer_that_comes_too_early_expires_nothing",
            f"{APPROVALS}::test_asks_in_any_order_and_twice",
        ),
    ),
    Mutant(
        name="nonce-reused",
        law="an answer counts under exactly the nonce that was shown",
        rows="S6 I5",
        file=f"{GATEWAY}/store/people.py",
        old="AND a.nonce = $8 AND",
        new="AND $8::text IS NOT NULL AND",
        killers=(f"{APPROVALS}::test_a_changed_hash_or_nonce_approves_nothing",),
    ),
    Mutant(
        name="approved-unseen-content",
        law="only what was shown can be approved",
        rows="S6",
        file=f"{GATEWAY}/store/people.py",
        old="AND a.content_sha256 = $9",
        new="AND $9::text IS NOT NULL",
        killers=(f"{APPROVALS}::test_a_changed_hash_or_nonce_approves_nothing",),
    ),
    Mutant(
        name="second-answer-overwrites-the-first",
        law="a row leaves pending once",
        rows="I5 S6",
        file=f"{GATEWAY}/store/people.py",
        old="AND a.status = 'pending' AND a.nonce",
        new="AND a.nonce",
        killers=(f"{APPROVALS}::test_another_answer_changes_nothing",),
    ),
    Mutant(
        name="approvals-of-other-tenants",
        law="tenants are apart in every query",
        rows="T1",
        file=f"{GATEWAY}/store/people.py",
        old='tail = "WHERE approval_id = $1 AND tenant = $2"',
        new='tail = "WHERE approval_id = $1 AND $2::text IS NOT NULL"',
        killers=(f"{APPROVALS}::test_before_it_is_asked_there_is_nothing_to_approve",),
    ),
    Mutant(
        name="commands-of-other-tenants",
        law="a token of one tenant never reads another's command",
        rows="T1",
        file=f"{GATEWAY}/store/reads.py",
        old='"WHERE command_id = $1 AND tenant = $2 AND (',
        new='"WHERE command_id = $1 AND $2::text IS NOT NULL AND (',
        killers=("tests/gateway/test_views.py::test_readers_see_what_is_theirs",),
    ),
    Mutant(
        name="lists-of-other-tenants",
        law="a list shows one tenant's rows",
        rows="T1",
        file=f"{GATEWAY}/store/reads.py",
        old="{COMMANDS_SOURCE} AS c WHERE tenant = $1 AND (",
        new="{COMMANDS_SOURCE} AS c WHERE $1::text IS NOT NULL AND (",
        killers=("tests/gateway/test_views.py::test_readers_see_what_is_theirs",),
    ),
    Mutant(
        name="exceptions-of-other-tenants",
        law="an exception is its tenant's",
        rows="T1",
        file=f"{GATEWAY}/store/reads.py",
        old='"AS x WHERE exception_id = $1 AND tenant = $2 AND (',
        new='"AS x WHERE exception_id = $1 AND $2::text IS NOT NULL AND (',
        killers=("tests/gateway/test_views.py::test_readers_see_what_is_theirs",),
    ),
    Mutant(
        name="own-request-approved",
        law="whoever asked does not review it",
        rows="S6 G7",
        file=f"{GATEWAY}/core/approval.py",
        old="    if act.subject in actors:\n",
        new="    if not act.subject and actors:\n",
        killers=(
            f"{FOLDING}::test_whoever_asked_or_spoke_to_the_case_reviews_nothing",
            f"{APPROVALS}::test_whoever_asked_cannot_review",
        ),
    ),
    Mutant(
        name="agent-approves",
        law="only a person approves",
        rows="S6",
        file=f"{GATEWAY}/core/approval.py",
        old='    if not facts["person"]:\n',
        new='    if not facts["person"] and not act.roles:\n',
        killers=(
            f"{FOLDING}::test_an_agent_or_a_service_reviews_nothing",
            f"{APPROVALS}::test_who_is_not_entitled_is_refused",
        ),
    ),
    Mutant(
        name="older-event-of-a-batch-shown",
        law="of several events about one object the newest is shown",
        rows="M2",
        file=f"{GATEWAY}/core/projection.py",
        old='known.state_version < row["state_version"]:',
        new='known.state_version > row["state_version"]:',
        killers=("tests/gateway/test_views.py::test_a_batch_keeps_the_newest_of_each_object",),
    ),
)

EXCEPTIONS: Final = (
    Mutant(
        name="older-report-replaces-a-newer-one",
        law="reports may come in any order: the newest counts",
        rows="Q8 M2",
        file=f"{PLANNER}/core/lifecycle.py",
        old="if row is not None and obligation.version <= row.source_version:",
        new="if row is not None and obligation.version == row.source_version:",
        killers=(f"{LIFECYCLE}::test_reports_in_any_order_and_any_number_end_the_same",),
    ),
    Mutant(
        name="closed-exception-escalated",
        law="a closed exception is never escalated",
        rows="Q8",
        file=f"{PLANNER}/core/lifecycle.py",
        old='if row.status != "open" or row.deadline_at > now:',
        new="if row.deadline_at > now:",
        killers=(f"{LIFECYCLE}::test_a_closed_exception_is_never_escalated",),
    ),
    Mutant(
        name="escalated-without-a-new-deadline",
        law="an exception always has an owner and a deadline to come",
        rows="Q4",
        file=f"{PLANNER}/core/lifecycle.py",
        old="        deadline_at=now + extension,",
        new="        deadline_at=row.deadline_at,",
        killers=(
            f"{LIFECYCLE}::test_a_deadline_that_passes_moves_the_exception_to_the_escalation_owner_and_is_recorded",
        ),
    ),
    Mutant(
        name="nobody-owns-it",
        law="no exception without an owner",
        rows="Q4 P3",
        file=f"{PLANNER}/core/lifecycle.py",
        old="        owner = obligation.owner or duty.owner\n",
        new="        owner = obligation.owner\n",
        killers=(f"{LIFECYCLE}::test_an_exception_without_owner_gets_the_one_on_duty",),
    ),
    Mutant(
        name="withdrawn-read-as-repaired",
        law="nobody may read a cause that went away as a repair that was verified",
        rows="Q7 Q8",
        file=f"{PLANNER}/core/resolutions.py",
        old="return resolution in VERIFIED_BY or (kind in DOUBTS and resolution in SETTLED_BY)",
        new="return resolution in VERIFIED_BY | SETTLED_BY",
        killers=(f"{LIFECYCLE}::test_a_doubt_that_was_settled_is_repaired_but_a_dead_letter_that_is_retried_is_not",),
    ),
    Mutant(
        name="envelope-with-gaps",
        law="each dead letter answers every question of its envelope",
        rows="Q2",
        file=f"{PLANNER}/core/classify.py",
        old="    merged = {**dict.fromkeys(ENVELOPE_FIELDS), **known, **given}",
        new="    merged = {**known, **given}",
        killers=(
            f"{LIFECYCLE}::test_an_exception_of_any_kind_has_owner_deadline_class_and_whole_envelope_from_its_first_second",
        ),
    ),
)

MUTANTS: Final[tuple[Mutant, ...]] = (*PEOPLE, *EXCEPTIONS)
