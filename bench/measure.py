"""One stack measured from start to stop: saturation, then quiet arrivals, then memory, then the ground truth.

What could not be measured is absent. A stack that doubled or lost an effect, or answered anything but success, is
measured all the same, and the run fails.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.counters import STATISTICS_DELAY_SECONDS, DatabaseCounter, DatabaseMark
from bench.load import Order, Result, run_load
from bench.peers.install import Skipped
from bench.processes import cpu_seconds, machine_busy_seconds, pss_mb
from bench.profile import Profile, take_snapshot
from bench.stacks import Floor, Stack, Stub, TrueupPlane

WARM_UP_UNITS = 300
WARM_UP_SECONDS = 15.0
IN_FLIGHT = 64
ACCEPTED_SECONDS_MAX = 20.0
BESIDE_UNITS = 1500
BESIDE_QUIET_UNITS = 60
BESIDE_SETTLE_SECONDS = 0.3
IDLE_SECONDS = 3.0
"""Without a PostgreSQL there are no statistics to wait for."""
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
    beside: "Measurement | None" = None
    """The floor, measured in short right before and right after: this machine is not as fast at every moment."""
    accept_p50_ms: float | None = None
    skipped: str = ""
    """Why it could not be installed here."""

    def ratio(self, value: "Callable[[Measurement], float | None]") -> float | None:
        """A figure against that of the floor beside it."""
        own, floor = value(self), value(self.beside) if self.beside is not None else None
        return own / floor if own is not None and floor else None

    def follow(self, floor: "Measurement") -> None:
        """The floor was measured again after this stack: ratios are to the mean of both."""
        if self.beside is None:
            return
        for name in ("cpu_s_per_1000", "units_per_s", "loaded_p50_ms", "p50_ms", "p99_ms"):
            before, after = getattr(self.beside, name), getattr(floor, name)
            if before is not None and after is not None:
                setattr(self.beside, name, (before + after) / 2)

    def figures(self) -> dict[str, float]:
        """The figures of the last line; those that could not be measured are left out."""
        named = {
            "cpu_s_per_1000": self.cpu_s_per_1000,
            "units_per_s": self.units_per_s,
            "p50_ms": self.p50_ms,
            "p99_ms": self.p99_ms,
            "pss_mb": self.pss_mb,
            "accept_p50_ms": self.accept_p50_ms,
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
        counter = _counter(stack)
        first = counter.mark() if counter is not None else None
        warmed = run_load(Order(stack.request(), size.warm_up_units, WARM_UP_SECONDS, IN_FLIGHT))
        _note_bad(warmed, "warm-up", seen)
        if not warmed.ok:
            raise RuntimeError(f"no unit succeeded; the last errors: {stack.complaints() or 'none'}")
        answered = warmed.ok + _saturate(stack, stub, size, seen)
        if size.idle:
            _idle(stack, first, answered, seen)
        answered += _quiet(stack, size, seen)
        answered += _accept(stack, stub, size, seen, answered)
        _check_effects(stack, stub, answered, seen)
        _weigh(stack, seen)
    except Skipped as reason:
        seen.skipped = str(reason)
    except Exception as error:
        seen.problems.append(f"{type(error).__name__}: {error}")
    finally:
        stack.stop()
    return seen


def _saturate(stack: Stack, stub: Stub, size: Size, seen: Measurement) -> int:
    """The closed loop; answers how many units succeeded."""
    counter = _counter(stack)
    time.sleep(SETTLE_SECONDS)
    mark = counter.mark() if counter is not None else None
    profiled = _snapshots(stack)
    used, others = cpu_seconds(stack.roots()), _others_seconds(stack, stub)
    started = time.monotonic()
    result = run_load(Order(stack.request(), size.units, size.seconds, IN_FLIGHT))
    time.sleep(SETTLE_SECONDS)
    after, others_after = cpu_seconds(stack.roots()), _others_seconds(stack, stub)
    took = time.monotonic() - started
    last = _snapshots(stack)
    work = counter.work_since(mark) if counter is not None and mark is not None else None
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
    if work is not None:
        seen.commits_per_unit = None if work.commits is None else work.commits / result.ok
        seen.log_kb_per_unit = work.log_bytes / 1024 / result.ok
    return result.ok


def _counter(stack: Stack) -> DatabaseCounter | None:
    """Counts commits, where the stack keeps its state in PostgreSQL."""
    return DatabaseCounter(stack.database_url) if stack.database_url else None


def _others_seconds(stack: Stack, stub: Stub) -> float:
    """CPU of the machine outside stack and stub."""
    return machine_busy_seconds() - sum(cpu_seconds(stack.roots()).values()) - stub.cpu_seconds()


def _idle(stack: Stack, first: DatabaseMark | None, answered: int, seen: Measurement) -> None:
    """Nothing to do: what the stack uses anyway, and time for the database's sessions to hand in their statistics."""
    counter = _counter(stack)
    seconds = IDLE_SECONDS if counter is None else STATISTICS_DELAY_SECONDS
    used = cpu_seconds(stack.roots())
    time.sleep(seconds)
    idle = cpu_seconds(stack.roots())
    seen.idle_cores = (sum(idle.values()) - sum(used.values())) / seconds
    if answered and counter is not None and first is not None:
        seen.transactions_per_unit = counter.work_since(first).transactions / answered


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


def _accept(stack: Stack, stub: Stub, size: Size, seen: Measurement, answered: int) -> int:
    """The same arrivals, answered at acceptance: what a client waits that does not wait for the end."""
    request = stack.accept_request() if isinstance(stack, TrueupPlane) else None
    if request is None:
        return 0
    rate = stack.quiet_rate_per_second
    units = max(1, size.quiet_units // 2)
    result = run_load(Order(request, units, 2 * units / rate, rate_per_second=rate, seed=size.quiet_units + 1))
    _note_bad(result, "accept", seen)
    seen.accept_p50_ms = result.p50_ms
    deadline = time.monotonic() + ACCEPTED_SECONDS_MAX
    while stub.totals()["distinct"] < answered + result.ok and time.monotonic() < deadline:
        time.sleep(0.05)
    return result.ok


class Beside:
    """A floor that stays up for the whole run and is measured in short right before each stack."""

    def __init__(self, quiet_units: int = BESIDE_QUIET_UNITS) -> None:
        self._floor = Floor()
        self._quiet_units = quiet_units
        self._started = False

    def _start(self) -> None:
        self._started = True
        self._floor.start()
        run_load(Order(self._floor.request(), WARM_UP_UNITS, WARM_UP_SECONDS, IN_FLIGHT))

    def measure(self) -> Measurement:
        """CPU, throughput and latencies as they are now; started and warmed up when first asked."""
        if not self._started:
            self._start()
        seen = Measurement("floor")
        used = sum(cpu_seconds(self._floor.roots()).values())
        result = run_load(Order(self._floor.request(), BESIDE_UNITS, WARM_UP_SECONDS, IN_FLIGHT))
        time.sleep(BESIDE_SETTLE_SECONDS)
        if result.ok:
            seen.units = result.ok
            seen.cpu_s_per_1000 = 1000 * (sum(cpu_seconds(self._floor.roots()).values()) - used) / result.ok
            seen.units_per_s, seen.loaded_p50_ms = result.ok / result.seconds, result.p50_ms
        rate, units = self._floor.quiet_rate_per_second, self._quiet_units
        quiet = run_load(Order(self._floor.request(), units, 2 * units / rate, rate_per_second=rate))
        seen.p50_ms, seen.p99_ms = quiet.p50_ms, quiet.p99_ms
        return seen

    def stop(self) -> None:
        """Stop it."""
        self._floor.stop()


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
