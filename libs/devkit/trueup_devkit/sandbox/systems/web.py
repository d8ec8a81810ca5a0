"""The rest of the web, as far as articles of the sandbox lead to it: `/web` beside the sites, without any state.

`page/…` and `image/….png` are there, `moved/…` leads to the page, `getonly/…` knows no HEAD, `loop/…` leads to itself
and `private/…` into a private network; everything else is not there. Faults can stand before each.
"""

import html
import struct
import zlib
from typing import Final
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from trueup_devkit.sandbox.systems.wordpress_text import page

WEB: Final = "web"
_WIDTH, _HEIGHT = 120, 63


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _png() -> bytes:
    """A plain grey picture, in the proportions that previews want."""
    rows = (b"\x00" + b"\x99" * _WIDTH) * _HEIGHT
    head = struct.pack(">IIBBBBB", _WIDTH, _HEIGHT, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


PICTURE: Final = _png()


def web_url(wordpress_url: str) -> str:
    """The web of a sandbox, by the address of its WordPress system."""
    return f"{wordpress_url.rstrip('/')}/{WEB}"


def web_answer(rest: str, method: str, url: str) -> Response:
    """What a visitor gets. `rest` is the path below `/web/`."""
    if method not in {"GET", "HEAD"}:
        return Response("method not allowed", 405, media_type="text/plain")
    kind, _, name = rest.partition("/")
    if not name:
        return _nothing()
    if kind == "page" or (kind == "getonly" and method == "GET"):
        return Response(page(name, "", f"<h1>{html.escape(name)}</h1>"), media_type="text/html")
    if kind == "getonly":
        return Response("method not allowed", 405, media_type="text/plain")
    if kind == "image" and name.endswith(".png"):
        return Response(PICTURE, media_type="image/png")
    if kind == "moved":
        return RedirectResponse(f"{web_url(url)}/page/{quote(name)}", 301)
    if kind == "loop":
        return RedirectResponse(f"{web_url(url)}/loop/{quote(name)}", 302)
    if kind == "private":
        return RedirectResponse("http://127.0.0.2:9/", 302)
    return _nothing()


def _nothing() -> Response:
    return Response(page("Page not found", "", "<h1>Page not found</h1>"), 404, media_type="text/html")
