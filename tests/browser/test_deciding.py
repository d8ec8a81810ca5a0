"""Deciding: many rows of one incident as one, a repair that shows what it sends, a case that goes on by a version."""

from __future__ import annotations

import json
import re

import pytest

from tests.browser.desk import AGAIN, Desk, attempt, envelope
from tests.browser.window import Window
from tests.browser.window import window as opening
from tests.gateway.edge import later
from tests.gateway.mending import told_repair
from tests.gateway.test_definitions import register
from tests.gateway.test_repair_approvals import question
from tests.gateway.test_resuming import CORRECTED, FIRST, stuck
from tests.gateway.test_views import project
from trueup_common.contracts.events import IncidentChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.states import InstanceStatus, OperationState

INCIDENT = derived_id("inc", "acme", "wordpress", "deciding")
MANY = 20


async def dead(desk: Desk, name: str, due_seconds: float, incident_id: str | None) -> None:
    """A dead letter that is due then."""
    start = await desk.accept(name)
    away = attempt(start, 1, "REJECTED", later(-300), error_class="transient", external_status="503")
    await desk.tell(
        start, OperationState.DEAD_LETTERED, InstanceStatus.HUMAN_TAKEOVER, attempts=[away], attempt_count=1
    )
    told = envelope(start, "deadline_passed", f"the site answered 503 to {name}", "503", 1, AGAIN)
    facts = {"kind": "dead_letter", "failure_class": "DEPENDENCY_ERROR", "incident_id": incident_id}
    await desk.raise_exception(start, name, envelope=told, deadline_at=later(due_seconds), **facts)


@pytest.fixture(autouse=True)
async def filled(desk: Desk) -> None:
    """An incident with twenty dead letters, one of them due before what has nothing to do with it, and one after."""
    if await desk.edge.count("exception_view") > 0:
        await desk.recall()
        return
    await dead(desk, "before", 300, None)
    for number in range(MANY):
        await dead(desk, f"many-{number:02d}", 600 + 60 * number, INCIDENT)
    await dead(desk, "between", 700, None)
    await dead(desk, "after", 7200, None)
    incident = IncidentChanged(
        incident_id=INCIDENT,
        tenant="acme",
        status="OPEN",
        cause={"by": "target", "value": "wordpress", "system": "wordpress", "failure_class": "DEPENDENCY_ERROR"},
        owner="operators",
        exceptions_count=MANY,
        blast_radius={"systems": ["wordpress"]},
        first_at=later(-700),
        last_at=later(-10),
        opened_at=later(-600),
        version=1,
    )
    await project(desk.edge, incident)


async def test_the_rows_of_one_incident_are_one_row_that_opens_by_keyboard(desk: Desk, window: Window) -> None:
    """Twenty exceptions are one row with their number, where the first of them is due; Enter opens it, j goes on
    through what it holds, and what it holds stays in order.

    Requirements: O1, O3
    """
    await window.log_in("operator", path="/console/exceptions")
    lines = window.page.locator("ol[data-rows] > li")
    assert await lines.count() == 4, "the first, the incident, the one in between, the last"
    fold = lines.nth(1)
    assert f"{MANY} exceptions of one incident" in await window.text("ol[data-rows] > li:nth-child(2)")
    assert await fold.locator("details").get_attribute("open") is None
    await window.picture("folded")
    await window.page.keyboard.press("j")
    await window.page.keyboard.press("j")
    focused = "document.activeElement.dataset.stop !== undefined"
    assert await window.page.evaluate(focused)
    await window.page.keyboard.press("j")
    assert desk.exceptions["between"] in await window.page.evaluate("document.activeElement.href"), (
        "closed: passed over"
    )
    await window.page.keyboard.press("k")
    await window.page.keyboard.press("Enter")
    await fold.locator("details[open]").wait_for()
    hrefs = await fold.locator(".row-what > a").evaluate_all("links => links.map((one) => one.href)")
    named = [desk.exceptions[f"many-{number:02d}"] for number in range(MANY)]
    assert [href.rpartition("/")[2] for href in hrefs] == named
    await window.page.keyboard.press("j")
    assert named[0] in await window.page.evaluate("document.activeElement.href")
    await window.is_legible()
    await window.is_sound()
    await window.picture("unfolded")
    await fold.get_by_text("Show these alone").click()
    await window.page.wait_for_url(f"**/exceptions?incident={INCIDENT}")
    assert await window.page.locator("ol[data-rows] > li[data-row]").count() == MANY


async def test_an_open_fold_stays_open_while_the_page_follows(desk: Desk, window: Window) -> None:
    """Another of the same cause comes: the row counts it, stays open, and keeps the focus.

    Requirements: O1, O4
    """
    await window.log_in("operator", path="/console/exceptions")
    await window.page.locator("[data-live-mark]").wait_for()
    summary = window.page.locator("[data-fold] > summary")
    await summary.focus()
    await window.page.keyboard.press("Enter")
    await window.page.locator("details[data-fold][open]").wait_for()
    await dead(desk, "one-more", 3000, INCIDENT)
    await window.shows(f"{MANY + 1} exceptions of one incident", "summary")
    assert await window.page.locator("details[data-fold][open]").count() == 1
    assert await window.page.evaluate("document.activeElement.dataset.stop !== undefined")


async def test_folds_open_without_a_script(desk: Desk) -> None:
    """Requirements: O1, O4"""
    async with opening(desk.url, java_script_enabled=False) as plain:
        await plain.open("/console/login?next=/console/exceptions")
        await plain.page.fill("input[name=name]", "olga")
        await plain.page.set_checked("input[value=operator]", checked=True)
        await plain.page.click("button.primary")
        row = plain.page.locator("[data-fold] .row-what > a").first
        assert not await row.is_visible()
        await plain.page.click("[data-fold] > summary")
        await row.wait_for()
        await row.click()
        await plain.page.wait_for_url("**/exceptions/exc_*")


@pytest.mark.parametrize(("width", "scheme", "language"), [(1360, "light", "en"), (360, "dark", "zh")])
async def test_who_approves_a_repair_sees_what_it_sends(desk: Desk, width: int, scheme: str, language: str) -> None:
    """The payload with its hash, proven to be its hash; the element with desired and observed; risk with its factors;
    what takes it back; how it will be verified. An approver sees it who may see nothing else.

    Requirements: Q5, O2, O4
    """
    decision, offer, exception_id = await question(desk.edge, f"repair-{language}")
    plan = told_repair(version=4).evolve(
        repair_id=derived_id("rep", language),
        exception_id=exception_id,
        status="WAITING_APPROVAL",
        approval_id=decision["approval_id"],
        decision_id=decision["decision_id"],
        playbook="drift-automatic",
    )
    await project(desk.edge, plan)
    async with opening(desk.url, viewport={"width": width, "height": 800}, color_scheme=scheme) as screen:
        await screen.log_in("approver", scopes="*", name="erin", path=f"/console/login?lang={language}")
        await screen.open(f"/console/approvals/{decision['approval_id']}")
        text = await screen.text()
        for part in ("wordpress.status", "publish", "draft", '"post_id": 28', "ab" * 32, plan.playbook):
            assert part in text, part
        body = offer["body"]["payload"]
        shown = await screen.page.inner_text(".sends")
        assert all(str(value) in shown for value in body.values())
        proof = "its hash is" if language == "en" else "其哈希为"
        sha256 = await screen.page.input_value("input[name=content_sha256]")
        assert f"{proof} {sha256}" in await screen.text(".proof")
        english = "the reconciler observes the element healthy"
        assert (english in text.lower()) is (language == "en"), "the playbook speaks the reader's language"
        await screen.is_legible()
        await screen.is_sound()
        await screen.fits()
        await screen.picture(f"repair-approval-{language}")
        await screen.page.fill("input[name=reason]", "read")
        await screen.page.click("button[value=approve]")
        await screen.page.locator(".alert-good[role=status]").wait_for()


async def test_the_exception_shows_the_repair_that_is_offered(desk: Desk, window: Window) -> None:
    """Before anybody asks for it: what would be sent, and for which difference.

    Requirements: O2, Q5
    """
    _, _, exception_id = await question(desk.edge, "offered")
    await window.log_in("operator", path=f"/console/login?next=/console/exceptions/{exception_id}")
    text = await window.text("[data-region=repair]")
    for part in ("wordpress.publish_post", '"post_id": 28', "publish", "draft", "would be sent"):
        assert part in text, part
    await window.is_legible()
    await window.picture("repair-offered")


async def test_a_case_goes_on_by_a_corrected_version(desk: Desk, window: Window) -> None:
    """The form names the other versions; one that does not fit is refused by the names of what does not, one that fits
    is previewed with both versions, and goes on.

    Requirements: O7, O3
    """
    instance, _ = await stuck(desk.edge, "by-version")
    assert (await register(desk.edge, "by-version-2", CORRECTED)).status_code in (200, 201)
    unfit = FIRST.replace("version: 1", "version: 3").replace("maxLength: 200", "maxLength: 150")
    assert (await register(desk.edge, "by-version-3", unfit)).status_code in (200, 201)
    await window.log_in("operator", path=f"/console/login?next=/console/cases/{instance.workflow_id}")
    offer = window.page.locator("details.offer:has(input[name=action][value=RESUME])")
    for version, then in ((3, "This version does not fit"), (2, "What would happen")):
        await window.open(f"/console/cases/{instance.workflow_id}")
        if version == 3:
            await offer.locator("summary").click()
        else:
            assert await offer.locator("select[name=version]").input_value() == "3", "what was typed in vain is back"
        await offer.locator("select[name=from_step]").select_option("publish")
        assert "spelling" in await offer.locator("select[name=from_step]").inner_text(), "a step that version 2 adds"
        await offer.locator("select[name=version]").select_option(str(version))
        await offer.locator("input[name=reason]").fill("the document was wrong")
        await offer.locator("input[name=dry_run]").set_checked(True)
        await window.picture(f"resume-form-v{version}")
        await offer.locator("button").click()
        await window.shows(then, "h1, h2")
        await window.is_legible()
        await window.is_sound()
        await window.picture(f"resume-v{version}")
        if version == 3:
            assert "takes another input" in await window.text() and "Nothing was changed" in await window.text()
    assert "v2 in place of v1" in await window.text()
    await window.page.click("button.primary")
    await window.page.wait_for_url(re.compile(r"/cases/wf_\w+\?did=opc_"))
    async with desk.edge.database.connection() as connection:
        asked = await connection.fetchval("SELECT params::text FROM gateway.operator_command WHERE action = 'RESUME'")
    assert json.loads(asked) == {"from_step": "publish", "version": 2}
