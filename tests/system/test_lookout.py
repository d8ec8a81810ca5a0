"""The lookout on real processes: a planted drift is found by itself, and what no ledger knows is an exception."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.system.plane import Plane, eventually, http
from trueup_common.contracts.ids import new_id


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """A plane that surveys and tries itself out every few seconds."""
    environment = {"TRUEUP_SURVEY_SECONDS": "4", "TRUEUP_SELFTEST_SECONDS": "4"}
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

    found = eventually(look, "the survey finds the copy", 60)
    assert (found["kind"], found["command_id"]) == ("needs_review", stranger)
    assert found["envelope"]["external_resource_id"] == post_id
    assert found["owner"]
    codes = [item["envelope"].get("failure_code") for item in exceptions(plane)]
    assert codes == ["unmanaged_effect"]
