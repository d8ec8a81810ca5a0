"""The desk: what several steps of one batch want is decided one after the other, each knowing what came before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from tests.orchestrator.cases import FREE, TERMS, At
from tests.orchestrator.sagas import DECLARATIONS, document, make, start_message

from trueup_common.documents.expressions import Expressions
from trueup_orchestrator.core.opening import start_workflow
from trueup_orchestrator.core.workflow import Workflow
from trueup_orchestrator.desk import DOCUMENTS_MAX, Desk
from trueup_orchestrator.windows import Windows


class EmptyTx:
    """A store in which nothing is yet."""

    async def lock_rows(self, keys: Sequence[Any]) -> list[Any]:
        return []

    async def keep_locks(self, rows: Sequence[Any], *, first: bool = False) -> None:
        """All are free."""

    async def newest(self, keys: Sequence[Any]) -> list[Any]:
        return []

    async def holders(self, keys: Sequence[Any], identities: Sequence[Any]) -> list[Any]:
        return []


async def test_a_generation_is_used_once_also_by_what_is_refused_at_once() -> None:
    """Two steps side by side under one key, refused as they begin: no two rows that no store can take together.

    Requirements: I2
    """
    at = At()
    doc = document(make("a", key="k"), make("b", key="k", needs=[]))
    body = start_message(doc, at=at)
    body = body.evolve(mandate=body.mandate.evolve(expires_at=at.business - timedelta(seconds=1)))
    workflow = Workflow(doc, Expressions(doc), DECLARATIONS)
    fold = start_workflow(body, workflow, FREE, at, TERMS, cause="m")
    governance = SimpleNamespace(quiet=True, stale=False)
    declarations = SimpleNamespace(declaration=lambda sha256: None)
    desk = Desk(declarations=declarations, governance=governance, terms=TERMS, windows=Windows(8))
    await desk.progress(EmptyTx(), [fold])  # type: ignore[arg-type]
    taken = [(row.idempotency_key, row.generation) for row in fold.operations.values()]
    assert len(taken) == 2 and len(set(taken)) == len(taken)


def test_compiled_documents_are_bounded_and_the_last_used_stay() -> None:
    """Requirements: B5"""
    terms = {"terms": TERMS, "windows": Windows(8), "declarations": SimpleNamespace(), "governance": SimpleNamespace()}
    desk = Desk(**terms)
    doc = document(make("a"))
    names = [desk.remember(doc.model_copy(update={"version": number + 1})) for number in range(DOCUMENTS_MAX + 20)]
    assert len(set(names)) == len(names)
    assert list(desk._documents) == names[20:]
