"""Acts: what a person may do now, as forms; and what a form asks for, as one call of the contract under its own key.

Each form carries the Idempotency-Key that was made when its page was: sent twice, it happens once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trueup_gateway.console.contract import Answered
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.forms import Form, NotOurs, session_form
from trueup_gateway.console.view import View, refused_page, view_of
from trueup_gateway.core import roles
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.strict_json import Malformed, parse


@dataclass(frozen=True)
class Offer:
    """One act that may be asked for now, and what it asks beside its reason."""

    action: str
    target_kind: str
    target_id: str
    fields: tuple[str, ...] = ()
    grave: bool = False
    steps: tuple[str, ...] = ()
    effects: tuple[tuple[str, str], ...] = ()
    """Effects that may stand, each with what it is: who closes a case says what became of every one."""
    observations: tuple[tuple[str, str], ...] = ()
    """Elements that were seen to be right, as a form names them and as a person reads them."""


FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "SETTLE": ("finding", "external_resource_id", "receipt", "evidence", "became"),
    "MARK_RESOLVED": ("observation", "became"),
    "RESUME": ("from_step", "dry_run"),
    "ASSIGN": ("owner",),
    "ESCALATE": ("owner",),
    "TAKE_OVER": ("stop",),
}
"""What an act asks beside its reason."""
RECOMMENDED: Final[Mapping[str, tuple[str, ...]]] = {
    "dead_letter": ("REDRIVE", "RECONCILE"),
    "failed": ("REDRIVE", "RECONCILE"),
    "needs_review": ("SETTLE", "RECONCILE", "RESUME"),
    "state_drift": ("REPAIR", "RECONCILE"),
    "compensation_failed": ("COMPENSATE", "REDRIVE", "REPAIR"),
    "conflict": ("SETTLE", "MARK_RESOLVED"),
}
"""What most often helps, by the kind of exception: it stands first."""
GRAVE: Final = frozenset({"CANCEL", "COMPENSATE", "SETTLE", "MARK_RESOLVED"})
"""Acts that cannot simply be taken back."""
_NOTHING_LEFT: Final = frozenset({"PENDING", "RESOLVED", "CANCELLED", "SKIPPED"})


def offers_for_exception(
    view: View, item: Mapping[str, Any], case: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Offer]:
    """What may be done about an exception now: what the contract allows, where the person may act at all."""
    offers = _offers(view, "exception", str(item["exception_id"]), item.get("allowed_actions"), case, row)
    first = RECOMMENDED.get(str(item.get("kind")), ())
    return sorted(offers, key=lambda offer: first.index(offer.action) if offer.action in first else len(first))


def offers_for_case(view: View, case: Mapping[str, Any]) -> list[Offer]:
    """What may be done with a case now."""
    return _offers(view, "workflow", str(case["workflow_id"]), case.get("allowed_actions"), case, {})


def _offers(  # noqa: PLR0917 - one target and what stands around it
    view: View, kind: str, name: str, allowed: object, case: Mapping[str, Any], row: Mapping[str, Any]
) -> list[Offer]:
    if not view.may(roles.OPERATE) or not isinstance(allowed, list):
        return []
    return [_offer(action, kind, name, case, row) for action in CONTRACT if action in allowed]


def _offer(action: str, kind: str, name: str, case: Mapping[str, Any], row: Mapping[str, Any]) -> Offer:
    fields = FIELDS.get(action, ())
    if action == "RESUME" and case.get("status") == "PAUSED":
        fields = ()
    return Offer(
        action,
        kind,
        name,
        fields,
        action in GRAVE,
        steps=tuple(str(step["id"]) for step in case.get("steps") or []) if "from_step" in fields else (),
        effects=_effects(case, row) if "became" in fields else (),
        observations=_observations(case, row) if "observation" in fields else (),
    )


def _effects(case: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    if row:
        return ((str(row["command_id"]), str(row.get("command_type") or row["command_id"])),)
    return tuple(
        (str(step["command_id"]), str(step.get("command_type") or step["id"]))
        for step in case.get("steps") or []
        if step.get("command_id")
        and step.get("state") not in _NOTHING_LEFT
        and step.get("compensation_state") != "COMPENSATED"
        and (step.get("state") == "SUCCESS" or step.get("attempts"))
    )


def _observations(case: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple(
        (
            orjson.dumps({name: item.get(name) for name in ("system", "resource", "element")}).decode(),
            f"{item.get('element')} · {item.get('resource')}",
        )
        for item in case.get("vector") or []
        if item.get("phase") == "HEALTHY" and (not row or item.get("command_id") == row.get("command_id"))
    )


CONTRACT: Final = (
    "RECONCILE",
    "RETRY",
    "REDRIVE",
    "REPAIR",
    "COMPENSATE",
    "SETTLE",
    "MARK_RESOLVED",
    "RESUME",
    "PAUSE",
    "CANCEL",
    "TAKE_OVER",
    "HAND_BACK",
    "ASSIGN",
    "ESCALATE",
)
"""The acts of the contract. There is no other: nothing here runs a tool of somebody's choice."""


async def outcome(view: View) -> dict[str, Any]:
    """The operator command that this page was reached by, as it stands; empty where there is none."""
    name = view.asked("did", 60)
    if not name or not name.startswith("opc_"):
        return {}
    return (await view.contract.get(f"/v1/operator-commands/{quote(name, safe='')}")).object


# Forms


def back_of(form: Form, otherwise: str) -> str:
    """The page to go back to: one of the console's own, whatever the form says."""
    wanted = form.text("back", 500)
    parts = urlsplit(wanted)
    fits = wanted.startswith(f"{PREFIX}/") and not parts.scheme and not parts.netloc
    if not fits or any(ord(character) < 33 or character == "\\" for character in wanted):
        return otherwise
    return parts.path


def sent_back(place: str, **query: str | None) -> Response:
    """See the page again, with what was done."""
    told = urlencode({name: value for name, value in query.items() if value})
    return RedirectResponse(f"{place}?{told}" if told else place, 303)


def closed_door(view: View) -> Response:
    """The answer to a form that is not ours."""
    body = {
        "title": view.words("form.foreign.title"),
        "detail": view.words("form.foreign.detail"),
        "status": 403,
        "type": "/problems/forbidden",
    }
    return refused_page(view, Answered(403, {}, body), f"{PREFIX}/exceptions")


async def act(request: Request) -> Response:
    """Ask for an operator command, exactly as `POST /v1/operator-commands` would."""
    view = view_of(request)
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    back = back_of(form, f"{PREFIX}/exceptions")
    try:
        body = _command(form)
    except Refused as refused:
        return refused_page(view, _unreadable(refused), back)
    answered = await view.contract.post("/v1/operator-commands", body, form.text("key", 200))
    if not answered.done:
        return refused_page(view, answered, back)
    if body["params"].get("dry_run"):
        return view.page("resume_preview.html", preview=answered.object, asked=body, back=back)
    return sent_back(back, did=str(answered.object.get("operator_command_id") or ""))


def _command(form: Form) -> dict[str, Any]:
    """The body of the operator command that a form asks for. Raises Refused."""
    evidence = [{"kind": "note", "text": line} for line in form.text("evidence", 8000).splitlines() if line.strip()]
    return {
        "action": form.text("action", 40),
        "target": {"kind": form.text("target_kind", 40), "id": form.text("target_id", 100)},
        "reason": form.text("reason", 2000),
        "evidence": evidence[:50],
        "params": _params(form),
    }


def _params(form: Form) -> dict[str, Any]:
    """What the act takes beside: only what was filled in. Raises Refused."""
    params: dict[str, Any] = {
        name: value
        for name in ("finding", "from_step", "owner", "external_resource_id")
        if (value := form.text(name, 300))
    }
    params.update({name: True for name in ("dry_run", "stop") if form.text(name, 5)})
    for name in ("receipt", "observation"):
        if text := form.text(name, 20_000):
            try:
                params[name] = parse(text.encode())
            except Malformed as error:
                raise Refused("payload-invalid", f"The field {name} is not JSON: {error}.") from None
    became = [{"effect": effect, "became": text} for effect, text in form.named("became:", 2000) if text]
    if became and params.get("finding", "CLOSE") == "CLOSE" and "observation" not in params:
        params["disposition"] = became
    return params


def _unreadable(refused: Refused) -> Answered:
    body = {"title": refused.problem.title, "detail": refused.detail, "status": refused.problem.status}
    return Answered(refused.problem.status, {}, {**body, "type": f"/problems/{refused.problem.slug}"})


async def decide(request: Request) -> Response:
    """Answer an approval for exactly the hash that its page showed."""
    view = view_of(request)
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    name = str(request.path_params["approval_id"])
    place = f"{PREFIX}/approvals/{quote(name, safe='')}"
    body = {
        "decision": form.text("decision", 20),
        "nonce": form.text("nonce", 300),
        "content_sha256": form.text("content_sha256", 100),
        "reason": form.text("reason", 2000) or None,
    }
    path = f"/v1/approvals/{quote(name, safe='')}/decision"
    answered = await view.contract.post(path, body, form.text("key", 200))
    return sent_back(place, decided="yes") if answered.done else refused_page(view, answered, place)


def _scope(form: Form) -> dict[str, Any]:
    """The scope that a form names; what is empty is covered."""
    version = form.text("version", 10)
    named = {name: form.text(name, 200) or None for name in ("system", "command_type", "definition")}
    number = int(version) if version.isascii() and version.isdigit() else None
    return {**named, "version": number, "compensation": bool(form.text("compensation"))}


async def freeze(request: Request) -> Response:
    """Freeze a scope."""

    def body(form: Form) -> dict[str, Any]:
        until = form.text("expires_at", 40)
        moment = f"{until}:00Z" if len(until) == 16 else until or None
        return {"scope": _scope(form), "reason": form.text("reason", 2000), "expires_at": moment}

    return await _control(request, "/v1/controls/freezes", body)


async def break_glass(request: Request) -> Response:
    """Let a scope through every freeze for some minutes."""

    def body(form: Form) -> dict[str, Any]:
        minutes = form.text("minutes", 6)
        number = int(minutes) if minutes.isascii() and minutes.isdigit() else 0
        return {"scope": _scope(form), "reason": form.text("reason", 2000), "minutes": number}

    return await _control(request, "/v1/controls/break-glass", body)


async def _control(request: Request, path: str, body: Callable[[Form], dict[str, Any]]) -> Response:
    view, place = view_of(request), f"{PREFIX}/freezes"
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    answered = await view.contract.post(path, body(form), form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place)


async def lift(request: Request) -> Response:
    """Lift one freeze."""
    view = view_of(request)
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    place = f"{PREFIX}/freezes"
    name = quote(str(request.path_params["freeze_id"]), safe="")
    answered = await view.contract.delete(f"/v1/controls/freezes/{name}", form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place)


async def batch(request: Request) -> Response:
    """Ask for a batch: always a preview first, with the selection frozen."""
    view = view_of(request)
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    rate = form.text("rate_per_second", 10)
    chosen = {name: form.text(name, 200) for name in ("kind", "owner", "cause", "system")}
    body = {
        "action": form.text("action", 40),
        "filter": {name: value for name, value in chosen.items() if value},
        "rate_per_second": float(rate) if rate.replace(".", "", 1).isdigit() else 1.0,
        "reason": form.text("reason", 2000),
        "dry_run": True,
    }
    answered = await view.contract.post("/v1/operator-batches", body, form.text("key", 200))
    if not answered.done:
        return refused_page(view, answered, f"{PREFIX}/batches")
    name = quote(str(answered.object.get("batch_id") or ""), safe="")
    return sent_back(f"{PREFIX}/batches/{name}" if name else f"{PREFIX}/batches")


async def steer_batch(request: Request) -> Response:
    """Start, pause or stop a batch."""
    view = view_of(request)
    try:
        form = await session_form(request, view)
    except NotOurs:
        return closed_door(view)
    name = quote(str(request.path_params["batch_id"]), safe="")
    place = f"{PREFIX}/batches/{name}"
    verb = form.text("verb", 10)
    if verb not in {"start", "pause", "stop"}:
        return closed_door(view)
    body = {"reason": form.text("reason", 2000)} if form.text("reason") else {}
    answered = await view.contract.post(f"/v1/operator-batches/{name}/{verb}", body, form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place)
