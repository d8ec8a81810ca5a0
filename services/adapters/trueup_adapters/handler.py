"""The two loops of an adapter: task → ledger → ack → job, and finished job → ledger → receipt.

Nothing is sent inside a transaction. `settled` starts what the commit allowed; whatever dies after that is taken over
by the scan, which looks and never sends.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from trueup_adapters.core.advance import entomb, keep_cursor, late_until, raise_fence, refuse, send
from trueup_adapters.core.effect import Action, AttemptRow, EffectRow, decide
from trueup_adapters.core.fold import (
    Attempt,
    Folded,
    Look,
    Purpose,
    answer_attempt,
    fold_finding,
    fold_outcome,
)
from trueup_adapters.core.job import Finished, FinishedMessage, Job, Looked, LookJob, Probed, ProbeJob, SendJob, Sent
from trueup_adapters.core.receipt import finding_of_receipt, receipt_of_outcome, shifted, storable_observation
from trueup_adapters.core.survey import compared, is_survey, operations_of
from trueup_adapters.store import AdaptersTransaction, Changes, ObjectKey
from trueup_common.contracts.adapter import LeaseLost, Outcome, not_sent
from trueup_common.contracts.declaration import CommandDeclaration, target_of
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.shape import json_bytes
from trueup_common.contracts.states import FindVerdict, ReceiptStatus
from trueup_common.contracts.task import ExecuteTask, FindTask, Found, Observed, ProbeTask, Receipt
from trueup_common.contracts.topology import event_subject
from trueup_common.runtime.host import Unprocessable
from trueup_common.runtime.ports import Foreseeing, Moment, Store, VersionConflict

B = TypeVar("B", bound=BaseModel)

LOOK_AGAIN_SECONDS: Final = 30.0
SCAN_LIMIT: Final = 200
PROPOSED_MAX: Final = 10_000
PROGRESS_TRIES: Final = 5


class Background(Protocol):
    """Runs jobs outside the loops and hands what they came to to the second loop."""

    def start(self, job: Job) -> None:
        """Begin; returns at once."""
        ...


class Authority(Protocol):
    """Whether an attempt may be sent now."""

    def check(self, task: ExecuteTask, declaration: CommandDeclaration, now: datetime) -> GrantClaims | str:
        """The grant's claims, or the name of the check that fails."""
        ...


class Declarations(Protocol):
    """Declarations by hash."""

    def declaration(self, sha256: str) -> CommandDeclaration | None:
        """The declaration with this hash, None where it is not known here."""
        ...


class Monotonic(Protocol):
    """Seconds that only grow."""

    def __call__(self) -> float:
        """Now."""
        ...


@dataclass(slots=True)
class _Batch:
    """The rows of one transaction while its messages are folded in order."""

    moment: Moment
    monotonic_seconds: float = 0.0
    stored: dict[str, int] = field(default_factory=dict)
    rows: dict[str, EffectRow] = field(default_factory=dict)
    touched: dict[str, None] = field(default_factory=dict)
    attempts: dict[tuple[str, str], AttemptRow] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    holders: dict[ObjectKey, set[str]] = field(default_factory=dict)
    """Of the objects that attempts of this batch have to have alone: the operations that have them."""

    def load(self, rows: Iterable[EffectRow]) -> None:
        """Rows as stored."""
        for row in rows:
            self.rows[row.command_id] = row
            self.stored[row.command_id] = row.state_version

    def put(self, row: EffectRow) -> EffectRow:
        """A changed row, with the version that it will have. Answers it as it will be committed."""
        version = self.stored.get(row.command_id, 0) + 1
        if row.state_version != version:
            row = row.evolve(state_version=version)
        self.rows[row.command_id] = row
        self.touched[row.command_id] = None
        return row

    def current(self, job: Job) -> Job:
        """A job with its row as it will be committed: later messages of the same batch may have moved it on."""
        return job if isinstance(job, ProbeJob) else replace(job, row=self.rows[job.row.command_id])

    def _outcomes(self) -> Iterable[tuple[str, str]]:
        return ((self.rows[row.command_id].system, row.status) for row in self.attempts.values())

    def changes(self) -> Changes:
        """What is to be saved."""
        changed = [self.rows[command_id] for command_id in self.touched]
        return Changes(
            new=tuple(row for row in changed if row.command_id not in self.stored),
            moved=tuple(row for row in changed if row.command_id in self.stored),
            attempts=tuple(self.attempts.values()),
            outcomes=(*self.refused, *self._outcomes()),
        )


def _outgoing(
    place: tuple[str, str, str], message_id: str, body: BaseModel, at: datetime, cause: Message | str | None
) -> Outgoing:
    """An event of an adapter. `place` is (system, kind, tenant); `cause` the message, or the trace, it follows from."""
    system, kind, tenant = place
    follows = cause if isinstance(cause, Message) else None
    return Outgoing(
        Message(
            id=message_id,
            type=type(body).__name__,
            subject=event_subject(f"adapter.{system}", kind, tenant),
            tenant=tenant,
            source=f"adapter.{system}",
            time=at,
            data=json_bytes(body),
            traceparent=follows.traceparent if follows is not None else cause,  # type: ignore[arg-type]
            causation_id=follows.id if follows is not None else None,
        )
    )


def receipt_message(receipt: Receipt, at: datetime, cause: Message | str | None) -> Outgoing:
    """A receipt on its way to the orchestrator; the same answer always has the same id."""
    message_id = f"{receipt.attempt_id}:{receipt.status.value}" + (":found" if receipt.found else "")
    return _outgoing((receipt.system, "receipt", receipt.tenant), message_id, receipt, at, cause)


def found_message(
    task: FindTask,
    row: EffectRow,
    finding: Finding,
    at: datetime,
    cause: Message | str | None,
    *,
    provable_at: datetime | None = None,
) -> Outgoing:
    """The answer to a find task."""
    operation = task.operation
    found = Found.trusted(
        find_id=task.find_id,
        settlement_id=task.settlement_id,
        command_id=operation.command_id,
        workflow_id=operation.workflow_id,
        tenant=operation.tenant,
        system=operation.target.system,
        fence=row.fence,
        finding=finding,
        ledger_status=row.status.value,
        provable_at=provable_at,
        found_at=at,
    )
    return _outgoing((operation.target.system, "found", operation.tenant), task.find_id, found, at, cause)


def _is_final(row: EffectRow, now: datetime) -> bool:
    """True where the last attempt would have answered by now if it could."""
    return row.look_at is None or now >= row.look_at


def _read(message: Message, model: type[B]) -> B:
    try:
        return model.model_validate_json(message.data)
    except ValidationError as error:
        raise Unprocessable(f"not a {model.__name__}: {error.error_count()} errors") from error


_MODELS: Final[dict[str, type[ExecuteTask] | type[FindTask] | type[ProbeTask]]] = {
    "ExecuteTask": ExecuteTask,
    "FindTask": FindTask,
    "ProbeTask": ProbeTask,
}


class TaskHandler(Foreseeing):
    """The first loop: what the ledger table says about each task is committed, acked, and then started."""

    def __init__(
        self,
        *,
        system: str,
        authority: Authority,
        declarations: Declarations,
        background: Background,
        worker: str,
        monotonic: Monotonic,
        send_window_seconds: float,
    ) -> None:
        self.system = system
        self.authority = authority
        self.declarations = declarations
        self.background = background
        self.worker = worker
        self.monotonic = monotonic
        self.send_window = timedelta(seconds=send_window_seconds)
        self._jobs: list[Job] = []
        self._proposed: dict[str, datetime | None] = {}
        """When this process meant to send an attempt, by which the row tells whether it was that transaction that was
        kept, and not an earlier one of the same task; None once the attempt has begun."""
        self._tasks: dict[str, ExecuteTask | FindTask | ProbeTask] = {}
        """What the messages of the batch at hand say, as far as they can be read."""

    @property
    def inbox(self) -> bool:
        """Fences keep duplicates out."""
        return False

    def foresee(self, tx: AdaptersTransaction, messages: Sequence[Message]) -> bool:
        """The ledger rows of all operations. Those of first attempts are presumed not to be there."""
        self._tasks.clear()
        for message in messages:
            if message.id not in self._tasks:
                with contextlib.suppress(Unprocessable):
                    self._tasks[message.id] = self._task(message)
        ids = _operations(self._tasks.values())
        if ids:
            tx.foresee_effects(ids)
        return len(self._tasks) == len(messages) and all(map(_is_first, self._tasks.values()))

    async def handle(self, tx: AdaptersTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Fold a batch of tasks into the ledger."""
        asked = moment.asked_at_seconds
        batch = _Batch(moment, self.monotonic() if asked is None else asked)
        tasks = [(message, self._read_ahead(message)) for message in messages]
        ids = _operations(task for _, task in tasks)
        if ids and not moment.presumed:
            batch.load(await tx.effects(ids))
        objects = self._objects(batch, [task for _, task in tasks])
        if objects:
            batch.holders = await tx.holders(self.system, objects, moment.real)
        for message, task in tasks:
            if isinstance(task, ExecuteTask):
                self._execute(batch, message, task)
            elif isinstance(task, FindTask):
                self._find(batch, message, task)
            else:
                batch.jobs.append(ProbeJob(task, message.traceparent))
        changes = batch.changes()
        if changes.new or changes.moved:
            await tx.save(changes)
        self._jobs = [batch.current(job) for job in batch.jobs]
        return batch.outgoing

    async def settled(self, messages: Sequence[Message]) -> None:
        """Start what was committed."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            if isinstance(job, SendJob):
                self._proposed[job.attempt.attempt_id] = None
            self.background.start(job)

    def _task(self, message: Message) -> ExecuteTask | FindTask | ProbeTask:
        model = _MODELS.get(message.type)
        if model is None:
            raise Unprocessable(f"unknown task type {message.type!r}")
        task: ExecuteTask | FindTask | ProbeTask = _read(message, model)
        if isinstance(task, ProbeTask):
            system, tenant = task.system, task.tenant
        else:
            system, tenant = task.operation.target.system, task.operation.tenant
        if system != self.system or tenant != message.tenant:
            raise Unprocessable("system or tenant of the task differ from its subject")
        return task

    def _read_ahead(self, message: Message) -> ExecuteTask | FindTask | ProbeTask:
        """The task of a message. Raises Unprocessable."""
        task: ExecuteTask | FindTask | ProbeTask | None = self._tasks.pop(message.id, None)
        return self._task(message) if task is None else task

    def _objects(self, batch: _Batch, tasks: Iterable[ExecuteTask | FindTask | ProbeTask]) -> list[ObjectKey]:
        """What attempts that may begin here have to have alone. Looking is held up by nobody."""
        found: set[ObjectKey] = set()
        for task in tasks:
            if isinstance(task, ExecuteTask):
                declaration = self.declarations.declaration(task.operation.declaration_sha256)
                row, is_decided = batch.rows.get(task.operation.command_id), task.decided_by is not None
                key = _object(task, declaration) if declaration is not None else None
                if key is not None and decide(row, task.fence, decided=is_decided) is Action.SEND:
                    found.add(key)
        return sorted(found)

    def _execute(self, batch: _Batch, message: Message, task: ExecuteTask) -> None:
        operation, now = task.operation, batch.moment.real
        row = batch.rows.get(operation.command_id)
        if row is not None and (row.payload_sha256, row.tenant) != (operation.payload_sha256, operation.tenant):
            raise Unprocessable("one operation has one intent: the ledger holds another payload under this id")
        action = decide(row, task.fence, decided=task.decided_by is not None)
        if action is Action.SEND:
            self._send(batch, message, task, row)
            return
        if row is None:
            raise AssertionError("only sending makes sense without a row")
        if action is Action.STALE:
            stale = Outcome(status=ReceiptStatus.STALE, error_code="stale", error_detail=f"fence {row.fence} is known")
            receipt = receipt_of_outcome(operation, stale, attempt_id=task.attempt_id, fence=task.fence, ended_at=now)
            batch.outgoing.append(receipt_message(receipt, now, message))
        elif action is Action.LOOK_UP:
            look = Look(
                purpose=Purpose.EXECUTE,
                fence=task.fence,
                last_attempt_id=row.attempt_id,
                answer_attempt_id=task.attempt_id,
                answer_fence=task.fence,
                begun_at=now,
                final=_is_final(row, now),
            )
            row = batch.put(raise_fence(row, task.fence, now))
            self._look(batch, message, row, look, None)
        elif action is Action.ANSWER_STORED:
            self._answer(batch, message, task, row)
        elif row.attempt_id == task.attempt_id and row.worker == self.worker and self._never_started(batch, task, row):
            self._start(batch, message, row)

    def _never_started(self, batch: _Batch, task: ExecuteTask, row: EffectRow) -> bool:
        """True for an attempt that this very process committed while it was told that its transaction had failed.

        Not for a second copy of a task in one batch: the first one starts with this commit.
        """
        begins = any(isinstance(job, SendJob) and job.attempt.attempt_id == task.attempt_id for job in batch.jobs)
        return row.sent_at is not None and self._proposed.get(task.attempt_id) == row.sent_at and not begins

    def _send(self, batch: _Batch, message: Message, task: ExecuteTask, row: EffectRow | None) -> None:
        moment, operation = batch.moment, task.operation
        declaration = self.declarations.declaration(operation.declaration_sha256)
        granted: GrantClaims | str
        key = _object(task, declaration) if declaration is not None else None
        if declaration is None or declaration.type != operation.command_type:
            granted = "declaration_unknown"
        elif moment.real > task.start_by:
            granted = "start_by_passed"
        elif task.deadline_at is not None and moment.business >= task.deadline_at:
            granted = "deadline_passed"
        elif key is not None and batch.holders.get(key, set()) - {operation.command_id}:
            granted = "object_busy"
        else:
            granted = self.authority.check(task, declaration, moment.real)
        if isinstance(granted, str) or declaration is None:
            outcome = not_sent(str(granted))
            receipt = receipt_of_outcome(
                operation, outcome, attempt_id=task.attempt_id, fence=task.fence, ended_at=moment.real
            )
            batch.put(refuse(row, task, receipt, moment.real))
            batch.refused.append((self.system, receipt.status.value))
            batch.outgoing.append(receipt_message(receipt, moment.real, message))
            return
        sent = send(
            row,
            task,
            declaration,
            now=moment.real,
            send_by=min(task.start_by, moment.real + self.send_window),
            worker=self.worker,
            grant_id=granted.jti,
            object_key=None if key is None else key[1],
            traceparent=message.traceparent,
        )
        if key is not None:
            batch.holders.setdefault(key, set()).add(operation.command_id)
        if self._proposed.get(task.attempt_id, moment.real) is not None:
            self._proposed[task.attempt_id] = moment.real
        if len(self._proposed) > PROPOSED_MAX:
            self._proposed.pop(next(iter(self._proposed)))
        self._start(batch, message, batch.put(sent))

    def _start(self, batch: _Batch, message: Message, row: EffectRow) -> None:
        declaration = self.declarations.declaration(row.operation.declaration_sha256)
        if declaration is None or row.send_by is None or row.sent_at is None or row.attempt_id is None:
            return
        attempt = Attempt(
            attempt_id=row.attempt_id,
            fence=row.sent_fence,
            sent_at=row.sent_at,
            late_until=late_until(row.send_by, declaration),
        )
        left = (row.send_by - batch.moment.real).total_seconds()
        batch.jobs.append(SendJob(row, attempt, declaration, batch.monotonic_seconds + left, message.traceparent))

    def _answer(self, batch: _Batch, message: Message, task: ExecuteTask, row: EffectRow) -> None:
        """The stored answer, under the name of the attempt that asks. A receipt itself never changes."""
        now, stored = batch.moment.real, row.receipt
        if stored is None:
            outcome = not_sent(f"ledger_{row.status.value.lower()}")
            stored = receipt_of_outcome(
                task.operation, outcome, attempt_id=task.attempt_id, fence=task.fence, ended_at=now
            )
        if task.fence > row.fence:
            batch.put(raise_fence(row, task.fence, now))
        if stored.attempt_id != task.attempt_id:
            found = stored.found or stored.status is ReceiptStatus.CONFIRMED
            stored = stored.evolve(attempt_id=task.attempt_id, fence=task.fence, found=found)
        batch.outgoing.append(receipt_message(stored, now, message))

    def _find(self, batch: _Batch, message: Message, task: FindTask) -> None:
        operation, now = task.operation, batch.moment.real
        row = batch.rows.get(operation.command_id)
        action = decide(row, task.fence, find=True)
        if row is not None and action is Action.STALE:
            finding = Finding(verdict=FindVerdict.UNKNOWN, reason="stale")
            batch.outgoing.append(found_message(task, row, finding, now, message))
            return
        if row is not None and action is Action.ANSWER_STORED and row.receipt is not None:
            row = batch.put(raise_fence(row, task.fence, now))
            finding = (
                finding_of_receipt(row.receipt) if row.receipt is not None else Finding(verdict=FindVerdict.UNKNOWN)
            )
            batch.outgoing.append(found_message(task, row, finding, now, message))
            return
        last_attempt_id = row.attempt_id if row is not None else None
        final = row is None or _is_final(row, now)
        row = batch.put(entomb(task, now) if row is None else raise_fence(row, task.fence, now))
        answer_attempt_id, answer_fence = answer_attempt(row)
        look = Look(
            purpose=Purpose.FIND,
            fence=task.fence,
            last_attempt_id=last_attempt_id,
            answer_attempt_id=answer_attempt_id,
            answer_fence=answer_fence,
            begun_at=now,
            final=final,
        )
        self._look(batch, message, row, look, task)

    def _look(self, batch: _Batch, message: Message, row: EffectRow, look: Look, task: FindTask | None) -> None:
        declaration = self.declarations.declaration(row.operation.declaration_sha256)
        if declaration is None:
            raise Unprocessable(f"declaration {row.operation.declaration_sha256[:12]} is not known here")
        batch.jobs.append(LookJob(row, look, declaration, task, message.traceparent))


def _object(task: ExecuteTask, declaration: CommandDeclaration) -> ObjectKey | None:
    """The object that an attempt has to have alone; None for types that need none."""
    if not declaration.exclusive:
        return None
    operation = task.operation
    return operation.tenant, target_of(declaration, operation.payload, operation.target.resource)


def _is_first(task: ExecuteTask | FindTask | ProbeTask) -> bool:
    """True for the task of an operation's first attempt."""
    return isinstance(task, ExecuteTask) and task.fence == 1


def _operations(tasks: Iterable[ExecuteTask | FindTask | ProbeTask]) -> list[str]:
    """The operations that tasks are about."""
    return sorted({task.operation.command_id for task in tasks if not isinstance(task, ProbeTask)})


class OutcomeHandler(Foreseeing):
    """The second loop: what jobs came to goes into the ledger, and the receipt into the outbox, in one commit."""

    @property
    def inbox(self) -> bool:
        """Versions keep duplicates out."""
        return False

    def foresee(self, tx: AdaptersTransaction, messages: Sequence[Message]) -> bool:
        """Attempts move the rows that they committed; what looks found is judged by rows and time as they are now."""
        return all(isinstance(message, FinishedMessage) and isinstance(message.finished, Sent) for message in messages)

    async def handle(self, tx: AdaptersTransaction, moment: Moment, messages: Sequence[Message]) -> Sequence[Outgoing]:
        """Fold a batch of finished jobs."""
        batch = _Batch(moment)
        finished = [_finished(message) for message in messages]
        await self._load(tx, batch, finished)
        shift = moment.business - moment.real
        managed = await self._managed(tx, finished)
        for item in finished:
            match item:
                case Sent():
                    self._sent(batch, item, shift)
                case Looked():
                    self._looked(batch, item, shift)
                case Probed():
                    self._probed(batch, item, shift, managed)
        changes = batch.changes()
        if changes.new or changes.moved or changes.attempts:
            await tx.save(changes)
        return batch.outgoing

    async def settled(self, messages: Sequence[Message]) -> None:
        """Nothing follows a receipt here."""

    async def _load(self, tx: AdaptersTransaction, batch: _Batch, finished: Sequence[Finished]) -> None:
        """Rows of attempts as they were committed: folding an attempt always moves its row, so the save checks them.

        Whatever a look says is judged by the row as it stands now, and so is everything that is folded once more.
        """
        known: dict[str, EffectRow] = {}
        again: set[str] = set()
        for item in finished:
            if isinstance(item, Probed):
                continue
            row = item.job.row
            if isinstance(item, Looked) or row.command_id in known or batch.moment.repeated:
                again.add(row.command_id)
            known[row.command_id] = row
        batch.load(row for command_id, row in known.items() if command_id not in again)
        if again:
            batch.load(await tx.effects(sorted(again)))

    async def _managed(self, tx: AdaptersTransaction, finished: Sequence[Finished]) -> frozenset[str]:
        """Of the operations that surveys found marks of, those that stand in the ledger."""
        marked: set[str] = set()
        for item in finished:
            if isinstance(item, Probed) and is_survey(item.job.task):
                marked.update(*(operations_of(observation) for observation in item.observations))
        return frozenset(row.command_id for row in await tx.effects(sorted(marked))) if marked else frozenset()

    def _sent(self, batch: _Batch, sent: Sent, shift: timedelta) -> None:
        job = sent.job
        row = _row(batch, job.row)
        outcome = sent.outcome
        if outcome.observations:
            outcome = _with_observations(outcome, shift)
        folded = fold_outcome(row, job.attempt, outcome, batch.moment.real)
        self._keep(batch, folded)
        if folded.receipt is not None:
            batch.outgoing.append(receipt_message(folded.receipt, batch.moment.real, job.traceparent))

    def _looked(self, batch: _Batch, looked: Looked, shift: timedelta) -> None:
        job, now = looked.job, batch.moment.real
        finding: Finding = looked.finding
        if finding.observations:
            finding = finding.evolve(observations=tuple(shifted(item, shift) for item in finding.observations))
        row = _row(batch, job.row)
        folded = fold_finding(row, job.look, finding, job.declaration, now)
        self._keep(batch, folded)
        row = batch.rows[row.command_id]
        if job.task is not None and folded.finding is not None:
            message = found_message(job.task, row, folded.finding, now, job.traceparent, provable_at=folded.provable_at)
            batch.outgoing.append(message)
        if folded.receipt is not None:
            batch.outgoing.append(receipt_message(folded.receipt, now, job.traceparent))

    def _keep(self, batch: _Batch, folded: Folded) -> None:
        if folded.row is not None:
            batch.put(folded.row)
        if folded.attempt is not None:
            batch.attempts.setdefault((folded.attempt.attempt_id, folded.attempt.status), folded.attempt)

    def _probed(self, batch: _Batch, probed: Probed, shift: timedelta, managed: frozenset[str]) -> None:
        task, observations = probed.job.task, probed.observations
        if is_survey(task):
            observations = [compared(observation, managed) for observation in observations]
        observed = Observed(
            visit_id=task.visit_id,
            tenant=task.tenant,
            system=task.system,
            resource=task.resource,
            command_id=task.command_id,
            observations=tuple(shifted(storable_observation(item), shift) for item in observations),
            observed_at=batch.moment.business,
        )
        place = (task.system, "observed", task.tenant)
        message_id = f"{task.visit_id}:observed"
        batch.outgoing.append(_outgoing(place, message_id, observed, batch.moment.real, probed.job.traceparent))


def _finished(message: Message) -> Finished:
    if not isinstance(message, FinishedMessage) or message.finished is None:
        raise Unprocessable("not a finished job of this process")
    return message.finished


def _row(batch: _Batch, known: EffectRow) -> EffectRow:
    row = batch.rows.get(known.command_id)
    if row is None:
        raise Unprocessable(f"the ledger has no row for {known.command_id}")
    return row


def _with_observations(outcome: Outcome, shift: timedelta) -> Outcome:
    return replace(outcome, observations=tuple(shifted(item, shift) for item in outcome.observations))


class Scan:
    """The timer beside the loops: open rows nobody answers for are looked up, never sent."""

    def __init__(self, *, declarations: Declarations, background: Background, process: str, worker: str) -> None:
        self.declarations = declarations
        self.background = background
        self.process = process
        self.worker = worker
        self.unknown_declarations: set[str] = set()
        """Hashes that open operations need and that are not known here: the process is unready while there are any."""
        self._is_started = False

    async def tick(self, tx: AdaptersTransaction, moment: Moment) -> Sequence[Outgoing]:
        """Begin look-ups: at the start for what this process left behind, then for whatever is due."""
        begun: list[EffectRow] = []
        if not self._is_started:
            begun += await tx.left_behind(self.process, self.worker, SCAN_LIMIT)
            self._is_started = True
        due = await tx.overdue(moment.real, SCAN_LIMIT)
        moved = [
            row.evolve(
                look_at=moment.real + timedelta(seconds=LOOK_AGAIN_SECONDS),
                state_version=row.state_version + 1,
                updated_at=moment.real,
            )
            for row in due
        ]
        if moved:
            await tx.save(Changes(moved=tuple(moved)))
        overdue = {row.command_id for row in due}
        for row in moved:
            self._look(row, moment.real, final=True)
        for row in begun:
            if row.command_id not in overdue:
                self._look(row, moment.real, final=False)
        return ()

    def _look(self, row: EffectRow, begun_at: datetime, *, final: bool) -> None:
        declaration = self.declarations.declaration(row.operation.declaration_sha256)
        if declaration is None:
            self.unknown_declarations.add(row.operation.declaration_sha256)
            return
        self.unknown_declarations.discard(declaration.sha256)
        attempt_id, fence = answer_attempt(row)
        look = Look(
            purpose=Purpose.SCAN,
            fence=row.fence,
            last_attempt_id=row.attempt_id,
            answer_attempt_id=attempt_id,
            answer_fence=fence,
            begun_at=begun_at,
            final=final,
        )
        self.background.start(LookJob(row, look, declaration, None, row.traceparent))


async def keep_progress(store: Store[AdaptersTransaction], job: SendJob, cursor: dict[str, Any], consumer: str) -> None:
    """Store an attempt's cursor. Raises LeaseLost where a higher fence stands in the ledger or the row moved on."""
    for _ in range(PROGRESS_TRIES):
        try:
            async with store.transaction() as tx:
                moment, _ = await tx.claim(consumer, [])
                rows = await tx.effects([job.row.command_id])
                kept = (
                    keep_cursor(rows[0], job.attempt.attempt_id, cursor, job.declaration, moment.real) if rows else None
                )
                if kept is None:
                    raise LeaseLost
                await tx.save(Changes(moved=(kept.evolve(state_version=kept.state_version + 1),)))
            return
        except VersionConflict:
            continue
    raise LeaseLost
