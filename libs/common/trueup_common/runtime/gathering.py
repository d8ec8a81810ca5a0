"""Waiting for company: messages that come in numbers share a transaction, one that comes alone waits for nobody.

A transaction costs the same for one message as for fifty. What arrives as a crowd arrives over some milliseconds; who
takes the first few at once pays for a transaction more, and so do all services after him (ADR 0026).
"""

import asyncio
from typing import Final

CROWD: Final = 3
"""A batch of so many messages means that more of them come."""
LINGER_SECONDS: Final = 0.0015


class Gathering:
    """One place where batches are taken."""

    def __init__(self) -> None:
        self._last = 0

    async def wait(self) -> None:
        """Before a batch is taken, once its first message is there."""
        if self._last >= CROWD:
            await asyncio.sleep(LINGER_SECONDS)

    def took(self, count: int) -> None:
        """A batch was taken."""
        self._last = count
