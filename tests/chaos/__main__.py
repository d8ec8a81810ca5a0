"""`python -m tests.chaos [--only NAME...] [--runs N] [--write FILE]`: break real processes; the last line is JSON."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path

from tests.chaos.page import lines, write
from tests.chaos.run import PLANES, Result, run_plane
from tests.chaos.table import FAULTS


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="tests.chaos", description="break the processes of real planes")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="NAME", help="names of faults, or patterns")
    parser.add_argument("--runs", type=int, default=1, help="runs of each fault")
    parser.add_argument("--list", action="store_true", help="list the faults and stop")
    parser.add_argument("--write", metavar="FILE", help="write the table as a Markdown page")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the states and logs of the planes there")
    given = parser.parse_args()
    wanted = [fault for fault in FAULTS if any(fnmatch.fnmatch(fault.name, pattern) for pattern in given.only)]
    if given.list or not wanted:
        print("\n".join(f"{fault.name:<44} {fault.about}" for fault in (wanted or FAULTS)))
        return 0 if wanted else 2
    begun, results = time.monotonic(), []

    def say(text: str) -> None:
        print(f"{time.monotonic() - begun:6.1f} s  {text}", flush=True)

    for plane in PLANES:
        faults = [fault for fault in wanted if fault.plane == plane]
        if faults:
            say(f"starting plane {plane} for {len(faults)} faults")
            results.append(run_plane(plane, faults, given.runs, say, given.keep))
    return report(results, time.monotonic() - begun, given.write)


def report(results: list[Result], seconds: float, path: str | None) -> int:
    """Print what was seen; the exit code."""
    rows = [row for result in results for row in result.rows]
    broken = [law for result in results for law in result.broken_laws]
    table = lines(rows)
    print("\n" + "\n".join(table) + "\n")
    for row in rows:
        for finding in row.verdict.findings:
            print(f"{row.fault.name}: {finding}")
    for refusal in [text for result in results for text in result.refusals][:40]:
        print(f"not accepted: {refusal}")
    for law in broken:
        print(f"BROKEN: {law}")
    failed = {row.fault.name: row.failures for row in rows if row.failures}
    for name, reasons in failed.items():
        print(f"FAILED {name}: {'; '.join(reasons)}")
    summary = {
        "faults": len(rows),
        "runs": sum(row.runs for row in rows),
        "commands": sum(row.commands for row in rows),
        "recovered": sum(row.verdict.recovered for row in rows),
        "owned": sum(row.verdict.owned for row in rows),
        "duplicates": sum(row.verdict.duplicates for row in rows),
        "duplicates_owned": sum(row.verdict.duplicates_owned for row in rows),
        "lost": sum(row.verdict.lost for row in rows),
        "slowest_ready_seconds": round(max(row.ready_seconds for row in rows), 1),
        "broken_laws": len(broken),
        "failed": sorted(failed),
        "seconds": round(seconds, 1),
    }
    if path is not None:
        write(Path(path), rows, table, summary)
    print(json.dumps(summary))
    return 1 if failed or broken else 0


if __name__ == "__main__":
    sys.exit(main())
