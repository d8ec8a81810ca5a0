"""Glue: reports of exceptions become rows with owner and deadline, and every change of a row is told."""

from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ExceptionReported, MessageQuarantined
from trueup_common.contracts.states import ExceptionKind
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_repair_planner.core import lifecycle
from trueup_repair_planner.core.lifecycle import Duty, ExceptionRow
from trueup_repair_planner.store import PlannerTransaction

SOURCE: Final = "planner"
DUE_LIMIT: Final = 200

Body = ExceptionReported | MessageQuarantined

MODELS: Final[dict[str, type[Body]]] = {
    "ExceptionReported": ExceptionReported,
    "MessageQuarantined": MessageQuarantined,
}


def read(message: Message) -> Body:
    """The body of a message. Raises Unprocessable for what cannot be read or speaks for another tenant."""
    model = MODELS.get(message.type)
    if model is None:
        raise Unprocessable(f"unexpected type {message.type}")
    try:
        body = model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"unreadable {message.type}: {error.error_count()} errors") from error
    tenant = body.obligation.tenant if isinstance(body, ExceptionReported) else body.tenant
    if tenant != message.tenant:
        raise Unprocessable("the body speaks for another tenant than its envelope")
    if isinstance(body, ExceptionReported) and body.obligation.kind not in set(ExceptionKind):
        raise Unprocessable(f"unknown kind of exception {body.obligation.kind}")
    return body


class EventsHandler:
    """Reports → exceptions. Versions keep duplicates and old reports out, so there is no inbox."""

    inbox = False

    def __init__(self, duty: Duty | None = None) -> None:
        self.duty = duty or Duty()

    async def handle(self, tx: PlannerTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Fold a batch in the order of delivery."""
        bodies = [(message, read(message)) for message in messages]
        ids = {_exception_of(body) for _, body in bodies}
        stored = {row.exception_id: row for row in await tx.exceptions(sorted(ids))}
        rows = dict(stored)
        for message, body in bodies:
            key = _exception_of(body)
            row = rows.get(key)
            if row is not None and row.tenant != message.tenant:
                raise Unprocessable("the exception belongs to another tenant")
            if isinstance(body, ExceptionReported):
                rows[key] = lifecycle.report(
                    row, body, now=moment.business, duty=self.duty, traceparent=message.traceparent
                )
            else:
                rows[key] = lifecycle.quarantined(
                    row, body, now=moment.business, duty=self.duty, traceparent=message.traceparent
                )
        return await _save(tx, moment, stored, rows.values())

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""


class Ticks:
    """What the planner does by itself when time has come."""

    def __init__(self, duty: Duty | None = None) -> None:
        self.duty = duty or Duty()

    async def deadlines(self, tx: PlannerTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Escalate exceptions whose deadline passed."""
        stored = {row.exception_id: row for row in await tx.overdue_exceptions(moment.business, DUE_LIMIT)}
        rows = [lifecycle.overdue(row, now=moment.business, duty=self.duty) for row in stored.values()]
        return await _save(tx, moment, stored, rows)


def _exception_of(body: Body) -> str:
    if isinstance(body, ExceptionReported):
        return lifecycle.exception_id(body.obligation.obligation_id)
    return lifecycle.exception_id(body.quarantine_id)


async def _save(
    tx: PlannerTransaction, moment: Moment, stored: dict[str, ExceptionRow], rows: Iterable[ExceptionRow]
) -> list[Outgoing]:
    """Save what changed, each row by one version, and tell it."""
    new: list[ExceptionRow] = []
    moved: list[ExceptionRow] = []
    for row in rows:
        before = stored.get(row.exception_id)
        if before is None:
            new.append(row.evolve(version=1))
        elif row is not before:
            moved.append(row.evolve(version=before.version + 1))
    if new or moved:
        await tx.save_exceptions(new, moved)
    return [_told(row, moment) for row in (*new, *moved)]


def _told(row: ExceptionRow, moment: Moment) -> Outgoing:
    body = lifecycle.changed(row)
    return Outgoing(
        Message(
            id=f"{row.exception_id}:{row.version}",
            type="ExceptionChanged",
            subject=event_subject(SOURCE, "exception", row.tenant),
            tenant=row.tenant,
            source=SOURCE,
            time=moment.real,
            data=body.model_dump_json().encode(),
            traceparent=row.traceparent,
        )
    )
