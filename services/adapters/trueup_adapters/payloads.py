"""Payloads that are kept as artifacts: fetched before anything is sent, and believed only by both of their hashes."""

import asyncio
from collections import OrderedDict
from typing import Final, Protocol

import orjson

from trueup_common.contracts.canonical import digest
from trueup_common.contracts.task import Operation, PayloadRef
from trueup_common.runtime.objects import ObjectDiffers, Objects, ObjectsAway

CACHE_BYTES_MAX: Final = 32 * 1024**2


class PayloadAway(Exception):
    """The object store does not answer now."""


class PayloadMissing(Exception):
    """The object store has no such content."""


class PayloadInvalid(Exception):
    """What is kept is not what was accepted."""


class Payloads(Protocol):
    """Operations with their whole payload."""

    async def whole(self, operation: Operation) -> Operation:
        """The operation with the payload that its reference names. Raises the three exceptions above."""
        ...


class _NoPayloads:
    async def whole(self, operation: Operation) -> Operation:
        if operation.payload_ref is not None:
            raise PayloadAway("this process reads no artifacts")
        return operation


NO_PAYLOADS: Final[Payloads] = _NoPayloads()
"""For whoever has no object store: whole payloads go on, others have to wait."""


class KeptPayloads:
    """Payloads out of the object store. The newest contents stay in memory, within a bound: an attempt and the looks
    after it fetch once."""

    def __init__(self, objects: Objects, cache_bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._objects = objects
        self._cache_bytes_max = cache_bytes_max
        self._cached: OrderedDict[tuple[str, str, str], bytes] = OrderedDict()
        self._cached_bytes = 0

    async def whole(self, operation: Operation) -> Operation:
        """The operation with its whole payload; itself where its payload is whole already."""
        ref = operation.payload_ref
        if ref is None:
            return operation
        raw = await self._bytes(operation.tenant, ref)
        return await asyncio.to_thread(_with_payload, operation, raw)

    async def _bytes(self, tenant: str, ref: PayloadRef) -> bytes:
        name = (tenant, ref.artifact_id, ref.sha256)
        known = self._cached.get(name)
        if known is not None:
            self._cached.move_to_end(name)
            return known
        try:
            raw = await self._objects.get(*name)
        except ObjectsAway as away:
            raise PayloadAway(str(away)) from away
        except ObjectDiffers as differs:
            raise PayloadInvalid("the kept bytes have another hash") from differs
        if raw is None:
            raise PayloadMissing
        self._keep(name, raw)
        return raw

    def _keep(self, name: tuple[str, str, str], raw: bytes) -> None:
        if name in self._cached:
            return
        self._cached[name] = raw
        self._cached_bytes += len(raw)
        while self._cached_bytes > self._cache_bytes_max:
            _, dropped = self._cached.popitem(last=False)
            self._cached_bytes -= len(dropped)


def _with_payload(operation: Operation, raw: bytes) -> Operation:
    """Another reading of the same bytes than the gateway's would have another hash, so a fast reader will do."""
    try:
        payload = orjson.loads(raw)
        same = digest(payload) == operation.payload_sha256
    except ValueError as error:
        raise PayloadInvalid("the kept bytes are not acceptable JSON") from error
    if not same:
        raise PayloadInvalid("the kept payload has another hash than the one that was accepted")
    whole: Operation = operation.evolve(payload=payload)
    return whole
