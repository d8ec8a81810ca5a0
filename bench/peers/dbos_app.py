# mypy: disable-error-code="untyped-decorator"
"""DBOS as its documentation has it: a FastAPI application whose workflows run where the request came in.

The workflow's id is the idempotency key, so a repeated request gets the stored result. What was tuned: workflows and
steps are coroutines; they are awaited where they start instead of going through a queue that is polled; the pool has
as many connections as the floor's and Trueup's services; no tracing export; errors alone are logged.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from dbos import DBOS, DBOSConfig, SetWorkflowID  # type: ignore[import-not-found]
from fastapi import FastAPI, Header

from bench.peers.effect import STEPS, Refused, making, post, unmaking

CONFIG: DBOSConfig = {
    "name": "bench",
    "system_database_url": os.environ["DBOS_SYSTEM_DATABASE_URL"],
    "application_version": "1",
    "log_level": "ERROR",
    "sys_db_pool_size": 16,
    "enable_otlp": False,
}
DBOS(config=CONFIG)


@DBOS.step()
async def effect(document: dict[str, Any]) -> str:
    """One effect; its result is recorded."""
    return await post(document)


@DBOS.workflow()
async def command(key: str) -> dict[str, Any]:
    """One effect, durably."""
    return {"key": key, "state": "SUCCESS", "ref": await effect({"key": key})}


@DBOS.workflow()
async def saga(unit: str, refuse: bool) -> dict[str, Any]:
    """Five effects; those that were made are taken back in reverse where one is refused."""
    made: list[int] = []
    try:
        for step in range(1, STEPS + 1):
            await effect(making(unit, step, refuse))
            made.append(step)
    except Refused:
        for step in reversed(made):
            await effect(unmaking(unit, step))
        return {"unit": unit, "state": "COMPENSATED"}
    return {"unit": unit, "state": "CLOSED"}


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    DBOS.launch()
    yield
    DBOS.destroy()


app = FastAPI(lifespan=_lifespan)


@app.post("/commands")
async def commands(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """One command."""
    with SetWorkflowID(idempotency_key):
        return dict(await command(str(body["payload"]["key"])))


@app.post("/sagas")
async def sagas(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """One saga."""
    with SetWorkflowID(f"saga-{idempotency_key}"):
        return dict(await saga(str(body["unit"]), bool(body["refuse"])))
