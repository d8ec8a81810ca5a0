"""Which misfortunes a seed brings: a profile drawn once, and single strokes while it lasts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.simulation.engine import Engine, Process
from trueup_common.contracts.canonical import digest
from trueup_common.contracts.envelope import Message
from trueup_common.contracts.events import ApprovalDecided
from trueup_common.contracts.governance import FreezeScope, GovernanceEntry
from trueup_common.contracts.topology import STREAMS, command_subject, event_subject, grant_subject

if TYPE_CHECKING:
    from tests.simulation.plane import Plane

CALM: Final = 0.06
"""Share of seeds without any fault: the plain path must stay plain."""


THEMED: Final = 0.4
"""Share of seeds with a theme."""
SAGA_THEMES: Final = ("undo", "impatient")
THEMES: Final = ("late", "orphan", "blind", "crashes", "echo", "refusals", "liar")


@dataclass(slots=True)
class Profile:
    """How much of what."""

    chaos_seconds: float = 20.0
    strokes: dict[str, float] = field(default_factory=dict)
    """Mean seconds between strokes of one kind."""
    crash_point: float = 0.0
    ack_wait_seconds: float = 30.0


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
    bus.lost_ack = some(0.4, 0.3)
    bus.delay = some(0.5, 0.5)
    bus.delay_seconds = 0.2 if pick() < 0.5 else 12.0 * pick()
    bus.reorder = pick() < 0.5
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
    profile.ack_wait_seconds = (30.0, 2.0, 6.0)[engine.below(3)]
    for kind, probability, fastest in (
        ("crash", 0.6, 1.0),
        ("pause", 0.5, 1.5),
        ("bus_down", 0.2, 8.0),
        ("empty", 0.12, 10.0),
        ("jump", 0.25, 6.0),
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
    bus, world, faults = plane.bus.faults, plane.world, plane.world.faults
    engine.note(f"theme {theme}")
    if theme == "late":
        faults.late, faults.slow_worker, faults.slow_look, faults.slow_seconds = 0.8, 0.05, 0.7, 0.05
        faults.no_access = faults.explode = 0.0
        faults.lost_request = faults.unavailable = faults.permanent = faults.business = 0.0
    elif theme == "orphan":
        bus.slow = {f"adapters-{system}": 40.0 for system in plane.systems}
        profile.strokes["crash"] = 2.0
    elif theme == "blind":
        faults.lost_answer, faults.late, faults.no_access, faults.unproven = 0.5, 0.4, 0.4, 0.9
        faults.lag, faults.lag_seconds = 0.8, 4.0
    elif theme == "crashes":
        profile.strokes["crash"], profile.crash_point = 0.7, 0.02
    elif theme == "echo":
        bus.duplicate, bus.delay, bus.delay_seconds, bus.reorder = 0.6, 0.4, 12.0, True
        profile.ack_wait_seconds = 2.0
    elif theme == "liar":
        world.honest, faults.liar_seconds = False, 25.0
        faults.late, faults.lag, faults.lag_seconds, faults.slow_worker = 0.6, 0.5, 25.0, 0.5
    elif theme == "undo":
        faults.permanent, faults.business = 0.25, 0.05
        faults.late, faults.lost_answer, faults.there_already = 0.3, 0.3, 0.5
    elif theme == "impatient":
        profile.strokes["jump"], profile.strokes["forge"] = 2.0, 6.0
    else:
        faults.refused, faults.rate_limited, faults.unavailable, faults.lost_answer = 0.3, 0.3, 0.3, 0.3


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

    def crash(self) -> None:
        """A process dies between two steps."""
        self.plane.crash(self._any())

    def pause(self) -> None:
        """A process stands still (and comes back with stale memories)."""
        process = self._any()
        seconds = self.engine.between(0.2, 4.0) if self.engine.chance(0.6) else self.engine.between(4.0, 25.0)
        process.paused_until = max(process.paused_until, self.engine.now + seconds)
        self.engine.note(f"PAUSE {process.name} for {seconds:.1f} s")

    def stall(self) -> None:
        """Everything of ours stands still while the world goes on (a suspended machine)."""
        seconds = self.engine.between(2.0, 30.0)
        for process in self.plane.processes:
            process.paused_until = max(process.paused_until, self.engine.now + seconds)
        self.engine.note(f"STALL for {seconds:.1f} s")

    def outage(self) -> None:
        """All replicas of one service are gone for a while."""
        service = self._any().service
        seconds = self.engine.between(2.0, 25.0)
        for process in self.plane.processes:
            if process.service == service:
                self.plane.crash(process, seconds)

    def database_down(self) -> None:
        """One service cannot reach its database."""
        databases = list(self.plane.databases.values())
        database = databases[self.engine.below(len(databases))]
        database.down_until = self.engine.now + self.engine.between(0.5, 15.0)
        self.engine.note(f"DATABASE of {database.service} down")

    def bus_down(self) -> None:
        """The broker is away."""
        self.plane.bus.down_until = self.engine.now + self.engine.between(0.5, 8.0)
        self.engine.note("BUS down")

    def empty(self) -> None:
        """A stream is lost and made anew."""
        self.plane.bus.empty(STREAMS[self.engine.below(len(STREAMS))].name)

    def jump(self) -> None:
        """Business time jumps ahead."""
        seconds = self.engine.between(1.0, 60.0) if self.engine.chance(0.7) else self.engine.between(60.0, 5000.0)
        self.engine.offset += seconds
        self.engine.note(f"CLOCK +{seconds:.0f} s")

    def vandal(self) -> None:
        """A stranger changes things."""
        self.plane.world.vandalise()

    def revoke(self) -> None:
        """The authority of one case is taken away."""
        mandates = self.plane.databases["gateway"].rows("mandate")
        if mandates:
            row = mandates[self.engine.below(len(mandates))]
            kind, name = (("mandate", row.mandate_id), ("decision", row.decision_id))[self.engine.below(2)]
            self.plane.govern(GovernanceEntry(kind=f"revoked_{kind}", id=name, epoch=2))

    def freeze(self) -> None:
        """Everything of one system is held back for a while."""
        system = self.plane.systems[self.engine.below(len(self.plane.systems))]
        undoing = self.engine.chance(0.3)
        scope = FreezeScope(system=system, compensation=undoing)
        entry = GovernanceEntry(kind="freeze", id=f"frz{'c' if undoing else ''}_{system}", epoch=2, scope=scope)
        self.plane.govern(entry)
        self.engine.call_later(self.engine.between(1.0, 12.0), lambda: self.plane.lift(entry))

    def stale(self) -> None:
        """One process no longer hears of governance."""
        name = self._any().name
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
        self.engine.note(f"POISON on {subject}")
        self.plane.poisons += 1
        self.plane.bus.store(message)

    def forge(self) -> None:
        """Word of an approval arrives that speaks of other content than what was asked."""
        rows = [row for row in self.plane.databases["gateway"].rows("approval") if row.status == "pending"]
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
        self.engine.note(f"FORGED {row.approval_id}")
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
