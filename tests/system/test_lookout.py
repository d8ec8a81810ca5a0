"""The lookout on real processes: a planted drift is found by itself, and what no ledger knows is an exception."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from tests.system.plane import Plane, eventually, http
from trueup_common.contracts.ids import new_id


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane that surveys and tries itself out every few seconds."""
    environment = {"TRUEUP_SURVEY_SECONDS": "4", "TRUEUP_SELFTEST_SECONDS": "8"}
    plane = Plane(tmp_path_factory.mktemp("lookout"), environment=environment).start()
    yield plane
    plane.stop()


def exceptions(plane: Plane) -> list[dict[str, Any]]:
    answer = plane.get("/v1/exceptions?limit=200", plane.token("operator:olga", roles=("operator",)))
    assert answer.status == 200, answer
    return list(answer.body["items"])


def test_an_effect_that_no_ledger_knows_is_found_and_owned(plane: Plane) -> None:
    """A copy of a page carries a marker of ours, and has no ledger row: found by the survey of the site, with an owner.

    What the plane itself made is struck out, and meanwhile the planted drifts of the site raise no alarm.

    Requirements: R10, R11, Q4
    """
    assert plane.draft("surveyed").status in (200, 202)
    stranger = new_id("cmd")
    change = {"title": "A copy", "content": f"<p>Copied</p>\n\n<!-- trueup:{stranger} -->", "slug": "copied"}
    order = {"system": "wordpress", "object": "acme/new", "change": {**change, "status": "publish"}}
    planted = http("POST", f"{plane.sandbox_url}/_tamper", order)
    assert planted.status == 200, planted
    post_id = str(planted.body["post"]["id"])

    def look() -> dict[str, Any] | None:
        wanted = (item for item in exceptions(plane) if item["envelope"].get("failure_code") == "unmanaged_effect")
        return next(wanted, None)

    found = eventually(look, "the survey finds the copy")
    assert (found["kind"], found["command_id"]) == ("needs_review", stranger)
    assert found["envelope"]["external_resource_id"] == post_id
    assert found["owner"]
    eventually(lambda: sql(plane, "SELECT min(found_at) FROM reconciler.canary"), "a planted drift is found")
    codes = [item["envelope"].get("failure_code") for item in exceptions(plane)]
    assert codes == ["unmanaged_effect"]


def sql(plane: Plane, query: str, *arguments: Any) -> Any:
    """One value out of the plane's own database."""

    async def ask() -> Any:
        connection = await asyncpg.connect(plane.database_url)
        try:
            return await connection.fetchval(query, *arguments)
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_an_effect_that_is_not_there_any_more_is_found_by_the_survey_and_a_person_lets_it_go(plane: Plane) -> None:
    """The reverse: it stands in the ledger, and the site does not list it any more. Its own next look is a day away.

    Nobody wants it back: a person says what became of it, and that ends it.
    Requirements: R10, R8, O3, Q8
    """
    draft = plane.draft("vanishing")
    plane.closed(draft.body["workflow_id"])
    name = draft.body["command_id"]
    post_id = plane.journal(name)["receipt"]["post_id"]
    listed = "SELECT min(surveyed_at) FROM reconciler.element WHERE command_id = $1"
    eventually(lambda: sql(plane, listed, name), "a survey lists the draft")
    later = "UPDATE reconciler.element SET next_visit_at = now() + interval '1 day' WHERE command_id = $1"
    sql(plane, later, name)
    order = {"system": "wordpress", "object": f"acme/{post_id}", "change": {"delete": True}}
    assert http("POST", f"{plane.sandbox_url}/_tamper", order).status == 200

    def look() -> list[dict[str, Any]] | None:
        mine = [item for item in exceptions(plane) if item["command_id"] == name]
        return mine if mine and all(item["kind"] == "state_drift" for item in mine) else None

    eventually(look, "the survey misses the draft, and a look finds it gone")
    asked: set[str] = set()

    def let_go() -> list[dict[str, Any]] | None:
        """Each of its elements is an exception of its own, and they need not be shown at the same moment."""
        mine = [item for item in exceptions(plane) if item["command_id"] == name]
        for exception_id in {item["exception_id"] for item in mine} - asked:
            asked.add(exception_id)
            body = {
                "action": "MARK_RESOLVED",
                "target": {"kind": "exception", "id": exception_id},
                "reason": "the author withdrew it",
                "evidence": [],
                "params": {"disposition": [{"effect": name, "became": "deleted by its author, on purpose"}]},
            }
            answer = plane.operate("/v1/operator-commands", body, f"let-go:{exception_id}")
            assert (answer.status, answer.body["performer"]) == (202, "reconciler"), answer
        return mine if all(item["status"] == "closed" for item in mine) else None

    over = eventually(let_go, "it is over")
    assert {(item["resolution_type"], item["resolved_by"]) for item in over} == {("marked_resolved", "operator:olga")}


def test_what_a_survey_found_is_over_when_it_is_gone(plane: Plane) -> None:
    """Requirements: R10, Q8"""
    found = next(item for item in exceptions(plane) if item["envelope"].get("failure_code") == "unmanaged_effect")
    assert "MARK_RESOLVED" in found["allowed_actions"]
    post_id = found["envelope"]["external_resource_id"]
    order = {"system": "wordpress", "object": f"acme/{post_id}", "change": {"delete": True}}
    assert http("POST", f"{plane.sandbox_url}/_tamper", order).status == 200
    name = found["exception_id"]

    def over() -> dict[str, Any] | None:
        return next((i for i in exceptions(plane) if i["exception_id"] == name and i["status"] == "closed"), None)

    assert eventually(over, "a round without it ends it")["resolution_type"] == "observed_healthy"
