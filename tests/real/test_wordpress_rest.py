"""The sandbox' WordPress is held to the real one request by request: its own tests, on the real site."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from tests.devkit import test_sandbox_wordpress
from tests.real.sharing import shared
from tests.real.wordpress_server import WordPressServer
from tests.real.wordpress_world import RealHands, real_hands

SANDBOX_ONLY: Final = {
    "test_sites_are_separate": "one site",
    "test_modified_moves_in_whole_seconds": "the clock of a real site is not set",
}


@pytest_asyncio.fixture
async def hands(
    wordpress_server: WordPressServer, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[RealHands]:
    reason = SANDBOX_ONLY.get(request.function.__name__)
    if reason:
        pytest.skip(reason)
    async with real_hands(wordpress_server, tmp_path) as hands:
        yield hands


globals().update(shared(test_sandbox_wordpress, "hands"))
