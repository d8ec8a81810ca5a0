"""The end of a demo: steps, desired / recorded / observed, exceptions, and the ground truth beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trueup_devkit.demo.facts import Facts
from trueup_devkit.demo.sentences import short
from trueup_devkit.demo.telling import Teller
from trueup_devkit.watching import TERMINAL_STATUSES

CELL = 20
"""Three values beside each other, their names and their phase fit into a terminal of 120 columns."""
_STEP = ("id", "does", "state", "attempts", "undone", "started_at", "ended_at")
_ELEMENT = ("element", "desired", "recorded", "observed", "verdict", "phase")
_EXCEPTION = ("about", "kind", "failure_class", "owner", "opened_at", "closed_at", "resolution_type", "status")


def tell_ending(teller: Teller, facts: Facts) -> None:
    """Everything that the last line counts, and what stands behind it."""
    teller.head("steps")
    over = facts.case.get("status") in TERMINAL_STATUSES
    teller.table(_STEP, [_step(step, over) for step in facts.case.get("steps") or []])
    teller.head("desired / recorded / observed, of the whole article")
    vector = facts.case.get("vector") or []
    teller.table(_ELEMENT, [_plain(element) for element in vector])
    teller.head("exceptions of this case")
    told = sorted(facts.exceptions, key=lambda item: str(item["opened_at"]))
    teller.table(_EXCEPTION, [_exception(item, facts) for item in told])
    for item in facts.open_exceptions():
        teller.say(f"{item['exception_id']} is with {item['owner']}, to be settled by {item['deadline_at']}", "bold")
    teller.head("ground truth: what really happened in the world, counted by the world itself")
    happened = Counter((str(effect["kind"]), str(effect["action"])) for effect in facts.effects)
    for (kind, action), count in sorted(happened.items()):
        teller.say(f"{count} x {kind} {action}")
    teller.head("the world as anybody can see it")
    teller.table(("system", "what", "found"), [vars(item) for item in facts.standing])
    broken = facts.history_broken
    verdict = f"BROKEN: {broken}" if broken else "the chain of hashes holds from the first to the last"
    teller.say(f"history: {len(facts.events)} events, {verdict}", "bold red" if broken else "")
    for status, marked, same in facts.replays:
        stored = "the same case" if marked and same else "NOT the same case"
        teller.say(f"the same start again: {status}, {stored}")


def _step(step: Mapping[str, Any], over: bool) -> dict[str, Any]:
    undone = step.get("compensation_state")
    never = over and step.get("phase") == "PENDING"
    return {
        **step,
        "state": "never began" if never else step.get("state"),
        "does": step.get("command_type") or step.get("kind"),
        "undone": None if undone == "NONE" else undone,
    }


def _plain(element: Mapping[str, Any]) -> dict[str, Any]:
    """An element whose values fit into cells: of a document its parts."""
    names = ("desired", "recorded", "observed")
    return {**element, **{name: _value(element.get(name)) for name in names}}


def _value(value: Any) -> Any:
    return short(", ".join(short(part) for part in value.values()) if isinstance(value, dict) else value, CELL)


def _exception(item: Mapping[str, Any], facts: Facts) -> dict[str, Any]:
    steps = {step["command_id"]: step["id"] for step in facts.case.get("steps") or [] if step.get("command_id")}
    undone = {undo["command_id"]: undo["id"] for undo in facts.case.get("compensations") or []}
    return {**item, "about": (steps | undone).get(str(item.get("command_id")))}
