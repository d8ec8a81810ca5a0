"""The engine: a scheduler for coroutines in which one seed picks every interleaving. No asyncio, no threads, no clock.

A coroutine gives way by awaiting STEP (anything may happen in between), Sleep (until a simulated time) or a Signal.
Each process owns its coroutines; a crash drops all of them between two steps, as SIGKILL would.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any, Final

EPOCH: Final = datetime(2030, 1, 1, tzinfo=UTC)
TICK_SECONDS: Final = 0.0007
"""How much real time one step takes."""


class Violation(BaseException):
    """Something happened that must never happen. Not an Exception, so that no handler can swallow it."""


class Crash(BaseException):
    """The process dies at a crash point."""


class Step:
    """Gives way once."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        yield None


STEP: Final = Step()


class Sleep:
    """Gives way until a simulated time, or until a signal if that comes first."""

    __slots__ = ("seconds", "signal")

    def __init__(self, seconds: float | None, signal: Signal | None = None) -> None:
        self.seconds = seconds
        self.signal = signal

    def __await__(self) -> Generator[Any, None, None]:
        yield self


class Signal:
    """Wakes whoever waits for it."""

    __slots__ = ("engine", "waiters")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.waiters: list[tuple[Task, int]] = []

    def notify(self) -> None:
        """Wake all."""
        if self.waiters:
            woken, self.waiters = self.waiters, []
            for task, token in woken:
                self.engine.wake(task, token)


class Task:
    """One coroutine of a process."""

    __slots__ = ("coroutine", "done", "name", "process", "result", "token", "waiting")

    def __init__(self, process: Process, name: str, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.process = process
        self.name = name
        self.coroutine = coroutine
        self.token = 0
        self.waiting = False
        self.done = False
        self.result: Any = None


class Process:
    """One replica. Its memory is whatever `start` builds; a crash loses it, a restart builds it anew."""

    def __init__(self, engine: Engine, service: str, name: str, start: Callable[[Process], None]) -> None:
        self.engine = engine
        self.service = service
        self.name = name
        self.start = start
        self.alive = False
        self.incarnation = 0
        self.paused_until = 0.0
        self.ahead_seconds = 0.0
        """How far this machine's own clock is ahead; business and leases must not depend on it."""
        self.tasks: list[Task] = []

    def clock(self) -> datetime:
        """This machine's own clock."""
        real = self.engine.real()
        return real + timedelta(seconds=self.ahead_seconds) if self.ahead_seconds else real

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> Task:
        """Run a coroutine beside the others."""
        task = Task(self, name, coroutine)
        self.tasks.append(task)
        self.engine.runnable.append(task)
        return task

    def up(self) -> None:
        """Start."""
        self.alive = True
        self.incarnation += 1
        self.paused_until = 0.0
        self.start(self)

    def down(self) -> None:
        """Die: every coroutine is dropped where it stands."""
        self.alive = False
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            task.done = True
            task.token += 1
        for task in tasks:
            with suppress(RuntimeError, Exception):
                task.coroutine.close()


class Engine:
    """Simulated time, tasks and the seed."""

    def __init__(self, seed: int, trace_max: int = 4000) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0
        self.offset = 0.0
        self.step_back_seconds = 0.0
        """By how much the databases' clock was set back in all; 0 where it never was."""
        self.step_ahead_seconds = 0.0
        self.injected: Counter[str] = Counter()
        """How often each kind of fault struck."""
        self.steps = 0
        self.ids_count = 0
        """How many ids were drawn from this run."""
        self.runnable: list[Task] = []
        self.heap: list[tuple[float, int, Any, int]] = []
        self._sequence = 0
        self.trace_max = trace_max
        self.trace: list[str] = []
        self._hash = blake2b(digest_size=16)
        self.on_crash: Callable[[Process], None] = lambda process: None
        self.current: Process | None = None
        self._real: tuple[float, datetime] = (-1.0, EPOCH)

    # time

    def real(self) -> datetime:
        """Real time, as the databases' clock tells it."""
        at, value = self._real
        if at != self.now:
            value = EPOCH + timedelta(seconds=self.told_seconds)
            self._real = (self.now, value)
        return value

    @property
    def told_seconds(self) -> float:
        """Real time as a number of seconds."""
        return self.now - self.step_back_seconds + self.step_ahead_seconds

    def set_back(self, seconds: float) -> None:
        """The databases' clock is set back (negative: set ahead)."""
        if seconds >= 0:
            self.step_back_seconds += seconds
        else:
            self.step_ahead_seconds -= seconds
        self._real = (-1.0, EPOCH)

    def business(self) -> datetime:
        """Business time."""
        return self.real() + timedelta(seconds=self.offset)

    # chance

    def chance(self, probability: float) -> bool:
        """True with this probability; draws only where there is doubt."""
        return probability > 0.0 and self.random.random() < probability

    def strikes(self, kind: str, probability: float) -> bool:
        """True where a fault of this kind happens now; counted."""
        if probability > 0.0 and self.random.random() < probability:
            self.injected[kind] += 1
            return True
        return False

    def below(self, bound: int) -> int:
        """A number in [0, bound)."""
        return int(self.random.random() * bound)

    def between(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self.random.random()

    # trace

    def note(self, text: str) -> None:
        """Write down what happened; the hash of all notes identifies the run."""
        process = self.current
        line = f"{self.now:10.3f} {process.name if process else '-':<15} {text}"
        self._hash.update(line.encode())
        trace = self.trace
        trace.append(line)
        if len(trace) > self.trace_max:
            del trace[: self.trace_max // 2]

    def trace_hash(self) -> str:
        """Identifies everything that was noted."""
        return self._hash.hexdigest()

    # scheduling

    def call_at(self, when: float, action: Callable[[], None]) -> None:
        """Run an action at a simulated time."""
        self._sequence += 1
        heapq.heappush(self.heap, (when, self._sequence, action, -1))

    def call_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Run an action later."""
        self.call_at(self.now + seconds, action)

    def wake(self, task: Task, token: int) -> None:
        """Make a waiting task runnable, unless it went on meanwhile."""
        if task.waiting and task.token == token and not task.done:
            task.waiting = False
            task.token += 1
            self.runnable.append(task)

    def step(self) -> bool:
        """One step of one task, or a jump to the next time at which something happens. False where nothing is left."""
        heap = self.heap
        runnable = self.runnable
        if not runnable:
            if not heap:
                return False
            if heap[0][0] > self.now:
                self.now = heap[0][0]
        while heap and heap[0][0] <= self.now:
            _, _, what, token = heapq.heappop(heap)
            if token < 0:
                what()
            else:
                self.wake(what, token)
        if not runnable:
            return True
        index = int(self.random.random() * len(runnable))
        task = runnable[index]
        last = runnable.pop()
        if last is not task:
            runnable[index] = last
        if task.done:
            return True
        process = task.process
        if process.paused_until > self.now:
            self._park(task, process.paused_until - self.now, None)
            return True
        self.steps += 1
        self.now += TICK_SECONDS
        self._run(task, process)
        return True

    def _run(self, task: Task, process: Process) -> None:
        self.current = process
        try:
            wanted = task.coroutine.send(None)
        except StopIteration as stop:
            task.done = True
            task.result = stop.value
            if task in process.tasks:
                process.tasks.remove(task)
        except Crash as crash:
            task.done = True
            self.note(f"CRASH at {crash}")
            self.on_crash(process)
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{process.name}: task {task.name} died of {error!r}") from error
        else:
            if wanted is None:
                self.runnable.append(task)
            else:
                self._park(task, wanted.seconds, wanted.signal)
        finally:
            self.current = None

    def _park(self, task: Task, seconds: float | None, signal: Signal | None) -> None:
        task.waiting = True
        if seconds is not None:
            self._sequence += 1
            heapq.heappush(self.heap, (self.now + seconds, self._sequence, task, task.token))
        if signal is not None:
            signal.waiters.append((task, task.token))


class SimulatedSchedule:
    """The loop's Schedule port."""

    async def pause(self, seconds: float) -> None:
        """Wait simulated real time."""
        await Sleep(seconds)
