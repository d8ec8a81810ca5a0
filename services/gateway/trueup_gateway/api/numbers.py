"""Numbers: key figures and service levels of the caller's tenant, from counters and never from history."""

from datetime import datetime
from typing import Any, Final

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from trueup_common.contracts.shape import rfc3339
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.api.http import Body, OpenBody, answer, caller_of, require
from trueup_gateway.api.route import LeanRoute, route
from trueup_gateway.core import roles
from trueup_gateway.core.kpi import Kpi, kpis
from trueup_gateway.core.slo import Level, levels
from trueup_gateway.tokens import Caller


class KpiAnswer(OpenBody):
    """One key figure in one window, with what it counts over what."""

    name: str
    title: str
    numerator: float
    denominator: float
    window_seconds: int = Field(description="0: of this moment")
    value: float | None = Field(description="Null where nothing came due in the window")
    unit: str = Field(description="`ratio`, `seconds` (a mean), `mean` or `count`")
    over: str = Field(description="`operations`, `cases` or `exceptions`; never attempts")
    oldest_seconds: float | None = Field(description="Of ages: the oldest one")


class KpiList(Body):
    """All key figures."""

    items: list[KpiAnswer]


class BurnAnswer(Body):
    """How many times faster than allowed the error budget is used up."""

    window_seconds: int
    rate: float


class PointAnswer(Body):
    """One hour of a chart."""

    at: str
    good: float
    total: float
    ratio: float | None


class AlertAnswer(Body):
    """A rule that fires: the budget burns faster than `rate` in both windows."""

    long_seconds: int
    short_seconds: int
    rate: float
    severity: str


class LevelAnswer(OpenBody):
    """One service level and where it stands."""

    name: str
    title: str
    over: str
    target: float
    window_seconds: int
    good: float
    total: float
    ratio: float = Field(description="1 where nothing came due")
    error_budget_remaining: float = Field(description="1: untouched, 0: used up, below: overdrawn")
    burn_rates: list[BurnAnswer]
    alerting: bool
    alerts: list[AlertAnswer]
    series: list[PointAnswer]


class LevelList(Body):
    """All service levels."""

    items: list[LevelAnswer]


async def _reader(request: Request) -> tuple[Gateway, Caller, datetime]:
    gateway = gateway_of(request)
    caller = caller_of(request, gateway)
    require(caller, roles.READ_TENANT)
    return gateway, caller, await gateway.reads.business_now()


async def figures(request: Request) -> Response:
    """Read the key figures: of the last hour, day and week, and of this moment."""
    gateway, caller, now = await _reader(request)
    sums = await gateway.reads.sums(caller.tenant, now)
    exceptions, waiting, repairs = await gateway.reads.standing(caller.tenant)
    found = kpis(sums, exceptions, waiting, repairs, now=now, prices=gateway.levels.prices)
    return answer({"items": [kpi_body(item) for item in found]})


def kpi_body(kpi: Kpi) -> dict[str, Any]:
    """A key figure as it is told."""
    figure = kpi.figure
    return {
        "name": figure.name,
        "title": figure.title,
        "numerator": kpi.numerator,
        "denominator": kpi.denominator,
        "window_seconds": kpi.window_seconds,
        "value": kpi.value,
        "unit": figure.unit,
        "over": figure.over,
        "oldest_seconds": kpi.oldest_seconds,
    }


async def service_levels(request: Request) -> Response:
    """Read the service levels: what was promised, what is left of the error budget, and how fast it burns."""
    gateway, caller, now = await _reader(request)
    sums = await gateway.reads.sums(caller.tenant, now)
    return answer({"items": [level_body(level) for level in levels(gateway.levels, sums, now=now)]})


def level_body(level: Level) -> dict[str, Any]:
    """A service level as it is told."""
    objective = level.objective
    return {
        "name": objective.name,
        "title": objective.title,
        "over": objective.over,
        "target": objective.target,
        "window_seconds": level.window_seconds,
        "good": level.good,
        "total": level.total,
        "ratio": level.ratio,
        "error_budget_remaining": level.budget_remaining,
        "burn_rates": [{"window_seconds": burn.window_seconds, "rate": burn.rate} for burn in level.burns],
        "alerting": bool(level.firing),
        "alerts": [rule.model_dump() for rule in level.firing],
        "series": [
            {"at": rfc3339(at), "good": good, "total": total, "ratio": good / total if total else None}
            for at, good, total in level.series
        ],
    }


ROUTES: Final[list[LeanRoute]] = [
    route(
        "GET",
        "/v1/kpis",
        figures,
        tag="numbers",
        summary="Read the key figures",
        answers={200: ("All key figures", KpiList)},
        problems=("tenant-invalid", "forbidden"),
    ),
    route(
        "GET",
        "/v1/slo",
        service_levels,
        tag="numbers",
        summary="Read the service levels",
        answers={200: ("All service levels", LevelList)},
        problems=("tenant-invalid", "forbidden"),
    ),
]
