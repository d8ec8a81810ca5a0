"""Forms: what a page of a session sent, bounded, and only from here."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from trueup_gateway.api.http import read_bytes
from trueup_gateway.console.sessions import comes_from_here, form_token_holds
from trueup_gateway.console.view import View
from trueup_gateway.core.refusal import Refused

FIELDS_MAX: Final = 60
BYTES_MAX: Final = 64 * 1024
_KIND: Final = "application/x-www-form-urlencoded"


class NotOurs(Exception):
    """A form that no page of this session made."""


class Form:
    """The fields of a form."""

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        self._fields = fields

    def text(self, name: str, most: int = 4000) -> str:
        """One field as text, empty where it is absent."""
        values = self._fields.get(name) or [""]
        return values[-1].strip()[:most]

    def named(self, prefix: str, most: int = 4000) -> list[tuple[str, str]]:
        """The fields whose names begin so, each with the rest of its name."""
        return [(name.removeprefix(prefix), self.text(name, most)) for name in self._fields if name.startswith(prefix)]

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return list(self._fields.get(name) or [])


async def read_form(request: Request) -> Form:
    """The fields of a form that was sent from here, whoever sent it. Raises NotOurs."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _KIND or not comes_from_here(request):
        raise NotOurs
    try:
        raw = await read_bytes(request, BYTES_MAX)
        fields = parse_qs(raw.decode("ascii"), keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except (Refused, ValueError):
        raise NotOurs from None
    return Form(fields)


async def session_form(request: Request, view: View) -> Form:
    """The fields of a form that a page of this very session made. Raises NotOurs."""
    form = await read_form(request)
    if view.session is None or not form_token_holds(request, view.session, form.text("form_token", 128)):
        raise NotOurs
    return form
