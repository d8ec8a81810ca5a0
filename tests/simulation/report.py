"""What a run of seeds is told as: one Markdown table after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.simulation.coverage import NAMES, TABLES, UNREACHED, Covered, covered
from tests.simulation.run import Summary
from tests.simulation.verdict import P3


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return [*lines, *(f"| {' | '.join(str(item) for item in row)} |" for row in rows), ""]


def replay(seed: int, theme: str | None, sagas: bool | None) -> str:
    """The command that runs one seed again, step by step."""
    more = (f" --theme {theme}" if theme else "") + (" --sagas" if sagas else "")
    return f'make sim FROM={seed} ARGS="--trace{more}"'


def rate(summary: Summary) -> float:
    """Seeds a minute."""
    return (summary.seeds - summary.hunted) / summary.seconds * 60 if summary.seconds else 0.0


def all_covered(summary: Summary) -> list[Covered]:
    """The coverage of every table."""
    return [covered(name, summary.coverage.get(name, {})) for name in NAMES]


def lines_of(summary: Summary) -> list[str]:
    """The whole report."""
    return [*_size(summary), *_invariants(summary), *_faults(summary), *_tables(summary), *_ends(summary)]


def _size(summary: Summary) -> list[str]:
    seeds = max(summary.seeds, 1)
    rows = [
        ("seeds", summary.seeds - summary.hunted),
        ("failed", len(summary.failed)),
        ("wall seconds", f"{summary.seconds:.1f}"),
        ("seeds a minute", f"{rate(summary):.0f}"),
        ("more seeds, for transitions that are rare", summary.hunted),
        ("steps", f"{summary.steps} ({summary.steps / seeds:.0f} a seed)"),
        ("single commands", f"{summary.commands} ({summary.commands / seeds:.1f} a seed)"),
        ("workflows", f"{summary.workflows} ({summary.workflows / seeds:.1f} a seed)"),
        ("operations", f"{summary.ends.total()} ({summary.ends.total() / seeds:.1f} a seed)"),
        ("first bytes sent", summary.checks["transmitted"]),
        ("simulated hours", f"{summary.simulated_seconds / 3600:.1f}"),
    ]
    return ["## Size", "", *table(("", ""), rows)]


def _invariants(summary: Summary) -> list[str]:
    rows = [(phrase.value, summary.checks[phrase]) for phrase in P3]
    others = [(name, count) for name, count in summary.checks.most_common() if name not in set(P3)]
    told = ", ".join(f"{name} {count}" for name, count in others)
    return [
        "## Invariants",
        "",
        *table(("held after every commit and at every first byte", "checked"), rows),
        f"Rows and moments judged besides, each by several demands of their own: {told}.",
        "",
    ]


def _faults(summary: Summary) -> list[str]:
    points, crashes = summary.coverage.get("points", Counter()), summary.coverage.get("crashes", Counter())
    died = sum(bool(crashes[point]) for point in points)
    return [
        "## Faults",
        "",
        *table(("fault", "injected"), summary.injected.most_common()),
        f"Processes died at {died} of {len(points)} named crash points.",
        "",
    ]


def _tables(summary: Summary) -> list[str]:
    found = all_covered(summary)
    rows = [
        (item.name, item.taken, item.total, len(item.excused), ", ".join(item.missing) or "none")
        for item in found
        if item.name in TABLES
    ]
    head = ("table", "taken", "all", "nothing sends them yet", "sent by something and not taken")
    lines = ["## Transitions of the services' tables", "", *table(head, rows)]
    stale = [f"{item.name}: {name}" for item in found for name in item.stale]
    if stale:
        lines += [f"Taken although listed as unreached: {', '.join(stale)}.", ""]
    excused = [(name, item, reason) for name, row in UNREACHED.items() for item, reason in row.items()]
    lines += table(("table", "nothing takes it yet", "because"), excused)
    bounds = [(item.name, item.taken, item.total) for item in found if item.name not in TABLES]
    lines += ["## Moves that rows may make", "", "Any other move is a violation.", ""]
    return [*lines, *table(("row", "moves made", "moves allowed"), bounds)]


def _ends(summary: Summary) -> list[str]:
    workflows = summary.coverage.get("ends", Counter())
    rows = [("operations", *item) for item in summary.ends.most_common()]
    rows += [("workflows", *item) for item in workflows.most_common()]
    return ["## Ends", "", *table(("", "end", "count"), rows)]
