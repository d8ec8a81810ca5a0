"""The attempts of an operation, as the journal lists them, and what they prove.

An entry only ever becomes more certain: CONFIRMED is never replaced. An attempt is counted when it is known to have
been sent. What a CONFIRMED of an older attempt proves is never forgotten: it bars every verdict that nothing happened.
"""

from datetime import datetime
from typing import Any, Final

from trueup_common.contracts import standing
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.states import OperationState, ReceiptStatus
from trueup_common.contracts.task import Receipt

DISPATCHED: Final = "DISPATCHED"
ABSENT: Final = "ABSENT"
CONFIRMED: Final = ReceiptStatus.CONFIRMED.value
ENTRIES_MAX: Final = 100

_CERTAINTY: Final = {
    DISPATCHED: 0,
    ReceiptStatus.STALE.value: 1,
    ReceiptStatus.UNKNOWN.value: 2,
    ReceiptStatus.NOT_SENT.value: 3,
    ReceiptStatus.REJECTED.value: 3,
    ABSENT: 3,
    CONFIRMED: 4,
}


def entry(command_id: str, fence: int, state: str, **facts: Any) -> dict[str, Any]:
    """One attempt as listed."""
    return {
        "attempt_id": facts.pop("attempt_id", None) or attempt_id(command_id, fence),
        "fence": fence,
        "state": state,
        "started_at": None,
        "ended_at": None,
        "error_class": None,
        "error_code": None,
        "external_status": None,
        "external_resource_id": None,
        "sent": False,
        **facts,
    }


def _text(moment: datetime | None) -> str | None:
    return rfc3339(moment) if moment is not None else None


def recorded(row: JournalRow, new: dict[str, Any]) -> dict[str, Any]:
    """Columns that change when an entry becomes known: `attempts` and `attempt_count`."""
    kept: list[dict[str, Any]] = []
    count, merged = row.attempt_count, False
    for old in row.attempts:
        if old["attempt_id"] != new["attempt_id"]:
            kept.append(old)
            continue
        merged = True
        surer, other = (new, old) if _CERTAINTY[new["state"]] > _CERTAINTY[old["state"]] else (old, new)
        sent = bool(old["sent"] or new["sent"])
        count += sent and not old["sent"]
        known = {name: value for name, value in surer.items() if value is not None}
        kept.append({**surer, **other, **known, "sent": sent})
    if not merged:
        kept.append(new)
        count += bool(new["sent"])
    if len(kept) > ENTRIES_MAX:  # an outage may leave many attempts that sent nothing; those that prove something stay
        spare = next((item for item in kept if not item["sent"] and item["state"] != CONFIRMED), None)
        if spare is not None:
            kept.remove(spare)
    changes: dict[str, Any] = {"attempts": kept, "attempt_count": count}
    if row.resolution_type is not None and new["state"] == CONFIRMED and not _confirmed(row, new["attempt_id"]):
        changes["resolution_type"] = None  # what a person settled did not know of this
    return changes


def _confirmed(row: JournalRow, attempt: str) -> bool:
    return any(item["attempt_id"] == attempt and item["state"] == CONFIRMED for item in row.attempts)


def dispatched(row: JournalRow, fence: int) -> dict[str, Any]:
    """Columns that change when an attempt is dispatched."""
    return recorded(row, entry(row.command_id, fence, DISPATCHED))


def worker_of(row: JournalRow) -> str | None:
    """The process that the newest attempt ran in, as far as it is known: all its incarnations are one."""
    owner = row.lease_owner or ""  # until its first beat the lease is held for the adapter, whoever that is
    beaten = owner if "#" in owner else None
    named = next((item["worker"] for item in reversed(row.attempts) if item.get("worker")), beaten)
    return named.partition("#")[0] if named else None


def unsent(row: JournalRow, fence: int) -> dict[str, Any]:
    """Columns that change when an attempt got no grant: nothing of it was or will be sent."""
    return recorded(row, entry(row.command_id, fence, ReceiptStatus.NOT_SENT.value))


def received(row: JournalRow, receipt: Receipt) -> dict[str, Any]:
    """Columns that change when a receipt arrives, whatever its fence."""
    new = entry(
        row.command_id,
        receipt.fence,
        receipt.status.value,
        attempt_id=receipt.attempt_id,
        started_at=_text(receipt.started_at),
        ended_at=_text(receipt.ended_at),
        error_class=receipt.error_class and receipt.error_class.value,
        error_code=receipt.error_code,
        external_status=receipt.external_status,
        external_resource_id=receipt.external_resource_id,
        sent=receipt.sent_at is not None,
    )
    if receipt.worker is not None and receipt.status is not ReceiptStatus.CONFIRMED:
        new["worker"] = receipt.worker  # what went wrong may have its sender in common with others
    if _overslept(receipt):
        new["overslept"] = True
    return recorded(row, new)


def _overslept(receipt: Receipt) -> bool:
    """True where the attempt itself says that it was under way later than it could be: absence proved nothing."""
    promised = receipt.late_until
    is_own_word = receipt.status is ReceiptStatus.UNKNOWN and receipt.sent_at is not None and not receipt.found
    return is_own_word and promised is not None and receipt.ended_at > promised


def newest_fence(row: JournalRow) -> int:
    """The fence of the newest attempt; a settlement may have raised the operation's own beyond it."""
    return max((item["fence"] for item in row.attempts), default=row.fence)


def of_fence(row: JournalRow, fence: int) -> dict[str, Any] | None:
    """The entry of one attempt."""
    wanted = attempt_id(row.command_id, fence)
    return next((item for item in row.attempts if item["attempt_id"] == wanted), None)


def progressed(row: JournalRow, progress: int, at: datetime, *, stalled: bool) -> dict[str, Any]:
    """Columns that change when the newest attempt reports how far it is."""
    wanted = attempt_id(row.command_id, row.fence)
    news = {"progress": progress, "progress_at": _text(at), "stalled": stalled}
    return {"attempts": [{**item, **news} if item["attempt_id"] == wanted else item for item in row.attempts]}


def stalled(row: JournalRow) -> bool:
    """True while the newest attempt runs without getting on."""
    return row.state is OperationState.RUNNING and any(
        item.get("stalled") and item["fence"] == row.fence for item in row.attempts
    )


barred: Final = standing.barred
"""True where an attempt is known to have landed although the operation did not succeed, and nobody settled it."""


def duplicated(row: JournalRow) -> bool:
    """True where attempts landed as different objects, or may have: the highest severity there is.

    One that was held up inside its last write, where no fence can stop it, may have acted beside the one that
    succeeded.
    """
    if row.state is OperationState.SUCCESS and any(
        item.get("overslept") and item["state"] != CONFIRMED for item in row.attempts
    ):
        return True
    landed = {
        item["external_resource_id"]
        for item in row.attempts
        if item["state"] == CONFIRMED and item["external_resource_id"] is not None
    }
    return len(landed) > 1
