"""The JSON Schema of workflow documents: what an editor completes and what the documentation shows."""

from functools import lru_cache
from typing import Any

from trueup_common.contracts.workflow import WorkflowDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"


@lru_cache(maxsize=1)
def document_schema() -> dict[str, Any]:
    """The schema of a document as people write it."""
    found = WorkflowDocument.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": DIALECT, **found, "title": "Workflow document"}
