"""One stack measured from start to stop: saturation, then quiet arrivals, then memory, then the ground truth.

What could not be measured is absent. A stack that doubled or lost an effect, or answered anything but success, is
measured all the same, and the run fails.
"""

import time
from dataclasses import dataclass, field

from bench.counters import STATISTICS_DELAY_SECONDS, DatabaseCounter, DatabaseMark
from bench.load import Order, Result, run_load
from bench.processes import cpu_seconds, machine_busy_seconds, pss_mb
from bench.profile import Profile, take_snapshot
from bench.stacks import Stack, Stub, TrueupPlane

WARM_UP_UNITS = 300
WARM_UP_SECONDS = 15.0
IN_FLIGHT = 64
SETTLE_SECONDS = 1.5
"""After the last answer: views and marks that trail behind are part of a unit's cost."""


@dataclass
class Measurement:
    """Everything that was seen of one stack."""

    name: str
    cpu_s_per_1000: float | None = None
    units_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    pss_mb: float | None = None
    loaded_p50_ms: float | None = None
    cpu_by_role: dict[str, float] = field(default_factory=dict)
    pss_by_role: dict[str, float] = field(default_factory=dict)
    quiet_cpu_s_per_1000: float | None = None
    idle_cores: float | None = None
    commits_per_unit: float | None = None
    transactions_per_unit: float | None = None
    log_kb_per_unit: float | None = None
    units: int = 0
    effects_duplicated: int | None = None
    effects_missing: int | None = None
    foreign_cores: float | None = None
    problems: list[str] = field(default_factory=list)
    profiles: dict[str, Profile] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """The figures of the last line; those that could not be measured are left out."""
        named = {
            "cpu_s_per_1000": self.cpu_s_per_1000,
            "units_per_s": self.units_per_s,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "pss_mb": self.pss_mb,
        }
        return {name: round(value, 3) for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    units: int
    seconds: float
    quiet_units: int
    warm_up_units: int = WARM_UP_UNITS
    idle: bool = True


def measure(stack: Stack, stub: Stub, size: Size) -> Measurement:
    """Start, measure, stop. An error in between keeps what was measured until then."""
    seen = Measurement(stack.name)
    try:
        stack.start()
        stub.reset()
        first = DatabaseCounter(stack.database_url).mark()
        warmed = run_load(Order(stack.request(), size.warm_up_units, WARM_UP_SECONDS, IN_FLIGHT))
        _note_bad(warmed, "warm-up", seen)
        if not warmed.ok:
            raise RuntimeError(f"no unit succeeded; the last errors: {stack.complaints() or 'none'}")
        answered = warmed.ok + _saturate(stack, stub, size, seen)
        if size.idle:
            _idle(stack, first, answered, seen)
        answered += _quiet(stack, size, seen)
        _check_effects(stack, stub, answered, seen)
        _weigh(stack, seen)
    except Exception as error:
        seen.problems.append(f"{type(error).__name__}: {error}")
    finally:
        stack.stop()
    return seen


def _saturate(stack: Stack, stub: Stub, size: Size, seen: Measurement) -> int:
    """The closed loop; answers how many units succeeded."""
    counter = DatabaseCounter(stack.database_url)
    time.sleep(SETTLE_SECONDS)
    mark = counter.mark()
    profiled = _snapshots(stack)
    used, others = cpu_seconds(stack.roots()), _others_seconds(stack, stub)
    started = time.monotonic()
    result = run_load(Order(stack.request(), size.units, size.seconds, IN_FLIGHT))
    time.sleep(SETTLE_SECONDS)
    after, others_after = cpu_seconds(stack.roots()), _others_seconds(stack, stub)
    took = time.monotonic() - started
    last = _snapshots(stack)
    work = counter.work_since(mark)
    _note_bad(result, "saturation", seen)
    if not result.ok:
        return 0
    seen.profiles = {service: Profile(profiled[service], last[service], result.ok) for service in last}
    seen.units = result.ok
    seen.units_per_s = result.ok / result.seconds
    seen.loaded_p50_ms = result.p50_ms
    seen.cpu_by_role = {role: 1000 * (after[role] - used[role]) / result.ok for role in after}
    seen.cpu_s_per_1000 = sum(seen.cpu_by_role.values())
    seen.foreign_cores = max(0.0, (others_after - others - result.client_cpu_seconds) / took)
    seen.commits_per_unit = None if work.commits is None else work.commits / result.ok
    seen.log_kb_per_unit = work.log_bytes / 1024 / result.ok
    return result.ok


def _others_seconds(stack: Stack, stub: Stub) -> float:
    """CPU of the machine outside stack and stub."""
    return machine_busy_seconds() - sum(cpu_seconds(stack.roots()).values()) - stub.cpu_seconds()


def _idle(stack: Stack, first: DatabaseMark, answered: int, seen: Measurement) -> None:
    """Nothing to do: what the stack uses anyway, and time for the database's sessions to hand in their statistics."""
    used = cpu_seconds(stack.roots())
    time.sleep(STATISTICS_DELAY_SECONDS)
    idle = cpu_seconds(stack.roots())
    seen.idle_cores = (sum(idle.values()) - sum(used.values())) / STATISTICS_DELAY_SECONDS
    if answered:
        seen.transactions_per_unit = DatabaseCounter(stack.database_url).work_since(first).transactions / answered


def _snapshots(stack: Stack) -> dict[str, dict[str, tuple[int, float, float]]]:
    if not isinstance(stack, TrueupPlane) or not stack.profiled:
        return {}
    return {service: take_snapshot(stack.process(service), prefix) for service, prefix in stack.profiled.items()}


def _quiet(stack: Stack, size: Size, seen: Measurement) -> int:
    """Poisson arrivals at a low rate: what one unit takes when nothing else is there to be batched with it."""
    used = cpu_seconds(stack.roots())
    rate = stack.quiet_rate_per_second
    seconds = 2 * size.quiet_units / rate
    result = run_load(Order(stack.request(), size.quiet_units, seconds, rate_per_second=rate, seed=size.quiet_units))
    _note_bad(result, "quiet", seen)
    if result.ok:
        seen.p50_ms, seen.p99_ms = result.p50_ms, result.p99_ms
        after = cpu_seconds(stack.roots())
        seen.quiet_cpu_s_per_1000 = 1000 * (sum(after.values()) - sum(used.values())) / result.ok
    return result.ok


def _note_bad(result: Result, phase: str, seen: Measurement) -> None:
    if result.bad or not result.ok:
        samples = "; ".join(result.bad_samples)
        seen.problems.append(f"{phase}: {result.bad} of {result.ok + result.bad} units did not succeed: {samples}")


def _check_effects(stack: Stack, stub: Stub, answered: int, seen: Measurement) -> None:
    """Ask the world itself: exactly one effect for every unit that was answered with success."""
    faults = stack.faults(stub.totals(), answered)
    if faults is None:
        return
    seen.effects_duplicated, seen.effects_missing = faults.duplicated, faults.missing
    if faults.duplicated or faults.missing:
        seen.problems.append(f"{faults.duplicated} effects duplicated, {faults.missing} missing")
    if faults.otherwise:
        seen.problems.append(faults.otherwise)


def _weigh(stack: Stack, seen: Measurement) -> None:
    sizes = pss_mb(stack.roots())
    if sizes is not None:
        seen.pss_by_role = sizes
        seen.pss_mb = sum(sizes.values())
