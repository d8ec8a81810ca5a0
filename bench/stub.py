"""The world outside as one cheap process: it applies every effect it is asked for and is the ground truth of how often.

`POST /effect` (key from the header `Idempotency-Key` or from the body's `key`) never deduplicates; `GET /effect/{key}`
looks one up; `GET /_totals` counts; `POST /_reset` forgets; `POST /_hold` with `seconds` applies effects at once and
answers them late. Run: `python -m bench.stub PORT`.

A body with `unit` and `step` is a step of a saga: it stands until another effect `undoes` its key. Steps are expected
in order and undone in reverse, and one that says `refuse` is refused for good.
"""

import asyncio
import sys
from typing import cast
from urllib.parse import unquote

import orjson
import uvloop

HEAD_END = b"\r\n\r\n"
JSON_TYPE = b"content-type: application/json\r\ncontent-length: "


class Effects:
    """How often each key was applied, and in which order the first time."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.standing: dict[str, list[str]] = {}
        self.undone = self.refused = self.disordered = self.lookups = 0
        self.hold_seconds = 0.0

    def apply(self, key: str) -> int:
        """Apply once more; answers the number of the key's first effect."""
        self.counts[key] = self.counts.get(key, 0) + 1
        return self.numbers.setdefault(key, len(self.numbers) + 1)

    def place(self, key: str, unit: str, step: object, undoes: object) -> None:
        """Note the first effect of a key as a step of its unit, or as what undoes one."""
        if key in self.counts:
            return
        standing = self.standing.setdefault(unit, [])
        if undoes is None:
            self.disordered += step != len(standing) + 1
            standing.append(key)
        elif undoes in standing:
            self.disordered += undoes != standing[-1]
            self.undone += 1
            standing.remove(str(undoes))
        else:
            self.disordered += 1

    def totals(self) -> dict[str, int]:
        """`duplicated` counts effects beyond the first of their key; the four after `lookups` are about sagas only."""
        effects = sum(self.counts.values())
        return {
            "effects": effects,
            "distinct": len(self.counts),
            "duplicated": effects - len(self.counts),
            "lookups": self.lookups,
            "standing": sum(len(keys) for keys in self.standing.values()),
            "undone": self.undone,
            "refused": self.refused,
            "disordered": self.disordered,
        }

    def clear(self) -> None:
        """Forget everything."""
        self.counts.clear()
        self.numbers.clear()
        self.standing.clear()
        self.undone = self.refused = self.disordered = self.lookups = 0
        self.hold_seconds = 0.0


class StubProtocol(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and Content-Length bodies; nothing else is spoken."""

    def __init__(self, effects: Effects) -> None:
        self._effects = effects
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports only look like one

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        while (end := received.find(HEAD_END)) >= 0:
            headers = _headers(received[:end])
            length = int(headers.get(b"content-length", b"0"))
            start = end + len(HEAD_END)
            if len(received) < start + length:
                break
            body = received[start : start + length]
            received = received[start + length :]
            answer = self._react(headers, body)
            if self._effects.hold_seconds and headers[b""].startswith(b"POST /effect"):
                asyncio.get_running_loop().call_later(self._effects.hold_seconds, self._answer, *answer)
            else:
                self._answer(*answer)
        self._received = received

    def _react(self, headers: dict[bytes, bytes], body: bytes) -> tuple[bytes, object]:
        method, path = headers[b""].split(b" ")[:2]
        if method == b"POST" and path == b"/effect":
            document = _document_of(body)
            key = headers.get(b"idempotency-key", b"").decode("latin-1").strip('"') or document.get("key")
            if not key or not isinstance(key, str):
                return b"422 Unprocessable Content", {"error": "a key is needed"}
            if document.get("refuse"):
                self._effects.refused += 1
                return b"422 Unprocessable Content", {"error": "refused for good"}
            if "unit" in document:
                self._effects.place(key, str(document["unit"]), document.get("step"), document.get("undoes"))
            number = self._effects.apply(key)
            return b"201 Created", {"effect_id": f"eff_{number}", "key": key}
        if method == b"GET" and path.startswith(b"/effect/"):
            key = unquote(path[len(b"/effect/") :].decode("ascii"))
            self._effects.lookups += 1
            if key not in self._effects.counts:
                return b"404 Not Found", {"error": "no such effect"}
            count, number = self._effects.counts[key], self._effects.numbers[key]
            return b"200 OK", {"effect_id": f"eff_{number}", "key": key, "count": count}
        if method == b"GET" and path == b"/_totals":
            return b"200 OK", self._effects.totals()
        if method == b"POST" and path == b"/_hold":
            seconds = _document_of(body).get("seconds")
            self._effects.hold_seconds = float(seconds) if isinstance(seconds, int | float) else 0.0
            return b"200 OK", {}
        if method == b"POST" and path == b"/_reset":
            self._effects.clear()
            return b"200 OK", {}
        return b"404 Not Found", {"error": "POST /effect, GET /effect/{key}, GET /_totals or POST /_reset"}

    def _answer(self, status: bytes, document: object) -> None:
        body = orjson.dumps(document)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"HTTP/1.1 %s\r\n%s%d\r\n\r\n%s" % (status, JSON_TYPE, len(body), body))


def _headers(head: bytes) -> dict[bytes, bytes]:
    """Header values by lower-case name; the request line stands under the empty name."""
    first, *lines = head.split(b"\r\n")
    headers = {b"": first}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return headers


def _document_of(body: bytes) -> dict[str, object]:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


async def serve(port: int) -> None:
    """Serve until the process ends."""
    effects = Effects()
    server = await asyncio.get_running_loop().create_server(
        lambda: StubProtocol(effects), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
