"""The hash chain of a case: tampering with any event, or leaving one out, shows.

`hash` is the SHA-256 of the canonical event without `hash` and `payload`; it contains `payload_sha256`, so that a
tombstone in place of a payload keeps the chain.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.canonical import digest, digest_of_plain
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.journal import HistoryEvent
from trueup_common.contracts.shape import rfc3339

GENESIS: Final = "0" * 64


def _hash(fields: dict[str, Any]) -> str:
    return digest({key: value for key, value in fields.items() if key not in ("hash", "payload")})


def hash_of(event: HistoryEvent) -> str:
    """The hash that an event must carry."""
    fields = {name: getattr(event, name) for name in HistoryEvent.model_fields}
    fields["occurred_at"] = rfc3339(event.occurred_at)
    fields["recorded_at"] = rfc3339(event.recorded_at)
    return _hash(fields)


def append(
    *,
    workflow_id: str,
    tenant: str,
    seq: int,
    prev_hash: str,
    type: str,  # noqa: A002 - the field's name in the contract
    occurred_at: datetime,
    recorded_at: datetime,
    actor: str,
    payload: dict[str, Any],
    causation_id: str | None = None,
    correlation_id: str | None = None,
    trace_id: str | None = None,
) -> HistoryEvent:
    """The next event of a chain whose last event has `seq - 1` and `prev_hash`."""
    occurred = rfc3339(occurred_at)
    fields: dict[str, Any] = {
        "workflow_id": workflow_id,
        "tenant": tenant,
        "seq": seq,
        "event_id": derived_id("evt", workflow_id, seq),
        "type": type,
        "schema_version": 1,
        "occurred_at": occurred,
        "recorded_at": occurred if recorded_at is occurred_at else rfc3339(recorded_at),
        "actor": actor,
        "payload_sha256": digest(payload),
        "causation_id": causation_id,
        "correlation_id": correlation_id,
        "trace_id": trace_id,
        "prev_hash": prev_hash,
    }
    fields["hash"] = digest_of_plain(fields)
    fields["payload"], fields["occurred_at"], fields["recorded_at"] = payload, occurred_at, recorded_at
    return HistoryEvent.trusted(**fields)


def verify(events: Iterable[HistoryEvent], *, prev_hash: str = GENESIS, first_seq: int = 1) -> str | None:
    """None where the chain holds; else what is wrong, naming the sequence number."""
    expected = first_seq
    for event in events:
        if event.seq != expected:
            return f"event {expected} is missing (found {event.seq})"
        if event.prev_hash != prev_hash:
            return f"event {event.seq} does not follow event {event.seq - 1}"
        if event.payload_sha256 != digest(event.payload) and "tombstone" not in event.payload:
            return f"the payload of event {event.seq} was changed"
        if event.hash != hash_of(event):
            return f"event {event.seq} was changed"
        prev_hash, expected = event.hash, expected + 1
    return None
