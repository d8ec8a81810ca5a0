"""The conformance suite against the memo adapter: what every adapter must show, whatever its system does."""

from collections.abc import AsyncIterator

import pytest_asyncio
from world import MemoWorld

from trueup_common.testing.adapter_conformance import AdapterConformance


class TestMemo(AdapterConformance):
    command_types = ("memo.put",)

    @pytest_asyncio.fixture
    async def world(self) -> AsyncIterator[MemoWorld]:
        world = MemoWorld()
        await world.start()
        yield world
        await world.stop()
