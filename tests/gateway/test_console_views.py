"""What pages of the console show: views by right, hostile text from every side, long timelines, families."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, later
from tests.gateway.mending import told_incident, told_repair
from tests.gateway.person import HERE, Person, form_to, hidden
from tests.gateway.test_views import accepted, changed_exception, events_of, project

from trueup_common.contracts.events import CaseChanged, ElementChanged
from trueup_common.contracts.journal import InstanceRow, JournalRow
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.states import InstanceStatus, OperationState, Phase
from trueup_common.runtime.clock import real_now
from trueup_gateway.console import acts, shown, timeline
from trueup_gateway.console.pages import TIMELINE_MAX
from trueup_gateway.console.words import words_of

HOSTILE = "'\"><script>alert('x')</script><img src=x onerror=alert(1)>\u202e\x07{{7*7}}"
SAFE = "safe value of the world"


@pytest_asyncio.fixture
async def person(gateway: EdgeUnderTest) -> Person:
    """Somebody who is not logged in yet."""
    gateway.client.cookies.clear()
    return Person(gateway.client)


class Elements(HTMLParser):
    """Everything in a page that a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in {"img", "iframe", "object", "embed", "style", "base"} or "style" in given:
            self.found.append(f"{tag} {given}")
        if tag == "script" and not str(given.get("src")).startswith("/console/static/"):
            self.found.append(f"{tag} {given}")
        for name, value in attrs:
            lowered = (value or "").strip().lower()
            if name.startswith("on") or (
                name in {"href", "src", "action"} and lowered.startswith(("javascript", "data:"))
            ):
                self.found.append(f"{tag} {name}={value}")


def harmless(page: str, where: str) -> None:
    """Nothing from outside became an element, an attribute or a template."""
    elements = Elements()
    elements.feed(page)
    assert elements.found == [], where
    assert "\u202e" not in page and "\x07" not in page, where
    assert "49" not in re.findall(r"onerror=alert\(1\)&gt;[^{<]{0,20}(\d+)", page), where


async def changed(gateway: EdgeUnderTest, name: str, **row: Any) -> tuple[InstanceRow, JournalRow]:
    """A case with one operation as the orchestrator told of it."""
    _, instance, journal = await accepted(gateway, name)
    told = journal.evolve(state=OperationState.FAILED, state_version=5, **row)
    held = instance.evolve(state_version=5, status=InstanceStatus.HUMAN_TAKEOVER)
    await project(gateway, CaseChanged(instance=held, operations=(told,)))
    return held, told


def element(instance: InstanceRow, row: JournalRow, **changes: Any) -> ElementChanged:
    """One element of the world."""
    facts: dict[str, Any] = {
        "tenant": "acme",
        "system": "wordpress",
        "resource": "post/7",
        "element": "wordpress.status",
        "command_id": row.command_id,
        "workflow_id": instance.workflow_id,
        "version": 3,
        "desired": SAFE,
        "recorded": SAFE,
        "observed": "trash",
        "verdict": "CONFIRMED",
        "phase": Phase.DRIFT,
        "observed_at": later(-45),
        "source": "wordpress.rest",
        "next_visit_at": later(600),
    }
    return ElementChanged(**{**facts, **changes})


NAMES = {
    "viewer": ["exceptions", "repairs", "incidents", "freezes", "slo", "cases", "approvals"],
    "operator": ["exceptions", "repairs", "incidents", "batches", "freezes", "slo", "cases", "approvals", "acts"],
    "auditor": ["exceptions", "repairs", "incidents", "freezes", "slo", "cases", "approvals", "acts"],
    "approver": ["approvals"],
    "admin": ["freezes"],
}


@pytest.mark.parametrize("role", list(NAMES))
async def test_each_role_sees_its_own_views(gateway: EdgeUnderTest, person: Person, role: str) -> None:
    """Operations, business and audit are separate: what a role does not open stands in no menu, and who has nothing to
    do with exceptions begins where they have.

    Requirements: O4
    """
    await person.log_in(role)
    begins = await person.client.get("/console/exceptions", follow_redirects=True)
    assert begins.status_code == 200
    menu = re.findall(r'<nav aria-label="Places">.*?</nav>', begins.text, re.S)[0]
    assert re.findall(r'href="/console/([a-z]+)"', menu) == NAMES[role]


async def test_an_auditor_sees_acts_and_no_content_a_viewer_content_and_no_button(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """The auditor reads that things are and what people did, not what they say; neither finds a form that acts.

    Requirements: O4, T3
    """
    instance, row = await changed(gateway, "views")
    await project(gateway, element(instance, row, phase=Phase.HEALTHY, observed=SAFE))
    paths = (f"/cases/{instance.workflow_id}", f"/commands/{row.command_id}")
    for role, sees in (("viewer", True), ("auditor", False), ("operator", True)):
        await person.log_in(role)
        for path in paths:
            page = await person.see(path)
            assert (SAFE in page) is sees, (role, path)
            assert ("withheld" in page) is not sees, (role, path)
            if role != "operator":
                forms = set(re.findall(r'action="(/console/[^"]+)"', page))
                assert forms <= {"/console/logout", "/console/preferences"}, (role, path)
    await person.log_in("auditor")
    await person.see("/acts")


async def test_hostile_text_is_text_on_every_page(gateway: EdgeUnderTest, person: Person) -> None:
    """Titles, error texts, reasons, names of elements and systems, facts, ids in addresses: from real events, on every
    page, nothing becomes an element or an attribute, and nothing turns the reading direction.

    Requirements: O2, O4, T3
    """
    start, instance, row = await accepted(gateway, "hostile-events")
    await project(
        gateway,
        CaseChanged(
            instance=instance.evolve(state_version=5, status=InstanceStatus.HUMAN_TAKEOVER, history_seq=1),
            operations=(
                row.evolve(
                    state=OperationState.DEAD_LETTERED,
                    state_version=5,
                    payload={"title": HOSTILE, "slug": "x"},
                    dead_letter_reason=HOSTILE,
                    error_code=HOSTILE,
                    external_resource_id=HOSTILE,
                    recorded_state={HOSTILE: HOSTILE},
                ),
            ),
            history=tuple(events_of(start, 1)),
        ),
        element(
            instance,
            row,
            resource=HOSTILE,
            element=HOSTILE,
            desired={HOSTILE: HOSTILE},
            observed=HOSTILE,
            source=HOSTILE,
        ),
    )
    told = {
        "failure_reason": f'{{"message":"{HOSTILE}',
        "failure_code": HOSTILE,
        "command_type": HOSTILE,
        "target_resource": HOSTILE,
        "recommended_repair": HOSTILE,
        "last_known_good": HOSTILE,
        "trail": [{"turn": HOSTILE, "to": HOSTILE, "at": "yesterday", "actor": HOSTILE}],
    }
    letter = changed_exception(start, "hostile-events", kind="dead_letter", owner=HOSTILE[:90], envelope=told)
    incident = told_incident(real_now())
    cause = {"by": HOSTILE, "value": HOSTILE, "failure_class": HOSTILE}
    repair = told_repair(explanation=HOSTILE, verification_plan=HOSTILE, playbook=HOSTILE, root_cause=HOSTILE)
    radius = {"systems": 1, "systems_named": [HOSTILE]}
    await project(gateway, letter, incident.evolve(cause=cause, blast_radius=radius), repair)
    await person.log_in("operator", "approver", "viewer", "auditor", "admin")
    page = await person.see("/freezes")
    await person.send("/freezes", page, "/freezes", reason=HOSTILE, system="elsewhere")
    await gateway.decide("wordpress.publish_post", resource="post/8")
    await person.send(
        "/batches", await person.see("/batches"), "/batches", reason=HOSTILE, action="ESCALATE", kind="dead_letter"
    )
    paths = [f"/{name}" for name in NAMES["operator"]]
    paths += [f"/exceptions/{letter.exception_id}", f"/cases/{instance.workflow_id}", f"/commands/{row.command_id}"]
    paths += [
        f"/{kind}/{quote(HOSTILE, safe='')}" for kind in ("exceptions", "cases", "commands", "decisions", "approvals")
    ]
    paths += [f"/exceptions?owner={quote(HOSTILE)}&cause={quote(HOSTILE)}", f"/acts?target={quote(HOSTILE)}"]
    paths += re.findall(r'href="/console(/batches/bat_\w+)"', await person.see("/batches"))[:1]
    paths += re.findall(r'href="/console(/approvals/apr_\w+)"', await person.see("/approvals"))[:1]
    shown_on = 0
    for path in paths:
        response = await person.client.get(f"/console{path}")
        assert response.status_code in (200, 400, 404), (path, response.status_code)
        harmless(response.text, path)
        shown_on += "&lt;script&gt;alert" in response.text
    assert shown_on >= 6, "it was really there"


async def test_a_long_timeline_is_read_in_pages(gateway: EdgeUnderTest, person: Person) -> None:
    """Of 250 facts the newest stand first, each page leads to the earlier ones, and none is missed or told twice.

    Requirements: O2
    """
    start, instance, row = await accepted(gateway, "long")
    count = 250
    await project(
        gateway,
        CaseChanged(
            instance=instance.evolve(state_version=5, status=InstanceStatus.RUNNING, history_seq=count),
            operations=(row.evolve(state=OperationState.RUNNING, state_version=5),),
            history=tuple(events_of(start, count)),
        ),
    )
    await person.log_in("viewer")
    seen: list[int] = []
    path: str | None = f"/cases/{instance.workflow_id}"
    pages = 0
    while path is not None:
        page = await person.see(path)
        here = [int(number) for number in re.findall(r"no\. (\d+)</span>", page)]
        assert here == sorted(here, reverse=True) and len(here) <= TIMELINE_MAX
        seen, pages = seen + here, pages + 1
        path = next(iter(re.findall(r'href="/console(/cases/[^"#]+\?before=\d+)#timeline"', page)), None)
    assert seen == list(range(count, 0, -1)) and pages == 3
    assert "The newest facts" in page


def test_days_and_silences_stand_between_facts() -> None:
    """A new day is told above its first line, and a silence of more than a minute where it was."""
    at = ("2026-11-29T23:59:00Z", "2026-11-29T23:59:30Z", "2026-11-30T02:00:00Z")
    lines = timeline.entries_of(
        [{"seq": n, "type": "T", "occurred_at": text, "payload": {}} for n, text in enumerate(at)]
    )
    assert [line["seq"] for line in lines] == [2, 1, 0]
    assert [line["day"] for line in lines] == ["2026-11-30", "2026-11-29", None]
    assert [line["silence"] for line in lines] == [7230.0, 0.0, 0.0]
    assert timeline.entries_of([]) == []


def test_what_goes_round_is_told_once() -> None:
    """Turns that repeat are folded, with their number; nothing is lost, and what is different stays where it was."""
    kinds = ["Begin", *("Retry", "Send", "Lose") * 20, "Ask", "Ask", "End"]
    events = [
        {"seq": seq, "type": kind, "occurred_at": f"2026-11-30T08:00:{seq % 60:02d}Z", "actor": "a", "payload": {}}
        for seq, kind in enumerate(kinds, 1)
    ]
    lines = timeline.entries_of(events)
    assert [line.get("type", "fold") for line in lines] == [
        "End",
        "Ask",
        "Ask",
        "Lose",
        "Send",
        "Retry",
        "fold",
        "Begin",
    ]
    fold = lines[6]
    assert fold["turns"] == 19 and len(fold["fold"]) == 57
    every = [one["seq"] for line in lines for one in line.get("fold", [line])]
    assert every == list(range(len(kinds), 0, -1))


async def test_a_family_of_commands_is_shown_together(gateway: EdgeUnderTest, person: Person) -> None:
    """Whichever member one looks at: all that it supersedes and all that supersede it, the newest first.

    Requirements: O6
    """
    names: list[str] = []
    for number in range(3):
        _, row = await changed(gateway, f"family-{number}", supersedes=names[-1] if names else None)
        names.append(row.command_id)
    async with gateway.database.connection() as connection:
        for older, newer in pairwise(names):
            await connection.execute(
                "INSERT INTO gateway.lineage (command_id, tenant, supersedes, created_at) "
                "VALUES ($1, 'acme', $2, now()) ON CONFLICT (command_id) DO NOTHING",
                newer,
                older,
            )
    await person.log_in("viewer")
    for name in names:
        page = await person.see(f"/commands/{name}")
        family = re.findall(r'<ol class="family">.*?</ol>', page, re.S)[0]
        assert re.findall(r'href="/console/commands/(cmd_\w+)"', family) == list(reversed(names))
        assert re.findall(r'aria-current="true">.*?commands/(cmd_\w+)"', family, re.S) == [name]


async def test_a_closed_case_that_drifted_says_so(gateway: EdgeUnderTest, person: Person) -> None:
    """Closed with proof and drifted since: the case does not claim that all is the same, and leads to the exception.

    Requirements: O2, R8
    """
    start, instance, row = await accepted(gateway, "drifted-later")
    over = instance.evolve(state_version=9, status=InstanceStatus.CLOSED, closed_at=real_now())
    told = row.evolve(state=OperationState.SUCCESS, state_version=9, desired_state={"wordpress.status": SAFE})
    drift = changed_exception(start, "drifted-later", kind="state_drift", failure_class="STATE_DRIFT")
    await project(gateway, CaseChanged(instance=over, operations=(told,)), element(over, told), drift)
    await person.log_in("viewer")
    page = await person.see(f"/cases/{instance.workflow_id}")
    assert words_of("en")("case.CLOSED.means") not in page
    assert "has drifted: wordpress.status" in page and f"/console/exceptions/{drift.exception_id}" in page


async def test_cases_that_are_over_are_not_in_the_way(gateway: EdgeUnderTest, person: Person) -> None:
    """By default only what goes on; everything when it is asked for.

    Requirements: O6
    """
    instance, _ = await changed(gateway, "goes-on")
    _, over, row = await accepted(gateway, "is-over")
    done = row.evolve(state=OperationState.SUCCESS, state_version=9)
    ended = over.evolve(state_version=9, status=InstanceStatus.CLOSED, closed_at=real_now())
    await project(gateway, CaseChanged(instance=ended, operations=(done,)))
    await person.log_in("viewer")
    page = await person.see("/cases")
    assert instance.workflow_id in page and over.workflow_id not in page
    assert over.workflow_id in await person.see("/cases?status=all")
    assert over.workflow_id in await person.see("/cases?status=CLOSED")


@pytest.mark.parametrize("state", [item.value for item in OperationState])
def test_why_not_has_a_reason_for_every_act_and_state(state: str) -> None:
    """Whatever is not offered is told with a reason in words; what is offered is never told as impossible.

    Requirements: O2
    """
    words = words_of("en")
    for kind in ("failed", "state_drift", "quarantined_message", "dead_letter", "conflict"):
        for row in ({}, {"state": state}, {"state": state, "attempts": [{"sent": True}], "compensates": "cmd_0"}):
            for action in acts.OF_EXCEPTIONS:
                key = acts.why_not(action, {"kind": kind}, {"pivot": "passed"}, row)
                assert words.catalogue.get(f"why.{key}"), key
    for status in InstanceStatus:
        for pivot in ("no", "passed", "unknown"):
            for action in acts.OF_CASES:
                key = acts.why_not_of_case(action, {"status": status.value, "pivot": pivot, "definition": "x"})
                assert words.catalogue.get(f"why.{key}"), key
    assert set(acts.OF_EXCEPTIONS) | set(acts.OF_CASES) <= {item.value for item in OperatorAction}


FORMS: dict[str, tuple[str, dict[str, str], str]] = {
    "freezes": ("/freezes", {"reason": "twice", "system": "twice"}, "freeze"),
    "break-glass": ("/freezes", {"reason": "twice", "system": "twice", "minutes": "5"}, "freeze"),
    "batches": ("/batches", {"reason": "twice", "action": "ESCALATE", "kind": "dead_letter"}, "operator_batch"),
}


@pytest.mark.parametrize("name", list(FORMS))
async def test_each_form_sent_twice_acts_once(gateway: EdgeUnderTest, person: Person, name: str) -> None:
    """The second sending of the same form finds the first one's answer.

    Requirements: I5
    """
    place, fields, table = FORMS[name]
    start, _, _ = await accepted(gateway, f"form-{name}")
    await project(gateway, changed_exception(start, f"form-{name}", kind="dead_letter"))
    await person.log_in("operator")
    page = await person.see(place)
    before = await gateway.count(table)
    places = [(await person.send(f"/{name}", page, f"/{name}", **fields)).headers.get("location") for _ in range(2)]
    assert places[0] == places[1] is not None
    assert await gateway.count(table) == before + 1


async def test_lifting_deciding_and_steering_twice_act_once(gateway: EdgeUnderTest, person: Person) -> None:
    """The same for what ends a freeze, answers an approval, and starts a batch.

    Requirements: I5
    """
    await person.log_in("operator", "approver", scopes="wordpress")
    await person.send("/freezes", await person.see("/freezes"), "/freezes", reason="lift me", system="lifted")
    page = await person.see("/freezes")
    address = re.findall(r'action="/console(/freezes/[^"]+/lift)"', page)[0]
    assert [(await person.send(address, page, address)).status_code for _ in range(2)] == [303, 303]

    decision = await gateway.decide("wordpress.publish_post", resource="post/twice")
    headers = gateway.headers(sub="operator:olga", roles=("approver",), scopes=("wordpress",))
    listed = (await gateway.client.get("/v1/approvals?status=pending&limit=200", headers=headers)).json()["items"]
    approval = next(item["approval_id"] for item in listed if item["subject_decision_id"] == decision["decision_id"])
    page = await person.see(f"/approvals/{approval}")
    address = f"/approvals/{approval}/decide"
    answers = [await person.send(address, page, address, decision="approve", reason="read") for _ in range(2)]
    assert [answer.headers.get("location") for answer in answers] == [f"/console/approvals/{approval}?decided=yes"] * 2
    assert await gateway.count("approval", f"approval_id = '{approval}' AND status = 'approved'") == 1

    start, _, _ = await accepted(gateway, "steer")
    await project(gateway, changed_exception(start, "steer", kind="dead_letter", owner="steerers"))
    made = await person.send(
        "/batches", await person.see("/batches"), "/batches", reason="many", action="ESCALATE", owner="steerers"
    )
    batch = made.headers["location"].removeprefix("/console")
    page = await person.see(batch)
    fields = {**hidden(form_to(page, f"{batch}/steer")), "verb": "start"}
    for _ in range(2):
        steered = await person.client.post(f"/console{batch}/steer", data=fields, headers=HERE)
        assert steered.status_code == 303


def test_values_are_shortened_where_nobody_reads_them() -> None:
    """Long numbers in names, documents by their fields, addresses as links only where they are nothing else."""
    assert str(shown.place_mark("zone/" + "a1" * 16 + "/x")) == (
        f'<span title="zone/{"a1" * 16}/x">zone/a1a1a1a1…/x</span>'
    )
    assert str(shown.place_mark("post/28")) == "post/28"
    assert shown.short_id("wf_01a22bab9e2b7715bd1a447749b26ad4") == "wf_…49b26ad4", "ids of one minute begin alike"
    assert ">for exc_…49b26ad4<" in str(shown.place_mark("for exc_01a22bab9e2b7715bd1a447749b26ad4"))
    assert "<i>url</i> http" in str(shown.value_mark({"url": "http://x", "n": 1}))
    assert "href" in str(shown.linked("https://x.example/a?b=1"))
    for text in ("javascript:alert(1)", "see https://x.example", 'https://x"onclick=1', "https://x y"):
        assert "href" not in str(shown.linked(text)), text
    assert shown.said('{"code":"rest","message":"Sorry, \\"you\\" may not","da') == 'Sorry, "you" may not'
    assert shown.number(42.0) == "42" and shown.number(1234567) == "1 234 567" and shown.number(0.2) == "0.20"
    assert "2026-11-30 09:00 UTC" in str(
        shown.both_times("2026-11-30T09:00:00Z", later(0).replace(year=2026, month=12, day=1), words_of("en"))
    )
