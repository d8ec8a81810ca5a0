"""What was seen, as a table for a terminal and as a page of evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.chaos.run import Row
from trueup_devkit.evidence import write_page

HEADER: Final = ("fault", "runs", "commands", "recovered", "owned", "duplicates", "lost", "slowest ready s")
INTRO: Final = """
Real planes (embedded PostgreSQL and NATS, the sandbox world, every service a process of its own) take a stream of
single commands and sagas, each under an idempotency key of its own, while faults happen to them. In every
round one answer of the world is lost and one is a 503. *Accepted* is what a client was told so, at once or when it came
back under its key. Afterwards each accepted command has to be *recovered* (over, with the effect of every succeeded
operation in the world) or *owned* (an open exception with owner and deadline), and the history of each case has to
verify. *Duplicates* are counted in the world itself; `(owned)` says that an exception stands for each of them. *Slowest
ready* runs from the heal until every process answers 200 on `/readyz` and a command sent after the heal has succeeded.
One command of each round finds its slug taken by somebody else, so that exceptions exist: it ends as *owned*.
"""
STORES: Final = """
Then the stores are read with the owner's rights: no operation in flight without a lease, none open without lease,
wake-up or obligation, no effect sent that nobody will look for, no unknown effect and no obligation without an owner,
nothing unpublished, nothing quarantined. Broken: {}.
"""


def cells(row: Row) -> tuple[str, ...]:
    """One line of the table."""
    verdict = row.verdict
    are_owned = 0 < verdict.duplicates <= verdict.duplicates_owned
    return (
        row.fault.name,
        str(row.runs),
        str(row.commands),
        str(verdict.recovered),
        str(verdict.owned),
        f"{verdict.duplicates} (owned)" if are_owned else str(verdict.duplicates),
        str(verdict.lost),
        f"{row.ready_seconds:.1f}",
    )


def lines(rows: list[Row]) -> list[str]:
    """The table, as Markdown that reads well in a terminal."""
    table = [HEADER, *(cells(row) for row in rows)]
    widths = [max(len(line[index]) for line in table) for index in range(len(HEADER))]

    def line(texts: tuple[str, ...]) -> str:
        padded = [f"{texts[0]:<{widths[0]}}", *(f"{t:>{w}}" for t, w in zip(texts[1:], widths[1:], strict=True))]
        return f"| {' | '.join(padded)} |"

    rule = "|" + "|".join("-" * (width + 1) + (":" if index else "-") for index, width in enumerate(widths)) + "|"
    return [line(HEADER), rule, *map(line, table[1:])]


def write(path: Path, rows: list[Row], table: list[str], summary: dict[str, Any]) -> None:
    """The page of evidence."""
    what = [f"- **{row.fault.name}**: {row.fault.about}" for row in rows]
    found = [f"- {row.fault.name}: {finding}" for row in rows for finding in row.verdict.findings] or ["Nothing."]
    page = [*table, "", STORES.format(summary["broken_laws"]).strip(), "", "## What each fault does", "", *what]
    page += ["", "## What was found beside the expected", "", *found, "", f"`{json.dumps(summary)}`"]
    write_page(path, "Real processes, broken", "make chaos", INTRO, page)
