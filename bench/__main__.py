"""`python -m bench`: measure the stacks one after the other, print tables, and as last line one JSON object.

The whole run is bounded: by units, by seconds of load, and by a deadline after which no further stack is started.
Installing the peers, once, comes on top. What a peer does wrong is told, and does not fail the run.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.areas import area_report
from bench.crash_window import crash_windows
from bench.flatness import flatness
from bench.measure import WARM_UP_UNITS, Beside, Measurement, Size, measure
from bench.peers.engines import Bare, Dbos, Engine, PeerUnits, Restate, Temporal
from bench.peers.install import RECIPES, Skipped, install
from bench.report import BARE, profile_report, report
from bench.stacks import Floor, SagaPlane, Stack, Stub, TrueupPlane, UndoneSagaPlane
from trueup_devkit.evidence import write_page

PEERS: dict[str, Callable[[str], Engine]] = {"dbos": Dbos, "temporal": Temporal, "restate": Restate}
ENGINES = {BARE: Bare, **PEERS}
KINDS = ("", "_saga", "_saga_undone")
FIXED_SECONDS = {
    "floor": 28.0,
    "trueup": 50.0,
    "trueup_readback": 50.0,
    "trueup_saga": 45.0,
    "trueup_saga_undone": 25.0,
    "bare": 25.0,
    "bare_saga": 20.0,
    "bare_saga_undone": 20.0,
    "dbos": 40.0,
    "dbos_saga": 25.0,
    "dbos_saga_undone": 25.0,
    "temporal": 45.0,
    "temporal_saga": 30.0,
    "temporal_saga_undone": 30.0,
    "restate": 35.0,
    "restate_saga": 25.0,
    "restate_saga_undone": 25.0,
}
"""What a stack takes on a busy machine apart from saturation: start, warm-up, idle, quiet arrivals, stop."""
SATURATION_SECONDS_MIN = 3.0
STACKS = tuple(FIXED_SECONDS)
PEER_STACKS = tuple(f"{peer}{kind}" for peer in PEERS for kind in KINDS)
RUN_SECONDS_MAX = 330.0
PEER_SECONDS_MAX = 380.0
SAGA_SHARE = 5
"""A saga has five steps: a fifth of the units takes as long."""
SAGA_WARM_UP_UNITS = 32


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="CPU, throughput, latency and memory of a command and a saga, next to one INSERT per request and"
        " next to other engines of durable execution.",
        epilog="Example: python -m bench --only floor,trueup --units 1000. Exit codes: 0 ok, 1 failed, 2 usage.",
    )
    parser.add_argument("--units", type=int, default=3000, help="units at saturation (default 3000)")
    parser.add_argument("--seconds", type=float, default=15.0, help="longest saturation phase (default 15)")
    parser.add_argument("--quiet-units", type=int, default=160, help="units at 20 per second (default 160)")
    parser.add_argument("--only", default=",".join(STACKS), help=f"some of {','.join(STACKS)}; `peers` for all theirs")
    parser.add_argument("--without-peers", action="store_true", help="only the floor, Trueup and bare hops")
    parser.add_argument("--profile", choices=("samples", "calls"), default="", help="profile the services as well")
    parser.add_argument("--crash-window", action="store_true", help="instead: SIGKILL between sending and recording")
    parser.add_argument(
        "--history", default="", metavar="N,…", help="instead: cost at 1,000 and at each N closed instances"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the tables to a Markdown page as well")
    options = parser.parse_args(arguments)
    named = [name for part in options.only.split(",") for name in (PEER_STACKS if part == "peers" else [part]) if name]
    for name in named:
        if name not in STACKS:
            parser.error(f"--only: {name} is none of {', '.join(STACKS)}")
    options.only = [name for name in named if not (options.without_peers and name in PEER_STACKS)]
    if options.units < 1 or options.quiet_units < 1 or options.seconds <= 0:
        parser.error("--units, --quiet-units and --seconds must be positive")
    try:
        options.history = [int(text) for text in filter(None, options.history.split(","))]
    except ValueError:
        parser.error("--history: numbers, separated by commas")
    return options


class _Run:
    """The stacks of one run and who starts what."""

    def __init__(self, options: argparse.Namespace, stub: Stub) -> None:
        self._options = options
        self._stub = stub
        self._names: list[str] = options.only
        uses = options.units + 2 * options.quiet_units + WARM_UP_UNITS
        self._saga = SagaPlane(stub.url, units_max=uses, profile=options.profile)
        self._saga.kept = {"trueup_saga", "trueup_saga_undone"} <= set(self._names)
        self._uses = uses
        self._engines = {name: make(stub.url) for name, make in ENGINES.items()}

    def make(self, name: str) -> Stack:
        """The stack of this name, not yet started."""
        peer = next((peer for peer in ENGINES if name.startswith(peer)), None)
        if peer is not None:
            units = PeerUnits(self._engines[peer], name.removeprefix(peer))
            units.ends_engine = not any(left.startswith(peer) for left in self._left_after(name))
            return units
        if name == "floor":
            return Floor()
        if name == "trueup_saga":
            return self._saga
        if name == "trueup_saga_undone":
            on = self._saga if self._saga.kept else None
            return UndoneSagaPlane(self._stub.url, units_max=self._uses, profile=self._options.profile, on=on)
        command_type = "bench.post_verified" if name == "trueup_readback" else "bench.post"
        return TrueupPlane(name, command_type, self._stub.url, units_max=self._uses, profile=self._options.profile)

    def _left_after(self, name: str) -> list[str]:
        return self._names[self._names.index(name) + 1 :]

    def size(self, name: str, seconds: float) -> Size:
        """How much of everything."""
        saga = "_saga" in name
        share = SAGA_SHARE if saga else 1
        return Size(
            max(1, self._options.units // share),
            seconds,
            max(1, self._options.quiet_units // share),
            SAGA_WARM_UP_UNITS if saga else WARM_UP_UNITS,
            idle=not name.endswith("_undone") and (not saga or name.startswith("trueup")),
        )

    def stop(self) -> None:
        """Stop what is still there."""
        self._saga.kept = False
        self._saga.stop()
        for engine in self._engines.values():
            engine.stop()


def _measure_all(options: argparse.Namespace, stub: Stub) -> list[Measurement]:
    missing = _install({name for name in PEERS if any(stack.startswith(name) for stack in options.only)})
    run, beside = _Run(options, stub), Beside()
    limit = RUN_SECONDS_MAX + (PEER_SECONDS_MAX if set(options.only) & set(PEER_STACKS) - set(missing) else 0.0)
    ends_at = time.monotonic() + limit
    measured: list[Measurement] = []
    try:
        for number, name in enumerate(options.only):
            peer = next((peer for peer in missing if name.startswith(peer)), None)
            if peer is not None:
                measured.append(Measurement(name, skipped=missing[peer]))
                continue
            left = options.only[number:]
            free = ends_at - time.monotonic() - sum(FIXED_SECONDS[stack] for stack in left)
            if time.monotonic() > ends_at:
                measured.append(Measurement(name, problems=["no time was left"]))
                continue
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            floor = beside.measure() if name != "floor" else None
            if measured and floor is not None:
                measured[-1].follow(floor)
            seconds = min(options.seconds, max(SATURATION_SECONDS_MIN, free / len(left)))
            seen = measure(run.make(name), stub, run.size(name, seconds))
            seen.beside = floor
            measured.append(seen)
            print(f"  {_told(seen)}", file=sys.stderr, flush=True)
        if measured and measured[-1].beside is not None:
            measured[-1].follow(beside.measure())
    finally:
        run.stop()
        beside.stop()
    return measured


def _told(seen: Measurement) -> str:
    figures = ", ".join(f"{name} {value:g}" for name, value in seen.figures().items())
    return seen.skipped or "; ".join([figures, *seen.problems])


def _install(peers: set[str]) -> dict[str, str]:
    """Install the peers before anything is measured; why some are not there, by name."""
    missing: dict[str, str] = {}
    for name in sorted(peers):
        try:
            install(RECIPES[name])
        except Skipped as reason:
            missing[name] = str(reason)
            print(f"skipped: {name}: {reason}", file=sys.stderr, flush=True)
    return missing


INTRO = """
Every stack is started on fresh storage of its own and does the same units against the same stub: one POST with an
idempotency key that is answered with the terminal state after one HTTP effect; a saga of five such effects; the same
saga with its fifth effect refused, so that four are undone. CPU is that of all processes of a stack, without the client
and the stub. The floor, FastAPI and one committed INSERT per request, is measured again right before and right after
each stack, and ratios are to the mean of both. How each peer is deployed and what was tuned stands in `bench/peers/`.
`bare` is no peer but a yardstick: the hops of a unit through three services, their stores and the broker, and nothing
done on the way (`bench/bare.py`).
"""
PROFILE_INTRO = """
Where the CPU of a unit goes while 64 are in flight: samples by CPU time in every service, own time of each function,
put together by what the code is for. The profiler itself costs something, so the tables below it are not those of the
benchmark; PostgreSQL and NATS stand in them by process.
"""
CRASH_INTRO = """
The stub applies an effect and holds its answer back; meanwhile everything of the stack that causes effects is ended
with SIGKILL and started again, and the same unit is asked for with the same key until its end is told. POSTs and
look-ups are what the stub counted: more than one POST is an effect that happened twice.
"""
HISTORY_INTRO = """
Planes run side by side, one with a short history and the others with long ones: copies of what really closed commands
left behind, in every table of every service, half of them with an element that is visited; sent mail, which is kept for
an hour, is copied for the last 100,000. They are measured in turn, twice; then lists are asked for over HTTP. Rows read
are PostgreSQL's own count, so they do not depend on the speed of the machine; those of an idle plane are what the
sweeps read.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 1 where Trueup could not be measured, or doubled or lost an effect."""
    options = _options(arguments)
    stub = Stub()
    stub.start()
    try:
        if options.crash_window:
            title, intro, (lines, figures, failed) = "The crash window", CRASH_INTRO, crash_windows(stub)
        elif options.history:
            title, intro, (lines, figures, failed) = "Cost and history", HISTORY_INTRO, flatness(stub, options.history)
        else:
            measured = _measure_all(options, stub)
            title, intro, lines = "Benchmark", INTRO, report(measured)
            if options.profile:
                print(profile_report(measured))
                title, intro, lines = "Profile", PROFILE_INTRO, [*area_report(measured), *lines]
            figures = {seen.name: seen.figures() for seen in measured if not seen.skipped}
            failed = any(seen.problems for seen in measured if seen.name not in PEER_STACKS)
    finally:
        stub.stop()
    print("\n".join(lines))
    if options.write:
        given = " ".join(arguments if arguments is not None else sys.argv[1:])
        write_page(options.write, title, f'make bench ARGS="{given}"', intro, ["```", *lines, "```"])
    print(json.dumps(figures))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
