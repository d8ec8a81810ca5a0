"""One page for one person: who looks, in which language, what they may, and how templates become an answer."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from trueup_common.contracts.ids import new_id
from trueup_gateway.api.gateway import Gateway, gateway_of
from trueup_gateway.console import shown
from trueup_gateway.console.contract import Answered, Contract
from trueup_gateway.console.door import PREFIX
from trueup_gateway.console.sessions import Session, seal_of, session_of
from trueup_gateway.console.words import Words, language_of, words_of
from trueup_gateway.core import roles

LANGUAGE_COOKIE: Final = "trueup_console_language"
THEME_COOKIE: Final = "trueup_console_theme"
THEMES: Final = ("auto", "light", "dark")
PLACES: Final = (
    ("exceptions", roles.READ_TENANT),
    ("cases", roles.READ_TENANT),
    ("approvals", roles.READ_APPROVALS),
    ("repairs", roles.READ_TENANT),
    ("incidents", roles.READ_TENANT),
    ("batches", roles.OPERATE),
    ("slo", roles.READ_TENANT),
    ("freezes", roles.READ_CONTROLS),
    ("acts", roles.READ_TENANT),
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
            "places": [name for name, right in PLACES if self.may(right)],
            "here": self.request.url.path.removeprefix(PREFIX).strip("/").partition("/")[0],
            "address": _address(self.request),
            "base": PREFIX,
            "form_token": self.form_token,
            "new_key": lambda: f"console:{new_id('msg').partition('_')[2]}",
            "development": self.gateway.dev_key is not None,
            "relative": partial(shown.relative_time, now=now, words=words),
            "clock": shown.clock_time,
            "cut_marked": partial(shown.cut_marked, words=words),
            "units": ",".join(words(f"span.{unit}", count="#") for unit in ("s", "min", "h", "d")),
        }


def need(answered: Answered) -> dict[str, Any]:
    """The object that a page cannot do without. Raises Told."""
    if not answered.done or not isinstance(answered.body, dict):
        raise Told(answered)
    return answered.body


def view_of(request: Request) -> View:
    """The view of a request, whoever makes it."""
    gateway = gateway_of(request)
    session = session_of(request)
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
            wanted = quote(_address(request), safe="")
            return RedirectResponse(f"{PREFIX}/login?next={wanted}", 303)
        try:
            return await handler(view)
        except Told as told:
            return refused_page(view, told.answered)

    return endpoint


def refused_page(view: View, answered: Answered, back: str | None = None) -> Response:
    """What the contract refused, in the words of its problem document."""
    if answered.status == 401:
        return RedirectResponse(f"{PREFIX}/login", 303)
    problem = answered.body if isinstance(answered.body, dict) else {}
    slug = str(problem.get("type") or "").rpartition("/")[2]
    return view.page(
        "refused.html",
        code=answered.status if answered.status >= 400 else 502,
        problem=problem,
        slug=slug,
        back=back,
        allowed=[str(item) for item in problem.get("allowed_actions") or []],
    )


def _address(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("trueup_gateway.console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "cut": shown.cut,
        "value": shown.value_mark,
        "hash": shown.hash_mark,
        "short_id": shown.short_id,
        "pretty": shown.pretty,
        "number": shown.number,
        "plain": shown.plain,
        "said": shown.said,
        "spaced": shown.spaced,
    }
    made.filters.update(filters)
    return made
