"""One tenant's token against everything of another tenant: every route of the document, with every role at once.

What has an id answers exactly as an id that never existed; what is a list or a body shows and moves nothing.
"""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest_asyncio
from tests.gateway.asks import OPERATOR, open_approval
from tests.gateway.edge import EdgeUnderTest, draft
from tests.gateway.mending import told_incident, told_repair
from tests.gateway.test_artifacts import by_reference, keep, keep_payload
from tests.gateway.test_definitions import named, register
from tests.gateway.test_operators import on_case
from tests.gateway.test_refusals import problem
from tests.gateway.test_signals import signal
from tests.gateway.test_views import accepted, changed_exception, events_of, project

from trueup_common.contracts.events import CaseChanged, ElementChanged
from trueup_common.contracts.ids import derived_id
from trueup_common.contracts.states import Phase
from trueup_common.runtime.clock import real_now
from trueup_gateway.core.roles import ROLES

OWNER, STRANGER = "acme", "globex"
WHO = {"sub": "operator:ops", "tenant": STRANGER, "roles": ROLES, "scopes": ("*", "content:publish")}
"""Also the same subject as the owner's operator: only the tenant differs."""
NEVER = {"dec", "cap", "cmd", "wf", "apr", "opc", "art", "exc", "frz"}
OF_ALL = {
    "/dev/token",
    "/livez",
    "/readyz",
    "/metrics",
    "/.well-known/jwks.json",
    "/problems/{slug}",
    "/v1/policies",  # one set for the whole plane
}


NUMBERS = itertools.count(1)


@dataclass
class Theirs:
    """Objects of the owner: what stands for each path parameter, and every id and word that must stay unseen."""

    parameters: dict[str, str]
    secrets: set[str] = field(default_factory=set)


async def rows_of(gateway: EdgeUnderTest, tenant: str) -> dict[str, list[str]]:
    """Every row of a tenant in every table that has tenants."""
    found: dict[str, list[str]] = {}
    async with gateway.database.connection() as connection:
        tables = await connection.fetch(
            "SELECT table_name FROM information_schema.columns "
            "WHERE table_schema = 'gateway' AND column_name = 'tenant'"
        )
        for record in tables:
            name = record["table_name"]
            rows = await connection.fetch(f'SELECT t::text AS row FROM gateway."{name}" AS t WHERE tenant = $1', tenant)
            found[name] = sorted(row["row"] for row in rows)
    assert len(found) > 10
    return found


@pytest_asyncio.fixture
async def theirs(gateway: EdgeUnderTest) -> Theirs:
    """One of everything, of the owner."""
    word = f"theirs-alone-{next(NUMBERS)}"
    start, instance, row = await accepted(gateway, word)
    exceptions = [changed_exception(start, kind, kind=kind) for kind in ("dead_letter", "state_drift")]
    element = ElementChanged(
        tenant=OWNER,
        system="wordpress",
        resource=f"post/{word}",
        element="wordpress.post",
        command_id=start.command_id,
        workflow_id=start.workflow_id,
        version=1,
        desired=1,
        phase=Phase.DRIFT,
    )
    case = CaseChanged(
        instance=instance.evolve(state_version=2),
        operations=(row.evolve(state_version=2, receipt={"post_id": 1}),),
        history=tuple(events_of(start, 2)),
    )
    repair = told_repair(tenant=OWNER, repair_id=derived_id("rep", word), source_workflow=start.workflow_id)
    incident = told_incident(real_now()).evolve(tenant=OWNER, incident_id=derived_id("inc", word))
    await project(gateway, case, element, *exceptions, repair, incident)
    waiting, shown = await open_approval(gateway, summary={"title": f"Title of {word}"})
    acted = (await on_case(gateway, waiting, "PAUSE")).json()["operator_command_id"]
    assert (await signal(gateway, waiting, f"theirs {word}")).status_code == 202
    artifact = await keep(gateway)
    assert (await register(gateway, f"register {word}", named(word))).status_code == 201
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": f"freeze {word}"}
    body = {"scope": {"definition": word}, "reason": word}
    frozen = (await gateway.client.post("/v1/controls/freezes", json=body, headers=headers)).json()["freeze_id"]
    bulk = {"action": "REDRIVE", "filter": {"owner": word}, "reason": word, "dry_run": True}
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": f"batch {word}"}
    batch = (await gateway.client.post("/v1/operator-batches", json=bulk, headers=headers)).json()["batch_id"]
    ids = {
        "batch_id": batch,
        "decision_id": start.mandate.decision_id,
        "capability_id": start.mandate.capability_id,
        "command_id": start.command_id,
        "workflow_id": waiting.workflow_id,
        "approval_id": shown["approval_id"],
        "operator_command_id": acted,
        "artifact_id": artifact,
        "exception_id": exceptions[0].exception_id,
        "freeze_id": frozen,
        "repair_id": repair.repair_id,
        "incident_id": incident.incident_id,
    }
    more = {start.workflow_id, shown["nonce"], word, f"Title of {word}"}
    return Theirs({**ids, "event_id": f"theirs%20{word}", "name": word, "version": "1"}, {*ids.values(), *more})


async def operations(gateway: EdgeUnderTest) -> list[tuple[str, str, dict[str, Any]]]:
    """Every operation of the document: method, path, and itself."""
    document = (await gateway.client.get("/openapi.json")).json()
    return [
        (method.upper(), path, operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if path not in OF_ALL
    ]


def body_of(operation: dict[str, Any]) -> Any:
    """The example body of an operation; None where it takes none."""
    content = operation.get("requestBody", {}).get("content", {})
    return copy.deepcopy(content.get("application/json", {}).get("example"))


async def ask(
    gateway: EdgeUnderTest, method: str, url: str, body: Any, key: str, token: str | None = None
) -> httpx.Response:
    """One call of the stranger."""
    headers = {**gateway.headers(**WHO), "Idempotency-Key": key}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return await gateway.client.request(method, url, json=body, headers=headers)


def never(parameter: str, value: str) -> str:
    """Something of the same form that never existed."""
    prefix = value.partition("_")[0]
    return f"{prefix}_{'0' * 32}" if prefix in NEVER else {"version": "1", "name": "nobodys"}.get(parameter, "nobodys")


async def test_what_has_an_id_is_not_there_for_another_tenant(gateway: EdgeUnderTest, theirs: Theirs) -> None:
    """Reading, cancelling, signalling, approving, revoking, deleting: 404 as for an id that never was, nothing moved.

    Requirements: T1
    """
    before, asked = await rows_of(gateway, OWNER), 0
    for method, path, operation in await operations(gateway):
        names = [item["name"] for item in operation.get("parameters", []) if item["in"] == "path"]
        if not names:
            continue
        assert set(names) <= set(theirs.parameters), f"{path}: say what of the owner stands for {names}"
        answers = []
        for values in (theirs.parameters, {name: never(name, theirs.parameters[name]) for name in names}):
            url = path
            for name in names:
                url = url.replace(f"{{{name}}}", values[name])
            response = await ask(gateway, method, url, body_of(operation), f"{operation['operationId']}-{url[-40:]}")
            found = problem(response, 404, "not-found")
            answers.append({name: value for name, value in found.items() if name != "instance"})
            assert not any(secret in response.text for secret in theirs.secrets), (method, path)
        assert answers[0] == answers[1], f"{method} {path} tells that something is there"
        asked += 1
    assert asked >= 15
    assert await rows_of(gateway, OWNER) == before


async def test_lists_show_nothing_of_another_tenant(gateway: EdgeUnderTest, theirs: Theirs) -> None:
    """Every list and every count; the owner's own reader sees what the stranger does not.

    Requirements: T1
    """
    empty, listed = 0, [(path, operation) for method, path, operation in await operations(gateway) if method == "GET"]
    for path, _ in listed:
        if "{" in path:
            continue
        for query in ("", "?limit=200", f"?workflow_id={theirs.parameters['workflow_id']}"):
            response = await ask(gateway, "GET", path + query, None, "k")
            assert response.status_code in (200, 400), (path, response.text)
            assert not any(secret in response.text for secret in theirs.secrets), path
        owners = gateway.headers(sub="operator:ops", tenant=OWNER, roles=ROLES)
        own = (await gateway.client.get(f"{path}?limit=200", headers=owners)).text
        empty += not any(secret in own for secret in theirs.secrets)
    assert empty <= 4  # the catalog of types, the summary of counts and the numbers name no object at all


async def bodies(gateway: EdgeUnderTest, theirs: Theirs) -> dict[str, tuple[Any, str | None]]:
    """For every operation that takes a body and no id in its path: a body that reaches for the owner's objects."""
    own = (await gateway.capability(tenant=STRANGER))["capability"]
    decided = {
        "action": {"command_types": ["wordpress.create_draft"], "workflow": None},
        "resource": {"system": "wordpress", "resource": "post/*"},
        "purpose": "theirs",
    }
    evidence = [{"id": "e", "uri": f"artifact:{theirs.parameters['artifact_id']}", "sha256": "0" * 64}]
    kept = by_reference("reach", await keep_payload(gateway, draft("reach")["payload"]))
    word = theirs.parameters["name"]
    return {
        "POST /v1/decisions": ({**decided, "evidence": evidence}, None),
        "POST /v1/capabilities": ({"decision_id": theirs.parameters["decision_id"], "max_uses": 1}, None),
        "POST /v1/commands": (kept, own),
        "POST /v1/commands:batch": ({"commands": [{**kept, "idempotency_key": "reach-2"}]}, own),
        "POST /v1/workflows": ({"definition": word, "input": {"slug": "a", "title": "b"}}, own),
        "POST /v1/operator-commands": (
            {
                "action": "PAUSE",
                "target": {"kind": "workflow", "id": theirs.parameters["workflow_id"]},
                "reason": "reach",
            },
            None,
        ),
        "POST /v1/operator-batches": ({"action": "REDRIVE", "filter": {"owner": word}, "reason": "reach"}, None),
        "POST /v1/controls/break-glass": ({"scope": {"tenant": OWNER}, "reason": "reach", "minutes": 5}, None),
        "POST /v1/controls/freezes": ({"scope": {"tenant": OWNER}, "reason": "reach"}, None),
        "DELETE /v1/controls/freezes": ({"scope": {"definition": word}, "reason": "reach"}, None),
        "POST /v1/definitions": ({"document": named(word).replace("A title", "Another")}, None),
        "POST /v1/artifacts": ({"any": "bytes"}, None),
    }


async def test_a_body_that_reaches_for_another_tenant_gets_nothing(gateway: EdgeUnderTest, theirs: Theirs) -> None:
    """Decisions, capabilities, commands, starts, acts and freezes that name the owner's objects: refused.

    Requirements: T1
    """
    reaching = await bodies(gateway, theirs)
    taking = {
        f"{method} {path}"
        for method, path, operation in await operations(gateway)
        if "requestBody" in operation and "{" not in path
    }
    assert taking == set(reaching), "a route that takes a body needs a body that reaches for another tenant"
    before = await rows_of(gateway, OWNER)
    # of one's own: under a name that another also uses, and of what one has oneself
    harmless = {"POST /v1/definitions", "POST /v1/artifacts", "POST /v1/operator-batches"}
    for name, (body, token) in reaching.items():
        method, _, path = name.partition(" ")
        response = await ask(gateway, method, path, body, f"reach {name}", token)
        statuses = [response.status_code]
        if response.status_code == 207:
            statuses = [item["status"] for item in response.json()["results"]]
        assert all(status < 300 if name in harmless else 400 <= status < 500 for status in statuses), response.text
        told = response.text.replace(json.dumps(body), "")
        ids = theirs.secrets - {theirs.parameters["name"]}
        assert not any(secret in told for secret in ids), (name, told)
    assert await rows_of(gateway, OWNER) == before
