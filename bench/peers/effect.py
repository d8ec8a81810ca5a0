"""The side effect of every peer: one POST to the stub, by the client that Trueup's adapters use as well.

It sends what the bench adapter sends, and takes 422 for a refusal for good. This module and the applications beside it
run in the peers' own environments and import nothing of Trueup.
"""

import asyncio
import os
from typing import Any

import aiohttp
import orjson

TIMEOUT_SECONDS = 10.0
CONNECTIONS_MAX = 100
STEPS = 5

_sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}


class Refused(Exception):
    """The stub refused for good: trying again is of no use."""


def _session() -> aiohttp.ClientSession:
    """One pool of connections per event loop: some engines recover work on a loop of their own."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        _sessions[loop] = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_SECONDS),
        )
    return _sessions[loop]


async def post(document: dict[str, Any]) -> str:
    """Send one effect; its reference."""
    headers = {"idempotency-key": document["key"], "content-type": "application/json"}
    url = os.environ["BENCH_STUB"] + "/effect"
    async with _session().post(url, data=orjson.dumps(document), headers=headers) as answer:
        content = await answer.read()
        if answer.status == 422:
            raise Refused(content.decode())
        answer.raise_for_status()
        return str(orjson.loads(content)["effect_id"])


def step_key(unit: str, step: int) -> str:
    """The identity of one step's effect."""
    return f"{unit}:{step}"


def making(unit: str, step: int, refuse: bool) -> dict[str, Any]:
    """What makes a step; the last one says whether it is to be refused, as bench/saga.yaml has it."""
    document: dict[str, Any] = {"unit": unit, "step": step, "key": step_key(unit, step)}
    return {**document, "refuse": refuse} if step == STEPS else document


def unmaking(unit: str, step: int) -> dict[str, Any]:
    """What takes a step back."""
    return {"unit": unit, "step": step, "undoes": step_key(unit, step), "key": f"{step_key(unit, step)}:undo"}
