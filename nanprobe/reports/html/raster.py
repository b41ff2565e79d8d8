"""A grid of classes as a picture: an indexed PNG written by hand, one colour a class, as small as it gets.

A heat map of 300 layers and 50 steps would be 15,000 rectangles as SVG (half a megabyte) and needs a script as a
canvas; as a PNG it is a few kilobytes, prints, and shows without scripts. Colours with alpha let one picture stand on
a light page and on a dark one. Source: PNG specification (W3C, third edition), chunks IHDR, PLTE, tRNS, IDAT, IEND.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

Colour = tuple[int, int, int, int]  # red, green, blue, alpha, 0 to 255
CLEAR: Colour = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Ink:
    """How the cells of one class are painted."""

    colour: Colour
    cross: Colour | None = None  # a cross in this colour over it, hatching where it is small: not by colour alone


def picture(classes: Sequence[Sequence[int]], inks: Sequence[Ink], cell: tuple[int, int]) -> str:
    """The grid as a `data:` address; `cell` is width and height of a cell in pixels, with a gap where there is room."""
    palette: list[Colour] = [CLEAR]
    cells = [_cell(ink, cell, palette) for ink in inks]
    lines = [b"".join(cells[number][y] for number in row) for row in classes for y in range(cell[1])]
    png = encode_png(lines, palette)
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"


def encode_png(lines: Sequence[bytes], palette: Sequence[Colour]) -> bytes:
    """An indexed PNG of lines of palette indices, all of one length; at most 256 colours."""
    width = len(lines[0]) if lines else 0
    head = struct.pack(">IIBBBBB", width, len(lines), 8, 3, 0, 0, 0)
    colours = b"".join(bytes(colour[:3]) for colour in palette)
    alpha = bytes(colour[3] for colour in palette)
    pixels = zlib.compress(b"".join(b"\0" + line for line in lines), 9)
    chunks = (b"IHDR", head), (b"PLTE", colours), (b"tRNS", alpha), (b"IDAT", pixels), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _cell(ink: Ink, cell: tuple[int, int], palette: list[Colour]) -> list[bytes]:
    """The lines of one cell, as indices into the palette, which gets the ink's colours."""
    width, height = cell
    fill = _index(palette, ink.colour)
    gap_x, gap_y = int(width >= 5), int(height >= 5)
    body = bytearray([fill]) * (width - gap_x) + bytes(gap_x)
    lines = [bytearray(body) for _ in range(height - gap_y)] + [bytearray(width)] * gap_y
    if ink.cross is not None:
        mark = _cross if min(width, height) >= 5 else _hatch
        mark(lines, _index(palette, ink.cross), width - gap_x, height - gap_y)
    return [bytes(line) for line in lines]


def _cross(lines: list[bytearray], colour: int, width: int, height: int) -> None:
    """Two diagonals, as large as the shorter side allows, in the middle."""
    size = min(width, height) - 2
    left, top = (width - size) // 2, (height - size) // 2
    for k in range(size):
        lines[top + k][left + k] = colour
        lines[top + k][left + size - 1 - k] = colour


def _hatch(lines: list[bytearray], colour: int, width: int, height: int) -> None:
    """Fine slanted lines, for cells that are too small for a cross."""
    for y in range(height):
        for x in range(width):
            if (x + y) % 4 == 0:
                lines[y][x] = colour


def _index(palette: list[Colour], colour: Colour) -> int:
    if colour not in palette:
        palette.append(colour)
    return palette.index(colour)
