"""Streams: a case as it goes on, as server-sent events. One poller per replica looks for all of them (`watching`)."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from trueup_common.contracts.states import INSTANCE_TERMINAL
from trueup_common.runtime.clock import monotonic
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import caller_of, found, object_id, reader_of
from trueup_gateway.api.route import READ, LeanRoute, header_parameter, path_parameter, route
from trueup_gateway.api.workflows import HISTORY_MAX, case_body
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.withholding import shown
from trueup_gateway.tokens import Caller
from trueup_gateway.watching import Follower, Full, TooMany

HEARTBEAT_SECONDS: Final = 10.0
STREAM_SECONDS_MAX: Final = 3600.0
"""A stream ends after this time; the client goes on with Last-Event-ID, under a token that is still good."""
BEHIND_SECONDS: Final = 0.5
SEND_SECONDS_MAX: Final = 30.0
"""How long a client may not read before its stream is cut."""
RETRY_MS: Final = 1000
_TERMINAL: Final = frozenset(status.value for status in INSTANCE_TERMINAL)


class EventStream(StreamingResponse):
    """A stream that a client who does not read cannot hold open; it gives its place back however it ends."""

    def __init__(self, content: AsyncIterator[bytes], place: ExitStack) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._place = place

    async def stream_response(self, send: Send) -> None:
        """Send what comes, each part in bounded time."""

        async def punctual(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(punctual)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, and give the place back."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._place.close()


async def stream(request: Request) -> Response:
    """Follow a case: `event: state` with the whole case at each change, `event: history` with each fact, and
    `event: end` once it is over. The `id` of a fact is its sequence number: `Last-Event-ID` continues there."""
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    reader = reader_of(caller)
    workflow_id = object_id(request, "workflow_id", "wf")
    last = request.headers.get("last-event-id", "0")
    after = int(last) if last.isascii() and last.isdigit() and len(last) < 16 else 0
    found(await gateway.reads.case(reader, workflow_id))
    place = ExitStack()
    try:
        follower = place.enter_context(gateway.watch.following(workflow_id, f"{caller.tenant}/{caller.subject}"))
    except Full as full:
        raise Refused("unavailable", f"{str(full).capitalize()}.", retry_after_seconds=15) from None
    except TooMany as many:
        raise Refused("rate-limited", f"{str(many).capitalize()}.", retry_after_seconds=5) from None
    return EventStream(_follow(gateway, caller, follower, after), place)


async def _follow(gateway: Gateway, caller: Caller, follower: Follower, after: int) -> AsyncIterator[bytes]:
    reader = reader_of(caller)
    told, end = b"", monotonic() + STREAM_SECONDS_MAX
    while monotonic() < end and not gateway.watch.dismissed:
        body = shown(caller.roles, "workflow", await case_body(gateway, reader, follower.workflow_id))
        events = await gateway.reads.history(follower.workflow_id, after, HISTORY_MAX)
        for event in shown(caller.roles, "history", {"items": events})["items"]:
            after = event["seq"]
            yield _event("history", event, after)
        state = orjson.dumps(body, option=orjson.OPT_UTC_Z)
        if state != told:
            told = state
            yield b"retry: %d\nevent: state\ndata: " % RETRY_MS + state + b"\n\n"
        if events:
            continue
        if after < body["cost"]["transitions"]:  # the case was told before facts of it that are on their way
            await follower.moved(BEHIND_SECONDS)
            continue
        if body["status"] in _TERMINAL:
            yield _event("end", {"status": body["status"]}, None)
            return
        while not await follower.moved(HEARTBEAT_SECONDS):
            yield b": waiting\n\n"
    yield b": go on with Last-Event-ID\n\n"


def _event(kind: str, data: Any, seq: int | None) -> bytes:
    name = b"" if seq is None else b"id: %d\n" % seq
    return name + b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(data, option=orjson.OPT_UTC_Z) + b"\n\n"


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/workflows/{workflow_id}/stream",
        stream,
        tag="workflows",
        summary="Follow a case (server-sent events)",
        answers={200: ("Events `state`, `history` and `end`", None)},
        parameters=(
            path_parameter("workflow_id", "The case.", "wf_00000000000000000000000000000000"),
            header_parameter("Last-Event-ID", "Continue after this sequence number.", "0"),
        ),
        problems=READ,
        media_type="text/event-stream",
    ),
]
