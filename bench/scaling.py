"""`python -m bench.scaling`: one process of every service next to two, where slots are the limit and where cores are.

A target that takes its time leaves the cores alone: what one adapters process has in flight is then the limit, and two
have twice as much. A target that answers at once is limited by the cores, which replicas only share.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.load import Order, run_load
from bench.processes import cpu_seconds, machine_busy_seconds
from bench.stacks import ROOT, START_TIMEOUT_SECONDS, Stub, TrueupPlane, own_environment
from bench.stub import Effects, StubProtocol
from trueup_common.contracts.topology import SERVICES
from trueup_devkit.children import Command, http_status, spawn, wait_until_ready
from trueup_devkit.evidence import write_page
from trueup_devkit.plan import ADAPTERS, MODULES

SLOTS = 4
DELAY_SECONDS = 0.2
WARM_UP_UNITS = 150
FACTOR_MIN = 1.7
SATURATED = 0.9
"""From such a share of all cores on, the machine is busy."""
INTRO = """
How many commands per second one process of every service brings to their end, and how many two do, in two situations:
a target that takes 200 ms for each effect while each adapters process keeps 4 in flight, so that slots are the limit;
and a target that answers at once, with 256 commands in flight, so that the cores are. Client and target run on the
same machine and take their share; `machine` is what all of them and everything else used. The requirement is 1.7
times the commands with two replicas until the cores or PostgreSQL saturate: the first situation shows it, the second
one shows where it ends on this machine. What more cores would give is not shown here.
"""


@dataclass(frozen=True)
class Situation:
    """What limits the plane."""

    name: str
    delay_seconds: float
    slots: int | None
    in_flight: int
    """Offered to one replica and to two alike: shared among replicas, batches get smaller and cost more each."""


@dataclass(frozen=True)
class Row:
    """One plane under load."""

    situation: str
    replicas: int
    units: int
    units_per_s: float
    cores: float
    machine: float
    """Cores that were busy with anything."""
    doubled: int
    missing: int


SITUATIONS = (Situation("slots", DELAY_SECONDS, SLOTS, 64), Situation("cores", 0.0, None, 256))


class SlowStub(Stub):
    """The world outside, answering every effect after a while."""

    def __init__(self, delay_seconds: float) -> None:
        super().__init__()
        self._delay_seconds = delay_seconds

    def start(self) -> None:
        """Start it."""
        arguments = [sys.executable, "-m", "bench.scaling", "--serve", str(self.port), str(self._delay_seconds)]
        self._child = spawn("stub", Command(arguments, own_environment(), ROOT), self._folder / "stub.log")
        wait_until_ready(self._child, lambda: http_status(self.port, "/_totals") == 200, START_TIMEOUT_SECONDS)


async def serve(port: int, delay_seconds: float) -> None:
    """The stub, with a delay before each answer to an effect."""
    effects, loop = Effects(), asyncio.get_running_loop()

    class Slow(StubProtocol):
        def _answer(self, status: bytes, document: object) -> None:
            delay = delay_seconds if status.startswith(b"201") else 0.0
            loop.call_later(delay, super()._answer, status, document)

    server = await loop.create_server(lambda: Slow(effects), "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


def measure(situation: Situation, replicas: int, seconds: float, say: Callable[[str], None]) -> Row:
    """One plane, warmed up and loaded for a while."""
    stub = SlowStub(situation.delay_seconds)
    stub.start()
    name = f"{situation.name}, {replicas} of each"
    plane = TrueupPlane(name, "bench.post", stub.url, units_max=200_000)
    plane.plan.replicas = dict.fromkeys(SERVICES, replicas)
    if situation.slots is not None:
        limit = f"TRUEUP_WORKER_SLOTS={situation.slots}"
        plane.plan.programs[ADAPTERS] = ["env", limit, sys.executable, "-m", MODULES[ADAPTERS]]
    try:
        plane.start()
        warmed = run_load(Order(plane.request(), WARM_UP_UNITS, 30.0, situation.in_flight))
        used, busy, begun = sum(cpu_seconds(plane.roots()).values()), machine_busy_seconds(), time.monotonic()
        result = run_load(Order(plane.request(), 10**6, seconds, situation.in_flight))
        took = time.monotonic() - begun
        cores = (sum(cpu_seconds(plane.roots()).values()) - used) / took
        machine = (machine_busy_seconds() - busy) / took
        if result.bad or warmed.bad:
            raise RuntimeError(f"{name}: {(warmed.bad_samples + result.bad_samples)[:3]} {plane.complaints()}")
        faults = plane.faults(stub.totals(), warmed.ok + result.ok)
        row = Row(
            situation.name,
            replicas,
            result.ok,
            result.ok / result.seconds,
            cores,
            machine,
            faults.duplicated,
            faults.missing,
        )
        say(f"{name}: {row.units_per_s:.0f} units/s, {row.cores:.2f} cores")
        return row
    finally:
        plane.stop()
        stub.stop()


def factor(rows: list[Row], situation: str) -> float:
    """Two replicas against one."""
    one, two = (row for row in rows if row.situation == situation)
    return two.units_per_s / one.units_per_s


def table(rows: list[Row]) -> list[str]:
    """As Markdown."""
    lines = ["| limit | processes of each service | commands/s | cores of the plane | machine | doubled | missing |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        lines.append(
            f"| {row.situation} | {row.replicas} | {row.units_per_s:.0f} | {row.cores:.2f} of {os.cpu_count()} "
            f"| {row.machine:.2f} | {row.doubled} | {row.missing} |"
        )
    return [*lines, "", *(f"- {_verdict(rows, name)}" for name in _names(rows))]


def _verdict(rows: list[Row], situation: str) -> str:
    """What two of each give, and whether there was anything left to give."""
    said = f"two of each against one, limited by {situation}: {factor(rows, situation):.2f} times the commands"
    if factor(rows, situation) >= FACTOR_MIN:
        return f"{said}; at least {FACTOR_MIN} is met"
    one, two = (row for row in rows if row.situation == situation)
    cores = os.cpu_count() or 1
    if two.machine >= SATURATED * cores:
        each = [f"{1000 * row.cores / row.units_per_s:.1f}" for row in (one, two)]
        return (
            f"{said}; two of each kept {two.machine:.2f} of {cores} cores busy, so they are saturated (one of each "
            f"{one.machine:.2f}), and smaller batches cost more: {each[1]} ms of CPU per command after {each[0]}"
        )
    return f"{said}; {FACTOR_MIN} is NOT MET, and {cores - two.machine:.2f} cores were idle with two of each"


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row.situation for row in rows))


def main() -> int:
    """Measure, print the table, and as last line one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="load on each plane (default 8)")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table to a Markdown page as well")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "DELAY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve(int(options.serve[0]), float(options.serve[1])))
        return 0
    rows = [measure(each, count, options.seconds, print) for each in SITUATIONS for count in (1, 2)]
    print("\n".join(table(rows)))
    if options.write:
        write_page(options.write, "Replicas", f"python -m bench.scaling --write {options.write}", INTRO, table(rows))
    factors = {name: round(factor(rows, name), 2) for name in _names(rows)}
    wrong = sum(row.doubled + row.missing for row in rows)
    print(json.dumps({"factors": factors, "doubled_or_missing": wrong}))
    return 0 if factors["slots"] >= FACTOR_MIN and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
