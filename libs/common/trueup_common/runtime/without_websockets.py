"""Import this before nats-py: it would import aiohttp for WebSockets, which nobody here speaks.

That is a seventh of the start of a service that has no other use for aiohttp, and 8 MB of its memory.
"""

import sys

if "aiohttp" not in sys.modules and "nats" not in sys.modules:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401 - it does without, where aiohttp is not installed
    finally:
        del sys.modules["aiohttp"]
