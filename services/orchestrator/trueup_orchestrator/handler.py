"""Handlers: accepted commands, events of the others, and what time brings. Load, decide (pure), save."""

from collections.abc import Sequence
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import ElementVerified, GrantRefused, Settlement, StartCase
from trueup_common.contracts.states import OperationState
from trueup_common.contracts.task import Beat, Receipt
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment
from trueup_orchestrator.core.decide import Beaten, Due, Stimulus, fold_in
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant
from trueup_orchestrator.core.start import identity_of, start
from trueup_orchestrator.desk import DeclarationMissing, Desk, freed_pairs, log
from trueup_orchestrator.store import Identity, Key, OrchestratorTransaction

DUE_MAX: Final = 200
PAIRS_MAX: Final = 200
_EVENTS: Final[dict[str, type[Receipt | Settlement | ElementVerified | GrantRefused]]] = {
    "Receipt": Receipt,
    "Settlement": Settlement,
    "ElementVerified": ElementVerified,
    "GrantRefused": GrantRefused,
}


M = TypeVar("M", bound=BaseModel)


def _read(model: type[M], message: Message) -> M:
    """The body of a message. Raises Unprocessable."""
    try:
        body = model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"{message.type} is unreadable: {error.error_count()} errors") from error
    if getattr(body, "tenant", message.tenant) != message.tenant:
        raise Unprocessable(f"{message.type} names another tenant than its envelope")
    return body


class CommandHandler:
    """Starts a case for each accepted command, and dispatches it in the same commit where its window admits it."""

    inbox = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def handle(
        self, tx: OrchestratorTransaction, moment: Moment, messages: Sequence[Message]
    ) -> Sequence[Outgoing]:
        """React to accepted commands."""
        starts = [(message, _read(StartCase, message)) for message in messages]
        identities = {body.command_id: self._identity(body) for _, body in starts}
        keys: list[Key] = [(body.tenant, body.idempotency_key, 1) for _, body in starts]
        taken = await tx.holders(keys, [identity for identity in identities.values() if identity])
        by_key = {holder.key: holder.command_id for holder in taken}
        by_identity = {holder.identity: holder.command_id for holder in taken if holder.identity}
        folds: dict[str, Fold] = {}
        grants: dict[str, AcceptanceGrant] = {}
        for (message, body), key in zip(starts, keys, strict=True):
            identity = identities[body.command_id]
            holder = by_key.get(key) or (by_identity.get(identity) if identity else None)
            if holder == body.command_id or body.command_id in folds:
                continue  # started already; its inbox entry is gone
            fold = self._start(message, body, moment, identity=identity, holder=holder)
            folds[body.command_id] = fold
            if holder is None:
                by_key[key] = body.command_id
                if identity and fold.state is OperationState.QUEUED:
                    by_identity[identity] = body.command_id
            if body.grant:
                grants[body.command_id] = AcceptanceGrant(body.grant, body.grant_expires_at)
        await self.desk.admit(tx, moment, folds, grants=grants)
        return await self.desk.keep(tx, folds.values())

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""

    def _identity(self, body: StartCase) -> Identity | None:
        declaration = self.desk.declarations.declaration(body.declaration_sha256)
        if declaration is None:
            return None
        target = {"system": body.target.system, "resource": body.target.resource}
        identity = identity_of(declaration, target, body.payload)
        return (body.tenant, body.command_type, identity) if identity else None

    def _start(
        self, message: Message, body: StartCase, moment: Moment, *, identity: Identity | None, holder: str | None
    ) -> Fold:
        authority = self.desk.authority(
            {
                "tenant": body.tenant,
                "system": body.target.system,
                "command_type": body.command_type,
                "definition": body.definition,
                "version": 1,
                "mandate_id": body.mandate.mandate_id,
                "decision_id": body.mandate.decision_id,
                "capability_id": body.mandate.capability_id,
            }
        )
        return start(
            body,
            self.desk.declarations.declaration(body.declaration_sha256),
            authority,
            moment,
            self.desk.terms,
            identity=identity[2] if identity else None,
            holder=holder,
            cause=message.id,
            traceparent=message.traceparent,
            reply_to=message.reply_to,
        )


class EventHandler:
    """Folds receipts, settlements, verifications and refused grants into their cases, and refills freed windows."""

    inbox = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def handle(
        self, tx: OrchestratorTransaction, moment: Moment, messages: Sequence[Message]
    ) -> Sequence[Outgoing]:
        """React to events of adapters, reconciler and gateway."""
        events = [(message, self._event(message)) for message in messages]
        rows = await tx.operations(sorted({body.command_id for _, body in events}))
        folds = await self.desk.load(tx, moment, rows)
        for message, body in events:
            fold = folds.get(body.command_id)
            if fold is None or fold.operation.tenant != message.tenant:
                raise Unprocessable(f"{message.type} about {body.command_id}, which this tenant does not have")
            fold_in(fold, body, self.desk.declaration_of(fold.operation), self.desk.authority_of(fold), message.id)
        freed = freed_pairs(folds.values())
        if freed:
            await self.desk.admit(tx, moment, folds, pairs=freed)
        return await self.desk.keep(tx, folds.values())

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""

    def _event(self, message: Message) -> Receipt | Settlement | ElementVerified | GrantRefused:
        model = _EVENTS.get(message.type)
        if model is None:
            raise Unprocessable(f"this service does not know {message.type}")
        return _read(model, message)


class Timers:
    """What time brings: due wake-ups and leases, overdue verification, queued operations, beats."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._beats: dict[str, Beaten] = {}

    async def due(self, tx: OrchestratorTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Operations whose wake-up or lease is due, and cases whose verification is overdue."""
        rows = await tx.due(moment.business, moment.real, DUE_MAX)
        late = await tx.overdue(moment.business, DUE_MAX)
        known = {row.workflow_id for row in rows}
        owing = [case.owed[0]["command_id"] for case in late if case.owed and case.workflow_id not in known]
        rows += await tx.operations(sorted(owing)) if owing else []
        folds = await self.desk.load(tx, moment, rows)
        for fold in folds.values():
            self._fold(fold, Due())
        await self.desk.admit(tx, moment, folds, pairs=freed_pairs(folds.values()))
        return await self.desk.keep(tx, folds.values())

    async def queue(self, tx: OrchestratorTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Queued operations whose window has room by now."""
        pairs = await tx.ready_pairs(PAIRS_MAX)
        if not pairs:
            return ()
        folds: dict[str, Fold] = {}
        await self.desk.admit(tx, moment, folds, pairs=pairs)
        return await self.desk.keep(tx, folds.values())

    def heard(self, beat: Beat) -> None:
        """Remember a worker's beat; leases are renewed with the next tick."""
        self.desk.windows.announce(beat)
        for attempt in beat.running:
            self._beats[attempt.command_id] = Beaten(attempt, beat.worker, beat.at)

    async def beats(self, tx: OrchestratorTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Renew the leases of attempts that their workers report as alive."""
        if not self._beats:
            return ()
        beats, self._beats = self._beats, {}
        rows = await tx.operations(sorted(beats))
        folds = await self.desk.load(
            tx, moment, [row for row in rows if row.tenant == beats[row.command_id].attempt.tenant]
        )
        for command_id, fold in folds.items():
            self._fold(fold, beats[command_id])
        return await self.desk.keep(tx, folds.values())

    def _fold(self, fold: Fold, stimulus: Stimulus) -> None:
        try:
            declaration = self.desk.declaration_of(fold.operation)
        except DeclarationMissing as missing:
            log.error("a due operation waits for its declaration", extra={"reason": str(missing)})
            return
        fold_in(fold, stimulus, declaration, self.desk.authority_of(fold))
