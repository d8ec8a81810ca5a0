"""The customer's two tables as the adapter sees them: rows, markers, and the statements on them.

The tables belong to the customer (`docs/adapters/database.md` has their DDL); nothing here creates or deletes anything.
A marker keeps the whole receipt of its operation, so that a look-up answers exactly what the lost answer would have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from trueup_common.contracts.adapter import Outcome
from trueup_common.contracts.canonical import canonical, digest, sha256_hex
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.survey import PAGE_MARKS_MAX, Mark, Page
from trueup_common.contracts.task import Operation
from trueup_common.runtime.clock import real_now

ELEMENT: Final = "database.publication"
SOURCE: Final = "database.postgresql"
RECORDED, CANCELLED = "recorded", "cancelled"

READ_MARKER: Final = "SELECT payload_sha256, receipt FROM trueup_effects WHERE operation_id = $1"
WRITE_MARKER: Final = "INSERT INTO trueup_effects (operation_id, payload_sha256, receipt) VALUES ($1, $2, $3::jsonb)"
LIST_MARKERS: Final = (
    "SELECT operation_id, receipt FROM trueup_effects WHERE operation_id > $1 ORDER BY operation_id LIMIT $2"
)
_COLUMNS: Final = "business_key, record, record_id::text AS record_id, status, operation_id, updated_at"
READ_ROWS: Final = f"SELECT {_COLUMNS} FROM publications WHERE business_key = ANY($1::text[])"
HOLD_ROW: Final = f"SELECT {_COLUMNS} FROM publications WHERE business_key = $1 FOR UPDATE"
INSERT_ROW: Final = (
    "INSERT INTO publications (business_key, record, status, operation_id, record_id)"
    " VALUES ($1, $2::jsonb, 'recorded', $3, coalesce($4::uuid, gen_random_uuid()))"
    f" ON CONFLICT (business_key) DO NOTHING RETURNING {_COLUMNS}"
)
"""A record that is brought back ($4) keeps its id: whoever refers to it still finds it."""
RENEW_ROW: Final = (
    "UPDATE publications SET record = $2::jsonb, status = 'recorded', operation_id = $3,"
    " record_id = coalesce($4::uuid, gen_random_uuid()), updated_at = now()"
    f" WHERE business_key = $1 RETURNING {_COLUMNS}"
)
CANCEL_ROW: Final = (
    "UPDATE publications SET status = 'cancelled', updated_at = now()"
    f" WHERE business_key = $1 AND status <> 'cancelled' RETURNING {_COLUMNS}"
)


@dataclass(frozen=True, slots=True)
class Publication:
    """One row."""

    business_key: str
    record_id: str
    record_sha256: str
    status: str
    operation_id: str | None
    version: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """From a row of the table."""
        text = str(row["record"])
        try:
            record_sha256 = digest(json.loads(text))
        except (ValueError, RecursionError):  # an outsider's record that has no canonical form is another record
            record_sha256 = sha256_hex(text.encode("utf-8", "surrogatepass"))
        return cls(
            business_key=row["business_key"],
            record_id=row["record_id"],
            record_sha256=record_sha256,
            status=row["status"],
            operation_id=row["operation_id"],
            version=row["updated_at"].isoformat(),
        )

    @property
    def value(self) -> dict[str, str]:
        """The element's value."""
        return value_of(self.status, self.record_sha256)

    def receipt(self, *, status: str, record_sha256: str) -> dict[str, Any]:
        """The receipt of an operation that brought the row to this. Digests are those of what was asked for."""
        return {
            "record_id": self.record_id,
            "business_key": self.business_key,
            "resource": f"publication/{self.business_key}",
            "status": status,
            "record_sha256": record_sha256,
            "publication": value_of(status, record_sha256),
        }


def value_of(status: str, record_sha256: str) -> dict[str, str]:
    """Status and content of a publication, in the form in which both are compared."""
    return {"status": status, "record_sha256": record_sha256}


@dataclass(frozen=True, slots=True)
class Marker:
    """What one operation left behind, or is about to. `refusal` is set where it must not be written."""

    receipt: dict[str, Any]
    payload_sha256: str
    is_new: bool = False
    refusal: Outcome | None = None

    @property
    def record_id(self) -> str | None:
        """The record it is about."""
        value = self.receipt.get("record_id")
        return value if isinstance(value, str) else None


async def read_marker(connection: Any, operation: Operation) -> Marker | None:
    """The marker of an operation."""
    row = await connection.fetchrow(READ_MARKER, operation.command_id)
    if row is None:
        return None
    receipt = json.loads(row["receipt"])
    return Marker(receipt if isinstance(receipt, dict) else {}, row["payload_sha256"])


async def write_marker(connection: Any, operation: Operation, receipt: dict[str, Any]) -> Marker:
    """The marker of an operation, in the transaction of its effect."""
    text = canonical(receipt).decode()
    await connection.execute(WRITE_MARKER, operation.command_id, operation.payload_sha256, text)
    return Marker(receipt, operation.payload_sha256, is_new=True)


async def list_markers(connection: Any, cursor: str | None) -> Page:
    """The markers after one, in the order of their operations."""
    rows = await connection.fetch(LIST_MARKERS, cursor or "", PAGE_MARKS_MAX)
    marks = []
    for row in rows:
        receipt = json.loads(row["receipt"])
        known = receipt if isinstance(receipt, dict) else {}
        record_id, resource = known.get("record_id"), known.get("resource")
        marks.append(
            Mark(
                operation_id=row["operation_id"],
                external_resource_id=str(record_id or row["operation_id"]),
                resource=resource if isinstance(resource, str) else None,
            )
        )
    return Page(marks=tuple(marks), next_cursor=marks[-1].operation_id if len(marks) == PAGE_MARKS_MAX else None)


def refused(outcome: Outcome) -> Marker:
    """Nothing may be written."""
    return Marker({}, "", refusal=outcome)


async def read_publications(connection: Any, business_keys: list[str]) -> dict[str, Publication]:
    """Rows by business key."""
    rows = await connection.fetch(READ_ROWS, business_keys)
    return {row["business_key"]: Publication.of(row) for row in rows}


def observed(publication: Publication | None) -> Observation:
    """What one authoritative read says about a publication."""
    return Observation(
        element=ELEMENT,
        verdict=ProbeVerdict.MISSING if publication is None else ProbeVerdict.CONFIRMED,
        value=publication.value if publication is not None else None,
        observed_at=real_now(),
        source=SOURCE,
        version=publication.version if publication is not None else None,
        proof_of_access=True,
    )


def doubtful(element: str, reason: str) -> Observation:
    """The read says nothing."""
    return Observation(
        element=element, verdict=ProbeVerdict.UNKNOWN, observed_at=real_now(), source=SOURCE, reason=reason
    )
