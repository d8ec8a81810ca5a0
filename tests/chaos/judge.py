"""The judge: what was accepted, against what the plane says, what the world really holds, and the stores themselves."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.field import Field
from tests.chaos.traffic import Unit
from tests.system.plane import TERMINAL, http
from trueup_common.contracts.states import ANSWERED, SETTLED

SETTLE_SECONDS: Final = 150.0
RELAY_SECONDS: Final = 30.0
_MARKER: Final = re.compile(r"trueup:(cmd_[A-Za-z0-9_-]+)")
_SITE_PAGE: Final = 100

IN_FLIGHT_WITHOUT_LEASE: Final = """
SELECT command_id, state FROM orchestrator.operation
WHERE state IN ('DISPATCHING', 'RUNNING') AND lease_expires_at IS NULL
"""
OPEN_WITHOUT_ANYTHING: Final = """
SELECT o.command_id, o.state FROM orchestrator.operation o
WHERE NOT o.state = ANY($1) AND o.lease_expires_at IS NULL AND o.wake_at IS NULL AND o.state <> 'QUEUED'
  AND NOT EXISTS (SELECT 1 FROM orchestrator.obligation b WHERE b.command_id = o.command_id AND b.status = 'open')
"""
SENT_AND_FORGOTTEN: Final = """
SELECT command_id, status FROM adapters.effect
WHERE status = 'SENT' AND (look_at IS NULL OR look_at < clock_timestamp() - interval '60 s')
"""
UNKNOWN_WITHOUT_OWNER: Final = """
SELECT e.command_id, e.status FROM adapters.effect e JOIN orchestrator.operation o USING (command_id)
WHERE e.status = 'UNKNOWN' AND NOT o.state = ANY($1)
  AND NOT EXISTS (SELECT 1 FROM orchestrator.obligation b WHERE b.workflow_id = o.workflow_id AND b.status = 'open')
"""
OWED_BY_NOBODY: Final = """
SELECT obligation_id, kind FROM orchestrator.obligation
WHERE status = 'open' AND (owner = '' OR deadline_at IS NULL)
"""
LAWS: Final = {
    "in flight without a lease": (IN_FLIGHT_WITHOUT_LEASE, None),
    "open without lease, wake-up or obligation": (OPEN_WITHOUT_ANYTHING, ANSWERED),
    "sent, and nobody will look": (SENT_AND_FORGOTTEN, None),
    "unknown without an owner": (UNKNOWN_WITHOUT_OWNER, SETTLED),
    "owed without owner or deadline": (OWED_BY_NOBODY, None),
}
SCHEMAS: Final = ("gateway", "orchestrator", "adapters", "reconciler", "repair_planner")


@dataclass
class Verdict:
    """What became of the commands of one fault."""

    recovered: int = 0
    owned: int = 0
    duplicates: int = 0
    duplicates_owned: int = 0
    lost: int = 0
    findings: list[str] = field(default_factory=list)

    def note(self, unit: Unit, text: str) -> None:
        """Something to be told."""
        self.findings.append(f"{unit.key} ({unit.kind}, {unit.command_id or unit.workflow_id}): {text}")


@dataclass
class Truth:
    """The world as it really is, and every open exception."""

    actions: dict[tuple[str, str], Counter[str]]
    posts: dict[str, list[dict[str, Any]]]
    operations: dict[str, list[dict[str, Any]]]
    exceptions: dict[str, list[dict[str, Any]]]


def _count(command_id: str, command_type: str, truth: Truth) -> int:
    """How often the world holds the effect of one operation."""
    if command_type.startswith("bench."):
        return truth.actions["bench.effect", command_id]["create"]
    action = {"create_draft": "create", "update_post": "update", "publish_post": "publish"}[
        command_type.partition(".")[2]
    ]
    return sum(
        truth.actions["wordpress.post", f"acme/{post['id']}"][action] for post in truth.posts.get(command_id, [])
    )


class Judge:
    """Judges one plane."""

    def __init__(self, field_: Field) -> None:
        self.field = field_
        self.plane = field_.plane
        self._cases: dict[str, dict[str, Any]] = {}

    # -- waiting --------------------------------------------------------------------------------------------------

    def settle(self, units: Iterable[Unit], seconds: float = SETTLE_SECONDS) -> float:
        """Wait, bounded, until nothing moves by itself any more."""
        begun = time.monotonic()
        open_ = {unit.workflow_id: unit for unit in units if unit.accepted}
        while open_ and time.monotonic() - begun < seconds:
            owned = self.exceptions()
            for workflow_id in list(open_):
                case = self.plane.case(workflow_id)
                self._cases[workflow_id] = case
                if case["status"] in TERMINAL or (case["status"] == "HUMAN_TAKEOVER" and owned.get(workflow_id)):
                    del open_[workflow_id]
            if open_:
                time.sleep(0.5)
        return time.monotonic() - begun

    def exceptions(self) -> dict[str, list[dict[str, Any]]]:
        """Open exceptions with an owner and a deadline, by case, as operators see them."""
        token, cursor = self.plane.token("operator:olga", roles=("operator",)), ""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        while True:
            answer = self.plane.get(f"/v1/exceptions?status=open&limit=200{cursor}", token)
            assert answer.status == 200, answer
            for item in answer.body["items"]:
                if item["owner"] and item["deadline_at"]:
                    found[item["workflow_id"]].append(item)
            if not answer.body.get("next_cursor"):
                return found
            cursor = f"&cursor={answer.body['next_cursor']}"

    # -- looking --------------------------------------------------------------------------------------------------

    def truth(self) -> Truth:
        """Everything that was really done, once."""
        actions: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for item in http("GET", f"{self.plane.sandbox_url}/_effects").body["items"]:
            actions[item["kind"], item["object"]][item["action"]] += 1
        operations: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self.field.sql("SELECT workflow_id, command_id, command_type, state FROM orchestrator.operation"):
            operations[row["workflow_id"]].append(row)
        return Truth(actions, self._posts(), operations, self.exceptions())

    def _posts(self) -> dict[str, list[dict[str, Any]]]:
        """Every post by every operation that it names as its own."""
        found: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for status in ("any", "trash"):
            page = 1
            while page:
                items = self.plane.posts(f"trueup&per_page={_SITE_PAGE}&page={page}", status)
                for post in items:
                    for command_id in set(_MARKER.findall(post["content"]["raw"])):
                        found[command_id].append(post)
                page = page + 1 if len(items) == _SITE_PAGE else 0
        return found

    # -- judging --------------------------------------------------------------------------------------------------

    def judge(self, units: Iterable[Unit], truth: Truth) -> Verdict:
        """One fault's commands."""
        verdict = Verdict()
        for unit in units:
            if unit.accepted:
                self._judge(unit, truth, verdict)
        return verdict

    def _judge(self, unit: Unit, truth: Truth, verdict: Verdict) -> None:
        case = self._cases.get(unit.workflow_id) or self.plane.case(unit.workflow_id)
        owned = truth.exceptions.get(unit.workflow_id, [])
        if case["status"] not in TERMINAL and not owned:
            case = self.plane.case(unit.workflow_id)  # what was owned when all stood still may be mended by now
        extra, missing = self._effects(unit, truth)
        verdict.duplicates += extra
        if extra:
            kinds = sorted({item["kind"] for item in owned})
            verdict.duplicates_owned += extra if owned else 0
            verdict.note(unit, f"{extra} effects too many, owned by {kinds or 'nobody'}; case {case['status']}")
        if case["status"] in TERMINAL and not missing:
            verdict.recovered += 1
        elif case["status"] not in TERMINAL and owned:
            verdict.owned += 1
            if unit.kind != "foreign":
                kinds = sorted(
                    {f"{item['kind']} ({item['envelope'].get('failure_code')}) of {item['owner']}" for item in owned}
                )
                verdict.note(unit, f"owned: {case['status']}, {', '.join(kinds)}")
        else:
            verdict.lost += 1
            steps = [(step["id"], step["state"], step.get("error_code")) for step in case["steps"]]
            verdict.note(unit, f"LOST: {case['status']} {steps} missing {missing or 'nothing'}, owned {len(owned)}")
        try:
            self.plane.history(unit.workflow_id)
        except AssertionError as error:
            verdict.lost += 1
            verdict.note(unit, f"history does not hold: {error}"[:200])

    def _effects(self, unit: Unit, truth: Truth) -> tuple[int, str | None]:
        """How many effects are too many, and which is missing of an operation that says it succeeded."""
        extra, missing = 0, None
        for operation in truth.operations.get(unit.workflow_id, []):
            count = _count(operation["command_id"], operation["command_type"], truth)
            extra += max(count - 1, 0)
            if operation["state"] == "SUCCESS" and not count:
                missing = operation["command_type"]
        return extra, missing

    def unexplained(self, units: Iterable[Unit], truth: Truth) -> list[str]:
        """What the world holds beside what clients know of: effects of no operation, or two of an unheard one."""
        known = {row["command_id"]: row for rows in truth.operations.values() for row in rows}
        heard = {unit.workflow_id for unit in units if unit.accepted}
        strange = [
            f"an effect of no operation: {kind} {object_}"
            for kind, object_ in truth.actions
            if kind == "bench.effect" and object_ not in known
        ]
        strange += [f"a post of no operation: {command_id}" for command_id in truth.posts if command_id not in known]
        return strange + [
            f"twice, and no client knows of it: {row['command_id']}"
            for row in known.values()
            if row["workflow_id"] not in heard and _count(row["command_id"], row["command_type"], truth) > 1
        ]

    def _unsent(self, schema: str) -> int:
        """Messages that wait to be published; the relay gets a bounded time for what a reset stream made it repeat."""
        end = time.monotonic() + RELAY_SECONDS
        while True:
            left = int(self.field.sql(f"SELECT count(*) AS n FROM {schema}.outbox_unsent")[0]["n"])
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.5)

    def laws(self) -> list[str]:
        """What must hold in the stores whenever nothing moves: read with the owner's rights."""
        broken = []
        for law, (statement, states) in LAWS.items():
            rows = self.field.sql(statement, *([sorted(states)] if states is not None else []))
            broken += [f"{law}: {' '.join(map(str, row.values()))}" for row in rows[:5]]
        for schema in SCHEMAS:
            left = self._unsent(schema)
            if left:
                broken.append(f"{schema}: {left} messages are still waiting to be published")
            for row in self.field.sql(f"SELECT consumer, type, reason FROM {schema}.quarantine"):
                broken.append(f"{schema}: quarantined {row['type']} of {row['consumer']}: {row['reason'][:120]}")
        return broken
