"""One page for one person: who looks, in which language, what they may, and how templates become an answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from trueup_common.contracts.ids import new_id
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.console import shown
from trueup_gateway.console.contract import Answered, Contract
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.forms import Form
from trueup_gateway.console.own import outcome, own
from trueup_gateway.console.sessions import Session, seal_of
from trueup_gateway.console.words import Words, language_of, words_of
from trueup_gateway.core import roles

WHO: Final = "trueup.console.session"
"""Where a request's scope says who is logged in."""
LANGUAGE_COOKIE: Final = "trueup_console_language"
THEME_COOKIE: Final = "trueup_console_theme"
THEMES: Final = ("auto", "light", "dark")
GROUPS: Final = (
    (
        "operations",
        (
            ("exceptions", roles.READ_TENANT),
            ("repairs", roles.READ_TENANT),
            ("incidents", roles.READ_TENANT),
            ("batches", roles.OPERATE),
            ("freezes", roles.READ_CONTROLS),
            ("slo", roles.READ_TENANT),
        ),
    ),
    ("business", (("cases", roles.READ_TENANT), ("approvals", roles.READ_APPROVALS))),
    ("audit", (("acts", roles.VIEW_AUDIT),)),
)
"""The places of the console and the right that each needs; what a person may not see is not offered."""


class Told(Exception):
    """The contract refused what a page needed: the person is told that instead."""

    def __init__(self, answered: Answered) -> None:
        super().__init__(str(answered.status))
        self.answered = answered


@dataclass(frozen=True)
class View:
    """One request of a person."""

    request: Request
    gateway: Gateway
    words: Words
    theme: str
    session: Session | None
    contract: Contract
    now: datetime

    def may(self, right: str) -> bool:
        """True where the person's role holds a right; what it does not hold is not offered."""
        return self.session is not None and roles.may(self.session.caller.roles, right)

    @property
    def first_place(self) -> str | None:
        """The page that this person begins with; None where their roles open none."""
        name = next((name for _, names in self.groups() for name in names), None)
        return f"{PREFIX}/{name}" if name else None

    def groups(self) -> list[tuple[str, list[str]]]:
        """The places that this person's roles open, by group; an empty group is not shown."""
        found = [(group, [name for name, right in named if self.may(right)]) for group, named in GROUPS]
        return [(group, names) for group, names in found if names]

    @property
    def form_token(self) -> str:
        """What this session's forms carry."""
        return seal_of(self.gateway).form_token(self.session.secret) if self.session is not None else ""

    def asked(self, name: str, most: int = 200) -> str | None:
        """A query parameter as text, None where it is empty."""
        return self.request.query_params.get(name, "")[:most].strip() or None

    def page(self, template: str, /, code: int = 200, **facts: Any) -> Response:
        """A page."""
        text = _templates().get_template(template).render({**self._frame(), **facts})
        return HTMLResponse(text, code, headers={"Vary": "Cookie, Accept-Language"})

    def _frame(self) -> dict[str, Any]:
        words, now = self.words, self.now
        return {
            "t": words,
            "term": words.term,
            "lang": words.language,
            "theme": self.theme,
            "themes": THEMES,
            "now": now,
            "person": self.session.caller if self.session is not None else None,
            "may": self.may,
            "sees_business": self.may(roles.VIEW_BUSINESS),
            "places": [name for _, names in self.groups() for name in names],
            "groups": self.groups(),
            "here": self.request.url.path.removeprefix(PREFIX).strip("/").partition("/")[0],
            "address": address_of(self.request),
            "base": PREFIX,
            "form_token": self.form_token,
            "new_key": lambda: f"console:{new_id('msg').partition('_')[2]}",
            "development": self.gateway.dev_key is not None,
            "relative": partial(shown.relative_time, now=now, words=words),
            "when": partial(shown.both_times, now=now, words=words),
            "clock": shown.clock_time,
            "cut_marked": partial(shown.cut_marked, words=words),
            "ours": partial(own, words),
            "outcome": partial(outcome, words),
            "units": ",".join(words(f"span.{unit}", count="#") for unit in ("s", "min", "h", "d")),
        }


def need(answered: Answered) -> dict[str, Any]:
    """The object that a page cannot do without. Raises Told."""
    if not answered.done or not isinstance(answered.body, dict):
        raise Told(answered)
    return answered.body


def view_of(request: Request) -> View:
    """The view of a request, whoever makes it; the site found out who before."""
    gateway = gateway_of(request)
    session: Session | None = request.scope.get(WHO)
    language = language_of(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language"))
    theme = request.cookies.get(THEME_COOKIE, "auto")
    return View(
        request=request,
        gateway=gateway,
        words=words_of(language),
        theme=theme if theme in THEMES else "auto",
        session=session,
        contract=Contract(request, session.token if session is not None else None),
        now=gateway.clock.now(),
    )


Shown = Callable[[View], Awaitable[Response]]


def for_people(handler: Shown) -> Callable[[Request], Awaitable[Response]]:
    """A page that needs somebody to be logged in; what the contract refuses becomes a page that says so."""

    async def endpoint(request: Request) -> Response:
        view = view_of(request)
        if view.session is None:
            return RedirectResponse(login_address(address_of(request)), 303)
        try:
            return await handler(view)
        except Told as told:
            return refused_page(view, told.answered)

    return endpoint


def refused_page(view: View, answered: Answered, back: str | None = None, *, form: Form | None = None) -> Response:
    """What the contract refused, in the words of its problem document, with what was typed in vain."""
    over = answered.status == 401
    if over and form is None:
        return RedirectResponse(login_address(back or ""), 303)
    problem = answered.body if isinstance(answered.body, dict) else {}
    slug = str(problem.get("type") or "").rpartition("/")[2]
    response = view.page(
        "refused.html",
        code=answered.status if answered.status >= 400 else 502,
        problem=problem,
        slug=slug,
        back=back,
        login=login_address(back or "") if over else None,
        sent_to=view.request.url.path,
        mark=f"{form.text('action', 40)} {form.text('target_id', 100)}".strip() if form is not None else "",
        typed=form.typed() if form is not None else [],
        allowed=[str(item) for item in problem.get("allowed_actions") or []],
    )
    if "retry-after" in answered.headers:
        response.headers["Retry-After"] = answered.headers["retry-after"]
    return response


def login_address(wanted: str) -> str:
    """Where to log in, to come back to a page."""
    return f"{PREFIX}/login?next={quote(wanted, safe='')}" if wanted else f"{PREFIX}/login"


def address_of(request: Request) -> str:
    """The address that a request asked for, with its query."""
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def _undisguised(value: Any) -> Any:
    """Whatever a template puts out: text that no page made up shows what hides in it, also where a template forgot."""
    return shown.plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("trueup_gateway.console", "templates"),
        autoescape=True,
        finalize=_undisguised,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "cut": shown.cut,
        "value": shown.value_mark,
        "hash": shown.hash_mark,
        "place": shown.place_mark,
        "linked": shown.linked,
        "short_id": shown.short_id,
        "pretty": shown.pretty,
        "number": shown.number,
        "plain": shown.plain,
        "said": shown.said,
        "spaced": shown.spaced,
        "sentence": shown.sentence,
    }
    made.filters.update(filters)
    return made
