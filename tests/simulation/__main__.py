"""`python -m tests.simulation --seeds N --from K`: run seeds, say what failed; the last line is JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.simulation.chaos import SAGA_THEMES, THEMES
from tests.simulation.coverage import TABLES
from tests.simulation.fixed import hunt
from tests.simulation.pool import run_on_all_cores
from tests.simulation.report import all_covered, lines_of, rate, replay
from tests.simulation.run import TRACE_LINES, Result, Summary, run_seed
from trueup_devkit.evidence import write_page

HUNT_FROM = 1000
"""From so many seeds on, transitions that were not taken are looked for in the themes in which they are likely."""
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
        told = f"{summary.seeds} seeds, {len(summary.failed)} failed, {rate(summary) / 60:.1f} seeds/s"
        print(told, flush=True)


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
    if arguments.seeds >= HUNT_FROM and not summary.failed:
        for of_workflows in (False, True):
            hunt(summary, sagas=of_workflows)
    for result in summary.failed[: arguments.show]:
        _show(result, arguments.lines, replay(result.seed, arguments.theme, sagas))
    lines = lines_of(summary)
    print("\n" + "\n".join(lines))
    if arguments.write is not None:
        first = f" FROM={arguments.first}" if arguments.first else ""
        command = f'make sim SEEDS={arguments.seeds}{first} ARGS="--write {arguments.write}"'
        write_page(arguments.write, "Simulation", command, INTRO, lines)
    failed = [result.seed for result in summary.failed]
    seconds = round(summary.seconds, 2)
    missing = {item.name: list(item.missing) for item in all_covered(summary) if item.missing and item.name in TABLES}
    told = {"seeds": arguments.seeds, "failed": failed, "seconds": seconds, "seeds_per_minute": round(rate(summary))}
    print(json.dumps({**told, "faults": summary.injected.total(), "transitions_missing": missing}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
