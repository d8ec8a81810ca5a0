"""Pictures with a palette show what they showed."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.browser.png import COLOURS_MAX, SIGNATURE, small

WIDTH, HEIGHT = 20, 16


def taken(kind: int, colours: int) -> tuple[bytes, list[bytes]]:
    """A picture as a browser writes it, every line told by its neighbours in one way, and its pixels."""
    pixels = [bytes((n * 7 % 256, n * 13 % 256, n % 251)) for n in (i % colours for i in range(WIDTH * HEIGHT))]
    above, lines = bytes(WIDTH * 3), b""
    for y in range(HEIGHT):
        line = b"".join(pixels[y * WIDTH : (y + 1) * WIDTH])
        told = []
        for at, value in enumerate(line):
            left, corner = (line[at - 3], above[at - 3]) if at >= 3 else (0, 0)
            paeth = min((left, above[at], corner), key=lambda one: abs(left + above[at] - corner - one))
            told.append((value - (0, left, above[at], (left + above[at]) // 2, paeth)[kind]) % 256)
        lines += bytes((kind, *told))
        above = line
    head = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return SIGNATURE + b"".join(chunk(name, body) for name, body in parts), pixels


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def shown(png: bytes) -> list[bytes]:
    """The pixels of a picture with a palette."""
    palette = png[png.index(b"PLTE") + 4 :]
    at = png.index(b"IDAT")
    (length,) = struct.unpack(">I", png[at - 4 : at])
    lines = zlib.decompress(png[at + 4 : at + 4 + length])
    places = [place for y in range(HEIGHT) for place in lines[y * (WIDTH + 1) + 1 : (y + 1) * (WIDTH + 1)]]
    return [palette[place * 3 : place * 3 + 3] for place in places]


@pytest.mark.parametrize("kind", range(5))
def test_few_colours_stay_as_they_are(kind: int) -> None:
    """However a line was told by its neighbours."""
    png, pixels = taken(kind, 100)
    assert shown(small(png)) == pixels


def test_of_many_colours_each_is_shown_as_one_nearby() -> None:
    """256 remain, and none of the others moves far."""
    png, pixels = taken(4, WIDTH * HEIGHT)
    assert len(set(pixels)) > COLOURS_MAX
    found = shown(small(png))
    assert len(set(found)) == COLOURS_MAX
    moved = [abs(a - b) for a, b in zip(b"".join(pixels), b"".join(found), strict=True)]
    assert 0 < max(moved) <= 32
