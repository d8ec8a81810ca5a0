# mypy: disable-error-code="untyped-decorator"
"""Temporal's workflows and their activity.

Local activities, as Temporal's documentation advises for short calls: a remote one costs another task and more events.
`BENCH_ACTIVITIES=remote` measures the others.
"""

import os
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow  # type: ignore[import-not-found]
from temporalio.common import RetryPolicy  # type: ignore[import-not-found]
from temporalio.exceptions import ApplicationError, FailureError  # type: ignore[import-not-found]

with workflow.unsafe.imports_passed_through():
    from bench.peers.effect import STEPS, Refused, making, post, unmaking

LOCAL = os.environ.get("BENCH_ACTIVITIES", "local") == "local"
REFUSED = "Refused"
ACTIVITY_TIMEOUT = timedelta(seconds=30)
RETRY = RetryPolicy(non_retryable_error_types=[REFUSED])


@activity.defn
async def effect(document: dict[str, Any]) -> str:
    """One effect."""
    try:
        return await post(document)
    except Refused as refused:
        raise ApplicationError(str(refused), type=REFUSED, non_retryable=True) from refused


async def _effect(document: dict[str, Any]) -> str:
    run = workflow.execute_local_activity if LOCAL else workflow.execute_activity
    return str(await run(effect, document, start_to_close_timeout=ACTIVITY_TIMEOUT, retry_policy=RETRY))


@workflow.defn
class Command:
    """One effect, durably."""

    @workflow.run
    async def run(self, key: str) -> dict[str, Any]:
        return {"key": key, "state": "SUCCESS", "ref": await _effect({"key": key})}


@workflow.defn
class Saga:
    """Five effects; those that were made are taken back in reverse where one is refused."""

    @workflow.run
    async def run(self, unit: str, refuse: bool) -> dict[str, Any]:
        made: list[int] = []
        try:
            for step in range(1, STEPS + 1):
                await _effect(making(unit, step, refuse))
                made.append(step)
        except FailureError:
            for step in reversed(made):
                await _effect(unmaking(unit, step))
            return {"unit": unit, "state": "COMPENSATED"}
        return {"unit": unit, "state": "CLOSED"}
