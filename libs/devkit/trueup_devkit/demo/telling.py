"""How the demo talks: one timeline of plain lines with times, the same on a screen and in a pipe.

Each line says who speaks. What the plane did comes from the case's history, what the world did from the sandbox, and
the sentences only put those facts into words.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trueup_devkit.demo.facts import Facts

PIPE_WIDTH = 160
_STYLES = {"FAULT": "bold red", "world": "yellow", "agent": "bold cyan", "supervisor": "magenta", "demo": "dim"}
_LATE_SECONDS = 0.4


@dataclass(frozen=True)
class Entry:
    """One line of the timeline."""

    at: datetime
    who: str
    text: str


class Teller:
    """Prints entries as they come and keeps them for the timeline at the end."""

    def __init__(self, started_at: datetime) -> None:
        screen = sys.stdout.isatty()
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode must not end the demo
        self.console = Console(highlight=False, soft_wrap=not screen, width=None if screen else PIPE_WIDTH)
        self.started_at = started_at
        self.entries: list[Entry] = []

    def tell(self, at: datetime, who: str, text: str) -> None:
        """Print one line and keep it."""
        self.add(Entry(at, who, text))

    def add(self, entry: Entry) -> None:
        """The same for an entry that is already made."""
        self.entries.append(entry)
        self._print(entry)

    def say(self, text: str = "", style: str = "") -> None:
        """A line outside the timeline."""
        self.console.print(Text(text, style=style))

    def head(self, text: str) -> None:
        """A heading."""
        self.console.print()
        self.console.print(Text(f"== {text} ==", style="bold"))

    def _print(self, entry: Entry) -> None:
        seconds = (entry.at - self.started_at).total_seconds()
        style = _STYLES.get(entry.who, "")
        parts = (
            Text(f"{seconds:8.2f} s ", "dim"),
            Text(f"{entry.who:<12}", style or "green"),
            Text(entry.text, style if entry.who == "FAULT" else ""),
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

    def timeline(self) -> None:
        """All lines again, in the order in which things happened."""
        for entry in sorted(self.entries, key=lambda entry: entry.at):
            self._print(entry)

    def table(self, names: Sequence[str], items: Sequence[dict[str, Any]]) -> None:
        """A table of short values, or that there are none; times are those of the timeline."""
        if not items:
            self.say("none")
            return
        table = Table(*(name.removesuffix("_at") for name in names), box=box.SIMPLE_HEAD, pad_edge=False)
        for item in items:
            table.add_row(*(self._cell(name, item.get(name)) for name in names))
        self.console.print(table)

    def _cell(self, name: str, value: Any) -> str:
        if name.endswith("_at") and isinstance(value, str):
            return f"{(moment(value) - self.started_at).total_seconds():.2f} s"
        return short(value)


def short(value: Any, length_max: int = 44) -> str:
    """A value for a cell; digests keep their beginning."""
    text = "–" if value is None else str(value)
    if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text):
        return f"{text[:12]}…"
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def moment(text: str) -> datetime:
    """A time of the HTTP contract."""
    return datetime.fromisoformat(text)


def entry_of(event: dict[str, Any]) -> Entry:
    """One history event as a line of the timeline, with a remark where the word came late."""
    recorded, occurred = moment(event["recorded_at"]), moment(event["occurred_at"])
    text = sentence(event)
    late = (recorded - occurred).total_seconds()
    if late > _LATE_SECONDS:
        text += f" (happened {late:.1f} s before; the message waited)"
    return Entry(recorded, _speaker(event), text)


def _speaker(event: dict[str, Any]) -> str:
    return "adapter" if str(event.get("actor", "")).startswith("adapter") else "orchestrator"


def sentence(event: dict[str, Any]) -> str:
    """One history event in words: what happened, what was decided and why."""
    payload = event.get("payload") or {}
    kind = str(event.get("type"))
    say = _SENTENCES.get(kind)
    text = say(payload) if say else " ".join([kind, *(f"{k}={short(v)}" for k, v in _plain(payload).items())])
    if payload.get("recovery"):
        text += f"; decided: {payload['recovery']}"
    states = payload.get("states") or []
    return f"{text}  [{' → '.join(states)}]" if len(states) > 1 else text


def _plain(payload: dict[str, Any]) -> dict[str, Any]:
    hidden = ("states", "command_id", "recovery")
    return {name: value for name, value in payload.items() if name not in hidden and isinstance(value, str | int)}


def _started(payload: dict[str, Any]) -> str:
    text = f"takes up {payload.get('command_type')}"
    return f"{text}, {_dispatched(payload)}" if "fence" in payload else text


def _dispatched(payload: dict[str, Any]) -> str:
    return (
        f"sends attempt 1 under fence {payload['fence']}"
        if payload.get("fence") == 1
        else (f"sends another attempt under fence {payload.get('fence')}")
    )


def _receipt(payload: dict[str, Any]) -> str:
    status, code = payload.get("status"), payload.get("error_code")
    why = f" ({code}, class {payload.get('error_class')})" if code else ""
    seen = f", HTTP {payload['external_status']}" if payload.get("external_status") else ""
    return f"reports attempt under fence {payload.get('fence')}: {status}{seen}{why}"


def _settled(payload: dict[str, Any]) -> str:
    looks = payload.get("finds_count") or 0
    evidence = f" by {payload['evidence']}" if payload.get("evidence") else ""
    return f"hears the verdict: {payload.get('verdict')}{evidence}, after looking {looks} times"


def _verified(payload: dict[str, Any]) -> str:
    owed = payload.get("owed") or []
    return f"{payload.get('element')} observed as desired; still owed: {', '.join(owed) or 'nothing'}"


def _dispatch_paused(payload: dict[str, Any]) -> str:
    return f"waits before dispatching: {payload.get('reason')}"


_SENTENCES: dict[str, Callable[[dict[str, Any]], str]] = {
    "CaseStarted": _started,
    "TaskDispatched": _dispatched,
    "ReceiptReceived": _receipt,
    "OlderReceiptReceived": lambda payload: "keeps as evidence an older receipt: " + _receipt(payload),
    "SettlementStarted": lambda payload: "waits for the reconciler, which goes and looks; meanwhile nothing is sent",
    "SettlementFinished": _settled,
    "ElementVerified": _verified,
    "DispatchPaused": _dispatch_paused,
    "LeaseExpired": lambda payload: (
        f"no word from the attempt under fence {payload.get('fence')} before its lease ended"
    ),
    "RetryFellDue": lambda payload: "the wait before the next attempt is over",
}


def exception_entry(item: dict[str, Any]) -> Entry:
    """An exception as it was opened or closed."""
    if item.get("status") == "closed":
        text = f"exception {item.get('kind')} closed: {item.get('resolution_type')}"
        return Entry(moment(item["closed_at"]), "planner", text)
    text = f"exception {item.get('kind')} ({item.get('failure_class')}) opened, owner {item.get('owner')}"
    minutes = (moment(item["deadline_at"]) - moment(item["opened_at"])).total_seconds() / 60
    return Entry(moment(item["opened_at"]), "planner", f"{text}, to be settled within {minutes:g} minutes")


_ELEMENT = ("element", "desired", "recorded", "observed", "verdict", "phase")
_ATTEMPT = ("attempt_id", "fence", "state", "started_at", "ended_at", "error_code", "external_status")
_EXCEPTION = ("kind", "failure_class", "owner", "opened_at", "closed_at", "resolution_type", "status")


def tell_ending(teller: Teller, facts: Facts) -> None:
    """The end: timeline, desired / recorded / observed, ground truth, history, exceptions."""
    teller.head("timeline, in the order in which things happened")
    teller.timeline()
    teller.head("desired / recorded / observed")
    teller.table(_ELEMENT, facts.case.get("vector") or [])
    teller.head("attempts")
    teller.table(_ATTEMPT, facts.attempts)
    teller.head("exceptions of this case")
    teller.table(_EXCEPTION, facts.exceptions)
    teller.head("ground truth")
    counted = ", ".join(f"{count} x {kind}" for kind, count in facts.effects.items()) or "nothing"
    teller.say(f"effects that really happened in the world: {counted}")
    for post in facts.posts:
        teller.say(f"post {post['id']} on the site: {post['status']}, slug {post['slug']}, {post['link']}")
    broken = facts.history_broken
    verdict = f"BROKEN: {broken}" if broken else "the chain of hashes holds from the first to the last"
    teller.say(f"history: {len(facts.events)} events, {verdict}", "bold red" if broken else "")
    for status, marked, same in facts.replays:
        stored = "the stored answer with the same ids" if marked and same else "NOT the stored answer"
        teller.say(f"the same command again: {status}, {stored}")
