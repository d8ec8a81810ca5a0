"""What the world asks of an external system: answer HTTP from the store, and let outsiders edit it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from starlette.types import Receive, Scope, Send


class Refusal(Exception):
    """An edit that makes no sense, with the status to answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class System(Protocol):
    """An external system: an ASGI application whose state lives in the store."""

    rewritable: ClassVar[frozenset[str]]  # fields that the fault `rewrite` can name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        """Edit an object behind everyone's back; raises Refusal."""
        ...


@runtime_checkable
class Follower(Protocol):
    """A system that comes and asks the plane what it should do (service discovery)."""

    def follow(self, addresses: Sequence[str]) -> None:
        """Ask these addresses from now on; `{tenant}` in them stands for the tenant."""
        ...

    async def stop(self) -> None:
        """Ask no more."""
        ...
