"""The document tells the truth: every answer fits it, every problem is in it, and nothing unbuilt is."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from tests.gateway.asks import decide, open_approval
from tests.gateway.edge import EdgeUnderTest, draft
from tests.gateway.mending import told_incident, told_repair
from tests.gateway.test_governance import ADMIN, OPERATOR
from tests.gateway.test_refusals import problem
from tests.gateway.test_views import accepted, changed_exception, events_of, project

from trueup_common.contracts.events import CaseChanged, ElementChanged
from trueup_common.contracts.operators import OperatorAction
from trueup_common.contracts.problems import PROBLEMS
from trueup_common.contracts.states import Phase
from trueup_gateway.api.http import fit
from trueup_gateway.core.operator_params import PARAMS

PATHS = {
    "/dev/token": {"post"},
    "/v1/decisions": {"post"},
    "/v1/decisions/{decision_id}": {"get"},
    "/v1/decisions/{decision_id}/revoke": {"post"},
    "/v1/capabilities": {"post"},
    "/v1/capabilities/{capability_id}": {"get"},
    "/v1/capabilities/{capability_id}/revoke": {"post"},
    "/v1/commands": {"get", "post"},
    "/v1/commands:batch": {"post"},
    "/v1/commands/{command_id}": {"get"},
    "/v1/definitions": {"get", "post"},
    "/v1/definitions/{name}/{version}": {"get"},
    "/v1/definitions/{name}/{version}/retire": {"post"},
    "/v1/workflows": {"get", "post"},
    "/v1/workflows/{workflow_id}": {"get"},
    "/v1/workflows/{workflow_id}/history": {"get"},
    "/v1/workflows/{workflow_id}/stream": {"get"},
    "/v1/workflows/{workflow_id}/signals": {"post"},
    "/v1/workflows/{workflow_id}/signals/{event_id}": {"get"},
    "/v1/workflows/{workflow_id}/cancel": {"post"},
    "/v1/workflows/{workflow_id}/legal-hold": {"delete", "post"},
    "/v1/approvals": {"get"},
    "/v1/approvals/{approval_id}": {"get"},
    "/v1/approvals/{approval_id}/decision": {"post"},
    "/v1/operator-commands": {"get", "post"},
    "/v1/operator-batches": {"get", "post"},
    "/v1/operator-batches/{batch_id}": {"get"},
    "/v1/operator-batches/{batch_id}/items": {"get"},
    "/v1/operator-batches/{batch_id}/start": {"post"},
    "/v1/operator-batches/{batch_id}/pause": {"post"},
    "/v1/operator-batches/{batch_id}/stop": {"post"},
    "/v1/workflows/{workflow_id}/handover": {"get"},
    "/v1/controls/break-glass": {"post"},
    "/v1/operator-commands/{operator_command_id}": {"get"},
    "/v1/artifacts": {"post"},
    "/v1/artifacts/{artifact_id}": {"get", "delete"},
    "/v1/catalog/commands": {"get"},
    "/v1/exceptions": {"get"},
    "/v1/exceptions/summary": {"get"},
    "/v1/kpis": {"get"},
    "/v1/slo": {"get"},
    "/v1/exceptions/{exception_id}": {"get"},
    "/v1/dead-letters": {"get"},
    "/v1/repairs": {"get"},
    "/v1/repairs/{repair_id}": {"get"},
    "/v1/incidents": {"get"},
    "/v1/incidents/{incident_id}": {"get"},
    "/v1/drift": {"get"},
    "/v1/controls/freezes": {"get", "post", "delete"},
    "/v1/controls/freezes/{freeze_id}": {"delete"},
    "/v1/policies": {"get", "put"},
    "/livez": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
    "/.well-known/jwks.json": {"get"},
    "/problems/{slug}": {"get"},
}


async def document(gateway: EdgeUnderTest) -> dict[str, Any]:
    response = await gateway.client.get("/openapi.json")
    assert response.status_code == 200
    found: dict[str, Any] = response.json()
    return found


def check(found: dict[str, Any], schema: dict[str, Any], value: Any) -> None:
    """The value fits a schema of the document."""
    whole = {**schema, "components": found["components"]}
    errors = [
        f"{error.instance_path}: {error.message}"
        for error in jsonschema_rs.Draft202012Validator(whole).iter_errors(value)
    ]
    assert not errors, errors


async def test_the_document_is_openapi_31_and_complete(gateway: EdgeUnderTest) -> None:
    """Exactly the built endpoints; every reference resolves; problems of every status and both kinds of tokens.

    Requirements: F1
    """
    found = await document(gateway)
    assert found["openapi"] == "3.1.0"
    assert {path: set(item) for path, item in found["paths"].items()} == PATHS
    for reference in set(re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(found))):
        assert reference in found["components"]["schemas"], reference
    operations = [operation for item in found["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    documented = set()
    for operation in operations:
        assert operation["summary"] and operation["description"]
        for status, answer in operation["responses"].items():
            if "application/problem+json" in answer.get("content", {}):
                documented.add(int(status))
                assert answer["content"]["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
    assert documented == {entry.status for entry in PROBLEMS.values()} - {405}
    assert set(found["components"]["securitySchemes"]) == {"access", "capability"}
    submit = found["paths"]["/v1/commands"]["post"]
    assert submit["security"] == [{"capability": []}]
    assert set(submit["responses"]) >= {"200", "202", "400", "401", "403", "409", "413", "415", "422", "429", "503"}


async def test_examples_work_by_a_click(gateway: EdgeUnderTest) -> None:
    """Every example body of the document is accepted as it stands (ids and tokens put in where a person would).

    Requirements: F1
    """
    found = await document(gateway)

    def example(path: str, method: str) -> Any:
        return found["paths"][path][method]["requestBody"]["content"]["application/json"]["example"]

    minted = await gateway.client.post("/dev/token", json=example("/dev/token", "post"))
    assert minted.status_code == 200
    access = {"Authorization": f"Bearer {minted.json()['access_token']}"}
    decision = await gateway.client.post("/v1/decisions", json=example("/v1/decisions", "post"), headers=access)
    assert decision.json()["outcome"] == "approved"
    wanted = {**example("/v1/capabilities", "post"), "decision_id": decision.json()["decision_id"]}
    capability = await gateway.client.post("/v1/capabilities", json=wanted, headers=access)
    assert capability.status_code == 201
    bearer = {"Authorization": f"Bearer {capability.json()['capability']}"}
    names = {item["name"]: item.get("example") for item in found["paths"]["/v1/commands"]["post"]["parameters"]}
    assert names["traceparent"] is None, "a filled-in trace would be the same for everyone's commands"
    keyed = {**bearer, "Idempotency-Key": names["Idempotency-Key"]}
    body = example("/v1/commands", "post")
    assert (await gateway.client.post("/v1/commands", json=body, headers=keyed)).status_code == 202
    batch = await gateway.client.post("/v1/commands:batch", json=example("/v1/commands:batch", "post"), headers=bearer)
    assert batch.status_code == 207 and [item["status"] for item in batch.json()["results"]] == [202]
    for path, method, who in (
        ("/v1/controls/freezes", "POST", OPERATOR),
        ("/v1/controls/freezes", "DELETE", OPERATOR),
        ("/v1/policies", "PUT", ADMIN),
    ):
        filled = {item["name"]: item.get("example") for item in found["paths"][path][method.lower()]["parameters"]}
        headers = {**gateway.headers(**who), "Idempotency-Key": filled["Idempotency-Key"]}
        response = await gateway.client.request(method, path, json=example(path, method.lower()), headers=headers)
        assert response.status_code in (200, 201), response.text


async def people(gateway: EdgeUnderTest, found: dict[str, Any]) -> dict[str, str]:
    """An approval, a signal and an operator's act, made and answered as documented; their places in a path."""

    def fits(path: str, status: str, response: Any) -> None:
        assert response.status_code == int(status), response.text
        answers = found["paths"][path]["post"]["responses"]
        check(found, answers[status]["content"]["application/json"]["schema"], response.json())

    case, shown = await open_approval(gateway)
    fits("/v1/approvals/{approval_id}/decision", "200", await decide(gateway, shown))
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": "acts"}
    body = {"action": "PAUSE", "target": {"kind": "workflow", "id": case.workflow_id}, "reason": "x"}
    acted = await gateway.client.post("/v1/operator-commands", json=body, headers=headers)
    fits("/v1/operator-commands", "202", acted)
    headers["Idempotency-Key"] = "cancels"
    url = f"/v1/workflows/{case.workflow_id}"
    cancelled = await gateway.client.post(f"{url}/cancel", json={"reason": "x"}, headers=headers)
    fits("/v1/workflows/{workflow_id}/cancel", "202", cancelled)
    headers["Idempotency-Key"] = "bulk"
    bulk = await gateway.client.post("/v1/operator-batches", json={"action": "REDRIVE"}, headers=headers)
    fits("/v1/operator-batches", "201", bulk)
    for turn in ("start", "pause", "stop"):
        headers["Idempotency-Key"] = turn
        place = f"/v1/operator-batches/{bulk.json()['batch_id']}/{turn}"
        answered = await gateway.client.post(place, json={}, headers=headers)
        fits(f"/v1/operator-batches/{{batch_id}}/{turn}", "200", answered)
    event = {"event_id": "reply 1", "type": "partner.reply"}
    sent = await gateway.client.post(f"{url}/signals", json=event, headers=headers)
    fits("/v1/workflows/{workflow_id}/signals", "202", sent)
    return {
        "{approval_id}": shown["approval_id"],
        "{batch_id}": bulk.json()["batch_id"],
        "{operator_command_id}": acted.json()["operator_command_id"],
        "{workflow_id}/signals/{event_id}": f"{case.workflow_id}/signals/reply%201",
    }


async def test_answers_fit_the_document(gateway: EdgeUnderTest) -> None:
    """Real answers of every endpoint, with filled views, validate against their documented schema.

    Requirements: F1
    """
    found = await document(gateway)
    start, instance, row = await accepted(gateway, "fits")
    attempt = {
        "attempt_id": "att_1",
        "fence": 1,
        "state": "CONFIRMED",
        "started_at": None,
        "ended_at": None,
        "error_code": None,
        "external_status": "201",
    }
    exception = changed_exception(start, "fits", kind="dead_letter")
    await project(
        gateway,
        CaseChanged(
            instance=instance.evolve(state_version=2),
            operations=(
                row.evolve(state_version=2, attempts=[attempt], receipt={"post_id": 1}, observed_state={"a": 1}),
            ),
            history=tuple(events_of(start, 2)),
        ),
        ElementChanged(
            tenant="acme",
            system="wordpress",
            resource="post/1",
            element="wordpress.post",
            command_id=start.command_id,
            workflow_id=start.workflow_id,
            version=1,
            desired=1,
            phase=Phase.DRIFT,
        ),
        exception,
        repair := told_repair(),
        incident := told_incident(instance.created_at),
    )
    headers = {**gateway.headers(**OPERATOR), "Idempotency-Key": "fits"}
    body = {"scope": {"definition": "other"}, "reason": "x"}
    frozen = await gateway.client.post("/v1/controls/freezes", json=body, headers=headers)
    check(
        found,
        found["paths"]["/v1/controls/freezes"]["post"]["responses"]["201"]["content"]["application/json"]["schema"],
        frozen.json(),
    )
    names = {
        **await people(gateway, found),
        "{command_id}": start.command_id,
        "{workflow_id}": start.workflow_id,
        "{exception_id}": exception.exception_id,
        "{repair_id}": repair.repair_id,
        "{incident_id}": incident.incident_id,
        "{decision_id}": start.mandate.decision_id,
        "{capability_id}": start.mandate.capability_id,
        "{slug}": "forbidden",
        "{name}": "article",
        "{version}": "1",
    }
    for path, item in found["paths"].items():
        if "get" not in item or path.endswith(("/stream", "/metrics", "{artifact_id}")):  # these answer no JSON
            continue
        url = path
        for name, value in names.items():
            url = url.replace(name, value)
        response = await gateway.client.get(url, headers=gateway.headers(**OPERATOR))
        assert response.status_code == 200, (url, response.text)
        answer = item["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        check(found, answer, response.json())
        if "items" in response.json():
            assert response.json()["items"], f"{path}: nothing was checked"
    refused = await gateway.submit("nonsense", "k", draft("x"))
    check(found, {"$ref": "#/components/schemas/Problem"}, problem(refused, 401, "unauthorized", "signature"))


async def test_docs_need_no_other_server(gateway: EdgeUnderTest) -> None:
    """The page and everything that it loads come from this gateway.

    Requirements: F1
    """
    page = await gateway.client.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert loaded and all(address.startswith("/docs/static/") for address in loaded), loaded
    for address in loaded:
        assert (await gateway.client.get(address)).status_code == 200
    assert "https://" not in page.text and (await gateway.client.get("/", follow_redirects=False)).status_code == 307


async def test_every_action_is_documented_with_its_parameters(gateway: EdgeUnderTest) -> None:
    """Each action has an example that its own parameters take, says what becomes of the exception, and a parameter of
    another action is refused by the document as by the gateway.

    Requirements: F1, O3
    """
    document = (await gateway.client.get("/openapi.json")).json()
    schema = document["components"]["schemas"]["OperatorCommandRequest"]
    inside = {**schema, "components": document["components"]}
    validator = jsonschema_rs.Draft202012Validator(inside)
    examples = {item["action"]: item for item in schema["examples"]}
    assert set(examples) == set(OperatorAction)
    for action, example in examples.items():
        assert validator.is_valid(example), (action, [str(error) for error in validator.iter_errors(example)])
        assert f"`{action}`" in schema["description"]
        assert fit(PARAMS[OperatorAction(action)], example["params"]) is not None
        assert not validator.is_valid({**example, "params": {"unheard_of": 1}}), action


async def test_docs_take_over_the_tokens_that_the_examples_return(gateway: EdgeUnderTest) -> None:
    """The page's script reads the two fields that really are in the answers, for the two security schemes there are.

    Requirements: F1
    """
    page, found = (await gateway.client.get("/docs")).text, await document(gateway)
    taken = dict(re.findall(r'body\.(\w+)\) ui\.preauthorizeApiKey\("(\w+)"', page))
    assert set(taken.values()) == set(found["components"]["securitySchemes"])
    schemas = found["components"]["schemas"]
    assert set(taken) <= {*schemas["TokenAnswer"]["properties"], *schemas["CapabilityAnswer"]["properties"]}
    assert page.index("SwaggerUIBundle(") < page.index("preauthorizeApiKey") < page.index("</body>")


@pytest.mark.parametrize("slug", PROBLEMS)
async def test_every_problem_type_has_a_page(gateway: EdgeUnderTest, slug: str) -> None:
    """The `type` of every problem document leads somewhere, for programs and for people.

    Requirements: F1
    """
    found = await gateway.client.get(f"/problems/{slug}")
    assert found.json()["advice"] == PROBLEMS[slug].advice and found.json()["status"] == PROBLEMS[slug].status
    page = await gateway.client.get(f"/problems/{slug}", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html") and str(PROBLEMS[slug].status) in page.text


async def test_public_keys_verify_and_show_nothing_private(gateway: EdgeUnderTest) -> None:
    """The JWKS holds the keys that tokens name, without their private part."""
    keys = (await gateway.client.get("/.well-known/jwks.json")).json()["keys"]
    assert {key["kid"] for key in keys} == {gateway.gateway.signing_key.kid, gateway.gateway.dev_key.kid}  # type: ignore[union-attr]
    assert all(set(key) == {"kty", "crv", "x", "kid", "alg", "use"} for key in keys)


async def test_without_development_mode_there_is_no_issuer(gateway: EdgeUnderTest) -> None:
    """Neither the endpoint nor its documentation nor its key exist then."""
    import httpx

    from trueup_gateway.api.app import create_app  # another application over the same gateway, as production makes it

    gateway.gateway.dev_key = None
    transport = httpx.ASGITransport(app=create_app(gateway.gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        body = {"sub": "agent:x", "tenant": "acme", "roles": ["agent"]}
        problem(await client.post("/dev/token", json=body), 404, "not-found")
        assert "/dev/token" not in (await client.get("/openapi.json")).json()["paths"]
        assert len((await client.get("/.well-known/jwks.json")).json()["keys"]) == 1


@pytest.mark.parametrize(
    ("changes", "status", "slug"),
    [
        ({"tenant": "Acme"}, 400, "tenant-invalid"),
        ({"tenant": "acme "}, 400, "tenant-invalid"),
        ({"sub": "publisher"}, 422, "payload-invalid"),
        ({"sub": "agent:"}, 422, "payload-invalid"),
        ({"roles": []}, 422, "payload-invalid"),
        ({"roles": "agent"}, 422, "payload-invalid"),
        ({"roles": ["agent", "the king"]}, 422, "payload-invalid"),
        ({"scopes": ["content publish"]}, 422, "payload-invalid"),
        ({"ttl_seconds": 0}, 422, "payload-invalid"),
        ({"ttl_seconds": "60"}, 422, "payload-invalid"),
        ({"ttl_seconds": 10**9}, 422, "payload-invalid"),
    ],
)
async def test_the_development_issuer_checks_what_it_signs(
    gateway: EdgeUnderTest, changes: dict[str, Any], status: int, slug: str
) -> None:
    """It signs nothing that the gateway would not take."""
    body = {"sub": "agent:x", "tenant": "acme", "roles": ["agent"], **changes}
    problem(await gateway.client.post("/dev/token", json=body), status, slug)


async def test_an_unknown_role_permits_nothing(gateway: EdgeUnderTest) -> None:
    """A token may carry any role's name; what no policy knows is denied. Requirements: G2"""
    body = {"sub": "agent:x", "tenant": "acme", "roles": ["king"]}
    token = (await gateway.client.post("/dev/token", json=body)).json()["access_token"]
    wanted = {
        "action": {"command_types": ["wordpress.create_draft"], "workflow": None},
        "resource": {"system": "wordpress", "resource": "post"},
        "purpose": "test",
    }
    answer = await gateway.client.post("/v1/decisions", json=wanted, headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 201 and answer.json()["outcome"] == "denied", answer.text


async def test_the_catalog_shows_identity_and_lifetimes(gateway: EdgeUnderTest) -> None:
    """What identifies a type and how long its keys are kept is told, and whether this tenant can use it.

    Requirements: I3, X8
    """
    items = (await gateway.client.get("/v1/catalog/commands", headers=gateway.headers(tenant="globex"))).json()["items"]
    by_type = {item["type"]: item for item in items}
    assert by_type["wordpress.create_draft"]["identity"] == ["/payload/slug"]
    assert by_type["wordpress.create_draft"]["key_lifetime_seconds"] == 7 * 86400
    assert by_type["wordpress.create_draft"]["connected"] is True and by_type["bench.post"]["connected"] is False


async def test_metrics_count_requests_by_route(gateway: EdgeUnderTest) -> None:
    """Labels are routes, never ids."""
    await gateway.client.get("/v1/commands/cmd_" + "a" * 32, headers=gateway.headers())
    text = (await gateway.client.get("/metrics")).text
    assert 'route="/v1/commands/{command_id}"' in text and "cmd_aaaa" not in text
