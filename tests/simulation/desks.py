"""What the gateway's own code needs of a gateway and of a request, and how a request finds a replica that is alive."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.engine import Process, Sleep
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.core.refusal import Refused
from trueup_gateway.sightings import Sightings
from trueup_gateway.store import KeyTaken

if TYPE_CHECKING:
    from tests.simulation.plane import Plane


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever calls, as their token says."""

    subject: str
    tenant: str
    roles: tuple[str, ...]
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Desk:
    """What the gateway's own code needs of the gateway and of a request."""

    rules: Any
    scope: dict[str, Any]
    catalog: Any = None
    payloads: Any = None
    sightings: Any = field(default_factory=Sightings)


async def at_gateway(plane: Plane, work: Any) -> Any:
    """Let some replica of the gateway do something, as a request would; None where it died meanwhile."""
    gateways = [item for item in plane.processes if item.service == "gateway" and item.alive]
    if not gateways:
        await Sleep(0.2)
        return None
    process = gateways[plane.engine.below(len(gateways))]
    task = process.spawn(_answered(work, process), "request")
    while not task.done:
        await Sleep(0.05)
    return task.result


async def _answered(work: Callable[[Process], Coroutine[Any, Any, Any]], process: Process) -> Any:
    """What comes of a request: its answer, its refusal, or that the store was away."""
    try:
        return await work(process)
    except Refused as refused:
        return refused
    except KeyTaken:
        return Refused("idempotency-in-flight", "The same call is being performed right now.")
    except StoreBusy as busy:
        return Refused("unavailable", str(busy))
