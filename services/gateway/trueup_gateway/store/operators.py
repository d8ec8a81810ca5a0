"""SQL of operator commands: what they are about, who is at work on it, and how each ended.

Of what one act is at work on alone, a unique index knows: of two that come at once, one finds the other.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from trueup_common.contracts.events import OperatorCommandEnded
from trueup_common.runtime.mail import SqlTransaction
from trueup_common.runtime.rows import Rows
from trueup_gateway.core.person_records import OperatorCommandRow
from trueup_gateway.core.records import CapabilityRow, MandateRow
from trueup_gateway.core.view_records import CaseView, CommandView, ElementView, ExceptionView, RepairView
from trueup_gateway.store.reads import Reads
from trueup_gateway.store.rows import (
    CAPABILITIES,
    CASES,
    CASES_SOURCE,
    COMMANDS,
    COMMANDS_SOURCE,
    ELEMENTS,
    EXCEPTIONS,
    MANDATES,
    REPAIRS,
    Page,
    Reader,
    before,
)

OPERATOR_COMMANDS: Final = Rows("gateway.operator_command", OperatorCommandRow, key=("operator_command_id",))

_REVOKED: Final = """
SELECT m.mandate_id FROM gateway.mandate m
LEFT JOIN gateway.decision d USING (decision_id) LEFT JOIN gateway.capability c ON c.capability_id = m.capability_id
WHERE m.mandate_id = ANY($1::text[])
  AND (m.revoked_at IS NOT NULL OR d.revoked_at IS NOT NULL OR c.revoked_at IS NOT NULL)
"""
_REPLACED: Final = """
SELECT q.command_id FROM unnest($1::text[], $2::text[], $3::text[]) AS q(tenant, identity, command_id)
JOIN gateway.edge e ON e.tenant = q.tenant AND e.identity = q.identity AND e.command_id <> q.command_id
"""
_RENEW: Final = """
UPDATE gateway.mandate SET expires_at = $2, renewed_by = $3 WHERE mandate_id = $1 AND expires_at < $2
RETURNING mandate_id
"""
_OFFERED: Final = """
SELECT envelope->'repair' AS repair FROM gateway.exception_view
WHERE tenant = $1 AND status = 'open' AND kind = 'state_drift' AND envelope->'repair'->>'supersedes' = $2
ORDER BY opened_at LIMIT 50
"""
_LET_RUN: Final = """
UPDATE gateway.mandate SET documents = (documents::jsonb || to_jsonb(ARRAY[$2::text]))::json
WHERE mandate_id = $1 AND document_sha256 <> $2 AND NOT documents::jsonb ? $2
"""
_END: Final = """
UPDATE gateway.operator_command
SET state = $3, detail = $4, allowed_actions = $5, result = $6, ended_at = $7
WHERE operator_command_id = $1 AND tenant = $2 AND state = 'ACCEPTED'
"""
_AT_WORK: Final = """
WHERE operator_command_id = ANY(ARRAY(
  SELECT operator_command_id FROM gateway.operator_command
  WHERE tenant = $1 AND state = 'ACCEPTED' AND holds_command = $2
  UNION ALL SELECT operator_command_id FROM gateway.operator_command
  WHERE tenant = $1 AND state = 'ACCEPTED' AND holds_exception = $3))
ORDER BY created_at LIMIT 1
"""
_ABOUT: Final = "operator_command_id = ANY(ARRAY({}))".format(
    " UNION ".join(
        f"SELECT operator_command_id FROM gateway.operator_command WHERE {column} = $3"
        for column in ("target_id", "workflow_id", "command_id", "exception_id")
    )
)
"""Each id by its own index; one condition with OR would read all acts of the tenant."""
_HEARD: Final = """
SELECT event->>'type' FROM gateway.history_view WHERE workflow_id = $1
  AND (event->>'causation_id' = $2 OR event->'payload'->>'operator_command_id' = $2) ORDER BY seq LIMIT 1
"""
_NEWEST_ELEMENT: Final = (
    "WHERE tenant = $1 AND system = $2 AND resource = $3 AND element = $4 AND NOT retired "
    "ORDER BY version DESC, observed_at DESC NULLS LAST LIMIT 1"
)


class OperatorSql(SqlTransaction):
    """What an act is about, and the act."""

    async def exception_of(self, tenant: str, exception_id: str) -> ExceptionView | None:
        """One exception of the tenant."""
        tail = "WHERE exception_id = $1 AND tenant = $2"
        return next(iter(await EXCEPTIONS.select(self.connection, tail, exception_id, tenant)), None)

    async def repair_of(self, tenant: str, repair_id: str) -> RepairView | None:
        """One repair of the tenant."""
        tail = "WHERE repair_id = $1 AND tenant = $2"
        return next(iter(await REPAIRS.select(self.connection, tail, repair_id, tenant)), None)

    async def command_of(self, tenant: str, command_id: str) -> CommandView | None:
        """One command of the tenant."""
        rows = await self.connection.fetch(
            f"SELECT * FROM {COMMANDS_SOURCE} AS c WHERE command_id = $1 AND tenant = $2", command_id, tenant
        )
        return next(iter(COMMANDS.read(rows)), None)

    async def commands_of(self, workflow_id: str) -> list[CommandView]:
        """All commands of a case."""
        rows = await self.connection.fetch(
            f"SELECT * FROM {COMMANDS_SOURCE} AS c WHERE workflow_id = $1 ORDER BY created_at LIMIT 500", workflow_id
        )
        return COMMANDS.read(rows)

    async def authority_revoked(self, mandate_id: str) -> bool:
        """True where mandate, decision or capability behind a case was revoked."""
        return bool(await self.connection.fetch(_REVOKED, [mandate_id]))

    async def replaced(self, identities: Sequence[tuple[str, str, str]]) -> set[str]:
        """The commands whose business identity, given as (tenant, identity, command), another one has by now."""
        if not identities:
            return set()
        rows = await self.connection.fetch(_REPLACED, *map(list, zip(*identities, strict=True)))
        return {row["command_id"] for row in rows}

    async def renew_mandate(self, mandate_id: str, until: datetime, by: str) -> bool:
        """Let a mandate live longer; False where it lives that long already."""
        return await self.connection.fetchval(_RENEW, mandate_id, until, by) is not None

    async def newest_element(self, tenant: str, system: str, resource: str, element: str) -> ElementView | None:
        """One state element as its newest owner has it."""
        found = await ELEMENTS.select(self.connection, _NEWEST_ELEMENT, tenant, system, resource, element)
        return next(iter(found), None)

    async def repairs_offered(self, tenant: str, command_id: str) -> list[dict[str, Any]]:
        """The repair commands that open exceptions offer in the place of a command."""
        rows = await self.connection.fetch(_OFFERED, tenant, command_id)
        return [offer for row in rows if isinstance(offer := row["repair"], dict)]

    async def drifts_offering(self, tenant: str, command_id: str) -> list[ExceptionView]:
        """The open drifts that offer a repair command in the place of a command."""
        return await EXCEPTIONS.select(
            self.connection,
            "WHERE tenant = $1 AND status = 'open' AND kind = 'state_drift' "
            "AND envelope->'repair'->>'supersedes' = $2 ORDER BY opened_at LIMIT 50",
            tenant,
            command_id,
        )

    async def elements_of(self, workflow_id: str) -> list[ElementView]:
        """The elements that a case established and that are still desired."""
        tail = "WHERE workflow_id = $1 AND NOT retired ORDER BY system, resource, element LIMIT 500"
        return await ELEMENTS.select(self.connection, tail, workflow_id)

    async def commands_named(self, tenant: str, command_ids: Sequence[str]) -> list[CommandView]:
        """Commands of the tenant by id, whichever case they belong to."""
        if not command_ids:
            return []
        rows = await self.connection.fetch(
            f"SELECT * FROM {COMMANDS_SOURCE} AS c WHERE command_id = ANY($1::text[]) AND tenant = $2",
            list(command_ids),
            tenant,
        )
        return COMMANDS.read(rows)

    async def mandate(self, mandate_id: str) -> MandateRow | None:
        """One mandate, locked."""
        tail = "WHERE mandate_id = $1 FOR UPDATE"
        return next(iter(await MANDATES.select(self.connection, tail, mandate_id)), None)

    async def let_run(self, mandate_id: str, sha256: str) -> None:
        """Let a case go on by a corrected version of its document, under the mandate that it has."""
        await self.connection.execute(_LET_RUN, mandate_id, sha256)

    async def at_work(self, tenant: str, command_id: str | None, exception_id: str | None) -> OperatorCommandRow | None:
        """The act that is at work on this operation or exception alone."""
        found = await OPERATOR_COMMANDS.select(self.connection, _AT_WORK, tenant, command_id, exception_id)
        return next(iter(found), None)

    async def save_operator_command(self, row: OperatorCommandRow) -> bool:
        """Keep an act; False where another one is at work on the same since a moment ago."""
        return bool(await OPERATOR_COMMANDS.insert_new(self.connection, [row]))

    async def end_operator_commands(self, ended: Sequence[OperatorCommandEnded]) -> None:
        """Keep how acts ended; the first word on each counts."""
        for item in sorted(ended, key=lambda item: item.operator_command_id):
            await self.connection.execute(
                _END,
                item.operator_command_id,
                item.tenant,
                item.state,
                item.detail,
                list(item.allowed_actions),
                item.result,
                item.at,
            )


class OperatorReads(Reads):
    """Reads of operator commands, and of what the table of allowed actions must know."""

    async def operator_command(self, reader: Reader, operator_command_id: str) -> OperatorCommandRow | None:
        """One act."""
        async with self._connection() as connection:
            tail = "WHERE operator_command_id = $1 AND tenant = $2 AND ($3::text IS NULL OR actor = $3)"
            rows = await OPERATOR_COMMANDS.select(connection, tail, operator_command_id, reader.tenant, reader.subject)
        return next(iter(rows), None)

    async def capability(self, reader: Reader, capability_id: str) -> CapabilityRow | None:
        """One capability."""
        async with self._connection() as connection:
            tail = "WHERE capability_id = $1 AND tenant = $2 AND ($3::text IS NULL OR subject = $3)"
            rows = await CAPABILITIES.select(connection, tail, capability_id, reader.tenant, reader.subject)
        return next(iter(rows), None)

    async def operator_commands(
        self, reader: Reader, page: Page, *, target: str | None, state: str | None
    ) -> list[OperatorCommandRow]:
        """A page of acts, newest first; `target` is any id that an act is about."""
        async with self._search() as connection:
            return await OPERATOR_COMMANDS.select(
                connection,
                "WHERE tenant = $1 AND ($2::text IS NULL OR actor = $2) "
                f"AND ($3::text IS NULL OR {_ABOUT}) "
                "AND ($4::text IS NULL OR state = $4) "
                "AND ($5::timestamptz IS NULL OR (created_at, operator_command_id) < ($5, $6)) "
                "ORDER BY created_at DESC, operator_command_id DESC LIMIT $7",
                reader.tenant,
                reader.subject,
                target,
                state,
                *before(page),
                page.limit,
            )

    async def heard(self, workflow_id: str, operator_command_id: str) -> str | None:
        """How the history of a case took an act up: the type of the first event that names it."""
        async with self._connection() as connection:
            kind: str | None = await connection.fetchval(_HEARD, workflow_id, operator_command_id)
        return kind

    async def grounds(
        self, workflow_ids: Sequence[str], command_ids: Sequence[str]
    ) -> tuple[Mapping[str, CaseView], Mapping[str, CommandView]]:
        """Cases and commands by id."""
        async with self._connection() as connection:
            cases = await connection.fetch(
                f"SELECT * FROM {CASES_SOURCE} AS c WHERE workflow_id = ANY($1::text[])", sorted(set(workflow_ids))
            )
            commands = await connection.fetch(
                f"SELECT * FROM {COMMANDS_SOURCE} AS c WHERE command_id = ANY($1::text[])", sorted(set(command_ids))
            )
        found = {view.workflow_id: view for view in CASES.read(cases)}
        return found, {view.command_id: view for view in COMMANDS.read(commands)}

    async def exceptions_of(self, tenant: str, workflow_id: str) -> list[ExceptionView]:
        """Open exceptions of one case, oldest first."""
        async with self._connection() as connection:
            tail = "WHERE tenant = $1 AND workflow_id = $2 AND status = 'open' ORDER BY opened_at LIMIT 200"
            return await EXCEPTIONS.select(connection, tail, tenant, workflow_id)

    async def replaced(self, identities: Sequence[tuple[str, str, str]]) -> set[str]:
        """The commands whose business identity, given as (tenant, identity, command), another one has by now."""
        if not identities:
            return set()
        async with self._connection() as connection:
            rows = await connection.fetch(_REPLACED, *map(list, zip(*identities, strict=True)))
        return {row["command_id"] for row in rows}

    async def revoked_mandates(self, mandate_ids: Sequence[str]) -> set[str]:
        """Those behind which authority was taken back."""
        if not mandate_ids:
            return set()
        async with self._connection() as connection:
            rows = await connection.fetch(_REVOKED, sorted(set(mandate_ids)))
        return {row["mandate_id"] for row in rows}
