"""Sightings: what the edge refuses is noted here, and a timer looks whether it has become an anomaly.

Noting is an addition in memory, so that whoever is refused can cause no write; what was noted is kept with the next
look, one row per actor.
"""

from collections.abc import Sequence
from typing import Final

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.metrics import Tally
from trueup_common.runtime.ports import Moment
from trueup_common.runtime.settings import Settings
from trueup_gateway.core.anomalies import AnomalyRules, anomalies, calmed, marks, reported, told_row
from trueup_gateway.core.number_records import SightingRow
from trueup_gateway.store import GatewayTransaction

ACTORS_MAX: Final = 1000
FORGET_TICKS: Final = 240
SOURCE: Final = "gateway"

TOLD: Final = Tally("trueup_anomalies", "Anomalies that were told", ("rule",))


class Sightings:
    """What this process has noted since the last look."""

    def __init__(self, instance: str = "") -> None:
        self._instance = instance
        self._seen: dict[tuple[str, str, str], tuple[int, str | None]] = {}

    def note(self, tenant: str, kind: str, actor: str, about: str | None = None) -> None:
        """Something was refused. Of too many actors at once, those who came first are enough."""
        key = (tenant, kind, actor)
        count, _ = self._seen.get(key, (0, None))
        if count or len(self._seen) < ACTORS_MAX:
            self._seen[key] = (count + 1, about)

    def take(self, moment: Moment) -> list[SightingRow]:
        """All of it, as rows."""
        seen, self._seen = self._seen, {}
        return [
            SightingRow(
                tenant=tenant,
                kind=kind,
                actor=actor,
                at=moment.business,
                name=self._instance,
                count=count,
                about=about,
            )
            for (tenant, kind, actor), (count, about) in seen.items()
        ]

    def put_back(self, rows: Sequence[SightingRow]) -> None:
        """What could not be kept is noted still."""
        for row in rows:
            key = (row.tenant, row.kind, row.actor)
            count, about = self._seen.get(key, (0, row.about))
            self._seen[key] = (count + row.count, about)


class AnomalyWatch:
    """Looks for anomalies and tells them as exceptions, and their end where they end by themselves."""

    def __init__(self, rules: AnomalyRules, sightings: Sightings, settings: Settings) -> None:
        self._rules = rules
        self._sightings = sightings
        self._settings = settings
        self._ticks = 0

    async def look(self, tx: GatewayTransaction, moment: Moment) -> Sequence[Outgoing]:
        """One look."""
        fresh = self._sightings.take(moment)
        try:
            if fresh:
                await tx.save_sightings(fresh)
            return await self._look(tx, moment)
        except BaseException:
            self._sightings.put_back(fresh)
            raise

    async def _look(self, tx: GatewayTransaction, moment: Moment) -> Sequence[Outgoing]:
        if not await tx.may_look():
            return ()
        now = moment.business
        self._ticks += 1
        if self._ticks % FORGET_TICKS == 1:
            await tx.forget_sightings(now)
        still = await tx.open_anomalies()
        sighted = await tx.sighted(self._rules, marks(self._rules, still), now)
        if not sighted and not still:
            return ()
        rows, reports = calmed(self._rules, still, sighted, now)
        known = {**await tx.told_anomalies(sighted), **{row.key: row for row in (*still, *rows)}}
        for item in anomalies(self._rules, sighted, known, now):
            rule = self._rules.of(item.rule)
            assert rule is not None
            report = reported(
                item,
                rule,
                now=now,
                owner=self._settings.exception_owner,
                sla_seconds=self._settings.exception_sla_seconds,
                reporter=SOURCE,
            )
            tx.count(TOLD, item.rule)
            rows.append(told_row(item, rule, report, known.get(item.key), now))
            reports.append(report)
        await tx.save_anomalies(list({row.key: row for row in rows}.values()))
        return [_telling(report, moment) for report in reports]


def _telling(report: ExceptionReported, moment: Moment) -> Outgoing:
    obligation = report.obligation
    return Outgoing(
        Message(
            id=f"{obligation.obligation_id}:{obligation.version}",
            type="ExceptionReported",
            subject=event_subject(SOURCE, "exception", obligation.tenant),
            tenant=obligation.tenant,
            source=SOURCE,
            time=moment.real,
            data=report.model_dump_json().encode(),
        )
    )
