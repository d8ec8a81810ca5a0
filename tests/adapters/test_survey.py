"""Surveys: what adapters list, and what the ledger strikes out of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.builders import Process, execute
from tests.adapters.memory import START, Ledger

from trueup_adapters.attempts import probe
from trueup_adapters.core.job import Probed, ProbeJob
from trueup_common.contracts.adapter import EndsWith, unknown
from trueup_common.contracts.observation import Observation
from trueup_common.contracts.states import ProbeVerdict
from trueup_common.contracts.survey import NOT_SURVEYABLE, RESOURCE, SURVEY, Compared, Mark, Page
from trueup_common.contracts.task import Observed, ProbeElement, ProbeTask

TASK = ProbeTask(
    visit_id="vis_1",
    tenant="acme",
    system="alpha",
    resource=RESOURCE,
    command_id="cmd_survey",
    elements=(ProbeElement(element="alpha.survey", kind=SURVEY, params={"cursor": "7"}),),
)


class Listing:
    """A target that lists marks."""

    def __init__(self, page: Page | None) -> None:
        self.page = page
        self.cursors: list[str | None] = []

    async def survey(self, cursor: str | None, params: dict[str, Any]) -> Page:
        self.cursors.append(cursor)
        if self.page is None:
            raise EndsWith(unknown("unauthenticated"))
        return self.page


async def asked(target: Any) -> Observation:
    (seen,) = await probe(ProbeJob(TASK), target, lambda: START)
    return seen


async def test_a_page_is_read_like_any_element() -> None:
    """Requirements: R10"""
    page = Page(marks=(Mark(operation_id="cmd_1", external_resource_id="4"),), next_cursor="8")
    target = Listing(page)
    seen = await asked(target)
    assert (seen.verdict, Page.model_validate(seen.value), target.cursors) == (ProbeVerdict.CONFIRMED, page, ["7"])


@pytest.mark.parametrize(("target", "reason"), [(Listing(None), "unauthenticated"), (object(), NOT_SURVEYABLE)])
async def test_a_listing_that_fails_or_that_nobody_can_make_says_nothing(target: Any, reason: str) -> None:
    """Requirements: R10, E4"""
    seen = await asked(target)
    assert (seen.verdict, seen.reason) == (ProbeVerdict.UNKNOWN, reason)


def test_what_stands_in_the_ledger_is_struck_out_from_its_first_moment() -> None:
    """A row stands before the first byte, so an effect of ours is known, however young it is; a stranger's is not.

    Requirements: R10
    """
    process = Process(Ledger())
    process.deliver(execute(1))
    names = ("cmd_1", "cmd_stranger")
    page = Page(
        marks=tuple(Mark(operation_id=name, external_resource_id=name, resource=f"post/{name}") for name in names),
        next_cursor="8",
    )
    seen = Observation(
        element="alpha.survey",
        verdict=ProbeVerdict.CONFIRMED,
        value=page.model_dump(mode="json"),
        observed_at=START,
        source="alpha",
        proof_of_access=True,
    )
    (sent,) = process.finish(Probed(ProbeJob(TASK), [seen]))
    (told,) = Observed.model_validate_json(sent.message.data).observations
    compared = Compared.model_validate(told.value)
    assert (compared.listed_count, compared.next_cursor) == (2, "8")
    assert [mark.operation_id for mark in compared.unmanaged] == ["cmd_stranger"]
    assert (compared.operations, compared.resources) == (("cmd_1",), ("post/cmd_1",))
    unread = seen.evolve(verdict=ProbeVerdict.UNKNOWN, value=None, reason="timeout")
    (sent,) = process.finish(Probed(ProbeJob(TASK), [unread]))
    assert Observed.model_validate_json(sent.message.data).observations[0].reason == "timeout"
