"""Mutants of the operators' console: who is let in, for how long, and what text from outside may do."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CONSOLE: Final = "services/gateway/trueup_gateway/console"
PAGES: Final = "tests/gateway/test_console.py"
SESSIONS: Final = "tests/gateway/test_console_sessions.py"
VIEWS: Final = "tests/gateway/test_console_views.py"
GATEWAY: Final = "services/gateway/trueup_gateway"
DECIDING: Final = "tests/gateway/test_console_deciding.py"
REPAIRS: Final = "tests/gateway/test_repair_approvals.py"
ROLES: Final = "tests/gateway/test_views_of_roles.py"
ACTS: Final = "tests/gateway/test_acts_of_commands.py"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        name="log-out-drops-the-cookie-alone",
        law="to log out ends the session on the server",
        rows="O4 T3",
        file=f"{CONSOLE}/sessions.py",
        old="        await tx.end_session(session_id(session.secret))",
        new="        session_id(session.secret)",
        killers=(f"{SESSIONS}::test_a_copied_cookie_is_worth_nothing_once_somebody_logged_out",),
    ),
    Mutant(
        name="cookie-opens-by-itself",
        law="a cookie whose session was ended opens nothing",
        rows="O4 T3",
        file=f"{CONSOLE}/sessions.py",
        old="    return session if await is_open(gateway, session) else None",
        new="    return session",
        killers=(f"{SESSIONS}::test_a_copied_cookie_is_worth_nothing_once_somebody_logged_out",),
    ),
    Mutant(
        name="any-form-of-this-origin-acts",
        law="a form acts for the session whose page made it",
        rows="O3",
        file=f"{CONSOLE}/forms.py",
        old='    if session is None or not form_token_holds(request, session, form.text("form_token", 128)):',
        new="    if session is None:",
        killers=(f"{PAGES}::test_a_form_that_is_not_ours_does_nothing",),
    ),
    Mutant(
        name="text-disguises-itself",
        law="what turns the reading direction is spelled out wherever a template puts it",
        rows="T3",
        file=f"{CONSOLE}/view.py",
        old="    return shown.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value",
        new="    return value",
        killers=(f"{VIEWS}::test_hostile_text_is_text_on_every_page",),
    ),
    Mutant(
        name="closed-is-told-as-the-same-for-ever",
        law="a case that drifted since it was closed says so",
        rows="O2 R8",
        file=f"{CONSOLE}/pages.py",
        old='        drifted=[item["element"] for item in vector if item.get("phase") == "DRIFT"],',
        new="        drifted=[],",
        killers=(f"{VIEWS}::test_a_closed_case_that_drifted_says_so",),
    ),
    Mutant(
        name="a-fold-loses-its-first-row",
        law="rows of one incident are folded, and none is lost",
        rows="O1",
        file=f"{CONSOLE}/folding.py",
        old='                    "fold": ours,',
        new='                    "fold": ours[1:],',
        killers=(f"{DECIDING}::test_rows_of_one_incident_are_one_where_its_first_stands",),
    ),
    Mutant(
        name="any-payload-is-proven",
        law="a payload is shown as approved content only where its hash is the one to approve",
        rows="Q5 S6",
        file=f"{CONSOLE}/places.py",
        old='digest(sent) == found.get("content_sha256")',
        new='found.get("content_sha256") is not None',
        killers=(f"{DECIDING}::test_a_repair_to_approve_is_told_with_what_it_sends_and_an_altered_one_is_not_proven",),
    ),
    Mutant(
        name="a-repair-is-approved-by-its-hash-alone",
        law="the approver of a repair sees what it sends",
        rows="Q5 O2",
        file=f"{GATEWAY}/core/questions.py",
        old='        "payload": offer.get("payload"),',
        new='        "payload": None,',
        killers=(f"{REPAIRS}::test_the_approver_of_a_repair_reads_the_payload_behind_the_hash",),
    ),
    Mutant(
        name="auditors-read-what-targets-say",
        law="the audit view holds no content, nor a target's words about it",
        rows="O4 T3",
        file=f"{GATEWAY}/core/withholding.py",
        old='"envelope/repair", "envelope/failure_reason")',
        new='"envelope/repair")',
        killers=(f"{ROLES}::test_an_auditor_sees_that_it_is_there_and_not_what_it_says",),
    ),
    Mutant(
        name="what-succeeded-offers-nothing",
        law="a command lists what the table admits, also where it succeeded and its case owes a look at it",
        rows="O3 Q8",
        file=f"{GATEWAY}/api/allowed.py",
        old="(state in _OVER and not owes)",
        new="state in _OVER",
        killers=(f"{ACTS}::test_a_command_that_succeeded_lists_what_its_case_owes_about_it",),
    ),
)
