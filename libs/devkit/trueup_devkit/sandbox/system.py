"""What the world asks of an external system: answer HTTP from the store, and let outsiders edit it."""

from typing import Any, ClassVar, Protocol

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
