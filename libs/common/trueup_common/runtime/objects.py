"""The object store of the bus: artifacts as the broker keeps them, found by tenant and id, believed only by their hash.

An object never changes: its pieces are written first and named last, by one message that no second one may replace.
The layout is that of the broker's own object stores, so its tools can read it. What is read comes by direct gets, which
need no consumer and so no right to make one.
"""

import base64
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import nats.js.errors
import orjson

from trueup_common.contracts.shape import rfc3339
from trueup_common.contracts.topology import ARTIFACTS_BUCKET, ARTIFACTS_STREAM
from trueup_common.runtime.bus import BUS_AWAY, Bus
from trueup_common.runtime.clock import real_now

PIECE_BYTES: Final = 128 * 1024
_ROLLUP: Final = {"Nats-Rollup": "sub"}
_FIRST: Final = {"Nats-Expected-Last-Subject-Sequence": "0"}


class ObjectsAway(Exception):
    """The object store does not answer, or takes nothing more: whether an object is there is not known."""


class ObjectDiffers(Exception):
    """What is kept under this name does not have the hash that it is known by."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What was written."""

    sha256: str
    size: int


class Objects(Protocol):
    """Artifacts by tenant and id. Every method raises ObjectsAway."""

    async def write(self, tenant: str, artifact_id: str, pieces: AsyncIterable[bytes]) -> Stored:
        """Keep what comes in pieces. Where `pieces` raises, nothing is kept and the exception goes on."""
        ...

    async def get(self, tenant: str, artifact_id: str, sha256: str) -> bytes | None:
        """The content, verified; None where there is none. Raises ObjectDiffers."""
        ...

    async def delete(self, tenant: str, artifact_id: str) -> None:
        """Remove the content. What is not there is removed already."""
        ...


class ObjectStore:
    """The object store over one connection, with what its user is permitted to do."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def put(self, tenant: str, artifact_id: str, content: bytes) -> Stored:
        """Keep bytes that are all here. Raises ObjectsAway."""

        async def whole() -> AsyncIterator[bytes]:
            yield content

        return await self.write(tenant, artifact_id, whole())

    async def write(self, tenant: str, artifact_id: str, pieces: AsyncIterable[bytes]) -> Stored:
        """Keep what comes in pieces, piece by piece. Where they end early, what was written goes again."""
        name = secrets.token_hex(16)
        place = f"$O.{ARTIFACTS_BUCKET}.C.{name}"
        count = size = 0
        digest = hashlib.sha256()
        try:
            async for piece in _cut(pieces):
                await self._publish(place, piece)
                digest.update(piece)
                count, size = count + 1, size + len(piece)
            info = _info(tenant, artifact_id, name, count, size, digest.digest())
            await self._publish(_meta(tenant, artifact_id), orjson.dumps(info), {**_ROLLUP, **_FIRST})
        except BaseException:  # also where the client went away or the service stops
            if count:
                with contextlib.suppress(ObjectsAway):
                    await self._publish(place, b"", _ROLLUP)
            raise
        return Stored(digest.hexdigest(), size)

    async def get(self, tenant: str, artifact_id: str, sha256: str) -> bytes | None:
        """The content, verified; None where there is none. Raises ObjectsAway and ObjectDiffers."""
        info = await self._information(tenant, artifact_id)
        if info is None:
            return None
        content, sequence = bytearray(), 0
        for _ in range(int(info["chunks"])):
            raw = await self._next(f"$O.{ARTIFACTS_BUCKET}.C.{info['nuid']}", sequence + 1)
            if raw is None:
                return None  # deleted in between
            content += raw.data or b""
            sequence = int(raw.seq or 0)
            if len(content) > int(info["size"]):
                raise ObjectDiffers(artifact_id)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ObjectDiffers(artifact_id)
        return bytes(content)

    async def delete(self, tenant: str, artifact_id: str) -> None:
        """Remove the content; that there was something is still told by a message without any."""
        info = await self._information(tenant, artifact_id)
        if info is None:
            return
        gone = {**info, "deleted": True, "size": 0, "chunks": 0, "digest": "", "mtime": rfc3339(real_now())}
        await self._publish(_meta(tenant, artifact_id), orjson.dumps(gone), _ROLLUP)
        await self._publish(f"$O.{ARTIFACTS_BUCKET}.C.{info['nuid']}", b"", _ROLLUP)

    async def _information(self, tenant: str, artifact_id: str) -> dict[str, Any] | None:
        try:
            raw = await self._bus.js.get_last_msg(ARTIFACTS_STREAM, _meta(tenant, artifact_id), direct=True)
        except nats.js.errors.NotFoundError:
            return None
        except BUS_AWAY as error:
            raise ObjectsAway(repr(error)[:200]) from error
        try:
            info: dict[str, Any] = orjson.loads(raw.data or b"")
            return None if info.get("deleted") else {**info, "chunks": int(info["chunks"]), "size": int(info["size"])}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ObjectDiffers(artifact_id) from error

    async def _next(self, subject: str, sequence: int) -> Any:
        """The first message of a subject from a sequence number on; None where there is none."""
        try:
            return await self._bus.js.get_msg(ARTIFACTS_STREAM, sequence, subject, direct=True, next=True)
        except nats.js.errors.NotFoundError:
            return None
        except BUS_AWAY as error:
            raise ObjectsAway(repr(error)[:200]) from error

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        try:
            await self._bus.js.publish(subject, data, headers=dict(headers) if headers else None)
        except BUS_AWAY as error:
            raise ObjectsAway(repr(error)[:200]) from error


async def _cut(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces that fit a message."""
    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) >= PIECE_BYTES:
            yield bytes(waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]
    if waiting:
        yield bytes(waiting)


def _name(tenant: str, artifact_id: str) -> str:
    return f"{tenant}/{artifact_id}"


def _meta(tenant: str, artifact_id: str) -> str:
    encoded = base64.urlsafe_b64encode(_name(tenant, artifact_id).encode()).decode()
    return f"$O.{ARTIFACTS_BUCKET}.M.{encoded}"


def _info(tenant: str, artifact_id: str, name: str, count: int, size: int, digest: bytes) -> dict[str, Any]:  # noqa: PLR0917
    return {
        "name": _name(tenant, artifact_id),
        "bucket": ARTIFACTS_BUCKET,
        "nuid": name,
        "size": size,
        "chunks": count,
        "mtime": rfc3339(real_now()),
        "digest": "SHA-256=" + base64.urlsafe_b64encode(digest).decode(),
        "options": {"max_chunk_size": PIECE_BYTES},
    }
