"""Retiring: what an operation established is no longer desired, because it is undone or a person lets it go."""

from typing import Final

from trueup_common.contracts.events import OperatorCommand, Retired
from trueup_reconciler.core.element import ElementRow, Stage, Turn, object_key, turn
from trueup_reconciler.core.turned import Paid, Turned, given_up

LET_GO: Final = "marked_resolved"


def retire(
    row: ElementRow | None, event: Retired, resource: str, element: str, *, traceparent: str | None = None
) -> Turned:
    """Nothing is desired here any more: the operation is being undone. A newer operation's element stays as it is.

    Where the operation's own Established has not come yet, a row is kept all the same, so that it changes nothing
    when it comes.
    """
    if row is not None and row.command_id == event.command_id:
        if row.retired_by is not None:
            return Turned(row, changed=False)
        gone = turn(row, Turn.RETIRE)
        version = row.state_version
        visits, drifts = row.visits_count, row.drifts_count
    elif row is not None and (row.revision, row.sequence) > (event.revision, event.sequence):
        return Turned(row, changed=False)
    else:
        gone, version, visits, drifts = None, 0, 0, 0
        if row is not None:
            version, visits, drifts = row.state_version, row.visits_count, row.drifts_count
    base = gone or _bare(event, resource, element, traceparent)
    retired = _at_rest(base, event.retired_by).evolve(state_version=version, visits_count=visits, drifts_count=drifts)
    closed = (row.obligation_id, "retired") if row is not None and row.obligation_id is not None else None
    foreign = row is not None and row.command_id != event.command_id
    overtaken: tuple[Paid, ...] = ()
    if row is not None:  # its own case knows that it is being undone; a repair's case does not
        overtaken = given_up(row if foreign else row.evolve(owed=False), event.command_id)
    return Turned(
        retired,
        paid=overtaken,
        looked=tuple(row.looks) if row is not None else (),
        closed=closed,
        closed_for=row if closed else None,
        displaced=row if foreign else None,
    )


def let_go(row: ElementRow, asked: OperatorCommand) -> Turned:
    """A person accepts for good what an element has drifted to: nothing is desired of it until a newer operation says
    so. Whatever is owed for it is owed no longer, and who decided that stands in the exception."""
    by = asked.operator_command_id
    return Turned(
        _at_rest(turn(row, Turn.RETIRE), by),
        paid=given_up(row, by),
        looked=tuple(row.looks),
        closed=(row.obligation_id, LET_GO) if row.obligation_id is not None else None,
        closed_for=row,
        closed_by=asked.actor,
    )


def _at_rest(row: ElementRow, by: str) -> ElementRow:
    """An element of which nothing is desired: not visited, not repaired, not owed."""
    resting: ElementRow = row.evolve(
        stage=Stage.RETIRED,
        retired_by=by,
        desired=None,
        owed=False,
        repair=None,
        repair_owed=False,
        looks=[],
        obligation_id=None,
        waits_for=[],
        awaited=False,
        visit_id=None,
        visit_asked_at=None,
        next_visit_at=None,
        reason=f"retired by {by}",
    )
    return resting


def _bare(event: Retired, resource: str, element: str, traceparent: str | None) -> ElementRow:
    """A row for an element that was taken back before anybody heard of it."""
    return ElementRow(
        object_key=object_key(event.tenant, event.system, resource),
        element=element,
        tenant=event.tenant,
        system=event.system,
        resource=resource,
        command_id=event.command_id,
        workflow_id=event.workflow_id,
        command_type="",
        declaration_sha256="",
        origin={},
        revision=event.revision,
        sequence=event.sequence,
        normaliser="exact",
        window_seconds=0.0,
        probe={},
        established_at=event.at,
        window_until=event.at,
        state_version=0,
        traceparent=traceparent,
    )
