"""Slow clients: who sends a request too slowly is told 408, where it can still be told, and cut off."""

from typing import Final

import orjson

from trueup_common.contracts.problems import PROBLEMS
from trueup_common.runtime.health import PunctualProtocol

_PROBLEM: Final = PROBLEMS["request-timeout"]
_BODY: Final = orjson.dumps(
    {
        "type": f"/problems/{_PROBLEM.slug}",
        "title": _PROBLEM.title,
        "status": _PROBLEM.status,
        "detail": "The whole request did not come in time.",
        "instance": "urn:trueup:request:unknown",
        "advice": _PROBLEM.advice,
    }
)
_ANSWER: Final = (
    b"HTTP/1.1 408 Request Timeout\r\ncontent-type: application/problem+json\r\ncache-control: no-store\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


class PatientProtocol(PunctualProtocol):
    """HTTP/1.1 with a deadline for whole requests and an answer for those that miss it."""

    leaving = False
    """True once this server leaves: each answer is the last one of its connection."""
    _begun = False

    def on_headers_complete(self) -> None:
        """The head of a request is here."""
        super().on_headers_complete()
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def data_received(self, data: bytes) -> None:
        """Something of a request is here."""
        self._begun = True
        super().data_received(data)

    def cut(self) -> None:
        """Tell it, unless nothing was asked or an answer is due or under way already; then cut."""
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete and (cycle.response_started or not cycle.more_body)
        if self._begun and not busy and not self.transport.is_closing():
            self.transport.write(_ANSWER)
            self.transport.close()
        else:
            self.transport.abort()


def patient(seconds: float) -> type[PatientProtocol]:
    """The protocol with a deadline of its own."""
    return type("PatientProtocol", (PatientProtocol,), {"request_seconds": seconds})
