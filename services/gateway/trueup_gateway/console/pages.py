"""Pages that people read: exceptions first, then the case behind them; each made of answers of the contract."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response

from trueup_gateway.console import acts
from trueup_gateway.console.folding import folded, unknown
from trueup_gateway.console.timeline import entries_of
from trueup_gateway.console.versions import versions_of
from trueup_gateway.console.view import View, need
from trueup_gateway.core import roles
from trueup_gateway.core.ten_questions import replies

LIST_LIMIT: Final = 100
TIMELINE_MAX: Final = 100
LINEAGE_MAX: Final = 10
INCIDENTS_MAX: Final = 5
REPAIRS_MAX: Final = 5
COUNTERS: Final[tuple[tuple[str, str, str], ...]] = (
    ("open_incidents", "incidents", "bad"),
    ("dead_letters", "exceptions?kind=dead_letter", "bad"),
    ("repair_queue", "repairs", "care"),
    ("stale_running", "exceptions?kind=stale_running", "care"),
    ("compensation_failed", "exceptions?kind=compensation_failed", "bad"),
    ("state_drift", "exceptions?kind=state_drift", "care"),
    ("approvals_required", "approvals", "waiting"),
    ("unknown_outcomes", "exceptions?kind=unknown_outcome", "unknown"),
    ("quarantined_callbacks", "exceptions?kind=quarantined_callback", "unknown"),
)
"""What is counted first, where it leads, and how it looks when it is not zero."""
FURTHER: Final[tuple[tuple[str, str, str], ...]] = (
    ("failed", "exceptions?kind=failed", "bad"),
    ("conflicts", "exceptions?kind=conflict", "care"),
    ("needs_review", "exceptions?kind=needs_review", "care"),
    ("quarantined_messages", "exceptions?kind=quarantined_message", "unknown"),
)
KINDS: Final = (
    "dead_letter",
    "failed",
    "conflict",
    "needs_review",
    "unknown_outcome",
    "stale_running",
    "compensation_failed",
    "state_drift",
    "quarantined_message",
    "quarantined_callback",
)
STATUSES: Final = (
    "RUNNING",
    "WAITING",
    "PAUSED",
    "CANCEL_PENDING",
    "COMPENSATING",
    "HUMAN_TAKEOVER",
    "VERIFYING",
    "CLOSED",
    "COMPENSATED",
    "CANCELLED",
    "SAFE_STOPPED",
    "RESOLVED",
)


def further_page(view: View, cursor: object) -> str | None:
    """The address of the next page of a list."""
    if not cursor:
        return None
    query = {name: value for name, value in view.request.query_params.items() if name != "cursor"}
    return "?" + urlencode({**query, "cursor": str(cursor)})


async def exceptions(view: View) -> Response:
    """What is open: the counters with the oldest age, then the list by deadline."""
    if not view.may(roles.READ_TENANT) and view.first_place is not None:
        return RedirectResponse(view.first_place, 303)  # who only approves, or only freezes, begins there
    status = "closed" if view.asked("status") == "closed" else "open"
    filters = {name: view.asked(name) for name in ("kind", "owner", "cause")}
    incident_id = view.asked("incident", 60)
    summary, incidents, listed = await asyncio.gather(
        view.contract.get("/v1/exceptions/summary"),
        view.contract.get("/v1/incidents", status="open", limit=INCIDENTS_MAX),
        view.contract.get(
            "/v1/exceptions",
            status=status,
            order="deadline" if status == "open" else None,
            limit=LIST_LIMIT,
            cursor=view.asked("cursor", 400),
            incident_id=incident_id,
            **filters,
        ),
    )
    need(listed)
    rows = folded(listed.items) if incident_id is None else [{"row": item} for item in listed.items]
    return view.page(
        "exceptions.html",
        summary=summary.object,
        incidents=incidents.items,
        incident_id=incident_id,
        rows=rows,
        causes=await _causes(view, rows, incidents.items),
        counters=COUNTERS,
        further=FURTHER,
        items=listed.items,
        next_page=further_page(view, listed.object.get("next_cursor")),
        status=status,
        filters=filters,
        kinds=KINDS,
    )


async def _causes(
    view: View, rows: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """The incidents that folded rows belong to, by id; one that cannot be read is told by its id alone."""
    found = {str(one.get("incident_id")): one for one in known}
    further = unknown(rows, found)[:INCIDENTS_MAX]
    answered = await asyncio.gather(*(view.contract.get(f"/v1/incidents/{_part(name)}") for name in further))
    return {**found, **{str(one.object["incident_id"]): one.object for one in answered if one.object}}


async def exception(view: View) -> Response:
    """One exception with everything that a person needs to act."""
    exception_id = str(view.request.path_params["exception_id"])
    found = need(await view.contract.get(f"/v1/exceptions/{_part(exception_id)}"))
    envelope = found.get("envelope") or {}
    case, row, decision, capability, events = await _around(
        view,
        workflow_id=found.get("workflow_id"),
        command_id=found.get("command_id"),
        decision_id=envelope.get("decision_id"),
        capability_id=envelope.get("capability_id"),
    )
    over = found.get("status") == "closed" and bool(case) and not case.get("closed_at")
    lineage, asked, repairs, versions, next_ones = await asyncio.gather(
        _lineage(view, row),
        _asked(view, exception_id, found.get("command_id"), found.get("workflow_id")),
        view.contract.get("/v1/repairs", exception_id=exception_id, limit=REPAIRS_MAX),
        versions_of(view, case, found),
        _exceptions_of(view, str(found.get("workflow_id"))) if over else _none(),
    )
    return view.page(
        "exception.html",
        asked=asked,
        next_ones=next_ones,
        item=found,
        envelope=envelope,
        case=case,
        row=row,
        decision=decision,
        capability=capability,
        events=events,
        lineage=lineage,
        questions=replies(row, case, case.get("vector") or []) if row else [],
        vector=await _vector(view, case, row),
        repairs=repairs.items,
        offers=acts.offers_for_exception(view, found, {**case, **versions}, row),
        reasons=acts.why_not_for_exception(view, found, case, row),
        **_around_timeline(view, events),
        did=await acts.outcome(view),
    )


async def _around(
    view: View, *, workflow_id: object, command_id: object, decision_id: object, capability_id: object
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any], list[dict[str, Any]]]:
    """What stands around an exception or a command; what is not there, or not for this person, is empty."""
    contract = view.contract

    async def read(kind: str, name: object) -> dict[str, Any]:
        return (await contract.get(f"/v1/{kind}/{_part(name)}")).object if name else {}

    case, row, decision, capability = await asyncio.gather(
        read("workflows", workflow_id),
        read("commands", command_id),
        read("decisions", decision_id),
        read("capabilities", capability_id),
    )
    return case, row, decision, capability, await _history(view, case)


async def _history(view: View, case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Some events of a case, told for a timeline: the newest, or those before the one that the address names."""
    if not case:
        return []
    last = int((case.get("cost") or {}).get("transitions") or 0)
    before = view.asked("before", 18) or ""
    if before.isascii() and before.isdigit():
        last = min(last, int(before) - 1)
    path = f"/v1/workflows/{_part(case['workflow_id'])}/history"
    first = max(0, last - TIMELINE_MAX)
    answered = await view.contract.get(path, after_seq=first, limit=max(1, min(TIMELINE_MAX, last - first)))
    return entries_of(answered.items)


def _around_timeline(view: View, events: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the facts before these are to be read, and where the newest ones."""
    last: Mapping[str, Any] = events[-1] if events else {"seq": 1}
    oldest = int((last["fold"][-1] if "fold" in last else last)["seq"])
    path = view.request.url.path
    return {
        "earlier": f"{path}?before={oldest}#timeline" if oldest > 1 else None,
        "later": f"{path}#timeline" if view.asked("before", 18) else None,
    }


async def _asked(view: View, *names: object) -> list[dict[str, Any]]:
    """What people and repairs asked for about these, newest first."""
    answered = await asyncio.gather(
        *(view.contract.get("/v1/operator-commands", target=str(name), limit=10) for name in names if name)
    )
    found = {item["operator_command_id"]: item for one in answered for item in one.items}
    return sorted(found.values(), key=lambda item: str(item.get("created_at")), reverse=True)[:10]


async def _lineage(view: View, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """This command with those that it supersedes and those that supersede it, the newest first."""
    if not row:
        return []
    older, newer = await asyncio.gather(_along(view, row, "supersedes"), _along(view, row, "superseded_by"))
    return [*reversed(newer), dict(row), *older]


async def _along(view: View, row: Mapping[str, Any], way: str) -> list[dict[str, Any]]:
    """The chain from a command one way; what another tenant has, or what leads back, ends it."""
    found: list[dict[str, Any]] = []
    seen, name = {row.get("command_id")}, row.get(way)
    while name and name not in seen and len(found) < LINEAGE_MAX:
        one = (await view.contract.get(f"/v1/commands/{_part(name)}")).object
        if not one:
            break
        found.append(one)
        seen.add(name)
        name = one.get(way)
    return found


async def _vector(
    view: View, case: Mapping[str, Any], row: Mapping[str, Any], *, alone: bool = False
) -> list[Mapping[str, Any]]:
    """The elements that a command established, or else those of its whole case. Of a taking back that did not succeed:
    what should be gone and may still stand."""
    every = case.get("vector") or []
    if not row:
        return every
    if row.get("compensates") and row.get("state") != "SUCCESS":
        return await _standing(view, str(row["compensates"]))
    own = [item for item in every if item.get("command_id") == row.get("command_id")]
    return own if own or alone else every


async def _standing(view: View, command_id: str) -> list[Mapping[str, Any]]:
    undone = (await view.contract.get(f"/v1/commands/{_part(command_id)}")).object
    recorded, observed = undone.get("recorded_state") or {}, undone.get("observed_state") or {}
    resource = (undone.get("receipt") or {}).get("resource") or undone.get("target_resource")
    return [
        {
            "element": name,
            "system": undone.get("target_system"),
            "resource": resource,
            "gone": True,
            "desired": None,
            "recorded": value,
            "observed": observed.get(name),
            "phase": "UNKNOWN",
            "reason": None,
            "observed_at": undone.get("completed_at"),
            "next_visit_at": None,
        }
        for name, value in recorded.items()
    ]


async def cases(view: View) -> Response:
    """Cases, newest first; by default those that are open."""
    status = view.asked("status")
    every = status == "all"
    wanted = {"status": status if status in STATUSES else None, "object": view.asked("object")}
    overdue = True if view.asked("overdue") == "true" else None
    listed = await view.contract.get(
        "/v1/workflows",
        limit=LIST_LIMIT,
        cursor=view.asked("cursor", 400),
        definition=view.asked("definition"),
        owner=view.asked("owner"),
        overdue=overdue,
        open=None if every or any(wanted.values()) else True,
        **wanted,
    )
    need(listed)
    return view.page(
        "cases.html",
        items=listed.items,
        next_page=further_page(view, listed.object.get("next_cursor")),
        every=every,
        filters={**wanted, "definition": view.asked("definition"), "owner": view.asked("owner"), "overdue": overdue},
        statuses=STATUSES,
    )


async def case(view: View) -> Response:
    """One case: its steps, what it waits for, its state vector, what is owed, and its timeline."""
    workflow_id = str(view.request.path_params["workflow_id"])
    found = need(await view.contract.get(f"/v1/workflows/{_part(workflow_id)}"))
    commands = [item["command_id"] for item in found.get("steps") or [] if item.get("command_id")]
    commands += [item["command_id"] for item in found.get("compensations") or []]
    answered, events, exceptions_of, approvals_of = await asyncio.gather(
        asyncio.gather(*(view.contract.get(f"/v1/commands/{_part(name)}") for name in dict.fromkeys(commands[:40]))),
        _history(view, found),
        _exceptions_of(view, workflow_id),
        view.contract.get("/v1/approvals", workflow_id=workflow_id, limit=20),
    )
    rows = [item.object for item in answered if item.object]
    decisions = await _decisions(view, rows, found)
    asked = await _asked(view, workflow_id, *(item["exception_id"] for item in exceptions_of[:5]))
    vector = found.get("vector") or []
    return view.page(
        "case.html",
        asked=asked,
        case=found,
        rows={row["command_id"]: row for row in rows},
        questions={row["command_id"]: replies(row, found, vector) for row in rows},
        vector=vector,
        events=events,
        exceptions=exceptions_of,
        approvals=approvals_of.items,
        decisions=decisions,
        offers=acts.offers_for_case(view, {**found, **await versions_of(view, found, found)}),
        reasons=acts.why_not_for_case(view, found),
        drifted=[item["element"] for item in vector if item.get("phase") == "DRIFT"],
        **_around_timeline(view, events),
        did=await acts.outcome(view),
    )


async def _none() -> list[dict[str, Any]]:
    return []


async def _exceptions_of(view: View, workflow_id: str) -> list[dict[str, Any]]:
    asked = {"status": "open", "order": "deadline", "workflow_id": workflow_id, "limit": 50}
    return (await view.contract.get("/v1/exceptions", **asked)).items


async def _decisions(view: View, rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = [row["decision_id"] for row in rows if row.get("decision_id")]
    names += [
        item["envelope"]["decision_id"]
        for item in found.get("obligations") or []
        if (item.get("envelope") or {}).get("decision_id")
    ]
    answered = await asyncio.gather(
        *(view.contract.get(f"/v1/decisions/{_part(name)}") for name in list(dict.fromkeys(names))[:5])
    )
    return [item.object for item in answered if item.object]


async def command(view: View) -> Response:
    """One command: the ten questions, its attempts, and what it wanted."""
    command_id = str(view.request.path_params["command_id"])
    row = need(await view.contract.get(f"/v1/commands/{_part(command_id)}"))
    case_of, _, decision, capability, events = await _around(
        view,
        workflow_id=row.get("workflow_id"),
        command_id=None,
        decision_id=row.get("decision_id"),
        capability_id=row.get("capability_id"),
    )
    return view.page(
        "command.html",
        row=row,
        case=case_of,
        decision=decision,
        capability=capability,
        events=events,
        lineage=await _lineage(view, row),
        **_around_timeline(view, events),
        questions=replies(row, case_of, case_of.get("vector") or []),
        vector=await _vector(view, case_of, row, alone=True),
    )


async def decision(view: View) -> Response:
    """One decision with its whole trace, for whoever audits it."""
    decision_id = str(view.request.path_params["decision_id"])
    return view.page("decision.html", decision=need(await view.contract.get(f"/v1/decisions/{_part(decision_id)}")))


def _part(name: object) -> str:
    """One part of a path of the contract: nothing that comes from an address may lead elsewhere."""
    return quote(str(name), safe="")
