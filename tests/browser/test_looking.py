"""Looking: exceptions first, by keyboard, on a phone, in the dark, in Chinese; and hostile text stays text."""

from __future__ import annotations

import re

import pytest

from tests.browser.desk import Desk, fill
from tests.browser.window import Window
from tests.browser.window import window as opening

ROLES = ("operator", "approver", "viewer", "admin", "auditor")
PLACES = ("exceptions", "cases", "approvals", "repairs", "incidents", "batches", "slo", "freezes", "acts", "nowhere")


@pytest.fixture(autouse=True)
async def filled(desk: Desk) -> None:
    """Everything that can be open lies on the desk, once for the module."""
    if await desk.edge.count("exception_view") == 0:
        await fill(desk)
    else:
        await desk.recall()


async def test_a_person_finds_and_understands_an_exception_by_keyboard_alone(desk: Desk, window: Window) -> None:
    """Log in, j to the row, Enter, and the page says what happened, whether it executed, and who owns it.

    Requirements: O1, O2, O4
    """
    await window.log_in("operator", path="/console/exceptions")
    assert await window.page.title() == "Exceptions · Trueup"
    await window.picture("exceptions")
    await window.page.keyboard.press("Tab")
    assert await window.page.evaluate("document.activeElement.className") == "skip"
    first = await window.page.locator("[data-row] .row-what > a").first.get_attribute("href")
    assert first == f"/console/exceptions/{desk.exceptions['dead']}", "what is due first stands first"
    for _ in range(30):
        await window.page.keyboard.press("j")
        if desk.exceptions["failed"] in (await window.page.evaluate("document.activeElement.href") or ""):
            break
    await window.page.keyboard.press("Enter")
    await window.page.wait_for_url(f"**/exceptions/{desk.exceptions['failed']}")
    text = await window.text()
    for told in ("not allowed to create posts", "known that nothing happened", "Has it executed?", "operators", "403"):
        assert told in text
    await window.page.keyboard.press("u")
    await window.page.wait_for_url("**/console/exceptions")
    await window.page.keyboard.press("?")
    assert await window.page.locator("dialog[open]").is_visible()


async def test_every_exception_tells_what_a_person_must_know(desk: Desk, window: Window) -> None:
    """For each kind: the object, desired next to observed, attempts, class, risk, decision, timeline, and what to do.

    Requirements: O2, O4
    """
    await window.log_in("operator")
    for name, exception_id in desk.exceptions.items():
        await window.open(f"/console/exceptions/{exception_id}")
        text = await window.text()
        for part in ("Facts", "Decision and capability", "Timeline", "What may safely be done now", "Ten questions"):
            assert part in text, (name, part)
        await window.picture(f"exception-{name}")
    assert "drifted" in desk.exceptions
    await window.open(f"/console/exceptions/{desk.exceptions['drifted']}")
    row = await window.text(".vector tbody tr:has-text('wordpress.status')")
    assert "draft draft" in row and "trash" in row and "drifted" in row and "seen" in row and "UTC" in row


async def test_hostile_text_is_shown_and_does_nothing(desk: Desk, window: Window) -> None:
    """What a target says is text: no element comes of it, no dialog, nothing fetched, and its length is bounded.

    Requirements: O4
    """
    await window.log_in("operator")
    for path in ("/console/exceptions", f"/console/exceptions/{desk.exceptions['hostile']}"):
        await window.open(path)
        assert "<img src=x onerror" in await window.text()
        assert await window.page.locator("main img, main script").count() == 0
        assert "\u202e" not in await window.page.content()
        await window.fits()
    assert (await window.page.content()).count(" and on") < 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_is_legible_and_fits_a_phone(desk: Desk, scheme: str) -> None:
    """AA contrast of every text against what is behind it, and no sideways scrolling at 360 pixels.

    Requirements: O4
    """
    paths = [f"exceptions/{name}" for name in desk.exceptions.values()] + list(PLACES)
    paths += [f"cases/{desk.cases['drifted']}", f"cases/{desk.cases['failed']}", f"commands/{desk.commands['dead']}"]
    async with opening(desk.url, viewport={"width": 360, "height": 740}, color_scheme=scheme) as phone:
        await phone.open("/console/login")
        await phone.is_legible()
        await phone.is_sound()
        await phone.fits()
        await phone.picture(f"phone-{scheme}-login")
        await phone.log_in(*ROLES)
        paths += re.findall(r"/console/(approvals/apr_\w+|decisions/dec_\w+)", await _page(phone, "approvals"))[:1]
        for path in paths:
            await phone.page.set_viewport_size({"width": 360, "height": 740})
            await phone.open(f"/console/{path}")
            await phone.is_legible()
            await phone.is_sound()
            await phone.fits()
            name = path.replace("/", "-").partition("_")[0]
            await phone.picture(f"phone-{scheme}-{name}")
            await phone.page.set_viewport_size({"width": 1360, "height": 900})
            await phone.is_legible()
            await phone.fits()
            await phone.picture(f"desk-{scheme}-{name}")


async def _page(window: Window, path: str) -> str:
    await window.open(f"/console/{path}")
    return await window.page.content()


async def test_language_and_appearance_are_remembered(desk: Desk, window: Window) -> None:
    """Chinese by choice, dark by choice, without a script: both are forms, and both stay.

    Requirements: O4
    """
    await window.log_in("operator")
    await window.page.click(".menu summary")
    await window.picture("menu")
    await window.page.click("button[value=zh]")
    await window.shows("异常", "h1")
    await window.page.click(".menu summary")
    await window.page.click("button[value=dark]")
    await window.page.wait_for_selector("html[data-theme=dark]")
    await window.open(f"/console/exceptions/{desk.exceptions['dead']}")
    assert await window.page.get_attribute("html", "lang") == "zh-Hans"
    dark = await window.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert sum(int(part) for part in re.findall(r"\d+", dark)[:3]) < 150
    await window.is_legible()
    await window.picture("chinese-dark")


async def test_the_list_follows_what_happens(desk: Desk, window: Window) -> None:
    """A new exception appears by itself, and the counter moves, without anybody loading the page again.

    Requirements: O1
    """
    await window.log_in("operator")
    await window.page.wait_for_selector("[data-live-mark]:not([hidden])")
    event = await desk.raise_exception(await desk.accept("appears"), "appears", owner="newcomers")
    await window.page.wait_for_selector(f"a[href$='{event.exception_id}']")


async def test_without_scripts_everything_is_there(desk: Desk) -> None:
    """The pages are made by the server: with scripts switched off a person reads and acts all the same.

    Requirements: O4
    """
    async with opening(desk.url, java_script_enabled=False) as plain:
        await plain.log_in(*ROLES)
        await plain.page.click(f"a[href$='{desk.exceptions['dead']}']")
        assert "Ten questions" in await plain.text()
        await plain.open("/console/freezes")
        await plain.page.click("details.new summary")
        await plain.page.fill("details.new input[name=system]", "elsewhere")
        await plain.page.fill("details.new input[name=reason]", "without scripts")
        await plain.page.click("details.new button")
        await plain.shows("without scripts")
