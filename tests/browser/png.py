"""Small pictures: a screenshot with 256 of its own colours, the others as the nearest of them.

A page of text has some thousand shades of few colours; with a palette the file is a third as long and looks the same.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS_MAX = 256
RGB, PALETTE = 2, 3


def small(png: bytes) -> bytes:
    """The same picture with a palette. Takes what a browser makes: eight bits of red, green and blue."""
    parts = list(_chunks(png))
    width, height, depth, colour = struct.unpack(">IIBB", parts[0][1][:10])
    assert (depth, colour) == (8, RGB), "no picture of a browser"
    data = zlib.decompress(b"".join(body for kind, body in parts if kind == b"IDAT"))
    rows = [[line[at : at + 3] for at in range(0, len(line), 3)] for line in _lines(data, width * 3)]
    counted = Counter(pixel for row in rows for pixel in row)
    palette = _palette(counted)
    places = {pixel: min(range(len(palette)), key=lambda at: _far(palette[at], pixel)) for pixel in counted}
    lines = b"".join(b"\0" + bytes(places[pixel] for pixel in row) for row in rows)
    return SIGNATURE + b"".join(
        _chunk(kind, body)
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, PALETTE, 0, 0, 0)),
            (b"PLTE", b"".join(palette)),
            (b"IDAT", zlib.compress(lines, 9)),
            (b"IEND", b""),
        )
    )


def _palette(counted: Mapping[bytes, int]) -> list[bytes]:
    """One after the other the colour that is missed most: far from those that are there, and not too rare."""
    palette: list[bytes] = []
    missed = dict.fromkeys(counted, float(1 << 24))
    while len(palette) < min(COLOURS_MAX, len(counted)):
        palette.append(max(missed, key=lambda pixel: missed[pixel] * counted[pixel] ** 0.5))
        missed = {pixel: min(far, _far(pixel, palette[-1])) for pixel, far in missed.items()}
    return palette


def _far(one: bytes, two: bytes) -> int:
    return (one[0] - two[0]) ** 2 + (one[1] - two[1]) ** 2 + (one[2] - two[2]) ** 2


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _lines(data: bytes, length: int) -> Iterator[bytes]:
    """The lines of a picture as they were before each was told by its neighbours (PNG, section 9)."""
    above = bytes(length)
    for start in range(0, len(data), length + 1):
        kind, line = data[start], bytearray(data[start + 1 : start + 1 + length])
        for at in range(length):
            left, corner = (line[at - 3], above[at - 3]) if at >= 3 else (0, 0)
            line[at] = (line[at] + _foretold(kind, left, above[at], corner)) & 255
        above = bytes(line)
        yield above


def _foretold(kind: int, left: int, above: int, corner: int) -> int:
    if kind < 3:
        return (0, left, above)[kind]
    if kind == 3:
        return (left + above) >> 1
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))
