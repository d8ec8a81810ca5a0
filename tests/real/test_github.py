"""GitHub's official description: every request that the adapter makes, and every answer that the sandbox gives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest import mock

import pytest
import pytest_asyncio
from starlette.types import Message, Receive, Scope, Send

from tests.adapters import test_conformance, test_github
from tests.adapters.github_world import GitHubWorld
from tests.adapters.worlds import open_world
from tests.devkit import test_sandbox_github
from tests.devkit.sandbox_site import Hands, running
from tests.real.fetching import Unfetchable, npm
from tests.real.openapi_check import Description, Exchange
from tests.real.report import Report
from tests.real.sharing import shared
from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.systems import SYSTEMS
from trueup_devkit.sandbox.systems.github import GitHub

PREFIX: Final = "/repos/{owner}/{repo}"


class Recorded(GitHub):
    """The sandbox' GitHub with a witness."""

    seen: ClassVar[list[Exchange]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, sent = bytearray(), bytearray()
        begun: dict[str, Any] = {"status": 0, "headers": []}

        async def hearing() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def speaking(message: Message) -> None:
            begun.update(message if message["type"] == "http.response.start" else {})
            sent.extend(message.get("body", b""))
            await send(message)

        await super().__call__(scope, hearing, speaking)
        kind = next((value.decode() for name, value in begun["headers"] if name == b"content-type"), "")
        path, query = scope["raw_path"].decode(), scope["query_string"].decode()
        if begun["status"] and not interference(scope).rewrite:
            self.seen.append(Exchange(scope["method"], path, query, bytes(body), begun["status"], kind, bytes(sent)))


@pytest.fixture(scope="session")
def description(report: Report) -> Iterator[Description]:
    """GitHub's own, of the day on which it was fetched."""
    try:
        found = Description(npm("github", "@octokit/openapi", "generated/api.github.com.json"), PREFIX)
    except Unfetchable as failure:
        pytest.skip(f"GitHub's description: {failure}")
    report.versions["GitHub's description"] = found.version
    yield found


@pytest.fixture
def witness() -> Iterator[list[Exchange]]:
    """What was said in one test."""
    Recorded.seen.clear()
    with mock.patch.dict(SYSTEMS, {"github": Recorded}):
        yield Recorded.seen


@pytest_asyncio.fixture
async def world(tmp_path: Path, description: Description, witness: list[Exchange]) -> AsyncIterator[GitHubWorld]:
    async with open_world(GitHubWorld, tmp_path) as world:
        yield world
    found = [complaint for exchange in witness for complaint in description.complaints(exchange)]
    assert not found, "\n".join(sorted(set(found)))


@pytest_asyncio.fixture
async def hands(tmp_path: Path, description: Description, witness: list[Exchange]) -> AsyncIterator[Hands]:
    async with running(tmp_path) as hands:
        yield hands
    # These tests send nonsense on purpose; what is held here is how it is answered.
    found = [complaint for exchange in witness for complaint in description.complaints(exchange, request=False)]
    assert not found, "\n".join(sorted(set(found)))


def test_the_description_is_not_kept_by_everything(description: Description) -> None:
    """The check sees what it is for: a wrong address, parameter, body, status and answer."""

    def said(method: str, path: str, query: str, sent: bytes, status: int, answer: bytes) -> list[str]:
        exchange = Exchange(method, path, query, sent, status, "application/json; charset=utf-8", answer)
        return [complaint.partition(": ")[2] for complaint in description.complaints(exchange)]

    blob = b'{"url": "https://x.example", "sha": "1"}'
    made = ("POST", "/repos/a/b/git/blobs", "")
    assert said(*made, b'{"content": "x"}', 201, blob) == []
    assert said("POST", "/repos/a/b/git/blob", "", b"", 201, blob) == ["no such operation"]
    assert said("POST", "/repos/a/b/git/blobs", "x=1", b'{"content": "x"}', 201, blob) == [
        "query parameter x is not described"
    ]
    assert said(*made, b'{"content": 1, "y": 2}', 201, blob) == [
        "the body at content: 1 is not of type 'string'", "the body's y is not described",
    ]  # fmt: skip
    assert said(*made, b'{"content": "x"}', 202, blob) == ["this status is not described"]
    assert said(*made, b'{"content": "x"}', 201, b'{"sha": "1"}') == ["the answer: 'url' is a required property"]


class TestConformance(test_conformance.TestGitHub):
    """The adapter conformance suite. Requirements: X8."""

    @pytest_asyncio.fixture
    async def world(self, world: GitHubWorld) -> GitHubWorld:
        return world


target = getattr(test_github, "target", None)
globals().update(shared(test_github) | shared(test_sandbox_github, "hands"))
