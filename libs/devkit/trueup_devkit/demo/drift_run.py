"""The course of the drift demo: publish in peace, break six things, and let the plane find and heal them.

The demo moves the clock and plays an outsider, an editor and an operator. It never tells the plane where to look.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.business_clock import Clock
from trueup_devkit.demo.drift_causes import COMPENSATION, RECORD, WORKER, Causes
from trueup_devkit.demo.run import AFTERMATH_SECONDS, TENANT, Demo
from trueup_devkit.demo.scenarios import Scenario
from trueup_devkit.demo.sentences import short
from trueup_devkit.demo.telling import Teller
from trueup_devkit.demo.troubles import Trouble
from trueup_devkit.demo.worker import Worker
from trueup_devkit.gateway_client import GatewayClient
from trueup_devkit.told import ToldError

OPERATOR: Final = "operator:olga"
EDITOR: Final = "operator:edith"
HEAL_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.2
IDLE_STEP_SECONDS: Final = 15.0
BUSY_STEP_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 90.0
"""Longer than a minute, after which what was repaired is looked at for the first time."""
TITLE: Final = "six things break behind the plane's back; it finds each, repairs what it may and asks for what it must"
_PEACE: Final = Scenario(name="drift", title=TITLE, result="CLOSED", faults=(), effects={})
_SYSTEMS: Final = {"adapters": "wordpress,github,cloudflare,monitoring", "adapters-2": "database"}
_MORTAL: Final = "adapters-2"
_LAUNCH: Final = f"""
import os
os.environ["TRUEUP_SYSTEMS"] = {_SYSTEMS!r}[os.environ["TRUEUP_INSTANCE"]]
from trueup_adapters.main import main
main()
"""
"""Each adapters process serves systems of its own, so that one can be dead while the other works."""


class DriftDemo:
    """One run on one state folder."""

    def __init__(self, state_dir: Path, port: int, teller: Teller) -> None:
        self.teller = teller
        self.demo = Demo(_PEACE, state_dir, port, teller)
        self.demo.plan.clock = "virtual"
        self.demo.plan.replicas = {"adapters": len(_SYSTEMS)}
        self.demo.plan.programs = {"adapters": [sys.executable, "-c", _LAUNCH]}
        self.clock = Clock(self.demo.plan.folder)
        self.worker = Worker(_MORTAL, self.demo.plan.folder, teller)
        self.troubles: list[Trouble] = []
        self.exceptions: list[dict[str, Any]] = []
        self.repairs: list[dict[str, Any]] = []
        self._told: dict[str, str] = {}
        self._answered: set[str] = set()
        self._given_back = False
        self._spared = False

    def publish(self) -> None:
        """One article, without any fault."""
        demo = self.demo
        demo.prepare()
        demo.submit(demo.authorize())
        demo.watch()
        self.operator = GatewayClient(demo.gateway.url)
        self.operator.token = self.operator.dev_token(OPERATOR, TENANT, ["operator"], [], 3600)
        self.editor = GatewayClient(demo.gateway.url)
        self.editor.token = self.editor.dev_token(EDITOR, TENANT, ["approver"], ["*"], 3600)

    def break_things(self) -> None:
        """Everything that goes wrong, one after the other."""
        self.causes = Causes(self.demo, self.operator, self.clock, self.worker)
        self.troubles = self.causes.troubles
        self.causes.lose_a_right()
        self.causes.kill_a_worker()
        self.causes.expire_a_credential()
        self.causes.edit_the_world()

    # -- healing --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Until nothing is open: the clock moves on, people answer what they are asked, the world comes back.

        A repair may come too early: a cache that forgets its pages while the post is in the trash fills with lists that
        lack it. So it is over only after a while in which everything that was repaired was looked at again.
        """
        deadline = time.monotonic() + HEAL_SECONDS
        quiet_since: datetime | None = None
        while time.monotonic() < deadline:
            self.look()
            if not all(trouble.is_over for trouble in self.troubles) or self.open:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = self.clock.now()
                self._tell("demo", f"nothing is open; {QUIET_SECONDS:.0f} s more, in which the sweep looks again")
            elif (self.clock.now() - quiet_since).total_seconds() > QUIET_SECONDS:
                return
            self._answer()
            self._let_the_world_come_back()
            step = BUSY_STEP_SECONDS if self._something_moves() else IDLE_STEP_SECONDS
            self.clock.advance(step, "" if self.worker.present else _MORTAL)
            time.sleep(POLL_SECONDS)

    def _something_moves(self) -> bool:
        """True where an answer is on its way: a clock that ran ahead of it would let it be asked for again."""
        asked = any(item["status"] in ("EXECUTING", "VERIFYING") for item in self.repairs)
        return asked or any(item["kind"] in ("stale_running", "unknown_outcome") for item in self.open)

    @property
    def open(self) -> list[dict[str, Any]]:
        """Every exception that is open."""
        return [item for item in self.exceptions if item["status"] == "open"]

    def look(self) -> None:
        """Exceptions and repairs as they stand; what is new is told."""
        self.worker.look()
        listed = [self.operator.items("/v1/exceptions", status=status) for status in ("open", "closed")]
        self.exceptions = list({item["exception_id"]: item for items in listed for item in items}.values())
        self.repairs = list(self.operator.items("/v1/repairs"))
        for trouble in self.troubles:
            trouble.take(self.exceptions, self.repairs)
        for item in self.exceptions:
            ended = f", {item['resolution_type']}" if item.get("resolution_type") else f", owner {item['owner']}"
            kind = f"{item['kind']} ({item['failure_class']}) of {self._about(item)}"
            self._news("planner", item["exception_id"], f"exception {item['lifecycle']}: {kind}{ended}")
        for item in self.repairs:
            wanted = (item.get("required_capability") or {}).get("command_type") or f"by {item['playbook']}"
            text = f"{item['status']}: {item['repair_action']} {wanted}, risk {item['risk_level']}"
            self._news("planner", item["repair_id"], f"repair {text}")

    def _about(self, item: dict[str, Any]) -> str:
        known = {**(item.get("envelope") or {}), **item}
        names = [trouble.name for trouble in self.troubles if trouble.fits(item)]
        about = known.get("element") or known.get("command_type") or item.get("command_id")
        return f"{about} [{', '.join(names) or 'besides'}]"

    def _news(self, who: str, name: str, text: str) -> None:
        if self._told.get(name) != text:
            self._told[name] = text
            self._tell(who, text)

    def _answer(self) -> None:
        """The editor answers what a repair asks for, where it is exactly what that repair is to do."""
        for approval in self.editor.items("/v1/approvals", status="pending"):
            repair = next((i for i in self.repairs if i.get("approval_id") == approval["approval_id"]), None)
            if repair is None or approval["approval_id"] in self._answered:
                continue
            self._answered.add(approval["approval_id"])
            asked, wanted = approval["summary"], repair["required_capability"]
            named = f"{', '.join(asked['command_types'])} on {asked['resource']}"
            self._tell("editor", f"is asked by {approval['requested_by']} for {named}: {asked['purpose']}")
            if (asked["command_types"], asked["resource"]) != ([wanted["command_type"]], wanted["resource"]):
                raise ToldError(f"the approval is not about the repair: {asked} instead of {wanted}")
            row = self.editor.answer_approval(approval, "approve", "this article shall be public")
            digest = short(approval["content_sha256"])
            self._tell("editor", f"approves exactly that, SHA-256 {digest} → {row['status']} by {row['reviewer']}")

    def _let_the_world_come_back(self) -> None:
        """What was taken away is given back once the plane found everything that this caused."""
        waiting = [trouble.name for trouble in self.troubles if not trouble.exceptions]
        if not self._given_back and not set(waiting) - {WORKER}:
            self._given_back = True
            self.causes.give_back()
            self._redo_the_compensation()
        if not waiting and not self._spared:
            self._spared = True
            self.worker.spare()
            self._tell("supervisor", f"{_MORTAL} was killed {self.worker.deaths} times; it may come back now")

    def _redo_the_compensation(self) -> None:
        for item in self._trouble(COMPENSATION).exceptions:
            body = {
                "action": "COMPENSATE",
                "target": {"kind": "exception", "id": item["exception_id"]},
                "reason": "the right to delete was given back",
                "evidence": [],
                "params": {},
            }
            headers = {"Idempotency-Key": json.dumps(f"undo:{item['exception_id']}")}
            answer = self.operator.call("POST", "/v1/operator-commands", body, headers=headers)
            self._tell("operator", f"POST /v1/operator-commands COMPENSATE {item['exception_id']} → {answer.status}")

    # -- the end --------------------------------------------------------------------------------------------------

    def wrong(self) -> list[str]:
        """What cases and world say against it; empty where all is as it should be. Views come a moment later."""
        deadline = time.monotonic() + AFTERMATH_SECONDS
        while (found := self._contradictions()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return found

    def _contradictions(self) -> list[str]:
        cases = (self.demo.facts.workflow_id, self.causes.cancelled)
        first, second = (self.operator.get(f"/v1/workflows/{name}") for name in cases)
        title, pages = self.demo.article["title"], self.demo.world.listings()[::10]
        undone = {item["outcome"] for item in second["compensations"]}
        posts = sorted(post["status"] for post in self.demo.world.posts(title))
        recorded = self.causes.records_count()
        lacking = [page for page in pages if title not in self.demo.world.visit(page)]
        checks = (
            *((item["phase"] == "HEALTHY", f"{item['element']} is {item['phase']}") for item in first["vector"]),
            (second["status"] == "CANCELLED" and undone == {"done"}, f"the second article is {second['status']}"),
            (posts == ["publish", "trash"], f"the site has posts with status {', '.join(posts)}"),
            (not lacking, f"{len(lacking)} of {len(pages)} cached lists lack the article"),
            (recorded == 1, f"{RECORD} was written {recorded} times"),
        )
        return [text for holds, text in checks if not holds]

    def _trouble(self, name: str) -> Trouble:
        return next(trouble for trouble in self.troubles if trouble.name == name)

    def _tell(self, who: str, text: str) -> None:
        self.teller.tell(real_now(), who, text)
