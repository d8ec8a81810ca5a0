"""Handlers: accepted commands, events of the others, and what time brings. Load, decide (pure), save."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.events import (
    ApprovalDecided,
    ElementVerified,
    GrantRefused,
    OperatorCommand,
    Settlement,
    SignalReceived,
    StartCase,
    StartWorkflow,
)
from trueup_common.contracts.ids import command_id
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.operators import ORCHESTRATOR
from trueup_common.contracts.states import REPLACEABLE, OperationState
from trueup_common.contracts.task import Beat, Receipt
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.runtime.host import TooEarly, Unprocessable
from trueup_common.runtime.metrics import TIMER_LATENESS_SECONDS
from trueup_common.runtime.ports import Foreseeing, Moment
from trueup_orchestrator.core.decide import Beaten, Due, Stimulus, Woken, fold_in, fold_in_case
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant
from trueup_orchestrator.core.opening import start_workflow
from trueup_orchestrator.core.operators import fold_command
from trueup_orchestrator.core.records import DocumentRow
from trueup_orchestrator.core.replacing import OWING, supersede, taken_back
from trueup_orchestrator.core.start import identity_of, start
from trueup_orchestrator.core.workflow import Workflow
from trueup_orchestrator.desk import COMMAND, DeclarationMissing, Desk, freed_slots, log
from trueup_orchestrator.isolation import Isolation
from trueup_orchestrator.store import Identity, Key, OrchestratorTransaction

DUE_MAX: Final = 50
"""Of operations and of cases in one tick: what comes beside a storm of timers waits for one such portion at most."""
PAIRS_MAX: Final = 200
EARLY_SECONDS: Final = 3600.0
"""How long the start of a case may be on its way while people speak of the case already."""

OperationEvent = Receipt | Settlement | ElementVerified | GrantRefused
Event = OperationEvent | ApprovalDecided | SignalReceived | OperatorCommand

_EVENTS: Final[dict[str, type[Event]]] = {
    "Receipt": Receipt,
    "Settlement": Settlement,
    "ElementVerified": ElementVerified,
    "GrantRefused": GrantRefused,
    "ApprovalDecided": ApprovalDecided,
    "SignalReceived": SignalReceived,
    "OperatorCommand": OperatorCommand,
}
CASE_EVENTS: Final = (ApprovalDecided, SignalReceived, OperatorCommand)
"""Events about a case as a whole."""


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


class _Bodies:
    """What the messages of a batch say, read before the claim so that it can take reads along, and used in `handle`."""

    def __init__(self) -> None:
        self._read: dict[str, BaseModel] = {}

    def look_ahead(self, messages: Sequence[Message], models: Mapping[str, type[M]]) -> list[M]:
        """The bodies of the messages that can be read."""
        self._read.clear()
        found: list[M] = []
        for message in messages:
            if message.id in self._read or message.type not in models:
                continue
            with contextlib.suppress(Unprocessable):
                body = self._read[message.id] = _read(models[message.type], message)
                found.append(body)
        return found

    def read(self, model: type[M], message: Message) -> M:
        """The body of a message. Raises Unprocessable."""
        body = self._read.pop(message.id, None)
        return body if isinstance(body, model) else _read(model, message)


class CommandHandler(Foreseeing):
    """Starts a case for each accepted command or workflow, and dispatches what its window admits in the same commit."""

    inbox = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._kept: set[str] = set()
        """Documents that are compiled and stored: their starts carry nothing new."""
        self._keeping: set[str] = set()
        self._bodies = _Bodies()

    def foresee(self, tx: OrchestratorTransaction, messages: Sequence[Message]) -> bool:
        """Commands: who holds what, and how full their pairs are."""
        starts = self._bodies.look_ahead(messages, {"StartCase": StartCase})
        if starts:
            identities = [identity for body in starts if (identity := self._identity(body)) is not None]
            pairs = {(body.tenant, body.target.system) for body in starts}
            tx.foresee_starts([_key(body) for body in starts], identities, sorted(pairs))
        return False

    async def handle(
        self, tx: OrchestratorTransaction, moment: Moment, messages: Sequence[Message]
    ) -> Sequence[Outgoing]:
        """React to accepted commands and workflows."""
        self._keeping = set()
        folds: dict[str, Fold] = {}
        grants: dict[str, AcceptanceGrant] = {}
        single = [message for message in messages if message.type != "StartWorkflow"]
        if single:
            await self._start_commands(tx, moment, single, folds, grants)
        if len(single) != len(messages):
            await self._start_workflows(tx, moment, [item for item in messages if item not in single], folds)
        await self.desk.move_on(tx, moment, folds, grants=grants)
        return await self.desk.keep(tx, folds.values())

    async def _start_commands(
        self,
        tx: OrchestratorTransaction,
        moment: Moment,
        messages: Sequence[Message],
        folds: dict[str, Fold],
        grants: dict[str, AcceptanceGrant],
    ) -> None:
        starts = [(message, self._bodies.read(StartCase, message)) for message in messages]
        identities = {body.command_id: self._identity(body) for _, body in starts}
        keys = [_key(body) for _, body in starts]
        taken = await tx.holders(keys, [identity for identity in identities.values() if identity])
        gone = await self._taken_back(tx, [body for _, body in starts])
        replaced = {
            holder.command_id
            for _, body in starts
            for holder in taken
            if holder.command_id == body.supersedes and holder.state in REPLACEABLE and holder.command_id not in gone
        }
        if replaced:
            await tx.pass_on(sorted(replaced))
        by_key = {holder.key: holder.command_id for holder in taken}
        by_identity = {
            holder.identity: holder.command_id
            for holder in taken
            if holder.identity and holder.command_id not in replaced
        }
        for (message, body), key in zip(starts, keys, strict=True):
            identity, late = identities[body.command_id], body.supersedes in gone
            holder = by_key.get(key) or (by_identity.get(identity) if identity and not late else None)
            if holder == body.command_id or body.workflow_id in folds:
                continue  # started already; its inbox entry is gone
            fold = self._start(message, body, moment, identity=identity, holder=holder, late=late)
            folds[body.workflow_id] = fold
            if holder is None:
                by_key[key] = body.command_id
                if identity and fold.state is OperationState.QUEUED:
                    by_identity[identity] = body.command_id
            if body.grant:
                grants[body.command_id] = AcceptanceGrant(body.grant, body.grant_expires_at)
        await self._supersede(tx, moment, [body for _, body in starts], folds)

    async def _taken_back(self, tx: OrchestratorTransaction, bodies: Sequence[StartCase]) -> set[str]:
        """What these commands would take the place of although its own case undoes it: such a repair comes too late."""
        names = sorted({body.supersedes for body in bodies if body.supersedes is not None})
        if not names:
            return set()
        rows = await tx.operations(names)
        return taken_back(rows, await tx.instances(sorted({row.workflow_id for row in rows})))

    async def _supersede(
        self, tx: OrchestratorTransaction, moment: Moment, bodies: Sequence[StartCase], folds: dict[str, Fold]
    ) -> None:
        """What ended without its effect is over once another command was admitted in its place."""
        younger = {
            body.supersedes: body.command_id
            for body in bodies
            if body.supersedes is not None
            and (fold := folds.get(body.workflow_id)) is not None
            and fold.state is OperationState.QUEUED
        }
        if not younger:
            return
        rows = [row for row in await tx.operations(sorted(younger)) if row.state in OWING]
        older = await self.desk.load(tx, moment, [row for row in rows if row.workflow_id not in folds])
        for row in rows:
            if row.workflow_id in older:
                supersede(older[row.workflow_id].at(row.command_id), younger[row.command_id])
        folds.update(older)

    async def _start_workflows(
        self, tx: OrchestratorTransaction, moment: Moment, messages: Sequence[Message], folds: dict[str, Fold]
    ) -> None:
        starts = [(message, _read(StartWorkflow, message)) for message in messages]
        known = {row.workflow_id for row in await tx.instances([body.workflow_id for _, body in starts])}
        keys = await tx.started([(body.tenant, body.start_key, body.revision) for _, body in starts])
        for message, body in starts:
            if body.workflow_id in known or body.workflow_id in folds:
                continue
            key = (body.tenant, body.start_key, body.revision)
            workflow = await self._workflow(tx, moment, body)
            authority = self.desk.authority(
                {
                    "tenant": body.tenant,
                    "system": None,
                    "command_type": None,
                    "definition": body.definition,
                    "version": body.version,
                    "mandate_id": body.mandate.mandate_id,
                    "decision_id": body.mandate.decision_id,
                    "capability_id": body.mandate.capability_id,
                }
            )
            folds[body.workflow_id] = start_workflow(
                body,
                workflow,
                authority,
                moment,
                self.desk.terms,
                key_taken=key in keys,
                cause=message.id,
                traceparent=message.traceparent,
            )
            keys.add(key)

    async def _workflow(self, tx: OrchestratorTransaction, moment: Moment, body: StartWorkflow) -> Workflow:
        """The document of a start, compiled and kept. Raises Unprocessable for one that is not what it says."""
        if body.document_sha256 in self._kept and body.mandate.document_sha256 in (None, body.document_sha256):
            return self.desk.workflow(body.document_sha256, body.declarations)
        try:
            document = WorkflowDocument.model_validate(body.document)
            sha256 = self.desk.remember(document)
        except ValueError as error:
            raise Unprocessable(f"the document of {body.definition} {body.version} cannot be run: {error}") from error
        if sha256 != body.document_sha256 or body.mandate.document_sha256 not in (None, sha256):
            raise Unprocessable("the document is not the one that was accepted")
        await tx.keep_documents(
            [
                DocumentRow(
                    sha256=sha256,
                    name=document.name,
                    version=document.version,
                    document=body.document,
                    created_at=moment.business,
                )
            ]
        )
        self._keeping.add(sha256)
        return self.desk.workflow(sha256, body.declarations)

    async def settled(self, messages: Sequence[Message]) -> None:
        """Documents of this batch are stored by now."""
        self._kept |= self._keeping

    def _identity(self, body: StartCase) -> Identity | None:
        declaration = self.desk.declarations.declaration(body.declaration_sha256)
        if declaration is None:
            return None
        target = {"system": body.target.system, "resource": body.target.resource}
        identity = identity_of(declaration, target, body.payload)
        return (body.tenant, body.command_type, identity) if identity else None

    def _start(
        self,
        message: Message,
        body: StartCase,
        moment: Moment,
        *,
        identity: Identity | None,
        holder: str | None,
        late: bool,
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
            is_late=late,
        )


def _key(body: StartCase) -> Key:
    """The key that a command starts under."""
    return body.tenant, body.idempotency_key, 1


class EventHandler(Foreseeing):
    """Folds what the others tell about operations and cases into them, and refills freed windows."""

    inbox = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._bodies = _Bodies()

    def foresee(self, tx: OrchestratorTransaction, messages: Sequence[Message]) -> bool:
        """The versions of the cases, and the loads of the pairs in which receipts free a slot.

        Receipts of single commands in hand need neither: the save finds out whether somebody else moved the case.
        """
        events = self._bodies.look_ahead(messages, _EVENTS)
        named = _named(events)
        if any(workflow_id in self.desk.cases for workflow_id in named):
            pairs = {(body.tenant, body.system) for body in events if isinstance(body, Receipt)}
            tx.foresee_events(named, sorted(pairs))
        receipts = [body for body in events if isinstance(body, Receipt)]
        return len(receipts) == len(messages) and all(map(self.desk.presumes, receipts))

    async def handle(
        self, tx: OrchestratorTransaction, moment: Moment, messages: Sequence[Message]
    ) -> Sequence[Outgoing]:
        """React to events of adapters, reconciler and gateway."""
        events = [(message, body) for message in messages if (body := self._event(message)) is not None]
        named = _named(body for _, body in events)
        folds = await self.desk.recall(tx, moment, named)
        rest = [body for _, body in events if body.workflow_id not in folds]
        about = [body for body in rest if not isinstance(body, CASE_EVENTS)]
        if about:
            folds.update(await self._owners(tx, moment, about))
        cases = sorted({str(body.workflow_id) for body in rest if isinstance(body, CASE_EVENTS)} - set(folds))
        if cases:
            folds.update(await self._cases(tx, moment, cases))
        await self.desk.look_up(tx, folds, [body for _, body in events if isinstance(body, OperatorCommand)])
        for message, body in events:
            self._fold(folds, message, body, moment)
        await self.desk.move_on(tx, moment, folds, pairs=freed_slots(folds.values()))
        return await self.desk.keep(tx, folds.values(), presumed=moment.presumed)

    def _event(self, message: Message) -> Event | None:
        """The body of a message; None for an operator command that another service performs."""
        model = _EVENTS.get(message.type)
        if model is None:
            raise Unprocessable(f"this service does not know {message.type}")
        body = self._bodies.read(model, message)
        return None if isinstance(body, OperatorCommand) and body.performer != ORCHESTRATOR else body

    async def _owners(
        self, tx: OrchestratorTransaction, moment: Moment, about: Sequence[OperationEvent]
    ) -> dict[str, Fold]:
        """The cases whose operations events are about; the cases first (`Desk.load_cases`)."""
        instances = await tx.instances(_named(about))
        known = {row.workflow_id for row in instances}
        rows = await tx.operations(sorted({body.command_id for body in about}))
        return await self.desk.load_cases(tx, moment, instances, [row for row in rows if row.workflow_id in known])

    async def _cases(self, tx: OrchestratorTransaction, moment: Moment, workflow_ids: Sequence[str]) -> dict[str, Fold]:
        instances = await tx.instances(workflow_ids)
        singles = [command_id(row.workflow_id, "command", 1) for row in instances if row.definition == COMMAND]
        rows = await tx.operations(singles) if singles else []
        return await self.desk.load_cases(tx, moment, instances, rows)

    def _fold(self, folds: dict[str, Fold], message: Message, body: Event, moment: Moment) -> None:
        fold = folds.get(str(body.workflow_id))
        if fold is None and isinstance(body, CASE_EVENTS) and _is_young(message, moment):
            raise TooEarly(f"{message.type} about {body.workflow_id}, whose start has not come yet")
        if fold is None or fold.instance.tenant != message.tenant:
            raise Unprocessable(f"{message.type} about {body.workflow_id}, which this tenant does not have")
        if isinstance(body, OperatorCommand):
            self._act(fold, body, message)
            return
        if isinstance(body, (ApprovalDecided, SignalReceived)):
            fold_in_case(fold, body, message.id)
            return
        if body.command_id not in fold.operations:
            raise Unprocessable(f"{message.type} about {body.command_id}, which this case does not have")
        fold.at(body.command_id)
        declaration = self.desk.declaration_of(fold, fold.operation)
        fold_in(fold, body, declaration, self.desk.authority_of(fold), message.id)

    def _act(self, fold: Fold, asked: OperatorCommand, message: Message) -> None:
        named = asked.command_id or (fold.focus if fold.workflow is None else None)
        if named is not None and named not in fold.operations:
            raise Unprocessable(f"{message.type} about {named}, which this case does not have")
        fold_command(fold, asked, self.desk.ground(fold, named, asked.operator_command_id), message.id)

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing to do after the commit."""


def _is_young(message: Message, moment: Moment) -> bool:
    return (moment.real - message.time).total_seconds() < EARLY_SECONDS


def _named(events: Iterable[Event]) -> list[str]:
    """The cases that events are about."""
    return sorted({body.workflow_id for body in events if body.workflow_id is not None})


def _observe(kind: str, due: Iterable[datetime | None], moment: Moment) -> None:
    """By how much timers fired late."""
    for at in due:
        if at is not None and at <= moment.business:
            TIMER_LATENESS_SECONDS.labels(kind).observe((moment.business - at).total_seconds())


def _note_lateness(
    folds: Mapping[str, Fold], rows: Sequence[JournalRow], cases: Iterable[InstanceRow], moment: Moment
) -> None:
    """By how much the timers that woke these cases came late; each case tells its own (`contracts.spending`)."""
    woken = [(row.workflow_id, row.wake_at) for row in rows if row.lease_expires_at is None]
    woken += [(case.workflow_id, case.wake_at) for case in cases]
    for key, at in woken:
        if key in folds and at is not None and at <= moment.business:
            folds[key].lateness.append((moment.business - at).total_seconds())


class Timers:
    """What time brings: due wake-ups and leases, overdue verification, queued operations, beats."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.isolation = Isolation(DUE_MAX)
        self._beats: dict[str, Beaten] = {}

    async def due(self, tx: OrchestratorTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Operations whose wake-up or lease is due, and cases whose own time has come."""
        for message, reason in self.isolation.owed("orchestrator-due", moment.real):
            await tx.quarantine("orchestrator-due", message, reason)
        limit, without = self.isolation.limit(moment.real), self.isolation.left_out
        rows = await tx.due(moment.business, moment.real, limit, without)
        self.isolation.taken((row.workflow_id, row.tenant) for row in rows)
        late: dict[str, InstanceRow] = {}
        if limit > 1 or not rows:
            late = {case.workflow_id: case for case in await tx.overdue(moment.business, limit, without)}
            self.isolation.taken((case.workflow_id, case.tenant) for case in late.values())
        _observe("operation", (row.wake_at for row in rows if row.lease_expires_at is None), moment)
        _observe("case", (case.wake_at for case in late.values()), moment)
        known = {row.workflow_id for row in rows}
        singles = [case for key, case in late.items() if case.definition == COMMAND and key not in known and case.owed]
        more = await tx.operations(sorted(case.owed[0]["command_id"] for case in singles)) if singles else []
        folds = await self.desk.load(tx, moment, [*rows, *more])
        woken = [case for key, case in late.items() if case.definition != COMMAND and key not in folds]
        if woken:
            folds.update(await self.desk.load_cases(tx, moment, woken))
        _note_lateness(folds, rows, late.values(), moment)
        for row in [*rows, *more]:
            if row.workflow_id in folds:
                self._fold(folds[row.workflow_id].at(row.command_id), Due())
        for key in late:
            if key in folds and folds[key].workflow is not None:
                fold_in_case(folds[key], Woken())
        await self.desk.move_on(tx, moment, folds, pairs=freed_slots(folds.values()))
        return await self.desk.keep(tx, folds.values())

    async def queue(self, tx: OrchestratorTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Queued operations whose window has room by now."""
        pairs = await tx.ready_pairs(PAIRS_MAX)
        if not pairs:
            return ()
        folds: dict[str, Fold] = {}
        await self.desk.move_on(tx, moment, folds, pairs=pairs)
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
        for row in rows:
            if row.workflow_id in folds:
                self._fold(folds[row.workflow_id].at(row.command_id), beats[row.command_id])
        await self.desk.progress(tx, folds.values())
        return await self.desk.keep(tx, folds.values())

    def _fold(self, fold: Fold, stimulus: Stimulus) -> None:
        try:
            declaration = self.desk.declaration_of(fold, fold.operation)
        except DeclarationMissing as missing:
            log.error("a due operation waits for its declaration", extra={"reason": str(missing)})
            return
        fold_in(fold, stimulus, declaration, self.desk.authority_of(fold))
