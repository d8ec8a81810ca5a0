"""Answers: requests that wait for the end of their command or workflow. A nudge ends a wait; polling is the fallback.

A nudge is only a hint: of a command over core NATS, of a workflow by the worker in this process that has just stored
its end. Losing it costs time, never an answer. What a nudge told is remembered for a
while: who has heard the end of a command does not read an earlier state from the read model afterwards.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

import orjson

from trueup_common.contracts.shape import record
from trueup_common.contracts.states import ANSWERED
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.store import GatewayReads

log = logging.getLogger("trueup.gateway.answers")

POLL_SECONDS: Final = 0.8
POLL_COMMANDS_MAX: Final = 500
WAITS_MAX: Final = 4000
TOLD_BYTES_MAX: Final = 8 * 1024**2
"""Of messages that told an end, each counted for its command and for its case: a thousand, or ten of the largest."""
_ENDS: Final = frozenset(state.value for state in ANSWERED)


@record
class _Told:
    """A row that was told, in the message that told it: most are never asked for, and bytes are small."""

    state_version: int
    message: bytes
    part: str

    def row(self) -> dict[str, Any]:
        """The row."""
        found: dict[str, Any] = orjson.loads(self.message)[self.part]
        return found


class AnswerBoard:
    """Who waits for which command."""

    def __init__(self, reads: GatewayReads) -> None:
        self._reads = reads
        self._waits: dict[str, list[asyncio.Future[dict[str, Any]]]] = {}
        self._cases: dict[str, asyncio.Event] = {}
        self._seen: set[str] = set()
        self._told: dict[str, _Told] = {}
        self._told_bytes = 0
        self._dismissed = False

    def dismiss(self) -> None:
        """This replica leaves: nobody waits any longer, all are answered with what is known by now."""
        self._dismissed = True
        for waits in self._waits.values():
            for future in waits:
                if not future.done():
                    future.set_exception(TimeoutError("this replica leaves"))
        for event in self._cases.values():
            event.set()

    def expect(self, command_id: str) -> "asyncio.Future[dict[str, Any]] | None":
        """A future of the command's final journal row; None where too many wait already."""
        if self._dismissed or len(self._waits) >= WAITS_MAX:
            return None
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waits.setdefault(command_id, []).append(future)
        return future

    def forget(self, command_id: str, future: "asyncio.Future[dict[str, Any]]") -> None:
        """End a wait that ran out."""
        waits = self._waits.get(command_id)
        if waits and future in waits:
            waits.remove(future)
            if not waits:
                del self._waits[command_id]

    @contextlib.contextmanager
    def expecting_case(self, workflow_id: str) -> Iterator[asyncio.Event | None]:
        """An event that is set when a workflow is over; None where too many wait already."""
        if self._dismissed or len(self._cases) >= WAITS_MAX:
            yield None
            return
        event = self._cases.setdefault(workflow_id, asyncio.Event())
        try:
            yield event
        finally:
            if self._cases.get(workflow_id) is event:
                del self._cases[workflow_id]

    def cases_over(self, workflow_ids: Iterable[str]) -> None:
        """End all waits for workflows whose end can be read by now."""
        for workflow_id in workflow_ids:
            event = self._cases.pop(workflow_id, None)
            if event is not None:
                event.set()

    def nudge(self, raw: Any) -> None:
        """Take over one CaseAnswered of the orchestrator."""
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            answered = orjson.loads(raw.data)
            row = answered["operation"]
            self._keep(row["command_id"], _Told(row["state_version"], raw.data, "operation"))
            self.tell(row)
            self._keep(row["workflow_id"], _Told(answered["instance"]["state_version"], raw.data, "instance"))

    def _keep(self, name: str, told: _Told) -> None:
        """Remember what was told; where it is too much, the older half is forgotten."""
        self._forget_told(name)
        self._told[name] = told
        self._told_bytes += len(told.message)
        if self._told_bytes > TOLD_BYTES_MAX:
            for oldest in list(self._told):
                if self._told_bytes <= TOLD_BYTES_MAX // 2:
                    break
                self._forget_told(oldest)

    def _forget_told(self, name: str) -> None:
        told = self._told.pop(name, None)
        if told is not None:
            self._told_bytes -= len(told.message)

    def newest(self, name: str, stored: dict[str, Any]) -> dict[str, Any]:
        """The newer of what the read model holds of a command or case and what this replica already answered.

        So a client that waited for the end never reads an older state from the replica that told it.
        """
        told = self._told.get(name)
        if told is None:
            return stored
        if told.state_version <= stored["state_version"]:
            self._forget_told(name)
            return stored
        return told.row()

    def tell(self, row: dict[str, Any]) -> None:
        """End all waits for a command that is over."""
        if row["state"] not in _ENDS:
            return
        for future in self._waits.pop(row["command_id"], ()):
            if not future.done():
                future.set_result(row)

    def _patient(self) -> tuple[list[str], list[str]]:
        """What is waited for since the last look at least: nearly all others a nudge ends at once."""
        commands = [command_id for command_id in self._waits if command_id in self._seen]
        cases = [workflow_id for workflow_id in self._cases if workflow_id in self._seen]
        self._seen = {*self._waits, *self._cases}
        return commands[:POLL_COMMANDS_MAX], cases[:POLL_COMMANDS_MAX]

    async def poll(self, stop: asyncio.Event) -> None:
        """Look into the read model for everything that is waited for, until `stop`."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await stop.wait()
            commands, cases = self._patient()
            try:
                for row in await self._reads.command_rows(commands) if commands else ():
                    self.tell(row)
                self.cases_over(await self._reads.cases_over(cases) if cases else ())
            except StoreBusy as busy:
                log.info("not polled: store busy", extra={"reason": str(busy)})
