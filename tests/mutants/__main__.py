"""`python -m tests.mutants`: control run, then every mutant against its killers; the last line is JSON."""

from __future__ import annotations

import argparse
import fnmatch
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import Killer, Mutant, Seeds
from tests.mutants.table import MUTANTS
from tests.mutants.workshop import Workshop, seeds_of, tests_of
from trueup_devkit.evidence import write_page

INTRO = """Each line of the product below was changed by hand in a throw-away copy, as a tired engineer might have
written it, and the tests or simulated seeds named for it were run against that copy. The same tests and seeds first ran
green against the unchanged copy. A mutant counts as killed only where a test failed by its own assertion, or by an
exception that the product itself declares; a failing import or a plain crash does not count."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a mutant: killed, SURVIVED, or broken (its entry in the table is no good)."""

    mutant: Mutant
    verdict: str
    by: str
    seconds: float
    tried: tuple[str, ...] = ()


def control(workshop: Workshop, killers: Sequence[Killer | Sequence[str]], pool: ThreadPoolExecutor) -> list[str]:
    """Killers on the unchanged copy; answers what is not green."""
    started = [(killer, pool.submit(workshop.run, killer, None, None)) for killer in killers]
    red = []
    for killer, future in started:
        found = future.result()
        name = str(killer) if isinstance(killer, str | Seeds) else f"{len(killer)} tests"
        print(f"control: {name}: {found.outcome} in {found.seconds:.1f} s", flush=True)
        if found.outcome != "passed":
            red.append(f"{name}: {found.outcome} {found.by} {found.says}")
    return red


def hunt(workshop: Workshop, mutant: Mutant, *, every: bool) -> Fate:
    """One mutant against its killers, in their order, until one kills it (or all of them)."""
    begun = time.monotonic()
    try:
        overlay = workshop.overlay(mutant)
    except (ValueError, OSError) as error:
        return Fate(mutant, "broken", str(error), 0.0)
    tried: list[str] = []
    killed: list[str] = []
    outcomes: set[str] = set()
    for killer in mutant.killers:
        found = workshop.run(killer, mutant, overlay)
        outcomes.add(found.outcome)
        tried.append(f"{killer}: {found.outcome} {found.by} {found.says}".strip())
        if found.outcome == "killed":
            by = found.by.split("[", 1)[0] or str(killer)
            killed.append(f"{by} of {killer}" if isinstance(killer, Seeds) else by)
            if not every:
                break
    workshop.forget(overlay)
    seconds = time.monotonic() - begun
    if killed:
        return Fate(mutant, "killed", ", ".join(killed), seconds, tuple(tried))
    fate = "broken" if outcomes & {"unseen", "unusable", "crashed"} else "SURVIVED"
    return Fate(mutant, fate, "; ".join(tried), seconds, tuple(tried))


def table(fates: Sequence[Fate]) -> list[str]:
    """The result as a Markdown table."""
    lines = ["| mutant | breaks | rows | killed by | seconds |", "|---|---|---|---|---|"]
    for fate in fates:
        named = ", ".join(f"`{each.removeprefix('tests/')}`" for each in fate.by.split(", "))
        by = named if fate.verdict == "killed" else f"**{fate.verdict}**: {fate.by}"
        mutant = fate.mutant
        lines.append(f"| {mutant.name} | {mutant.law} | {mutant.rows} | {by} | {fate.seconds:.1f} |")
    return lines


def chosen(patterns: Sequence[str]) -> list[Mutant]:
    """The mutants whose names match; all of them without a pattern."""
    return [item for item in MUTANTS if not patterns or any(fnmatch.fnmatch(item.name, each) for each in patterns)]


def run(mutants: Sequence[Mutant], workshop: Workshop, *, jobs: int, every: bool, verbose: bool) -> list[Fate]:
    """Control run and hunt. Raises NotGreen where a killer fails on the unchanged copy: then a kill means nothing."""
    fates: dict[str, Fate] = {}
    workshop.open()
    with ThreadPoolExecutor(jobs) as pool, giving_up(pool):
        tests, seeds = tests_of(mutants), seeds_of(mutants)
        parts = [part for number in range(jobs) if (part := tests[number::jobs])]
        if red := control(workshop, [*parts, *(seeds if every else [])], pool):
            raise NotGreen(red)
        started = [pool.submit(hunt, workshop, mutant, every=every) for mutant in mutants]
        for done in as_completed(started):
            fate = done.result()
            fates[fate.mutant.name] = fate
            where = f"{len(fates)}/{len(mutants)}"
            print(f"{where:>8} {fate.verdict:9} {fate.mutant.name} ({fate.seconds:.1f} s) {fate.by}", flush=True)
            if verbose or fate.verdict != "killed":
                print(*(f"           {line}" for line in fate.tried), sep="\n", flush=True)
        used = {fate.mutant.name for fate in fates.values() if fate.by.startswith("seed ")}
        late = [] if every else seeds_of([mutant for mutant in mutants if mutant.name in used])
        if red := control(workshop, late, pool):
            raise NotGreen(red)
    return [fates[mutant.name] for mutant in mutants]


@contextmanager
def giving_up(pool: ThreadPoolExecutor) -> Iterator[None]:
    """Whatever ends the run early also drops what has not begun."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


class NotGreen(Exception):
    """Killers that fail although nothing was broken."""


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(prog="tests.mutants", description="break each law by hand and see who notices")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="mutants by name, * allowed")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--limit-seconds", type=float, default=180.0, help="for one killer")
    parser.add_argument("--all", action="store_true", help="let all killers try, not only until the first kill")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    parser.add_argument("--verbose", action="store_true", help="show what each killer said")
    parser.add_argument("--keep", type=Path, help="work in this folder and leave it there")
    parser.add_argument("--write", type=Path, help="write the table as a Markdown page")
    arguments = parser.parse_args()
    mutants = chosen(arguments.only)
    if arguments.list:
        print(*(f"{item.name:34} {item.rows:12} {item.law}" for item in mutants), sep="\n")
        return 0
    begun = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it also wants its copies gone
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="trueup-mutants-"))
    workshop = Workshop(folder, arguments.limit_seconds)
    try:
        fates = run(mutants, workshop, jobs=arguments.jobs, every=arguments.all, verbose=arguments.verbose)
    except NotGreen as red:
        print("the control run is not green, so a kill would mean nothing:", *red.args[0], sep="\n  ")
        return 2
    finally:
        workshop.close(keep=arguments.keep is not None)
    seconds = time.monotonic() - begun
    lines = table(fates)
    print("", *lines, "", sep="\n")
    survived = [fate.mutant.name for fate in fates if fate.verdict == "SURVIVED"]
    broken = [fate.mutant.name for fate in fates if fate.verdict == "broken"]
    killed = len(fates) - len(survived) - len(broken)
    if arguments.write:
        summary = f"{len(fates)} mutants, {killed} killed, {len(survived)} survived, {seconds:.0f} s in all."
        command = "make mutants ARGS=--all" if arguments.all else "make mutants"
        write_page(arguments.write, "Mutants", command, f"{INTRO}\n\n{summary}", lines)
    result = {"mutants": len(fates), "killed": killed, "survived": survived, "seconds": round(seconds, 1)}
    print(json.dumps(result if not broken else {**result, "broken": broken}))
    return 1 if survived or broken else 0


if __name__ == "__main__":
    sys.exit(main())
