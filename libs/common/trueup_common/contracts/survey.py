"""Surveys: what a system holds that carries an operation's marker, page by page, against what stands in the ledger.

A survey is a read like any other: a probe of the resource `RESOURCE` with one element of the kind `SURVEY`. The adapter
lists marks, the adapters' service strikes out those of its own ledger, and the answer names what is left.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

from trueup_common.contracts.shape import ForwardContract

SURVEY: Final = "survey"
RESOURCE: Final = "trueup-survey"
NOT_SURVEYABLE: Final = "not_surveyable"
"""The reason of an answer where a system leaves no marks, or none that can be listed."""
PAGE_MARKS_MAX: Final = 100


class Mark(ForwardContract):
    """One object that carries the marker of an operation."""

    operation_id: str
    external_resource_id: str
    resource: str | None = None


class Page(ForwardContract):
    """Some marks, and where the next ones begin; no cursor where these were the last."""

    marks: tuple[Mark, ...] = ()
    next_cursor: str | None = None


class Compared(ForwardContract):
    """A page after the ledger was asked: how many marks there were, and those of no operation that it knows."""

    listed_count: int
    operations: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    """Of what is managed: the operations, and the objects where the system names them. What is listed is there."""
    unmanaged: tuple[Mark, ...] = ()
    next_cursor: str | None = None


@runtime_checkable
class Surveyable(Protocol):
    """A target whose marks can be listed (optional)."""

    async def survey(self, cursor: str | None, params: Mapping[str, Any]) -> Page:
        """The marks after a cursor, in an order that stays, with the read credential. Raises EndsWith for a doubt.

        An empty page without proof of access is a doubt.
        """
        ...
