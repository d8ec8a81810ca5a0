"""The desk: what all handlers of this service share. Load cases, ask governance, admit what waits, store decisions.

It awaits nothing but the transaction.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import OperatorCommand
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.states import INSTANCE_TERMINAL, OperationState
from trueup_common.contracts.task import Receipt
from trueup_common.contracts.workflow import Direction, WorkflowDocument
from trueup_common.documents.expressions import Expressions
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Moment, VersionConflict
from trueup_orchestrator.core.case import Authority, Case, Terms
from trueup_orchestrator.core.dispatch import Load, Pair, Waiting, choose, free, quotas
from trueup_orchestrator.core.fold import Fold
from trueup_orchestrator.core.launch import AcceptanceGrant, dispatch
from trueup_orchestrator.core.obligations import may_owe
from trueup_orchestrator.core.opening import take_locks
from trueup_orchestrator.core.operators import Ground
from trueup_orchestrator.core.records import DocumentRow, LockRow
from trueup_orchestrator.core.saga import advance, keep_steps
from trueup_orchestrator.core.seal import seal
from trueup_orchestrator.core.start import IDENTITY_IN_USE, identity_of
from trueup_orchestrator.core.steps import Begin, begin, ended_without_effect
from trueup_orchestrator.core.workflow import Workflow
from trueup_orchestrator.memory import Cases
from trueup_orchestrator.store import Identity, OrchestratorTransaction
from trueup_orchestrator.windows import Windows

log = logging.getLogger("trueup.orchestrator")

ADMIT_MAX: Final = 400
NUMBERS: Final = 1000
"""Dispatches between two numbers of the database's sequence: more than one transaction admits."""
"""Operations dispatched in one transaction, at most."""

COMMAND: Final = "command"
DOCUMENTS_MAX: Final = 1000
"""Compiled documents that are kept; a batch needs far fewer."""
"""The definition of a single command."""

ROUNDS_MAX: Final = 50
"""How often a case may move on within one transaction; far beyond what a document of checks can need."""


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

    @property
    def quiet(self) -> bool:
        """True where nothing at all is revoked or frozen."""
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
        self.cases = Cases()
        self._documents: dict[str, tuple[WorkflowDocument, Expressions]] = {}
        self._short: set[Pair] = set()
        """Pairs that were short of room when they were looked at last."""
        self.freed: Callable[[], None] = lambda: None
        """Hears of slots that became free without a look at who waits for them."""
        self._looked_up: dict[str, tuple[str | None, str | None]] = {}
        """Business identity and rival of what operators want to try again in the batch at hand, by command."""
        self._corrected: dict[str, Workflow] = {}
        """Corrected versions that cases shall go on by in the batch at hand, by operator command."""

    def declaration_of(self, fold: Fold, row: JournalRow) -> CommandDeclaration:
        """The declaration that an operation started with, tightened by its document. Raises DeclarationMissing."""
        found = self.declarations.declaration(row.declaration_sha256)
        if found is None:
            raise DeclarationMissing(f"{row.command_type} {row.declaration_sha256} of {row.command_id}")
        step = fold.workflow.document.by_id.get(row.step_id) if fold.workflow is not None else None
        if step is None or step.retry is None:
            return found
        attempts = min(step.retry.attempts_max, found.retry.attempts_max)
        tightened: CommandDeclaration = found.evolve(retry=found.retry.evolve(attempts_max=attempts))
        return tightened

    def authority(self, fields: Mapping[str, Any], *, compensation: bool = False) -> Authority:
        """What governance says of an effect with these fields (see `authority_of`)."""
        if self.governance.quiet:
            return Authority(stale=self.governance.stale)
        revoked = None
        for kind in ("mandate", "decision", "capability"):
            if self.governance.revoked(kind, fields[f"{kind}_id"]):
                revoked = f"{kind} {fields[f'{kind}_id']} is revoked"
                break
        return Authority(
            revoked=revoked,
            frozen=self.governance.freeze_of(fields, compensation=compensation) is not None,
            stale=self.governance.stale,
        )

    def authority_of(self, fold: Fold) -> Authority:
        """What governance says of the stored operation in focus."""
        row, instance = fold.operation, fold.instance
        if self.governance.quiet:
            return Authority(stale=self.governance.stale)
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
            },
            compensation=row.compensates is not None,
        )

    def ground(self, fold: Fold, command_id: str | None, operator_command_id: str) -> Ground:
        """What an operator command rests on; of the case as a whole where no operation is named."""
        identity, rival = self._looked_up.pop(operator_command_id, (None, None))
        if command_id is None:
            instance, mandate = fold.instance, fold.instance.mandate
            fields = {
                "tenant": instance.tenant,
                "system": None,
                "command_type": None,
                "definition": instance.definition,
                "version": instance.version,
                "mandate_id": mandate["mandate_id"],
                "decision_id": mandate["decision_id"],
                "capability_id": mandate["capability_id"],
            }
            return Ground(self.authority(fields), corrected=self._corrected.pop(operator_command_id, None))
        fold.at(command_id)
        return Ground(self.authority_of(fold), self.declaration_of(fold, fold.operation), identity, rival)

    async def look_up(
        self, tx: OrchestratorTransaction, folds: Mapping[str, Fold], commands: Sequence[OperatorCommand]
    ) -> None:
        """Who has the keys and business identities of what operators want to try again, and by which corrected version
        a case shall go on."""
        self._corrected = {}
        for asked in commands:
            fold = folds.get(str(asked.workflow_id))
            if asked.document is not None and fold is not None and fold.workflow is not None:
                self._corrected[asked.operator_command_id] = await self._keep_corrected(tx, fold, asked)
        found: dict[str, tuple[JournalRow, str | None]] = {}
        for asked in commands:
            fold = folds.get(str(asked.workflow_id))
            row = fold.operations.get(asked.command_id or fold.focus) if fold is not None else None
            declaration = self.declarations.declaration(row.declaration_sha256) if row is not None else None
            if row is not None and declaration is not None:
                target = {"system": row.target_system, "resource": row.target_resource}
                identity = None if row.compensates else identity_of(declaration, target, row.payload)
                found[asked.operator_command_id] = row, identity
        if not found:
            return
        keys = {(row.tenant, row.idempotency_key) for row, _ in found.values()}
        newest = {(row.tenant, row.idempotency_key): row.command_id for row in await tx.newest(sorted(keys))}
        wanted = {(row.tenant, row.command_type, identity) for row, identity in found.values() if identity}
        held = {
            holder.identity: holder.command_id
            for holder in (await tx.holders([], sorted(wanted)) if wanted else ())
            if holder.identity
        }
        self._looked_up = {}
        for name, (row, identity) in found.items():
            others = [newest.get((row.tenant, row.idempotency_key))]
            if identity:
                others.append(held.get((row.tenant, row.command_type, identity)))
            rival = next((other for other in others if other is not None and other != row.command_id), None)
            self._looked_up[name] = identity, rival

    async def _keep_corrected(self, tx: OrchestratorTransaction, fold: Fold, asked: OperatorCommand) -> Workflow:
        """The corrected version that a case shall go on by, compiled and kept, under the declarations that the case
        pinned. Raises Unprocessable for one that is not what it says."""
        try:
            document = WorkflowDocument.model_validate(asked.document)
            sha256 = self.remember(document)
        except ValueError as error:
            raise Unprocessable(
                f"the corrected version of {fold.instance.definition} cannot be run: {error}"
            ) from error
        if sha256 != asked.document_sha256:
            raise Unprocessable("the corrected version is not the one that was accepted")
        row = DocumentRow(
            sha256=sha256,
            name=document.name,
            version=document.version,
            document=document.dumped(),
            created_at=fold.moment.business,
        )
        await tx.keep_documents([row])
        return self.workflow(sha256, fold.instance.declarations)

    def presumes(self, receipt: Receipt) -> bool:
        """True where a receipt is about a single command in hand, in a pair that had room for all when last seen.

        Its commit compares the version of the case, and who waits for the slot that it frees can be asked after that.
        """
        case = self.cases.look(receipt.workflow_id)
        if case is None or case.instance.definition != COMMAND or case.instance.tenant != receipt.tenant:
            return False
        return case.operations[0].command_id == receipt.command_id and pair_of(case.operations[0]) not in self._short

    async def recall(self, tx: OrchestratorTransaction, moment: Moment, workflow_ids: Sequence[str]) -> dict[str, Fold]:
        """Folds of those cases that are in hand and that nobody else moved since."""
        known = self.cases.take(workflow_ids)
        if not known:
            return {}
        if moment.presumed:
            versions = {key: case.instance.state_version for key, case in known.items()}
        else:
            versions = await tx.versions(workflow_ids)  # of all, as foreseen
        return {
            key: Fold(case, moment, self.terms, workflow=self.workflow_of(case.instance))
            for key, case in known.items()
            if versions.get(key) == case.instance.state_version
        }

    async def load(self, tx: OrchestratorTransaction, moment: Moment, rows: Sequence[JournalRow]) -> dict[str, Fold]:
        """Folds, by case, of stored operations: with instance, open obligations and unpublished history.

        What was read before its case is read again: a commit between the two would be seen in one of them only.
        """
        if not rows:
            return {}
        instances = await tx.instances(sorted({row.workflow_id for row in rows}))
        single = {case.workflow_id for case in instances if case.definition == COMMAND}
        again = sorted(row.command_id for row in rows if row.workflow_id in single)
        return await self.load_cases(tx, moment, instances, await tx.operations(again) if again else [])

    async def load_cases(
        self,
        tx: OrchestratorTransaction,
        moment: Moment,
        instances: Sequence[InstanceRow],
        rows: Sequence[JournalRow] = (),
    ) -> dict[str, Fold]:
        """Folds, by case. Of a single command its operation is among `rows`; a workflow's are loaded whole.

        `rows` are read after `instances`: then who decides on an old operation has an old version of its case, and
        loses the race. The other way round the case may be new and the operation old, and nobody would find out.
        """
        cases = {row.workflow_id: row for row in instances}
        operations: dict[str, list[JournalRow]] = {}
        for row in rows:
            if cases[row.workflow_id].definition == COMMAND:
                operations[row.workflow_id] = [row]
        workflows = [row for row in instances if row.definition != COMMAND]
        foreign: dict[str, JournalRow] = {}
        if workflows:
            foreign = await self._load_workflows(tx, workflows, operations)
        owing = sorted(
            {row.workflow_id for row in workflows}
            | {key for key, own in operations.items() if any(may_owe(row) for row in own)}
        )
        obligations = _by_case(await tx.obligations(owing)) if owing else {}
        lag = {
            key: instance.published_seq
            for key, instance in cases.items()
            if instance.published_seq < instance.history_seq
        }
        history = _by_case(await tx.history_after(lag)) if lag else {}
        folds: dict[str, Fold] = {}
        for key, instance in cases.items():
            if key not in operations:
                continue
            case = Case(instance, tuple(operations[key]), tuple(obligations.get(key, ())), tuple(history.get(key, ())))
            fold = Fold(case, moment, self.terms, workflow=self.workflow_of(instance))
            fold.foreign = foreign
            folds[key] = fold
        return folds

    async def _load_workflows(
        self, tx: OrchestratorTransaction, instances: Sequence[InstanceRow], operations: dict[str, list[JournalRow]]
    ) -> dict[str, JournalRow]:
        """All operations of workflows into `operations`; answers those of other cases that steps are attached to."""
        needed = {row.sha256 for row in instances}
        for sha256 in needed & self._documents.keys():
            self._documents[sha256] = self._documents.pop(sha256)  # used last: what goes is what was not for longest
        unknown = sorted(needed - self._documents.keys())
        for row in await tx.documents(unknown) if unknown else ():
            self.remember(WorkflowDocument.model_validate(row.document))
        attached = {
            step["command_id"] for row in instances for step in row.steps if step.get("attached") and step["command_id"]
        }
        wanted = {command_id for row in instances for command_id in row.operations} | attached
        found = {row.command_id: row for row in await tx.operations(sorted(wanted))} if wanted else {}
        for instance in instances:
            operations[instance.workflow_id] = [found[key] for key in instance.operations]
        return {key: found[key] for key in attached if key in found}

    def remember(self, document: WorkflowDocument) -> str:
        """Keep a document compiled; answers its hash. Raises ValueError for one that cannot be compiled."""
        if document.sha256 not in self._documents:
            self._documents[document.sha256] = (document, Expressions(document))
            if len(self._documents) > DOCUMENTS_MAX:
                del self._documents[next(iter(self._documents))]
        return document.sha256

    def workflow_of(self, instance: InstanceRow) -> Workflow | None:
        """What a case runs by; None for a single command. Raises DeclarationMissing."""
        if instance.definition == COMMAND:
            return None
        return self.workflow(instance.sha256, instance.declarations)

    def workflow(self, sha256: str, pinned: Mapping[str, str]) -> Workflow:
        """A known document with the declarations that a case pinned. Raises DeclarationMissing."""
        if sha256 not in self._documents:
            raise DeclarationMissing(f"the document {sha256}")
        document, expressions = self._documents[sha256]
        declarations: dict[str, CommandDeclaration] = {}
        for command_type, declaration_sha256 in pinned.items():
            found = self.declarations.declaration(declaration_sha256)
            if found is None:
                raise DeclarationMissing(f"{command_type} {declaration_sha256}")
            declarations[command_type] = found
        return Workflow(document, expressions, declarations)

    async def progress(self, tx: OrchestratorTransaction, folds: Iterable[Fold]) -> None:
        """Let workflows move as far as they can: what ended, what follows, what may begin."""
        moving = [fold for fold in folds if fold.workflow is not None]
        if not moving:
            return
        await self._take_locks(tx, moving)
        for _ in range(ROUNDS_MAX):
            wanted = [(fold, item) for fold in moving for item in advance(fold)]
            if not wanted:
                return
            keys = [(fold.instance.tenant, item.key) for fold, item in wanted]
            newest = {(row.tenant, row.idempotency_key): row for row in await tx.newest(keys)}
            identities = {
                (fold.instance.tenant, item.declaration.type, item.identity) for fold, item in wanted if item.identity
            }
            held = {
                holder.identity: holder.command_id
                for holder in (await tx.holders([], sorted(identities)) if identities else ())
                if holder.identity
            }
            further: dict[str, Fold] = {}
            for fold, item in wanted:
                self._begin(fold, item, newest, held)
                if not _just_queues(fold, item):
                    further[fold.instance.workflow_id] = fold
            for fold in {fold.instance.workflow_id: fold for fold, _ in wanted}.values():
                if fold.instance.workflow_id not in further:
                    keep_steps(fold)  # nothing else follows from an effect that queues
            moving = list(further.values())  # the others are at rest
        log.error(
            "a workflow did not come to rest", extra={"workflows": [fold.instance.workflow_id for fold in moving]}
        )

    def _begin(
        self,
        fold: Fold,
        item: Begin,
        newest: dict[tuple[str, str], JournalRow],
        held: dict[Identity, str],
    ) -> None:
        instance, mandate = fold.instance, fold.instance.mandate
        identity = (instance.tenant, item.declaration.type, item.identity) if item.identity else None
        authority = self.authority(
            {
                "tenant": instance.tenant,
                "system": item.declaration.system,
                "command_type": item.declaration.type,
                "definition": instance.definition,
                "version": instance.version,
                "mandate_id": mandate["mandate_id"],
                "decision_id": mandate["decision_id"],
                "capability_id": mandate["capability_id"],
            }
        )
        key = (instance.tenant, item.key)
        holder = newest.get(key)
        if holder is not None:  # as this commit leaves it, where it is one of the case's own
            holder = fold.operations.get(holder.command_id, holder)
        taken = held.get(identity) if identity else None
        if holder is not None and taken == holder.command_id and ended_without_effect(holder):
            taken = None  # its identity is freed with the next commit that touches it
        begin(fold, item, authority, holder=holder, identity_holder=taken)
        row = fold.operation if fold.operations else None
        if row is None or row.idempotency_key != item.key or row.error_code == IDENTITY_IN_USE:
            return
        newest[key] = row  # also one that was refused at once: it has used up its generation
        if identity is not None and row.identity is not None and row.state is OperationState.QUEUED:
            held[identity] = row.command_id

    async def _take_locks(self, tx: OrchestratorTransaction, folds: Sequence[Fold]) -> None:
        """Give locks to cases that wait for them, oldest first."""
        waiting = [fold for fold in folds if not fold.instance.locked and fold.instance.direction == Direction.FORWARD]
        if not waiting:
            return
        wanted = sorted({(fold.instance.tenant, key) for fold in waiting for key in fold.instance.locks})
        rows = await tx.lock_rows(wanted)
        for fold in sorted(waiting, key=lambda item: (item.instance.created_at, item.instance.workflow_id)):
            instance = fold.instance
            since = (instance.created_at, instance.workflow_id)
            before = {
                row.key: row.workflow_id
                for row in rows
                if row.tenant == instance.tenant
                and row.key in instance.locks
                and row.workflow_id != instance.workflow_id
                and (row.held or (row.since, row.workflow_id) < since)
            }
            taken = take_locks(fold, before)
            own = [
                LockRow(
                    tenant=instance.tenant,
                    key=key,
                    workflow_id=instance.workflow_id,
                    held=taken,
                    since=instance.created_at,
                )
                for key in instance.locks
            ]
            if taken or fold.instance.direction == Direction.FORWARD:
                await tx.keep_locks(own, first=fold.created)
                rows = [row for row in rows if row.workflow_id != instance.workflow_id] + own

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
        in_hand = {pair_of(row) for fold in folds.values() for row in waiting_rows(fold)}
        if moment.presumed and not in_hand.issuperset(pairs):
            tx.after_commit(self.freed)
        wanted = sorted(in_hand if moment.presumed else in_hand | set(pairs))
        if not wanted:
            return
        freed = freed_slots(folds.values())
        sizes = {pair: self.windows.size(pair, moment.real) + freed.get(pair, 0) for pair in wanted}
        loads = await self._loads(tx, folds, sizes)
        room = {pair: free(loads[pair], sizes[pair], in_hand=True) for pair in wanted}
        stored = [pair for pair in wanted if loads[pair].locked and loads[pair].queued]
        if stored:
            rows = [row for row in await tx.ready(quotas(room, stored, ADMIT_MAX)) if row.workflow_id not in folds]
            folds.update(await self.recall(tx, moment, sorted({row.workflow_id for row in rows})))
            folds.update(await self.load(tx, moment, [row for row in rows if row.workflow_id not in folds]))
        by_command = {row.command_id: fold for fold in folds.values() for row in waiting_rows(fold)}
        waiting = [
            Waiting(command_id, pair_of(row), row.created_at)
            for command_id, fold in by_command.items()
            if (row := fold.operations[command_id])
        ]
        base = NUMBERS * max((load.number for load in loads.values()), default=0)
        for index, command_id in enumerate(choose(waiting, room, ADMIT_MAX)):
            fold = by_command[command_id].at(command_id)
            try:
                declaration = self.declaration_of(fold, fold.operation)
            except DeclarationMissing:
                log.error("a queued operation waits for its declaration", extra={"command_id": command_id})
                continue
            dispatch(
                fold,
                declaration,
                self.authority_of(fold),
                sequence=base + index,
                grant=grants.get(command_id) if grants else None,
            )

    async def _loads(
        self, tx: OrchestratorTransaction, folds: Mapping[str, Fold], sizes: Mapping[Pair, int]
    ) -> dict[Pair, Load]:
        """How full the pairs are. One decides for a pair alone only where others wait, or where room is short."""
        if not self._short.intersection(sizes):
            loads = await tx.loads(list(sizes), lock=False)
            self._short |= _short_of_room(folds, sizes, loads)
            if not self._short.intersection(sizes):
                return loads
        loads = await tx.loads(list(sizes), lock=True)
        self._short -= set(sizes) - _short_of_room(folds, sizes, loads)
        return loads

    async def move_on(
        self,
        tx: OrchestratorTransaction,
        moment: Moment,
        folds: dict[str, Fold],
        *,
        pairs: Iterable[Pair] = (),
        grants: Mapping[str, AcceptanceGrant] | None = None,
    ) -> None:
        """Progress, then dispatch, then take up what dispatching itself brought about."""
        await self.progress(tx, folds.values())
        before = {key: _states(fold) for key, fold in folds.items()}
        await self.admit(tx, moment, folds, pairs=pairs, grants=grants)
        await self.progress(tx, [fold for key, fold in folds.items() if before.get(key) != _states(fold)])

    async def keep(
        self, tx: OrchestratorTransaction, folds: Iterable[Fold], *, presumed: bool = False
    ) -> list[Outgoing]:
        """Seal and store; answers what is to be sent. What is presumed of a case, only its save checks."""
        sealed = [seal(fold) for fold in folds]
        tx.after_commit(lambda: self.cases.put([_as_stored(decision.case) for decision in sealed]))
        decisions = [decision for decision in sealed if decision.changes]
        if presumed and len(decisions) < len(sealed):
            raise VersionConflict("nothing is saved, and so nothing checks what was presumed of a case")
        if decisions:
            await tx.save(decisions)
            over = [
                decision.case.instance
                for decision in decisions
                if decision.case.instance.locks and _gives_up_locks(decision.case.instance)
            ]
            if over:
                await tx.release(over)
        return [item for decision in decisions for item in decision.outgoing]


def _as_stored(case: Case) -> Case:
    """A case as a load would find it: with its open obligations only."""
    is_open = [row for row in case.obligations if row.status == "open"]
    if len(is_open) == len(case.obligations):
        return case
    return Case(case.instance, case.operations, tuple(is_open), case.unpublished, case.steps)


def _just_queues(fold: Fold, item: Begin) -> bool:
    """True where a step's effect waits for its window, so that nothing else of the case can move by it."""
    row = fold.operations.get(fold.steps[item.step_id].command_id or "")
    return row is not None and row.state is OperationState.QUEUED


def _states(fold: Fold) -> list[OperationState]:
    return [row.state for row in fold.operations.values()]


def _gives_up_locks(instance: InstanceRow) -> bool:
    """True for a case that is over, and for one that turned away while it still queued."""
    queued = not instance.locked and instance.direction != Direction.FORWARD
    return queued or instance.status in INSTANCE_TERMINAL


def pair_of(row: JournalRow) -> Pair:
    """(tenant, system) of an operation."""
    return row.tenant, row.target_system


def ready(row: JournalRow) -> bool:
    """True for a queued operation that waits for nothing but its window."""
    return row.state is OperationState.QUEUED and row.lease_expires_at is None and row.next_retry_at is None


def waiting_rows(fold: Fold) -> list[JournalRow]:
    """Operations of a case that wait for nothing but their window."""
    return [row for row in fold.operations.values() if ready(row)]


def _short_of_room(folds: Mapping[str, Fold], sizes: Mapping[Pair, int], loads: Mapping[Pair, Load]) -> set[Pair]:
    """Pairs for which others wait, or for which more waits in hand than may go out without the pair's lock."""
    in_hand = Counter(pair_of(row) for fold in folds.values() for row in waiting_rows(fold))
    return {
        pair
        for pair, load in loads.items()
        if load.queued or in_hand[pair] > free(replace(load, locked=False), sizes[pair], in_hand=True)
    }


def freed_slots(folds: Iterable[Fold]) -> dict[Pair, int]:
    """How many leases were given back by these folds, by pair."""
    freed: dict[Pair, int] = {}
    for fold in folds:
        for command_id, row in fold.operations.items():
            stored = fold.known.get(command_id)
            if stored is not None and stored.lease_expires_at is not None and row.lease_expires_at is None:
                freed[pair_of(row)] = freed.get(pair_of(row), 0) + 1
    return freed


def _by_case(rows: Iterable[Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for row in rows:
        grouped.setdefault(row.workflow_id, []).append(row)
    return grouped
