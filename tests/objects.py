"""An object store in memory, for tests of what stands in front of it or behind it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable

from trueup_common.runtime.objects import ObjectDiffers, ObjectsAway, Stored


class MemoryObjects:
    """Artifacts by (tenant, id). `away` lets every call fail; contents can be changed behind its back."""

    def __init__(self) -> None:
        self.contents: dict[tuple[str, str], bytes] = {}
        self.away = False
        self.reads = 0

    def keep(self, tenant: str, artifact_id: str, content: bytes) -> Stored:
        self.contents[tenant, artifact_id] = content
        return Stored(hashlib.sha256(content).hexdigest(), len(content))

    async def write(self, tenant: str, artifact_id: str, pieces: AsyncIterable[bytes]) -> Stored:
        self._answer()
        return self.keep(tenant, artifact_id, b"".join([piece async for piece in pieces]))

    async def get(self, tenant: str, artifact_id: str, sha256: str) -> bytes | None:
        self._answer()
        self.reads += 1
        content = self.contents.get((tenant, artifact_id))
        if content is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise ObjectDiffers(artifact_id)
        return content

    async def delete(self, tenant: str, artifact_id: str) -> None:
        self._answer()
        self.contents.pop((tenant, artifact_id), None)

    def _answer(self) -> None:
        if self.away:
            raise ObjectsAway("the broker is away")
