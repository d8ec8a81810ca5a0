"""How the demo talks: one timeline of plain lines with times, the same on a screen and in a pipe.

Each line says who speaks. What the plane did comes from the case's history, what the world did from the sandbox, and
the sentences only put those facts into words. They come on ways of their own, so the timeline lags behind them for a
moment and then tells them in the order in which they happened.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trueup_common.runtime.clock import real_now
from trueup_devkit.demo.sentences import Entry, moment, short

PIPE_WIDTH = 120
LAG_SECONDS = 2.0
"""A healthy case tells its steps up to a second late, and a killed process says nothing before it is back."""
_STYLES = {
    "FAULT": "bold red",
    "world": "yellow",
    "agent": "bold cyan",
    "editor": "bold blue",
    "supervisor": "magenta",
    "demo": "dim",
    "steps": "bold",
}


class Teller:
    """Prints entries as they come, or, while it lags, in the order of their times."""

    def __init__(self, started_at: datetime) -> None:
        screen = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode must not end the demo
        self.console = Console(highlight=False, soft_wrap=not screen, width=None if screen else PIPE_WIDTH)
        self.started_at = started_at
        self._held: list[Entry] = []
        self._lags = False

    def lag(self) -> None:
        """From now on each line is held back until what happened before it can be known; a heading ends that."""
        self._lags = True

    def look(self) -> None:
        """Print what was held back for long enough."""
        self._release(real_now() - timedelta(seconds=LAG_SECONDS))

    def tell(self, at: datetime, who: str, text: str) -> None:
        """One line of the timeline."""
        self.add(Entry(at, who, text))

    def add(self, entry: Entry) -> None:
        """The same for an entry that is already made."""
        if self._lags:
            self._held.append(entry)
        else:
            self._print(entry)

    def _catch_up(self) -> None:
        self._lags = False
        self._release(None)

    def _release(self, until: datetime | None) -> None:
        """Print what is held, all of it or what happened until then; of one moment what came first."""
        self._held.sort(key=lambda entry: entry.at)
        ready = [entry for entry in self._held if until is None or entry.at <= until]
        self._held = self._held[len(ready) :]
        for entry in ready:
            self._print(entry)

    def _print(self, entry: Entry) -> None:
        seconds = (entry.at - self.started_at).total_seconds()
        style = _STYLES.get(entry.who, "")
        parts = (
            Text(f"{seconds:8.2f} s ", "dim"),
            Text(f"{entry.who:<12}", style or "green"),
            Text(entry.text, style if entry.who in ("FAULT", "steps") else ""),
        )
        if not self.console.is_terminal:
            self.console.print(Text(" ").join(parts))  # one line each, whatever its length
            return
        line = Table.grid(padding=(0, 1))
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_column()
        line.add_row(*parts)
        self.console.print(line)

    def say(self, text: str = "", style: str = "") -> None:
        """A line outside the timeline."""
        self._catch_up()
        self.console.print(Text(text, style=style))

    def head(self, text: str) -> None:
        """A heading."""
        self._catch_up()
        self.console.print()
        self.console.print(Text(f"== {text} ==", style="bold"))

    def table(self, names: Sequence[str], items: Sequence[dict[str, Any]]) -> None:
        """A table of short values, or that there are none; times are those of the timeline."""
        if not items:
            self.say("none")
            return
        self._catch_up()
        table = Table(*(name.removesuffix("_at") for name in names), box=box.SIMPLE_HEAD, pad_edge=False)
        for item in items:
            table.add_row(*(self._cell(name, item.get(name)) for name in names))
        self.console.print(table)

    def _cell(self, name: str, value: Any) -> str:
        if name.endswith("_at") and isinstance(value, str):
            return f"{(moment(value) - self.started_at).total_seconds():.2f} s"
        return short(value)
