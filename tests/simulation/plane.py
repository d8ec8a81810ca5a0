"""The whole plane of one seed: two replicas of each service, real handlers and the real loop, on fake ports."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from tests.simulation import stores
from tests.simulation.attempts import Jobs, SimulatedBackground
from tests.simulation.bus import FakeBus, SimulatedPublisher, SimulatedSource
from tests.simulation.checked_desk import CheckedDesk
from tests.simulation.crashing import SimulatedCrashPoints
from tests.simulation.declarations import APPROVED, BY_TYPE, COMMANDS, DECLARATIONS, SYSTEMS
from tests.simulation.engine import EPOCH, Engine, Process, SimulatedSchedule, Sleep
from tests.simulation.gateway_stores import GatewayMemory
from tests.simulation.invariants import Judge
from tests.simulation.memory import MemoryDatabase, MemoryStore
from tests.simulation.mending import ROLE, carry_out, ruled
from tests.simulation.moves import MOVES
from tests.simulation.world import World
from trueup_adapters.authority import GrantAuthority
from trueup_adapters.handler import OutcomeHandler, Scan, TaskHandler
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.governance import GovernanceEntry, key_of
from trueup_common.contracts.grant import GrantClaims
from trueup_common.contracts.journal import JournalRow
from trueup_common.contracts.states import CompensationState, EffectClass, RiskLevel
from trueup_common.contracts.task import Beat
from trueup_common.contracts.topology import answer_subject
from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.documents.payloads import PayloadSchemas
from trueup_common.runtime.catalog import Catalog
from trueup_common.runtime.governance import GovernanceWatch
from trueup_common.runtime.grants import GrantKeys
from trueup_common.runtime.host import Loop
from trueup_common.runtime.ports import StoreBusy
from trueup_common.runtime.timers import DueLoop, Relay
from trueup_gateway.accept import Acceptor
from trueup_gateway.approval_handler import ApprovalHandler
from trueup_gateway.batches import Batches
from trueup_gateway.core.policy import EXECUTE, Act, Answer, Question
from trueup_gateway.core.records import CapabilityRow, DecisionRow, DefinitionRow, FreezeRow
from trueup_gateway.handler import GrantHandler, ViewHandler
from trueup_gateway.rules import Rules
from trueup_gateway.sightings import Sightings
from trueup_gateway.signalling import SignalTaker
from trueup_gateway.starting import Starter
from trueup_orchestrator.core.case import Terms
from trueup_orchestrator.handler import CommandHandler, EventHandler, Timers
from trueup_orchestrator.windows import Windows
from trueup_reconciler.core.budget import Budget
from trueup_reconciler.core.drift import Terms as DriftTerms
from trueup_reconciler.core.ignoring import IgnoreRule
from trueup_reconciler.core.survey import Rounds
from trueup_reconciler.handler import EventsHandler as ReconcilerHandler
from trueup_reconciler.handler import Ticks as ReconcilerTicks
from trueup_reconciler.lookout import Lookout
from trueup_repair_planner.core.incident import Alarm
from trueup_repair_planner.handler import EventsHandler as PlannerHandler
from trueup_repair_planner.handler import Ticks as PlannerTicks
from trueup_repair_planner.handler import rules_of

TENANTS: Final = ("acme", "globex")
REPLICAS: Final = 2
KEYS_DOCUMENT: Final = json.dumps({name: base64.urlsafe_b64encode(name.encode() * 8).decode() for name in SYSTEMS})
IDLE_SECONDS_MAX: Final = 8.0
SCHEDULE: Final = SimulatedSchedule()
BUDGET: Final = Budget(repairs_max=2, delays_seconds=(0.0, 5.0), holds_seconds=900.0, fights_max=2)
"""Small, so that seeds spend it."""
ALARM: Final = Alarm(
    exceptions_min=3,
    window_seconds=600.0,
    probe_seconds=10.0,
    probe_seconds_max=60.0,
    released_per_second=1,
    relapse_min=2,
)
"""So that the few operations of a seed can be an incident."""
ROUNDS: Final = Rounds(period_seconds=120.0, page_seconds=1.0, answer_seconds=15.0)
TERMS: Final = Terms(exception_sla_seconds=1800.0, reminder_seconds=120.0)


class RecordingKeys(GrantKeys):
    """The real keys; what is granted is remembered as ground truth."""

    def __init__(self, keys: GrantKeys, granted: Callable[[GrantClaims], None]) -> None:
        super().__init__(keys._keys)
        self._granted = granted

    def sign(self, system: str, claims: GrantClaims) -> str:
        """Sign and remember."""
        self._granted(claims)
        return super().sign(system, claims)


_KEYS: Final = GrantKeys.read(KEYS_DOCUMENT)


class SimulatedGovernance(GovernanceWatch):
    """The real watch without its bus; a stroke decides whether it is stale."""

    def __init__(self, plane: Plane, process: Process) -> None:
        super().__init__()
        self._plane = plane
        self._process = process
        self.entries = dict(plane.governance)
        self.epoch = 1

    @property
    def stale(self) -> bool:
        """True where a stroke cut this process off."""
        return self._process.name in self._plane.stale


@dataclass(frozen=True, slots=True)
class Permissive:
    """A policy set that permits agents and people everything but a few effects without approval; the planner has what
    the shipped policies give it. Policies have their own tests."""

    sha256: str = "p" * 64

    def ask(self, question: Question | Act) -> Answer:
        """Yes, mostly."""
        if ROLE in question.roles:
            return ruled(question)
        if isinstance(question, Question) and question.action == EXECUTE and question.command_type in APPROVED:
            return Answer(question.approved)
        return Answer(True)


class SimulatedRules:
    """The rule book: everything is permitted, freezes hold back."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane

    @property
    def latest(self) -> Rules:
        """The rules now."""
        freezes = tuple(self._plane.freezes.values())
        return Rules(epoch=1, version=1, policies=Permissive(), freezes=freezes, _answers={})

    async def at(self, tx: Any, epoch: int) -> Rules:
        """The rules now."""
        return self.latest


class Plane:
    """Everything of one seed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.systems = SYSTEMS
        self.budget = BUDGET
        self.alarm = ALARM
        self.planning = rules_of(alarm=ALARM)
        self.payloads = PayloadSchemas()
        self.thorough = False
        """True where somebody ends what nobody could observe in time."""
        self.surveyed = False
        """True where systems are looked through for effects that nobody manages."""
        self.accepted: tuple[IgnoreRule, ...] = ()
        """Drift that somebody accepts for a while."""
        self.bulk = False
        """True where somebody acts in bulk."""
        self.coverage: dict[str, Counter[str]] = {
            name: Counter() for name in ("marked", "points", "crashes", "cases", "ends", "events", "acts", *MOVES)
        }
        self.bus = FakeBus(engine, SYSTEMS)
        self.world = World(engine)
        self.catalog = Catalog.of(DECLARATIONS, [(tenant, system) for tenant in TENANTS for system in SYSTEMS])
        self.databases = {
            name: MemoryDatabase(engine, name, stores.tables_of(*tables)) for name, tables in stores.TABLES.items()
        }
        self.judge = Judge(self)
        for database in self.databases.values():
            database.observers.append(self.judge.committed)
            database.stream_marks = {name: (state.created, 0) for name, state in self.bus.streams.items()}
        self.world.on_transmit = self.judge.transmitted
        self.world.on_effect = self.judge.happened
        self.bus.listeners.append(self._core)
        self.governance: dict[str, GovernanceEntry] = {}
        self.governed_at: dict[str, float] = {}
        """Since when (real) each revocation and freeze is in force."""
        self.freezes: dict[str, FreezeRow] = {}
        self.stale: set[str] = set()
        self.watches: dict[str, SimulatedGovernance] = {}
        self.acceptors: dict[str, tuple[Acceptor, SimulatedPublisher]] = {}
        self.starters: dict[str, Starter] = {}
        self.takers: dict[str, SignalTaker] = {}
        self.gateways: dict[str, tuple[MemoryStore, SimulatedPublisher]] = {}
        self.rules: Any = SimulatedRules(self)
        self.documents: dict[str, WorkflowDocument] = {}
        self.beat_ears: dict[str, tuple[Timers, DueLoop[Any]]] = {}
        self.crash_point = 0.0
        self.crash_favourite: str | None = None
        """The crash point at which processes die often, or the end of the names of several."""
        self.poisons = 0
        self.processes: list[Process] = []
        self.healed = False
        engine.on_crash = self.crash
        starts = {
            "gateway": self._gateway,
            "orchestrator": self._orchestrator,
            "adapters": self._adapters,
            "reconciler": self._reconciler,
            "repair-planner": self._planner,
        }
        for service, start in starts.items():
            for number in range(1, REPLICAS + 1):
                self.processes.append(Process(engine, service, f"{service}-{number}", start))
        self.clients = Process(engine, "clients", "clients", lambda process: None)
        self._seed_authority()

    # what others ask

    @property
    def accepted_count(self) -> int:
        """Accepted commands and workflows: each has a mandate of its own."""
        return len(self.databases["gateway"].tables["mandate"].rows)

    def operation(self, command_id: str) -> JournalRow | None:
        """The journal row as committed."""
        row: JournalRow | None = self.databases["orchestrator"].tables["operation"].rows.get((command_id,))
        return row

    def outlives(self, row: JournalRow) -> bool:
        """True for a repair that was under way when the case of what it repairs turned back."""
        older = self.operation(row.supersedes) if row.supersedes is not None else None
        return older is not None and older.compensation_state is not CompensationState.NONE

    def declaration(self, command_type: str) -> CommandDeclaration:
        """A declaration."""
        return BY_TYPE[command_type]

    # strokes

    def crash(self, process: Process, seconds: float | None = None) -> None:
        """A process dies and comes back after a while."""
        if not process.alive or process is self.clients:
            return
        process.down()
        self.engine.note(f"DOWN {process.name}")
        pause = seconds if seconds is not None else 0.05 if self.healed else self.engine.between(0.05, 6.0)

        def up() -> None:
            if not process.alive:
                process.up()
                self.engine.note(f"UP {process.name}")

        self.engine.call_later(pause, up)

    def govern(self, entry: GovernanceEntry) -> None:
        """A revocation or freeze takes effect: at the gateway at once, at each watch a little later."""
        key = key_of(entry)
        self.governance[key] = entry
        self.governed_at.setdefault(key, self.engine.now)
        self.engine.note(f"GOVERN {key}")
        if entry.scope is not None:
            self.freezes[entry.id] = FreezeRow(
                freeze_id=entry.id,
                tenant="acme",
                scope=entry.scope,
                reason="simulated",
                created_by="seed",
                created_at=self.engine.business(),
                epoch=entry.epoch,
            )
        table = entry.kind.removeprefix("revoked_")
        if table in ("mandate", "decision"):
            rows = self.databases["gateway"].tables[table].rows
            rows[entry.id,] = rows[entry.id,].evolve(revoked_at=self.engine.business())
        for watch in self.watches.values():
            self.engine.call_later(
                self.engine.between(0.0, 2.0), lambda watch=watch: watch.entries.update({key: entry})
            )

    def lift(self, entry: GovernanceEntry) -> None:
        """A freeze is over."""
        key = key_of(entry)
        self.governed_at.pop(key, None)
        if self.governance.pop(key, None) is not None:
            self.freezes.pop(entry.id, None)
            self.engine.note(f"LIFT {key}")
            for watch in self.watches.values():
                self.engine.call_later(0.1, lambda watch=watch: watch.entries.pop(key, None))
            self.engine.call_later(2.5, self._relearn)

    def _relearn(self) -> None:
        for watch in self.watches.values():
            watch.entries = dict(self.governance)

    def leap(self) -> None:
        """Nothing happens by itself any more: business time goes on to the next thing that is due."""
        due = []
        orchestrator, now = self.databases["orchestrator"], self.engine.business()
        for row in orchestrator.rows("instance"):
            if row.closed_at is None:
                due += [row.wake_at, row.deadline_at]
        due += [row.wake_at for row in orchestrator.rows("operation")]
        due += [row.next_at for row in self.databases["reconciler"].rows("settlement")]
        elements = self.databases["reconciler"].rows("element")
        due += [row.next_visit_at for row in elements if row.owed or row.obligation_id is not None]
        planner = self.databases["repair-planner"]
        repairs = [row for row in planner.rows("repair") if row.in_flight]
        due += [row.due_at for row in repairs]
        due += [row.verify_until for row in repairs if row.status == "VERIFYING"]
        due += [row.due_at for row in planner.rows("incident") if row.held_count or row.status != "OPEN"]
        if self.judge.mending.unfound():
            due += [row.next_at for row in self.databases["reconciler"].rows("survey")]
        ahead = [seconds for at in due if at is not None and (seconds := (at - now).total_seconds()) > 0]
        if ahead:
            self.engine.offset += min(ahead)
            self.engine.note(f"LEAP +{min(ahead):.0f} s")

    # wiring

    def start(self) -> None:
        """All processes up."""
        for process in (*self.processes, self.clients):
            process.up()

    def _parts(
        self, process: Process, transaction: type[Any], handlers: dict[str, Any], ticks: dict[str, tuple[Any, float]]
    ) -> tuple[MemoryStore, SimulatedPublisher]:
        store = MemoryStore(self.databases[process.service], process, transaction)
        publisher = SimulatedPublisher(self.bus, process)
        crash = SimulatedCrashPoints(self)
        for durable, handler in handlers.items():
            loop: Loop[Any] = Loop(
                source=SimulatedSource(self.bus, durable),
                store=store,
                handler=handler,
                publisher=publisher,
                crash=crash,
                schedule=SCHEDULE,
            )
            process.spawn(loop.run(), durable)
        for name, (tick, seconds) in ticks.items():
            due: DueLoop[Any] = DueLoop(
                name=name, store=store, tick=tick, publisher=publisher, crash=crash, interval_seconds=seconds
            )
            process.spawn(self._ticking(due, store.database), name)
        relay = Relay(store, publisher, self.bus, SimulatedCrashPoints(self, f"{process.service}-"))  # type: ignore[arg-type]
        process.spawn(self._relaying(process, relay, publisher), "relay")
        return store, publisher

    async def _ticking(self, due: DueLoop[Any], database: MemoryDatabase) -> None:
        """What DueLoop.run does, without its clock; rests longer while nothing changes."""
        pause = due.interval_seconds
        await Sleep(self.engine.between(0.0, pause))
        while True:
            seen = database.changes_count
            sent = 0
            with suppress(StoreBusy):
                sent = await due.once()
            if sent or database.changes_count != seen:
                pause = due.interval_seconds
            else:
                pause = min(pause * 1.7, IDLE_SECONDS_MAX)
            await Sleep(0.01 if sent else pause * self.engine.between(0.7, 1.3))

    async def _relaying(self, process: Process, relay: Relay, publisher: SimulatedPublisher) -> None:
        """What Relay.run does, without its clock; sleeps while there is nothing to mark, to send or to compare."""
        database = self.databases[process.service]
        while True:
            if self.compared(database) and not publisher.confirmed and not database.has_unsent():
                await Sleep(IDLE_SECONDS_MAX, database.mail_signal)
                continue
            await Sleep(0.5)
            await relay.once()

    def compared(self, database: MemoryDatabase) -> bool:
        """True where the relays of a service have noticed every reset of a stream."""
        marks = database.stream_marks
        return all(marks[name][0] == state.created for name, state in self.bus.streams.items())

    def _governance(self, process: Process) -> SimulatedGovernance:
        watch = self.watches[process.name] = SimulatedGovernance(self, process)
        return watch

    def _gateway(self, process: Process) -> None:
        keys = RecordingKeys(_KEYS, self._granted)
        handlers = {
            "gateway-grants": GrantHandler(rules=self.rules, catalog=self.catalog, keys=keys),
            "gateway-approvals": ApprovalHandler(),
            "gateway-views": ViewHandler(),
        }
        batches = Batches(rules=self.rules, catalog=self.catalog, payloads=self.payloads)
        ticks = {"gateway-batches": (batches.tick, 1.0)} if self.bulk else {}
        store, publisher = self._parts(process, GatewayMemory, handlers, ticks)
        acceptor = Acceptor(
            store=store,
            publisher=publisher,
            rules=self.rules,
            keys=keys,
            crash=SimulatedCrashPoints(self),
            schedule=SCHEDULE,
            queue_max=100,
        )
        self.acceptors[process.name] = (acceptor, publisher)
        self.gateways[process.name] = (store, publisher)
        self.starters[process.name] = Starter(
            store=store,
            publisher=publisher,
            rules=self.rules,
            catalog=self.catalog,
            crash=SimulatedCrashPoints(self),
            schedule=SCHEDULE,
            queue_max=100,
        )
        self.takers[process.name] = SignalTaker(
            store=store,
            publisher=publisher,
            crash=SimulatedCrashPoints(self),
            schedule=SCHEDULE,
            queue_max=100,
            sightings=Sightings(),
        )

    def _orchestrator(self, process: Process) -> None:
        desk = CheckedDesk(
            declarations=self.catalog,
            governance=self._governance(process),
            terms=TERMS,
            windows=Windows(3),
        )
        timers = Timers(desk)
        handlers = {
            "orchestrator-commands": CommandHandler(desk),
            "orchestrator-events": EventHandler(desk),
            "orchestrator-signals": EventHandler(desk),
        }
        ticks = {
            "orchestrator-due": (timers.due, 0.5),
            "orchestrator-queue": (timers.queue, 0.5),
        }
        store, publisher = self._parts(process, stores.OrchestratorMemory, handlers, ticks)
        beats: DueLoop[Any] = DueLoop(
            name="orchestrator-beats",
            store=store,
            tick=timers.beats,
            publisher=publisher,
            crash=SimulatedCrashPoints(self),
        )
        self.beat_ears[process.name] = (timers, beats)

    def _reconciler(self, process: Process) -> None:
        ticks = ReconcilerTicks()
        lookout = Lookout(rounds=ROUNDS if self.surveyed else None)
        timers: dict[str, Any] = {
            "reconciler-settlements": (ticks.settlements, 0.5),
            "reconciler-visits": (ticks.visits, 1.0),
        }
        if self.surveyed:
            timers["reconciler-surveys"] = (lookout.surveys, 2.0)
        handler = ReconcilerHandler(DriftTerms(budget=BUDGET, rules=self.accepted), lookout=lookout)
        self._parts(process, stores.ReconcilerMemory, {"reconciler-events": handler}, timers)

    def _planner(self, process: Process) -> None:
        ticks = PlannerTicks(self.planning)
        store, publisher = self._parts(
            process,
            stores.PlannerMemory,
            {"repair-planner-events": PlannerHandler(self.planning)},
            {
                "repair-planner-deadlines": (ticks.deadlines, 4.0),
                "repair-planner-verifications": (ticks.verifications, 4.0),
                "repair-planner-incidents": (ticks.incidents, 4.0),
            },
        )
        process.spawn(carry_out(self, process, store, publisher), "repairs")

    def _adapters(self, process: Process) -> None:
        worker = f"{process.name}#{process.incarnation}"
        jobs = {system: Jobs(self.engine, system) for system in self.systems}
        crash = SimulatedCrashPoints(self)
        background = SimulatedBackground(self.world, process, jobs, crash, worker, self._beat)
        authority = GrantAuthority(_KEYS, self._governance(process))
        handlers: dict[str, Any] = {
            f"adapters-{system}": TaskHandler(
                system=system,
                authority=authority,
                declarations=self.catalog,
                background=background,
                worker=worker,
                monotonic=lambda: self.engine.now,
                send_window_seconds=3.0,
            )
            for system in self.systems
        }
        scan = Scan(declarations=self.catalog, background=background, process=process.name, worker=worker)
        store, publisher = self._parts(process, stores.AdaptersMemory, handlers, {"adapters-scan": (scan.tick, 1.0)})
        for queue in jobs.values():
            outcomes: Loop[Any] = Loop(
                source=queue,
                store=store,
                handler=OutcomeHandler(),
                publisher=publisher,
                crash=crash,
                schedule=SCHEDULE,
            )
            process.spawn(outcomes.run(), queue.name)

    def _beat(self, beat: Beat) -> None:
        """A beat reaches every orchestrator that is there, or does not."""
        for process in self.processes:
            ear = self.beat_ears.get(process.name)
            if ear is None or not process.alive:
                continue
            if self.engine.strikes("core message lost", self.bus.faults.lost_progress):
                continue
            timers, due = ear
            timers.heard(beat)
            process.spawn(_once(due), due.name)

    # ground truth

    def _granted(self, claims: GrantClaims) -> None:
        until = claims.exp - EPOCH.timestamp()
        known = self.judge.granted.get((claims.op, claims.fence), 0.0)
        self.judge.granted[claims.op, claims.fence] = max(known, float(until))

    def _core(self, message: Any) -> None:
        if message.type == "CaseAnswered":
            self.judge.answered(message)

    def _seed_authority(self) -> None:
        for tenant in TENANTS:
            for declaration in COMMANDS:
                self._authorise(tenant, declaration.type, [declaration], system=declaration.system)

    def register(self, tenant: str, document: WorkflowDocument) -> None:
        """A tenant's workflow document, with the authority to start it."""
        self.documents[document.name] = document
        row = DefinitionRow(
            tenant=tenant,
            name=document.name,
            version=document.version,
            sha256=document.sha256,
            document=document.dumped(),
            text="",
            created_by="seed",
            created_at=self.engine.business(),
        )
        self.databases["gateway"].tables["definition"].rows[tenant, document.name, document.version] = row
        declarations = [BY_TYPE[name] for name in document.command_types]
        self._authorise(tenant, document.name, declarations, system="*", document=document)

    def _authorise(
        self,
        tenant: str,
        name: str,
        declarations: Sequence[CommandDeclaration],
        *,
        system: str,
        document: WorkflowDocument | None = None,
    ) -> None:
        gateway, now = self.databases["gateway"], self.engine.business()
        later, types = now + timedelta(days=30), [item.type for item in declarations]
        decision = DecisionRow(
            decision_id=f"dec_{tenant}_{name}",
            tenant=tenant,
            subject=f"agent@{tenant}",
            roles=["agent"],
            command_types=types,
            workflow=document.name if document else None,
            definition_version=document.version if document else None,
            document_sha256=document.sha256 if document else None,
            system=system,
            resource="*",
            purpose="simulated",
            declarations={item.type: item.sha256 for item in declarations},
            effect_class_max=EffectClass.IRREVERSIBLE,
            outcome="approved",
            risk_score=10,
            risk_level=RiskLevel.HIGH if {"alpha.publish", "alpha.release"} & set(types) else RiskLevel.LOW,
            risk_factors=[],
            policy_version=1,
            policy_sha256=Permissive().sha256,
            determining_policies=[],
            created_at=now,
            expires_at=later,
        )
        gateway.tables["decision"].rows[decision.decision_id,] = decision
        capability = CapabilityRow(
            capability_id=f"cap_{tenant}_{name}",
            tenant=tenant,
            decision_id=decision.decision_id,
            subject=decision.subject,
            command_types=types,
            workflow=decision.workflow,
            system=system,
            resource="*",
            max_uses=100,
            uses_left=100,
            created_at=now,
            expires_at=later,
        )
        gateway.tables["capability"].rows[capability.capability_id,] = capability


async def _once(due: DueLoop[Any]) -> None:
    """One tick; a busy store means: later."""
    with suppress(StoreBusy):
        await due.once()


def reply_to(process: Process) -> str:
    """Where a gateway replica hears of ends."""
    return answer_subject(process.name)
