"""What changes of views leave behind for those who count: whose numbers changed, and what was seen of late writers."""

from collections.abc import Iterable
from typing import Final

from trueup_common.contracts.states import ReceiptStatus
from trueup_gateway.core.anomalies import STALE_WORKER
from trueup_gateway.core.measures import Subject
from trueup_gateway.core.number_records import SightingRow
from trueup_gateway.core.projection import CaseTold
from trueup_gateway.core.view_records import CaseView, CommandView, ExceptionView

CohortMark = tuple[str, str, str]
"""(tenant, subject, minute) of a cohort that must be counted again (`core.measures`)."""

LATE_RECEIPT: Final = "OlderReceiptReceived"
"""The event by which a case takes note of an attempt that had lost its fence."""
_OPERATION, _CASE, _EXCEPTION = Subject.OPERATION.value, Subject.CASE.value, Subject.EXCEPTION.value
_WROTE_NOTHING: Final = frozenset({ReceiptStatus.NOT_SENT.value, ReceiptStatus.STALE.value})


def cohort_marks(
    commands: Iterable[CommandView], cases: Iterable[CaseView], exceptions: Iterable[ExceptionView]
) -> set[CohortMark]:
    """Whose numbers change with these views. The first sixteen characters of an instant are its minute."""
    marks = {(view.tenant, _OPERATION, str(view.created_at)[:16]) for view in commands}
    marks |= {(view.tenant, _CASE, str(view.created_at)[:16]) for view in cases}
    marks |= {(view.tenant, _EXCEPTION, str(view.opened_at)[:16]) for view in exceptions}
    return marks


def late_writes(changes: Iterable[CaseTold]) -> list[SightingRow]:
    """Effects of attempts that had lost their fence, each once however often it is told."""
    found = {
        (event["workflow_id"], event["seq"]): SightingRow.trusted(
            tenant=event["tenant"],
            kind=STALE_WORKER,
            actor=event["actor"],
            at=event["recorded_at"],
            name=f"{event['workflow_id']}:{event['seq']}",
            count=1,
            about=event["workflow_id"],
        )
        for change in changes
        for event in change.history
        if event["type"] == LATE_RECEIPT and event["payload"].get("status") not in _WROTE_NOTHING
    }
    return list(found.values())
