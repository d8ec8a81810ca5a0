"""A window on the console: what a person does in it, and what it must never show."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.chromium import ARGUMENTS, executable
from tests.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Page, Response

PICTURES = Path(os.environ.get("TRUEUP_PICTURES") or Path(__file__).resolve().parents[2] / "build" / "pictures")
PATIENCE_MS = PATIENCE_SECONDS * 1000

CONTRAST = """
() => {
  const parse = (text) => {
    const canvas = document.createElement('canvas');
    canvas.width = canvas.height = 1;
    const brush = canvas.getContext('2d', {willReadFrequently: true});
    brush.fillStyle = text; brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data].map((part, place) => place === 3 ? part / 255 : part);
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
  const light = (c) => {
    const [r, g, b] = c.slice(0, 3).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((back, front) => front[3] === 0 ? back : over(front, back), [255, 255, 255, 1]);
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || !element.checkVisibility({checkOpacity: true, checkVisibilityCSS: true})) continue;
    if (element.closest('.visually-hidden, .skip, script, [aria-disabled=true], option')) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const [a, b] = [light(over(parse(style.color), back)), light(back)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < needed) {
      const name = `${element.tagName.toLowerCase()}.${element.className}`;
      found.set(name, `${name} ${ratio.toFixed(2)} < ${needed}: ${node.textContent.trim().slice(0, 40)}`);
    }
  }
  return [...found.values()];
}
"""
"""Every visible text whose contrast with what is really behind it is below AA."""

UNSOUND = """
() => {
  const wrong = [];
  const named = (e) => (e.getAttribute('aria-label') || e.textContent || '').trim() || e.querySelector('title');
  const seen = (e) => e.checkVisibility({checkOpacity: true, checkVisibilityCSS: true});
  if (document.querySelectorAll('main').length !== 1) wrong.push('not one main');
  if (document.querySelectorAll('h1').length !== 1) wrong.push('not one h1');
  if (!document.documentElement.lang || !document.title.trim()) wrong.push('no language or title');
  let level = 0;
  for (const head of document.querySelectorAll('h1, h2, h3, h4')) {
    if (!seen(head)) continue;
    const now = Number(head.tagName[1]);
    if (now > level + 1) wrong.push(`h${level} is followed by h${now}: ${head.textContent.trim().slice(0, 40)}`);
    level = now;
  }
  for (const field of document.querySelectorAll('input:not([type=hidden]), select, textarea'))
    if (![...field.labels].some((label) => label.textContent.trim())) wrong.push(`no label: ${field.name}`);
  for (const e of document.querySelectorAll('a[href], button, summary'))
    if (seen(e) && !named(e)) wrong.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  for (const e of document.querySelectorAll('svg[role=img]')) if (!named(e)) wrong.push('a picture without words');
  const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) wrong.push(`twice: #${id}`);
  for (const table of document.querySelectorAll('table'))
    if (!table.querySelector('thead th[scope=col]')) wrong.push('a table without heads');
  return wrong;
}
"""
"""What somebody who does not see a page would miss: labels, names, headings in order, landmarks, heads of tables."""

WIDER = """
() => document.documentElement.scrollWidth <= innerWidth ? [] : [...document.querySelectorAll('main *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll'))
  .slice(0, 5).map((e) => `${e.tagName}.${e.className}`)
"""


@dataclass
class Window:
    """One browser window of one person."""

    page: Page
    context: BrowserContext
    url: str
    complaints: list[str] = field(default_factory=list)
    """What the browser complained of: refused by the content policy, thrown, not found."""
    dialogs: list[str] = field(default_factory=list)

    async def open(self, path: str) -> Response:
        response = await self.page.goto(f"{self.url}{path}", wait_until="load")
        assert response is not None
        return response

    async def log_in(self, *roles: str, name: str = "olga", scopes: str = "content:*", path: str = "") -> None:
        await self.open(path or "/console/login")
        await self.page.fill("input[name=name]", name)
        await self.page.fill("input[name=scopes]", scopes)
        for role in ("viewer", "operator", "approver", "auditor", "admin"):
            await self.page.set_checked(f"input[value={role}]", role in roles)
        await self.page.click("button.primary")
        await self.page.wait_for_selector("header nav")

    async def text(self, selector: str = "main") -> str:
        return re.sub(r"\s+", " ", await self.page.inner_text(selector))

    async def shows(self, text: str, selector: str = "main") -> None:
        """Wait until a text is there."""
        await self.page.locator(selector, has_text=text).first.wait_for(timeout=PATIENCE_MS)

    async def picture(self, name: str) -> None:
        """Keep what is to be seen; the pictures are there for whoever wants to look."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        await self.page.screenshot(path=PICTURES / f"{name}.png", full_page=True)

    async def is_legible(self) -> None:
        """Every text stands out from what is behind it as AA asks."""
        assert await self.page.evaluate(CONTRAST) == []

    async def is_sound(self) -> None:
        """Everything has a name, and headings stand in order."""
        assert await self.page.evaluate(UNSOUND) == []

    async def fits(self) -> None:
        """Nothing makes the page wider than the window."""
        assert await self.page.evaluate(WIDER) == []


@asynccontextmanager
async def window(url: str, **options: Any) -> AsyncIterator[Window]:
    """A window of a browser of its own. At its end nothing may have been refused, thrown or popped up."""
    from playwright.async_api import async_playwright  # only where there is one: without, the tests are skipped

    async with async_playwright() as play:
        browser = await play.chromium.launch(executable_path=executable(), args=list(ARGUMENTS))
        try:
            context = await browser.new_context(**{"viewport": {"width": 1360, "height": 900}, **options})
            page = await context.new_page()
            page.set_default_timeout(PATIENCE_MS)
            opened = Window(page, context, url)
            page.on("pageerror", lambda error: opened.complaints.append(f"thrown: {error}"))
            page.on("console", lambda said: _note(opened, said.type, said.text))
            page.on("dialog", lambda dialog: opened.dialogs.append(dialog.message))
            yield opened
            assert opened.dialogs == [] and opened.complaints == []
        finally:
            await browser.close()


def _note(opened: Window, kind: str, text: str) -> None:
    if kind in ("error", "warning") and not text.startswith("Failed to load resource: the server responded with"):
        opened.complaints.append(f"{kind}: {text}")
