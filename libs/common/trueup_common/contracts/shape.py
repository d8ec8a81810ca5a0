"""The shape of every contract: frozen, closed to misspelt fields, and with aware UTC times only."""

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict

Instant = Annotated[AwareDatetime, AfterValidator(lambda value: value.astimezone(UTC))]
"""An aware instant, kept in UTC. A naive datetime is refused at this border."""


class Contract(BaseModel):
    """Base of messages and declarations. Unknown fields are refused where we are the author."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def evolve(self, **changes: Any) -> "Any":
        """A copy with other values; unchecked, for code that already holds checked values."""
        return self.model_copy(update=changes)


class ForwardContract(BaseModel):
    """Base of events: a consumer older than the producer ignores what it does not know yet."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def evolve(self, **changes: Any) -> "Any":
        """A copy with other values; unchecked, for code that already holds checked values."""
        return self.model_copy(update=changes)


def rfc3339(moment: datetime) -> str:
    """UTC with `Z`, microseconds only where present."""
    if moment.tzinfo is None:
        raise ValueError("a naive datetime has no place here")
    text = moment.astimezone(UTC).isoformat()
    return text.replace("+00:00", "Z")
