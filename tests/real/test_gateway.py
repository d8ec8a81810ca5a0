"""The gateway's own document, taken at its word by schemathesis: no 5xx, no answer that it does not describe."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.gateway.test_openapi import PATHS
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
def document(real_plane: Plane) -> Any:
    """As the running gateway tells it."""
    return schemathesis.openapi.from_dict(http("GET", f"{real_plane.url}/openapi.json").body)


@pytest.fixture(scope="module")
def known(real_plane: Plane) -> dict[str, str]:
    """Things that are there, by the names of parameters: made-up ids alone would only ever find nothing."""
    draft = real_plane.draft("known-to-the-document")
    assert draft.status in (200, 202), draft
    real_plane.closed(draft.body["workflow_id"], seconds=90)
    authority = real_plane.workflow_authority("seo-article-publish")
    operator = {"authorization": f"Bearer {real_plane.token('operator:olga', roles=('operator',))}"}
    stored = http("POST", f"{real_plane.url}/v1/artifacts", b"text", headers={**operator, "content-type": "text/plain"})
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
def tokens(real_plane: Plane) -> dict[str, Iterator[str]]:
    """Valid tokens of every role, in turn, and capabilities that last for all examples."""
    people = [
        real_plane.token(f"operator:{role}" if role != "agent" else "agent:publisher", roles=(role,),
                         scopes=("content:publish",))
        for role in ROLES
    ]  # fmt: skip
    command = real_plane.capability("wordpress.create_draft", "post", max_uses=100)
    start = real_plane.workflow_capability("seo-article-publish", max_uses=100)
    return {"access": itertools.cycle(people), "capability": itertools.cycle([command, start])}


@pytest.mark.parametrize(("path", "method"), OPERATIONS, ids=[f"{method} {path}" for path, method in OPERATIONS])
def test_the_document_is_kept(
    real_plane: Plane, document: Any, known: dict[str, str], tokens: dict[str, Iterator[str]], path: str, method: str
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
    @given(case=cases, exists=st.booleans())
    def keep(case: Any, exists: bool) -> None:
        if exists and may_be_there:
            case.path_parameters = {
                name: known.get(name, value) for name, value in (case.path_parameters or {}).items()
            }
        headers = {"authorization": f"Bearer {next(tokens[security])}"} if security else {}
        answer = case.call(base_url=real_plane.url, headers=headers, timeout=SECONDS)
        assert answer.status_code < 500 or answer.status_code == 503 and "retry-after" in answer.headers, answer.text
        case.validate_response(answer, checks=CHECKS)

    keep()
