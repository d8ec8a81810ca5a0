"""Registered workflow documents: a tenant's own, and those that ship with the product (from the catalog).

A tenant's row stands before a built-in document of the same name and version; it can only say that it is retired.
"""

from collections.abc import Iterable
from typing import Final

from trueup_common.contracts.workflow import WorkflowDocument
from trueup_common.runtime.catalog import Catalog
from trueup_gateway.core.definition import BUILT_IN_BY, Definition
from trueup_gateway.core.records import DefinitionRow

REMEMBERED_MAX: Final = 500


class Definitions:
    """Documents as objects; each is parsed once per process."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._parsed: dict[str, WorkflowDocument] = {}

    def merged(self, rows: Iterable[DefinitionRow]) -> list[Definition]:
        """What these rows and the catalog give a tenant, by name and version."""
        found: dict[tuple[str, int], Definition] = {}
        for item in self._catalog.definitions():
            found[item.document.name, item.document.version] = Definition(
                document=item.document, text=item.text, built_in=True, created_by=BUILT_IN_BY
            )
        for row in rows:
            known = found.get((row.name, row.version))
            if known is not None and row.built_in and known.document.sha256 != row.sha256:
                continue  # a retirement of a document that ships no more under this name and version
            found[row.name, row.version] = Definition(
                document=self._document(row),
                text=row.text,
                built_in=row.built_in,
                created_by=row.created_by,
                created_at=row.created_at,
                retired_at=row.retired_at,
                retired_by=row.retired_by,
                retirement_reason=row.retirement_reason,
            )
        return [found[key] for key in sorted(found)]

    def _document(self, row: DefinitionRow) -> WorkflowDocument:
        known = self._parsed.get(row.sha256)
        if known is None:
            if len(self._parsed) >= REMEMBERED_MAX:
                self._parsed.clear()
            known = self._parsed[row.sha256] = WorkflowDocument.model_validate(row.document)
        return known
