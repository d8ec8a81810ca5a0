"""Further places: approvals, the repair queue, incidents, batches, objectives and freezes."""

import asyncio
import difflib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from trueup_common.contracts.canonical import digest
from trueup_gateway.console import charts
from trueup_gateway.console.pages import KINDS, LIST_LIMIT, further_page
from trueup_gateway.console.shown import plain, pretty
from trueup_gateway.console.view import View, need
from trueup_gateway.core import roles

DIFF_LINES_MAX: Final = 400
MEMBERS_MAX: Final = 200
URGENCY: Final[Mapping[str, int]] = {
    name: place
    for place, name in enumerate(("WAITING_APPROVAL", "FAILED", "ESCALATED", "EXECUTING", "VERIFYING", "PLANNED"))
}
"""Repairs as they call for a person: who waits for one stands first."""
PAYLOADS_MAX: Final = 3
LONG_MIN: Final = 200
WHOLE: Final = 4_000_000
"""More than any message holds: what is approved is never cut."""


async def approvals(view: View) -> Response:
    """What waits for a person's word, and what was answered."""
    status = view.asked("status") or "pending"
    known = ("pending", "approved", "rejected", "expired", "superseded")
    chosen = status if status in known else "pending"
    listed = await view.contract.get("/v1/approvals", status=chosen, limit=LIST_LIMIT, cursor=view.asked("cursor", 400))
    need(listed)
    items = [_readable_approval(item) for item in listed.items]
    if chosen == "pending":
        items = sorted(items, key=lambda item: str(item.get("expires_at")))
    return view.page(
        "approvals.html",
        items=items,
        status=chosen,
        statuses=known,
        next_page=further_page(view, listed.object.get("next_cursor")),
    )


async def approval(view: View) -> Response:
    """What exactly is to be approved, with its hash, and what stood there before."""
    name = quote(str(view.request.path_params["approval_id"]), safe="")
    found = _readable_approval(need(await view.contract.get(f"/v1/approvals/{name}")))
    case: Mapping[str, Any] = {}
    if found.get("workflow_id"):
        case = (await view.contract.get(f"/v1/workflows/{quote(str(found['workflow_id']), safe='')}")).object
    payloads = await _payloads(view, case)
    caller = view.session.caller if view.session is not None else None
    summary = found["summary"]
    content, before = _content(summary), _before(summary)
    sent = summary.get("payload") if found.get("kind") == "decision" else None
    return view.page(
        "approval.html",
        item=found,
        case=case,
        payloads=payloads,
        content=content if sent is None else None,
        sent=None if sent is None else readable(sent, WHOLE),
        summary=summary,
        drift=summary.get("drift") or {},
        plan=found.get("repair") or {},
        proven=sent is not None and digest(sent) == found.get("content_sha256"),
        further=_further(summary),
        difference=difference(before, content) if before is not None and content is not None else [],
        may_answer=view.may(roles.APPROVE) and found.get("status") == "pending",
        own=caller is not None and found.get("requested_by") == caller.subject,
        decided=view.asked("decided"),
    )


_TOLD_APART: Final = frozenset(
    {"content", "before", "previous", "content_before", "after", "payload", "drift", "verification", "taken_back_by"}
) | {
    "binds",
    "declarations",
    "risk_score",
    "risk_level",
    "risk_factors",
    "effect_class",
    "command_types",
    "system",
    "resource",
}
"""What of a summary has a place of its own on the page."""


def _further(summary: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rest of a summary, without what is empty."""
    empty: tuple[Any, ...] = (None, "", [], {})
    return [(name, value) for name, value in summary.items() if name not in _TOLD_APART and value not in empty]


def _readable_approval(item: Mapping[str, Any]) -> dict[str, Any]:
    """An approval as pages read it, also where its content is withheld from this person."""
    return {**item, "summary": item.get("summary") or {}, "binds": item.get("binds") or []}


async def _payloads(view: View, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the effects of the case sent that this person may read: who approves a text reads the text."""
    names = [step["command_id"] for step in case.get("steps") or [] if step.get("command_id") and step.get("attempts")]
    answered = await asyncio.gather(
        *(view.contract.get(f"/v1/commands/{quote(str(name), safe='')}") for name in names[-8:])
    )
    rows = [row.object for row in answered if row.object.get("payload")]
    told = [{"type": row["command_type"], "text": readable(row["payload"])} for row in rows]
    return sorted(told, key=lambda item: -len(item["text"]))[:PAYLOADS_MAX]


def readable(payload: Any, most: int = 60_000) -> str:
    """A payload as a person reads it: long texts as they stand, the rest as a document."""
    if not isinstance(payload, Mapping):
        return pretty(payload, most)
    long = {name: value for name, value in payload.items() if isinstance(value, str) and len(value) > LONG_MIN}
    rest = {name: value for name, value in payload.items() if name not in long}
    parts = [pretty(rest, most) if rest else "", *(f"{name}:\n\n{value}" for name, value in long.items())]
    return "\n\n".join(part for part in parts if part)


def _content(summary: Mapping[str, Any]) -> str | None:
    """The text that is approved, where the summary holds it."""
    value = next((summary[name] for name in ("content", "after", "text", "payload") if summary.get(name)), None)
    return None if value is None else value if isinstance(value, str) else pretty(value, 60_000)


def _before(summary: Mapping[str, Any]) -> str | None:
    value = next((summary[name] for name in ("before", "previous", "content_before") if summary.get(name)), None)
    return None if value is None else value if isinstance(value, str) else pretty(value, 60_000)


def difference(before: str, after: str) -> list[tuple[str, str]]:
    """Line by line what changes: kind (same, less, more) and the line."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=3)
    kinds = {"+": "more", "-": "less", "@": "place"}
    told = [(kinds.get(line[:1], "same"), plain(line[:500])) for line in lines if line[:3] not in ("---", "+++")]
    return told[:DIFF_LINES_MAX]


async def repairs(view: View) -> Response:
    """The repair queue."""
    every = view.asked("all") == "true"
    listed = await view.contract.get(
        "/v1/repairs", open=None if every else True, limit=LIST_LIMIT, cursor=view.asked("cursor", 400)
    )
    open_ones = await view.contract.get("/v1/exceptions", status="open", order="deadline", limit=200)
    return view.page(
        "repairs.html",
        items=sorted(listed.items, key=lambda item: URGENCY.get(str(item.get("status")), len(URGENCY))),
        objects={item["exception_id"]: item.get("envelope") or {} for item in open_ones.items},
        there=listed.done,
        every=every,
        next_page=further_page(view, listed.object.get("next_cursor")),
    )


async def incidents(view: View) -> Response:
    """Many exceptions of one cause are one incident."""
    every = view.asked("all") == "true"
    listed = await view.contract.get(
        "/v1/incidents", status=None if every else "open", limit=LIST_LIMIT, cursor=view.asked("cursor", 400)
    )
    return view.page(
        "incidents.html",
        every=every,
        items=listed.items,
        there=listed.done,
        next_page=further_page(view, listed.object.get("next_cursor")),
    )


async def batches(view: View) -> Response:
    """Acts in bulk, and the form that begins one."""
    listed = await view.contract.get("/v1/operator-batches", limit=LIST_LIMIT, cursor=view.asked("cursor", 400))
    return view.page(
        "batches.html",
        items=listed.items,
        there=listed.done,
        kinds=KINDS,
        filters={name: view.asked(name) for name in ("kind", "owner", "cause")},
        next_page=further_page(view, listed.object.get("next_cursor")),
    )


async def batch(view: View) -> Response:
    """One batch: its selection, its progress, and the reason of each item."""
    name = quote(str(view.request.path_params["batch_id"]), safe="")
    found, members = await asyncio.gather(
        view.contract.get(f"/v1/operator-batches/{name}"),
        view.contract.get(f"/v1/operator-batches/{name}/items", limit=MEMBERS_MAX),
    )
    return view.page("batch.html", item=need(found), members=members.items)


async def slo(view: View) -> Response:
    """What was promised, what is left of each budget, how fast it burns, and the key figures beneath."""
    levels, figures = await asyncio.gather(view.contract.get("/v1/slo"), view.contract.get("/v1/kpis"))
    windows = sorted({int(item.get("window_seconds") or 0) for item in figures.items})
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for item in figures.items:
        by_name.setdefault(str(item.get("name")), {})[int(item.get("window_seconds") or 0)] = item
    return view.page(
        "slo.html",
        levels=[
            {
                **item,
                "chart": charts.of_level(item),
                "budget": charts.budget(item),
                "burns": charts.burns(item),
                "hours": len(item.get("series") or ()),
                "now": charts.percent(item.get("ratio")),
                "promised": charts.percent(item.get("target")),
                "left": charts.percent(item.get("error_budget_remaining")),
            }
            for item in sorted(levels.items, key=_worst_first)
        ],
        figures=by_name,
        windows=windows,
        percent=charts.percent,
        limit=charts.burn_width(charts.FAST),
    )


def _worst_first(level: Mapping[str, Any]) -> int:
    """What burns stands before what was missed, that before what is kept, and last what nothing came due for."""
    if level.get("alerting"):
        return 0
    if not level.get("total"):
        return 3
    return 1 if float(level.get("ratio") or 0) < float(level.get("target") or 0) else 2


async def freezes(view: View) -> Response:
    """What is held back, why, and until when."""
    every = view.asked("all") == "true"
    listed = await view.contract.get(
        "/v1/controls/freezes", active=not every, limit=LIST_LIMIT, cursor=view.asked("cursor", 400)
    )
    need(listed)
    return view.page(
        "freezes.html",
        items=listed.items,
        every=every,
        may_freeze=view.may(roles.FREEZE),
        may_break_glass=view.may(roles.BREAK_GLASS),
        next_page=further_page(view, listed.object.get("next_cursor")),
    )


async def acts_listed(view: View) -> Response:
    """What people asked for, newest first, each with its reason and its decision."""
    listed = await view.contract.get(
        "/v1/operator-commands", limit=LIST_LIMIT, target=view.asked("target"), cursor=view.asked("cursor", 400)
    )
    need(listed)
    return view.page(
        "acts.html",
        items=listed.items,
        target=view.asked("target"),
        next_page=further_page(view, listed.object.get("next_cursor")),
    )
