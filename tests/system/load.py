"""Steady load of a few clients: each keeps its connection, sends a command at its own pace, and reads it once."""

import asyncio
import collections
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.system.plane import Plane

PACE_SECONDS = 0.1


@dataclass
class Load:
    """Clients that keep their connections, send a command at their own pace, and read it once."""

    plane: Plane
    capability: str
    token: str
    over: asyncio.Event = field(default_factory=asyncio.Event)
    answers: collections.Counter[int] = field(default_factory=collections.Counter)
    commands: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    async def client(self, number: int) -> None:
        """One client. It repeats what is answered with 503 and Retry-After, and nothing else."""
        async with httpx.AsyncClient(base_url=self.plane.url, timeout=60) as http:
            sent = 0
            while not self.over.is_set():
                sent += 1
                key = f"rolling:{number}:{sent}"
                # Every third client waits for the end, every other call is made on a connection of its own.
                prefer = {"prefer": "wait=10"} if number % 3 == 0 else {}
                close = {"connection": "close"} if sent % 2 else {}
                accepted = await self._sent(http, key, {**prefer, **close})
                if accepted is not None:
                    self.commands[key] = accepted["command_id"]
                    await self._read(http, accepted["command_id"])
                await asyncio.sleep(PACE_SECONDS)

    async def _sent(self, http: httpx.AsyncClient, key: str, more: dict[str, str]) -> dict[str, Any] | None:
        body = {
            "command_type": "bench.post",
            "target": {"system": "bench", "resource": "effect"},
            "payload": {"number": key},
        }
        headers = {"authorization": f"Bearer {self.capability}", "idempotency-key": f'"{key}"', **more}
        return await self._asked(lambda: http.post("/v1/commands", json=body, headers=headers), f"POST {key}")

    async def _read(self, http: httpx.AsyncClient, command_id: str) -> None:
        headers = {"authorization": f"Bearer {self.token}"}
        await self._asked(lambda: http.get(f"/v1/commands/{command_id}", headers=headers), f"GET {command_id}")

    async def _asked(self, ask: Any, what: str) -> dict[str, Any] | None:
        while True:
            try:
                response = await ask()
            except httpx.HTTPError as error:
                self.broken.append(f"{what}: {error!r}")
                return None
            self.answers[response.status_code] += 1
            if response.status_code == 503 and "retry-after" in response.headers:
                await asyncio.sleep(float(response.headers["retry-after"]))
                continue
            if response.status_code not in (200, 202):
                self.broken.append(f"{what}: {response.status_code} {response.text}")
                return None
            return dict(response.json())
