"""Closing, on a plane of real processes: from the first look to the end in the world, in under a minute."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import pytest
import pytest_asyncio

from tests.browser.window import Window
from tests.browser.window import window as opening
from tests.system.plane import Plane, eventually, http
from trueup_common.contracts.shape import rfc3339
from trueup_common.runtime.clock import real_now

PERSON_SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process of every service, and the sandbox world."""
    soon = {"TRUEUP_EXCEPTION_SLA_SECONDS": "40"}  # an unknown becomes a person's within seconds
    plane = Plane(tmp_path_factory.mktemp("console"), environment=soon).start()
    yield plane
    plane.stop()


@pytest.fixture(autouse=True)
def faultless(plane: Plane) -> Iterator[None]:
    """What one test lets go wrong does not meet the next."""
    yield
    http("DELETE", f"{plane.sandbox_url}/_faults")


@pytest_asyncio.fixture
async def window(plane: Plane) -> AsyncIterator[Window]:
    """A window on the plane's console."""
    async with opening(plane.url) as opened:
        yield opened


async def test_a_person_finds_a_dead_letter_redrives_it_and_sees_it_close(plane: Plane, window: Window) -> None:
    """Its time was over before it could be sent; redriven, it gets new time, happens once in the world, and the page
    tells by itself that the exception is closed. All of it takes a person less than a minute.

    Requirements: O4, O2, O3, Q6
    """
    late = rfc3339(real_now() + timedelta(seconds=20))
    answer = plane.draft("from-the-console", deadline=late, prefer="wait=10")
    workflow_id = answer.body["workflow_id"]
    letter = eventually(lambda: next(iter(plane.exceptions(workflow_id)), None), "its exception")
    assert letter["kind"] == "dead_letter"
    begun = time.monotonic()
    await window.log_in("operator")
    await window.page.click(f"a[href$='{letter['exception_id']}']")
    assert "It was never sent" in await window.text()
    await window.page.click(".offer summary:has-text('Redrive')")
    form = window.page.locator(".offer[open] form")
    await form.locator("input[name=reason]").fill("it still is to be published")
    await form.locator("button").click()
    await window.shows("it still is to be published", "[data-region=did]")
    await window.page.locator("[data-region=head] .chip", has_text="closed").wait_for()
    took = time.monotonic() - begun
    await window.picture("closed")
    assert plane.closed(workflow_id)["status"] == "CLOSED"
    effects = http("GET", f"{plane.sandbox_url}/_effects?system=wordpress").body["items"]
    assert sum(effect["action"] == "create" for effect in effects) == 1
    assert took < PERSON_SECONDS_MAX


async def test_a_person_settles_what_nobody_else_can_know(plane: Plane, window: Window) -> None:
    """The answer was lost and the target does not let itself be read: the console says that nobody knows, offers no
    redrive, and takes what a person found out, with evidence.

    Requirements: E3, O3, O4
    """
    plane.fault("deny_reads", method="GET", path="/effect", system="bench", times=200)
    plane.fault("lose_answer", method="POST", path="/effect$", system="bench")
    capability = plane.capability("bench.post", "unit")
    answer = plane.submit(capability, "lost", "bench.post", "unit", {"unit": "lost"})
    workflow_id, command_id = answer.body["workflow_id"], answer.body["command_id"]

    def settled_by_nobody() -> str | None:
        found = [item for item in plane.exceptions(workflow_id) if item["kind"] == "needs_review"]
        return str(found[0]["exception_id"]) if found and "SETTLE" in found[0]["allowed_actions"] else None

    exception_id = eventually(settled_by_nobody, "an unknown that a person may settle")
    await window.log_in("operator", path=f"/console/login?next=/console/exceptions/{exception_id}")
    text = await window.text()
    assert "Nobody knows" in text and "Not before somebody has looked" in text
    await window.picture("unknown")
    await window.page.click(".offer summary:has-text('Settle')")
    form = window.page.locator(".offer[open] form")
    await form.locator("select[name=finding]").select_option("EXISTS")
    await form.locator("textarea[name=receipt]").fill('{"ref": "line 12"}')
    await form.locator("textarea[name=evidence]").fill("line 12 of the target's own log")
    await form.locator("input[name=reason]").fill("asked the site's owner")
    await form.locator("button").click()
    await window.shows("asked the site's owner", "[data-region=did]")
    eventually(lambda: plane.journal(command_id)["state"] == "SUCCESS" or None, "settled: it exists")


async def test_an_editor_approves_what_the_page_shows_and_the_article_is_published(
    plane: Plane, window: Window
) -> None:
    """A whole workflow waits for its editor; the case page follows it to CLOSED.

    Requirements: O4
    """
    workflow_id = plane.publishing("console-1")
    plane.approval(workflow_id)
    await window.log_in("operator", "approver", path=f"/console/login?next=/console/cases/{workflow_id}")
    await window.page.locator(".step a[href*='/approvals/']").first.wait_for(state="attached")
    await window.picture("case-waiting")
    await window.page.click("[data-region=approvals] a")
    await window.page.fill("input[name=reason]", "read and checked")
    await window.page.click("button[value=approve]")
    await window.shows("The answer is kept", ".alert")
    await window.open(f"/console/cases/{workflow_id}")
    plane.closed(workflow_id)
    await window.page.locator("[data-region=head] .chip", has_text="closed").wait_for()
    await window.picture("case-closed")


async def test_a_person_sees_what_would_run_again_before_a_case_goes_on(plane: Plane, window: Window) -> None:
    """A case that a check stopped is resumed from a step: first the preview, in which nothing happens.

    Requirements: O7, O4
    """
    workflow_id = plane.publishing("console-2", title="Another title than the structured data has")
    plane.status(workflow_id, "HUMAN_TAKEOVER")
    await window.log_in("operator", path=f"/console/login?next=/console/cases/{workflow_id}")
    await window.page.click(".offer summary:has-text('Resume')")
    form = window.page.locator(".offer[open] form")
    await form.locator("select[name=from_step]").select_option("validate")
    await form.locator("input[name=reason]").fill("the title is right now")
    await form.locator("button").click()
    await window.shows("Runs again", "h2")
    text = await window.text()
    assert "kept draft" in text and "validate" in text and "wordpress.publish_post" in text
    await window.picture("resume")
    token = plane.token("operator:reader", roles=("operator",))
    assert plane.get(f"/v1/workflows/{workflow_id}", token).body["status"] == "HUMAN_TAKEOVER"
