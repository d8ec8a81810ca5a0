"""What a site does to its callers on bad days: maintenance, plugins that die, posts that come back from the trash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.adapters.worlds import WordPressWorld, open_world
from tests.real.sharing import KINDS
from tests.real.wordpress_world import RealWordPressWorld, open_real
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.testing.adapter_conformance import Bench

CREATE = "wordpress.create_draft"
TRASH = "wordpress.trash_post"
BUSY = {"headers": {"retry-after": "600", "content-type": "text/html"}, "body": "<h1>Briefly unavailable</h1>"}


@pytest_asyncio.fixture(params=KINDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WordPressWorld]:
    if request.param == "sandbox":
        async with open_world(WordPressWorld, tmp_path) as world:
            yield world
        return
    async with open_real(request.getfixturevalue("wordpress_server"), tmp_path) as world:
        yield world


async def order(world: WordPressWorld, do: str, **more: Any) -> None:
    assert isinstance(world, RealWordPressWorld)
    await asyncio.to_thread(world.server.order, do, **more)


@pytest.mark.parametrize("command_type", [CREATE, TRASH])
async def test_a_site_in_maintenance_is_asked_again_later(world: WordPressWorld, command_type: str) -> None:
    """503 with its own time to come back: known not to have happened, nothing is missing, and afterwards it is done.

    Requirements: X5, E4
    """
    bench = await Bench.set_up(world, command_type)
    is_real = isinstance(world, RealWordPressWorld)
    if is_real:
        await order(world, "maintenance", on=True)
    else:
        await world.fault("status", {"status": 503, **BUSY}, times=9)
    try:
        outcome = await bench.perform()
        finding = await bench.find()
    finally:
        await (order(world, "maintenance", on=False) if is_real else world.heal())
    assert (outcome.status, outcome.error_class) == (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT), outcome
    assert outcome.retry_after_seconds == 600
    assert bench.sending.sends_count == 0
    assert finding.verdict is FindVerdict.UNKNOWN, finding
    assert await world.effects_count() == 0
    assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
    await bench.target.close()


async def test_a_plugin_that_dies_after_the_post_was_stored(world: WordPressWorld) -> None:
    """A page about a critical error instead of an answer; the post is there, and its marker says whose it is.

    Requirements: X4, X6, E3
    """
    bench = await Bench.set_up(world, CREATE)
    if isinstance(world, RealWordPressWorld):
        await order(world, "break", when="after")
    else:
        await world.answer_unreadably()
    outcome = await bench.perform()
    assert outcome.status is ReceiptStatus.UNKNOWN, outcome
    finding = await bench.find()
    assert (finding.verdict, finding.evidence) == (FindVerdict.CONFIRMED, "marker"), finding
    assert await world.effects_count() == 1
    await bench.target.close()


async def test_a_plugin_that_dies_while_looking_proves_nothing(world: WordPressWorld) -> None:
    """Requirements: E4. An error page is no empty list."""
    bench = await Bench.set_up(world, CREATE)
    if isinstance(world, RealWordPressWorld):
        await order(world, "break", when="before")
    else:
        await world.fault("status", {"status": 500, "body": "<p>critical error</p>"}, method="GET")
    finding = await bench.find()
    assert (finding.verdict, finding.proof_of_access) == (FindVerdict.UNKNOWN, False), finding
    assert (await bench.find()).verdict is FindVerdict.MISSING
    await bench.target.close()


async def test_what_a_person_takes_out_of_the_trash_is_seen(world: WordPressWorld) -> None:
    """Restored, the slug is the old one again; the probe shows the status, and the trashing is not done any more.

    Requirements: R8, E3
    """
    made = await Bench.set_up(world, CREATE)
    created = (await made.perform()).result
    assert created is not None
    trash = await Bench.set_up(world, TRASH, made.target)
    trash.operation = trash.operation.evolve(payload={"post_id": created["post_id"]})
    outcome = await trash.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    assert (await world.posts())[created["post_id"]]["slug"] == f"{created['slug']}__trashed"
    assert (await made.find()).verdict is FindVerdict.CONFIRMED, "it was done, and then put into the trash"
    answer = await made.target.change(  # type: ignore[attr-defined]
        "POST", f"/posts/{created['post_id']}", {"status": "draft"}, _Call()
    )
    assert answer.status == 200
    assert (await world.posts())[created["post_id"]]["slug"] == created["slug"]
    seen = {item.element: item for item in await made.probe(created)}
    assert (seen["wordpress.status"].verdict, seen["wordpress.status"].value) == (ProbeVerdict.CONFIRMED, "draft")
    assert (await trash.find()).verdict is FindVerdict.MISSING
    await made.target.close()


class _Call:
    """What a write asks of its caller."""

    traceparent = None

    @staticmethod
    def may_send() -> None:
        """Always."""
