"""Live pages: a word when something moved; the page then reads itself again. The facts come from the contract alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Final
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from trueup_common.runtime.clock import monotonic
from trueup_gateway.api.streams import EventStream
from trueup_gateway.console.view import View, view_of

POLL_SECONDS: Final = 2.0
HEARTBEAT_SECONDS: Final = 15.0
STREAM_SECONDS_MAX: Final = 1800.0
OPEN_MAX: Final = 100
OPEN_OF_ONE_MAX: Final = 10
_open: dict[str, int] = {}

Mark = Callable[[View], Awaitable[bytes | None]]
"""What moves whenever the page would look different; None where the person may not look any more."""


class _Passed(Response):
    """A stream of the contract, passed through under the person's own token."""

    def __init__(self, view: View, path: str) -> None:
        super().__init__()
        self._view, self._path = view, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it through."""
        await self._view.contract.follow(self._path, self._view.request.headers.get("last-event-id"), receive, send)


async def case(request: Request) -> Response:
    """Follow a case."""
    view = view_of(request)
    if view.session is None:
        return Response(status_code=401)
    name = quote(str(request.path_params["workflow_id"]), safe="")
    return _Passed(view, f"/v1/workflows/{name}/stream")


async def exceptions(request: Request) -> Response:
    """Tell when the list of what is open, or its numbers, moved."""
    return _followed(view_of(request), _exceptions_mark)


async def batch(request: Request) -> Response:
    """Tell when a batch went on."""
    name = quote(str(request.path_params["batch_id"]), safe="")

    async def mark(view: View) -> bytes | None:
        answered = await view.contract.get(f"/v1/operator-batches/{name}")
        return orjson.dumps(answered.body) if answered.done else None

    return _followed(view_of(request), mark)


def _followed(view: View, mark: Mark) -> Response:
    if view.session is None:
        return Response(status_code=401)
    who = f"{view.session.caller.tenant}/{view.session.caller.subject}"
    if sum(_open.values()) >= OPEN_MAX or _open.get(who, 0) >= OPEN_OF_ONE_MAX:
        return Response(status_code=429, headers={"Retry-After": "5"})
    place = ExitStack()
    _open[who] = _open.get(who, 0) + 1
    place.callback(_give_back, who)
    return EventStream(_moved(view, mark), place)


def _give_back(who: str) -> None:
    _open[who] -= 1
    if not _open[who]:
        del _open[who]


async def _moved(view: View, look: Mark) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    shown, told = await look(view), monotonic()
    end = monotonic() + STREAM_SECONDS_MAX
    while monotonic() < end and not view.gateway.watch.dismissed:
        await asyncio.sleep(POLL_SECONDS)
        mark = await look(view)
        if mark is None:
            return  # the token is not good any more: the page learns it when it asks again
        if mark != shown:
            shown, told = mark, monotonic()
            yield b"event: moved\ndata: {}\n\n"
        elif monotonic() - told > HEARTBEAT_SECONDS:
            told = monotonic()
            yield b": waiting\n\n"


async def _exceptions_mark(view: View) -> bytes | None:
    """What moves whenever the page would look different, ages apart."""
    summary = await view.contract.get("/v1/exceptions/summary")
    if summary.status in (401, 403):
        return None
    listed = await view.contract.get("/v1/exceptions", status="open", order="deadline", limit=50)
    numbers = {name: value for name, value in summary.object.items() if name != "oldest_age_seconds"}
    rows = [[item.get(name) for name in ("exception_id", "version", "owner", "lifecycle")] for item in listed.items]
    return orjson.dumps([numbers, rows])
