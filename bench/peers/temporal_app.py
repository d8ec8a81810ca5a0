"""Temporal's front and worker in one process, which is what its eager start of workflows asks for.

The workflow's id is the idempotency key: a running one is joined, an ended one is not run again. What was tuned: eager
start, so that the first task needs no polling; pollers that scale by themselves, as Temporal's documentation advises;
no sandbox around workflow code; slots for all that is in flight; a refused activity is not logged with its traceback.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header
from temporalio.client import Client  # type: ignore[import-not-found]
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy  # type: ignore[import-not-found]
from temporalio.exceptions import WorkflowAlreadyStartedError  # type: ignore[import-not-found]
from temporalio.worker import (  # type: ignore[import-not-found]
    PollerBehaviorAutoscaling,
    UnsandboxedWorkflowRunner,
    Worker,
)

from bench.peers.temporal_workflows import Command, Saga, effect

QUEUE = "bench"
SLOTS = 200
logging.getLogger("temporalio.activity").setLevel(logging.ERROR)
EAGER = os.environ.get("BENCH_EAGER", "1") == "1"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    worker = Worker(
        app.state.client,
        task_queue=QUEUE,
        workflows=[Command, Saga],
        activities=[effect],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=SLOTS,
        max_concurrent_activities=SLOTS,
        max_concurrent_local_activities=SLOTS,
        workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
        activity_task_poller_behavior=PollerBehaviorAutoscaling(),
    )
    async with worker:
        yield


app = FastAPI(lifespan=_lifespan)


async def _run(workflow: Any, key: str, arguments: list[Any]) -> dict[str, Any]:
    client = app.state.client
    # An eager start cannot join a running workflow, so a repeated key is answered by the second try.
    try:
        handle = await client.start_workflow(
            workflow,
            args=arguments,
            id=key,
            task_queue=QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            request_eager_start=EAGER,
        )
    except WorkflowAlreadyStartedError:
        handle = client.get_workflow_handle(key)
    return dict(await handle.result())


@app.post("/commands")
async def commands(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """One command."""
    return await _run(Command.run, idempotency_key, [str(body["payload"]["key"])])


@app.post("/sagas")
async def sagas(body: dict[str, Any], idempotency_key: Annotated[str, Header()]) -> dict[str, Any]:
    """One saga."""
    return await _run(Saga.run, f"saga-{idempotency_key}", [str(body["unit"]), bool(body["refuse"])])
