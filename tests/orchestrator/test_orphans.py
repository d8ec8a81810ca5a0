"""Orphans: a lease ran out, the outside is asked, and there are five ends. The death of a process is none of them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.orchestrator.cases import NOW, PAGE, Story, observation, settlement

from trueup_common.contracts.declaration import Repair
from trueup_common.contracts.events import Established
from trueup_common.contracts.observation import Finding
from trueup_common.contracts.pointer import ValueFrom
from trueup_common.contracts.states import FindVerdict, InstanceStatus
from trueup_common.contracts.states import OperationState as S
from trueup_common.contracts.task import RunningAttempt
from trueup_orchestrator.core.decide import Beaten, Due
from trueup_reconciler.core import drift, visit
from trueup_reconciler.core.drift import Terms
from trueup_reconciler.core.element import Stage

MENDED = PAGE.evolve(
    repair=Repair(command_type="site.create_page", payload={"title": ValueFrom(pointer="/payload/title")})
)
OTHER_VALUE = observation("private", at=NOW)


def orphan(**options: Any) -> Story:
    """A command whose lease ran out without a word: it is asked for, and nothing of it has failed."""
    story = Story(**options).wait(60).hear(Due())
    assert (story.state, story.kinds) == (S.ORPHAN_SUSPECTED, ["stale_running"])
    assert len(story.sent("SettleRequested")) == 1
    assert story.case.instance.status is InstanceStatus.RUNNING
    return story


def test_resume() -> None:
    """RESUME: the worker lives and beats, so its attempt goes on; nobody sends a second one. Requirements: R7"""
    story = orphan()
    attempt = RunningAttempt(command_id=story.row.command_id, tenant="acme", fence=1)
    story.hear(Beaten(attempt, "adapters-1", story.at.real))
    assert (story.state, story.row.lease_owner, story.kinds) == (S.RUNNING, "adapters-1", [])
    assert story.sent("ExecuteTask") == []


def test_retry() -> None:
    """RETRY: nothing happened, which is proved above the orphan's fence; then it is sent again. Requirements: R7"""
    story = orphan()
    fence = story.row.fence + 1
    story.hear(settlement(story.row)).hear(settlement(story.row, FindVerdict.MISSING, fence=fence))
    assert story.state is S.RETRY_PENDING
    assert story.row.fence >= fence


def test_success() -> None:
    """SUCCESS: it happened before the worker died; the looked-up effect is the result. Requirements: R7"""
    story = orphan()
    story.hear(settlement(story.row)).hear(settlement(story.row, FindVerdict.CONFIRMED))
    assert (story.state, story.kinds, story.row.receipt) == (S.SUCCESS, [], {"page_id": "42"})


def test_repair() -> None:
    """REPAIR: it happened, and what it was for is not there any more: a drift with its repair. Requirements: R7, R3"""
    story = orphan(decl=MENDED)
    looked = settlement(story.row, FindVerdict.CONFIRMED)
    finding: Finding = looked.finding.evolve(observations=(OTHER_VALUE,))  # type: ignore[union-attr]
    story.hear(settlement(story.row)).hear(looked.evolve(finding=finding))
    assert (story.state, story.case.instance.status) == (S.SUCCESS, InstanceStatus.VERIFYING)
    (told,) = (Established.model_validate_json(item.data) for item in story.sent("Established"))
    (item,) = told.elements
    assert not item.verified
    row = drift.establish(None, told, item, now=told.established_at).row
    (due,) = visit.plan([row], {}, visit.Pace(), told.established_at).elements
    turned = drift.observe(due.evolve(window_until=NOW), OTHER_VALUE, now=told.established_at, terms=Terms())
    assert turned.row.stage is Stage.AUTO_REPAIR
    assert turned.opened is not None
    assert turned.opened.envelope["repair"]["command_type"] == "site.create_page"
    assert turned.opened.envelope["repair"]["supersedes"] == story.row.command_id


@pytest.mark.parametrize("verdict", [FindVerdict.UNKNOWN, FindVerdict.AMBIGUOUS])
def test_manual(verdict: FindVerdict) -> None:
    """MANUAL: nobody can tell, so a person settles it; nothing is sent again. Requirements: R7, E3"""
    story = orphan()
    story.hear(settlement(story.row)).hear(settlement(story.row, verdict, candidates=2))
    assert (story.state, story.case.instance.status) == (S.NEEDS_REVIEW, InstanceStatus.HUMAN_TAKEOVER)
    assert "needs_review" in story.kinds
    assert story.sent("ExecuteTask") == []
