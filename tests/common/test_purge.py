"""Streams can be deleted, which the relays notice, and never emptied, which nobody would."""

from __future__ import annotations

import nats.js.errors
import pytest
from tests.servers import BusServer

from trueup_common.contracts.topology import STREAMS
from trueup_common.runtime.bus import connect_admin


async def test_a_stream_cannot_be_emptied_under_its_readers(plane_bus: BusServer) -> None:
    """A work queue that was purged looks like one that was worked off: its commands would be lost without a sign.

    Requirements: M2
    """
    admin = await connect_admin(plane_bus.url("admin"))
    try:
        js = admin.jetstream()
        for stream in STREAMS:
            with pytest.raises(nats.js.errors.APIError, match="purge not permitted"):
                await js.purge_stream(stream.name)
            config = (await js.stream_info(stream.name)).config
            with pytest.raises(nats.js.errors.APIError):
                await js.update_stream(config.evolve(deny_purge=False))
    finally:
        await admin.close()
