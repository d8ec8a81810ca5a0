"""Coming back: what was typed is not lost, the back button acts on nothing, a page knows that its session is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.desk import Desk, fill
from tests.browser.window import Window

if TYPE_CHECKING:
    from playwright.async_api import Route

REASON = "the site is back, and <b>nobody</b> else looks after it"


@pytest.fixture(autouse=True)
async def filled(desk: Desk) -> None:
    """Everything that can be open lies on the desk, once for the module."""
    if await desk.edge.count("exception_view") == 0:
        await fill(desk)
    else:
        await desk.recall()


async def end_sessions(desk: Desk) -> None:
    """What a log-out elsewhere does to every session."""
    async with desk.edge.database.connection() as connection:
        await connection.execute("DELETE FROM gateway.console_session")


async def open_offer(window: Window, name: str) -> None:
    """Open one act on the page."""
    await window.page.click(f".offer summary:has-text('{name}')")


async def test_what_was_typed_comes_back_after_logging_in_again(desk: Desk, window: Window) -> None:
    """The session ends while somebody types: sending does nothing, says so, and after logging in the words are in the
    form again, once; then it is sent.

    Requirements: O4
    """
    place = f"/console/exceptions/{desk.exceptions['failed']}"
    before = await desk.edge.count("operator_command")
    await window.log_in("operator", path=f"/console/login?next={place}")
    await open_offer(window, "Assign")
    form = window.page.locator(".offer[open] form")
    await form.locator("input[name=owner]").fill("night shift")
    await form.locator("input[name=reason]").fill(REASON)
    await end_sessions(desk)
    await form.locator("button").click()
    await window.shows("Your session is over", "h1")
    assert REASON in await window.text(".kept") and "night shift" in await window.text(".kept")
    await window.is_legible()
    await window.is_sound()
    await window.picture("session-over")
    assert await desk.edge.count("operator_command") == before
    await window.page.click("a.button.primary")
    await window.log_in("operator", path=window.page.url.removeprefix(window.url))
    await window.page.wait_for_url(f"**{place}")
    assert await form.locator("input[name=reason]").input_value() == REASON
    assert await form.locator("input[name=owner]").input_value() == "night shift"
    await window.picture("typed-again")
    await form.locator("button").click()
    await window.shows(REASON, "[data-region=did]")
    assert await desk.edge.count("operator_command") == before + 1
    await window.open(place)
    assert await window.page.locator(".offer[open]").count() == 0, "it came back once"


async def test_a_refused_form_gives_back_what_was_typed(desk: Desk, window: Window) -> None:
    """What is refused need not be written twice.

    Requirements: O4
    """
    await window.log_in("operator", path=f"/console/login?next=/console/exceptions/{desk.exceptions['dead']}")
    await open_offer(window, "Settle")
    form = window.page.locator(".offer[open] form")
    await form.locator("select[name=finding]").select_option("ABSENT")
    await form.locator("input[name=reason]").fill(REASON)
    await form.locator("button").click()
    await window.shows("Nothing was changed", ".refusal")
    await window.page.click(".refusal a.button")
    assert await form.locator("input[name=reason]").input_value() == REASON
    assert await form.locator("select[name=finding]").input_value() == "ABSENT"


async def test_the_back_button_after_an_act_acts_on_nothing(desk: Desk, window: Window) -> None:
    """Back shows the page as it is now; pressing again is refused in words while the first is at work.

    Requirements: O3, I5
    """
    place = f"/console/exceptions/{desk.exceptions['dead']}"
    before = await desk.edge.count("operator_command")
    await window.log_in("operator", path=f"/console/login?next={place}")
    await open_offer(window, "Redrive")
    form = window.page.locator(".offer[open] form")
    await form.locator("input[name=reason]").fill("once")
    await form.locator("button").click()
    await window.shows("once", "[data-region=did]")
    await window.page.go_back()
    await window.page.wait_for_url(f"**{place}")
    await window.shows("once", "[data-region=asked]")
    assert await desk.edge.count("operator_command") == before + 1
    if await form.count() == 0:
        await open_offer(window, "Redrive")
    await form.locator("input[name=reason]").fill("once more")
    await form.locator("button").click()
    await window.shows("Somebody is at work on this already", "h1")
    await window.picture("at-work-already")
    assert await desk.edge.count("operator_command") == before + 1


async def test_a_page_says_that_its_session_is_over(desk: Desk, window: Window) -> None:
    """Nobody trusts a page that cannot know any more: it says so, keeps what it shows, and leads to the login.

    Requirements: O1, O4
    """
    await window.log_in("operator", path="/console/exceptions")
    await end_sessions(desk)
    await window.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await window.page.locator("[data-over]").wait_for()
    assert "Your session is over" in await window.text("[data-over]")
    assert await window.page.locator("[data-row]").count() > 0
    await window.is_legible()


async def test_without_a_stream_the_page_looks_by_itself(desk: Desk, window: Window) -> None:
    """All places are taken: the page says that it looks again every 15 seconds, does so, and finds what is new.

    Requirements: O1
    """

    async def full(route: Route) -> None:
        await route.fulfill(status=503, headers={"Retry-After": "15"}, body="full")

    await window.page.route("**/console/live/**", full)
    await window.page.clock.install()
    await window.log_in("operator", path="/console/exceptions")
    await window.page.locator("[data-live-mark] [data-when=looks]").wait_for()
    event = await desk.raise_exception(await desk.accept("later-on"), "later-on", owner="latecomers")
    await window.page.clock.run_for(16_000)
    await window.page.wait_for_selector(f"a[href$='{event.exception_id}']")
    await window.page.unroute("**/console/live/**")
    await window.page.clock.run_for(60_000)
    await window.page.locator("[data-live-mark] [data-when=live]").wait_for()
    window.complaints.clear()


async def test_logging_out_in_one_window_ends_the_other(desk: Desk, window: Window) -> None:
    """The session ends on the server: the cookie that another window holds opens nothing any more.

    Requirements: T3
    """
    await window.log_in("operator", path="/console/exceptions")
    cookies = await window.context.cookies()
    await window.page.click(".menu summary")
    await window.page.click(".pop form[action$='/logout'] button")
    await window.page.wait_for_url("**/console/login")
    await window.context.add_cookies(cookies)
    await window.open("/console/exceptions")
    assert "/console/login" in window.page.url


async def test_the_whole_way_by_keyboard_alone(desk: Desk, window: Window) -> None:
    """Log in, find the dead letter, read it, redrive it, log out: no hand leaves the keyboard, and the focus is always
    to be seen.

    Requirements: O4
    """
    keys = window.page.keyboard
    await window.open("/console/login?next=/console/exceptions")
    await window.page.locator("input[name=name]").focus()
    await keys.press("Enter")
    await window.page.wait_for_selector("[data-row]")
    for _ in range(40):
        await keys.press("j")
        if desk.exceptions["dead"] in (await window.page.evaluate("document.activeElement.href") or ""):
            break
    assert await window.page.evaluate(VISIBLE_FOCUS)
    await keys.press("Enter")
    await window.page.wait_for_url(f"**/exceptions/{desk.exceptions['dead']}")
    await keys.press("a")
    assert await window.page.evaluate("document.activeElement.textContent.includes('Redrive')")
    assert await window.page.evaluate(VISIBLE_FOCUS)
    await keys.press("Tab")
    await keys.type("by keyboard alone")
    await keys.press("Tab")
    assert await window.page.evaluate("document.activeElement.tagName") == "BUTTON"
    assert await window.page.evaluate(VISIBLE_FOCUS)
    await keys.press("Enter")
    await window.page.wait_for_selector("[data-region=did], .refusal")
    for _ in range(60):
        await keys.press("Tab")
        if await window.page.evaluate("document.activeElement.matches('.menu summary')"):
            break
    await keys.press("Enter")
    for _ in range(10):
        await keys.press("Tab")
        if await window.page.evaluate("document.activeElement.closest('form')?.action.endsWith('/logout') ?? false"):
            break
    await keys.press("Enter")
    await window.page.wait_for_url("**/console/login")


VISIBLE_FOCUS = """
() => {
  const e = document.activeElement;
  const ring = (style) => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2;
  const row = e.closest('.row');
  return ring(getComputedStyle(e)) || ring(getComputedStyle(e, '::after'))
    || (row !== null && getComputedStyle(row).boxShadow !== 'none');
}
"""
"""True where whoever looks sees what has the focus."""


@pytest.mark.parametrize(("role", "sees"), [("viewer", False), ("auditor", True)])
async def test_who_may_not_act_finds_no_button(desk: Desk, window: Window, role: str, sees: bool) -> None:
    """A viewer and an auditor read; only the auditor finds what people did, and not what it was about.

    Requirements: O4
    """
    await window.log_in(role, path=f"/console/login?next=/console/exceptions/{desk.exceptions['drifted']}")
    assert await window.page.locator(".offer").count() == 0
    assert "An operator can" in await window.text("[data-region=offers]")
    assert await window.page.locator("nav a[href$='/console/acts']").count() == int(sees)
    assert ("withheld" in await window.text("[data-region=vector]")) is sees
    await window.picture(f"role-{role}")
