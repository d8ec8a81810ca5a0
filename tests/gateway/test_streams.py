"""Streams of long cases: resumable, bounded, quiet towards the database, and closed by their end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.gateway.asks import OPERATOR, changed, running_case
from tests.gateway.edge import EdgeUnderTest
from tests.gateway.test_refusals import problem
from tests.patience import PATIENCE_SECONDS

from trueup_common.contracts import history
from trueup_common.contracts.journal import HistoryEvent, InstanceRow
from trueup_common.contracts.states import InstanceStatus
from trueup_common.runtime.clock import real_now
from trueup_gateway import watching
from trueup_gateway.api import streams
from trueup_gateway.tokens import Caller

VIEWER_CALLER = Caller("operator:eye", "acme", ("viewer",), (), 0, 0)


def facts(instance: InstanceRow, count: int) -> list[HistoryEvent]:
    found: list[HistoryEvent] = []
    for seq in range(1, count + 1):
        found.append(
            history.append(
                workflow_id=instance.workflow_id,
                tenant=instance.tenant,
                seq=seq,
                type=f"Fact{seq}",
                actor="orchestrator",
                prev_hash=found[-1].hash if found else history.GENESIS,
                occurred_at=real_now(),
                recorded_at=real_now(),
                payload={"seq": seq},
            )
        )
    return found


async def parts(source: AsyncIterator[bytes], count: int) -> list[dict[str, Any]]:
    """The next events of a stream, without its comments."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for chunk in source:
            fields = dict(line.split(": ", 1) for line in chunk.decode().splitlines() if line and line[0] != ":")
            if "event" in fields:
                found.append({"event": fields["event"], "id": fields.get("id"), "data": json.loads(fields["data"])})
            if len(found) == count:
                break
    return found


async def test_a_case_is_followed_step_by_step(gateway: EdgeUnderTest) -> None:
    """Facts with their number as id, the whole case at each change, and the end; then nothing more.

    Requirements: L7
    """
    instance = await running_case(gateway, wait={"reason": "approval", "expects": "person"})
    first, second, third = facts(instance, 3)
    with gateway.gateway.watch.following(instance.workflow_id, "me") as follower:
        source = streams._follow(gateway.gateway, VIEWER_CALLER, follower, 0)
        (state,) = await parts(source, 1)
        assert (state["event"], state["data"]["status"]) == ("state", "WAITING")
        newer = await changed(gateway, instance, first, second, status=InstanceStatus.RUNNING)
        seen = await parts(source, 3)
        assert [(part["event"], part["id"]) for part in seen] == [("history", "1"), ("history", "2"), ("state", None)]
        assert seen[-1]["data"]["status"] == "RUNNING" and seen[0]["data"]["type"] == "Fact1"
        await changed(gateway, newer, third, status=InstanceStatus.CLOSED, closed_at=real_now())
        seen = await parts(source, 10)
        assert [part["event"] for part in seen] == ["history", "state", "end"]


async def test_a_stream_goes_on_where_it_was_cut(gateway: EdgeUnderTest) -> None:
    """Last-Event-ID leaves out what was seen, and nothing else.

    Requirements: L7
    """
    instance = await running_case(gateway)
    await changed(gateway, instance, *facts(instance, 5), status=InstanceStatus.CLOSED, closed_at=real_now())
    url = f"/v1/workflows/{instance.workflow_id}/stream"
    for last, expected in (("2", ["3", "4", "5"]), ("5", []), ("nonsense", ["1", "2", "3", "4", "5"])):
        response = await gateway.client.get(url, headers={**gateway.headers(), "Last-Event-ID": last})
        assert response.headers["content-type"].startswith("text/event-stream")
        ids = [line.removeprefix("id: ") for line in response.text.splitlines() if line.startswith("id: ")]
        assert ids == expected and response.text.rstrip().endswith('{"status":"CLOSED"}')
    assert gateway.gateway.watch.followers_count == 0


async def test_facts_that_come_out_of_order_are_shown_in_order(gateway: EdgeUnderTest) -> None:
    """The end is told before an earlier fact: neither history nor stream skips it, and the stream ends after it.

    Requirements: L4, M2
    """
    instance = await running_case(gateway)
    first, second, third = facts(instance, 3)
    before = await changed(gateway, instance, first, history_seq=1)
    after = before.evolve(state_version=before.state_version + 1, history_seq=2)
    await changed(gateway, after, third, history_seq=3, status=InstanceStatus.CLOSED, closed_at=real_now())
    url = f"/v1/workflows/{instance.workflow_id}/history"
    shown = (await gateway.client.get(url, headers=gateway.headers())).json()["items"]
    assert [event["seq"] for event in shown] == [1]
    with gateway.gateway.watch.following(instance.workflow_id, "me") as follower:
        source = streams._follow(gateway.gateway, VIEWER_CALLER, follower, 0)
        seen = await parts(source, 2)
        assert [(part["event"], part["id"]) for part in seen] == [("history", "1"), ("state", None)]
        await changed(gateway, before, second, history_seq=2)
        seen = await parts(source, 3)
    assert [(part["event"], part["id"]) for part in seen] == [("history", "2"), ("history", "3"), ("end", None)]


async def test_many_streams_are_one_look(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many follow, a look is one statement, and only those whose case moved read it.

    Requirements: L7
    """
    reads = gateway.gateway.reads
    watch = watching.CaseWatch(reads)
    moved, still = await running_case(gateway), await running_case(gateway)
    looked: list[int] = []
    marks = reads.case_marks

    async def counted(names: Any) -> Any:
        looked.append(len(names))
        return await marks(names)

    monkeypatch.setattr(reads, "case_marks", counted)
    with (
        watch.following(moved.workflow_id, "a") as one,
        watch.following(moved.workflow_id, "b") as two,
        watch.following(still.workflow_id, "c") as other,
    ):
        await watch.look()
        assert [await follower.moved(0.01) for follower in (one, two, other)] == [True, True, True]
        await changed(gateway, moved, status=InstanceStatus.RUNNING)
        await watch.look()
        assert [await follower.moved(0.01) for follower in (one, two, other)] == [True, True, False]
    assert looked == [2, 2]
    await watch.look()
    assert looked == [2, 2], "nobody follows, and still it looks"


async def test_the_number_of_streams_is_bounded(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound of one caller a stream is refused with 429, beyond that of the replica with 503 and a time to
    come back; a place that is given back is free again.

    Requirements: L7
    """
    monkeypatch.setattr(watching, "FOLLOWERS_OF_ONE_MAX", 1)
    instance = await running_case(gateway, status=InstanceStatus.CLOSED, closed_at=real_now())
    url = f"/v1/workflows/{instance.workflow_id}/stream"
    with gateway.gateway.watch.following(instance.workflow_id, "acme/agent:publisher"):
        problem(await gateway.client.get(url, headers=gateway.headers()), 429, "rate-limited")
        assert (await gateway.client.get(url, headers=gateway.headers(**OPERATOR))).status_code == 200
    monkeypatch.setattr(watching, "FOLLOWERS_MAX", 1)
    with gateway.gateway.watch.following(instance.workflow_id, "acme/agent:publisher"):
        full = await gateway.client.get(url, headers=gateway.headers(**OPERATOR))
        problem(full, 503, "unavailable")
        assert int(full.headers["retry-after"]) > 0
    assert (await gateway.client.get(url, headers=gateway.headers())).status_code == 200
    problem(await gateway.client.get(url, headers=gateway.headers(tenant="globex")), 404, "not-found")


async def test_a_client_who_does_not_read_is_cut(gateway: EdgeUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream whose client takes nothing gives its place back.

    Requirements: L7
    """
    monkeypatch.setattr(streams, "SEND_SECONDS_MAX", 0.05)
    instance = await running_case(gateway)
    from contextlib import ExitStack

    place = ExitStack()
    follower = place.enter_context(gateway.gateway.watch.following(instance.workflow_id, "me"))
    response = streams.EventStream(streams._follow(gateway.gateway, VIEWER_CALLER, follower, 0), place)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with asyncio.timeout(PATIENCE_SECONDS):
        await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    assert gateway.gateway.watch.followers_count == 0
