"""Accessible by the rules of others: axe-core over every page, in both appearances; skipped where it cannot be had."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.desk import Desk, fill
from tests.browser.test_looking import PLACES, ROLES
from tests.browser.window import window as opening
from tests.real.fetching import Unfetchable, npm

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = """
async (tags) => {
  const found = await axe.run(document, {runOnly: {type: 'tag', values: tags}, resultTypes: ['violations']});
  const places = (one) => one.nodes.slice(0, 3).map((node) => node.html.slice(0, 160));
  return found.violations.map((one) => [one.id, one.impact, places(one)]);
}
"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The library's text; it is fetched once and never kept with the project."""
    try:
        return npm("axe-core", "axe-core", "axe.min.js").read_text(encoding="utf-8")
    except Unfetchable as why:
        pytest.skip(f"no axe-core: {why}")


@pytest.fixture(autouse=True)
async def filled(desk: Desk) -> None:
    """Everything that can be open lies on the desk, once for the module."""
    if await desk.edge.count("exception_view") == 0:
        await fill(desk)
    else:
        await desk.recall()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
async def test_no_page_breaks_a_rule_of_axe(desk: Desk, axe: str, scheme: str, width: int) -> None:
    """WCAG A and AA, and what the library calls best practice: no violation on any page, with everything unfolded.

    Requirements: O4
    """
    options: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme, "bypass_csp": True}
    paths = [*PLACES, f"cases/{desk.cases['drifted']}", f"commands/{desk.commands['dead']}"]
    paths += [f"exceptions/{desk.exceptions[name]}" for name in ("dead", "hostile", "drifted", "undoing")]
    broken: dict[str, Any] = {}
    async with opening(desk.url, **options) as page:
        await page.open("/console/login")
        broken["login"] = await _violations(page.page, axe)
        await page.log_in(*ROLES)
        for path in paths:
            await page.open(f"/console/{path}")
            broken[path] = await _violations(page.page, axe)
        page.complaints.clear()
    assert {path: found for path, found in broken.items() if found} == {}


async def _violations(page: Any, axe: str) -> Any:
    await page.evaluate("() => document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    await page.evaluate(axe)
    return await page.evaluate(RUN, RULES)
