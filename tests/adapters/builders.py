"""Tasks, declarations and an adapter process without a world, for the tests of the ledger and the handlers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import BaseModel
from tests.adapters.memory import START, Ledger, run

from trueup_adapters.core.effect import EffectRow
from trueup_adapters.core.job import Finished, FinishedMessage, Job, LookJob, SendJob, job_id, tenant_and_system
from trueup_adapters.handler import OutcomeHandler, Scan, TaskHandler
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.envelope import Message, Outgoing
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.ids import attempt_id
from trueup_common.contracts.states import EffectClass, Findability
from trueup_common.contracts.task import ExecuteTask, FindTask, Found, Operation, Receipt, Target
from trueup_common.contracts.topology import task_subject
from trueup_common.runtime.ports import StoreBusy

SYSTEM: Final = "alpha"
TENANT: Final = "acme"
TIMEOUT_SECONDS: Final = 4.0
LATE_SECONDS: Final = 3.0
START_SECONDS: Final = 5.0
_numbers = itertools.count(1)


def declare(**changes: Any) -> CommandDeclaration:
    """A plain declaration."""
    values: dict[str, Any] = {
        "type": "alpha.put",
        "system": SYSTEM,
        "title": "Put",
        "permission": "alpha:put",
        "effect_class": EffectClass.RETRYABLE,
        "payload_schema": {"type": "object"},
        "findability": Findability.MARKER,
        "timeout_seconds": TIMEOUT_SECONDS,
        "late_window_seconds": LATE_SECONDS,
        "start_window_seconds": START_SECONDS,
        "success_condition": "it is there",
        **changes,
    }
    return CommandDeclaration(**values)


DECLARATION: Final = declare()


def operation(
    command_id: str = "cmd_1", payload: Any = None, declaration: CommandDeclaration = DECLARATION
) -> Operation:
    """An operation."""
    body = {"text": "x"} if payload is None else payload
    return Operation(
        command_id=command_id,
        workflow_id=f"wf_{command_id}",
        tenant=TENANT,
        command_type=declaration.type,
        declaration_sha256=declaration.sha256,
        target=Target(system=SYSTEM, resource="thing"),
        payload=body,
        payload_sha256=digest(body),
        idempotency_key=f"key-{command_id}",
    )


def execute(fence: int = 1, *, of: Operation | None = None, now: datetime = START, **changes: Any) -> ExecuteTask:
    """An execute task."""
    about = of or operation()
    values: dict[str, Any] = {
        "operation": about,
        "fence": fence,
        "attempt_id": attempt_id(about.command_id, fence),
        "start_by": now + timedelta(seconds=START_SECONDS),
        "lease_expires_at": now + timedelta(seconds=START_SECONDS + TIMEOUT_SECONDS),
        "grant": "granted",
        **changes,
    }
    return ExecuteTask(**values)


def find(fence: int, *, of: Operation | None = None) -> FindTask:
    """A find task."""
    about = of or operation()
    return FindTask(operation=about, fence=fence, find_id=f"fnd_{about.command_id}_{fence}", settlement_id="stl_1")


def message(task: BaseModel, *, subject: str | None = None, id_: str | None = None, tenant: str = TENANT) -> Message:
    """A task as it is delivered."""
    return Message(
        id=id_ or f"msg-{next(_numbers)}",
        type=type(task).__name__,
        subject=subject or task_subject(SYSTEM, "execute", tenant),
        tenant=tenant,
        source="test",
        time=START,
        data=task.model_dump_json().encode(),
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )


class Permit:
    """An authority that grants everything, or names a check."""

    def __init__(self) -> None:
        self.refused: str | None = None

    def check(self, task: ExecuteTask, declaration: CommandDeclaration, now: datetime) -> GrantClaims | str:
        """What the test wants."""
        return self.refused or GrantClaims.model_construct(jti=f"grt_{task.attempt_id}")


class Process:
    """One incarnation of an adapters process: both loops' handlers and the scan; its jobs are run by the test."""

    def __init__(
        self, ledger: Ledger, name: str = "adapters#1", declarations: Sequence[CommandDeclaration] = ()
    ) -> None:
        self.ledger = ledger
        self.jobs: list[Job] = []
        self.permit = Permit()
        self.known = {item.sha256: item for item in (*declarations, DECLARATION)}
        self.tasks = TaskHandler(
            system=SYSTEM,
            authority=self.permit,
            declarations=self,
            background=self,
            worker=name,
            monotonic=self.monotonic,
            send_window_seconds=100.0,
        )
        self.outcomes = OutcomeHandler()
        self.scan = Scan(declarations=self, background=self, process=name.split("#", maxsplit=1)[0], worker=name)

    def declaration(self, sha256: str) -> CommandDeclaration | None:
        """The Declarations port."""
        return self.known.get(sha256)

    def start(self, job: Job) -> None:
        """The Background port."""
        self.jobs.append(job)

    def monotonic(self) -> float:
        """The clock of the process runs with the ledger's."""
        return (self.ledger.now - START).total_seconds() + 1000.0

    def deliver(self, *tasks: BaseModel, settle: bool = True) -> list[Outgoing]:
        """One batch through the first loop; without `settle` the process dies after the commit."""
        return self._through(self.tasks, [message(task) for task in tasks], settle=settle)

    def deliver_as(self, tenant: str, task: BaseModel) -> list[Outgoing]:
        """One task under another tenant's subject."""
        return self._through(self.tasks, [message(task, tenant=tenant)])

    def finish(self, *finished: Finished) -> list[Outgoing]:
        """Finished jobs through the second loop."""
        messages = []
        for item in finished:
            tenant, _ = tenant_and_system(item.job)
            messages.append(
                FinishedMessage(
                    id=job_id(item.job), type="Sent", subject="s", tenant=tenant, source="t", time=START, data=b"{}",
                    traceparent=item.job.traceparent, finished=item,
                )
            )  # fmt: skip
        return self._through(self.outcomes, messages)

    def _through(self, handler: Any, messages: list[Message], *, settle: bool = True) -> list[Outgoing]:
        return run(self._process(handler, messages, settle))

    async def _process(self, handler: Any, messages: list[Message], settle: bool) -> list[Outgoing]:
        for number in range(5):
            try:
                async with self.ledger.transaction() as tx:
                    known = None
                    if handler.foresee(tx, messages) and not number:
                        known = tx.presume("test", [])
                    moment, _ids = known or await tx.claim("test", [])
                    outgoing = list(await handler.handle(tx, replace(moment, repeated=number > 0), messages))
                    await tx.post(outgoing)
                break
            except StoreBusy:
                continue
        else:
            raise AssertionError("the store never gave in")
        if settle:
            await handler.settled(messages)
        return outgoing

    def look_around(self) -> None:
        """One tick of the scan."""

        async def tick() -> None:
            async with self.ledger.transaction() as tx:
                moment, _ids = await tx.claim("scan", [])
                assert not await self.scan.tick(tx, moment)

        with suppress(StoreBusy):  # the timer looks again at its next tick
            run(tick())

    @property
    def sends(self) -> list[SendJob]:
        """Attempts that were started."""
        return [job for job in self.jobs if isinstance(job, SendJob)]

    @property
    def looks(self) -> list[LookJob]:
        """Look-ups that were started."""
        return [job for job in self.jobs if isinstance(job, LookJob)]

    def row(self, command_id: str = "cmd_1") -> EffectRow:
        """The ledger row."""
        return self.ledger.effects[command_id]


def receipts(outgoing: Sequence[Outgoing]) -> list[Receipt]:
    """Receipts among what was sent."""
    return [Receipt.model_validate_json(o.message.data) for o in outgoing if o.message.type == "Receipt"]


def answers(outgoing: Sequence[Outgoing]) -> list[Found]:
    """Answers to finds among what was sent."""
    return [Found.model_validate_json(o.message.data) for o in outgoing if o.message.type == "Found"]
