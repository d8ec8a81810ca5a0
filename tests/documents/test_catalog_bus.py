"""The bootstrap loads built-in documents into the real bucket, once, and never another content under one version."""

import asyncio

import pytest
from tests.documents.builders import DECLARATIONS, text_of
from tests.patience import PATIENCE_SECONDS
from tests.servers import BusServer

from trueup_common.documents.lint import sound_document
from trueup_common.documents.read import ReadDocument
from trueup_common.runtime.bootstrap import DefinitionChanged, load_catalog
from trueup_common.runtime.bus import Bus
from trueup_common.runtime.catalog import Catalog


def document(title: str, version: int = 1) -> ReadDocument:
    text = text_of("  - { id: make, command: t.make, with: {} }\n")
    return sound_document(text.replace("version: 1", f"version: {version}\ntitle: {title}"), DECLARATIONS)


async def test_a_version_is_loaded_once_and_never_changed(plane_bus: BusServer) -> None:
    """Loading again changes nothing; a changed document needs another version, and both then stand side by side."""
    first = document("First")
    for _ in range(2):
        await load_catalog(plane_bus.admin_url, [], [], [first])
    with pytest.raises(DefinitionChanged, match="raise its version"):
        await load_catalog(plane_bus.admin_url, [], [], [document("Second")])
    await load_catalog(plane_bus.admin_url, [], [], [first, document("Second", version=2)])
    bus = await Bus.connect(plane_bus.url("gateway"), service="gateway", name="test-gateway")
    catalog = Catalog()
    try:
        await catalog.follow(bus)
        assert catalog.watch is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            await catalog.watch.loaded.wait()
        assert [(item.document.version, item.document.title) for item in catalog.definitions()] == [
            (1, "First"),
            (2, "Second"),
        ]
        found = catalog.definition("sample", 1)
        assert found is not None
        assert (found.document.sha256, found.text) == (first.document.sha256, first.text)
    finally:
        if catalog.watch is not None:
            await catalog.watch.stop()
        await bus.close()
