"""Bodies of requests that are in hand at the same time: bounded by bytes, whatever their number.

Two thousand requests may wait to be accepted; of a quarter of a MiB each they would be half a GiB, and several times
that as objects. A small body is always taken: a freeze or a revocation does not wait behind somebody's articles.
"""

from dataclasses import dataclass
from typing import Final

from starlette.types import Scope

from trueup_gateway.core.refusal import Refused

IN_HAND_BYTES_MAX: Final = 32 * 1024**2
SMALL_BYTES: Final = 16 * 1024
_HELD: Final = "trueup.body_bytes"


@dataclass(slots=True)
class Bodies:
    """What the requests of one process hold of their bodies, from the first byte to the answer."""

    in_hand_bytes: int = 0

    def take(self, scope: Scope, size: int) -> None:
        """A piece of a request's body is here. Raises Refused where there is no room for it."""
        held = scope.get(_HELD, 0) + size
        if held > SMALL_BYTES and self.in_hand_bytes + size > IN_HAND_BYTES_MAX:
            raise Refused("rate-limited", "Too many large requests are in hand.", retry_after_seconds=1)
        scope[_HELD] = held
        self.in_hand_bytes += size

    def release(self, scope: Scope) -> None:
        """The request is over."""
        self.in_hand_bytes -= scope.pop(_HELD, 0)
