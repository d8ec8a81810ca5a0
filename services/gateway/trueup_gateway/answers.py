"""Answers: requests that wait for the end of their command. A nudge ends a wait; polling is the fallback.

A nudge is only a hint over core NATS; losing it costs time, never an answer. What a nudge told is remembered for a
while: who has heard the end of a command does not read an earlier state from the read model afterwards.
"""

import asyncio
import contextlib
import logging
from typing import Any, Final

import orjson

from trueup_common.contracts.states import ANSWERED
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.store import GatewayReads

log = logging.getLogger("trueup.gateway.answers")

POLL_SECONDS: Final = 0.4
POLL_COMMANDS_MAX: Final = 500
WAITS_MAX: Final = 4000
RECENT_MAX: Final = 500
_ENDS: Final = frozenset(state.value for state in ANSWERED)


class AnswerBoard:
    """Who waits for which command."""

    def __init__(self, reads: GatewayReads) -> None:
        self._reads = reads
        self._waits: dict[str, list[asyncio.Future[dict[str, Any]]]] = {}
        self._recent: dict[str, dict[str, Any]] = {}

    def expect(self, command_id: str) -> "asyncio.Future[dict[str, Any]] | None":
        """A future of the command's final journal row; None where too many wait already."""
        if len(self._waits) >= WAITS_MAX:
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

    async def nudge(self, raw: Any) -> None:
        """Take over one CaseAnswered of the orchestrator."""
        with contextlib.suppress(orjson.JSONDecodeError, KeyError, TypeError):
            self.tell(orjson.loads(raw.data)["operation"])

    def tell(self, row: dict[str, Any]) -> None:
        """End all waits for a command that is over."""
        if row["state"] not in _ENDS:
            return
        self._recent[row["command_id"]] = row
        if len(self._recent) > RECENT_MAX:
            del self._recent[next(iter(self._recent))]
        for future in self._waits.pop(row["command_id"], ()):
            if not future.done():
                future.set_result(row)

    def has_heard(self, command_id: str) -> bool:
        """True where the end of this command was told here lately."""
        return command_id in self._recent

    def newest(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row of the read model, or what was told since."""
        heard = self._recent.get(row["command_id"])
        return heard if heard is not None and heard["state_version"] > row["state_version"] else row

    async def poll(self, stop: asyncio.Event) -> None:
        """Look into the read model for everything that is waited for, until `stop`."""
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), POLL_SECONDS)
            waited = list(self._waits)[:POLL_COMMANDS_MAX]
            if not waited:
                continue
            try:
                for row in await self._reads.command_rows(waited):
                    self.tell(row)
            except StoreBusy as busy:
                log.info("not polled: store busy", extra={"reason": str(busy)})
