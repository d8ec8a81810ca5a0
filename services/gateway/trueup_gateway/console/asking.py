"""What a form asks for, as one call of the contract under the key that was made when its page was: sent twice, it
happens once. What cannot be asked for is told on a page of its own, with what the person had typed.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from trueup_gateway.console.contract import Answered
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.forms import BECAME, Form, NotOurs, form_of
from trueup_gateway.console.view import View, refused_page, view_of
from trueup_gateway.core.refusal import Refused
from trueup_gateway.core.strict_json import Malformed, parse

Asked = Callable[[View, Form], Awaitable[Response]]
VERBS: Final = frozenset({"start", "pause", "stop"})


def for_forms(handler: Asked) -> Callable[[Request], Awaitable[Response]]:
    """What a form of this very session asks for; any other form does nothing, and is told so."""

    async def endpoint(request: Request) -> Response:
        view = view_of(request)
        try:
            form = await form_of(request, view.session)
        except NotOurs as foreign:
            return closed_door(view, foreign.form)
        return await handler(view, form)

    return endpoint


def closed_door(view: View, form: Form | None = None) -> Response:
    """The answer to a form that is not ours; one of a session that is over keeps what was typed."""
    if form is None:
        return refused_page(view, _told(view, "foreign", 403), f"{PREFIX}/exceptions")
    back = back_of(form, page_of(view.request.url.path))
    if view.session is None:
        return refused_page(view, _told(view, "ended", 401), back, form=form)
    return refused_page(view, _told(view, "earlier", 403), back, form=form)


def _told(view: View, name: str, status: int) -> Answered:
    title, detail = view.words(f"form.{name}.title"), view.words(f"form.{name}.detail")
    return Answered(status, {}, {"title": title, "detail": detail, "status": status})


def back_of(form: Form, otherwise: str) -> str:
    """The page to go back to: one of the console's own, whatever the form says."""
    wanted = form.text("back", 500)
    parts = urlsplit(wanted)
    fits = wanted.startswith(f"{PREFIX}/") and not parts.scheme and not parts.netloc
    if not fits or any(ord(character) < 33 or character == "\\" for character in wanted):
        return otherwise
    return parts.path


def page_of(path: str) -> str:
    """The page whose form is sent to this address."""
    parts = path.removeprefix(PREFIX).strip("/").split("/")
    if parts[0] in {"approvals", "batches"}:
        return f"{PREFIX}/{parts[0]}/{quote(parts[1], safe='')}" if len(parts) == 3 else f"{PREFIX}/{parts[0]}"
    return f"{PREFIX}/freezes" if parts[0] in {"freezes", "break-glass"} else f"{PREFIX}/exceptions"


def sent_back(place: str, **query: str | None) -> Response:
    """See the page again, with what was done."""
    told = urlencode({name: value for name, value in query.items() if value})
    return RedirectResponse(f"{place}?{told}" if told else place, 303)


async def act(view: View, form: Form) -> Response:
    """Ask for an operator command, exactly as `POST /v1/operator-commands` would."""
    back = back_of(form, f"{PREFIX}/exceptions")
    try:
        body = _command(form)
    except Refused as refused:
        return refused_page(view, _unreadable(refused), back, form=form)
    answered = await view.contract.post("/v1/operator-commands", body, form.text("key", 200))
    if not answered.done:
        return refused_page(view, answered, back, form=form)
    if body["params"].get("dry_run") is True:
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
    if (version := form.text("version", 10)).isascii() and version.isdigit():
        params["version"] = int(version)
    for name in ("receipt", "observation"):
        if text := form.text(name, 20_000):
            try:
                params[name] = parse(text.encode())
            except Malformed as error:
                raise Refused("payload-invalid", f"The field {name} is not JSON: {error}.") from None
    became = [{"effect": effect, "became": text} for effect, text in form.named(BECAME, 2000) if text]
    if became and params.get("finding", "CLOSE") == "CLOSE" and "observation" not in params:
        params["disposition"] = became
    return params


def _unreadable(refused: Refused) -> Answered:
    body = {"title": refused.problem.title, "detail": refused.detail, "status": refused.problem.status}
    return Answered(refused.problem.status, {}, {**body, "type": f"/problems/{refused.problem.slug}"})


async def decide(view: View, form: Form) -> Response:
    """Answer an approval for exactly the hash that its page showed."""
    name = _part(view, "approval_id")
    place = f"{PREFIX}/approvals/{name}"
    body = {
        "decision": form.text("decision", 20),
        "nonce": form.text("nonce", 300),
        "content_sha256": form.text("content_sha256", 100),
        "reason": form.text("reason", 2000) or None,
    }
    answered = await view.contract.post(f"/v1/approvals/{name}/decision", body, form.text("key", 200))
    if answered.done:
        return sent_back(place, decided="yes")
    return refused_page(view, answered, place, form=form)


def _part(view: View, name: str) -> str:
    return quote(str(view.request.path_params[name]), safe="")


def _scope(form: Form) -> dict[str, Any]:
    """The scope that a form names; what is empty is covered."""
    version = form.text("version", 10)
    named = {name: form.text(name, 200) or None for name in ("system", "command_type", "definition")}
    number = int(version) if version.isascii() and version.isdigit() else None
    return {**named, "version": number, "compensation": bool(form.text("compensation"))}


async def freeze(view: View, form: Form) -> Response:
    """Freeze a scope."""
    until = form.text("expires_at", 40)
    moment = f"{until}:00Z" if len(until) == 16 else until or None
    body = {"scope": _scope(form), "reason": form.text("reason", 2000), "expires_at": moment}
    return await _control(view, form, "/v1/controls/freezes", body)


async def break_glass(view: View, form: Form) -> Response:
    """Let a scope through every freeze for some minutes."""
    minutes = form.text("minutes", 6)
    number = int(minutes) if minutes.isascii() and minutes.isdigit() else 0
    body = {"scope": _scope(form), "reason": form.text("reason", 2000), "minutes": number}
    return await _control(view, form, "/v1/controls/break-glass", body)


async def _control(view: View, form: Form, path: str, body: dict[str, Any]) -> Response:
    place = f"{PREFIX}/freezes"
    answered = await view.contract.post(path, body, form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place, form=form)


async def lift(view: View, form: Form) -> Response:
    """Lift one freeze."""
    place = f"{PREFIX}/freezes"
    answered = await view.contract.delete(f"/v1/controls/freezes/{_part(view, 'freeze_id')}", form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place)


async def batch(view: View, form: Form) -> Response:
    """Ask for a batch: always a preview first, with the selection frozen."""
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
        return refused_page(view, answered, f"{PREFIX}/batches", form=form)
    name = quote(str(answered.object.get("batch_id") or ""), safe="")
    return sent_back(f"{PREFIX}/batches/{name}" if name else f"{PREFIX}/batches")


async def steer_batch(view: View, form: Form) -> Response:
    """Start, pause or stop a batch."""
    name = _part(view, "batch_id")
    place, verb = f"{PREFIX}/batches/{name}", form.text("verb", 10)
    if verb not in VERBS:
        return closed_door(view)
    body = {"reason": form.text("reason", 2000)} if form.text("reason") else {}
    answered = await view.contract.post(f"/v1/operator-batches/{name}/{verb}", body, form.text("key", 200))
    return sent_back(place) if answered.done else refused_page(view, answered, place)
