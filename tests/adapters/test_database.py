"""The adapter of a customer's PostgreSQL, against a real server behind a port that fails on command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.adapters.database_world import RECORD, DatabaseWorld, customer_database, open_database
from tests.common.json_values import VALUES
from tests.patience import PATIENCE_SECONDS
from tests.servers import FAST_BUT_FORGETFUL, Database, PostgresServer

from trueup_adapters.systems.database import publications
from trueup_adapters.systems.database.commands import DatabaseAdapter
from trueup_adapters.systems.database.link import lock_key
from trueup_adapters.systems.database.sqlstate import NOT_COMMITTED, classify_sqlstate, classify_tag
from trueup_common.contracts.adapter import Connection, Outcome, SlotLost
from trueup_common.contracts.ids import new_id
from trueup_common.contracts.states import ErrorClass, FindVerdict, ProbeVerdict, ReceiptStatus
from trueup_common.testing.adapter_conformance import Bench, Case, Sending
from trueup_devkit.postgres import PostgresCluster

RECORDING, CANCELLING = "database.record_publication", "database.cancel_publication"


@pytest.fixture(scope="module")
def customer(postgres_server: PostgresServer) -> Iterator[Database]:
    with customer_database(postgres_server) as made:
        yield made


@pytest_asyncio.fixture
async def world(tmp_path: Path, customer: Database) -> AsyncIterator[DatabaseWorld]:
    async with open_database(tmp_path, customer) as made:
        yield made


@asynccontextmanager
async def bench_of(
    world: DatabaseWorld, command_type: str, payload: dict[str, Any] | None = None, connection: Connection | None = None
) -> AsyncIterator[Bench]:
    """One command with a target of its own, as another process would have it."""
    case = Case("publication", payload) if payload is not None else await world.case(command_type)
    declaration = next(item for item in world.adapter.declarations if item.type == command_type)
    bench = Bench(world, declaration, world.adapter.open(connection or world.connection), case)
    try:
        yield bench
    finally:
        await bench.target.close()


async def recorded(world: DatabaseWorld, business_key: str, record: dict[str, Any] | None = None) -> Outcome:
    """One new operation that records this."""
    async with bench_of(world, RECORDING, {"business_key": business_key, "record": record or dict(RECORD)}) as bench:
        return await bench.perform()


async def cancelled(world: DatabaseWorld, business_key: str, record_id: str) -> Outcome:
    """One new operation that cancels this."""
    async with bench_of(world, CANCELLING, {"business_key": business_key, "record_id": record_id}) as bench:
        return await bench.perform()


async def row(world: DatabaseWorld, business_key: str) -> Any:
    """The record as an administrator sees it."""
    found = await world.sql("SELECT * FROM acme.publications WHERE business_key = $1", business_key)
    return found[0] if found else None


async def actions(world: DatabaseWorld, business_key: str) -> list[str]:
    """What really happened to one key."""
    return [item["action"] for item in await world.effects() if item["object"] == f"acme/{business_key}"]


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for a condition of a real process, for a bounded time."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (found := await holds()):
            await asyncio.sleep(0.02)
        return found


def failed(outcome: Outcome) -> tuple[ErrorClass | None, str | None]:
    """Class and code of what is known not to have happened."""
    assert outcome.status is ReceiptStatus.REJECTED, outcome
    return outcome.error_class, outcome.error_code


# -- what an error means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sqlstate", "error_class", "code"),
    [
        ("40001", ErrorClass.TRANSIENT, "serialization_failure"), ("40P01", ErrorClass.TRANSIENT, "deadlock_detected"),
        ("42501", ErrorClass.PERMANENT, "forbidden"), ("28P01", ErrorClass.PERMANENT, "unauthenticated"),
        ("53300", ErrorClass.TRANSIENT, "too_many_connections"), ("57P03", ErrorClass.TRANSIENT, "unavailable"),
        ("25006", ErrorClass.TRANSIENT, "read_only"), ("42P01", ErrorClass.PERMANENT, "schema_missing"),
        ("57P01", ErrorClass.TRANSIENT, "unavailable"), ("XX000", ErrorClass.TRANSIENT, "target_failed"),
        ("55P03", ErrorClass.TRANSIENT, "locked"), ("P0001", ErrorClass.BUSINESS, "refused"),
    ],
)  # fmt: skip
def test_before_commit_every_error_is_known_not_to_have_happened(
    sqlstate: str, error_class: ErrorClass, code: str
) -> None:
    """Requirements: X5. The table says only whether trying again can help."""
    assert failed(classify_sqlstate(sqlstate, "ERROR", commit_left=False)) == (error_class, code)


@example("40001", "FATAL")
@example("23505", "PANIC")
@example("40001", "ERROR")
@example("40003", "ERROR")
@example("57P01", "ERROR")
@given(st.from_regex(r"\A[0-9A-Z]{5}\Z"), st.sampled_from(["ERROR", "FATAL", "PANIC", None]))
def test_after_commit_left_only_a_named_refusal_is_not_done(sqlstate: str, severity: str | None) -> None:
    """Requirements: X4. A session that ends, an internal error and "completion unknown" say nothing."""
    outcome = classify_sqlstate(sqlstate, severity, commit_left=True)
    is_refusal = outcome.status is ReceiptStatus.REJECTED
    assert is_refusal or outcome.status is ReceiptStatus.UNKNOWN
    ends_the_session = severity in ("FATAL", "PANIC") or sqlstate.startswith(("08", "57P", "XX", "58"))
    assert not (is_refusal and (ends_the_session or sqlstate == "40003"))
    if sqlstate.startswith(("40001", "40P01", "23")) and severity == "ERROR":
        assert is_refusal and sqlstate.startswith(NOT_COMMITTED)


def test_commit_answered_with_rollback_is_no_success() -> None:
    """Requirements: X6. PostgreSQL answers COMMIT of a failed transaction with ROLLBACK, and without an error."""
    assert classify_tag("COMMIT") is None
    rolled_back, strange = classify_tag("ROLLBACK"), classify_tag("MERGE 1")
    assert rolled_back is not None and rolled_back.error_class is ErrorClass.TRANSIENT
    assert strange is not None and strange.status is ReceiptStatus.UNKNOWN


# -- COMMIT ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reset", [False, True])
async def test_a_connection_that_dies_behind_commit_has_committed(world: DatabaseWorld, is_reset: bool) -> None:
    """Requirements: X4, E2. The server committed, nobody heard it: unknown, then found with the whole receipt."""
    async with bench_of(world, RECORDING) as bench:
        key = bench.operation.payload["business_key"]
        await world.fault("lose_answer", {"reset": is_reset}, method="COMMIT")
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "connection_lost")
        finding = await bench.find()
        assert finding.verdict is FindVerdict.CONFIRMED and finding.result is not None
        assert finding.result["record_id"] == str((await row(world, key))["record_id"])
        again = await bench.perform()
        assert again.result == finding.result
        assert bench.sending.sends_count == 1, "the marker is there, so nothing is sent a second time"
        assert await actions(world, key) == ["insert"]


async def test_a_connection_that_dies_before_commit_has_not(world: DatabaseWorld) -> None:
    """Requirements: X4, E3. COMMIT never arrived: unknown, then proved absent; the next attempt does it once."""
    async with bench_of(world, RECORDING) as bench:
        key = bench.operation.payload["business_key"]
        await world.fault("drop_before", method="COMMIT")
        assert (await bench.perform()).status is ReceiptStatus.UNKNOWN
        finding = await bench.find()
        assert (finding.verdict, finding.evidence, finding.proof_of_access) == (FindVerdict.MISSING, "native_key", True)
        assert await row(world, key) is None
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        assert await actions(world, key) == ["insert"]


async def test_absence_is_never_claimed_while_commit_is_under_way(world: DatabaseWorld) -> None:
    """Requirements: E4. Client gone, COMMIT still on its way: every look says "in flight" until the record is there."""
    async with bench_of(world, RECORDING) as bench:
        await world.delay(3)
        assert await bench.perform_within(1) is None
        assert bench.sending.sends_count == 1
        said = []

        async def is_found() -> bool:
            finding = await bench.find()
            said.append((finding.verdict, finding.reason))
            return finding.verdict is FindVerdict.CONFIRMED

        await until(is_found)
        assert said[0] == (FindVerdict.UNKNOWN, "in_flight")
        assert {verdict for verdict, _ in said} == {FindVerdict.UNKNOWN, FindVerdict.CONFIRMED}


async def test_a_transaction_that_nobody_ends_keeps_absence_unproved(world: DatabaseWorld) -> None:
    """Requirements: E4. As long as any session holds the operation's lock, its COMMIT may still come."""
    async with bench_of(world, RECORDING) as bench:
        orphan = await asyncpg.connect(str(world.connection.settings["dsn"]))
        await orphan.execute("BEGIN")
        await orphan.execute("SELECT pg_advisory_xact_lock($1)", lock_key(bench.operation.command_id))
        finding = await bench.find()
        assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "in_flight")
        await orphan.execute("ROLLBACK")
        await orphan.close()
        assert (await bench.find()).verdict is FindVerdict.MISSING


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("40001", (ReceiptStatus.REJECTED, ErrorClass.TRANSIENT, "serialization_failure")),
        ("23503", (ReceiptStatus.REJECTED, ErrorClass.PERMANENT, "constraint_violated")),
        ("57P01", (ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "connection_lost")),
        ("40003", (ReceiptStatus.UNKNOWN, ErrorClass.UNKNOWN, "target_failed")),
    ],
)
async def test_an_error_in_answer_to_commit(world: DatabaseWorld, sqlstate: str, expected: tuple[Any, ...]) -> None:
    """Requirements: X4, X5. Some errors say "rolled back"; all others leave it open."""
    async with bench_of(world, RECORDING) as bench:
        await world.fault("status", {"body": {"sqlstate": sqlstate}}, method="COMMIT")
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_class, outcome.error_code) == expected
        assert (await bench.find()).verdict is FindVerdict.MISSING


async def test_a_deferred_rule_of_the_customer_refuses_at_commit(world: DatabaseWorld) -> None:
    """Requirements: X5. A real error at a real COMMIT: refused, and nothing is there, neither record nor marker."""
    await world.sql("CREATE FUNCTION acme.no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'not today'; END$$")
    await world.sql(
        "CREATE CONSTRAINT TRIGGER no AFTER INSERT ON acme.publications DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION acme.no()"
    )
    try:
        async with bench_of(world, RECORDING) as bench:
            outcome = await bench.perform()
            assert failed(outcome) == (ErrorClass.BUSINESS, "refused")
            assert outcome.external_status == "P0001" and bench.sending.sends_count == 1
            assert (await bench.find()).verdict is FindVerdict.MISSING
    finally:
        await world.sql("DROP FUNCTION acme.no() CASCADE")


async def test_a_server_that_ends_sessions_during_commit_leaves_it_open(world: DatabaseWorld) -> None:
    """Requirements: X4. Terminated between the last statement and COMMIT: unknown at first, then proved absent."""
    async with bench_of(world, RECORDING) as bench:
        await world.fault("delay", {"seconds": 5}, method="COMMIT")
        performing = asyncio.create_task(bench.perform())

        async def ends_it() -> Any:
            return await world.sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'acme_writer'"
                " AND state = 'idle in transaction' AND query LIKE 'INSERT INTO trueup_effects%'"
            )

        await until(ends_it)
        outcome = await performing
        assert outcome.status is ReceiptStatus.UNKNOWN, outcome
        assert (await bench.find()).verdict is FindVerdict.MISSING


async def test_sessions_that_the_server_killed_cost_no_attempt(world: DatabaseWorld) -> None:
    """Requirements: X5. Idle connections of both pools are dead; the next command and the next look just work."""
    async with bench_of(world, RECORDING) as bench:
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        operation = bench.operation
        killed = await world.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND usename IN ('acme_writer', 'acme_reader')"
        )
        assert len(killed) >= 2
        payload = {"business_key": new_id("cmd"), "record": dict(RECORD)}
        bench.operation = operation.evolve(command_id=new_id("cmd"), payload=payload)
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        assert (await bench.find()).verdict is FindVerdict.CONFIRMED


async def test_a_connection_that_dies_before_commit_leaves_is_provably_unsent(world: DatabaseWorld) -> None:
    """Requirements: X5. Statements before COMMIT have no effect of their own, however they end."""
    async with bench_of(world, RECORDING) as bench:
        await world.fault("drop_before", method="INSERT", times=2)
        assert failed(await bench.perform()) == (ErrorClass.TRANSIENT, "connection_lost")
        assert bench.sending.sends_count == 0
        for sqlstate in ("40P01", "40001", "25006", "53100"):
            await world.fault("status", {"body": sqlstate}, method="INSERT")
            assert failed(await bench.perform())[0] is ErrorClass.TRANSIENT
        assert bench.sending.sends_count == 0
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED


async def test_a_lost_slot_rolls_back(world: DatabaseWorld) -> None:
    """Requirements: E5. The slot is asked for directly before COMMIT, so losing it loses everything."""
    async with bench_of(world, RECORDING) as bench:
        bench.sending = Sending(slot_lost=True)
        with pytest.raises(SlotLost):
            await bench.perform()
        assert (await bench.find()).verdict is not FindVerdict.CONFIRMED
        assert await row(world, bench.operation.payload["business_key"]) is None


# -- one effect per operation, one operation per key -----------------------------------------------------------------


async def test_two_attempts_of_one_operation_at_once_have_one_effect(world: DatabaseWorld) -> None:
    """Requirements: E2, E3. Two processes perform the same operation: one writes, both say the same."""
    async with bench_of(world, RECORDING) as one, bench_of(world, RECORDING) as other:
        other.operation = one.operation
        outcomes = await asyncio.gather(one.perform(), other.perform())
        assert [outcome.status for outcome in outcomes] == [ReceiptStatus.CONFIRMED] * 2
        assert outcomes[0].result == outcomes[1].result
        assert one.sending.sends_count + other.sending.sends_count == 1
        assert await actions(world, one.operation.payload["business_key"]) == ["insert"]


async def test_a_key_in_use_is_not_overwritten(world: DatabaseWorld) -> None:
    """Requirements: X7. Another operation's record, and a record of nobody we know, both stand."""
    key = new_id("cmd")
    first = await recorded(world, key)
    assert failed(await recorded(world, key, {"title": "other"})) == (ErrorClass.BUSINESS, "identity_in_use")
    await world.tamper(f"acme/{key}", {"operation_id": None})
    assert failed(await recorded(world, key, {"title": "other"})) == (ErrorClass.BUSINESS, "foreign_object")
    stored = await row(world, key)
    assert json.loads(stored["record"]) == RECORD and first.result is not None
    assert str(stored["record_id"]) == first.result["record_id"]


async def test_of_operations_that_race_for_a_key_exactly_one_wins(world: DatabaseWorld) -> None:
    """Requirements: X7. Ten operations, one key."""
    key = new_id("cmd")
    outcomes = await asyncio.gather(*(recorded(world, key, {"n": number}) for number in range(10)))
    won = [outcome for outcome in outcomes if outcome.status is ReceiptStatus.CONFIRMED]
    assert len(won) == 1
    assert {failed(outcome) for outcome in outcomes if outcome not in won} == {(ErrorClass.BUSINESS, "identity_in_use")}
    assert await actions(world, key) == ["insert"]


async def test_a_cancelled_record_may_be_recorded_again_as_another_one(world: DatabaseWorld) -> None:
    """Requirements: X7. A late compensation of the first record does not touch the second."""
    key = new_id("cmd")
    first = (await recorded(world, key)).result
    assert first is not None
    assert (await cancelled(world, key, first["record_id"])).status is ReceiptStatus.CONFIRMED
    second = (await recorded(world, key, {"title": "anew"})).result
    assert second is not None and second["record_id"] != first["record_id"]
    assert failed(await cancelled(world, key, first["record_id"])) == (ErrorClass.BUSINESS, "foreign_object")
    assert (await row(world, key))["status"] == "recorded"
    assert await actions(world, key) == ["insert", "cancel", "insert"]


@pytest.mark.parametrize(
    "change", [{"delete": True}, {"status": "cancelled"}, {"record": {"title": "By somebody else"}}]
)
async def test_a_record_that_an_outsider_damaged_is_brought_back_as_it_was(
    world: DatabaseWorld, change: dict[str, Any]
) -> None:
    """Requirements: R3, S3. Deleted, cancelled or changed: the same record id and content, and undoing still works."""
    business_key = new_id("cmd")
    made = await recorded(world, business_key)
    assert made.result is not None
    await world.tamper(f"acme/{business_key}", change)
    payload = {"business_key": business_key, "record": dict(RECORD), "restores": made.result["record_id"]}
    async with bench_of(world, RECORDING, payload) as repair:
        outcome = await repair.perform()
        assert outcome.status is ReceiptStatus.CONFIRMED, outcome
        assert outcome.result == {**made.result}
        assert (await repair.perform()).result == outcome.result
        assert (await repair.find()).verdict is FindVerdict.CONFIRMED
    assert (await row(world, business_key))["operation_id"] == repair.operation.command_id
    assert (await cancelled(world, business_key, made.result["record_id"])).status is ReceiptStatus.CONFIRMED


async def test_a_repair_touches_no_other_record(world: DatabaseWorld) -> None:
    """Requirements: R3, R9. The key holds another record by now: two owners, and a person decides."""
    business_key = new_id("cmd")
    made = await recorded(world, business_key)
    assert made.result is not None
    await cancelled(world, business_key, made.result["record_id"])
    other = await recorded(world, business_key, {"title": "Another"})
    assert other.result is not None
    payload = {"business_key": business_key, "record": dict(RECORD), "restores": made.result["record_id"]}
    async with bench_of(world, RECORDING, payload) as repair:
        outcome = await repair.perform()
    assert (outcome.status, outcome.error_code) == (ReceiptStatus.REJECTED, "foreign_object")
    assert str((await row(world, business_key))["record_id"]) == other.result["record_id"]


async def test_a_survey_lists_every_marker_in_order_page_by_page(
    world: DatabaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements: R10. Whatever became of the record, each operation that wrote it stands in the list."""
    monkeypatch.setattr(publications, "PAGE_MARKS_MAX", 2)
    operations = []
    for _ in range(3):
        async with bench_of(world, RECORDING) as bench:
            assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
            operations.append(bench.operation.command_id)
    async with bench_of(world, RECORDING) as bench:
        cursor, listed = None, []
        while True:
            page = await bench.target.survey(cursor, {})  # type: ignore[attr-defined]
            assert len(page.marks) <= 2
            listed += [mark.operation_id for mark in page.marks]
            cursor = page.next_cursor
            if cursor is None:
                break
    assert listed == sorted(listed)
    assert set(operations) <= set(listed)


async def test_cancelling_twice_has_one_effect_and_two_truthful_answers(world: DatabaseWorld) -> None:
    """Requirements: E2. The second operation leaves its marker and changes nothing."""
    key = new_id("cmd")
    first = (await recorded(world, key)).result
    assert first is not None
    one, two = await asyncio.gather(*(cancelled(world, key, first["record_id"]) for _ in range(2)))
    assert one.status is two.status is ReceiptStatus.CONFIRMED
    assert one.result == two.result == {**first, "status": "cancelled", "publication": {
        "status": "cancelled", "record_sha256": first["record_sha256"]}}  # fmt: skip
    assert await actions(world, key) == ["insert", "cancel"]
    assert await row(world, key) is not None, "nothing is ever deleted"


async def test_cancelling_what_is_not_there_is_permanent(world: DatabaseWorld) -> None:
    """Requirements: X5. No such record."""
    outcome = await cancelled(world, new_id("cmd"), "00000000-0000-0000-0000-000000000000")
    assert failed(outcome) == (ErrorClass.PERMANENT, "not_found")


async def test_an_own_record_without_its_marker_is_for_a_person(world: DatabaseWorld) -> None:
    """Requirements: E3. Somebody cleaned up the markers: neither sent again nor called done."""
    async with bench_of(world, RECORDING) as bench:
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        await world.sql("DELETE FROM acme.trueup_effects WHERE operation_id = $1", bench.operation.command_id)
        finding = await bench.find()
        assert (finding.verdict, finding.reason) == (FindVerdict.AMBIGUOUS, "done_without_marker")
        outcome = await bench.perform()
        assert (outcome.status, outcome.error_code) == (ReceiptStatus.UNKNOWN, "done_without_marker")


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "record",
    [{"a": "x\x00y"}, {"a\x00": 1}, {"a": "\ud800"}, {"a": float("nan")}, {"a": float("inf")}, {"a": 2**70 + 1}],
)
async def test_what_postgresql_cannot_store_is_refused_before_anything_is_sent(
    world: DatabaseWorld, record: dict[str, Any]
) -> None:
    """Requirements: X5. Permanent, and without a connection: there is none to be had here."""
    async with bench_of(world, RECORDING, {"business_key": "k", "record": {}}, world.unreachable) as bench:
        bench.operation = bench.operation.evolve(payload={"business_key": "k", "record": record})
        assert failed(await bench.perform()) == (ErrorClass.PERMANENT, "data_unusable")
        assert bench.sending.sends_count == 0


async def test_whatever_can_be_stored_reads_back_as_itself(world: DatabaseWorld) -> None:
    """Requirements: X6. jsonb spells numbers in its own way; the comparison does not stumble over that."""
    records = [
        {"n": value}
        for value in (0.1, -0.0, 1e21, 1e-7, 5e-324, 1.7976931348623157e308, 2**53, 10**17, "\u2028ü\\", [], {"": None})
    ]

    @settings(max_examples=40, deadline=None)
    @given(VALUES)
    def collect(value: Any) -> None:
        records.append({"n": value})

    collect()
    checked = 0
    for record in records:
        outcome = await recorded(world, new_id("cmd"), record)
        assert outcome.status is ReceiptStatus.CONFIRMED or outcome.error_code == "data_unusable", (record, outcome)
        checked += outcome.status is ReceiptStatus.CONFIRMED
    assert checked >= 20


async def test_a_probe_reads_many_and_sees_an_outsiders_edit(world: DatabaseWorld) -> None:
    """Requirements: E4, R8. Each element gets its own answer; drift shows as another value, deletion as missing."""
    keys = [new_id("cmd") for _ in range(3)]
    for key in keys:
        await recorded(world, key)
    await world.tamper(f"acme/{keys[1]}", {"record": {"title": "edited"}})
    await world.tamper(f"acme/{keys[2]}", {"delete": True})
    async with bench_of(world, RECORDING) as bench:
        element = (await _elements(bench))[0]
        wanted = [element.evolve(params={"business_key": key}) for key in (*keys, "x\x00", 7)]
        found = await bench.target.probe([*wanted, element.evolve(element="database.other")])
    verdicts = [item.verdict for item in found]
    assert verdicts[:3] == [ProbeVerdict.CONFIRMED, ProbeVerdict.CONFIRMED, ProbeVerdict.MISSING]
    assert set(verdicts[3:]) == {ProbeVerdict.UNKNOWN}
    assert found[0].value["record_sha256"] != found[1].value["record_sha256"]
    assert [await actions(world, key) for key in keys] == [["insert"]] * 3, "an outsider's edit is no effect"


async def _elements(bench: Bench) -> list[Any]:
    from trueup_common.testing.adapter_conformance import elements_of

    return elements_of(bench.declaration, bench.operation, (await bench.perform()).result)


# -- where the accounts lead -----------------------------------------------------------------------------------------


async def test_wrong_write_credentials_are_permanent(world: DatabaseWorld) -> None:
    """Requirements: X5. The real server's own refusal."""
    wrong = {**world.connection.settings, "dsn": str(world.connection.settings["dsn"]).replace("-writer@", "-x@")}
    async with bench_of(world, RECORDING, None, replace(world.connection, settings=wrong)) as bench:
        assert failed(await bench.perform()) == (ErrorClass.PERMANENT, "unauthenticated")
        assert bench.sending.sends_count == 0


async def test_a_reader_of_other_tables_proves_nothing(world: DatabaseWorld) -> None:
    """Requirements: E4. A reading account that leads to another tenant's tables, or another database, is a doubt."""
    other = str(world.connection.settings["read_dsn"]).replace("acme", "globex")
    astray = replace(world.connection, settings={**world.connection.settings, "read_dsn": other})
    async with bench_of(world, RECORDING, None, astray) as bench:
        assert (await bench.perform()).error_code == "read_back_failed"
        finding = await bench.find()
        assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "another_database")
        assert await row(world, bench.operation.payload["business_key"]) is not None


async def test_one_account_for_both_is_enough(world: DatabaseWorld) -> None:
    """Requirements: E4. Without read_dsn the writing account looks."""
    settings_of = {key: value for key, value in world.connection.settings.items() if key != "read_dsn"}
    async with bench_of(world, RECORDING, None, replace(world.connection, settings=settings_of)) as bench:
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED
        assert (await bench.find()).verdict is FindVerdict.CONFIRMED


async def test_missing_tables_are_permanent_and_never_made(world: DatabaseWorld) -> None:
    """Requirements: X5. The customer creates his own tables."""
    await world.sql("ALTER TABLE acme.trueup_effects RENAME TO elsewhere")
    try:
        async with bench_of(world, RECORDING, {"business_key": "k", "record": {}}) as bench:
            assert failed(await bench.perform()) == (ErrorClass.PERMANENT, "schema_missing")
            finding = await bench.find()
            assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "schema_missing")
        assert (await world.sql("SELECT to_regclass('acme.trueup_effects') AS made"))[0]["made"] is None
    finally:
        await world.sql("ALTER TABLE acme.elsewhere RENAME TO trueup_effects")


async def test_a_locked_row_is_given_up_in_time(world: DatabaseWorld) -> None:
    """Requirements: X5. Somebody else holds the row: the server gives up by itself, nothing was sent."""
    key = new_id("cmd")
    result = (await recorded(world, key)).result
    assert result is not None
    holder = await asyncpg.connect(world.admin_url)
    await holder.execute("BEGIN")
    await holder.execute("SELECT 1 FROM acme.publications WHERE business_key = $1 FOR UPDATE", key)
    hasty = replace(world.connection, timeout_seconds=1.0)
    payload = {"business_key": key, "record_id": result["record_id"]}
    async with bench_of(world, CANCELLING, payload, hasty) as bench:
        error_class, code = failed(await bench.perform())
        assert error_class is ErrorClass.TRANSIENT and code in ("locked", "statement_timeout")
        await holder.close()
        assert (await bench.perform()).status is ReceiptStatus.CONFIRMED


async def test_many_at_once_share_a_bounded_pool(world: DatabaseWorld) -> None:
    """Requirements: X5. Thirty commands on one target never hold more connections than the connection allows."""
    few = replace(world.connection, max_concurrency=3)
    target = DatabaseAdapter().open(few)
    benches = []
    for _ in range(30):
        case = await world.case(RECORDING)
        benches.append(Bench(world, world.adapter.declarations[0], target, case))
    outcomes = await asyncio.gather(*(bench.perform() for bench in benches))
    assert {outcome.status for outcome in outcomes} == {ReceiptStatus.CONFIRMED}
    sessions = await world.sql(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND usename = 'acme_writer'"
    )
    assert 1 <= sessions[0]["n"] <= 3
    await target.close()


async def test_a_replica_takes_no_write_and_proves_nothing(tmp_path: Path) -> None:
    """Requirements: E4. A standby may lag: its silence is no absence, and a write there is known not to happen."""
    cluster = PostgresCluster(tmp_path / "standby", settings=dict(FAST_BUT_FORGETFUL))
    cluster.start()
    try:
        url = cluster.url("trueup", cluster.password, "customer")
        async with open_database(tmp_path / "world", Database("customer", url)) as world:
            assert (await recorded(world, "k")).status is ReceiptStatus.CONFIRMED
        cluster.stop()
        (cluster.data / "standby.signal").touch()
        cluster.start()
        accounts = {"dsn": _account(url, "writer"), "read_dsn": _account(url, "reader")}
        connection = Connection("acme", "database", accounts, allow_private_network=True)
        async with bench_of(world, RECORDING, {"business_key": "new", "record": {}}, connection) as bench:
            assert failed(await bench.perform()) == (ErrorClass.TRANSIENT, "read_only")
            finding = await bench.find()
            assert (finding.verdict, finding.reason) == (FindVerdict.UNKNOWN, "replica")
            (seen,) = await bench.probe({"resource": "publication/k"})
            assert (seen.verdict, seen.reason) == (ProbeVerdict.UNKNOWN, "replica")
    finally:
        cluster.stop()


def _account(url: str, account: str) -> str:
    return f"postgresql://acme_{account}:sandbox-acme-{account}@{url.rpartition('@')[2]}"


@pytest.mark.parametrize(
    "dsn",
    [
        None, "", 7, "mysql://u:topsecret@h/d", "postgresql://h/d", "postgresql://u@h/d", "postgresql://u:topsecret@h/",
        "postgresql://u:topsecret@/d", "postgresql://u:topsecret@h/d?host=127.0.0.1", "postgresql://u:topsecret@[::/d",
        "postgresql://u:topsecret@127.0.0.1/d", "postgresql://u:topsecret@a,10.0.0.1/d", "postgresql://u:topsecret@localhost/d",
    ],
)  # fmt: skip
def test_an_unusable_address_is_refused_without_its_secret(dsn: Any) -> None:
    """Requirements: X5. Incomplete, ambiguous or private: refused when the service starts."""
    with pytest.raises(ValueError, match="acme/database") as refusal:
        DatabaseAdapter().open(Connection("acme", "database", {"dsn": dsn}))
    assert "topsecret" not in str(refusal.value)


async def test_a_name_that_leads_to_a_private_address_is_refused(
    world: DatabaseWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requirements: X5. The name looks public; where it leads is checked when it is used."""
    private = Connection("acme", "database", {"dsn": "postgresql://u:p@db.example.org/d"}, allow_private_network=False)

    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(2, 1, 6, "", ("10.1.2.3", 0))]

    async with bench_of(world, RECORDING, {"business_key": "k", "record": {}}, private) as bench:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
        assert failed(await bench.perform()) == (ErrorClass.TRANSIENT, "address_refused")
        assert bench.sending.sends_count == 0
