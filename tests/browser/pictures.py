"""`python -m tests.browser.pictures`: the pictures of docs/pictures, taken of a real plane with some work on it.

Four articles are published, a fifth waits for its editor, a repair of a machine waits for its permit; then an outsider
throws one article away, and the reconciler finds it. Everything that the pictures show has happened.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.browser.chromium import missing
from tests.browser.png import small
from tests.browser.window import Window, window
from tests.patience import PATIENCE_SECONDS
from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.business_clock import Clock
from trueup_devkit.demo.run import TENANT, Demo
from trueup_devkit.demo.scenarios import Scenario
from trueup_devkit.demo.telling import Teller
from trueup_devkit.gateway_client import GatewayClient

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "pictures"
WIDTH: Final = 1200
HEIGHT_MAX: Final = 900
PHONE: Final = {"width": 360, "height": 760}
TITLES: Final = (
    "What a Timeout Really Tells You",
    "One Draft, Whoever Asks Twice",
    "Approved Means Exactly This Text",
    "When the Cache Remembers Too Much",
    "A Worker Died, the Work Did Not",
)
PERMIT: Final = """
name: machine-repair
version: 1
title: Repair a machine that raised an alarm
object: { type: machine, id: "${input.machine}" }
lifetime: P3D
input:
  type: object
  additionalProperties: false
  required: [machine, alarm, instruction, author, written_at]
  properties:
    machine: { type: string, pattern: "^[a-z0-9-]+$", maxLength: 60 }
    alarm: { type: string, maxLength: 200 }
    instruction: { type: string, maxLength: 5000 }
    author: { type: object, required: [name, email], properties: { name: { type: string }, email: { type: string } } }
    written_at: { type: string, maxLength: 40 }
steps:
  - id: instruct
    command: github.archive_version
    with:
      repository: "acme/articles"
      branch: "repairs/${input.machine}"
      path: "repairs/${input.machine}.html"
      content: "${input.instruction}"
      message: "Work instruction for ${input.machine}: ${input.alarm}"
      author: "${input.author}"
      authored_at: "${input.written_at}"
  - id: permit
    wait: { event: permit.granted, timeout: PT8H, owner: shift-lead, backup: plant-manager }
  - id: measured
    wait: { event: technician.measured, timeout: P1D, owner: maintenance }
"""
_PEACE: Final = Scenario(name="pictures", title="a plane with some work on it", result="CLOSED", faults=(), effects={})
_BEYOND_FIRST_LOOK_SECONDS: Final = 90.0
"""Of business time: what was published is looked at again for the first time after a minute."""


@dataclass
class Desk:
    """The plane, and the people who work on it."""

    demo: Demo
    clock: Clock
    operator: GatewayClient
    editor: GatewayClient

    def start(self, definition: str, key: str, purpose: str, given: dict[str, Any]) -> str:
        agent = self.demo.gateway
        decision = agent.decide_workflow(definition, None, purpose)
        capability = agent.capability(decision["decision_id"], 1, 300)["capability"]
        request = {"idempotency_key": key, "definition": definition, "input": given, "purpose": purpose}
        return str(agent.start(request, capability).body["workflow_id"])

    def article(self, number: int) -> str:
        """Start the publication of one article."""
        like, title = self.demo.article, TITLES[number]
        meta = {**like["meta"], "json_ld": {**like["meta"]["json_ld"], "headline": title}}
        name = f"{number + 1:04d}"
        given = {**like, "article_id": name, "title": title, "slug": slug_of(title), "meta": meta}
        return self.start("seo-article-publish", f"article-{name}-v1", f"publish article {name}", given)

    def case(self, workflow_id: str) -> dict[str, Any]:
        return dict(self.operator.get(f"/v1/workflows/{workflow_id}"))

    def waits(self, workflow_id: str, reason: str) -> None:
        until(lambda: (self.case(workflow_id).get("wait") or {}).get("reason") == reason)

    def publish(self, number: int) -> str:
        """Publish one article, answering as its editor."""
        name = self.article(number)
        self.waits(name, "approval")
        (asked,) = self.editor.items("/v1/approvals", status="pending", workflow_id=name)
        self.editor.answer_approval(asked, "approve", "read on the site")
        until(lambda: self.case(name)["status"] == "CLOSED")
        return name


def slug_of(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


def until(condition: Callable[[], Any]) -> Any:
    """What a condition came to, once it came to anything."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come to this"
        time.sleep(0.2)
    return found


@contextmanager
def desk() -> Iterator[Desk]:
    """A plane of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="trueup-pictures-") as folder:
        demo = Demo(_PEACE, Path(folder) / "state", 0, Teller(real_now()))
        demo.plan.clock = "virtual"
        try:
            demo.start()
            demo.prepare()
            demo.authorize()
            operator, editor = GatewayClient(demo.gateway.url), GatewayClient(demo.gateway.url)
            operator.token = operator.dev_token("operator:olga", TENANT, ["operator"], [], 3600)
            editor.token = editor.dev_token("operator:edith", TENANT, ["approver"], ["*"], 3600)
            yield Desk(demo, Clock(demo.plan.folder), operator, editor)
        finally:
            demo.stop()


def work(on: Desk) -> dict[str, str]:
    """Put work on the desk; the paths of what is to be seen, by the names of their pictures."""
    published = [on.publish(number) for number in range(4)]
    permitted = {"Idempotency-Key": '"machine-repair"'}
    text = {"document": PERMIT}
    on.operator.call("POST", "/v1/definitions", text, headers=permitted)
    machine = on.start(
        "machine-repair",
        "press-07-alarm-311",
        "bearing of press-07 runs hot (alarm 311)",
        {
            "machine": "press-07",
            "alarm": "bearing temperature above 95 °C",
            "instruction": "<p>Stop, lock out, measure the play of bearing 2.</p>",
            "author": on.demo.article["author"],
            "written_at": on.demo.article["authored_at"],
        },
    )
    on.waits(machine, "signal")
    on.waits(on.article(4), "approval")
    control = GatewayClient(str(on.demo.plan.folder.running_state().sandbox_url))
    change = {"status": "trash", "slug": f"{slug_of(TITLES[1])}__trashed"}
    control.call("POST", "/_tamper", {"system": "wordpress", "object": "acme/2", "change": change})
    on.clock.advance(_BEYOND_FIRST_LOOK_SECONDS)
    asked = until(lambda: [i for i in on.operator.items("/v1/repairs") if i["status"] == "WAITING_APPROVAL"])[0]
    return {
        "console-exceptions": "/console/exceptions",
        "console-exception": f"/console/exceptions/{asked['exception_id']}",
        "console-case": f"/console/cases/{published[1]}",
        "console-cases": "/console/cases?status=all",
        "console-approval": f"/console/approvals/{asked['approval_id']}",
        "console-objectives": "/console/slo",
    }


async def take(url: str, paths: dict[str, str], folder: Path) -> None:
    """Take the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    async with window(url, viewport={"width": WIDTH, "height": HEIGHT_MAX}, color_scheme="light") as wide:
        await wide.log_in("operator", "approver", scopes="*")
        for name, path in paths.items():
            await wide.open(path)
            await shot(wide, folder / f"{name}.png")
    async with window(url, viewport=PHONE, color_scheme="dark") as narrow:
        await narrow.log_in("operator", path="/console/login?next=/console/exceptions")
        await shot(narrow, folder / "console-phone.png")


async def shot(on: Window, path: Path) -> None:
    """One picture, as high as the page is, with a bound."""
    ends = await on.page.evaluate("document.querySelector('main').lastElementChild.getBoundingClientRect().bottom + 32")
    size = on.page.viewport_size
    assert size is not None
    part = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], ends)}
    path.write_bytes(small(await on.page.screenshot(clip=part, animations="disabled", caret="hide")))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.pictures", description="Take the docs' pictures.")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    reason = missing()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    with desk() as on:
        asyncio.run(take(on.demo.gateway.url, work(on), given.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
