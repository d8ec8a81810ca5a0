"""`python -m tests.simulation --seeds N --from K`: run seeds, say what failed; the last line is JSON."""

from __future__ import annotations

import argparse
import json
import sys

from tests.simulation.run import TABLES, TRACE_LINES, Result, Summary, cell, run_seed, run_seeds


def _coverage(summary: Summary, name: str, table: object) -> None:
    cells = [cell(key) for key in table]  # type: ignore[attr-defined]
    used = summary.coverage.get(name, {})
    missing = [name for name in cells if not used.get(name)]
    print(
        f"{name} table: {len(cells) - len(missing)} of {len(cells)} cells used; unused: {', '.join(missing) or 'none'}"
    )


def _progress(summary: Summary, result: Result) -> None:
    if result.violation is not None:
        print(f"seed {result.seed} FAILED: {result.violation}", flush=True)
    if summary.seeds % 100 == 0:
        rate = summary.seeds / summary.seconds
        print(f"{summary.seeds} seeds, {len(summary.failed)} failed, {rate:.1f} seeds/s", flush=True)


def _show(result: Result, lines: int) -> None:
    print(
        f"\ntrace of seed {result.seed}: {result.violation}\n  (trace {result.trace_hash}, last {lines} of its lines)"
    )
    for line in result.trace[-lines:]:
        print(f"  {line}")


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description="deterministic simulation of the whole plane")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--lines", type=int, default=TRACE_LINES, help="lines of trace to show for a failing seed")
    parser.add_argument("--show", type=int, default=3, help="how many failing seeds to show")
    parser.add_argument("--trace", action="store_true", help="show the whole trace of the first seed and stop")
    parser.add_argument("--sagas", action="store_true", help="workflows in every seed, not in every second one")
    arguments = parser.parse_args()
    sagas = True if arguments.sagas else None
    if arguments.trace:
        result = run_seed(arguments.first, sagas=sagas)
        print("\n".join(result.trace))
        print(result.violation or "no violation", dict(result.ends))
        return 1 if result.violation else 0
    summary = run_seeds(arguments.first, arguments.seeds, _progress, sagas=sagas)
    for result in summary.failed[: arguments.show]:
        _show(result, arguments.lines)
    print(f"\nends: {dict(summary.ends.most_common())}")
    print(f"checks: {dict(summary.checks.most_common())}")
    print(f"ends of workflows: {dict(summary.coverage['ends'].most_common())}")
    print(f"history: {dict(summary.coverage['events'].most_common())}")
    for name, modules in TABLES.items():
        _coverage(summary, name, modules[0].TABLE)
    rate = summary.seeds / summary.seconds if summary.seconds else 0.0
    print(f"{summary.seeds} seeds in {summary.seconds:.1f} s: {rate * 60:.0f} a minute, {summary.steps} steps")
    failed = [result.seed for result in summary.failed]
    print(json.dumps({"seeds": summary.seeds, "failed": failed, "seconds": round(summary.seconds, 2)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
