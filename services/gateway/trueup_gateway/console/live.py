"""Live pages: a word when something moved; the page then reads itself again. The facts come from the contract alone."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Final
from urllib.parse import quote

import orjson
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from trueup_common.runtime.clock import monotonic
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api.streams import EventStream
from trueup_gateway.console.sessions import is_open
from trueup_gateway.console.view import View, view_of

POLL_SECONDS: Final = 2.0
LOOKS_PER_SECOND_MAX: Final = 25.0
"""Of one replica: the more pages are open, the rarer each looks, so what all of them cost stays the same."""
HEARTBEAT_SECONDS: Final = 15.0
STREAM_SECONDS_MAX: Final = 1800.0
SESSION_SECONDS: Final = 5.0
"""How long a stream may outlive the session that it was opened in."""
OPEN_MAX: Final = 500
OPEN_OF_ONE_MAX: Final = 8
"""It takes more than sixty people to fill a replica; who finds no place looks again by themselves, as the page does."""
RETRY_SECONDS: Final = 15
_open: dict[str, int] = {}

Mark = Callable[[View], Awaitable[bytes | None]]
"""What moves whenever the page would look different; None where the person may not look any more."""


class _Passed(Response):
    """A stream of the contract, passed through under the person's own token, and no longer than their session."""

    def __init__(self, view: View, path: str) -> None:
        super().__init__()
        self._view, self._path = view, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it through."""

        async def received() -> Message:
            while True:
                try:
                    async with asyncio.timeout(SESSION_SECONDS):
                        return await receive()
                except TimeoutError:
                    if not await _is_in(self._view):
                        return {"type": "http.disconnect"}

        await self._view.contract.follow(self._path, self._view.request.headers.get("last-event-id"), received, send)


async def _is_in(view: View) -> bool:
    """True while the session that this view was made for is open; a store that is away for a moment ends nothing."""
    try:
        return view.session is not None and await is_open(view.gateway, view.session)
    except StoreBusy:
        return True


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


async def exception(request: Request) -> Response:
    """Tell when an exception, its case or what was asked about it moved: it ends a moment after its case does."""
    name = quote(str(request.path_params["exception_id"]), safe="")

    async def mark(view: View) -> bytes | None:
        answered = await view.contract.get(f"/v1/exceptions/{name}")
        if not answered.done:
            return None
        workflow_id = quote(str(answered.object.get("workflow_id") or ""), safe="")
        case = await view.contract.get(f"/v1/workflows/{workflow_id}") if workflow_id else None
        asked = await view.contract.get("/v1/operator-commands", target=name, limit=10)
        return orjson.dumps([answered.body, case.body if case is not None else None, asked.items])

    return _followed(view_of(request), mark)


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
    if sum(_open.values()) >= OPEN_MAX:
        return _no_place("This replica has too many pages open.", 503)
    if _open.get(who, 0) >= OPEN_OF_ONE_MAX:
        return _no_place("You have too many pages open.", 429)
    place = ExitStack()
    _open[who] = _open.get(who, 0) + 1
    place.callback(_give_back, who)
    return EventStream(_moved(view, mark), place)


def _no_place(why: str, status: int) -> Response:
    return PlainTextResponse(f"{why} It looks again by itself.\n", status, {"Retry-After": str(RETRY_SECONDS)})


def _give_back(who: str) -> None:
    _open[who] -= 1
    if not _open[who]:
        del _open[who]


def pause_seconds() -> float:
    """How long each open page waits before it looks again."""
    return max(POLL_SECONDS, sum(_open.values()) / LOOKS_PER_SECOND_MAX)


async def _moved(view: View, look: Mark) -> AsyncIterator[bytes]:
    yield b"retry: 2000\n\n"
    shown, told = await look(view), monotonic()
    end = monotonic() + STREAM_SECONDS_MAX
    while monotonic() < end and not view.gateway.watch.dismissed:
        await asyncio.sleep(pause_seconds())
        mark = await look(view) if await _is_in(view) else None
        if mark is None:
            return  # logged out, or the token is not good any more: the page learns it when it asks again
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
