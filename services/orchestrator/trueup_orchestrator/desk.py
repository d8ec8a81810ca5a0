"""The desk: what all handlers of this service share. Load cases, ask governance, admit what waits, store decisions.

It awaits nothing but the transaction.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.journal import HistoryEvent, InstanceRow, JournalRow, ObligationRow
from trueup_common.contracts.states import OperationState
from trueup_common.runtime.ports import Moment
from trueup_orchestrator.core.case import Authority, Case, Terms
from trueup_orchestrator.core.dispatch import Pair, Waiting, choose, free, quotas
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant, dispatch
from trueup_orchestrator.core.obligations import may_owe
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.store import OrchestratorTransaction
from trueup_orchestrator.windows import Windows

log = logging.getLogger("trueup.orchestrator")

ADMIT_MAX: Final = 400
"""Operations dispatched in one transaction, at most."""


class Declarations(Protocol):
    """The catalog, as far as this service needs it."""

    def declaration(self, sha256: str) -> CommandDeclaration | None:
        """The declaration with this hash."""
        ...


class Governance(Protocol):
    """The governance watch, as far as this service needs it."""

    @property
    def stale(self) -> bool:
        """True where nothing confirmed the active set within the bound."""
        ...

    def revoked(self, kind: str, object_id: str | None) -> bool:
        """True where a decision, capability or mandate is revoked."""
        ...

    def freeze_of(self, fields: Mapping[str, Any], *, compensation: bool = False) -> object | None:
        """The freeze that holds back an effect with these fields, if any."""
        ...


class DeclarationMissing(LookupError):
    """An open operation needs a declaration that the catalog does not have (yet)."""


class Desk:
    """Everything a handler needs beside its messages."""

    def __init__(self, *, declarations: Declarations, governance: Governance, terms: Terms, windows: Windows) -> None:
        self.declarations = declarations
        self.governance = governance
        self.terms = terms
        self.windows = windows

    def declaration_of(self, row: JournalRow) -> CommandDeclaration:
        """The declaration that an operation started with. Raises DeclarationMissing."""
        found = self.declarations.declaration(row.declaration_sha256)
        if found is None:
            raise DeclarationMissing(f"{row.command_type} {row.declaration_sha256} of {row.command_id}")
        return found

    def authority(self, fields: Mapping[str, Any]) -> Authority:
        """What governance says of an effect with these fields (see `authority_of`)."""
        revoked = None
        for kind in ("mandate", "decision", "capability"):
            if self.governance.revoked(kind, fields[f"{kind}_id"]):
                revoked = f"{kind} {fields[f'{kind}_id']} is revoked"
                break
        return Authority(
            revoked=revoked,
            frozen=self.governance.freeze_of(fields) is not None,
            stale=self.governance.stale,
        )

    def authority_of(self, fold: Fold) -> Authority:
        """What governance says of a stored operation."""
        row, instance = fold.operation, fold.instance
        return self.authority(
            {
                "tenant": row.tenant,
                "system": row.target_system,
                "command_type": row.command_type,
                "definition": instance.definition,
                "version": instance.version,
                "mandate_id": row.mandate_id,
                "decision_id": row.decision_id,
                "capability_id": row.capability_id,
            }
        )

    async def load(self, tx: OrchestratorTransaction, moment: Moment, rows: Sequence[JournalRow]) -> dict[str, Fold]:
        """Folds of stored operations, with instance, open obligations and unpublished history."""
        if not rows:
            return {}
        instances = {row.workflow_id: row for row in await tx.instances(sorted({row.workflow_id for row in rows}))}
        owing = sorted({row.workflow_id for row in rows if may_owe(row)})
        obligations = _by_case(await tx.obligations(owing)) if owing else {}
        lag = {
            key: instance.published_seq
            for key, instance in instances.items()
            if instance.published_seq < instance.history_seq
        }
        history = _by_case(await tx.history_after(lag)) if lag else {}
        return {
            row.command_id: Fold(
                _case(row, instances[row.workflow_id], obligations, history),
                moment,
                self.terms,
            )
            for row in rows
        }

    async def admit(
        self,
        tx: OrchestratorTransaction,
        moment: Moment,
        folds: dict[str, Fold],
        *,
        pairs: Iterable[Pair] = (),
        grants: Mapping[str, AcceptanceGrant] | None = None,
    ) -> None:
        """Dispatch what may go out now: of the folds in hand, and of what waits in the store for the same pairs."""
        in_hand = [fold for fold in folds.values() if ready(fold.operation)]
        wanted = sorted({pair_of(fold.operation) for fold in in_hand} | set(pairs))
        loads = await tx.loads(wanted)
        freed: dict[Pair, int] = {}
        for fold in folds.values():
            if fold.before.operation.lease_expires_at is not None and fold.operation.lease_expires_at is None:
                pair = pair_of(fold.operation)
                freed[pair] = freed.get(pair, 0) + 1
        sizes = {pair: self.windows.size(pair, moment.real) + freed.get(pair, 0) for pair in wanted}
        room = {pair: free(loads[pair], sizes[pair], in_hand=True) for pair in wanted}
        stored = [pair for pair in wanted if loads[pair].locked and loads[pair].queued]
        if stored:
            rows = [row for row in await tx.ready(quotas(room, stored, ADMIT_MAX)) if row.command_id not in folds]
            folds.update(await self.load(tx, moment, rows))
        waiting = [
            Waiting(fold.operation.command_id, pair_of(fold.operation), fold.operation.created_at)
            for fold in folds.values()
            if ready(fold.operation)
        ]
        base = int(moment.real.timestamp() * 1_000_000)
        for index, command_id in enumerate(choose(waiting, room, ADMIT_MAX)):
            fold = folds[command_id]
            declaration = self.declarations.declaration(fold.operation.declaration_sha256)
            if declaration is None:
                log.error("a queued operation waits for its declaration", extra={"command_id": command_id})
                continue
            dispatch(
                fold,
                declaration,
                self.authority_of(fold),
                sequence=base + index,
                grant=grants.get(command_id) if grants else None,
            )

    async def keep(self, tx: OrchestratorTransaction, folds: Iterable[Fold]) -> list[Outgoing]:
        """Seal and store; answers what is to be sent."""
        decisions = [seal(fold) for fold in folds]
        moved = [item for item in decisions if item.created or item.operation_changed or item.instance_changed]
        if moved:
            await tx.save(moved)
        return [item for decision in moved for item in decision.outgoing]


def pair_of(row: JournalRow) -> Pair:
    """(tenant, system) of an operation."""
    return row.tenant, row.target_system


def ready(row: JournalRow) -> bool:
    """True for a queued operation that waits for nothing but its window."""
    return row.state is OperationState.QUEUED and row.lease_expires_at is None and row.next_retry_at is None


def freed_pairs(folds: Iterable[Fold]) -> set[Pair]:
    """Pairs in which a lease was given back by these folds."""
    return {
        pair_of(fold.operation)
        for fold in folds
        if fold.before.operation.lease_expires_at is not None and fold.operation.lease_expires_at is None
    }


def _case(
    row: JournalRow,
    instance: InstanceRow,
    obligations: Mapping[str, list[ObligationRow]],
    history: Mapping[str, list[HistoryEvent]],
) -> Case:
    key = row.workflow_id
    return Case(instance, row, tuple(obligations.get(key, ())), tuple(history.get(key, ())))


def _by_case(rows: Iterable[Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for row in rows:
        grouped.setdefault(row.workflow_id, []).append(row)
    return grouped
