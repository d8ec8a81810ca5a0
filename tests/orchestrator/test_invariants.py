"""Invariants are checked all the time: each breach is told once, its end too, and the checker changes no case."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.orchestrator.cases import BARE, NOW, receipt
from tests.orchestrator.test_store import Plane, accepted, plane

from trueup_common.contracts.envelope import Outgoing
from trueup_common.contracts.events import ExceptionReported
from trueup_common.contracts.states import ExceptionKind, ReceiptStatus
from trueup_common.runtime.ports import Moment
from trueup_orchestrator.check_store import ANY_BREACH, QUESTIONS, CheckTransaction, check_store
from trueup_orchestrator.checking import Checker
from trueup_orchestrator.core.case import Terms
from trueup_orchestrator.core.invariants import PATIENCE_SECONDS, RULES, Breach, standing

__all__ = ["plane"]

BREAKING = {
    "overdue_wakeup": "UPDATE operation SET wake_at = trueup.now() - interval '2 minutes', lease_expires_at = NULL",
    "overdue_wakeup of a case": "UPDATE instance SET wake_at = trueup.now() - interval '2 minutes'",
    "expired_lease": "UPDATE operation SET lease_expires_at = now() - interval '2 minutes', wake_at = NULL",
    "unknown_past_sla": "UPDATE obligation SET deadline_at = trueup.now() - interval '2 minutes'",
    "live_after_end": "UPDATE operation SET state = 'SUCCESS', lease_expires_at = NULL, wake_at = trueup.now() + '1 h'",
    "live_after_end of a case": "UPDATE instance SET closed_at = trueup.now(), wake_at = trueup.now() + interval '1 h'",
}
"""Rule → how a fault of the program, or of a person in the database, would break it."""


class Watched:
    """A checker and the plane it looks at."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.store = check_store(plane.database)
        self.checker = Checker(Terms())

    async def look(self, later: float = 0.0, checker: Checker | None = None) -> list[ExceptionReported]:
        """One look, so much later in real time."""
        async with self.store.transaction() as tx:
            now, _ = await tx.claim("test", [])
            moment = Moment(now.business, now.real + timedelta(seconds=later))
            outgoing = await (checker or self.checker).check(tx, moment)
            await tx.post(outgoing)
        return [self._read(item) for item in outgoing]

    def _read(self, item: Outgoing) -> ExceptionReported:
        report = ExceptionReported.model_validate_json(item.message.data)
        assert item.message.subject == f"trueup.evt.orchestrator.exception.{report.obligation.tenant}"
        assert item.message.id == f"{report.obligation.obligation_id}:{report.obligation.version}"
        return report

    async def asks(self) -> bool:
        return await self.plane.database.asks(ANY_BREACH)()

    async def rows(self) -> list[Any]:
        """Everything that is a case's."""
        found: list[Any] = []
        for table in ("operation", "instance", "obligation", "history"):
            found += [dict(row) for row in await self.plane.fetch(f"SELECT * FROM {table} ORDER BY 1, 2")]
        return found


@pytest.fixture
async def watched(plane: Plane) -> Watched:
    await plane.fetch("DELETE FROM breach")
    return Watched(plane)


async def begun(watched: Watched, *, unknown: bool = False, **changes: Any) -> str:
    """A command on its way; its outcome may be unknown."""
    body = await accepted(watched.plane, **changes)
    await watched.plane.react(watched.plane.commands, [body])
    if unknown:
        row = await watched.plane.row(body.command_id)
        await watched.plane.react(watched.plane.events, [receipt(row, ReceiptStatus.UNKNOWN, None, "timeout")])
    return body.command_id


@pytest.mark.parametrize("broken", BREAKING)
async def test_a_breach_is_told_once_and_so_is_its_end(watched: Watched, broken: str) -> None:
    """As an exception with owner and deadline, when it stood for a time; another replica tells it no second time.

    Requirements: V5
    """
    rule = broken.partition(" ")[0]
    await begun(watched, unknown=rule == "unknown_past_sla")
    assert not await watched.asks() and await watched.look() == []
    await watched.plane.fetch(BREAKING[broken])
    before = await watched.rows()
    assert await watched.asks()
    assert await watched.look() == [], "seen once, it may be on its way to be right"
    other = Checker(Terms())
    await watched.look(checker=other)
    (told,) = await watched.look(PATIENCE_SECONDS)
    obligation = told.obligation
    assert obligation.kind == RULES[rule].kind and obligation.kind in set(ExceptionKind)
    assert obligation.envelope["failure_code"] == f"invariant_{rule}"
    assert (obligation.status, obligation.owner, obligation.version) == ("open", "operators", 1)
    assert obligation.deadline_at == obligation.opened_at + timedelta(hours=1)
    assert (obligation.command_id is None) == ("of a case" in broken)
    for checker in (watched.checker, other, Checker(Terms())):
        assert await watched.look(2 * PATIENCE_SECONDS, checker) == []
        assert await watched.look(4 * PATIENCE_SECONDS, checker) == []
    assert await watched.rows() == before, "the checker repairs nothing by itself"
    await watched.plane.fetch(_mending(broken))
    (ended,) = await watched.look()
    assert ended.obligation.obligation_id == obligation.obligation_id
    assert (ended.obligation.status, ended.obligation.version) == ("closed", 2)
    assert ended.obligation.resolution_type == "invariant_holds"
    assert await watched.look() == [] and not await watched.asks()


def _mending(broken: str) -> str:
    """The row moves on, as a command would move it."""
    if broken == "unknown_past_sla":
        return "UPDATE obligation SET status = 'closed'"
    table = "instance" if "of a case" in broken else "operation"
    return f"UPDATE {table} SET state_version = state_version + 1, wake_at = NULL" + (
        "" if table == "instance" else ", lease_expires_at = NULL"
    )


async def test_a_plane_at_work_breaks_nothing(watched: Watched) -> None:
    """Commands that run, wait for a retry, are unknown or are over satisfy every rule.

    Requirements: V5
    """
    for number in range(1, 5):
        body = await accepted(watched.plane, number)
        await watched.plane.react(watched.plane.commands, [body])
        row = await watched.plane.row(body.command_id)
        if number == 2:
            await watched.plane.react(watched.plane.events, [receipt(row, ReceiptStatus.CONFIRMED)])
        elif number == 3:
            await watched.plane.react(watched.plane.events, [receipt(row, ReceiptStatus.NOT_SENT, None, "unavailable")])
        elif number == 4:
            await watched.plane.react(watched.plane.events, [receipt(row, ReceiptStatus.UNKNOWN, None, "timeout")])
    assert not await watched.asks()
    assert await watched.look() == [] and await watched.look(PATIENCE_SECONDS) == []


async def test_a_breach_that_moves_on_is_another(watched: Watched) -> None:
    """What was seen before is not held against a row that changed in between.

    Requirements: V5
    """
    await begun(watched)
    await watched.plane.fetch(BREAKING["expired_lease"])
    await watched.look()
    await watched.plane.fetch("UPDATE operation SET state_version = state_version + 1")
    assert await watched.look(PATIENCE_SECONDS) == []
    assert len(await watched.look(2 * PATIENCE_SECONDS)) == 1


async def test_the_questions_read_what_is_open_and_not_what_was(watched: Watched) -> None:
    """Thousands of commands that are over cost the checker nothing.

    Requirements: V5, B4
    """
    name = await begun(watched, decl=BARE)
    columns = [row["column_name"] for row in await watched.plane.fetch(_COLUMNS)]
    kept = ", ".join(f'"{column}"' for column in columns if column not in ("command_id", "idempotency_key"))
    await watched.plane.fetch(
        f"INSERT INTO operation (command_id, idempotency_key, {kept}) SELECT 'old_' || n, 'old_' || n, {kept} "
        "FROM operation, generate_series(1, 3000) AS n WHERE command_id = $1",
        name,
    )
    await watched.plane.fetch(
        "UPDATE operation SET state = 'SUCCESS', wake_at = NULL, lease_expires_at = NULL WHERE command_id <> $1", name
    )
    await watched.plane.fetch("ANALYZE operation")
    for rule, question in QUESTIONS:
        (plan,) = await watched.plane.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {question} LIMIT 10")
        read = [node for node in _nodes(plan[0][0]["Plan"]) if node.get("Relation Name") == "operation"]
        assert all("Seq Scan" not in node["Node Type"] for node in read), rule
        assert sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in read) <= 1, rule


_COLUMNS = """
SELECT column_name FROM information_schema.columns WHERE table_schema = 'orchestrator' AND table_name = 'operation'
"""


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in _nodes(part))]


def breach(number: int, stamp: int) -> Breach:
    return Breach("expired_lease", "acme", f"wf_{number}", "saga", f"cmd_{number}", str(stamp), NOW)


@given(st.lists(st.tuples(st.integers(0, 40), st.sets(st.tuples(st.integers(0, 3), st.integers(0, 1)))), max_size=12))
def test_only_what_stood_without_a_break_is_told(looks: list[tuple[int, set[tuple[int, int]]]]) -> None:
    """A breach is told if and only if it was seen in every look for at least the whole patience.

    Requirements: V5
    """
    suspects: dict[str, Any] = {}
    now = NOW
    seen: list[tuple[Any, set[str]]] = []
    for seconds, found in looks:
        now += timedelta(seconds=seconds)
        breaches = [breach(*item) for item in sorted(found)]
        suspects, told = standing(suspects, breaches, now)
        seen.append((now, {item.obligation_id for item in breaches}))
        assert {item.obligation_id for item in told} == _expected(seen)


def _expected(seen: Sequence[tuple[Any, set[str]]]) -> set[str]:
    now, present = seen[-1]
    told = set()
    for name in present:
        first = now
        for at, names in reversed(seen):
            if name not in names:
                break
            first = at
        if (now - first).total_seconds() >= PATIENCE_SECONDS:
            told.add(name)
    return told


def test_the_checker_has_no_way_to_change_a_case() -> None:
    """Its transaction offers no write but that of its own record.

    Requirements: V5
    """
    own = {name for name in vars(CheckTransaction) if not name.startswith("_")} - {"service"}
    assert own == {"breaches", "told", "remember", "forget", "still"}
