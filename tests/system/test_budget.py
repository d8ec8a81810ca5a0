"""The budget of one command, counted on the real plane: a slow growth of commits or messages fails here first."""

import pytest_asyncio
from bench.budget import Budget, CountedPlane, Signatures

COMMANDS = 50
OWN_COMMITS = 6
"""The seventh of the budget is the share in marking outboxes, which commands of the same half second have in common."""
PUBLISHES_MAX = 4
DELIVERIES_MAX = 5
SENDERS = 4
MARKS_PER_SECOND = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counted() -> tuple[Signatures, Budget]:
    """One plane, one run of commands; every test reads the same counts."""
    async with CountedPlane() as plane:
        return await plane.signatures_of_authorizing(), await plane.count(COMMANDS)


def test_every_command_had_its_one_effect(counted: tuple[Signatures, Budget]) -> None:
    """The counted commands did the whole unit of work: each caused exactly one effect in the world."""
    _, budget = counted
    assert budget.effects == COMMANDS


def test_commits_of_one_command(counted: tuple[Signatures, Budget]) -> None:
    """At concurrency 1, where nothing is batched, one command costs six commits of its own in all five services.

    Counted to the whole, because the idle plane's own commits, which are subtracted, come in portions of a few; one
    commit more per command is fifty more here. Marking outboxes is bounded by time and not by commands: so slow a
    machine that each command has a tick to itself makes more marks per command, but never more than its ticks.
    """
    _, budget = counted
    assert round(budget.per_command(budget.commits - budget.marks)) == OWN_COMMITS, str(budget)
    assert budget.marks <= SENDERS * (budget.seconds * MARKS_PER_SECOND + 2), str(budget)


def test_publishes_and_deliveries_of_one_command(counted: tuple[Signatures, Budget]) -> None:
    """Four confirmed publishes and five deliveries, the answer to the waiting client among them; none is repeated.

    Progress, which only slow commands tell, may be lost and is counted apart: at most one message per command.
    """
    _, budget = counted
    assert 0 < budget.per_command(budget.posted) <= PUBLISHES_MAX, str(budget)
    assert 0 < budget.per_command(budget.deliveries - budget.progress) <= DELIVERIES_MAX, str(budget)
    assert budget.per_command(budget.answers) <= 1, str(budget)
    assert 0 <= budget.per_command(budget.progress) <= 1, str(budget)
    assert budget.publishes == budget.posted + budget.progress, str(budget)


def test_signatures_of_one_command(counted: tuple[Signatures, Budget]) -> None:
    """Commands sign nothing with Ed25519, and a capability that was verified once is not verified again.

    The capability itself was signed under the same counter, so a zero is not a blind counter.
    """
    authorizing, budget = counted
    assert authorizing.signed >= 1
    assert budget.signatures.signed == 0, str(budget)
    assert budget.signatures.verified <= 1, str(budget)
