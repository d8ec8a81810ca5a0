"""The loop: bring commands, break something in the middle, heal, measure, and judge once everything could settle."""

from __future__ import annotations

import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any, Final

from tests.chaos.fault import Fault, Injection, Scene
from tests.chaos.field import Field, NotMet, running
from tests.chaos.judge import Judge, Verdict
from tests.chaos.launch import CONNECT_ANEW
from tests.chaos.traffic import Traffic
from trueup_common.contracts.topology import SERVICES

READY_SECONDS: Final = 30.0
READY_BOUND_SECONDS: Final = 60.0
"""How long to look; more than the promise, so that a broken promise has a number."""

TWO: Final = dict.fromkeys(SERVICES, 2)
AHEAD: Final = {"TRUEUP_CLOCK_SKEW_SECONDS": "300"}
ELSEWHERE: Final = {"TZ": "Asia/Kathmandu"}
PLANES: Final[dict[str, dict[str, Any]]] = {
    "one": {},
    "two": {
        "replicas": {**TWO, "adapters": 3},
        "environments": {name: {CONNECT_ANEW: "1"} for name in ("adapters", "adapters-2", "adapters-3")},
    },
    "clocks": {
        "replicas": TWO,
        "environments": {
            **{f"{service}-2": AHEAD for service in SERVICES},
            **dict.fromkeys(SERVICES, ELSEWHERE),
        },
    },
}
Say = Callable[[str], None]


@dataclass
class Row:
    """One line of the table."""

    fault: Fault
    runs: int = 0
    commands: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    ready_seconds: float = 0.0
    not_met: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What its commands are called."""
        return self.fault.name

    @property
    def failures(self) -> list[str]:
        """Why this fault counts as failed."""
        verdict, found = self.verdict, list[str]()
        found += self.not_met
        if verdict.lost:
            found.append(f"{verdict.lost} lost")
        if verdict.duplicates > verdict.duplicates_owned:
            found.append(f"{verdict.duplicates - verdict.duplicates_owned} duplicates that nobody owns")
        if self.ready_seconds > READY_SECONDS:
            found.append(f"ready only after {self.ready_seconds:.1f} s")
        return found


@dataclass
class Result:
    """Everything that was seen."""

    rows: list[Row] = field(default_factory=list)
    broken_laws: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def rounds(faults: Sequence[Fault], runs: int) -> list[list[tuple[Fault, Injection]]]:
    """What happens at the same time: one injection of each lane; what has no lane happens alone."""
    found: list[list[tuple[Fault, Injection]]] = []
    for lanes, group in groupby(faults, key=lambda fault: (fault.lane is not None, fault.name.partition(" ")[0])):
        todo: dict[str, list[tuple[Fault, Injection]]] = defaultdict(list)
        for fault in group:
            todo[fault.lane or ""] += [(fault, inject) for inject in fault.injections for _ in range(runs)]
        if lanes[0]:
            found += [[item for item in items if item] for items in zip_longest(*todo.values())]
        else:
            found += [[item] for item in todo[""]]
    return found


class Runner:
    """Runs the faults of one plane."""

    def __init__(self, field_: Field, say: Say) -> None:
        self.field = field_
        self.traffic = Traffic(field_)
        self.judge = Judge(field_)
        self.say = say
        self.rows: dict[str, Row] = {}
        self._number = 0

    def round(self, items: Sequence[tuple[Fault, Injection]]) -> None:
        """Everything of one round, at the same time; then every process is waited for and fresh commands are sent."""
        begun = time.monotonic()
        self.traffic.disturb()
        with ThreadPoolExecutor(len(items)) as pool:
            running_ = [pool.submit(self._one, fault, inject) for fault, inject in items]
        healed = max(future.result() for future in running_)
        rows = [self.rows[fault.name] for fault, _ in items]
        try:
            self.field.until(self.field.is_ready, "every process is ready again", READY_BOUND_SECONDS)
            self.traffic.probe(rows[0].label, READY_BOUND_SECONDS)
        except NotMet as error:
            for row in rows:
                row.not_met.append(str(error))
        ready = time.monotonic() - healed
        for row in rows:
            row.ready_seconds = max(row.ready_seconds, ready)
        names = ", ".join(row.fault.name for row in rows)
        told = [text for row in rows for text in row.not_met]
        self.say(f"ready after {ready:4.1f} of {time.monotonic() - begun:4.1f} s: {names} {'; '.join(told)}")

    def _one(self, fault: Fault, inject: Injection) -> float:
        """One run of one fault; answers when it was healed."""
        row = self.rows.setdefault(fault.name, Row(fault))
        futures = self.traffic.send(row.label, fault.kinds)
        try:
            self.traffic.accepted(futures, min(fault.after, len(futures)))
            inject(Scene(self.field, self.traffic, row.label))
        except Exception as error:  # whatever a fault fails with: it is told, and the next one has its turn
            row.not_met.append(str(error) if isinstance(error, NotMet) else repr(error)[:200])
            self._release()
        healed = time.monotonic()
        row.runs += 1
        self.field.until(lambda: all(future.done() for future in futures), "every client has its answer", 120)
        return healed

    def _release(self) -> None:
        """After a fault that did not work out: leave the plane usable for the next one."""
        for name in self.field.processes():
            if self.field.is_stopped(name):
                self.field.signal(name, signal.SIGCONT)

    def judged(self, name: str) -> Result:
        """What became of everything, once nothing moves any more."""
        units = self.traffic.units
        waited = self.judge.settle(units)
        self.say(f"plane {name}: everything settled {waited:.1f} s after the last fault")
        truth = self.judge.truth()
        for row in self.rows.values():
            own = [unit for unit in units if unit.label == row.label]
            row.commands = sum(unit.accepted for unit in own)
            row.verdict = self.judge.judge(own, truth)
        broken = [*self.judge.unexplained(units, truth), *self.judge.laws()]
        return Result(list(self.rows.values()), broken, self.traffic.refusals)


def run_plane(name: str, faults: Sequence[Fault], runs: int, say: Say, keep: Path | None = None) -> Result:
    """All faults of one plane, one after another; what they leave behind settles meanwhile and is judged at the end."""
    with (
        tempfile.TemporaryDirectory(prefix=f"chaos-{name}-") as folder,
        running((keep or Path(folder)) / name, **PLANES[name]) as field_,
    ):
        runner = Runner(field_, say)
        try:
            for items in rounds(faults, runs):
                runner.round(items)
            return runner.judged(name)
        finally:
            runner.traffic.close()
