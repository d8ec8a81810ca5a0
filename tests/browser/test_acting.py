"""Acting: what a person asks for goes through the public contract, once, and exactly as they saw it."""

from __future__ import annotations

import json

import pytest

from tests.browser.desk import Desk, fill
from tests.browser.window import Window


@pytest.fixture(autouse=True)
async def filled(desk: Desk) -> None:
    """Everything that can be open lies on the desk, once for the module."""
    if await desk.edge.count("exception_view") == 0:
        await fill(desk)
    else:
        await desk.recall()


async def test_a_dead_letter_is_redriven_once_however_often_the_button_is_pressed(desk: Desk, window: Window) -> None:
    """The page of a dead letter offers what is allowed, the redrive first; a double click and a second sending of the
    same form ask for one operator command, with the person's reason and a decision of its own.

    Requirements: O3, O4
    """
    before = await desk.edge.count("operator_command")
    await window.log_in("operator", path=f"/console/login?next=/console/exceptions/{desk.exceptions['dead']}")
    assert await window.page.locator(".offer summary b").first.inner_text() == "Redrive"
    await window.page.keyboard.press("a")
    await window.page.keyboard.press("Enter")  # closes it again: the key had opened it
    await window.page.keyboard.press("Enter")
    form = window.page.locator(".offer[open] form")
    await form.locator("input[name=reason]").fill("the site is back")
    await window.picture("redrive")
    sent = await form.evaluate("form => new URLSearchParams(new FormData(form)).toString()")
    await form.locator("button").dblclick()
    await window.shows("the site is back", "[data-region=did]")
    assert await desk.edge.count("operator_command") == before + 1
    again = await window.page.evaluate(
        "body => fetch('/console/act', {method: 'POST', body, headers: "
        "{'content-type': 'application/x-www-form-urlencoded'}}).then(answer => answer.status)",
        sent,
    )
    assert again == 200
    assert await desk.edge.count("operator_command") == before + 1
    await window.picture("redrive-asked")


async def test_a_settlement_without_evidence_is_refused_in_words(desk: Desk, window: Window) -> None:
    """What the contract refuses is told with every place that does not fit; nothing was changed.

    Requirements: E3, O3
    """
    before = await desk.edge.count("operator_command")
    await window.log_in("operator", path=f"/console/login?next=/console/exceptions/{desk.exceptions['failed']}")
    await window.page.click(".offer summary:has-text('Settle')")
    form = window.page.locator(".offer[open] form")
    await form.locator("select[name=finding]").select_option("ABSENT")
    await form.locator("input[name=reason]").fill("looked at the site")
    await form.locator("button").click()
    await window.shows("a finding needs evidence", ".refusal")
    await window.picture("refused")
    assert await desk.edge.count("operator_command") == before
    await window.page.click(".refusal a.button")
    await form.locator("textarea[name=evidence]").fill("no such post in the log of the site\nnor in its trash")
    assert await form.locator("input[name=reason]").input_value() == "looked at the site", "it need not be typed again"
    await form.locator("button").click()
    await window.shows("looked at the site", "[data-region=did]")
    assert await desk.edge.count("operator_command") == before + 1


async def test_an_approval_counts_for_what_was_shown_and_nothing_else(desk: Desk, window: Window) -> None:
    """With another hash the answer is refused and nothing is approved; with the one shown it counts.

    Requirements: O3, O4
    """
    await window.log_in("approver", scopes="wordpress", path="/console/login?next=/console/approvals")
    await window.page.click(".row-what a")
    shown = await window.text("code.full")
    form = window.page.locator("form[action$='/decide']")
    field = form.locator("input[name=content_sha256]")
    assert await field.get_attribute("value") == shown
    await field.evaluate("(input, other) => { input.value = other; }", "0" * 64)
    await form.locator("button[value=approve]").click()
    await window.shows("Not possible in this state", "h1")
    await window.shows("Open the page again and look before you decide", ".refusal")
    await window.shows("Nothing was changed", ".refusal")
    await window.is_sound()
    await window.picture("changed-hash")
    assert await desk.edge.count("approval", "status = 'approved'") == 0
    await window.page.click(".refusal a.button")
    await form.locator("input[name=reason]").fill("read it")
    await form.locator("button[value=approve]").click()
    await window.shows("The answer is kept", ".alert")
    assert await desk.edge.count("approval", f"status = 'approved' AND content_sha256 = '{shown}'") == 1
    await window.picture("approved")


async def test_a_batch_is_previewed_started_and_counted(desk: Desk, window: Window) -> None:
    """From the filtered list to a frozen selection; nothing happens before it is started.

    Requirements: O5
    """
    await window.log_in("operator", path="/console/login?next=/console/exceptions?kind=dead_letter")
    await window.page.click("a.push")
    assert await window.page.locator("select[name=kind]").input_value() == "dead_letter"
    await window.page.fill("details.new input[name=reason]", "the outage is over")
    await window.page.click("details.new button")
    await window.page.wait_for_url("**/batches/bat_*")
    text = await window.text()
    assert "preview" in text and "Redrive × 1" in text and "to come" in text
    await window.picture("batch")
    await window.page.click("button[value=start]")
    await window.shows("running", ".over")


async def test_what_the_console_may_do_is_in_its_forms_alone(desk: Desk, window: Window) -> None:
    """A page's scripts cannot read the session, and the browser sends nothing anywhere else.

    Requirements: O4
    """
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url))
    await window.log_in("operator", "viewer")
    await window.open(f"/console/cases/{desk.cases['dead']}")
    assert await window.page.evaluate("document.cookie") == ""
    cookies = await window.context.cookies()
    assert all(cookie["httpOnly"] for cookie in cookies), json.dumps(cookies)
    assert asked and all(url.startswith((desk.url, "data:")) for url in asked)
    refused = await window.page.evaluate(
        "() => new Promise(done => {"
        " addEventListener('securitypolicyviolation', event => done(event.violatedDirective));"
        " const script = document.createElement('script'); script.textContent = 'window.owned = 1';"
        " document.body.append(script); })"
    )
    assert refused.startswith("script-src") and await window.page.evaluate("window.owned") is None
    window.complaints.clear()
