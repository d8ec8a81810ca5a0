"""Times in request bodies: RFC 3339 text with an offset; a number or a naive time is refused at this border."""

from datetime import datetime
from typing import Annotated, Any

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from trueup_common.contracts.shape import AnyInstant


def _read(value: Any, read: ValidatorFunctionWrapHandler) -> datetime:
    if not isinstance(value, str) or "T" not in value.upper():
        raise ValueError("must be an RFC 3339 time with an offset")
    try:
        found: datetime = read(value)
    except OverflowError as error:  # a time of the first or last year, moved out of the calendar by its offset
        raise ValueError("is out of range") from error
    return found


Timestamp = Annotated[AnyInstant, WrapValidator(_read)]
