"""WordPress: one set of expectations for the sandbox and the real site. Where they differ, the sandbox is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.adapters import test_conformance, test_inspection, test_wordpress
from tests.adapters.worlds import WordPressWorld, open_world
from tests.real.sharing import KINDS, shared
from tests.real.wordpress_world import open_real

SANDBOX_ONLY: Final = {
    "test_an_old_answer_of_the_site_is_not_taken_for_absence_too_early": "a real site has no lag on command",
}
"""Tests whose fault no real site brings about on command, with the reason."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def world(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WordPressWorld]:
    if kind == "sandbox":
        async with open_world(WordPressWorld, tmp_path) as world:
            yield world
        return
    reason = SANDBOX_ONLY.get(request.function.__name__)
    if reason:
        pytest.skip(reason)
    async with open_real(request.getfixturevalue("wordpress_server"), tmp_path) as world:
        yield world


class TestConformance(test_conformance.TestWordPress):
    """The adapter conformance suite, all command types. Requirements: X8, E3, E4."""

    @pytest_asyncio.fixture
    async def world(self, world: WordPressWorld) -> WordPressWorld:
        return world


target = test_wordpress.target
globals().update(shared(test_wordpress) | shared(test_inspection))
