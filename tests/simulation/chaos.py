"""Which misfortunes a seed brings: a profile drawn once, and single strokes while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tests.simulation.bus import BusFaults
from tests.simulation.crashing import OF_ATTEMPTS
from tests.simulation.documents import BEFORE, PIVOTS
from tests.simulation.engine import EPOCH, Engine, Process
from tests.simulation.memory import StoreFaults
from tests.simulation.world import WorldFaults
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ApprovalDecided
from trueup_common.contracts.governance import FreezeScope, GovernanceEntry
from trueup_common.contracts.topology import STREAMS, command_subject, event_subject, grant_subject
from trueup_reconciler.core.ignoring import IgnoreRule
from trueup_repair_planner.core.repair import SENT, RepairRow
from trueup_repair_planner.gateway_client import SUBJECT

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

CALM: Final = 0.06
"""Share of seeds without any fault: the plain path must stay plain."""


THEMED: Final = 0.6
"""Share of seeds with a theme."""
SAGA_THEMES: Final = ("undo", "impatient", "forward", "operators", "unseen")
THEMES: Final = (
    "late",
    "orphan",
    "blind",
    "crashes",
    "echo",
    "refusals",
    "liar",
    "word",
    "stale",
    "deaf",
    "vandals",
    "operators",
    "outsiders",
    "menders",
    "outage",
    "writers",
)
ALONE: Final = frozenset({"liar", "word", "deaf", "forward"})
"""Themes whose point is lost among many other misfortunes: mostly they come alone."""


@dataclass(slots=True)
class Profile:
    """How much of what."""

    chaos_seconds: float = 20.0
    strokes: dict[str, float] = field(default_factory=dict)
    """Mean seconds between strokes of one kind."""
    crash_point: float = 0.0
    ack_wait_seconds: float = 30.0
    pivotal: bool = False
    """True where every workflow has a pivot."""
    thorough: bool = False
    """True where somebody ends what nobody could observe in time: no case may wait for it for ever."""
    writers: float = 0.0
    """How likely a command edits one and the same page, about when the others do."""
    surveyed: bool = False
    """True where systems are looked through for what nobody manages."""
    meddling: float = 0.0
    """How likely an operator cancels, pauses or resumes when they look at a case."""


def draw(engine: Engine, plane: Plane, theme: str | None = None, *, sagas: bool = False) -> Profile:
    """The profile of this seed; sets the faults of bus, stores and world. `theme` brings certain ones."""
    pick = engine.random.random
    profile = Profile(chaos_seconds=engine.between(15.0, 45.0) if sagas else engine.between(8.0, 40.0))
    if pick() < CALM and theme is None:
        return profile

    def some(probability: float, most: float) -> float:
        return most * pick() ** 2 if pick() < probability else 0.0

    bus, world = plane.bus.faults, plane.world.faults
    bus.lost_publish = some(0.4, 0.3)
    bus.lost_confirmation = some(0.4, 0.3)
    bus.lost_progress = some(0.5, 0.9)
    bus.duplicate = some(0.5, 0.3)
    bus.doubled = some(0.2, 0.3)
    bus.lost_ack = some(0.4, 0.3)
    bus.delay = some(0.5, 0.5)
    bus.delay_seconds = 0.2 if pick() < 0.5 else 12.0 * pick()
    bus.reorder = pick() < 0.5
    bus.gathered = some(0.3, 0.4)
    bus.slow = {name: engine.between(2.0, 45.0) for name in plane.bus.consumers if pick() < 0.08}
    for database in plane.databases.values():
        database.faults.busy = some(0.3, 0.1)
        database.faults.lost_commit = some(0.3, 0.1)
    world.refused = some(0.3, 0.4)
    world.lost_request = some(0.4, 0.5)
    world.lost_answer = some(0.5, 0.8)
    world.late = some(0.5, 0.9)
    world.rate_limited = some(0.3, 0.4)
    world.unavailable = some(0.3, 0.5)
    world.permanent = some(0.2, 0.3)
    world.business = some(0.15, 0.3)
    world.locked_out = some(0.15, 0.3)
    world.no_access = some(0.3, 0.6)
    world.unproven = some(0.3, 0.8)
    world.lag = some(0.4, 0.8)
    world.lag_seconds = 3.0 * pick()
    world.slow_seconds = 0.05 if pick() < 0.6 else 3.0 * pick()
    world.rewrite = some(0.4, 1.0)
    world.explode = some(0.15, 0.3)
    world.ambiguous = some(0.1, 0.5)
    world.slow_worker = some(0.25, 0.7)
    world.slow_look = some(0.25, 0.9)
    world.vandal = some(0.3, 1.0)
    profile.crash_point = some(0.3, 0.02)
    if pick() < 0.15:
        for process in plane.processes:
            process.ahead_seconds = (0.0, 0.0, 300.0, -300.0)[engine.below(4)]
            engine.injected["a replica's own clock five minutes off"] += process.ahead_seconds != 0
    profile.ack_wait_seconds = (30.0, 2.0, 6.0)[engine.below(3)]
    for kind, probability, fastest in (
        ("crash", 0.6, 1.0),
        ("pause", 0.5, 1.5),
        ("bus_down", 0.2, 8.0),
        ("full", 0.15, 8.0),
        ("empty", 0.12, 10.0),
        ("jump", 0.25, 6.0),
        ("set_back", 0.15, 6.0),
        ("vandal", 0.3, 4.0),
        ("revoke", 0.08, 10.0),
        ("freeze", 0.1, 8.0),
        ("stale", 0.1, 6.0),
        ("poison", 0.1, 8.0),
        ("stall", 0.15, 8.0),
        ("outage", 0.2, 8.0),
        ("database_down", 0.2, 6.0),
    ):
        if pick() < probability:
            profile.strokes[kind] = fastest + 12.0 * pick()
    if pick() < 0.1:
        profile.surveyed, profile.strokes["forge_mark"] = True, 4.0 + 12.0 * pick()
    if pick() < 0.05:
        _rewrite_for_ever(engine, plane)
    if pick() < 0.05:
        _accept_for_a_while(engine, plane)
    profile.meddling = 0.25 if pick() < (0.5 if sagas else 0.25) else 0.0
    if sagas:
        world.there_already = some(0.3, 0.8)
        for kind, probability, fastest in (("jump", 0.5, 5.0), ("forge", 0.3, 4.0), ("revoke", 0.15, 8.0)):
            if pick() < probability:
                profile.strokes[kind] = fastest + 12.0 * pick()
    if theme is not None or pick() < THEMED:
        themes = (*THEMES, *SAGA_THEMES, *SAGA_THEMES) if sagas else THEMES
        _bring(theme or themes[engine.below(len(themes))], engine, plane, profile)
    return profile


def _bring(theme: str, engine: Engine, plane: Plane, profile: Profile) -> None:
    """Some misfortunes matter only together: a theme brings a few of them at full strength."""
    engine.note(f"theme {theme}")
    if theme in ALONE and engine.chance(0.7):
        plane.bus.faults, plane.world.faults, profile.strokes = BusFaults(), WorldFaults(slow_seconds=0.05), {}
        for database in plane.databases.values():
            database.faults = StoreFaults()
    bus, world, faults = plane.bus.faults, plane.world, plane.world.faults
    if theme == "late":
        faults.late, faults.slow_worker, faults.slow_look, faults.slow_seconds = 0.8, 0.05, 0.7, 0.05
        faults.no_access = faults.explode = 0.0
        faults.lost_request = faults.unavailable = faults.permanent = faults.business = 0.0
    elif theme == "orphan":
        bus.slow = {f"adapters-{system}": 40.0 for system in plane.systems}
        profile.strokes["crash"] = 2.0
        faults.slow_worker, faults.slow_worker_seconds = 0.4, 20.0
        faults.business, faults.permanent = 0.15, 0.15
        profile.meddling = 0.2
    elif theme == "blind":
        faults.lost_answer, faults.late, faults.no_access, faults.unproven = 0.5, 0.4, 0.4, 0.9
        faults.lag, faults.lag_seconds = 0.8, 4.0
    elif theme == "crashes":
        profile.strokes["crash"], profile.crash_point = 0.7, 0.02
        plane.crash_favourite = OF_ATTEMPTS[engine.below(len(OF_ATTEMPTS))]
    elif theme == "echo":
        bus.duplicate, bus.delay, bus.delay_seconds, bus.reorder = 0.6, 0.4, 12.0, True
        profile.ack_wait_seconds = 2.0
    elif theme == "liar":
        world.honest, faults.liar_seconds = False, 25.0
        faults.slow_worker_seconds = 30.0
        profile.strokes["set_ahead"] = 8.0
        faults.late, faults.lag, faults.lag_seconds, faults.slow_worker = 0.3, 0.9, 25.0, 0.9
        faults.lost_answer = faults.lost_request = faults.no_access = faults.unproven = 0.0
        faults.slow_look = 0.6
        bus.slow = {f"adapters-{system}": 12.0 for system in plane.systems}
        bus.duplicate, profile.ack_wait_seconds = 0.6, 2.0
    elif theme == "undo":
        faults.permanent, faults.business = 0.25, 0.05
        faults.late, faults.lost_answer, faults.there_already = 0.3, 0.3, 0.5
        profile.strokes["set_back"] = profile.strokes["vandal"] = 5.0
        faults.vandal = 0.5
    elif theme == "impatient":
        profile.strokes["jump"], profile.strokes["forge"] = 2.0, 6.0
    elif theme == "word":  # attempts speak for themselves after somebody else looked
        if engine.chance(0.6):
            bus.slow = {"reconciler-events": 40.0}
        else:
            bus.slow, faults.slow_look = {"orchestrator-events": 12.0, "reconciler-events": 30.0}, 0.5
        faults.slow_worker, faults.slow_worker_seconds, faults.no_access = 0.8, 25.0, 0.6
        faults.business, faults.permanent, faults.rate_limited, faults.lost_answer = 0.2, 0.25, 0.3, 0.2
    elif theme == "deaf":  # word of attempts comes when their leases are gone, and nobody settles meanwhile
        bus.slow = {"orchestrator-events": 40.0, "reconciler-events": 60.0}
        faults.business, faults.permanent, faults.rate_limited, faults.lost_answer = 0.2, 0.2, 0.2, 0.3
        faults.no_access = faults.lost_request = faults.refused = 0.0
        profile.meddling = 0.3
    elif theme == "operators":  # much ends badly, and people do something about it, often twice
        faults.permanent, faults.business, faults.rate_limited, faults.unavailable = 0.3, 0.25, 0.3, 0.2
        faults.lost_answer, faults.ambiguous, faults.no_access, faults.lost_request = 0.3, 0.7, 0.3, 0.3
        profile.meddling, profile.chaos_seconds = 0.7, 60.0
        for kind in ("freeze", "stale", "outage", "database_down", "full", "bus_down"):
            profile.strokes.pop(kind, None)
    elif theme == "vandals":
        faults.vandal, faults.rewrite, profile.strokes["vandal"] = 0.9, 0.3, 1.5
        profile.crash_point, profile.chaos_seconds = 0.02, 75.0
    elif theme == "outsiders":  # strangers change, remove, throw away and forge; a target keeps what it wants
        faults.vandal, profile.strokes["vandal"], profile.strokes["forge_mark"] = 0.6, 3.0, 6.0
        faults.permanent = faults.business = faults.unavailable = 0.0
        profile.surveyed = True
        if engine.chance(0.4):
            _rewrite_for_ever(engine, plane)
        elif engine.chance(0.7):
            _accept_for_a_while(engine, plane)
    elif theme == "menders":  # much is to be repaired, and repairs meet freezes, revocations and bad ends
        faults.vandal, profile.strokes["vandal"], profile.chaos_seconds = 0.8, 2.5, 60.0
        faults.permanent, faults.locked_out, faults.rate_limited, faults.lost_answer = 0.1, 0.15, 0.3, 0.2
        profile.strokes["freeze_repair"], profile.strokes["revoke_repair"] = 6.0, 1.0
        profile.strokes["jump"], profile.meddling = 4.0, 0.2
        faults.lag = faults.no_access = 0.0
        plane.crash_favourite = ("asked", "decide", "authorize", "command", "operate")[engine.below(5)]
        profile.crash_point = 0.01
    elif theme == "outage":  # a target is away until many have died; what is held comes back a little at a time
        faults.unavailable, faults.refused = 0.95, 0.3
        faults.lost_answer = faults.lost_request = faults.late = faults.business = faults.permanent = 0.0
        faults.no_access = faults.ambiguous = faults.explode = 0.0
        profile.chaos_seconds, profile.strokes["jump"] = 60.0, 5.0
        profile.meddling = 0.3 if engine.chance(0.5) else 0.0
        for kind in ("freeze", "outage", "database_down", "stall", "revoke"):
            profile.strokes.pop(kind, None)
    elif theme == "writers":  # several want the same page, and nobody knows for long what became of a write
        profile.writers = 0.8
        faults.late, faults.lost_answer, faults.lost_request, faults.slow_seconds = 0.5, 0.4, 0.2, 3.0
        faults.permanent = faults.business = faults.unavailable = 0.0
        faults.slow_worker, profile.ack_wait_seconds = 0.4, 6.0
    elif theme == "unseen":  # what was established does not stay, and people end what nobody can observe
        faults.vandal, profile.strokes["vandal"], profile.thorough = 0.9, 1.5, True
        faults.permanent = faults.business = 0.0
        for kind in ("freeze", "stale", "outage", "database_down", "full", "bus_down", "revoke"):
            profile.strokes.pop(kind, None)
        if engine.chance(0.5):
            _rewrite_for_ever(engine, plane)
    elif theme == "forward":  # all goes well until the pivot, and badly after it
        spares = engine.chance(0.5)
        faults.spared = frozenset(BEFORE) | frozenset(PIVOTS if spares else ())
        faults.rate_limited, faults.permanent, faults.lost_answer, faults.ambiguous = 0.4, 0.1, 0.3, 0.8
        faults.lost_request, faults.refused, faults.late, faults.no_access = 0.5, 0.0, 0.0, 0.0
        if spares:
            faults.rate_limited, faults.permanent = 0.6, 0.15
        bus.slow, profile.pivotal = {}, True
        for kind in ("jump", "crash", "outage", "stall", "database_down", "revoke", "freeze"):
            profile.strokes.pop(kind, None)
    elif theme == "stale":  # workers that were thought dead come back
        bus.lost_progress, faults.slow_seconds = 0.0, 3.9
        profile.strokes["pause"], profile.strokes["stall"] = 1.5, 10.0
    else:
        faults.refused, faults.rate_limited, faults.unavailable, faults.lost_answer = 0.3, 0.3, 0.3, 0.3
        faults.locked_out = 0.1


def _rewrite_for_ever(engine: Engine, plane: Plane) -> None:
    """One kind of element stays as the target wants it, whatever is written; healing changes nothing about that."""
    plane.world.stubborn = frozenset({("note.text", "draft.text", "page.text")[engine.below(3)]})
    engine.injected["a target that rewrites for ever"] += 1


def _accept_for_a_while(engine: Engine, plane: Plane) -> None:
    """Somebody accepts a difference of one kind of element, for some minutes."""
    element = ("note.text", "draft.text", "page.text")[engine.below(3)]
    rule = IgnoreRule(
        id="simulated",
        tenant="acme",
        system="alpha",
        element=element,
        since=EPOCH - timedelta(hours=1),
        until=EPOCH + timedelta(seconds=engine.between(20.0, 600.0)),
        reason="it is being moved by hand",
        owner="operators",
    )
    plane.accepted = (rule,)
    engine.injected["a difference that is accepted for a while"] += 1


class Strokes:
    """Single misfortunes at random times."""

    def __init__(self, plane: Plane, profile: Profile) -> None:
        self.plane = plane
        self.engine = plane.engine
        self.profile = profile
        self.over = False

    def start(self) -> None:
        """Begin."""
        for kind, mean in self.profile.strokes.items():
            self._next(getattr(self, kind), mean)

    def _next(self, stroke: Callable[[], None], mean: float) -> None:
        def strike() -> None:
            if not self.over:
                stroke()
                self._next(stroke, mean)

        self.engine.call_later(mean * 2 * self.engine.random.random(), strike)

    def _struck(self, kind: str, note: str) -> None:
        self.engine.injected[kind] += 1
        self.engine.note(note)

    def crash(self) -> None:
        """A process dies between two steps."""
        process = self._any()
        if process.alive:
            self.engine.injected["crash between any two steps"] += 1
        self.plane.crash(process)

    def pause(self) -> None:
        """A process stands still (and comes back with stale memories)."""
        process = self._any()
        seconds = self.engine.between(0.2, 4.0) if self.engine.chance(0.6) else self.engine.between(4.0, 25.0)
        process.paused_until = max(process.paused_until, self.engine.now + seconds)
        self._struck("a replica stands still and comes back", f"PAUSE {process.name} for {seconds:.1f} s")

    def stall(self) -> None:
        """Everything of ours stands still while the world goes on (a suspended machine)."""
        seconds = self.engine.between(2.0, 30.0)
        for process in self.plane.processes:
            process.paused_until = max(process.paused_until, self.engine.now + seconds)
        self._struck("everything stands still and comes back", f"STALL for {seconds:.1f} s")

    def outage(self) -> None:
        """All replicas of one service are gone for a while."""
        service = self._any().service
        seconds = self.engine.between(2.0, 25.0)
        self._struck("all replicas of a service gone", f"OUTAGE of {service}")
        for process in self.plane.processes:
            if process.service == service:
                self.plane.crash(process, seconds)

    def database_down(self) -> None:
        """One service cannot reach its database."""
        databases = list(self.plane.databases.values())
        database = databases[self.engine.below(len(databases))]
        database.down_until = self.engine.now + self.engine.between(0.5, 15.0)
        self._struck("database gone", f"DATABASE of {database.service} down")

    def bus_down(self) -> None:
        """The broker is away."""
        self.plane.bus.down_until = self.engine.now + self.engine.between(0.5, 8.0)
        self._struck("broker gone", "BUS down")

    def full(self) -> None:
        """The streams are at their limit: they refuse, and drop nothing."""
        self.plane.bus.full_until = self.engine.now + self.engine.between(0.5, 8.0)
        self.engine.note("BUS full")

    def empty(self) -> None:
        """A stream is lost and made anew."""
        self.engine.injected["stream emptied"] += 1
        self.plane.bus.empty(STREAMS[self.engine.below(len(STREAMS))].name)

    def jump(self) -> None:
        """Business time jumps ahead."""
        seconds = self.engine.between(1.0, 60.0) if self.engine.chance(0.7) else self.engine.between(60.0, 5000.0)
        self.engine.offset += seconds
        self._struck("business clock jumps ahead", f"CLOCK +{seconds:.0f} s")

    def set_back(self) -> None:
        """The databases' clock is set back, business time with it; nothing may happen twice or too early for that."""
        seconds = self.engine.between(0.1, 3.0) if self.engine.chance(0.5) else self.engine.between(3.0, 40.0)
        self.engine.set_back(seconds)
        self._struck("database clock jumps back", f"CLOCK -{seconds:.1f} s")

    def set_ahead(self) -> None:
        """The databases' clock is set ahead: then even a late window that passed may not have."""
        seconds = self.engine.between(1.0, 30.0)
        self.engine.set_back(-seconds)
        self._struck("database clock jumps ahead", f"CLOCK set ahead by {seconds:.1f} s")

    def vandal(self) -> None:
        """A stranger changes things."""
        self.plane.world.vandalise()

    def forge_mark(self) -> None:
        """A stranger copies an object with its marker, or removes such a copy."""
        world, plane = self.plane.world, self.plane
        if self.engine.chance(0.3):
            world.unforge()
        else:
            places = [(row.tenant, row.system) for row in plane.databases["reconciler"].rows("element")]
            if places:
                world.forge(*places[self.engine.below(len(places))])

    def freeze_repair(self) -> None:
        """Effects on a system are held back just when something there is being repaired."""
        repair = self._at_work()
        if repair is not None and repair.system in self.plane.systems:
            self.engine.injected["frozen during a repair"] += 1
            self._freeze(repair.system, undoing=False)

    def revoke_repair(self) -> None:
        """The authority of a repair is taken away while it is at work: decision, mandate or capability."""
        gateway, engine = self.plane.databases["gateway"], self.engine
        repairs = self.plane.databases["repair-planner"].rows("repair")
        mended = {row.request["supersedes"] for row in repairs if row.status in SENT and row.request is not None}
        rows = [row for row in gateway.rows("decision") if row.subject == SUBJECT and row.supersedes in mended]
        rows = [row for row in rows if row.revoked_at is None]
        if not rows:
            return
        decision = rows[engine.below(len(rows))]
        mandates = [row for row in gateway.rows("mandate") if row.decision_id == decision.decision_id]
        kind, name = "decision", decision.decision_id
        if mandates and engine.chance(0.5):
            kind, name = "mandate", mandates[0].mandate_id
        capabilities = gateway.tables["capability"].rows
        for key, row in list(capabilities.items()):
            if row.decision_id == decision.decision_id and engine.chance(0.5):
                capabilities[key] = row.evolve(revoked_at=engine.business())
        engine.injected["revoked during a repair"] += 1
        self.plane.govern(GovernanceEntry(kind=f"revoked_{kind}", id=name, epoch=2))

    def _at_work(self) -> RepairRow | None:
        rows = self.plane.databases["repair-planner"].rows("repair")
        rows = [row for row in rows if row.status in SENT]
        return rows[self.engine.below(len(rows))] if rows else None

    def revoke(self) -> None:
        """The authority of one case is taken away."""
        mandates = self.plane.databases["gateway"].rows("mandate")
        if mandates:
            row = mandates[self.engine.below(len(mandates))]
            kind, name = (("mandate", row.mandate_id), ("decision", row.decision_id))[self.engine.below(2)]
            self.engine.injected["authority revoked"] += 1
            self.plane.govern(GovernanceEntry(kind=f"revoked_{kind}", id=name, epoch=2))

    def freeze(self) -> None:
        """Everything of one system is held back for a while."""
        system = self.plane.systems[self.engine.below(len(self.plane.systems))]
        self._freeze(system, undoing=self.engine.chance(0.3))

    def _freeze(self, system: str, *, undoing: bool) -> None:
        scope = FreezeScope(system=system, compensation=undoing)
        entry = GovernanceEntry(kind="freeze", id=f"frz{'c' if undoing else ''}_{system}", epoch=2, scope=scope)
        self.engine.injected["effects frozen"] += 1
        self.plane.govern(entry)
        self.engine.call_later(self.engine.between(1.0, 12.0), lambda: self.plane.lift(entry))

    def stale(self) -> None:
        """One process no longer hears of governance."""
        name = self._any().name
        self._struck("governance unheard", f"STALE {name}")
        self.plane.stale.add(name)
        self.engine.call_later(self.engine.between(1.0, 10.0), lambda: self.plane.stale.discard(name))

    def poison(self) -> None:
        """A message that nobody can read."""
        number = self.engine.below(10**9)
        subject = (
            command_subject("acme"),
            grant_subject("acme"),
            event_subject("adapter.alpha", "receipt", "acme"),
            event_subject("orchestrator", "settle", "acme"),
            event_subject("orchestrator", "case", "acme"),
            event_subject("reconciler", "exception", "acme"),
            "trueup.task.alpha.execute.acme",
        )[self.engine.below(7)]
        message = Message(
            id=f"poison_{number}",
            type=("Receipt", "StartCase", "CaseChanged", "Nonsense")[self.engine.below(4)],
            subject=subject,
            tenant="acme",
            source="nobody",
            time=self.engine.real(),
            data=(b"{", b"null", b'{"command_id": 1}')[self.engine.below(3)],
        )
        for database in self.plane.databases.values():
            database.poison.add(message.id)
        self._struck("poison message", f"POISON on {subject}")
        self.plane.poisons += 1
        self.plane.bus.store(message)

    def forge(self) -> None:
        """Word of an approval arrives that speaks of other content than what was asked."""
        rows = self.plane.databases["gateway"].rows("approval")
        rows = [row for row in rows if row.status == "pending" and row.workflow_id is not None]
        if not rows:
            return
        row = rows[self.engine.below(len(rows))]
        name = f"forged_{self.engine.below(10**9)}"
        told = ApprovalDecided(
            approval_id=row.approval_id,
            workflow_id=row.workflow_id,
            tenant=row.tenant,
            step_id=row.step_id,
            outcome="approved",
            reviewer="operator:eve",
            content_sha256=digest(name),
            decision_id="dec_none",
            decided_at=self.engine.business(),
        )
        self._struck("forged approval", f"FORGED {row.approval_id}")
        self.plane.bus.store(
            Message(
                id=name,
                type="ApprovalDecided",
                subject=event_subject("gateway", "approval", row.tenant),
                tenant=row.tenant,
                source="nobody",
                time=self.engine.real(),
                data=told.model_dump_json().encode(),
            )
        )

    def _any(self) -> Process:
        return self.plane.processes[self.engine.below(len(self.plane.processes))]
