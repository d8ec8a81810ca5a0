"""Cloudflare: purging URLs from the cache of a zone. The command type stands in `purge.py`, looking in `edge.py`."""

from typing import Final

from trueup_adapters.systems.cloudflare.purge import CloudflareAdapter

ADAPTER: Final = CloudflareAdapter()
