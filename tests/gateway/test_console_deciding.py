"""What a person decides about in the console: rows of one incident as one, repairs behind a hash, other versions."""

from __future__ import annotations

import re
from typing import Any

import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, later
from tests.gateway.mending import told_incident, told_repair
from tests.gateway.person import HERE, Person
from tests.gateway.test_definitions import register
from tests.gateway.test_repair_approvals import question
from tests.gateway.test_resuming import CORRECTED, FIRST, stuck
from tests.gateway.test_views import accepted, changed_exception, project

from trueup_common.runtime.clock import real_now
from trueup_gateway.console.folding import FOLDED_MIN, folded
from trueup_gateway.console.words import words_of


@pytest_asyncio.fixture
async def person(gateway: EdgeUnderTest) -> Person:
    """Somebody who is not logged in yet."""
    gateway.client.cookies.clear()
    return Person(gateway.client)


def items(*names: str | None) -> list[dict[str, Any]]:
    """Rows by deadline, each of an incident or of none."""
    return [
        {"exception_id": f"exc_{place}", "incident_id": name, "owner": f"owner-{place % 2}", "failure_class": "X"}
        for place, name in enumerate(names)
    ]


def told(rows: list[dict[str, Any]]) -> list[Any]:
    return [
        [item["exception_id"][4:] for item in row["fold"]] if "fold" in row else row["row"]["exception_id"][4:]
        for row in rows
    ]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ((), []),
        ((None, None, None), ["0", "1", "2"]),
        (("a", "a"), ["0", "1"]),
        (("a", None, "a", "b", "a"), [["0", "2", "4"], "1", "3"]),
        ((None, "b", "a", "b", "a", "b", "a"), ["0", ["1", "3", "5"], ["2", "4", "6"]]),
    ],
)
def test_rows_of_one_incident_are_one_where_its_first_stands(given: tuple[str | None, ...], wanted: list[Any]) -> None:
    """Nothing is lost, nothing twice; few rows stand for themselves, rows without an incident always.

    Requirements: O1
    """
    assert FOLDED_MIN == 3
    rows = folded(items(*given))
    assert told(rows) == wanted
    every = [item["exception_id"] for row in rows for item in (row["fold"] if "fold" in row else [row["row"]])]
    assert sorted(every) == [f"exc_{place}" for place in range(len(given))]
    for row in rows:
        if "fold" in row:
            assert set(row["owners"]) == {item["owner"] for item in row["fold"]} and row["classes"] == ["X"]


async def many(gateway: EdgeUnderTest, tag: str, count: int) -> list[str]:
    """So many exceptions of one incident, the first to be due first, and the incident as the planner tells of it."""
    incident = told_incident(real_now()).evolve(incident_id="inc_" + tag * 32, exceptions_count=count)
    names = []
    for number in range(count):
        start, _, _ = await accepted(gateway, f"fold-{tag}-{number}")
        event = changed_exception(
            start, f"fold-{tag}-{number}", incident_id=incident.incident_id, deadline_at=later(60 + number)
        )
        await project(gateway, event)
        names.append(event.exception_id)
    await project(gateway, incident)
    return names


async def test_one_row_holds_the_rows_of_an_incident_and_an_address_shows_them_alone(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """Without scripts: a `details` with the number, and within it every row in order. The contract lists the exceptions
    of one incident, also for whoever follows the link.

    Requirements: O1, O4, O3
    """
    names = await many(gateway, "a", 4)
    await person.log_in("operator")
    page = await person.see("/exceptions")
    fold = next(part for part in page.split("<details data-fold=")[1:] if part.startswith(f'"inc_{"a" * 32}"'))
    fold = fold.partition("</details>")[0]
    summary, _, inside = fold.partition("</summary>")
    assert "4 exceptions of one incident" in summary and "<a " not in summary, "a summary opens, and does nothing else"
    assert re.findall(r'href="/console/exceptions/(exc_\w+)"', inside) == names
    alone = await person.see(f"/exceptions?incident=inc_{'a' * 32}")
    listed = alone.partition("data-rows")[2]
    assert "data-fold" not in alone and re.findall(r'/console/exceptions/(exc_\w+)"', listed) == names
    headers = gateway.headers(sub="operator:olga", roles=("operator",))
    path = f"/v1/exceptions?incident_id=inc_{'a' * 32}&order=deadline"
    read = (await gateway.client.get(path, headers=headers)).json()["items"]
    assert [item["exception_id"] for item in read] == names and {item["incident_id"] for item in read} == {
        f"inc_{'a' * 32}"
    }


async def test_a_repair_to_approve_is_told_with_what_it_sends_and_an_altered_one_is_not_proven(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """The page computes the hash of what it shows: where that is not the hash to approve, it says so.

    Requirements: Q5, O2, S6
    """
    decision, _, exception_id = await question(gateway, "console")
    plan = told_repair(version=4).evolve(
        repair_id="rep_" + "c" * 32, exception_id=exception_id, approval_id=decision["approval_id"]
    )
    await project(gateway, plan)
    await person.log_in("approver", scopes="*")
    page = await person.see(f"/approvals/{decision['approval_id']}")
    for part in (
        "would be sent",
        "its hash is",
        "&#34;post_id&#34;: 28",
        "wordpress.status",
        "What drifted",
        plan.playbook,
    ):
        assert part in page, part
    assert "this is not the content of the hash" not in page
    listed = (await person.see("/approvals")).partition(decision["approval_id"])[2].partition("</li>")[0]
    assert "Repair: wordpress.status" in listed and "draft" in listed and "publish" in listed
    async with gateway.database.connection() as connection:
        await connection.execute(
            "UPDATE gateway.approval SET summary = "
            "jsonb_set(summary::jsonb, '{payload,post_id}', '29')::json WHERE approval_id = $1",
            decision["approval_id"],
        )
    page = await person.see(f"/approvals/{decision['approval_id']}")
    assert "this is not the content of the hash" in page and "its hash is" not in page
    await person.log_in("auditor")
    page = await person.see(f"/approvals/{decision['approval_id']}")
    assert "post_id" not in page and words_of("en")("withheld.why") in page


async def test_what_is_approved_is_never_cut(gateway: EdgeUnderTest, person: Person) -> None:
    """Whatever stands behind the hash is on the page to its last character, as large as a payload may be.

    Requirements: O2, S6
    """
    last = "and nothing of it is left out"
    decision, _, _ = await question(gateway, "whole", content=f"{'word ' * 45_000}{last}")
    await person.log_in("approver", scopes="*")
    page = await person.see(f"/approvals/{decision['approval_id']}")
    assert last in page and "its hash is" in page


async def test_an_intent_of_which_only_the_hash_is_known_says_so(gateway: EdgeUnderTest, person: Person) -> None:
    """Requirements: O2"""
    decision = await gateway.decide("wordpress.publish_post", resource="post/28", context={"payload_sha256": "e" * 64})
    await person.log_in("approver", scopes="*")
    page = await person.see(f"/approvals/{decision['approval_id']}")
    assert "Only the hash of the content is known here" in page and "would be sent" not in page


async def test_an_intent_that_is_bound_to_no_content_says_so(gateway: EdgeUnderTest, person: Person) -> None:
    """Who approves it reads that one effect may happen on the resource, whatever it says.

    Requirements: O2, G3, L10
    """
    decision = await gateway.decide("wordpress.publish_post", resource="post/*")
    await person.log_in("approver", scopes="*")
    page = await person.see(f"/approvals/{decision['approval_id']}")
    assert "Not bound to a content: approving this lets one effect of this kind happen on post/*" in page
    assert "one effect of this intent" in page and "exactly this content" not in page


async def test_resume_names_the_other_versions_and_tells_what_does_not_fit(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """A retired version and the case's own are not offered as others; steps that only another version has are.

    Requirements: O7, O3
    """
    instance, _ = await stuck(gateway, "console-resume")
    other = FIRST.replace("version: 1", "version: 3").replace("maxLength: 200", "maxLength: 150")
    for key, text in (("console-2", CORRECTED), ("console-3", other)):
        assert (await register(gateway, key, text)).status_code in (200, 201)
    await person.log_in("operator")
    place = f"/cases/{instance.workflow_id}"
    page = await person.see(place)
    form = next(part for part in page.split("<form")[1:] if 'name="action" value="RESUME"' in part)
    assert re.findall(r'<option value="(\d*)">', form.partition('name="version"')[2].partition("</select>")[0]) == [
        *("", "3", "2")
    ]
    assert '<option value="spelling">' in form

    async def resume(**fields: str) -> Any:
        shown = next(part for part in (await person.see(place)).split("<form")[1:] if 'value="RESUME"' in part)
        filled = dict(re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', shown))
        return await person.client.post("/console/act", data={**filled, "reason": "x", **fields}, headers=HERE)

    refused = await resume(from_step="publish", version="3", dry_run="1")
    assert refused.status_code == 409 and "What does not fit" in refused.text and "another input" in refused.text
    preview = await resume(from_step="publish", version="2", dry_run="1")
    assert preview.status_code == 200 and "v2 in place of v1" in preview.text
    assert '<input type="hidden" name="version" value="2">' in preview.text
    done = await resume(from_step="publish", version="2")
    assert done.status_code == 303 and "did=opc_" in done.headers["location"]
