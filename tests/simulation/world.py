"""The outside: two systems that execute, lose answers, act late, lag, rewrite, refuse and forget who we are.

It counts what really happened per operation. Whatever the plane believes is judged against this count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.simulation.declarations import DECLARATIONS, TIMEOUT_SECONDS
from tests.simulation.engine import Engine, Sleep
from trueup_adapters.core.classify import classify_status
from trueup_common.contracts.adapter import Call, Connection, EndsWith, Outcome, confirmed, rejected, unknown
from trueup_common.contracts.declaration import CommandDeclaration
from trueup_common.contracts.observation import Finding, Observation
from trueup_common.contracts.states import ErrorClass, Findability, FindVerdict, ProbeVerdict
from trueup_common.contracts.survey import Mark, Page
from trueup_common.contracts.task import ProbeElement

PAGE_MARKS = 3
"""So few that surveys have pages."""


@dataclass(slots=True)
class WorldFaults:
    """How unfriendly the outside is; all zero is a world that does what it is asked and says so."""

    refused: float = 0.0
    """No connection: nothing was sent."""
    lost_request: float = 0.0
    lost_answer: float = 0.0
    late: float = 0.0
    rate_limited: float = 0.0
    unavailable: float = 0.0
    permanent: float = 0.0
    business: float = 0.0
    locked_out: float = 0.0
    """Writes are answered with 401 or 403."""
    no_access: float = 0.0
    """Reads are answered with 401 or 403."""
    unproven: float = 0.0
    """Says MISSING without proof of access."""
    liar_seconds: float = 0.0
    """How far beyond its declared late window this world acts and lags: it breaks its word."""
    lag: float = 0.0
    lag_seconds: float = 0.0
    slow_seconds: float = 0.0
    explode: float = 0.0
    """The adapter itself fails, before or after the first byte."""
    ambiguous: float = 0.0
    """A stranger's object looks like ours."""
    slow_worker: float = 0.0
    slow_worker_seconds: float = 12.0
    """What an attempt came to reaches the ledger late."""
    slow_look: float = 0.0
    """What a look-up saw reaches the ledger late."""
    there_already: float = 0.0
    """What is wanted is there already, made by somebody else."""
    spared: frozenset[str] = frozenset()
    """Command types that nothing ever goes wrong with."""
    rewrite: float = 0.0
    vandal: float = 0.0
    """Somebody else changes a value, removes it, throws the whole object away, or puts an older value back."""


@dataclass(slots=True)
class Effect:
    """One thing that really happened."""

    command_id: str
    attempt_id: str
    fence: int
    at: float
    visible_at: float
    resource: str
    created: bool = True
    """False where what was wanted was there already: then nothing of it is to be undone."""


@dataclass(slots=True)
class Thing:
    """One object outside."""

    values: dict[str, Any] = field(default_factory=dict)
    version: int = 0
    before: tuple[float, dict[str, Any]] = (0.0, {})
    """Until when a lagging read still sees which values."""
    writers: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)
    """What strangers last put there: they put it back."""


@dataclass(slots=True)
class Standing:
    """One object that carries the marker of an operation: ours, or one that somebody forged."""

    tenant: str
    system: str
    mark: Mark
    visible_at: float
    number: int
    forged: bool = False


class World:
    """The ground truth."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.faults = WorldFaults()
        self.effects: dict[str, list[Effect]] = {}
        self.things: dict[tuple[str, str, str], Thing] = {}
        self.undone: dict[str, str] = {}
        """What is taken back, and by which operation."""
        self.marks_count = 0
        self.marks: list[Standing] = []
        """What carries a marker, in the order in which it was made."""
        self.stubborn: frozenset[str] = frozenset()
        """Elements that this world keeps as it wants, whatever is written: for ever."""
        self.transmissions = 0
        self.honest = True
        """False where a declaration promises more than this world keeps: then effects may double, but never unseen."""
        self.on_transmit: Callable[[Call], None] = lambda call: None
        self.on_effect: Callable[[Call, list[Effect]], None] = lambda call, effects: None

    def execute(self, call: Call, visible_by: float) -> Effect:
        """The effect happens, here and now. Nothing outside deduplicates it, except a native key."""
        engine, operation = self.engine, call.operation
        known = self.effects.setdefault(operation.command_id, [])
        if known and call.declaration.findability is Findability.NATIVE_KEY:
            return known[0]
        lag = 0.0
        if engine.strikes("reads lag", self.faults.lag):
            lag = max(0.0, min(self.faults.lag_seconds * engine.random.random(), visible_by - engine.now))
        effect = Effect(
            operation.command_id,
            call.attempt_id,
            call.fence,
            engine.now,
            engine.now + lag,
            operation.target.resource,
            created=not engine.strikes("there already", self.faults.there_already),
        )
        known.append(effect)
        engine.note(f"WORLD effect {operation.command_id} fence {call.fence} visible {effect.visible_at:.3f}")
        thing = self.things.setdefault((operation.tenant, operation.target.system, operation.target.resource), Thing())
        thing.before = (effect.visible_at, dict(thing.values))
        text = operation.payload["text"]
        if engine.strikes("value rewritten", self.faults.rewrite):
            text = f"  {text}\n"
        for item in call.declaration.establishes:
            kept = "as the target wants it" if item.element in self.stubborn else text
            thing.values[item.element] = kept
            thing.writers[item.element] = operation.command_id
        if call.declaration.findability is Findability.MARKER:
            self._mark(call, effect)
        undoes = operation.payload.get("undoes")
        if undoes is not None:
            self._take_back(thing, undoes, operation.command_id)
        thing.version += 1
        self.on_effect(call, known)
        return effect

    def _take_back(self, thing: Thing, command_id: str, by: str) -> None:
        """One effect does not stand any more; what others wrote since stays."""
        self.undone.setdefault(command_id, by)
        for element in [name for name, writer in thing.writers.items() if writer == command_id]:
            thing.values.pop(element, None)
            thing.writers.pop(element)
        self.engine.note(f"WORLD undone {command_id}")

    def stands(self, command_id: str) -> bool:
        """True where an operation happened and was not taken back."""
        return bool(self.live(command_id)) and command_id not in self.undone

    def live(self, command_id: str) -> list[Effect]:
        """What happened for one operation."""
        return self.effects.get(command_id, [])

    def _mark(self, call: Call, effect: Effect) -> None:
        operation = call.operation
        mark = Mark(
            operation_id=operation.command_id,
            external_resource_id=f"{operation.command_id[:12]}-{len(self.live(operation.command_id))}",
            resource=operation.target.resource,
        )
        self._stand(operation.tenant, operation.target.system, mark, effect.visible_at)

    def _stand(self, tenant: str, system: str, mark: Mark, visible_at: float, *, forged: bool = False) -> None:
        self.marks_count += 1
        self.marks.append(Standing(tenant, system, mark, visible_at, self.marks_count, forged))

    def vandalise(self) -> None:
        """Somebody changes something behind our back."""
        engine = self.engine
        for thing in self.things.values():
            if not thing.values or not engine.strikes("changed by a stranger", self.faults.vandal):
                continue
            names = sorted(thing.values)
            element = names[engine.below(len(names))]
            how = engine.random.random()
            if how < 0.25:
                del thing.values[element]
                engine.injected["removed by a stranger"] += 1
            elif how < 0.4:
                thing.values.clear()
                engine.injected["thrown away by a stranger"] += 1
            elif how < 0.7 and element in thing.foreign:
                thing.values[element] = thing.foreign[element]
                engine.injected["put back by a stranger"] += 1
            else:
                thing.foreign[element] = thing.values[element] = f"changed by a stranger {engine.below(3)}"
            thing.version += 1
            engine.note(f"WORLD vandalised {element}")

    def forge(self, tenant: str, system: str) -> None:
        """Somebody makes an object with a marker of ours that no operation of ours left."""
        self.engine.ids_count += 1
        name = f"cmd_{self.engine.seed % 2**32:08x}{self.engine.ids_count:024x}"
        mark = Mark(operation_id=name, external_resource_id=f"forged-{self.marks_count}", resource="thing-0")
        self._stand(tenant, system, mark, self.engine.now, forged=True)
        self.engine.injected["a marked object that nobody manages"] += 1
        self.engine.note(f"WORLD forged {name}")

    def unforge(self) -> None:
        """Somebody removes a forged object again."""
        forged = [item for item in self.marks if item.forged]
        if forged:
            gone = forged[self.engine.below(len(forged))]
            self.marks.remove(gone)
            self.engine.note(f"WORLD removed {gone.mark.operation_id}")

    def seen(self, tenant: str, system: str, resource: str, element: str) -> tuple[Any, int]:
        """What a read sees, lag included."""
        thing = self.things.get((tenant, system, resource))
        if thing is None:
            return None, 0
        until, values = thing.before
        source = values if self.engine.now < until else thing.values
        return source.get(element), thing.version


class WorldTarget:
    """The Target port of one connection."""

    def __init__(self, world: World, connection: Connection, clock: Callable[[], datetime] | None = None) -> None:
        self.world = world
        self.connection = connection
        self.clock = clock or world.engine.real
        """The clock of the machine that reads."""
        self.timeout_seconds = TIMEOUT_SECONDS

    async def perform(self, call: Call) -> Outcome:
        """One transmission."""
        world, engine, faults = self.world, self.world.engine, self.world.faults
        if call.operation.command_type in faults.spared:
            faults = WorldFaults()
        if faults.slow_seconds:
            await Sleep(faults.slow_seconds * engine.random.random() ** 3)
        if engine.strikes("connection refused", faults.refused):
            return rejected(ErrorClass.TRANSIENT, "connection_refused")
        if engine.strikes("adapter failed", faults.explode):
            raise RuntimeError("simulated: the adapter fails before it sends")
        call.may_send()
        started = engine.now
        world.transmissions += 1
        engine.note(f"WORLD transmit {call.operation.command_id} fence {call.fence}")
        world.on_transmit(call)
        left = lambda: max(0.0, started + call.timeout_seconds - engine.now)  # noqa: E731
        window = call.timeout_seconds + call.declaration.late_window_seconds + faults.liar_seconds
        visible_by = started + window - 0.05
        if engine.strikes("429", faults.rate_limited):
            await Sleep(0.01)
            return rejected(
                ErrorClass.TRANSIENT, "rate_limited", external_status="429", retry_after_seconds=engine.between(0.5, 3)
            )
        if engine.strikes("503", faults.unavailable):
            return rejected(ErrorClass.TRANSIENT, "unavailable", external_status="503")
        if engine.strikes("400", faults.permanent):
            return rejected(ErrorClass.PERMANENT, "payload_invalid", external_status="400")
        if engine.strikes("409", faults.business):
            return rejected(ErrorClass.BUSINESS, "version_conflict", external_status="409")
        if engine.strikes("401 or 403 to a write", faults.locked_out):
            return classify_status((401, 403)[engine.below(2)], {})
        if engine.strikes("request lost", faults.lost_request):
            await Sleep(left())
            return unknown("timeout")
        # From here on the world acts by itself, whatever becomes of the process that asked.
        late = engine.strikes("acted late", faults.late)
        span = window - 0.1
        delay = span if late else min(span, 0.004 + faults.slow_seconds * engine.random.random())
        box: list[Effect] = []
        engine.call_later(delay * engine.random.random(), lambda: box.append(world.execute(call, visible_by)))
        await Sleep(min(left(), delay))
        if not box or (engine.now > started + call.timeout_seconds and engine.chance(0.5)):
            await Sleep(left())
            return unknown("timeout")
        if engine.strikes("adapter failed", faults.explode):
            raise RuntimeError("simulated: the adapter fails after it sent")
        if engine.strikes("acted, answer lost", faults.lost_answer):
            if engine.chance(0.5):
                await Sleep(left())
                return unknown("timeout")
            return unknown("connection_reset")
        return await self._answer(call, box[0])

    async def _answer(self, call: Call, effect: Effect) -> Outcome:
        observations: tuple[Observation, ...] = ()
        if call.declaration.read_back and call.declaration.establishes:
            await Sleep(0.005)
            elements = [
                ProbeElement(element=item.element, kind="object", params={"resource": effect.resource})
                for item in call.declaration.establishes
            ]
            observations = tuple(self._observe(call.operation.target.resource, elements))
        return confirmed(
            _result(call, effect),
            external_resource_id=effect.command_id[:12],
            external_version="1",
            external_status="201",
            observations=observations,
        )

    async def find(self, call: Call) -> Finding:
        """Look for the effect by whatever evidence its type leaves."""
        world, engine, faults = self.world, self.world.engine, self.world.faults
        await Sleep(0.005 + faults.slow_seconds * engine.random.random() ** 2)
        if engine.strikes("401 or 403 to a read", faults.no_access):
            return Finding(verdict=FindVerdict.UNKNOWN, reason="no_access")
        if engine.strikes("429", faults.rate_limited):
            return Finding(verdict=FindVerdict.UNKNOWN, reason="rate_limited")
        if call.declaration.findability is Findability.NONE:
            return Finding(verdict=FindVerdict.UNKNOWN, reason="not_findable")
        if engine.strikes("adapter failed", faults.explode):
            raise RuntimeError("simulated: the adapter fails while it looks")
        by_key = call.declaration.findability is Findability.BUSINESS_KEY
        if by_key and engine.strikes("a stranger's object looks like ours", faults.ambiguous):
            return Finding(verdict=FindVerdict.AMBIGUOUS, proof_of_access=True, candidates=2, reason="foreign_object")
        seen = [effect for effect in world.live(call.operation.command_id) if effect.visible_at <= engine.now]
        if not seen:
            proven = not engine.strikes("missing without proof of access", faults.unproven)
            return Finding(verdict=FindVerdict.MISSING, proof_of_access=proven, evidence="scan")
        observations: tuple[Observation, ...] = ()
        if call.declaration.establishes:
            elements = [
                ProbeElement(element=item.element, kind="object", params={"resource": seen[0].resource})
                for item in call.declaration.establishes
            ]
            observations = tuple(self._observe(seen[0].resource, elements))
        verdict = FindVerdict.CONFIRMED if len(seen) == 1 else FindVerdict.AMBIGUOUS
        return Finding(
            verdict=verdict,
            proof_of_access=True,
            evidence=call.declaration.findability.value,
            candidates=len(seen),
            result=_result(call, seen[0]),
            external_resource_id=seen[0].command_id[:12],
            external_version="1",
            observations=observations,
        )

    async def probe(self, elements: Sequence[ProbeElement]) -> Sequence[Observation]:
        """Read elements of one object."""
        engine, faults = self.world.engine, self.world.faults
        await Sleep(0.005 + faults.slow_seconds * engine.random.random() ** 2)
        if engine.strikes("401 or 403 to a read", faults.no_access):
            return [self._unknown(item.element, self.clock()) for item in elements]
        return self._observe(str(elements[0].params["resource"]), elements)

    def _observe(self, resource: str, elements: Sequence[ProbeElement]) -> list[Observation]:
        world, engine = self.world, self.world.engine
        found = []
        for item in elements:
            value, version = world.seen(self.connection.tenant, self.connection.system, resource, item.element)
            if engine.strikes("401 or 403 to a read", world.faults.no_access):
                found.append(self._unknown(item.element, self.clock()))
                continue
            found.append(
                Observation(
                    element=item.element,
                    verdict=ProbeVerdict.MISSING if value is None else ProbeVerdict.CONFIRMED,
                    value=value,
                    observed_at=self.clock(),
                    source=self.connection.system,
                    version=str(version),
                    proof_of_access=True,
                )
            )
        return found

    def _unknown(self, element: str, at: datetime) -> Observation:
        return Observation(
            element=element,
            verdict=ProbeVerdict.UNKNOWN,
            observed_at=at,
            source=self.connection.system,
            reason="no_access",
        )

    async def survey(self, cursor: str | None, params: Mapping[str, Any]) -> Page:
        """What carries a marker here, a few at a time."""
        engine, faults, world = self.world.engine, self.world.faults, self.world
        await Sleep(0.005 + faults.slow_seconds * engine.random.random() ** 2)
        if engine.strikes("401 or 403 to a read", faults.no_access):
            raise EndsWith(unknown("no_access"))
        here = (self.connection.tenant, self.connection.system)
        seen = [item for item in world.marks if (item.tenant, item.system) == here and item.visible_at <= engine.now]
        left = [item for item in seen if cursor is None or item.number > int(cursor)]
        page = left[:PAGE_MARKS]
        more = str(page[-1].number) if len(left) > len(page) else None
        return Page(marks=tuple(item.mark for item in page), next_cursor=more)

    async def close(self) -> None:
        """Nothing is held."""


def _result(call: Call, effect: Effect) -> dict[str, Any]:
    return {"id": effect.command_id[:12], "text": call.operation.payload["text"], "created": effect.created}


class WorldAdapter:
    """The Adapter port of one system."""

    def __init__(self, world: World, system: str) -> None:
        self.world = world
        self._system = system

    @property
    def system(self) -> str:
        """The system's name."""
        return self._system

    @property
    def declarations(self) -> tuple[CommandDeclaration, ...]:
        """Its command types."""
        return tuple(declaration for declaration in DECLARATIONS if declaration.system == self._system)

    def open(self, connection: Connection) -> WorldTarget:
        """A target."""
        return WorldTarget(self.world, connection)
