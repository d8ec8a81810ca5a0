"""The console over HTTP: who gets in, what its forms may do, and that nothing from outside is more than text."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from tests.gateway.edge import EdgeUnderTest, edge
from tests.gateway.person import HERE, Person
from tests.gateway.test_views import accepted, changed_exception, later, project
from tests.servers import Database

import trueup_gateway.console as package
from trueup_common.contracts.operators import CommandState, OperatorAction
from trueup_common.contracts.states import (
    CompensationState,
    EffectClass,
    ExceptionKind,
    FailureClass,
    InstanceStatus,
    OperationState,
    Phase,
    ReceiptStatus,
)
from trueup_gateway.api.app import create_app
from trueup_gateway.console import charts, shown
from trueup_gateway.console.acts import CONTRACT
from trueup_gateway.console.forms import TYPED
from trueup_gateway.console.pages import COUNTERS, FURTHER, KINDS, STATUSES
from trueup_gateway.console.places import difference
from trueup_gateway.console.view import GROUPS
from trueup_gateway.console.words import LANGUAGES, language_of, words_of
from trueup_gateway.core import kpi
from trueup_gateway.core import roles as rights
from trueup_gateway.core.ten_questions import QUESTIONS, replies
from trueup_orchestrator.core.envelopes import RECOMMENDED, RECOMMENDED_FOR_CASE

KPIS = [figure.name for figure in (*kpi.FIGURES, kpi.COST, kpi.DLQ_AGE, kpi.REPAIR_QUEUE_DEPTH, kpi.QUEUE_LAG)]
ADVICE = (*RECOMMENDED.values(), RECOMMENDED_FOR_CASE)
FOLDER = Path(str(package.__file__)).parent
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\u202eexe.gpj " + "long " * 200


@pytest_asyncio.fixture
async def person(gateway: EdgeUnderTest) -> Person:
    """Somebody who is not logged in yet."""
    gateway.client.cookies.clear()
    return Person(gateway.client)


async def an_exception(gateway: EdgeUnderTest, name: str, **changes: Any) -> tuple[str, str]:
    """An open exception of an accepted command: its id and its case's."""
    start, _, _ = await accepted(gateway, name)
    event = changed_exception(start, name, **changes)
    await project(gateway, event)
    return event.exception_id, start.workflow_id


async def test_nobody_sees_a_page_without_logging_in(gateway: EdgeUnderTest, person: Person) -> None:
    """Every page asks for a session first, keeps the wish, and an address elsewhere is no wish."""
    for path in ("exceptions", "cases", "approvals", "repairs", "incidents", "batches", "slo", "freezes", "acts"):
        response = await person.client.get(f"/console/{path}?kind=failed")
        assert response.status_code == 303
        assert response.headers["location"] == f"/console/login?next=%2Fconsole%2F{path}%3Fkind%3Dfailed"
    assert (await person.client.get("/console/live/exceptions")).status_code == 401
    assert (await person.client.get("/console")).headers["location"] == "/console/exceptions"
    assert (await person.client.get("/console/")).headers["location"] == "/console"
    assert (await person.client.get("/console/cases/")).headers["location"] == "/console/cases"
    for wish, place in (
        ("/console/cases?status=RUNNING", "/console/cases?status=RUNNING"),
        ("https://evil.example/console/", "/console/exceptions"),
        ("//evil.example/console/", "/console/exceptions"),
        ("/console/\\evil.example", "/console/exceptions"),
        ("/console/\nx", "/console/exceptions"),
    ):
        assert (await person.log_in("viewer", next=wish)).headers["location"] == place, wish


async def test_the_session_is_a_cookie_that_no_script_reads_and_no_other_site_sends(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """HttpOnly, SameSite=Strict, sealed: the access token does not stand in it; changed, it is worth nothing.

    Requirements: O4
    """
    response = await person.log_in("viewer")
    cookie = response.headers["set-cookie"]
    assert response.status_code == 303
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and "Path=/" in cookie
    sealed = person.client.cookies["trueup_console"]
    assert gateway.access(sub="operator:olga").split(".")[1][:20] not in sealed
    bearer = await person.client.get("/v1/exceptions", headers={"Authorization": f"Bearer {sealed}"})
    assert bearer.status_code == 401
    await person.see("/exceptions")
    person.client.cookies.set("trueup_console", sealed[:-6] + "AAAAAA", domain="gateway.local")
    person.client.cookies.clear()
    person.client.cookies.set("trueup_console", sealed[:-6] + "AAAAAA")
    assert (await person.client.get("/console/exceptions")).status_code == 303


async def test_over_tls_the_cookie_is_bound_to_the_host(gateway_database: Database) -> None:
    """With a public https address the name begins with __Host-, and the cookie travels over TLS only."""
    async with edge(gateway_database, public_url="https://trueup.example") as running:
        headers = {"Origin": "https://trueup.example", "Sec-Fetch-Site": "same-origin"}
        fields = {"name": "olga", "tenant": "acme", "roles": ["viewer"], "scopes": ""}
        response = await running.client.post("/console/login", data=fields, headers=headers)
        assert response.headers["set-cookie"].startswith("__Host-trueup_console=")
        assert "Secure" in response.headers["set-cookie"] and "Domain" not in response.headers["set-cookie"]


async def test_without_the_development_issuer_its_form_does_not_exist(gateway: EdgeUnderTest, person: Person) -> None:
    """In production mode nobody gets a token from the login page."""
    key, gateway.gateway.dev_key = gateway.gateway.dev_key, None
    person.client = httpx.AsyncClient(
        transport=httpx.ASGITransport(app=create_app(gateway.gateway)), base_url="http://gateway"
    )
    try:
        assert 'name="roles"' not in await person.see("/login")
        assert (await person.log_in("admin")).status_code == 403
        assert not person.client.cookies
    finally:
        await person.client.aclose()
        gateway.gateway.dev_key = key


async def test_every_answer_is_guarded_and_no_page_holds_a_script_or_a_style(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """The policy admits files of this gateway only, and the pages need nothing else."""
    exception_id, workflow_id = await an_exception(gateway, "guarded")
    await person.log_in("operator", "approver", "viewer", "auditor", "admin")
    paths = [
        "exceptions",
        "cases",
        "approvals",
        "repairs",
        "incidents",
        "batches",
        "slo",
        "freezes",
        "login",
        "nowhere",
    ]
    paths += [f"exceptions/{exception_id}", f"cases/{workflow_id}", "static/console.css", "exceptions/exc_nothing"]
    for path in paths:
        response = await person.client.get(f"/console/{path}")
        assert response.status_code in (200, 404), f"{path}: {response.text[-1500:]}"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';"), path
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy and "form-action 'self'" in policy
        assert response.headers["x-content-type-options"] == "nosniff"
        if "html" in response.headers["content-type"]:
            assert response.headers["cache-control"] == "no-store"
            assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:|<script(?![^>]*\ssrc=)", response.text), path
            assert not re.search(r"(src|href)=\"(https?:)?//", response.text), path


async def test_a_form_that_is_not_ours_does_nothing(gateway: EdgeUnderTest, person: Person) -> None:
    """Another site's form, one without the session's token, one without a browser's word: refused, nothing changed."""
    await person.log_in("operator")
    page = await person.see("/freezes")
    token = re.findall(r'name="form_token" value="([0-9a-f]{64})"', page)[0]
    before = await gateway.count("freeze")
    fields = {"form_token": token, "key": "k1", "reason": "stop", "system": "elsewhere"}
    for headers in (
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null", "Sec-Fetch-Site": "same-origin"},
        {"Origin": "http://gateway", "Sec-Fetch-Site": "same-site"},
        {},
    ):
        response = await person.client.post("/console/freezes", data=fields, headers=headers)
        assert response.status_code == 403, headers
    for other in ("", "0" * 64, token[:-1] + "g"):
        response = await person.client.post("/console/freezes", data={**fields, "form_token": other}, headers=HERE)
        assert response.status_code == 403
    sent = await person.client.post("/console/freezes", json=fields, headers=HERE)
    assert sent.status_code == 403
    big = await person.client.post("/console/freezes", data={**fields, "reason": "x" * 70_000}, headers=HERE)
    assert big.status_code == 403
    assert await gateway.count("freeze") == before
    assert (await person.client.post("/console/freezes", data=fields, headers=HERE)).status_code == 303
    assert await gateway.count("freeze") == before + 1


async def test_a_form_sent_twice_acts_once(gateway: EdgeUnderTest, person: Person) -> None:
    """The key was made when the page was: a double click gets the same answer and has no second effect.

    Requirements: O3
    """
    await person.log_in("operator")
    page = await person.see("/freezes")
    before = await gateway.count("freeze")
    for _ in range(2):
        response = await person.send("/freezes", page, "/freezes", reason="twice", system="elsewhere")
        assert response.status_code == 303
    assert await gateway.count("freeze") == before + 1
    assert "twice" in await person.see("/freezes")


async def test_the_glass_is_broken_by_name_and_for_minutes(gateway: EdgeUnderTest, person: Person) -> None:
    """A form beside the freezes, for operators; it needs minutes and a reason, and stands in the list with its end."""
    await person.log_in("operator")
    page = await person.see("/freezes")
    refused = await person.send("/break-glass", page, "/break-glass", system="elsewhere", reason="fire", minutes="x")
    assert refused.status_code == 422
    page = await person.see("/freezes")
    done = await person.send("/break-glass", page, "/break-glass", system="elsewhere", reason="fire", minutes="5")
    assert done.status_code == 303
    assert await gateway.count("freeze", "kind = 'break_glass' AND created_by = 'operator:olga'") == 1
    assert "way through" in await person.see("/freezes")
    await person.log_in("admin")
    assert "/console/break-glass" not in await person.see("/freezes")


async def test_what_a_role_may_not_do_is_not_offered_and_refused_when_forced(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """A viewer sees no form that changes anything; sending one by hand meets the contract's own refusal.

    Requirements: O4
    """
    exception_id, workflow_id = await an_exception(gateway, "roles")
    await person.log_in("viewer")
    for path in (f"/exceptions/{exception_id}", f"/cases/{workflow_id}", "/freezes"):
        page = await person.see(path)
        assert set(re.findall(r'action="(/console/[^"]+)"', page)) <= {"/console/logout", "/console/preferences"}, path
    assert "/console/batches" not in await person.see("/exceptions")
    token = re.findall(r'name="form_token" value="([0-9a-f]{64})"', page)[0]
    forced = {
        "form_token": token,
        "key": "forced",
        "action": "CANCEL",
        "target_kind": "workflow",
        "target_id": workflow_id,
        "reason": "because",
    }
    refused = await person.client.post("/console/act", data=forced, headers=HERE)
    assert refused.status_code == 403 and "<code>role</code>" in refused.text
    frozen = await person.client.post(
        "/console/freezes", data={"form_token": token, "key": "f", "reason": "r"}, headers=HERE
    )
    assert frozen.status_code == 403
    await person.log_in("approver")
    begins = await person.client.get("/console/exceptions")
    assert begins.status_code == 303 and begins.headers["location"] == "/console/approvals"
    assert (await person.client.get("/console/cases")).status_code == 403
    assert re.findall(r'aria-label="Places".*?</nav>', await person.see("/approvals"), re.S)[0].count("<li>") == 1


async def test_the_console_reads_only_what_the_contract_gives_this_person(
    gateway: EdgeUnderTest, person: Person
) -> None:
    """Another tenant's exception is nowhere; an address cannot lead a call of the contract elsewhere."""
    exception_id, _ = await an_exception(gateway, "tenants")
    await person.log_in("operator", tenant="globex")
    assert exception_id not in await person.see("/exceptions")
    await person.see(f"/exceptions/{exception_id}", 404)
    await person.see("/exceptions/..%2Fworkflows", 404)
    await person.see("/cases/wf_x%3Flimit=1", 404)


async def test_text_from_outside_is_text_and_cut(gateway: EdgeUnderTest, person: Person) -> None:
    """Markup is shown as written, characters that turn the reading direction are spelled out, length is bounded."""
    envelope = {"failure_reason": HOSTILE, "failure_code": "<b>", "target_resource": '"><script>', "command_type": "x"}
    exception_id, _ = await an_exception(gateway, "hostile", envelope=envelope, owner="<i>us</i>")
    await person.log_in("operator")
    for path in ("/exceptions", f"/exceptions/{exception_id}"):
        page = await person.see(path)
        assert "<script>alert" not in page and "onerror=alert(1)>" not in page.replace("&gt;", "")
        assert "&lt;script&gt;" in page and "<i>us" not in page and "\u202e" not in page
    assert "⟨U+202E⟩" in page and page.count("long ") < 120 and "more characters" in page


async def test_the_list_stands_in_the_order_of_deadlines(gateway: EdgeUnderTest, person: Person) -> None:
    """What is due first stands first, over pages; the counters lead, with the oldest age.

    Requirements: O1
    """
    start, _, _ = await accepted(gateway, "ordered")
    events = [
        changed_exception(start, f"due-{minutes}", deadline_at=later(60 * minutes), owner=f"due-{minutes}")
        for minutes in (50, 10, 30, 20, 40)
    ]
    await project(gateway, *events)
    headers = gateway.headers(sub="operator:olga", roles=("operator",))
    seen: list[str] = []
    cursor = ""
    while True:
        page = await gateway.client.get(
            f"/v1/exceptions?order=deadline&status=open&limit=2&cursor={cursor}", headers=headers
        )
        seen += [item["owner"] for item in page.json()["items"] if item["owner"].startswith("due-")]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert seen == ["due-10", "due-20", "due-30", "due-40", "due-50"]
    await person.log_in("operator")
    text = await person.see("/exceptions")
    assert re.findall(r'row-owner">.*?(due-\d+)', text) == seen
    words = words_of("en")
    places = [text.index(f"<span>{words(f'counter.{name}')}</span>") for name, _, _ in COUNTERS]
    assert places == sorted(places) and places[-1] < text.index(words("counter.oldest")) < text.index("data-rows")


async def test_an_exception_answers_the_ten_questions(gateway: EdgeUnderTest, person: Person) -> None:
    """All ten stand on the page of a command's exception and on the command's own, in the chosen language.

    Requirements: O2, O4
    """
    exception_id, workflow_id = await an_exception(gateway, "ten")
    await person.log_in("operator")
    command_id = re.findall(r"/console/commands/(cmd_[0-9a-f]{32})", await person.see(f"/exceptions/{exception_id}"))[0]
    answer = await person.client.post(
        "/console/preferences", data={"language": "zh", "back": f"/console/cases/{workflow_id}"}, headers=HERE
    )
    assert answer.headers["location"] == f"/console/cases/{workflow_id}"
    for path in (f"/exceptions/{exception_id}", f"/commands/{command_id}", f"/cases/{workflow_id}"):
        page = await person.see(path)
        assert 'lang="zh-Hans"' in page
        assert [name for name in QUESTIONS if f"<dt>{words_of('zh')(f'ask.{name}')}</dt>" not in page] == [], path


async def test_a_page_follows_its_case_as_the_person_would(gateway: EdgeUnderTest, person: Person) -> None:
    """The stream of a case comes through under the person's own token; somebody else's does not."""
    _, workflow_id = await an_exception(gateway, "followed")
    await person.log_in("viewer", tenant="globex")
    assert (await person.client.get(f"/console/live/cases/{workflow_id}")).status_code == 404
    await person.log_in("viewer")
    gateway.gateway.watch.dismiss()
    response = await person.client.get(f"/console/live/cases/{workflow_id}")
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")


# Words


@pytest.fixture(scope="module")
def catalogues() -> dict[str, dict[str, str]]:
    return {name: json.loads((FOLDER / "words" / f"{name}.json").read_text(encoding="utf-8")) for name in LANGUAGES}


def test_every_language_says_everything(catalogues: dict[str, dict[str, str]]) -> None:
    """The same keys with the same blanks in each; nothing is empty."""
    english = catalogues["en"]
    for name, words in catalogues.items():
        assert words.keys() == english.keys(), name
        for key, text in words.items():
            assert text.strip(), (name, key)
            assert set(re.findall(r"{(\w+)}", text)) == set(re.findall(r"{(\w+)}", english[key])), (name, key)


def test_every_word_that_a_page_uses_is_there(catalogues: dict[str, dict[str, str]]) -> None:
    """Keys in templates and code, and a word for every member of every closed list that pages show."""
    words = catalogues["en"]
    used: set[str] = set()
    for path in (*FOLDER.rglob("*.html"), *FOLDER.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        used |= set(re.findall(r"(?<![\w.])(?:t|words|view\.words)\(['\"]([a-z_]+(?:\.[A-Za-z_]+)+)['\"]", text))
    assert len(used) > 150
    needed = used | {
        *(f"kind.{item.value}" for item in ExceptionKind),
        *(f"kind.{item.value}.means" for item in ExceptionKind),
        *(f"class.{item.value}" for item in FailureClass),
        *(f"class.{item.value}.means" for item in FailureClass),
        *(f"case.{item.value}" for item in InstanceStatus),
        *(f"case.{item.value}.means" for item in InstanceStatus),
        *(f"state.{item.value}" for item in OperationState),
        *(f"phase.{item.value}" for item in Phase),
        *(f"attempt.{item.value}" for item in ReceiptStatus),
        *(f"compensation.{item.value}" for item in CompensationState),
        *(f"effect.{item.value}" for item in EffectClass),
        *(f"action.{item.value}" for item in OperatorAction),
        *(f"action.{item.value}.does" for item in OperatorAction),
        *(f"asked.{item.value}" for item in CommandState),
        *(f"counter.{name}" for name, _, _ in (*COUNTERS, *FURTHER)),
        *(f"role.{name}" for name in rights.ROLES if name != "repairer"),
        *(f"ask.{name}" for name in QUESTIONS),
        *(f"group.{group}" for group, _ in GROUPS),
        *(f"place.{name}" for _, named in GROUPS for name, _ in named),
        *(f"form.{name}.{part}" for name in ("foreign", "ended", "earlier") for part in ("title", "detail")),
        *(f"typed.{name}" for name in TYPED),
        *(f"kpi.{name}" for name in KPIS),
        *(f"incident.{name}" for name in ("OPEN", "PROBING", "RECOVERING", "CLOSED")),
        *(f"incident.{name}.means" for name in ("OPEN", "PROBING", "RECOVERING", "CLOSED")),
        *(f"advice.{text}" for text in ADVICE),
    }
    assert needed - words.keys() == set()
    assert set(KINDS) == {item.value for item in ExceptionKind}
    assert set(STATUSES) == {item.value for item in InstanceStatus}
    assert set(CONTRACT) == {item.value for item in OperatorAction}


@pytest.mark.parametrize(
    ("chosen", "accepted_languages", "spoken"),
    [
        (None, None, "en"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "de, zh;q=0.4, en;q=0.6", "en"),
        (None, "fr", "en"),
        (None, "en;q=0, zh;q=0.1", "zh"),
        (None, "zh;q=nonsense", "en"),
        ("zh", "en", "zh"),
        ("xx", "zh", "zh"),
    ],
)
def test_the_language_is_the_chosen_one_or_the_best_accepted(
    chosen: str | None, accepted_languages: str | None, spoken: str
) -> None:
    assert language_of(chosen, accepted_languages) == spoken


def test_an_end_is_told_by_what_it_came_to() -> None:
    assert (words_of("en").span(7620), words_of("en").span(7620, short=True)) == ("2 h 7 min", "2 h")
    assert words_of("en").resolution("operation_success") == "its operation stands at “succeeded”"
    assert words_of("en").resolution("case_compensated") == "its case stands at “taken back”"
    assert words_of("en").resolution("superseded") == "superseded"
    assert words_of("en").resolution("something_new") == "something_new"


def test_texts_cannot_disguise_themselves() -> None:
    assert shown.cut("a\u200bb\u202ec\x07") == "a⟨U+200B⟩b⟨U+202E⟩c⟨U+0007⟩"
    assert shown.cut("x" * 500, 10) == "x" * 10 + "…"
    assert shown.cut("  many \n\t spaces ") == "many spaces"
    assert shown.said('{"message": "not allowed"}') == "not allowed"
    assert shown.said("[]") == "[]" and shown.said('{"message": 3}') == '{"message": 3}'


# The ten questions


def row(state: str, **more: Any) -> dict[str, Any]:
    return {"command_id": "cmd_1", "state": state, "attempts": [], "compensation_state": "NONE", **more}


def told(found: dict[str, Any], case: dict[str, Any] | None = None, *elements: dict[str, Any]) -> dict[str, str]:
    return {reply.question: reply.answer for reply in replies(found, case or {"pivot": "no"}, elements)}


@pytest.mark.parametrize("state", [item.value for item in OperationState])
@pytest.mark.parametrize("compensated", [item.value for item in CompensationState])
def test_every_state_has_an_answer_in_words(
    state: str, compensated: str, catalogues: dict[str, dict[str, str]]
) -> None:
    """Whatever the state, all ten are answered, and with words that there are.

    Requirements: O4
    """
    for attempts in ([], [{"state": "UNKNOWN", "sent": True}], [{"state": "REJECTED", "sent": True}]):
        for pivot in ("no", "unknown", "passed"):
            for element in (*[item.value for item in Phase], None):
                elements = [{"command_id": "cmd_1", "element": "e", "phase": element}] if element else []
                undoes = "cmd_0" if pivot == "unknown" else None
                found = row(state, attempts=attempts, compensation_state=compensated, compensates=undoes)
                answered = replies(found, {"pivot": pivot}, elements)
                assert [reply.question for reply in answered] == list(QUESTIONS)
                for reply in answered:
                    text = catalogues["en"][f"ask.{reply.question}.{reply.answer}"]
                    assert set(re.findall(r"{(\w+)}", text)) <= reply.facts.keys(), reply


def test_unknown_is_never_told_as_failed_or_safe_to_repeat() -> None:
    """What may have happened is not known to have failed, and is looked up before anything is sent again.

    Requirements: O4
    """
    doubt = [{"state": "UNKNOWN", "sent": True}]
    for found in (row("OUTCOME_UNKNOWN", attempts=doubt), row("DEAD_LETTERED", attempts=doubt), row("NEEDS_REVIEW")):
        answers = told(found)
        assert answers["executed"] == "nobody_knows" and answers["unknown"] == "yes"
        assert answers["retry"] == "look_first" and answers["direction"] == "settle_first"
    assert told(row("DEAD_LETTERED"))["executed"] == "no_never_sent"
    refused = [{"state": "REJECTED", "sent": True}]
    assert told(row("DEAD_LETTERED", attempts=refused))["executed"] == "no_given_up"
    proven = [{"state": "UNKNOWN", "sent": True}, {"state": "CONFIRMED", "sent": True}]
    assert told(row("SUCCESS", attempts=proven))["unknown"] == "no"


def test_the_answers_follow_the_facts() -> None:
    done = row("SUCCESS", recorded_state={"post": 3}, external_resource_id="post/3", compensation_command="x.undo")
    healthy = {"command_id": "cmd_1", "element": "post", "phase": "HEALTHY"}
    drifted = {"command_id": "cmd_1", "element": "post", "phase": "DRIFT"}
    other = {"command_id": "cmd_2", "element": "theirs", "phase": "DRIFT"}
    assert told(done, None, healthy, other) == {
        "executed": "yes",
        "succeeded": "this_at",
        "unfinished": "nothing",
        "unknown": "no",
        "retry": "no_need",
        "direction": "either",
        "compensated": "not_asked",
        "diverged": "no",
        "resumable": "at_rest",
        "person": "no",
    }
    assert told(done, None, drifted)["diverged"] == "yes" and told(done, None, drifted)["unfinished"] == "the_repair"
    assert told(done, {"pivot": "passed"})["direction"] == "forward_only"
    assert told(done, {"pivot": "unknown"})["direction"] == "pivot_unknown"
    failed = row("FAILED", error_class="permanent", error_code="forbidden")
    assert told(failed)["retry"] == "would_fail_again" and told(failed)["person"] == "yes"
    assert told({**failed, "resolution_type": "settled_absent"})["retry"] == "settled_absent"
    assert told(row("RUNNING"))["resumable"] == "lease"
    owed = {"pivot": "no", "obligations": [{"command_id": "cmd_1", "status": "open", "owner": "night shift"}]}
    assert told(failed, owed)["person"] == "yes_of"


def test_what_is_withheld_is_not_told_as_nothing() -> None:
    """Whoever may not see what an effect established is told that, not that it established nothing."""
    done = row("SUCCESS", recorded_state=None, withheld=["payload", "recorded_state"])
    assert told(done)["succeeded"] == "withheld"


def test_a_compensation_is_never_told_as_not_asked_for() -> None:
    """Of the taking back itself: whether it succeeded, and that what it was to take back may still stand.

    Requirements: O4
    """
    failed = told(row("FAILED", compensates="cmd_0"))
    assert failed["compensated"] == "no" and failed["diverged"] == "still_stands"
    assert failed["direction"] == "this_is_the_way_back"
    assert told(row("SUCCESS", compensates="cmd_0"))["compensated"] == "yes"
    assert told(row("RECONCILING", compensates="cmd_0"))["compensated"] == "nobody_knows"
    assert told(row("RUNNING", compensates="cmd_0"))["compensated"] == "under_way"


# Pictures and differences


def test_a_line_is_scaled_between_what_there_is_and_what_was_promised() -> None:
    """The lowest value lies at the bottom, the highest at the top, gaps stay gaps, and one point alone can be seen."""
    drawn = charts.line([0.9, None, 1.0, 1.0], target=0.99)
    assert drawn is not None and len(drawn.pieces) == 2
    lonely, pair = ([tuple(map(float, point.split(","))) for point in piece.split()] for piece in drawn.pieces)
    assert lonely[0][1] == charts.HEIGHT - charts.PADDING and lonely[0][0] < lonely[1][0]
    assert {y for _, y in pair} == {float(charts.PADDING)} and pair[-1][0] == charts.WIDTH - charts.PADDING
    assert drawn.target_y is not None and charts.PADDING < drawn.target_y < charts.HEIGHT - charts.PADDING
    assert charts.line([]) is None and charts.line([None, None], 0.9) is None
    level = charts.line([1.0, 1.0], target=1.0)
    assert level is not None and level.target_y == charts.PADDING and level.high == 1.0, "nothing is above 100 %"


def test_numbers_of_an_objective_are_never_told_better_than_they_are() -> None:
    """Requirements: O4"""
    assert [charts.percent(value) for value in (1, 0.99999, 0.995, 0.5, -0.25, None)] == [
        "100 %", "99.99 %", "99.5 %", "50 %", "-25 %", "–",
    ]  # fmt: skip
    assert charts.budget({"error_budget_remaining": -3.0}) == (0.0, "bad")
    assert charts.budget({"error_budget_remaining": 0.2}) == (20.0, "care")
    assert charts.budget({"error_budget_remaining": 1.0}) == (100.0, "good")
    rates = [{"window_seconds": 300, "rate": 14.44}, {"window_seconds": 3600, "rate": 1.0}, {"rate": 2}]
    told = charts.burns({"burn_rates": rates})
    assert [item[:3] for item in told] == [(300, "14.4", "bad"), (3600, "1", "good"), (0, "2", "care")]
    widths = [charts.burn_width(rate) for rate in (0, 1, 2, 14.4, 99)]
    assert widths == sorted(widths) and widths[0] == 0 and widths[-1] == 100


def test_a_difference_shows_what_goes_and_what_comes() -> None:
    told_lines = difference("one\ntwo\nthree", "one\n2\u202e\nthree")
    assert ("less", "-two") in told_lines and ("more", "+2⟨U+202E⟩") in told_lines and ("same", " one") in told_lines
