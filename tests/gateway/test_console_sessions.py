"""Sessions of the console: they end where somebody logs out, at every replica; what was typed is not lost by it."""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack

import httpx
import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, edge, later
from tests.gateway.person import HERE, Person, form_to, hidden
from tests.gateway.test_console import an_exception
from tests.gateway.test_views import accepted, changed_exception, project
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database

from trueup_common.runtime.clock import real_now
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api.app import create_app
from trueup_gateway.console import live, sessions
from trueup_gateway.store.sessions import OF_ONE_MAX, SessionRow


@pytest_asyncio.fixture
async def person(gateway: EdgeUnderTest) -> Person:
    """Somebody who is not logged in yet."""
    gateway.client.cookies.clear()
    return Person(gateway.client)


async def test_a_copied_cookie_is_worth_nothing_once_somebody_logged_out(
    gateway: EdgeUnderTest, gateway_database: Database, person: Person
) -> None:
    """Logging out ends the session on the server: the same cookie opens nothing any more, here and at a replica.

    Requirements: O4, T3
    """
    async with edge(gateway_database) as other:
        await person.log_in("operator")
        copied = person.client.cookies["trueup_console"]
        thief = {"Cookie": f"trueup_console={copied}"}
        other.client.cookies.clear()
        assert (await other.client.get("/console/cases", headers=thief)).status_code == 200, "any replica serves it"
        page = await person.see("/cases")
        left = await person.send("/logout", page, "/logout")
        assert left.status_code == 303 and left.headers["location"] == "/console/login"
        person.client.cookies.clear()
        for replica in (gateway, other):
            refused = await replica.client.get("/console/cases", headers=thief)
            assert refused.status_code == 303 and "/console/login" in refused.headers["location"]
            fields = {**hidden(form_to(page, "/logout")), "reason": "x", "key": "thief"}
            acted = await replica.client.post("/console/freezes", data=fields, headers={**HERE, **thief})
            assert acted.status_code == 401
            followed = await replica.client.get("/console/live/exceptions", headers=thief)
            assert followed.status_code == 401
        assert await gateway.count("freeze") == 0


async def test_sessions_are_bounded_per_person_and_forgotten_when_over(gateway: EdgeUnderTest, person: Person) -> None:
    """Logging in again and again keeps a bounded number of sessions, the oldest gives way; what is over is forgotten.

    Requirements: T3
    """
    await person.log_in("viewer", name="often")
    first = person.client.cookies["trueup_console"]
    for _ in range(OF_ONE_MAX):
        person.client.cookies.clear()
        assert (await person.log_in("viewer", name="often")).status_code == 303
    assert await gateway.count("console_session", "subject = 'operator:often'") == OF_ONE_MAX
    await person.see("/cases")
    person.client.cookies.clear()
    gone = await person.client.get("/console/cases", headers={"Cookie": f"trueup_console={first}"})
    assert gone.status_code == 303
    long_ago = SessionRow("over", "acme", "operator:gone", real_now().replace(year=2020))
    async with gateway.gateway.store.transaction() as tx:
        await tx.open_session(long_ago)
    await person.log_in("viewer", name="later")
    assert await gateway.count("console_session", "session_id = 'over'") == 0


async def test_who_logs_in_again_ends_the_session_before(gateway: EdgeUnderTest, person: Person) -> None:
    """One browser, one session; a page from before tells so, and acts for nobody."""
    await person.log_in("operator", name="first")
    page, before = await person.see("/freezes"), person.client.cookies["trueup_console"]
    await person.log_in("operator", name="second")
    refused = await person.send("/freezes", page, "/freezes", reason="typed with care", system="elsewhere")
    assert refused.status_code == 403 and "before you logged in again" in refused.text
    assert "typed with care" in refused.text and await gateway.count("freeze") == 0
    person.client.cookies.clear()
    copied = await person.client.get("/console/cases", headers={"Cookie": f"trueup_console={before}"})
    assert copied.status_code == 303


@pytest.mark.parametrize("how", ["logged out", "token over"])
async def test_what_was_typed_is_kept_when_the_session_is_over(
    gateway: EdgeUnderTest, person: Person, how: str
) -> None:
    """The answer says that nothing was done, what was typed, and the way back; hostile text in it stays text.

    Requirements: O4, T3
    """
    exception_id, _ = await an_exception(gateway, f"kept-{how[0]}")
    await person.log_in("operator")
    page = await person.see(f"/exceptions/{exception_id}")
    if how == "logged out":
        await person.send("/logout", page, "/logout")
    person.client.cookies.clear()
    sent = await person.send("/act", page, "/act", reason="<script>alert(1)</script> the site is back", owner="night")
    assert sent.status_code == 401
    assert "Your session is over" in sent.text and "Nothing was changed" in sent.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; the site is back" in sent.text and "<script>alert" not in sent.text
    back = re.findall(r'href="(/console/login\?next=[^"]+)"', sent.text)
    assert back == [f"/console/login?next=%2Fconsole%2Fexceptions%2F{exception_id}"]
    assert 'data-kept="/console/act" data-mark="' in sent.text and exception_id in sent.text
    form_token = hidden(form_to(page, "/act"))["form_token"]
    assert form_token not in sent.text, "what only pages know is not echoed"
    assert await gateway.count("operator_command", f"target_id = '{exception_id}'") == 0
    foreign = await person.client.post("/console/act", data={"reason": "x"}, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403 and "data-kept" not in foreign.text


async def test_a_refused_form_keeps_what_was_typed(gateway: EdgeUnderTest, person: Person) -> None:
    """What the contract refuses is told with what was typed, to be put back where it was."""
    exception_id, _ = await an_exception(gateway, "refused-keeps")
    await person.log_in("operator")
    page = await person.see(f"/exceptions/{exception_id}")
    fields = hidden(form_to(page, "/act")) | {"action": "SETTLE", "finding": "ABSENT", "reason": "I looked"}
    refused = await person.client.post("/console/act", data=fields, headers=HERE)
    assert refused.status_code in (409, 422) and "I looked" in refused.text
    assert f'data-mark="SETTLE {exception_id}"' in refused.text


async def test_a_language_in_the_address_is_kept(gateway: EdgeUnderTest, person: Person) -> None:
    """`?lang=` answers with the same address without it, and stays chosen; one that there is not changes nothing."""
    await person.log_in("viewer")
    asked = await person.client.get("/console/exceptions?kind=failed&lang=zh&owner=a%26b")
    assert asked.status_code == 303 and asked.headers["location"] == "/console/exceptions?kind=failed&owner=a%26b"
    assert 'lang="zh-Hans"' in await person.see("/exceptions")
    assert (await person.client.get("/console/login?lang=en")).headers["location"] == "/console/login"
    assert 'lang="en"' in await person.see("/cases")
    assert 'lang="en"' in await person.see("/cases?lang=xx")


async def test_a_store_that_is_away_is_told_and_nobody_is_let_in(
    gateway: EdgeUnderTest, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with a time to come back, on a page that says that nothing was changed."""
    await person.log_in("operator")

    async def away(session_id: str) -> bool:
        raise StoreBusy("gone")

    monkeypatch.setattr(gateway.gateway.reads, "session_is_open", away)
    for response in (await person.client.get("/console/cases"), await person.client.post("/console/act", headers=HERE)):
        assert response.status_code == 503 and response.headers["retry-after"] == "2"
        assert "Nothing was changed" in response.text


async def test_nobody_fills_the_streams_alone(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person gets so many places (429), a replica has so many (503, with a time to come back); sixty people fit.

    Requirements: O4, T3
    """
    assert live.OPEN_MAX // live.OPEN_OF_ONE_MAX >= 60
    monkeypatch.setattr(live, "_open", {})
    application = create_app(gateway.gateway)
    async with AsyncExitStack() as stack:
        clients = []
        for name in ("anna", "bert"):
            made = httpx.AsyncClient(transport=httpx.ASGITransport(app=application), base_url="http://gateway")
            clients.append(await stack.enter_async_context(made))
            await Person(made).log_in("viewer", name=name)
        live._open["acme/operator:anna"] = live.OPEN_OF_ONE_MAX
        refused = await clients[0].get("/console/live/exceptions")
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
        live._open["acme/operator:others"] = live.OPEN_MAX
        full = await clients[1].get("/console/live/exceptions")
        assert full.status_code == 503 and int(full.headers["retry-after"]) > 0
        assert "too many pages open" in full.text


def test_many_open_pages_look_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """What all open pages of a replica cost together does not grow with their number."""
    for count in (1, 10, live.OPEN_MAX):
        monkeypatch.setattr(live, "_open", {"all": count})
        assert count / live.pause_seconds() <= live.LOOKS_PER_SECOND_MAX
    monkeypatch.setattr(live, "_open", {})
    assert live.pause_seconds() == live.POLL_SECONDS


async def test_a_stream_ends_with_its_session(
    gateway: EdgeUnderTest, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logging out anywhere ends what is followed everywhere, without waiting for the token's end."""
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)
    await person.log_in("viewer")
    page = await person.see("/exceptions")
    following = asyncio.create_task(person.client.get("/console/live/exceptions"))
    cookie = person.client.cookies["trueup_console"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not live._open:
            await asyncio.sleep(0)
        leave = {**HERE, "Cookie": f"trueup_console={cookie}"}
        await gateway.client.post("/console/logout", data=hidden(form_to(page, "/logout")), headers=leave)
        assert (await following).status_code == 200
    assert live._open == {}


async def test_an_exceptions_page_follows_it_beyond_the_end_of_its_case(
    gateway: EdgeUnderTest, person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exception is closed a moment after its case: the page is told, once for each thing that moved.

    Requirements: O4, V1
    """
    looks = 0

    def pause() -> float:
        nonlocal looks
        looks += 1
        return 0.01

    monkeypatch.setattr(live, "pause_seconds", pause)
    start, _, _ = await accepted(gateway, "beyond")
    event = changed_exception(start, "beyond")
    await project(gateway, event)
    await person.log_in("operator")
    page = await person.see(f"/exceptions/{event.exception_id}")
    assert f'data-live="/console/live/exceptions/{event.exception_id}"' in page
    following = asyncio.create_task(person.client.get(f"/console/live/exceptions/{event.exception_id}"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while looks < 1:
            await asyncio.sleep(0)
        over = {"status": "closed", "closed_at": later(0), "resolution_type": "case_closed"}
        await project(gateway, event.model_copy(update={**over, "version": event.version + 1}))
        seen = looks
        while looks < seen + 3:
            await asyncio.sleep(0)
        await person.client.post("/console/logout", data=hidden(form_to(page, "/logout")), headers=HERE)
        told = (await following).text
    assert told.count("event: moved") == 1


def test_the_secret_of_a_session_does_not_stand_in_the_table() -> None:
    """Who reads the table finds neither the cookie nor what forms carry."""
    named = sessions.session_id("a secret")
    assert "secret" not in named and len(named) == 64
