"""The plane's numbers for /metrics: key figures and service levels over all tenants, read now and then.

Labels name figures, levels, windows and kinds. No tenant stands in one: what is a tenant's own is read by the API.
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from trueup_common.contracts.states import ExceptionKind
from trueup_common.runtime.metrics import Family, Labels
from trueup_common.runtime.ports import StoreBusy
from trueup_gateway.core.kpi import Kpi, Standing, kpis
from trueup_gateway.core.number_records import ALL_TENANTS
from trueup_gateway.core.slo import Level, ServiceLevels, levels
from trueup_gateway.core.windows import window_text
from trueup_gateway.store import GatewayReads

log = logging.getLogger("trueup.gateway.numbers")

REFRESH_SECONDS: Final = 15.0


class Gauges:
    """The numbers as they were read last."""

    def __init__(self, reads: GatewayReads, document: ServiceLevels) -> None:
        self._reads = reads
        self._document = document
        self._kpis: Sequence[Kpi] = ()
        self._levels: Sequence[Level] = ()
        self._open: Mapping[str, Standing] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Read again and again; a store that does not answer leaves what was read before."""
        while not stop.is_set():
            try:
                await self.refresh(await self._reads.business_now())
            except StoreBusy as busy:
                log.info("store busy, reading numbers later", extra={"reason": str(busy)})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_SECONDS):
                    await stop.wait()

    async def refresh(self, now: datetime) -> None:
        """Read once."""
        sums = await self._reads.sums(ALL_TENANTS, now)
        self._open, waiting, repairs = await self._reads.standing(None)
        self._kpis = kpis(sums, self._open, waiting, repairs, now=now, prices=self._document.prices)
        self._levels = levels(self._document, sums, now=now)

    def families(self) -> tuple[Family, ...]:
        """What /metrics shows of it."""
        kpi, slo, kind = ("kpi", "window"), ("slo",), ("kind",)
        return (
            Family("trueup_kpi", "Key figure in a window (0s: now); absent while nothing came due", kpi, self._values),
            Family("trueup_kpi_numerator", "What the figure counts", kpi, lambda: self._terms(numerator=True)),
            Family("trueup_kpi_denominator", "What it counts it over", kpi, lambda: self._terms(numerator=False)),
            Family("trueup_slo_target", "Share that was promised", slo, self._targets),
            Family("trueup_slo_ratio", "Share that was kept, over the whole window", slo, self._ratios),
            Family("trueup_slo_error_budget_remaining", "1: untouched, 0: used up", slo, self._budgets),
            Family("trueup_slo_burn_rate", "Times faster than allowed", ("slo", "window"), self._burn_rates),
            Family("trueup_exceptions_open", "Open exceptions", kind, lambda: self._standing(oldest=False)),
            Family("trueup_exceptions_oldest_seconds", "Age of the oldest", kind, lambda: self._standing(oldest=True)),
        )

    def _values(self) -> Mapping[Labels, float]:
        return {_named(item): item.value for item in self._kpis if item.value is not None}

    def _terms(self, *, numerator: bool) -> Mapping[Labels, float]:
        return {_named(item): item.numerator if numerator else item.denominator for item in self._kpis}

    def _targets(self) -> Mapping[Labels, float]:
        return {(objective.name,): objective.target for objective in self._document.objectives}

    def _ratios(self) -> Mapping[Labels, float]:
        return {(level.objective.name,): level.ratio for level in self._levels}

    def _budgets(self) -> Mapping[Labels, float]:
        return {(level.objective.name,): level.budget_remaining for level in self._levels}

    def _burn_rates(self) -> Mapping[Labels, float]:
        return {
            (level.objective.name, window_text(burn.window_seconds)): burn.rate
            for level in self._levels
            for burn in level.burns
        }

    def _standing(self, *, oldest: bool) -> Mapping[Labels, float]:
        """Of every kind, also where none is open: an alert needs a number to compare."""
        found = {kind.value: Standing() for kind in ExceptionKind} | dict(self._open)
        return {(name,): item.oldest_seconds if oldest else item.count for name, item in found.items()}


def _named(item: Kpi) -> Labels:
    return (item.figure.name, window_text(item.window_seconds) if item.window_seconds else "0s")
