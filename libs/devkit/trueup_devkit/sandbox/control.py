"""The control port: order faults, read the ground truth, edit the world as an outsider would.

Whatever comes in that is not a well-formed order is answered with 4xx and a JSON error, and changes nothing.
"""

from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trueup_devkit.sandbox.faults import FaultSpec
from trueup_devkit.sandbox.system import Refusal

if TYPE_CHECKING:
    from trueup_devkit.sandbox.world import Sandbox

_MAX_BODY_BYTES: Final = 1 << 20


class Tampering(BaseModel):
    """An outsider's edit."""

    model_config = ConfigDict(strict=True, extra="forbid")

    system: str = Field(max_length=40)
    object: str = Field(min_length=1, max_length=500)
    change: dict[str, Any] = Field(min_length=1)


def _json(body: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def _readable(failure: ValidationError | ValueError) -> str:
    if not isinstance(failure, ValidationError):
        return str(failure)
    return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'body'}: {item['msg']}" for item in failure.errors())


async def _body(request: Request) -> bytes:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > _MAX_BODY_BYTES:
            raise HTTPException(413, f"a body may have {_MAX_BODY_BYTES} bytes")
    try:
        orjson.loads(chunks)  # pydantic's own parser takes NaN and Infinity
    except orjson.JSONDecodeError as failure:
        raise HTTPException(400, f"not JSON: {failure}") from None
    return bytes(chunks)


class _Control:
    def __init__(self, world: "Sandbox") -> None:
        self._world = world

    def _known(self, system: str) -> str:
        if system not in self._world.urls:
            raise HTTPException(404, f"unknown system {system[:40]!r}; known: {', '.join(self._world.urls)}")
        return system

    def _asked(self, request: Request) -> str | None:
        system = request.query_params.get("system")
        return None if system is None else self._known(system)

    async def index(self, _request: Request) -> Response:
        return _json({"systems": self._world.urls})

    async def ready(self, _request: Request) -> Response:
        return _json({"ready": True})

    async def faults(self, _request: Request) -> Response:
        return _json({"items": self._world.faults.items()})

    async def order_fault(self, request: Request) -> Response:
        try:
            spec = FaultSpec.model_validate_json(await _body(request))
            system = self._world.systems[self._known(spec.system)]
            if spec.fault in getattr(system, "impossible", ()):
                raise HTTPException(400, f"fault: {spec.fault} means nothing to {spec.system}")
            return _json(self._world.faults.order(spec, system.rewritable).document(), 201)
        except ValueError as failure:
            raise HTTPException(400, _readable(failure)) from None

    async def clear_faults(self, _request: Request) -> Response:
        return _json({"removed": self._world.faults.clear()})

    async def effects(self, request: Request) -> Response:
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > 18:
            raise HTTPException(400, "after: a number is needed")
        system = self._asked(request)
        try:
            await self._world.catch_up()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as failure:
            raise HTTPException(503, f"the customer's database cannot be asked what happened: {failure!r}") from None
        return _json({"items": self._world.store.effects(system, int(after))})

    async def requests(self, request: Request) -> Response:
        return _json({"items": self._world.requests.items(self._asked(request))})

    async def tamper(self, request: Request) -> Response:
        try:
            order = Tampering.model_validate_json(await _body(request))
            system = self._world.systems[self._known(order.system)]
            changed = system.tamper(order.object, order.change)
            return _json(await changed if isawaitable(changed) else changed)
        except Refusal as refusal:
            raise HTTPException(refusal.status, refusal.message) from None
        except ValueError as failure:
            raise HTTPException(400, _readable(failure)) from None


async def _refuse(_request: Request, failure: Exception) -> Response:
    assert isinstance(failure, HTTPException)
    return Response(
        orjson.dumps({"error": failure.detail}), failure.status_code, failure.headers, media_type="application/json"
    )


def control_app(world: "Sandbox") -> Starlette:
    """The application behind the control port."""
    control = _Control(world)
    return Starlette(
        routes=[
            Route("/", control.index),
            Route("/readyz", control.ready),
            Route("/_faults", control.faults, methods=["GET"]),
            Route("/_faults", control.order_fault, methods=["POST"]),
            Route("/_faults", control.clear_faults, methods=["DELETE"]),
            Route("/_effects", control.effects),
            Route("/_requests", control.requests),
            Route("/_tamper", control.tamper, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refuse},
    )
