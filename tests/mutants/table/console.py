"""Mutants of the operators' console: who is let in, for how long, and what text from outside may do."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CONSOLE: Final = "services/gateway/trueup_gateway/console"
PAGES: Final = "tests/gateway/test_console.py"
SESSIONS: Final = "tests/gateway/test_console_sessions.py"
VIEWS: Final = "tests/gateway/test_console_views.py"

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
)
