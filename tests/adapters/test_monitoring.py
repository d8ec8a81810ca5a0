"""Monitoring: documents that are exact evidence, a page that any replica answers, and a Prometheus that is believed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import pytest_asyncio
from tests.adapters.monitoring_world import MonitoringWorld, open_monitoring
from tests.patience import PATIENCE_SECONDS
from tests.servers import Database as ServerDatabase

from trueup_adapters.execution import Line
from trueup_adapters.store import SqlDocuments
from trueup_adapters.systems import monitoring
from trueup_adapters.systems.monitoring import (
    ABSENT,
    COMMANDS,
    ELEMENT,
    PRESENT,
    MonitoringTarget,
    active_targets,
    check_id_of,
    is_young,
)
from trueup_common.contracts.adapter import Connection, Discoverable, Document, DocumentsAway, SlotLost
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.pointer import fill, take
from trueup_common.contracts.states import EffectClass, ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.contracts.task import ProbeElement
from trueup_common.runtime.db import Database
from trueup_common.testing.adapter_conformance import Bench, Case

REGISTER = "monitoring.register_check"
REMOVE = "monitoring.remove_check"
CONTENT = {"url": "https://blog.example/a/", "expect": {"status": 200}, "interval_seconds": 60}


@pytest_asyncio.fixture
async def world(tmp_path: Path, documents_database: ServerDatabase) -> AsyncIterator[MonitoringWorld]:
    async with open_monitoring(tmp_path, documents_database) as world:
        yield world


@pytest_asyncio.fixture
async def documents(documents_database: ServerDatabase) -> AsyncIterator[SqlDocuments]:
    database = await Database.connect(documents_database.admin_url, schema="adapters", size=4)
    async with database.connection() as connection:
        await connection.execute("TRUNCATE document")
    yield SqlDocuments(database, "acme", "monitoring")
    await database.close()


def may() -> None:
    """Always."""


def declared(command_type: str) -> Any:
    return next(item.declaration for item in COMMANDS if item.declaration.type == command_type)


async def remove(world: MonitoringWorld, target: Any, payload: dict[str, Any]) -> Bench:
    return Bench(world, declared(REMOVE), target, Case(resource="check", payload=payload))


async def registered(world: MonitoringWorld) -> tuple[Bench, dict[str, Any]]:
    bench = await Bench.set_up(world, REGISTER)
    outcome = await bench.perform()
    assert outcome.result is not None
    return bench, outcome.result


async def effects(world: MonitoringWorld) -> list[tuple[str, str]]:
    await world.prometheus.refresh()
    return [(item["object"], item["action"]) for item in await world.effects()]


# -- documents ----------------------------------------------------------------------------------------------------


async def test_a_document_is_found_by_the_operation_that_put_or_removed_it(documents: SqlDocuments) -> None:
    """Requirements: E3. The operation id is the native key, for good: also after the removal and a successor."""
    made = await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may)
    assert made == Document("a", "cmd_1", CONTENT)
    assert await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may) == made
    assert await documents.get("a") == await documents.made_by("cmd_1") == made
    assert (await documents.remove(made, operation_id="cmd_2", may_send=may)).removed_by == "cmd_2"
    successor = await documents.put("a", CONTENT, operation_id="cmd_3", may_send=may)
    # Who removes the first one again, or puts it again, hears how it ended and does nothing to its successor.
    assert (await documents.remove(made, operation_id="cmd_4", may_send=may)).removed_by == "cmd_2"
    assert (await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may)).removed_by == "cmd_2"
    assert [item.operation_id for item in await documents.standing()] == ["cmd_3"]
    assert (await documents.made_by("cmd_1")) == await documents.removed_by("cmd_2")
    assert await documents.removed_by("cmd_4") is None
    assert await documents.get("a") == successor


async def test_one_of_many_gets_the_key(documents: SqlDocuments) -> None:
    """Requirements: X4. Twenty operations want one key at the same moment: one document stands, and all hear whose."""
    found = await asyncio.gather(
        *(documents.put("a", CONTENT, operation_id=f"cmd_{n}", may_send=may) for n in range(20))
    )
    assert len({item.operation_id for item in found}) == 1
    assert len(await documents.standing()) == 1


async def test_documents_of_another_tenant_or_system_are_not_there(documents: SqlDocuments) -> None:
    """Requirements: T1. Neither listed, nor found, nor removed, and the same key is free for everyone."""
    made = await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may)
    for whose in (("globex", "monitoring"), ("acme", "other")):
        others = SqlDocuments(documents._database, *whose)
        assert await others.standing() == []
        assert await others.get("a") is await others.made_by("cmd_1") is None
        with pytest.raises(DocumentsAway):
            await others.remove(made, operation_id="cmd_2", may_send=may)
        assert (await others.put("a", CONTENT, operation_id=new_id("cmd"), may_send=may)).key == "a"
    assert (await documents.get("a")) == made


async def test_a_lost_slot_leaves_no_document(documents: SqlDocuments) -> None:
    """Requirements: E5. `may_send` is the last thing before the statement, and what it raises goes through."""

    def lost() -> None:
        raise SlotLost

    with pytest.raises(SlotLost):
        await documents.put("a", CONTENT, operation_id="cmd_1", may_send=lost)
    assert await documents.standing() == []


@pytest.mark.parametrize("sent", [False, True])
async def test_a_killed_session_says_whether_the_change_may_stand(
    documents_database: ServerDatabase, documents: SqlDocuments, sent: bool
) -> None:
    """Requirements: X4. Before `may_send` nothing happened; after it only looking can tell."""
    if not sent:
        await documents._database.close()
        with pytest.raises(DocumentsAway) as away:
            await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may)
    else:
        killer = await Database.connect(documents_database.admin_url, schema="adapters", size=2, application="killer")

        async def put() -> None:
            await documents.put("a", CONTENT, operation_id="cmd_1", may_send=may)

        # The row is held by an open transaction, so the statement is under way when its session dies.
        async with killer.pool.acquire() as connection:
            holder = connection.transaction()
            await holder.start()
            await connection.execute(
                "INSERT INTO document (tenant, system, operation_id, key, content, created_at)"
                " VALUES ('acme', 'monitoring', 'cmd_0', 'a', '{}', now())"
            )
            task = asyncio.create_task(put())
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await connection.fetchval(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND application_name = 'trueup' AND query LIKE '%document%'"
                ):
                    await asyncio.sleep(0.01)
            with pytest.raises(DocumentsAway) as away:
                await task
            await holder.rollback()
        assert await documents.get("a") is None
        await killer.close()
    assert away.value.sent is sent


# -- commands -----------------------------------------------------------------------------------------------------


async def test_one_check_is_one_effect_and_carries_what_was_ordered(world: MonitoringWorld) -> None:
    """Requirements: E1. Registered once, discovered once, and listed under the operation's own id."""
    bench, receipt = await registered(world)
    check_id = check_id_of(bench.operation.command_id)
    assert receipt == {
        "check_id": check_id,
        "name": "article-1",
        "url": bench.operation.payload["url"],
        "resource": f"check/{bench.operation.payload['name']}",
        "registered": {"check_id": check_id, "url": bench.operation.payload["url"]},
    }
    assert await effects(world) == [(f"acme/{check_id}", "create")]
    assert (await bench.perform()).result == receipt
    assert await effects(world) == [(f"acme/{check_id}", "create")]
    async with world.http.get(f"{world.connection.settings['base_url']}/api/v1/targets?state=active") as answer:
        (target,) = (await answer.json())["data"]["activeTargets"]
    assert target["labels"] == {
        "instance": receipt["url"],
        "job": "trueup",
        "trueup_check": "article-1",
        "trueup_check_id": check_id,
        "trueup_tenant": "acme",
    }
    discovered = target["discoveredLabels"]
    assert (discovered["__param_target"], discovered["__param_module"]) == (receipt["url"], "http_2xx")
    assert (discovered["__scrape_interval__"], discovered["__scrape_timeout__"]) == ("60s", "10s")
    assert discovered["__meta_trueup_expect_contains"] == "Größe"
    await bench.target.close()


async def test_a_name_belongs_to_the_check_that_holds_it(world: MonitoringWorld) -> None:
    """Requirements: X4. A foreign check under the name is a conflict, also where it came between look and write."""
    first, receipt = await registered(world)
    second = Bench(world, declared(REGISTER), first.target, Case("check", first.operation.payload))
    outcome = await second.perform()
    assert (outcome.status, outcome.error_class, outcome.error_code) == (
        ReceiptStatus.REJECTED, ErrorClass.BUSINESS, "foreign_object",
    )  # fmt: skip
    assert receipt["check_id"] in (outcome.error_detail or "")
    assert second.sending.sends_count == 0
    raced = Bench(world, declared(REGISTER), first.target, Case("check", {**first.operation.payload, "name": "raced"}))
    inner = world.documents.inner

    async def too_late(key: str) -> None:
        await inner.put("raced", CONTENT, operation_id=new_id("cmd"), may_send=may)

    world.documents.get = too_late  # type: ignore[method-assign]
    outcome = await raced.perform()
    assert (outcome.error_code, raced.sending.sends_count) == ("foreign_object", 1)
    assert (await raced.find()).verdict is FindVerdict.MISSING
    await first.target.close()


async def test_undoing_removes_this_check_and_no_successor_under_its_name(world: MonitoringWorld) -> None:
    """Requirements: S1, S4. The compensation that the declaration maps names the check, not its name."""
    first, receipt = await registered(world)
    mapping = declared(REGISTER).compensation
    assert mapping is not None
    payload = fill({"receipt": receipt}, mapping.payload)
    assert (mapping.command_type, payload) == (REMOVE, {"check_id": receipt["check_id"]})
    assert jsonschema_rs.is_valid(declared(REMOVE).payload_schema, payload)
    await effects(world)
    undo = await remove(world, first.target, payload)
    done = await undo.perform()
    assert (done.status, undo.sending.sends_count) == (ReceiptStatus.CONFIRMED, 1)
    successor = Bench(world, declared(REGISTER), first.target, Case("check", first.operation.payload))
    assert (await successor.perform()).status is ReceiptStatus.CONFIRMED
    again = await remove(world, first.target, payload)
    assert (await again.find()).verdict is FindVerdict.CONFIRMED
    assert (await again.perform()).status is ReceiptStatus.CONFIRMED
    assert again.sending.sends_count == 0
    assert await world.documents.get(first.operation.payload["name"]) is not None
    assert [action for _, action in await effects(world)] == ["create", "create", "remove"]
    # The first registration did happen, whatever became of it.
    assert (await first.find()).verdict is FindVerdict.CONFIRMED
    await first.target.close()


async def test_a_check_registered_again_takes_the_place_of_the_silenced_one(world: MonitoringWorld) -> None:
    """Requirements: R3, S3. One check under the same name; undoing the first one takes away its successor."""
    bench, receipt = await registered(world)
    await effects(world)
    await world.tamper(f"acme/{receipt['check_id']}", {"delete": True})
    payload = fill({"payload": bench.operation.payload, "receipt": receipt}, bench.declaration.repair.payload)
    assert payload["replaces"] == receipt["check_id"]
    again = Bench(world, declared(REGISTER), bench.target, Case(resource="check", payload=payload))
    outcome = await again.perform()
    assert outcome.status is ReceiptStatus.CONFIRMED
    assert outcome.result is not None
    assert outcome.result["resource"] == receipt["resource"]
    (standing,) = await world.documents.standing()
    assert (standing.key, check_id_of(standing.operation_id)) == (payload["name"], outcome.result["check_id"])
    assert (await again.perform()).result == outcome.result, "once"
    (seen,) = await again.probe(outcome.result)
    await effects(world)
    (seen,) = await again.probe(outcome.result)
    assert seen.value == outcome.result["registered"]
    undone = await (await remove(world, bench.target, {"check_id": receipt["check_id"]})).perform()
    assert undone.status is ReceiptStatus.CONFIRMED
    assert await world.documents.standing() == []


async def test_a_survey_lists_the_checks_of_this_tenant_that_are_watched(world: MonitoringWorld) -> None:
    """Requirements: R10. What Prometheus lists, whatever the documents say, and nothing of another tenant."""
    bench, receipt = await registered(world)
    await effects(world)
    page = await bench.target.survey(None, {})  # type: ignore[attr-defined]
    assert [(mark.operation_id, mark.external_resource_id) for mark in page.marks] == [
        (bench.operation.command_id, receipt["check_id"])
    ]
    assert page.next_cursor is None
    other = replace(world.connection, tenant="globex")
    foreign = world.adapter.open(other)
    assert (await foreign.survey(None, {})).marks == ()  # type: ignore[attr-defined]
    await foreign.close()


async def test_a_repair_replaces_no_other_check(world: MonitoringWorld) -> None:
    """Requirements: R3, R9. The name is somebody else's by now: two owners, and a person decides."""
    bench, receipt = await registered(world)
    await (await remove(world, bench.target, {"check_id": receipt["check_id"]})).perform()
    other = Bench(world, declared(REGISTER), bench.target, Case(resource="check", payload=bench.operation.payload))
    assert (await other.perform()).status is ReceiptStatus.CONFIRMED
    payload = {**bench.operation.payload, "replaces": receipt["check_id"]}
    outcome = await Bench(world, declared(REGISTER), bench.target, Case(resource="check", payload=payload)).perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.REJECTED, "foreign_object")
    assert [item.operation_id for item in await world.documents.standing()] == [other.operation.command_id]


@pytest.mark.parametrize("payload", [{"check_id": "chk_unknown"}, {"name": "unknown"}])
async def test_what_was_never_there_cannot_be_removed(world: MonitoringWorld, payload: dict[str, Any]) -> None:
    """Requirements: X5. A removal without an object is a mistake of the caller, and sends nothing."""
    target = world.adapter.open(world.connection)
    bench = await remove(world, target, payload)
    assert (await bench.find()).verdict is FindVerdict.MISSING
    outcome = await bench.perform()
    assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "not_found")
    assert bench.sending.sends_count == 0
    await target.close()


async def test_a_private_address_is_watched_only_where_that_is_allowed(world: MonitoringWorld) -> None:
    """Requirements: T3. What an agent names must not make the monitoring system call into a private network."""
    strict = replace(world.connection, allow_private_network=False, settings={"base_url": "https://prometheus.example"})
    target = world.adapter.open(strict)
    for url in ("http://127.0.0.1:9/x", "http://10.0.0.1/", "http://[::1]:80/", "http://localhost/", "http://0x7f.1/"):
        bench = await Bench.set_up(world, REGISTER, target)
        bench.operation = bench.operation.evolve(payload={**bench.operation.payload, "url": url})
        outcome = await bench.perform()
        assert (outcome.error_class, outcome.error_code) == (ErrorClass.PERMANENT, "address_refused"), url
    assert await world.documents.standing() == []
    await target.close()


@pytest.mark.parametrize(
    ("change", "valid"),
    [
        ({}, True),
        ({"url": "https://blog.example"}, True),
        ({"url": "https://[2001:db8::1]:8443/a?b=c#d"}, True),
        ({"url": "ftp://blog.example/"}, False),
        ({"url": "https://user:secret@blog.example/"}, False),
        ({"url": "https://blog.example/a b"}, False),
        ({"url": "https://blog.example/\u0000"}, False),
        ({"url": "https:///a"}, False),
        ({"name": ""}, False),
        ({"name": "a b"}, False),
        ({"name": "articles/green-trueup_1.0"}, True),
        ({"expect": {}}, False),
        ({"expect": {"status": 99}}, False),
        ({"expect": {"status": 200, "contains": "x\u0000"}}, False),
        ({"expect": {"status": 200, "contains": "Größe & mehr"}}, True),
        ({"expect": {"status": 200, "regex": "x"}}, False),
        ({"interval_seconds": 4}, False),
        ({"interval_seconds": 60.5}, False),
        ({"surprise": 1}, False),
    ],
)
def test_payloads_are_closed(change: dict[str, Any], valid: bool) -> None:
    """Requirements: X8. What the monitoring system could not use, or would leak, is refused before anything happens."""
    payload = {"name": "article", **CONTENT, **change}
    assert jsonschema_rs.is_valid(declared(REGISTER).payload_schema, payload) is valid


def test_the_declarations_say_what_undoes_them() -> None:
    """Requirements: S1, S2. Both may be repeated; what registering did is undone by removing."""
    assert [item.declaration.effect_class for item in COMMANDS] == [EffectClass.RETRYABLE, EffectClass.RETRYABLE]
    both = {"check_id": "chk_1", "name": "a"}
    schema = declared(REMOVE).payload_schema
    assert not jsonschema_rs.is_valid(schema, both) and not jsonschema_rs.is_valid(schema, {})
    document = {"receipt": {"resource": "check/a", "check_id": "chk_1", "registered": {"check_id": "chk_1"}}}
    resources = {take(document, item.declaration.establishes[0].resource) for item in COMMANDS}
    assert resources == {"check/a"}, "the removal takes over the very element that the registration owned"


def test_the_adapter_needs_a_place_for_its_checks() -> None:
    with pytest.raises(ValueError, match="no place"):
        monitoring.ADAPTER.open(Connection("acme", "monitoring", {"base_url": "https://prometheus.example"}))


# -- observing ----------------------------------------------------------------------------------------------------


def element(check_id: str, kind: str = PRESENT) -> ProbeElement:
    return ProbeElement(element=ELEMENT, kind=kind, params={"check_id": check_id})


async def test_registered_is_what_prometheus_says_and_not_what_was_written(world: MonitoringWorld) -> None:
    """Requirements: R1, R8. Before it asks the check is missing, then it is there, then an outsider silences it."""
    page = dict(world.lines)
    world.lines.clear()  # nobody answers Prometheus yet
    bench, receipt = await registered(world)
    check_id = receipt["check_id"]
    await world.prometheus.refresh()
    (before,) = await bench.target.probe([element(check_id)])
    assert (before.verdict, before.proof_of_access) == (ProbeVerdict.MISSING, True)
    world.lines.update(page)
    await world.prometheus.refresh()
    (seen, gone) = await bench.target.probe([element(check_id), element(check_id, ABSENT)])
    assert (seen.verdict, seen.value, seen.version) == (
        ProbeVerdict.CONFIRMED, {"check_id": check_id, "url": receipt["url"]}, "health:unknown",
    )  # fmt: skip
    assert gone.value == seen.value != "removed"
    await world.tamper(f"acme/{check_id}", {"health": "down", "url": "https://elsewhere.example/"})
    (seen,) = await bench.target.probe([element(check_id)])
    assert (seen.value["url"], seen.version) == ("https://elsewhere.example/", "health:down")
    await world.tamper("acme/article-1", {"delete": True})
    (seen, gone) = await bench.target.probe([element(check_id), element(check_id, ABSENT)])
    assert (seen.verdict, seen.proof_of_access) == (ProbeVerdict.MISSING, True)
    assert (gone.verdict, gone.value) == (ProbeVerdict.CONFIRMED, "removed")
    await bench.target.close()


@pytest.mark.parametrize(
    ("fault", "params", "reason"),
    [
        ("status", {"status": 503}, "unavailable"),
        ("status", {"status": 500}, "target_failed"),
        ("status", {"status": 403, "body": {"error": "no"}}, "forbidden"),
        ("body", {"headers": {"content-type": "text/html"}, "body": "<html></html>"}, "answer_unreadable"),
        ("body", {"body": {"status": "error", "errorType": "timeout"}}, "answer_unreadable"),
        ("body", {"body": {"status": "success", "data": {}}}, "answer_unreadable"),
        ("drop_before", {}, "connection_lost"),
        ("deny_reads", {}, "unauthenticated"),
    ],
)
async def test_a_prometheus_that_does_not_answer_leaves_it_open(
    world: MonitoringWorld, fault: str, params: dict[str, Any], reason: str
) -> None:
    """Requirements: E4. Not one of these says that a check is missing."""
    bench, receipt = await registered(world)
    await world.prometheus.refresh()
    await world.fault(fault, params, times=9, method="GET", path="^/api/v1/targets$")
    for kind in (PRESENT, ABSENT):
        (seen,) = await bench.target.probe([element(receipt["check_id"], kind)])
        assert (seen.verdict, seen.reason, seen.proof_of_access) == (ProbeVerdict.UNKNOWN, reason, False)
    await bench.target.close()


async def test_a_prometheus_that_began_lately_proves_no_absence(world: MonitoringWorld) -> None:
    """Requirements: E4, R8. It keeps no list over a restart: until it had time to ask, silence is no drift."""
    bench, receipt = await registered(world)
    await world.prometheus.refresh()
    page = dict(world.lines)
    world.lines.clear()  # and nobody answers it
    await world.tamper("acme/server", {"restart": True})
    for kind in (PRESENT, ABSENT):
        (seen,) = await bench.target.probe([element(receipt["check_id"], kind)])
        assert (seen.verdict, seen.reason, seen.proof_of_access) == (ProbeVerdict.UNKNOWN, "warming_up", False)
    world.lines.update(page)
    await world.prometheus.refresh()
    (seen, other) = await bench.target.probe([element(receipt["check_id"]), element("chk_other")])
    assert (seen.verdict, other.verdict) == (ProbeVerdict.CONFIRMED, ProbeVerdict.UNKNOWN)
    await bench.target.close()


@pytest.mark.parametrize(
    ("status", "body", "verdict", "reason"),
    [
        (404, "404 page not found", ProbeVerdict.MISSING, None),
        (200, {"status": "success", "data": {}}, ProbeVerdict.MISSING, None),
        (200, {"status": "success", "data": None}, ProbeVerdict.MISSING, None),
        (200, "<html></html>", ProbeVerdict.UNKNOWN, "answer_unreadable"),
        (503, "busy", ProbeVerdict.UNKNOWN, "unavailable"),
    ],
)
async def test_who_does_not_tell_when_it_began_is_taken_at_its_word(
    world: MonitoringWorld, status: int, body: Any, verdict: ProbeVerdict, reason: str | None
) -> None:
    """Requirements: E4. Systems compatible with Prometheus may not have that page; one that fails is no proof."""
    target = world.adapter.open(world.connection)
    await world.fault("status", {"status": status, "body": body}, path="runtimeinfo")
    (seen,) = await target.probe([element("chk_other")])
    assert (seen.verdict, seen.reason) == (verdict, reason)
    await target.close()


@pytest.mark.parametrize(
    ("started", "young"),
    [
        ("2026-11-29T19:54:41.35735787Z", True),
        ("2026-11-29T20:54:41.357357870+01:00", True),
        ("2026-11-29T19:53:00Z", False),
        ("yesterday", False),
        ("2026-11-29T19:54:41", False),
        (None, False),
    ],
)
def test_the_age_is_told_by_its_own_clock(started: Any, young: bool) -> None:
    """Nanoseconds and offsets as Go writes them; what cannot be read is no age."""
    assert is_young({"data": {"startTime": started}}, "Sun, 29 Nov 2026 19:55:00 GMT") is young
    assert is_young({"data": {"startTime": started}}, "") is False


def test_only_targets_with_our_label_count() -> None:
    """Targets of others, and what is no target at all, are passed over."""
    ours = {"discoveredLabels": {"trueup_check_id": "chk_1", "__param_target": "u"}, "health": "up"}
    listed = [{"discoveredLabels": {"job": "node"}}, {}, None, {"discoveredLabels": {"trueup_check_id": 5}}, ours]
    assert active_targets({"status": "success", "data": {"activeTargets": listed}}) == {"chk_1": ours}
    broken: Any
    for broken in (None, [], {}, {"status": "success"}, {"status": "success", "data": {"activeTargets": {}}}):
        assert active_targets(broken) is None


@pytest.mark.parametrize(
    ("settings", "header"),
    [
        ({}, None),
        ({"token": "t"}, "Bearer t"),
        ({"token": "t", "read_token": "r"}, "Bearer r"),
        ({"username": "u", "password": "p"}, "Basic dTpw"),
        ({"token": "t", "read_username": "u", "read_password": "p"}, "Basic dTpw"),
    ],
)
async def test_prometheus_is_read_with_the_read_credential(
    world: MonitoringWorld, settings: dict[str, str], header: str | None
) -> None:
    """Requirements: E4. Where both are configured, the other one is never tried."""
    target = world.adapter.open(replace(world.connection, settings={**world.connection.settings, **settings}))
    assert isinstance(target, MonitoringTarget)
    assert target._headers.get("authorization") == header
    await target.close()


# -- the page -----------------------------------------------------------------------------------------------------


async def page(world: MonitoringWorld, token: str | None = "sandbox-discovery-acme", **headers: str) -> Any:
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    async with world.http.get(world.page_url, headers=headers) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_the_page_is_what_prometheus_demands_of_service_discovery(world: MonitoringWorld) -> None:
    """Requirements: E1. 200, JSON, all targets each time, an empty list where there are none; a tag spares the rest."""
    status, headers, body = await page(world)
    assert (status, headers["content-type"], body) == (200, "application/json", b"[]")
    bench, _ = await registered(world)
    _, changed, body = await page(world)
    assert isinstance(bench.target, Discoverable)
    assert changed["etag"] != headers["etag"]
    assert re.fullmatch(rb'\[\{"targets":\["https://[^"]+"\],"labels":\{.*\}\}\]', body)
    status, same, body = await page(world, **{"if-none-match": changed["etag"]})
    assert (status, same["etag"], body) == (304, changed["etag"], b"")
    await bench.target.close()


async def test_the_page_is_closed_to_others(world: MonitoringWorld) -> None:
    """Requirements: T1. No token, a wrong one and an empty one see nothing; a tenant without monitoring has no page."""
    await registered(world)
    for token in (None, "sandbox-discovery-globex", ""):
        status, headers, body = await page(world, token)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert b"article" not in body
    for path in ("/monitoring/globex", "/wordpress/acme", "/monitoring/..%2f"):
        async with world.http.get(world.page_url.removesuffix("/monitoring/acme") + path) as answer:
            assert answer.status == 404


async def test_a_database_that_is_away_is_never_an_empty_list(world: MonitoringWorld) -> None:
    """Requirements: E4. 503, so that Prometheus keeps what it knows; otherwise every check would vanish from it."""
    _, receipt = await registered(world)
    assert [action for _, action in await effects(world)] == ["create"]
    world.documents.away = True
    assert (await page(world))[0] == 503
    assert [action for _, action in await effects(world)] == ["create"]
    world.documents.away = False
    target = world.adapter.open(world.connection)
    (seen,) = await target.probe([element(receipt["check_id"])])
    assert seen.verdict is ProbeVerdict.CONFIRMED
    await target.close()


async def test_every_replica_answers_the_same(world: MonitoringWorld) -> None:
    """Requirements: E1. The list stands in the table, not in the process that was told."""
    await registered(world)
    other = Line(world.connection, world.adapter.open(world.connection))
    mine = world.lines["acme", "monitoring"]
    assert isinstance(other.target, Discoverable) and isinstance(mine.target, Discoverable)
    assert await other.target.discovery() == await mine.target.discovery() != []
    await other.target.close()
