"""Forms: what a page of a session sent, bounded, and only from here."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request

from trueup_gateway.api.http import read_bytes
from trueup_gateway.console.sessions import Session, comes_from_here, form_token_holds
from trueup_gateway.core.refusal import Refused

FIELDS_MAX: Final = 60
BYTES_MAX: Final = 64 * 1024
TYPED_MAX: Final = 4000
BECAME: Final = "became:"
TYPED: Final = (
    "reason",
    "finding",
    "evidence",
    "receipt",
    "external_resource_id",
    "owner",
    "from_step",
    "version",
    "system",
    "command_type",
    "definition",
    "expires_at",
    "minutes",
    "rate_per_second",
    "kind",
    "cause",
)
"""Fields that people fill in."""
_KIND: Final = "application/x-www-form-urlencoded"


class NotOurs(Exception):
    """A form that no page of this session made. `form` is there where it came from a page of ours all the same: of a
    session that is over, or of an earlier one of this browser."""

    def __init__(self, form: "Form | None" = None) -> None:
        super().__init__()
        self.form = form


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

    def typed(self) -> list[tuple[str, str]]:
        """What a person wrote or chose: the fields with something in them that no page fills in by itself."""
        named = [name for name in self._fields if name in TYPED or name.startswith(BECAME)]
        return [(name, text) for name in named if (text := self.text(name, TYPED_MAX))]

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


async def form_of(request: Request, session: Session | None) -> Form:
    """The fields of a form that a page of this very session made. Raises NotOurs, with the form where only the session
    is another or over."""
    form = await read_form(request)
    if session is None or not form_token_holds(request, session, form.text("form_token", 128)):
        raise NotOurs(form)
    return form
