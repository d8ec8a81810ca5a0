"""Marks against the ledger: what of a page belongs to no operation that this ledger has ever seen."""

from collections.abc import Collection

from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.survey import SURVEY, Compared, Page
from trueup_common.contracts.task import ProbeTask


def is_survey(task: ProbeTask) -> bool:
    """True where a probe asks for marks."""
    return any(element.kind == SURVEY for element in task.elements)


def page_of(observation: Observation) -> Page | None:
    """The page that an adapter answered; None where it said nothing."""
    if observation.verdict is not ProbeVerdict.CONFIRMED:
        return None
    return Page.model_validate(observation.value)


def operations_of(observation: Observation) -> set[str]:
    """The operations that the marks of an answer name."""
    page = page_of(observation)
    return {mark.operation_id for mark in page.marks} if page is not None else set()


def compared(observation: Observation, known: Collection[str]) -> Observation:
    """The answer with what the ledger does not know. A row is there before the first byte, so it knows all of ours."""
    page = page_of(observation)
    if page is None:
        return observation
    left = tuple(mark for mark in page.marks if mark.operation_id not in known)
    ours = [mark for mark in page.marks if mark.operation_id in known]
    value = Compared(
        listed_count=len(page.marks),
        operations=tuple(sorted({mark.operation_id for mark in ours})),
        resources=tuple(sorted({mark.resource for mark in ours if mark.resource is not None})),
        unmanaged=left,
        next_cursor=page.next_cursor,
    )
    found: Observation = observation.evolve(value=value.model_dump(mode="json"))
    return found
