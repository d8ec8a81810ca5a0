"""Slow clients: who sends a request too slowly is told 408, where it can still be told, and cut off. A crowd of them:
who has been silent longest makes room for whoever comes.
"""

import resource
from typing import Any, Final

import orjson

from trueup_common.contracts.problems import PROBLEMS
from trueup_common.runtime.health import PunctualProtocol

CONNECTIONS_MAX: Final = 4000
"""Per replica, where the process may open that many files; about 20 kB each."""
FILES_KEPT: Final = 256
"""Of those that the process may open: for the database, the bus, artifacts and logs."""


def _answer(slug: str, status_line: str, detail: str, headers: str = "") -> bytes:
    """A whole answer, for when there is no request that the application could answer."""
    problem = PROBLEMS[slug]
    body = orjson.dumps(
        {
            "type": f"/problems/{problem.slug}",
            "title": problem.title,
            "status": problem.status,
            "detail": detail,
            "instance": "urn:trueup:request:unknown",
            "advice": problem.advice,
        }
    )
    head = (
        f"HTTP/1.1 {status_line}\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n"
        f"{headers}connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_LATE: Final = _answer("request-timeout", "408 Request Timeout", "The whole request did not come in time.")
_FULL: Final = _answer(
    "unavailable", "503 Service Unavailable", "This replica is full: every connection is at work.", "retry-after: 1\r\n"
)


class PatientProtocol(PunctualProtocol):
    """HTTP/1.1 with a deadline for whole requests, an answer for those that miss it, and a bound of connections."""

    leaving = False
    """True once this server leaves: each answer is the last one of its connection."""
    connections_max = CONNECTIONS_MAX
    heard_at = 0.0
    """When something last came from the client."""
    _begun = False

    def connection_made(self, transport: Any) -> None:
        """Somebody is there."""
        super().connection_made(transport)
        self.heard_at = self.loop.time()
        if len(self.connections) > self.connections_max:
            self._make_room()

    def on_headers_complete(self) -> None:
        """The head of a request is here."""
        super().on_headers_complete()
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Something of a request is here."""
        self._begun = True
        self.heard_at = self.loop.time()
        super().data_received(data)

    @property
    def is_at_work(self) -> bool:
        """True while an answer is due or under way."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)

    def cut(self) -> None:
        """Tell it, unless nothing was asked or an answer is due or under way already; then cut."""
        if self._begun and not self.is_at_work and not self.transport.is_closing():
            self._end_with(_LATE)
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        others: list[Any] = [one for one in self.connections if one is not self and not one.transport.is_closing()]
        if len(others) < self.connections_max:
            return
        silent = [one for one in others if not one.is_at_work]
        if silent:
            min(silent, key=lambda one: one.heard_at).transport.abort()
        else:
            self._end_with(_FULL)

    def _end_with(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()


def connections_max() -> int:
    """How many connections this process may hold."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unbounded = files == resource.RLIM_INFINITY
    return CONNECTIONS_MAX if unbounded else max(1, min(CONNECTIONS_MAX, files - FILES_KEPT))


def patient(seconds: float, connections: int = CONNECTIONS_MAX) -> type[PatientProtocol]:
    """The protocol with a deadline and a bound of its own."""
    return type("PatientProtocol", (PatientProtocol,), {"request_seconds": seconds, "connections_max": connections})
