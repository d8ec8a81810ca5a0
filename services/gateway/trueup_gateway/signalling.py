"""Taking signals: those that wait at the same moment share one transaction, and past a bound they are refused with 429.

A change of shifts sends thousands of them within a minute. Each in a transaction of its own would keep all sessions of
this process, and every command that comes beside them would wait for one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import SignalReceived
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.shape import json_bytes, rfc3339
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.ports import CrashPoints, Moment, Publisher, Schedule, Store, VersionConflict
from trueup_gateway.batching import Batching
from trueup_gateway.core.anomalies import CROSS_TENANT
from trueup_gateway.core.person_records import SignalRow
from trueup_gateway.core.refusal import Refused
from trueup_gateway.sightings import Sightings
from trueup_gateway.store import GatewayTransaction, Reader

OPEN_MAX: Final = 1000
"""Signals of one case that nobody has disposed of, or that are held."""
PENDING: Final = "pending"
SOURCE: Final = "gateway"


@dataclass(frozen=True, slots=True)
class Sending:
    """One signal as somebody sent it; `sender` says whose cases he may signal."""

    sender: Reader
    actor: str
    workflow_id: str
    event_id: str
    type: str
    data: Any
    occurred_at: Any
    traceparent: str | None

    @property
    def key(self) -> tuple[str, str]:
        """A case takes an event id once."""
        return self.workflow_id, self.event_id

    @property
    def fingerprint(self) -> str:
        """The same for the same event."""
        at = rfc3339(self.occurred_at) if self.occurred_at else None
        return digest({"type": self.type, "data": self.data, "occurred_at": at})


@dataclass(frozen=True, slots=True)
class Taken:
    """The row of a signal, and whether it is new."""

    row: SignalRow
    fresh: bool


class SignalTaker(Batching[Sending, Taken]):
    """Keeps signals in shared transactions."""

    name = "gateway-signal"

    def __init__(
        self,
        *,
        store: Store[GatewayTransaction],
        publisher: Publisher,
        crash: CrashPoints,
        schedule: Schedule,
        queue_max: int,
        sightings: Sightings,
    ) -> None:
        super().__init__(publisher=publisher, crash=crash, schedule=schedule, queue_max=queue_max)
        self._store = store
        self._sightings = sightings

    async def _once(self, requests: Sequence[Sending]) -> tuple[list[Taken | Refused], list[Outgoing]]:
        async with self._store.transaction() as tx:
            moment = await tx.moment()
            ids = sorted({request.workflow_id for request in requests})
            cases = await tx.owners_of_cases(ids)
            known = {(row.workflow_id, row.event_id): row for row in await tx.signals({item.key for item in requests})}
            counts = await tx.open_signals(ids)
            verdicts: list[Taken | Refused] = []
            fresh: list[tuple[Sending, SignalRow]] = []
            for request in requests:
                verdict = self._judge(request, cases.get(request.workflow_id), known.get(request.key), moment)
                if isinstance(verdict, Taken) and verdict.fresh:
                    counts[request.workflow_id] = counts.get(request.workflow_id, 0) + 1
                    if counts[request.workflow_id] > OPEN_MAX:
                        verdict = Refused(
                            "rate-limited", "Too many signals of this case wait already.", retry_after_seconds=10
                        )
                    else:
                        known[request.key] = verdict.row
                        fresh.append((request, verdict.row))
                verdicts.append(verdict)
            outgoing = [_told(request, row, moment) for request, row in fresh]
            if fresh:
                rows = sorted((row for _, row in fresh), key=lambda row: (row.workflow_id, row.event_id))
                if await tx.save_signals(rows) != len(rows):
                    raise VersionConflict("another replica took one of these signals")
                await tx.post(outgoing)
            self._crash.reach("gateway-signal.before_commit")
        self.batches_count += 1
        self.accepted_count += len(fresh)
        return verdicts, outgoing

    def _judge(
        self, request: Sending, owner: tuple[str, str] | None, known: SignalRow | None, moment: Moment
    ) -> Taken | Refused:
        """Of one signal, on what is stored: new, a repetition, or refused."""
        if owner is None or owner[0] != request.sender.tenant or request.sender.subject not in (None, owner[1]):
            if owner is not None and owner[0] != request.sender.tenant:
                self._sightings.note(request.sender.tenant, CROSS_TENANT, request.actor)
            return Refused("not-found", "There is no such object for this caller.")
        if known is None:
            return Taken(_row(request, moment), fresh=True)
        if known.fingerprint != request.fingerprint:
            return Refused("idempotency-key-reused", "This event id stands for another event of this case.")
        return Taken(known, fresh=False)


def _row(request: Sending, moment: Moment) -> SignalRow:
    return SignalRow(
        workflow_id=request.workflow_id,
        event_id=request.event_id,
        tenant=request.sender.tenant,
        fingerprint=request.fingerprint,
        type=request.type,
        actor=request.actor,
        disposition=PENDING,
        occurred_at=request.occurred_at,
        received_at=moment.business,
    )


def _told(request: Sending, row: SignalRow, moment: Moment) -> Outgoing:
    received = SignalReceived(
        **{name: getattr(row, name) for name in ("event_id", "workflow_id", "tenant", "type", "actor")},
        data=request.data,
        occurred_at=row.occurred_at,
        received_at=row.received_at,
    )
    return Outgoing(
        Message(
            id=derived_id("sig", row.workflow_id, row.event_id),
            type="SignalReceived",
            subject=event_subject(SOURCE, "signal", row.tenant),
            tenant=row.tenant,
            source=SOURCE,
            time=moment.real,
            data=json_bytes(received),
            traceparent=request.traceparent,
        )
    )
