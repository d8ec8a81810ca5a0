"""`python -m tests.simulation --seeds N --from K`: run seeds, say what failed; the last line is JSON."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path

from tests.simulation.chaos import SAGA_THEMES, THEMES
from tests.simulation.pool import run_on_all_cores
from tests.simulation.report import all_covered, lines_of, replay
from tests.simulation.run import TRACE_LINES, Result, Summary, run_seed
from trueup_devkit.evidence import write_page

INTRO = """
The real handlers, cores, loops, relays and timers of all five services, two replicas each, run over a simulated
network, stores and outside world in which one number picks every interleaving and every fault. Invariants are judged
after every commit and at every first byte that leaves; then everything outside is healed, and every case must come to
its end or to a person with a deadline, with each intended effect in the world exactly once.
"""


def _progress(summary: Summary, added: Summary) -> None:
    for result in added.failed:
        print(f"seed {result.seed} FAILED: {result.violation}", flush=True)
    if summary.seeds % 100 == 0:
        rate = summary.seeds / summary.seconds
        print(f"{summary.seeds} seeds, {len(summary.failed)} failed, {rate:.1f} seeds/s", flush=True)


def _show(result: Result, lines: int, again: str) -> None:
    print(f"\nseed {result.seed}: {result.violation}\n  once more, step by step: {again}")
    print(f"  (trace {result.trace_hash}, last {lines} of its lines)")
    for line in result.trace[-lines:]:
        print(f"  {line}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.simulation", description="deterministic simulation of the whole plane")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--jobs", type=int, default=None, help="how many processes (all cores)")
    parser.add_argument("--lines", type=int, default=TRACE_LINES, help="lines of trace to show for a failing seed")
    parser.add_argument("--show", type=int, default=3, help="how many failing seeds to show")
    parser.add_argument("--trace", action="store_true", help="show the whole trace of the first seed and stop")
    parser.add_argument("--sagas", action="store_true", help="workflows in every seed, not in every second one")
    parser.add_argument("--theme", choices=(*THEMES, *SAGA_THEMES), help="the same misfortunes for every seed")
    parser.add_argument("--write", type=Path, help="write the report to this page too")
    return parser


def main() -> int:
    """Run and report."""
    arguments = _parser().parse_args()
    sagas = True if arguments.sagas else None
    if arguments.trace:
        result = run_seed(arguments.first, arguments.theme, sagas=sagas)
        print("\n".join(result.trace))
        print(result.violation or "no violation", dict(result.ends), f"trace {result.trace_hash}")
        return 1 if result.violation else 0
    summary = run_on_all_cores(
        arguments.first, arguments.seeds, _progress, jobs=arguments.jobs, theme=arguments.theme, sagas=sagas
    )
    for result in summary.failed[: arguments.show]:
        _show(result, arguments.lines, replay(result.seed, arguments.theme, sagas))
    lines = lines_of(summary)
    print("\n" + "\n".join(lines))
    if arguments.write is not None:
        more = [item for item in sys.argv[1:] if item not in ("--write", str(arguments.write))]
        command = shlex.join(["python", "-m", "tests.simulation", *more, "--write", str(arguments.write)])
        write_page(arguments.write, "Simulation", command, INTRO, lines)
    failed = [result.seed for result in summary.failed]
    seconds = round(summary.seconds, 2)
    rate = round(summary.seeds / summary.seconds * 60) if summary.seconds else 0
    missing = {item.name: list(item.missing) for item in all_covered(summary) if item.missing}
    told = {"seeds": summary.seeds, "failed": failed, "seconds": seconds, "seeds_per_minute": rate}
    print(json.dumps({**told, "faults": summary.injected.total(), "transitions_missing": missing}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
