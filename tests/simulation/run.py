"""One seed from its first command to rest: chaos first, then a world that is well again, then the judgement."""

from __future__ import annotations

import gc
import logging
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from tests.simulation.bus import BusFaults
from tests.simulation.chaos import Strokes, draw
from tests.simulation.coverage import TABLES, recorded
from tests.simulation.declarations import COMMANDS, EDIT
from tests.simulation.documents import NUMBERS, legal
from tests.simulation.engine import Engine, Process, Sleep, Violation
from tests.simulation.memory import StoreFaults
from tests.simulation.naming import named
from tests.simulation.people import People, Starter, Wanted
from tests.simulation.plane import TENANTS, Plane, reply_to
from tests.simulation.world import WorldFaults
from trueup_common.contracts.canonical import digest, fingerprint
from trueup_common.contracts.declaration import object_of
from trueup_common.contracts.ids import command_id
from trueup_gateway.core.acceptance import Accepted, Replayed, Submission, identity_of
from trueup_gateway.core.refusal import Refused

COMMANDS_MAX: Final = 4
WORKFLOWS_MAX: Final = 3
QUIET_SECONDS: Final = 10.0
"""How long nothing may happen, once the world is well, before business time leaps to the next thing that is due."""
HEAL_SECONDS_MAX: Final = 7200.0
STEPS_MAX: Final = 400_000
TRACE_LINES: Final = 60
CRASHES: Final = 0.001
"""How likely a process dies at any other crash point where a run asks for one."""
COMMAND: Final = "command"
"""The definition of cases that are single commands."""


@dataclass(slots=True)
class Result:
    """What one seed came to."""

    seed: int
    violation: str | None
    trace_hash: str
    trace: list[str]
    steps: int
    simulated_seconds: float
    commands: int = 0
    workflows: int = 0
    coverage: dict[str, Counter[str]] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault struck."""


@dataclass(slots=True)
class Request:
    """What one client wants."""

    number: int
    tenant: str
    declaration: Any
    resource: str
    text: str
    at: float
    repeats: int


class Client:
    """A caller that repeats with the same key until it is answered, and sometimes beyond that."""

    def __init__(self, plane: Plane, request: Request, name: str, answers: list[str]) -> None:
        self.plane = plane
        self.engine = plane.engine
        self.request = request
        self.name = name
        self.answers = answers
        self.asked = 0

    async def run(self) -> None:
        """Ask, and ask again."""
        await Sleep(self.request.at)
        for _ in range(self.request.repeats):
            answer = await self._ask()
            if answer is not None:
                self.answers.append(answer)
            if len(set(self.answers)) > 1:
                raise Violation(f"one key was answered with {sorted(set(self.answers))}")
            await Sleep(self.engine.between(0.0, 6.0))

    async def _ask(self) -> str | None:
        tries = 0
        self.asked += 1
        while True:
            gateways = [p for p in self.plane.processes if p.service == "gateway" and p.alive]
            if gateways:
                process = gateways[self.engine.below(len(gateways))]
                submission = self._submission(process, tries)
                task = process.spawn(accept(self.plane, process, submission), "accept")
                while not task.done:
                    await Sleep(0.05)
                verdict = task.result
                if isinstance(verdict, Accepted):
                    return verdict.submission.command_id
                if isinstance(verdict, Replayed):
                    return verdict.edge.command_id
                if isinstance(verdict, Refused) and verdict.problem.slug not in (
                    "unavailable",
                    "idempotency-in-flight",
                ):
                    return None  # every check applies to repetitions too
            tries += 1
            await Sleep(self.engine.between(0.1, 1.0))

    def _submission(self, process: Process, tries: int) -> Submission:
        request = self.request
        salt = f"{self.engine.seed:x}-{request.number}{self.name}-{self.asked}-{tries}"
        payload = {"text": request.text}
        if request.declaration is EDIT:
            payload["page"] = f"s-{request.resource[-1]}"  # as workflows name them
        target = {"system": request.declaration.system, "resource": request.resource, "expected_version": None}
        return Submission(
            tenant=request.tenant,
            key=f"key-{request.number}",
            fingerprint=fingerprint(request.declaration.type, target, payload),
            identity=identity_of(request.declaration, target, payload),
            capability_id=f"cap_{request.tenant}_{request.declaration.type}",
            command_type=request.declaration.type,
            declaration=request.declaration,
            system=request.declaration.system,
            resource=request.resource,
            expected_version=None,
            payload=payload,
            payload_sha256=digest(payload),
            workflow_id=f"wf_{salt}",
            saga_id=f"saga_{salt}",
            command_id=command_id(f"wf_{salt}", "command", 1),
            deadline_at=self.engine.business() + timedelta(seconds=1800),
            acts_on=object_of(request.declaration, payload),
            reply_to=reply_to(process),
        )


async def accept(plane: Plane, process: Process, submission: Submission) -> Any:
    """The gateway's own acceptance: one transaction, then the publication."""
    acceptor, publisher = plane.acceptors[process.name]
    try:
        verdicts, outgoing = await acceptor._commit([submission])
    except Exception as error:
        return Refused("unavailable", repr(error))
    plane.engine.note(f"accept {submission.key}: {type(verdicts[0]).__name__}")
    if outgoing:
        await publisher.publish(outgoing)
    return verdicts[0]


def _requests(engine: Engine, chaos_seconds: float, least: int, writers: float = 0.0) -> list[Request]:
    requests: list[Request] = []
    for number in range(least + engine.below(COMMANDS_MAX)):
        requests.append(
            Request(
                number=number,
                tenant=TENANTS[engine.below(4) // 3],
                declaration=COMMANDS[engine.below(len(COMMANDS))],
                resource=f"thing-{engine.below(3)}",
                text=f"text {engine.below(COMMANDS_MAX)}",
                at=engine.between(0.0, chaos_seconds * 0.7),
                repeats=1 if engine.chance(0.7) else 2,
            )
        )
        if engine.chance(writers):
            requests[-1].declaration, requests[-1].resource, requests[-1].at = EDIT, "thing-0", 4.0 * number
    return requests


def _workflows(
    engine: Engine, plane: Plane, chaos_seconds: float, least: int, *, pivotal: bool = False
) -> list[Wanted]:
    """Who wants which workflow, about few objects, so that they meet."""
    documents = [legal(engine.below(NUMBERS), pivotal=pivotal) for _ in range(1 + engine.below(2))]
    for document in documents:
        for tenant in TENANTS:
            plane.register(tenant, document)
    wanted = []
    for number in range(least + engine.below(WORKFLOWS_MAX)):
        thing = f"article-{engine.below(2)}"
        text = f"text {engine.below(2)}"
        flag = engine.chance(0.7)
        data = {"id": thing, "shared": f"s-{engine.below(2)}", "text": text, "sha": digest(text), "flag": flag}
        wanted.append(
            Wanted(
                number=number,
                key=f"start-{number if engine.chance(0.9) else 0}",
                tenant=TENANTS[engine.below(4) // 3],
                document=documents[engine.below(len(documents))],
                data=data,
                at=engine.between(0.0, chaos_seconds * 0.6),
                repeats=1 if engine.chance(0.7) else 2,
                actions_max=20 if engine.chance(0.9) else 2,
                on_terminal="return" if engine.chance(0.7) else "revise",
            )
        )
    return wanted


class Run:
    """One seed: single commands, or workflows with the people that they need and a few commands beside them."""

    def __init__(self, seed: int, theme: str | None = None, *, sagas: bool | None = None) -> None:
        self.engine = Engine(seed)
        self.plane = Plane(self.engine)
        self.sagas = seed % 2 == 1 if sagas is None else sagas
        self.profile = draw(self.engine, self.plane, theme, sagas=self.sagas)
        self.plane.crash_point = self.profile.crash_point
        for consumer in self.plane.bus.consumers.values():
            consumer.ack_wait_seconds = self.profile.ack_wait_seconds
        self.strokes = Strokes(self.plane, self.profile)
        self.clients: list[Client | Starter] = []
        chaos = self.profile.chaos_seconds
        for request in self._commands(chaos, themed=theme is not None):
            answers: list[str] = []
            twins = ("", "b", "c") if self.engine.chance(0.15) else ("",)
            self.clients += [Client(self.plane, request, name, answers) for name in twins]
        self.people: People | None = None
        self.plane.surveyed, self.plane.bulk = self.profile.surveyed, self.profile.meddling > 0
        self.plane.thorough = self.profile.thorough
        if self.sagas:
            self._draw_workflows(chaos, themed=theme is not None)
        else:
            pace = self.engine.between(0.5, 4.0)
            self.people = People(self.plane, pace_seconds=pace, meddling=self.profile.meddling, of_workflows=False)

    def _commands(self, chaos_seconds: float, *, themed: bool) -> list[Request]:
        if self.sagas:
            return _requests(self.engine, chaos_seconds, 1)[: self.engine.below(3)]
        return _requests(self.engine, chaos_seconds, COMMANDS_MAX if themed else 1, self.profile.writers)

    def _draw_workflows(self, chaos_seconds: float, *, themed: bool) -> None:
        engine = self.engine
        least = 2 if themed else 1
        for wanted in _workflows(engine, self.plane, chaos_seconds, least, pivotal=self.profile.pivotal):
            answers: list[str] = []
            twins = ("", "b") if engine.chance(0.15) else ("",)
            self.clients += [Starter(self.plane, wanted, name, answers) for name in twins]
        pace = engine.between(0.5, 2.0) if self.profile.pivotal else engine.between(1.0, 8.0)
        self.people = People(self.plane, pace_seconds=pace, meddling=self.profile.meddling)

    def go(self) -> None:
        """Chaos, healing, judgement. Raises Violation."""
        engine, plane = self.engine, self.plane
        plane.start()
        tasks = [plane.clients.spawn(client.run(), "client") for client in self.clients]
        if self.people is not None:
            self.people.start()
        self.strokes.start()
        self._until_time(self.profile.chaos_seconds)
        self.heal()
        limit = engine.now + HEAL_SECONDS_MAX
        changes, quiet_since = -1, engine.now
        while True:
            self._until_time(engine.now + 1.0)
            open_ = "a client waits" if not all(task.done for task in tasks) else plane.judge.settled()
            if open_ is None:
                break
            if engine.now > limit:
                raise Violation(f"no rest {HEAL_SECONDS_MAX:.0f} s after healing: {open_}")
            seen = sum(database.changes_count for database in plane.databases.values())
            if seen != changes:
                changes, quiet_since = seen, engine.now
            elif engine.now - quiet_since > QUIET_SECONDS:
                plane.leap()
                quiet_since = engine.now
        plane.judge.final()

    def heal(self) -> None:
        """From here on everything outside works, and nobody dies any more."""
        plane = self.plane
        self.strokes.over = True
        plane.healed = True
        plane.crash_point = 0.0
        faults = BusFaults()
        plane.bus.faults = faults
        plane.bus.down_until = plane.bus.full_until = 0.0
        plane.world.faults = WorldFaults()
        plane.stale.clear()
        for entry in list(plane.governance.values()):
            if entry.kind == "freeze":
                plane.lift(entry)
        for database in plane.databases.values():
            database.faults = StoreFaults()
            database.down_until = 0.0
        for process in plane.processes:
            process.paused_until = 0.0
        self.engine.note("HEALED")

    def _until_time(self, until: float) -> None:
        engine = self.engine
        step = engine.step
        while engine.now < until:
            if not step():
                raise Violation("nothing will ever happen again")
            if engine.steps > STEPS_MAX:
                raise Violation("too many steps: something turns in circles")


def run_seed(seed: int, theme: str | None = None, *, sagas: bool | None = None, crash_at: str | None = None) -> Result:
    """Run one seed and say what it came to.

    `theme` prescribes its misfortunes, `sagas` whether it is about workflows, and `crash_at` where processes die again
    and again; each makes another run of the seed.
    """
    counts: dict[str, Counter[str]] = {name: Counter() for name in TABLES}
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    violation = None
    run = Run(seed, theme, sagas=sagas)
    if crash_at is not None:
        run.plane.crash_point, run.plane.crash_favourite = max(run.plane.crash_point, CRASHES), crash_at
    try:
        with recorded(counts), named(run.engine):
            run.go()
    except Violation as found:
        violation = str(found)
    except Exception as error:
        violation = f"the simulation itself failed: {error!r}\n{traceback.format_exc()}"
    finally:
        logging.disable(disabled)
        for process in (*run.plane.processes, run.plane.clients):
            process.down()
    plane = run.plane
    run.engine.note(f"END after {run.engine.steps} steps; the next number would be {run.engine.random.random()}")
    counts["operation"].update(plane.coverage["marked"])
    ends: Counter[str] = Counter(row.state.value for row in plane.databases["orchestrator"].rows("operation"))
    instances = plane.databases["orchestrator"].rows("instance")
    return Result(
        seed=seed,
        violation=violation,
        trace_hash=run.engine.trace_hash(),
        trace=run.engine.trace,
        steps=run.engine.steps,
        simulated_seconds=run.engine.now,
        coverage={**plane.coverage, **counts},
        checks=plane.judge.checks + plane.judge.mending.checks,
        ends=ends,
        injected=run.engine.injected,
        commands=sum(row.definition == COMMAND for row in instances),
        workflows=sum(row.definition != COMMAND for row in instances),
    )


@dataclass(slots=True)
class Summary:
    """What many seeds came to."""

    seeds: int = 0
    failed: list[Result] = field(default_factory=list)
    seconds: float = 0.0
    hunted: int = 0
    """How many of the seeds were run besides, for transitions that are rare."""
    steps: int = 0
    commands: int = 0
    workflows: int = 0
    simulated_seconds: float = 0.0
    coverage: dict[str, Counter[str]] = field(default_factory=dict)
    checks: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    """How often each kind of fault struck."""

    def take(self, result: Result) -> None:
        """Add one seed."""
        self.seeds += 1
        self.steps += result.steps
        self.commands += result.commands
        self.workflows += result.workflows
        self.simulated_seconds += result.simulated_seconds
        self._count(result)
        if result.violation is not None:
            self.failed.append(result)

    def add(self, other: Summary) -> None:
        """Add what others came to."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.commands += other.commands
        self.workflows += other.workflows
        self.simulated_seconds += other.simulated_seconds
        self._count(other)
        self.failed += other.failed

    def _count(self, more: Result | Summary) -> None:
        self.checks.update(more.checks)
        self.ends.update(more.ends)
        self.injected.update(more.injected)
        for name, counter in more.coverage.items():
            self.coverage.setdefault(name, Counter()).update(counter)


def run_seeds(first: int, count: int, *, theme: str | None = None, sagas: bool | None = None) -> Summary:
    """Run seeds `first` … `first + count - 1` in this process."""
    summary = Summary()
    begun = time.perf_counter()
    enabled = gc.isenabled()
    gc.disable()
    try:
        for seed in range(first, first + count):
            summary.take(run_seed(seed, theme, sagas=sagas))
            if summary.seeds % 50 == 0:
                gc.collect()
    finally:
        if enabled:
            gc.enable()
    summary.seconds = time.perf_counter() - begun
    return summary
