"""The stream of commands: distinct idempotency keys, single commands and sagas, and a person who answers.

A client sends each command again under its key until it hears what became of it. Accepted is what was answered with 200
or 202; from there on the plane owes an end.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.field import Field, NotMet
from tests.system.plane import Answer, http

CLIENTS: Final = 8
PAUSE_SECONDS: Final = 0.05
USES: Final = 20_000
ANSWER_SECONDS: Final = 0.4
PATIENCE_SECONDS: Final = 120.0
_UNFIT: Final = re.compile(r"[^a-z0-9]+")
MIX: Final = ("draft", "post", "update", "publish", "post", "undo", "post", "foreign")
"""Kinds of one round. Some `post` meets a lost answer, some a 503; `foreign` finds its slug taken by somebody else."""


@dataclass
class Unit:
    """One command or saga, as its client knows it."""

    label: str
    kind: str
    key: str
    status: int = 0
    body: dict[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> bool:
        """True from the answer on."""
        return self.status in (200, 202)

    @property
    def workflow_id(self) -> str:
        """The case."""
        return str(self.body.get("workflow_id"))

    @property
    def command_id(self) -> str | None:
        """The operation of a single command."""
        return self.body.get("command_id")


class Traffic:
    """All commands of one plane."""

    def __init__(self, field_: Field) -> None:
        self.field = field_
        self.plane = field_.plane
        self.units: list[Unit] = []
        self.refusals: list[str] = []
        self._pool = ThreadPoolExecutor(CLIENTS)
        self._number = 0
        self._lock = threading.Lock()
        self._drafts: list[Unit] = []
        self._undone: set[str] = set()
        self._over = threading.Event()
        self.bearers: dict[str, str] = {}
        self._editor = threading.Thread(target=self._answer, daemon=True)
        self._prepare()
        self._editor.start()

    def _prepare(self) -> None:
        for command_type, resource in (
            ("wordpress.create_draft", "post"),
            ("wordpress.update_post", "post"),
            ("bench.post", "effect"),
        ):
            self.bearers[command_type] = self.plane.capability(command_type, resource, max_uses=USES, ttl_seconds=3600)
        for name in ("ask", "publish"):
            self.bearers[name] = self.plane.workflow_capability(name, max_uses=USES)

    def close(self) -> None:
        """No more commands, no more answers."""
        self._over.set()
        self._pool.shutdown(wait=True)
        self._editor.join(10)

    # -- the person -----------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        """Approve what is to be published, reject what is to be undone."""
        token = self.plane.editor()
        while not self._over.wait(ANSWER_SECONDS):
            try:
                found = self.plane.get("/v1/approvals?status=pending&limit=100", token)
                for approval in found.body["items"] if found.status == 200 else ():
                    undone = approval["workflow_id"] in self._undone
                    known = undone or any(unit.workflow_id == approval["workflow_id"] for unit in list(self.units))
                    if known:
                        self.plane.answer(approval, "reject" if undone else "approve", token=token)
            except Exception as error:  # a person tries again as well
                self.refusals.append(f"person: {error!r}"[:200])

    # -- the agents -----------------------------------------------------------------------------------------------

    def send(self, label: str, kinds: Sequence[str] = MIX) -> list[Future[Unit]]:
        """Begin to send one round; several clients at once."""
        return [self.again(self.unit(label, kind)) for kind in kinds]

    def again(self, unit: Unit) -> Future[Unit]:
        """Send one command; also one whose client left before it heard an answer."""
        return self._pool.submit(self._one, unit)

    def unit(self, label: str, kind: str) -> Unit:
        """A command with a key of its own."""
        with self._lock:
            self._number += 1
            return Unit(label, kind, f"{_UNFIT.sub('-', label.lower()).strip('-')}-{self._number}")

    def disturb(self) -> None:
        """One answer of the world is lost and one is a 503, so that every round settles an unknown and retries."""
        http("DELETE", f"{self.plane.sandbox_url}/_faults")
        self.plane.fault("lose_answer", method="POST", path="/effect$", system="bench")
        self.plane.fault("status", method="POST", path="/effect$", system="bench", status=503)

    def _one(self, unit: Unit) -> Unit:
        time.sleep(PAUSE_SECONDS)
        with self._lock:
            self.units.append(unit)
        try:
            answer = self._patiently(unit)
        except Exception as error:  # a client without an answer: not accepted as far as it knows
            with self._lock:
                self.refusals.append(f"{unit.key}: {error!r}"[:300])
            return unit
        unit.status, unit.body = answer.status, answer.body if isinstance(answer.body, dict) else {}
        if not unit.accepted:
            with self._lock:
                self.refusals.append(f"{unit.key}: {answer.status} {answer.body}"[:300])
        elif unit.kind == "draft":
            with self._lock:
                self._drafts.append(unit)
        return unit

    def _patiently(self, unit: Unit) -> Answer:
        """Again under the same key where nobody answers in time, or an earlier request is still being accepted."""
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                answer = self._kinds[unit.kind](self, unit)
                if answer.status != 409 or "retry-after" not in answer.headers or time.monotonic() > end:
                    return answer
            except TimeoutError:
                if time.monotonic() > end:
                    raise
            time.sleep(PAUSE_SECONDS)

    def _draft(self, unit: Unit) -> Answer:
        payload = {"title": f"Title {unit.key}", "content": f"<p>Content of {unit.key}.</p>", "slug": unit.key}
        return self._submit(unit, "wordpress.create_draft", "post", payload)

    def _foreign(self, unit: Unit) -> Answer:
        """Somebody else has the slug already: a person will have to look."""
        http(
            "POST",
            f"{self.plane.sandbox_url}/_tamper",
            {"system": "wordpress", "object": "acme/new", "change": {"title": "Theirs", "slug": unit.key}},
        )
        return self._draft(unit)

    def _update(self, unit: Unit) -> Answer:
        """Change a draft that is there; a new draft where none is yet."""
        for draft in self._oldest_drafts():
            row = self.plane.journal(str(draft.command_id))
            if row["state"] == "SUCCESS":
                with self._lock:
                    if draft not in self._drafts:
                        continue
                    self._drafts.remove(draft)
                payload = {
                    "post_id": row["receipt"]["post_id"],
                    "expected_modified_gmt": row["receipt"]["modified_gmt"],
                    "content": f"<p>Changed by {unit.key}.</p>",
                }
                return self._submit(unit, "wordpress.update_post", "post", payload)
        unit.kind = "draft"
        return self._draft(unit)

    def _oldest_drafts(self) -> list[Unit]:
        with self._lock:
            return self._drafts[:3]

    def _post(self, unit: Unit) -> Answer:
        return self._submit(unit, "bench.post", "effect", {"note": unit.key})

    def _submit(self, unit: Unit, command_type: str, resource: str, payload: dict[str, Any]) -> Answer:
        return self.plane.submit(self.bearers[command_type], unit.key, command_type, resource, payload)

    def _publish(self, unit: Unit) -> Answer:
        return self.plane.begin("publish", {"id": unit.key}, unit.key, capability=self.bearers["publish"])

    def _undo(self, unit: Unit) -> Answer:
        answer = self.plane.begin("ask", {"id": unit.key}, unit.key, capability=self.bearers["ask"])
        if answer.status in (200, 202):
            self._undone.add(answer.body["workflow_id"])
        return answer

    _kinds: Final[dict[str, Callable[[Traffic, Unit], Answer]]] = {
        "draft": _draft,
        "foreign": _foreign,
        "update": _update,
        "post": _post,
        "publish": _publish,
        "undo": _undo,
    }

    # -- waiting --------------------------------------------------------------------------------------------------

    def accepted(self, futures: Sequence[Future[Unit]], count: int, seconds: float = 30) -> None:
        """Wait until so many of a round were answered."""
        self.field.until(lambda: sum(future.done() for future in futures) >= count, f"{count} answers", seconds)

    def probe(self, label: str, seconds: float) -> float:
        """A fresh command, sent now, comes to its end; how long that took. Raises NotMet."""
        begun = time.monotonic()
        unit = self.unit(label, "post")
        self._one(unit)
        if not unit.accepted:
            raise NotMet(f"a fresh command was not accepted: {unit.status}")
        while self.plane.journal(str(unit.command_id))["state"] != "SUCCESS":
            if time.monotonic() - begun > seconds:
                raise NotMet(f"a fresh command had not ended after {seconds:g} s")
            time.sleep(0.05)
        return time.monotonic() - begun
