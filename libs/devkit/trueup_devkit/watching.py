"""Watching one case live: what the gateway tells about it, as a table that changes in place, or as lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from trueup_devkit.gateway_client import GatewayClient, GatewayError

TERMINAL_STATUSES = frozenset({"CLOSED", "COMPENSATED", "CANCELLED", "SAFE_STOPPED", "RESOLVED"})
STOPPED_STATUSES = TERMINAL_STATUSES | {"HUMAN_TAKEOVER", "PAUSED"}
"""Statuses in which nothing moves until a person acts."""
POLL_SECONDS = 0.25
_PATIENCE_SECONDS = 30.0
_SHOWN_EVENTS = 14


class Watched:
    """What is known of a case so far."""

    def __init__(self, client: GatewayClient, workflow_id: str) -> None:
        self.client = client
        self.workflow_id = workflow_id
        self.case: dict[str, Any] = {}
        self.command: dict[str, Any] = {}
        self.events: list[dict[str, Any]] = []

    @property
    def status(self) -> str:
        return str(self.case.get("status", "…"))

    @property
    def is_over(self) -> bool:
        return self.status in STOPPED_STATUSES

    def look(self) -> list[dict[str, Any]]:
        """Ask once; answers the events that are new."""
        self.case = self.client.get(f"/v1/workflows/{quote(self.workflow_id, safe='')}")
        steps = self.case.get("steps") or []
        command_ids = [step["command_id"] for step in steps if step.get("command_id") and not step.get("kind")]
        if command_ids:  # a case of one command is told by its journal row, a workflow by its steps
            self.command = self.client.get(f"/v1/commands/{quote(command_ids[-1], safe='')}")
        last = int(self.events[-1]["seq"]) if self.events else 0
        new = list(self.client.history(self.workflow_id, last))
        self.events += new
        return new


def watch(client: GatewayClient, identifier: str, timeout_seconds: float | None = None) -> Watched:
    """Show a case until nothing moves any more; answers what was seen last."""
    watched = Watched(client, client.workflow_of(identifier))
    if sys.stdout.isatty():
        _watch_on_screen(watched, timeout_seconds)
    else:
        follow(watched, _Lines(watched), timeout_seconds)
        print(f"{watched.workflow_id} {watched.status}", flush=True)
    return watched


class _Lines:
    """A case in a pipe: each event once, and all steps in one line whenever one of them has moved."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._strip = ""

    def __call__(self, new: list[dict[str, Any]]) -> None:
        for event in new:
            print(line_of(event), flush=True)
        case = self._watched.case
        strip = f"{steps_in_short(case)}  {self._watched.status}{wait_in_short(case)}"
        if case.get("definition") not in (None, "command") and strip != self._strip:
            self._strip = strip
            print(f"      {strip}", flush=True)


def follow(
    watched: Watched,
    show: Callable[[list[dict[str, Any]]], Any],
    timeout_seconds: float | None = None,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Look again and again, outliving short absences of the gateway, until the case is over."""
    started = time.monotonic()
    silent_since: float | None = None
    while True:
        try:
            show(watched.look())
            silent_since = None
        except GatewayError as error:
            now = time.monotonic()
            silent_since = silent_since or now
            if not watched.case or now - silent_since > _PATIENCE_SECONDS or str(error).startswith("4"):
                raise
        if watched.is_over:
            return
        if timeout_seconds is not None and time.monotonic() - started > timeout_seconds:
            raise GatewayError(f"{watched.workflow_id} is still {watched.status} after {timeout_seconds:g} s")
        time.sleep(poll_seconds)


def _watch_on_screen(watched: Watched, timeout_seconds: float | None) -> None:
    from rich.live import Live

    with Live(picture(watched), refresh_per_second=8) as live:
        follow(watched, lambda new: live.update(picture(watched)), timeout_seconds)
        live.update(picture(watched))


def picture(watched: Watched) -> Any:
    """The case as a rich renderable: status and wait, steps or attempts, state elements, last events."""
    from rich.console import Group
    from rich.text import Text

    case = watched.case
    head = Text.assemble((watched.workflow_id, "bold"), "  ", (watched.status, _colour(watched.status)))
    if case.get("definition") not in (None, "command"):
        about = case.get("object") or {}
        head.append(f"  {case['definition']} v{case.get('version')}  {about.get('type')}/{about.get('id')}")
        head.append(f"  pivot {case.get('pivot')}")
    command = watched.command
    if command:
        head.append(f"  {command.get('command_type')}  {command.get('state')}")
        if command.get("error_code"):
            head.append(f"  ({command.get('error_class')}: {command.get('error_code')})", "yellow")
    head.append(wait_in_short(case), "yellow")
    lines = Text("\n".join(line_of(event) for event in watched.events[-_SHOWN_EVENTS:]))
    tables = (_steps_table(case), _attempts_table(command), _vector_table(case))
    return Group(head, *(table for table in tables if table.row_count), lines)


def _steps_table(case: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("step", "does", "state", "attempts", "ended as", "undone", title="steps", title_justify="left")
    for step in case.get("steps") or []:
        if step.get("kind"):
            undone = step.get("compensation_state")
            table.add_row(
                step["id"],
                str(step.get("command_type") or step["kind"]),
                _sign(step),
                str(step.get("attempts") or ""),
                _short(step.get("ended_as") or step.get("outcome")),
                "" if undone in (None, "NONE") else str(undone),
            )
    return table


def _attempts_table(command: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("attempt", "fence", "state", "status", "error", title="attempts", title_justify="left")
    for attempt in command.get("attempts") or []:
        names = ("attempt_id", "fence", "state", "external_status", "error_code")
        table.add_row(*(str(attempt.get(name) or "") for name in names))
    return table


def _vector_table(case: dict[str, Any]) -> Any:
    from rich.table import Table

    table = Table("element", "desired", "recorded", "observed", "phase", title="state", title_justify="left")
    table.columns[0].no_wrap = True
    for element in case.get("vector") or []:
        names = ("element", "desired", "recorded", "observed", "phase")
        table.add_row(*(_short(element.get(name)) for name in names))
    return table


def steps_in_short(case: dict[str, Any]) -> str:
    """All steps of a workflow in one line, each with a sign of how it stands; empty for a single command."""
    steps = [step for step in case.get("steps") or [] if step.get("kind")]
    return "  ".join(f"{step['id']} {_sign(step)}" for step in steps)


def wait_in_short(case: dict[str, Any]) -> str:
    """What a case waits for, and on whom; empty where it is at work or over."""
    wait = case.get("wait")
    if not wait:
        return ""
    if wait.get("reason") not in ("approval", "signal", "lock") and wait.get("expects") in _WAITS:
        return ", waits " + _WAITS[wait["expects"]].format(**wait)
    text = f", waits for {wait.get('reason')}"
    if wait.get("expects") and wait["expects"] != wait.get("reason"):
        text += f" ({wait['expects']})"
    return text + (f" of {wait['owner']}" if wait.get("owner") else "")


_WAITS = {
    "person": "for {owner} to act: {reason}",
    "settlement": "until {reason} is settled, owner {owner}",
    "timer": "before it tries again",
    "observation": "until everything it did is observed",
}
_SIGNS = {
    "PENDING": "·",
    "RUNNING": "▸",
    "WAITING": "…",
    "DONE": "✔",
    "SKIPPED": "–",
    "FAILED": "✘",
    "WITHDRAWN": "–",
}
_QUIET_STATES = frozenset({"RECEIVED", "VALIDATING", "AUTHORIZED", "QUEUED", "DISPATCHING", "RUNNING", "SUCCESS"})


def _sign(step: dict[str, Any]) -> str:
    """A sign, and the state's own name where it says more than the sign."""
    undone = str(step.get("compensation_state") or "NONE")
    if undone == "COMPENSATED":
        return "↶"
    sign = _SIGNS.get(str(step.get("phase")), "?")
    if undone != "NONE":
        return f"↶{undone.removeprefix('COMPENSATION_').lower()}"
    state = str(step.get("state"))
    return sign if state in _QUIET_STATES or state == step.get("phase") else f"{sign}{state}"


def line_of(event: dict[str, Any]) -> str:
    """One history event in one line: when, what, and the parts of its payload that say why."""
    payload = event.get("payload") or {}
    told = [f"{name}={_short(payload[name])}" for name in _TELLING if payload.get(name) not in (None, "", [], {})]
    states = " → ".join(payload.get("states") or [])
    words = " ".join(filter(None, (states, *told)))
    return f"{event.get('seq'):>4}  {event.get('recorded_at', '')}  {event.get('type', ''):<20} {words}".rstrip()


_TELLING = (
    *("step_id", "command_type", "status", "verdict", "evidence", "finds_count", "fence", "proposed"),
    *(
        "external_status",
        "error_class",
        "error_code",
        "reason",
        "check",
        "recovery",
        "attempt_count",
        "element",
        "superseded_by",
    ),
    *("owed", "found", "external_resource_id", "lease_owner", "next", "outcome", "approval_id", "content_sha256"),
    *("expects", "direction", "detail", "compensates", "passed", "failed", "locks"),
)


def _short(value: Any) -> str:
    text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else f"{text[:37]}…"


def _colour(status: str) -> str:
    if status == "CLOSED":
        return "bold green"
    return "bold red" if status in STOPPED_STATUSES else "bold cyan"
