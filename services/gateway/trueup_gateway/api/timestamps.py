"""Times in request bodies: RFC 3339 text with an offset; a number or a naive time is refused at this border."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from trueup_common.contracts.shape import Instant


def _text(value: Any) -> Any:
    if not isinstance(value, str) or "T" not in value.upper():
        raise ValueError("must be an RFC 3339 time with an offset")
    return value


Timestamp = Annotated[Instant, BeforeValidator(_text)]
