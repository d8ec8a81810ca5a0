"""The list of what never happens, item by item: what the system refuses, or has no word for. One plane for all.

Each test names its item as it stands in the requirements, after `Never:`.
"""

from __future__ import annotations

import ast
import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from tests.system.documents import ASK, PUBLISH
from tests.system.plane import Answer, Plane, eventually, http
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.states import EffectClass
from trueup_common.contracts.topology import SERVICES
from trueup_common.runtime.bootstrap import installed_adapters
from trueup_common.runtime.clock import real_now
from trueup_reconciler.core.visit import STEADY_SECONDS

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120.0
KEY = "wordpress:draft:{}"

AFTER_PIVOT = (
    PUBLISH.replace("name: publish", "name: after-pivot")
    + """  - id: told
    command: bench.post
    with: { unit: "${input.id}" }
"""
)


@pytest.fixture(scope="module", autouse=True)
def registered(plane: Plane) -> None:
    """The documents of this module."""
    for document in (ASK, AFTER_PIVOT):
        assert plane.register(document).status in (200, 201)


@pytest.fixture(autouse=True)
def healed(plane: Plane) -> None:
    """A world without faults for each test."""
    http("DELETE", f"{plane.sandbox_url}/_faults")


def operator(plane: Plane, role: str = "operator") -> str:
    return plane.token("operator:olga", roles=(role,))


def post(plane: Plane, key: str, **more: Any) -> dict[str, Any]:
    """A command on the bench that is accepted."""
    answer = plane.submit(plane.capability("bench.post", "unit"), key, "bench.post", "unit", {"unit": key}, **more)
    assert answer.status in (200, 202), answer
    return dict(answer.body)


def in_state(plane: Plane, command_id: str, *states: str) -> dict[str, Any]:
    """The journal row once it is in one of these states."""

    def look() -> dict[str, Any] | None:
        row = plane.journal(command_id)
        return row if row["state"] in states else None

    return eventually(look, f"{command_id} in {states}", SECONDS)


def landed(plane: Plane, command_id: str) -> int:
    return [item["object"] for item in plane.effects("bench.effect")].count(command_id)


def act(plane: Plane, kind: str, name: str, action: str, key: str, **params: Any) -> Answer:
    body = {"action": action, "target": {"kind": kind, "id": name}, "reason": "test", "evidence": [], "params": params}
    return plane.operate("/v1/operator-commands", body, key)


def exception_of(plane: Plane, workflow_id: str, kind: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        return next((item for item in plane.exceptions(workflow_id) if item["kind"] == kind), None)

    return eventually(look, f"a {kind} of {workflow_id}", SECONDS)


def passwords(plane: Plane) -> list[str]:
    """Every secret of the connections that the adapters use."""
    content = yaml.safe_load((Path(plane.plan.state_dir) / "connections.yaml").read_text())
    names = ("password", "token", "dsn")
    found = [str(value) for entry in content["connections"] for name, value in entry.items() if name.endswith(names)]
    assert len(found) > 5
    return found


def test_only_adapters_hold_what_a_production_api_asks_for(plane: Plane) -> None:
    """Never: agent calls a production API directly. Nobody but the adapters is told where the secrets are, neither by
    the environment nor by the command line; what an agent holds opens nothing at the target.

    Requirements: G1
    """
    secrets = passwords(plane)
    for service in SERVICES:
        process = Path(f"/proc/{plane.process(service).pid}")
        told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        assert (b"TRUEUP_CONNECTIONS" in told) == (service == "adapters"), service
        assert not [secret for secret in secrets if secret.encode() in told], service
    url = f"{plane.systems['wordpress']}/acme/wp-json/wp/v2/posts"
    for held in (plane.token(), plane.capability("wordpress.create_draft", "post")):
        for scheme in ("Bearer", "Basic"):
            document = {"title": "mine", "content": "mine", "slug": "by-myself"}
            answer = http("POST", url, document, headers={"authorization": f"{scheme} {held}"})
            assert answer.status == 401, answer
    assert plane.posts("by-myself") == []


def test_silence_is_answered_by_looking(plane: Plane) -> None:
    """Never: blind retry after a timeout. The answer is lost and the look refused: it stays sent once, and looked for
    until somebody knows.

    Requirements: X4, E2
    """
    plane.fault("lose_answer", method="POST", path="/effect$", system="bench")
    plane.fault("deny_reads", method="GET", path="/effect/", times=10_000, system="bench")
    command_id = post(plane, "silence")["command_id"]
    in_state(plane, command_id, "RECONCILING")
    looks = f"/effect/{command_id}$"
    eventually(lambda: len(plane.requests("bench", "GET", looks)) > 1 or None, "it is looked for again", SECONDS)
    assert landed(plane, command_id) == 1
    http("DELETE", f"{plane.sandbox_url}/_faults")
    assert in_state(plane, command_id, "SUCCESS")["attempt_count"] == 1
    assert landed(plane, command_id) == 1


def test_another_key_for_the_same_thing_is_pointed_to_what_there_is(plane: Plane) -> None:
    """Never: a random idempotency key per attempt. Five keys, one draft: the type's own identity decides.

    Requirements: I2
    """
    first = plane.draft("one-of-five", key=KEY.format(0))
    assert first.status in (200, 202), first
    for number in range(1, 5):
        again = plane.draft("one-of-five", key=KEY.format(number))
        assert (again.status, again.body["type"]) == (409, "/problems/identity-in-use")
        assert again.body["command_id"] == first.body["command_id"]
    in_state(plane, first.body["command_id"], "SUCCESS")
    assert len(plane.posts_of(first.body["command_id"])) == 1


def test_a_case_outlives_every_process_and_every_log(plane: Plane) -> None:
    """Never: workflow state in process memory; logs as the source of truth. All services die at once and what they
    logged is gone; the case goes on from where it stood, and has done everything once.

    Requirements: L1, V1, R7
    """
    workflow_id = plane.begun("ask", {"id": "outlives"}, "ask:outlives")
    approval = plane.approval(workflow_id)
    before = plane.history(workflow_id)
    restarts = {service: plane.process(service).restarts for service in SERVICES}
    for service in SERVICES:
        plane.kill(service)
    for log in Path(plane.plan.state_dir).rglob("*.log"):
        log.write_bytes(b"")

    def all_back() -> bool | None:
        come = all(plane.process(service).restarts > restarts[service] for service in SERVICES)
        return (come and plane.ready()) or None

    eventually(all_back, "every service is back", SECONDS)
    assert plane.answer(approval).status == 200
    case = plane.status(workflow_id, "CLOSED", seconds=SECONDS)
    assert plane.history(workflow_id)[: len(before)] == before
    made = [step["command_id"] for step in case["steps"] if step["command_id"]]
    assert [landed(plane, command_id) for command_id in made] == [1, 1]


def test_a_failure_after_the_pivot_undoes_nothing(plane: Plane) -> None:
    """Never: roll back everything on any failure. The step after publishing fails for good: the post stays published,
    nothing is compensated, and a person has the case.

    Requirements: S3
    """
    workflow_id = plane.begun("after-pivot", {"id": "stays-published"}, "after-pivot:1")
    plane.fault("status", method="POST", path="/effect$", system="bench", status=403, body={})
    assert plane.answer(plane.approval(workflow_id)).status == 200
    case = plane.status(workflow_id, "HUMAN_TAKEOVER", seconds=SECONDS)
    assert (case["pivot"], case["compensations"]) == ("passed", [])
    publish = next(step for step in case["steps"] if step["id"] == "publish")
    assert publish["compensation_state"] == "NONE"
    assert [post["status"] for post in plane.posts("stays-published")] == ["publish"]
    refused = act(plane, "workflow", workflow_id, "COMPENSATE", "undo-after-pivot")
    assert (refused.status, "COMPENSATE" in refused.body["allowed_actions"]) == (409, False)


def test_taking_back_is_an_act_of_its_own_and_not_a_delete(plane: Plane) -> None:
    """Never: compensation = delete. What was published is withdrawn: the post is still there, as a draft that says so.
    What undoes is a type of its own that is safe to repeat, or puts back what was there, and says how one sees that it
    holds; a type that can be undone without saying how is refused.

    Requirements: S1, S4
    """
    declared = {item.type: item for adapter in installed_adapters().values() for item in adapter.declarations}
    undone = {item.type: item.compensation for item in declared.values() if item.compensation is not None}
    assert undone["wordpress.publish_post"].command_type == "wordpress.withdraw_post"
    assert undone["database.record_publication"].command_type == "database.cancel_publication"
    for name, mapping in undone.items():
        undoing = declared[mapping.command_type]
        assert mapping.verification and mapping.payload, name
        assert undoing.effect_class in (EffectClass.RETRYABLE, EffectClass.COMPENSABLE), name
    for item in declared.values():
        assert item.effect_class is not EffectClass.COMPENSABLE or item.compensation is not None, item.type
    (there,) = plane.posts("stays-published")
    capability = plane.capability("wordpress.withdraw_post", "post/*")
    payload = {"post_id": there["id"]}
    asked = plane.submit(capability, "withdraw:1", "wordpress.withdraw_post", f"post/{there['id']}", payload)
    assert asked.status in (200, 202), asked
    in_state(plane, asked.body["command_id"], "SUCCESS")
    (still,) = plane.posts("stays-published")
    assert (still["id"], still["status"]) == (there["id"], "draft")
    assert "withdrawn" in json.dumps(still).lower()


def test_what_succeeded_is_looked_at_again_for_ever(plane: Plane) -> None:
    """Never: success never verified again. Every element of a closed case has its next look ahead, on a schedule whose
    last entry repeats.

    Requirements: R8
    """
    body = plane.draft("looked-at-again", key="draft:again").body
    plane.closed(body["workflow_id"])

    def planned(case: dict[str, Any]) -> bool:
        return bool(case["vector"]) and all(element["next_visit_at"] for element in case["vector"])

    case = plane.until(body["workflow_id"], planned, "the next look at every element is planned")
    for element in case["vector"]:
        assert datetime.fromisoformat(element["next_visit_at"]) > real_now(), element
    assert STEADY_SECONDS[-1] <= 86400


def test_nothing_runs_without_a_lease(plane: Plane) -> None:
    """Never: RUNNING without heartbeat. An attempt under way has a lease with an expiry and a fence; over the whole
    journal of this plane no operation in flight is without them.

    Requirements: E5, R7, P3
    """
    plane.fault("delay", method="POST", path="/effect$", system="bench", seconds=6, when="before")
    command_id = post(plane, "under-way")["command_id"]

    async def without_lease() -> tuple[int, int]:
        connection = await asyncpg.connect(plane.database_url)
        try:
            row = await connection.fetchrow(
                "SELECT count(*) FILTER (WHERE lease_expires_at IS NULL OR fence < 1) AS bare, "
                "count(*) FILTER (WHERE command_id = $1 AND lease_expires_at > clock_timestamp()) AS ours "
                "FROM orchestrator.operation WHERE state IN ('DISPATCHING', 'RUNNING')",
                command_id,
            )
            return int(row["bare"]), int(row["ours"])
        finally:
            await connection.close()

    eventually(lambda: asyncio.run(without_lease()) == (0, 1) or None, "it is under way, with its lease", SECONDS)
    in_state(plane, command_id, "SUCCESS")
    assert asyncio.run(without_lease())[0] == 0


def test_a_dead_letter_has_an_owner_and_is_never_replayed_as_it_was(plane: Plane) -> None:
    """Never: dead letters without owner; dead letters replayed as they were. Asked again under its key it stays dead
    and nothing is sent; it goes out again only as a redrive, under a fence and a decision of its own.

    Requirements: Q1, Q4, Q6
    """
    plane.fault("status", method="POST", path="/effect$", system="bench", times=10_000, status=503, body={})
    deadline = (real_now() + timedelta(seconds=6)).isoformat().replace("+00:00", "Z")
    begun = post(plane, "dead", deadline=deadline)
    command_id = begun["command_id"]
    in_state(plane, command_id, "DEAD_LETTERED")
    letter = exception_of(plane, begun["workflow_id"], "dead_letter")
    for item in plane.get("/v1/dead-letters?limit=200", operator(plane)).body["items"]:
        assert item["owner"] and item["deadline_at"], item
    assert act(plane, "exception", letter["exception_id"], "ASSIGN", "nobody", owner="").status == 422
    http("DELETE", f"{plane.sandbox_url}/_faults")
    sent = len(plane.requests("bench", "POST", "/effect$"))
    again = post(plane, "dead", deadline=deadline)
    assert (again["command_id"], again["state"]) == (command_id, "DEAD_LETTERED")
    assert len(plane.requests("bench", "POST", "/effect$")) == sent and landed(plane, command_id) == 0
    old = plane.journal(command_id)
    asked = act(plane, "exception", letter["exception_id"], "REDRIVE", "redrive-dead")
    assert asked.status == 202, asked
    row = in_state(plane, command_id, "SUCCESS")
    assert row["fence"] > old["fence"] and row["operator_command_id"] == asked.body["operator_command_id"]
    assert landed(plane, command_id) == 1


def test_who_repairs_may_do_less_than_who_asked(plane: Plane) -> None:
    """Never: a repair agent with more rights. The planner's own identity gets no decision without something to repair,
    approves nothing, freezes nothing, reads no tenant, changes no policy and performs no other act than its two.

    Requirements: G7
    """
    token = plane.token("service:repair-planner", roles=("repairer",))
    headers = {"authorization": f"Bearer {token}", "idempotency-key": '"more-rights"'}
    for command_type in ("bench.post", "wordpress.publish_post"):
        wanted = {
            "action": {"command_types": [command_type], "workflow": None},
            "resource": {"system": command_type.split(".")[0], "resource": "*"},
            "purpose": "because I can",
            "evidence": [],
            "context": {},
        }
        named = {**headers, "idempotency-key": f'"more-rights:{command_type}"'}
        decision = http("POST", f"{plane.url}/v1/decisions", wanted, headers=named)
        assert (decision.status, decision.body["outcome"]) == (201, "denied"), decision
        capability = {"decision_id": decision.body["decision_id"]}
        assert http("POST", f"{plane.url}/v1/capabilities", capability, headers=headers).status == 403
    begun = post(plane, "not-theirs")
    target = {"target": {"kind": "workflow", "id": begun["workflow_id"]}, "reason": "r", "evidence": [], "params": {}}
    for path, body in (
        ("/v1/controls/freezes", {"scope": {}, "reason": "r"}),
        ("/v1/controls/break-glass", {"scope": {}, "reason": "r", "minutes": 1}),
        ("/v1/operator-batches", {"action": "REDRIVE", "filter": {}, "reason": "r", "rate_per_second": 1}),
        *(
            ("/v1/operator-commands", {"action": action.value, **target})
            for action in OperatorAction
            if action.value not in ("RECONCILE", "REDRIVE")
        ),
    ):
        answer = http("POST", f"{plane.url}{path}", body, headers=headers)
        assert answer.status == 403, (path, body, answer)
    for path in ("/v1/policies", "/v1/controls/freezes", "/v1/kpis"):
        assert plane.get(path, token).status == 403, path


def test_there_is_no_word_for_running_any_tool(plane: Plane) -> None:
    """Never: a console that can run any tool. The actions are a closed table: another word is no action, a known one
    takes no further parameters, and whatever runs is a registered type with a schema.

    Requirements: O3
    """
    assert {action.value for action in OperatorAction} == {
        *("RETRY", "RECONCILE", "REDRIVE", "REPAIR", "COMPENSATE", "PAUSE", "RESUME", "CANCEL", "MARK_RESOLVED"),
        *("ESCALATE", "ASSIGN", "SETTLE", "TAKE_OVER", "HAND_BACK"),
    }
    workflow_id = plane.begun("ask", {"id": "no-tool"}, "ask:no-tool")
    plane.approval(workflow_id)
    for action in ("RUN_TOOL", "EXECUTE", "HTTP", "SQL", "SHELL", "retry", ""):
        assert act(plane, "workflow", workflow_id, action, f"tool-{action or 'none'}").status == 422, action
    further = act(plane, "workflow", workflow_id, "PAUSE", "tool-params", url="http://127.0.0.1/", command="rm")
    assert further.status == 422, further
    capability = plane.capability("bench.post", "unit")
    for command_type in ("bench.anything", "shell.run"):
        answer = plane.submit(capability, f"tool:{command_type}", command_type, "unit", {})
        assert answer.status in (403, 422), answer
    schemas = json.dumps(plane.get("/openapi.json").body["paths"])
    assert "RUN_TOOL" not in schemas
    plane.cancel(workflow_id)


def test_a_compensation_that_failed_is_somebodys_with_a_repair(plane: Plane) -> None:
    """Never: a failed compensation that is only logged. It is an open exception with owner and deadline, and a repair
    item that waits for a person.

    Requirements: S4, Q4, Q5
    """
    workflow_id = plane.begun("ask", {"id": "not-undone"}, "ask:not-undone")
    approval = plane.approval(workflow_id)
    plane.fault("status", method="POST", path="/effect$", system="bench", status=403, body={})
    assert plane.answer(approval, "reject").status == 200
    failed = exception_of(plane, workflow_id, "compensation_failed")
    assert failed["owner"] and failed["deadline_at"] and failed["envelope"]["failed_step"] == "before:undo"

    def planned() -> dict[str, Any] | None:
        answer = plane.get(f"/v1/repairs?exception_id={failed['exception_id']}", operator(plane))
        return next(iter(answer.body["items"]), None)

    repair = eventually(planned, "its repair", SECONDS)
    assert (repair["approval_required"], repair["playbook"]) == (True, "compensation-failed")
    assert repair["owner"] and repair["status"] not in ("DONE", "FAILED")


READS_FILES = {
    "services/adapters/trueup_adapters/connections.py": "the connections, and secrets that they name",
    "services/gateway/trueup_gateway/levels.py": "service levels and rules",
    "services/gateway/trueup_gateway/policy.py": "policies",
    "services/gateway/trueup_gateway/console/words.py": "words",
    "services/orchestrator/trueup_orchestrator/workflows/__init__.py": "documents that ship",
    "services/reconciler/trueup_reconciler/main.py": "rules of accepted drift",
    "services/repair-planner/trueup_repair_planner/playbooks/__init__.py": "playbooks that ship",
    "libs/common/trueup_common/runtime/settings.py": "secrets that settings name",
}
"""Every module of the services that reads a file, and what file."""


def test_no_module_of_the_services_reads_a_log() -> None:
    """Never: logs as the source of truth. Whatever reads a file in the services is named here with what it reads, and
    none of it is a log; nor does any of them know a log by name.

    Requirements: V1
    """
    found = set()
    for area in ("services", "libs/common/trueup_common/runtime", "libs/common/trueup_common/documents"):
        for path in (ROOT / area).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    assert not node.value.endswith((".log", ".log.1")), path
                if isinstance(node, ast.Call) and _reads(node.func):
                    found.add(str(path.relative_to(ROOT)))
    assert found == set(READS_FILES)


def _reads(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute):
        return called.attr in ("read_text", "read_bytes", "readlines")
    return isinstance(called, ast.Name) and called.id == "open"
