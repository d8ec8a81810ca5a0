"""The gateway's own document, taken at its word by schemathesis: no 5xx, no answer that it does not describe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.core.transport import Response
from schemathesis.core.version import SCHEMATHESIS_VERSION
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.test_openapi import PATHS
from tests.real.report import Report
from tests.system.plane import Plane, http

EXAMPLES: Final = 20
SECONDS: Final = 15.0
SPARED: Final = {("/v1/workflows/{workflow_id}/stream", "get")}
"""Where an existing id opens a stream that goes on until its case ends: made-up ids only."""
LAST: Final = ("/v1/controls", "/v1/policies")
"""What a made-up freeze or policy forbids is not tried afterwards."""
CHECKS: Final = [
    status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance
]  # fmt: skip
OPERATIONS: Final = sorted(
    ((path, method) for path, methods in PATHS.items() for method in methods),
    key=lambda pair: (pair[0].startswith(LAST), pair),
)
ROLES: Final = ("agent", "viewer", "operator", "approver", "admin", "auditor")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    """One process of every service, with the sandbox world."""
    running = Plane(tmp_path_factory.mktemp("gateway-plane")).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def document(plane: Plane, report: Report) -> Any:
    """As the running gateway tells it."""
    told = http("GET", f"{plane.url}/openapi.json").body
    report.versions["the gateway's document"] = f"{told['info']['version']}, schemathesis {SCHEMATHESIS_VERSION}"
    return schemathesis.openapi.from_dict(told)


@pytest.fixture(scope="module")
def known(plane: Plane) -> dict[str, str]:
    """Things that are there, by the names of parameters: made-up ids alone would only ever find nothing."""
    draft = plane.draft("known-to-the-document")
    assert draft.status in (200, 202), draft
    plane.closed(draft.body["workflow_id"], seconds=90)
    authority = plane.workflow_authority("seo-article-publish")
    operator = {"authorization": f"Bearer {plane.token('operator:olga', roles=('operator',))}"}
    stored = http("POST", f"{plane.url}/v1/artifacts", b"text", headers={**operator, "content-type": "text/plain"})
    return {
        "command_id": draft.body["command_id"],
        "workflow_id": draft.body["workflow_id"],
        "decision_id": authority["decision_id"],
        "capability_id": authority["capability_id"],
        "artifact_id": stored.body["artifact_id"],
        "name": "seo-article-publish",
        "version": "1",
        "slug": "not-found",
    }


@pytest.fixture(scope="module")
def tokens(plane: Plane) -> dict[str, Iterator[str]]:
    """Valid tokens of every role, in turn, and capabilities that last for all examples."""
    people = [
        plane.token(f"operator:{role}" if role != "agent" else "agent:publisher", roles=(role,),
                         scopes=("content:publish",))
        for role in ROLES
    ]  # fmt: skip
    command = plane.capability("wordpress.create_draft", "post", max_uses=100)
    start = plane.workflow_capability("seo-article-publish", max_uses=100)
    return {"access": itertools.cycle(people), "capability": itertools.cycle([command, start])}


def test_the_document_is_not_kept_by_everything(document: Any) -> None:
    """The checks see what they are for: a status, a content type and a body that the document does not know."""
    case = document["/v1/catalog/commands"]["GET"].Case()
    request = requests.Request("GET", "http://127.0.0.1/v1/catalog/commands").prepare()
    for status, kind, body in (
        (418, "application/json", b"{}"),
        (200, "text/html", b"{}"),
        (200, "application/json", b"7"),
    ):
        answer = Response(status, {"content-type": [kind]}, body, request, 0.1, verify=False)
        with pytest.raises(FailureGroup):
            case.validate_response(answer, checks=CHECKS)


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{method} {path}" for path, method in OPERATIONS])
def test_the_document_is_kept(
    plane: Plane, document: Any, known: dict[str, str], tokens: dict[str, Iterator[str]], path: str, method: str
) -> None:
    """What fits the document and what does not, with valid tokens of every role; every answer is described.

    Requirements: F1
    """
    operation = document[path][method.upper()]
    security = next(iter((operation.definition.raw.get("security") or [{}])[0]), None)
    may_be_there = (path, method) not in SPARED
    cases = st.one_of(
        operation.as_strategy(generation_mode=GenerationMode.POSITIVE),
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )

    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=cases, exists=st.booleans(), signs=st.sampled_from((True, True, True, False)))
    def keep(case: Any, exists: bool, signs: bool) -> None:
        if exists and may_be_there:
            case.path_parameters = {
                name: known.get(name, value) for name, value in (case.path_parameters or {}).items()
            }
        headers = {"authorization": f"Bearer {next(tokens[security])}"} if security and signs else {}
        answer = case.call(base_url=plane.url, headers=headers, timeout=SECONDS)
        assert answer.status_code < 500 or (answer.status_code == 503 and "retry-after" in answer.headers), answer.text
        case.validate_response(answer, checks=CHECKS)

    keep()
