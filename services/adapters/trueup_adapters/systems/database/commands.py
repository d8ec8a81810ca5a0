"""The command types of a customer's database: declaration, perform and find of each together, so adding one touches
this file.

The marker row is written in the transaction of the record, so it is there exactly if the effect is. A business key
belongs to the operation that recorded it until that record is cancelled; nothing of others is overwritten, and nothing
is ever deleted.
"""

import asyncio
from collections.abc import Mapping as MappingOf
from collections.abc import Sequence
from typing import Any, Final, Protocol

from trueup_adapters.systems.database.link import TRY_LOCK, Failed, Link, Place, ReadFailed, lock_key
from trueup_adapters.systems.database.publications import (
    CANCEL_ROW,
    CANCELLED,
    ELEMENT,
    HOLD_ROW,
    INSERT_ROW,
    RECORDED,
    RENEW_ROW,
    Marker,
    Publication,
    doubtful,
    list_markers,
    observed,
    read_marker,
    read_publications,
    refused,
    write_marker,
)
from trueup_common.contracts.adapter import Call, Connection, EndsWith, Outcome, confirmed, rejected, unknown
from trueup_common.contracts.canonical import canonical, digest
from trueup_common.contracts.clean import clean
from trueup_common.contracts.declaration import CommandDeclaration, Establishes, Mapping, Probe, Repair
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import EffectClass, ErrorClass, Findability, FindVerdict, RiskLevel
from trueup_common.contracts.survey import Page
from trueup_common.contracts.task import ProbeElement

SYSTEM: Final = "database"
READ_BACK_PAUSES_SECONDS: Final = (0.0, 0.15, 0.6)
_B, _P = ErrorClass.BUSINESS, ErrorClass.PERMANENT
_TIMES: Final[dict[str, float]] = {
    "timeout_seconds": 10.0,
    "start_window_seconds": 10.0,
    "late_window_seconds": 1.0,
}
"""The late window is short because no time proves an absence here: the operation's lock does."""

_KEY: Final = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[^\\x00-\\x1f\\x7f]+$"}
_ON_RECORD: Final = "publication/{/payload/business_key}"
_RECORD_ID: Final = {
    "type": "string",
    "pattern": "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$",
}
_RECEIPT: Final = {
    "type": "object",
    "required": ["record_id", "business_key", "status"],
    "properties": {
        "record_id": _RECORD_ID,
        "business_key": _KEY,
        "resource": {"type": "string"},
        "status": {"enum": [RECORDED, CANCELLED]},
        "record_sha256": {"type": "string"},
        "publication": {"type": "object"},
    },
}
_ESTABLISHES: Final = Establishes(
    element=ELEMENT,
    resource=ValueFrom(pointer="/receipt/resource"),
    value=ValueFrom(pointer="/receipt/publication"),
    window_seconds=0.0,
    probe=Probe(kind=ELEMENT, params={"business_key": ValueFrom(pointer="/payload/business_key")}),
)


def _payload(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


class Command(Protocol):
    """One command type."""

    declaration: CommandDeclaration

    async def write(self, connection: Any, call: Call) -> Marker:
        """The statements of the effect and its marker, inside a transaction that somebody else commits."""
        ...

    def expected(self, call: Call, marker: Marker) -> dict[str, str]:
        """The element's value right after the effect."""
        ...


class RecordPublication:
    """`database.record_publication`: one record per business key, until it is cancelled."""

    declaration = CommandDeclaration(
        type="database.record_publication",
        system=SYSTEM,
        title="Record a publication",
        description="Writes the record of a publication into the customer's database, once per business key.",
        permission="publication:record",
        effect_class=EffectClass.COMPENSABLE,
        payload_schema={
            **_payload(business_key=_KEY, record={"type": "object", "maxProperties": 200}, restores=_RECORD_ID),
            "required": ["business_key", "record"],
        },
        receipt_schema=_RECEIPT,
        acts_on=_ON_RECORD,
        identity=("/payload/business_key",),
        findability=Findability.NATIVE_KEY,
        **_TIMES,
        find_ladder=(Findability.NATIVE_KEY,),
        expected_version="none",
        success_condition="record and marker are committed together and the record reads back under its business key",
        establishes=(_ESTABLISHES,),
        compensation=Mapping(
            command_type="database.cancel_publication",
            payload={
                "business_key": ValueFrom(pointer="/payload/business_key"),
                "record_id": ValueFrom(pointer="/receipt/record_id"),
            },
            verification="the record reads back as cancelled",
        ),
        repair=Repair(
            command_type="database.record_publication",
            payload={
                "business_key": ValueFrom(pointer="/payload/business_key"),
                "record": ValueFrom(pointer="/payload/record"),
                "restores": ValueFrom(pointer="/receipt/record_id"),
            },
            verification="the record reads back under its business key, with the same id and the same content",
        ),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=10,
    )

    async def write(self, connection: Any, call: Call) -> Marker:
        """Insert, or take over a cancelled record; refuse what belongs to another operation.

        `restores` names the record that an outsider deleted, cancelled or changed: exactly that one is brought back.
        """
        operation = call.operation
        business_key, record = operation.payload["business_key"], operation.payload["record"]
        restored: str | None = operation.payload.get("restores")
        values = (business_key, canonical(record).decode(), operation.command_id, restored)
        row = await connection.fetchrow(INSERT_ROW, *values)
        if row is None:
            held = await connection.fetchrow(HOLD_ROW, business_key)
            refusal = _taken(Publication.of(held), operation.command_id, restored) if held is not None else _vanished()
            if refusal is not None:
                return refused(refusal)
            row = await connection.fetchrow(RENEW_ROW, *values)
        receipt = Publication.of(row).receipt(status=RECORDED, record_sha256=digest(record))
        return await write_marker(connection, operation, receipt)

    def expected(self, call: Call, marker: Marker) -> dict[str, str]:
        """What was asked for, whatever the database made of it."""
        return {"status": RECORDED, "record_sha256": digest(call.operation.payload["record"])}


def _taken(publication: Publication, command_id: str, restored: str | None) -> Outcome | None:
    """Why the record under the key cannot be replaced; None where it was cancelled, or is the one to be restored."""
    if restored is not None and publication.record_id != restored:
        return rejected(_B, "foreign_object", f"the key holds record {publication.record_id}, not {restored}")
    if publication.status == CANCELLED or restored is not None:
        return None
    if publication.operation_id == command_id:
        return unknown("done_without_marker", f"record {publication.record_id} is this operation's, its marker is gone")
    if publication.operation_id is None:
        return rejected(_B, "foreign_object", f"record {publication.record_id} was made by somebody else")
    return rejected(_B, "identity_in_use", f"record {publication.record_id} belongs to {publication.operation_id}")


def _vanished() -> Outcome:
    return rejected(ErrorClass.TRANSIENT, "rolled_back", "the record that held the key vanished meanwhile")


class CancelPublication:
    """`database.cancel_publication`: marks one record as cancelled; of a cancelled one only the marker is new."""

    declaration = CommandDeclaration(
        type="database.cancel_publication",
        system=SYSTEM,
        title="Cancel a publication record",
        description="Marks the record of a publication as cancelled. Nothing is deleted.",
        permission="publication:cancel",
        effect_class=EffectClass.RETRYABLE,
        payload_schema=_payload(business_key=_KEY, record_id=_RECORD_ID),
        receipt_schema=_RECEIPT,
        acts_on=_ON_RECORD,
        findability=Findability.NATIVE_KEY,
        **_TIMES,
        find_ladder=(Findability.NATIVE_KEY,),
        expected_version="none",
        success_condition="mark and marker are committed together and the record reads back as cancelled",
        establishes=(_ESTABLISHES,),
        forward_recovery="retry",
        risk=RiskLevel.LOW,
        blast_radius=10,
    )

    async def write(self, connection: Any, call: Call) -> Marker:
        """Exactly the record that the caller means."""
        business_key, record_id = call.operation.payload["business_key"], call.operation.payload["record_id"]
        row = await connection.fetchrow(HOLD_ROW, business_key)
        if row is None:
            return refused(rejected(_P, "not_found", f"no record under {business_key!r}"))
        publication = Publication.of(row)
        if publication.record_id != record_id:
            held = f"{business_key!r} holds record {publication.record_id}, not {record_id}"
            return refused(rejected(_B, "foreign_object", held))
        await connection.fetchrow(CANCEL_ROW, business_key)
        receipt = publication.receipt(status=CANCELLED, record_sha256=publication.record_sha256)
        return await write_marker(connection, call.operation, receipt)

    def expected(self, call: Call, marker: Marker) -> dict[str, str]:
        """The same record, cancelled."""
        return {"status": CANCELLED, "record_sha256": str(marker.receipt.get("record_sha256"))}


COMMANDS: Final[tuple[Command, ...]] = (RecordPublication(), CancelPublication())
_BY_TYPE: Final = {command.declaration.type: command for command in COMMANDS}


class DatabaseTarget:
    """One customer's database, with the account that writes and the account that looks."""

    def __init__(self, connection: Connection) -> None:
        settings = connection.settings
        self._writer = Link(connection, "dsn", settings.get("dsn"))
        looking = "dsn" if settings.get("read_dsn") is None else "read_dsn"
        self._reader = Link(connection, looking, settings.get(looking))
        self._is_one_account = looking == "dsn"

    async def perform(self, call: Call) -> Outcome:
        """Record and marker in one transaction, then a read-back by the reading account."""
        operation, command = call.operation, _BY_TYPE[call.operation.command_type]
        if (refusal := _unusable(operation.payload)) is not None:
            return refusal

        async def work(connection: Any) -> Marker:
            present = await read_marker(connection, operation)
            if present is None:
                return await command.write(connection, call)
            if present.payload_sha256 != operation.payload_sha256:
                return refused(unknown("marker_differs", "this operation's marker is about another payload"))
            return present

        try:
            marker = await self._writer.write(call, work)
        except Failed as failure:
            return failure.outcome
        return marker.refusal or await self._verified(call, command, marker)

    async def _verified(self, call: Call, command: Command, marker: Marker) -> Outcome:
        business_key, reason, seen = call.operation.payload["business_key"], "read_back_failed", None
        for pause in READ_BACK_PAUSES_SECONDS:
            if pause:
                await asyncio.sleep(pause)
            try:
                found = await self._looked(lambda session: read_publications(session, [business_key]))
            except ReadFailed as failure:
                reason = failure.reason
                continue
            seen = found.get(business_key)
            break
        if seen is None:
            return unknown("read_back_failed", f"the record under {business_key!r} cannot be read back: {reason}")
        if seen.record_id != marker.record_id or seen.value != command.expected(call, marker):
            return unknown("verification_failed", f"the record under {business_key!r} reads back as {seen.status}")
        return confirmed(
            marker.receipt,
            external_resource_id=seen.record_id,
            external_version=seen.version,
            external_status="COMMIT",
            observations=(observed(seen),),
        )

    async def find(self, call: Call) -> Finding:
        """By the marker, and by the lock that a transaction under way still holds."""
        operation = call.operation
        business_key = operation.payload["business_key"]

        async def work(session: Any) -> tuple[bool, Marker | None, Publication | None]:
            # The lock first: a marker that a transaction commits before it lets go of the lock is seen after it.
            is_over = await session.fetchval(TRY_LOCK, lock_key(operation.command_id))
            marker = await read_marker(session, operation)
            return is_over, marker, (await read_publications(session, [business_key])).get(business_key)

        try:
            is_over, marker, publication = await self._looked(work)
        except ReadFailed as failure:
            return Finding(verdict=FindVerdict.UNKNOWN, reason=failure.reason)
        if marker is not None:
            return _found(call, marker, publication)
        if not is_over:
            return Finding(verdict=FindVerdict.UNKNOWN, reason="in_flight", proof_of_access=True)
        if publication is not None and publication.operation_id == operation.command_id and _records(call):
            return Finding(verdict=FindVerdict.AMBIGUOUS, reason="done_without_marker", proof_of_access=True)
        return Finding(verdict=FindVerdict.MISSING, proof_of_access=True, evidence=Findability.NATIVE_KEY.value)

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Publications by their business keys, all in one read."""
        keys = [item.params.get("business_key") if item.element == ELEMENT else None for item in elements]
        wanted = sorted({key for key in keys if isinstance(key, str) and clean(key) == key})
        try:
            found = await self._looked(lambda session: read_publications(session, wanted)) if wanted else {}
        except ReadFailed as failure:
            return [doubtful(item.element, failure.reason) for item in elements]
        return [
            observed(found.get(key)) if isinstance(key, str) and key in wanted else doubtful(item.element, "unreadable")
            for item, key in zip(elements, keys, strict=True)
        ]

    async def survey(self, cursor: str | None, params: MappingOf[str, Any]) -> Page:
        """Markers in the order of their operations. Raises EndsWith."""
        try:
            found: Page = await self._looked(lambda session: list_markers(session, cursor))
        except ReadFailed as failure:
            raise EndsWith(unknown(failure.reason)) from failure
        return found

    async def _looked(self, work: Any) -> Any:
        """One read by the reading account, in the very tables that the writing account writes. Raises ReadFailed."""

        async def placed(session: Any, place: Place) -> Any:
            if not self._is_one_account:
                written = self._writer.place or await self._writer.read(_where)
                if written != place:
                    raise ReadFailed("another_database")
            return await work(session)

        return await self._reader.read(placed)

    async def close(self) -> None:
        """Release connections."""
        await self._writer.close()
        await self._reader.close()


async def _where(_session: Any, place: Place) -> Place:
    return place


def _records(call: Call) -> bool:
    return call.operation.command_type == RecordPublication.declaration.type


def _unusable(payload: Any) -> Outcome | None:
    """Text or numbers that no jsonb takes: refused before anything is sent."""
    try:
        is_storable = clean(payload) == payload
        canonical(payload)
    except ValueError as error:
        return rejected(_P, "data_unusable", str(error))
    if not is_storable:
        return rejected(_P, "data_unusable", "PostgreSQL cannot store NUL, lone surrogates, NaN or such depth")
    return None


def _found(call: Call, marker: Marker, publication: Publication | None) -> Finding:
    if marker.payload_sha256 != call.operation.payload_sha256 or marker.record_id is None:
        return Finding(verdict=FindVerdict.AMBIGUOUS, reason="marker_differs", proof_of_access=True)
    return Finding(
        verdict=FindVerdict.CONFIRMED,
        proof_of_access=True,
        evidence=Findability.NATIVE_KEY.value,
        candidates=1,
        result=marker.receipt,
        external_resource_id=marker.record_id,
        external_version=publication.version if publication is not None else None,
        observations=(observed(publication),),
    )


class DatabaseAdapter:
    """The entry point."""

    system = SYSTEM
    declarations = tuple(command.declaration for command in COMMANDS)
    settings = frozenset({"dsn", "read_dsn"})

    def open(self, connection: Connection) -> DatabaseTarget:
        """A target for one connection: dsn, and optionally read_dsn."""
        return DatabaseTarget(connection)
