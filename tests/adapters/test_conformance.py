"""The reusable conformance suite, run for the adapters of this repository against the sandbox world."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from tests.adapters.worlds import BenchWorld, WordPressWorld, open_world

from trueup_common.testing.adapter_conformance import AdapterConformance


class TestWordPress(AdapterConformance):
    """WordPress, all five command types. Requirements: X8."""

    command_types = (
        "wordpress.create_draft",
        "wordpress.update_post",
        "wordpress.publish_post",
        "wordpress.withdraw_post",
        "wordpress.trash_post",
    )

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[WordPressWorld]:
        async with open_world(WordPressWorld, tmp_path) as world:
            yield world


class TestBench(AdapterConformance):
    """The bench stub. Requirements: X8."""

    command_types = ("bench.post", "bench.post_verified")

    @pytest_asyncio.fixture
    async def world(self, tmp_path: Path) -> AsyncIterator[BenchWorld]:
        async with open_world(BenchWorld, tmp_path) as world:
            yield world
