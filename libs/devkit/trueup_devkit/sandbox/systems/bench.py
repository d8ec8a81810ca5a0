"""A plain effect behind one POST: no deduplication, so that every effect sent twice shows in the ground truth.

`POST /effect` takes its key from the header `Idempotency-Key` or from the body's `key`; `GET /effect/{key}` looks it
up. It is raw ASGI with one INSERT per effect, because benchmarks count what it costs.
"""

from typing import Any, ClassVar, Final
from urllib.parse import unquote

import orjson
from starlette.types import Receive, Scope, Send

from trueup_devkit.sandbox.faults import interference
from trueup_devkit.sandbox.store import Change, Effect, Store, iso
from trueup_devkit.sandbox.system import Refusal

_KEY: Final = b"idempotency-key"
_MAX_KEY: Final = 500
_REMOVED: Final = "bench.removed"
_PATH: Final = b"/effect"


class BenchStub:
    """The stub; its only state are the effects themselves, and which of them an outsider removed."""

    rewritable: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, store: Store, _url: str) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope["raw_path"]
        method = scope["method"]
        if path == _PATH and method == "POST":
            status, body = await self._perform(scope, receive)
        elif path.startswith(_PATH + b"/") and method in {"GET", "HEAD"}:
            status, body = await self._find(scope, unquote(path[len(_PATH) + 1 :].decode("ascii")))
        else:
            status, body = 404, {"error": "POST /effect or GET /effect/{key}"}
        content = orjson.dumps(body)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    async def _perform(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        content = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return 400, {"error": "the caller left"}
            content += message["body"]
            if not message["more_body"]:
                break
        key = next((value.decode("latin-1").strip('"') for name, value in scope["headers"] if name == _KEY), None)
        if key is None:
            try:
                document = orjson.loads(content)
            except orjson.JSONDecodeError:
                return 400, {"error": "not JSON"}
            key = document.get("key") if isinstance(document, dict) else None
        if not isinstance(key, str) or not 0 < len(key) <= _MAX_KEY:
            return 422, {"error": "a key is needed: the header Idempotency-Key, or `key` in the body"}
        pause = interference(scope).pause
        if pause is not None:
            await pause()
        seq = self._store.apply(Effect("bench", "bench.effect", key, "create"))
        return 201, {"effect_id": f"eff_{seq}", "key": key}

    async def _find(self, scope: Scope, key: str) -> tuple[int, dict[str, Any]]:
        disturbed = interference(scope)
        if disturbed.deny_reads:
            return 401, {"error": "unauthorized"}
        as_of = None if disturbed.stale_seconds is None else self._store.now() - disturbed.stale_seconds
        found = self._store.effects_of("bench", key, as_of)
        removed = self._store.documents(_REMOVED, as_of).get(key, {"up_to": 0})["up_to"]
        found = [(seq, at) for seq, at in found if seq > removed]
        if not found:
            return 404, {"error": "no such effect"}
        seq, at = found[0]
        return 200, {"effect_id": f"eff_{seq}", "key": key, "count": len(found), "at": iso(at)}

    def tamper(self, object_: str, change: dict[str, Any]) -> dict[str, Any]:
        found = self._store.effects_of("bench", object_)
        if not found:
            raise Refusal(404, f"no effect under {object_[:100]!r}")
        if change != {"delete": True}:
            raise Refusal(400, 'an effect can only be removed: {"delete": true}')
        self._store.apply(None, [Change(_REMOVED, object_, {"up_to": found[-1][0]})])
        return {"object": object_, "deleted": True}
