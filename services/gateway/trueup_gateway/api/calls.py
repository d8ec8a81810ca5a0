"""Changing calls under an Idempotency-Key: the first acts, a repetition gets its answer, another body is refused."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.responses import Response

from trueup_common.contracts.canonical import digest
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.api.gateway import Gateway
from trueup_gateway.api.http import answer
from trueup_gateway.core.records import CallRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.store import GatewayTransaction, KeyTaken
from trueup_gateway.tokens import Caller

Act = Callable[[GatewayTransaction], Awaitable[tuple[int, dict[str, Any]]]]
"""Performs the change in a transaction and answers status and body."""


async def once(gateway: Gateway, caller: Caller, key: str, request: dict[str, Any], act: Act) -> Response:
    """Perform a change once per (tenant, key). `request` is what makes two calls the same call."""
    wanted = digest({"subject": caller.subject, **request})
    try:
        async with gateway.store.transaction() as tx:
            earlier = await tx.call(caller.tenant, key)
            if earlier is not None:
                if earlier.fingerprint != wanted:
                    raise Refused("idempotency-key-reused", "This key stands for another call.")
                return answer(earlier.body, earlier.status, {"Idempotent-Replayed": "true"})
            status, body = await act(tx)
            now = (await tx.moment()).business
            await tx.save_call(
                CallRow(tenant=caller.tenant, key=key, fingerprint=wanted, status=status, body=body, created_at=now)
            )
    except KeyTaken:
        raise Refused(
            "idempotency-in-flight", "The same call is being performed right now.", retry_after_seconds=1
        ) from None
    except StoreBusy as busy:
        raise Refused("unavailable", "The gateway's store is busy.", retry_after_seconds=1) from busy
    return answer(body, status)
