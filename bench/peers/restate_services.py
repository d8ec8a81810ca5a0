# mypy: disable-error-code="untyped-decorator"
"""Restate's services, served by Hypercorn over HTTP/2 as Restate's documentation has it.

Restate brings an ingress of its own that takes the idempotency key and answers with the result; a FastAPI front before
it would only add to its cost, so there is none. What was tuned: uvloop, and connections that stay open with any number
of streams, as Restate's documentation has it for production. Run: `python -m bench.peers.restate_services PORT`.
"""

import sys
from typing import Any

import hypercorn.asyncio  # type: ignore[import-not-found]
import hypercorn.config  # type: ignore[import-not-found]
import restate  # type: ignore[import-not-found]
import uvloop

from bench.peers.effect import STEPS, Refused, making, post, unmaking

UNLIMITED = 2**31 - 1

command = restate.Service("Command")
saga = restate.Service("Saga")


async def effect(document: dict[str, Any]) -> str:
    """One effect; a refusal ends the retries."""
    try:
        return await post(document)
    except Refused as refused:
        raise restate.TerminalError(str(refused)) from refused


@command.handler("run")
async def run_command(context: restate.Context, body: dict[str, Any]) -> dict[str, Any]:
    """One effect, durably."""
    key = str(body["payload"]["key"])
    return {"key": key, "state": "SUCCESS", "ref": await context.run_typed("effect", effect, document={"key": key})}


@saga.handler("run")
async def run_saga(context: restate.Context, body: dict[str, Any]) -> dict[str, Any]:
    """Five effects; those that were made are taken back in reverse where one is refused."""
    unit, made = str(body["unit"]), []
    try:
        for step in range(1, STEPS + 1):
            await context.run_typed(f"make-{step}", effect, document=making(unit, step, bool(body["refuse"])))
            made.append(step)
    except restate.TerminalError:
        for step in reversed(made):
            await context.run_typed(f"unmake-{step}", effect, document=unmaking(unit, step))
        return {"unit": unit, "state": "COMPENSATED"}
    return {"unit": unit, "state": "CLOSED"}


app = restate.app([command, saga])


def main(port: int) -> None:
    """Serve until a signal ends it."""
    config = hypercorn.config.Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.loglevel = "WARNING"
    config.h2_max_concurrent_streams = UNLIMITED
    config.keep_alive_max_requests = UNLIMITED
    config.keep_alive_timeout = UNLIMITED
    uvloop.run(hypercorn.asyncio.serve(app, config))


if __name__ == "__main__":
    main(int(sys.argv[1]))
