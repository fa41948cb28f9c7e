"""The structure of JPEG, PNG and WebP files, read before a decoder sees them.

A decoder reads everything around the pixels byte by byte, keeps it, and makes objects of it that can be a thousand
times as large. So it gets only the parts that the pixels need; size and orientation are read here, in one pass.

Sources: ITU-T T.81, annex B (JPEG); the PNG specification, section 5; RFC 9649 (WebP); Exif 2.32, section 4.6 (the
orientation among the tags of a TIFF directory).
"""

from __future__ import annotations

import re
import struct
from typing import Final, Literal, NamedTuple

from stoker.errors import ImageTooLarge, MalformedBody

_FIRST_BYTES: Final = re.compile(rb"\xff\xd8\xff|\x89PNG\r\n|RIFF....WEBP", re.DOTALL)

# Photos have two dozen segments; those with a depth map in their metadata a hundred of 64 KiB each.
_MAX_SEGMENTS: Final = 1000
_MAX_JPEG_HEAD_BYTES: Final = 16 << 20
# Fill and stray bytes between two segments, which decoders skip.
_MAX_GAP_BYTES: Final = 64 << 10
# Tables before the first scan; those of an encoder have 2 KiB.
_MAX_TABLE_BYTES: Final = 128 << 10
# Encoders write about ten. Each may be 40 bytes long and cost a pass over all pixels.
_MAX_SCANS: Final = 64
# Encoders write pieces of 8 KiB and more.
_MAX_CHUNKS: Final = 1 << 15
_MAX_EXIF_BYTES: Final = 1 << 16

# How much is searched at once: nothing else runs in the process meanwhile.
_PIECE_BYTES: Final = 256 << 10
# The next marker that is neither a stuffed 0xFF, nor a fill byte, nor a restart within a scan.
_MARKER: Final = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_SCAN, _END, _EXIF_SEGMENT = 0xDA, 0xD9, 0xE1
_WITHOUT_LENGTH: Final = frozenset([0x01, 0xD8, _END])
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Frames, tables, restart intervals, and the two application segments that say what the colours are.
_SEEN_SEGMENTS: Final = _FRAMES | {0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xE0, 0xEE}

_CHUNK: Final = struct.Struct(">I4s")
_CHUNK_END_BYTES: Final = 4
_SEEN_CHUNKS: Final = frozenset([b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"])

_EXIF_PREFIX: Final = b"Exif\0\0"
_ORIENTATION: Final = 0x0112
_TAG_BYTES: Final = 12
_MAX_TAGS: Final = 1000
_NUMBER_BYTES: Final = {1: 1, 3: 2, 4: 4}

_Kind = Literal["JPEG", "PNG", "WEBP"]
_Order = Literal["little", "big"]


class ImageFile(NamedTuple):
    """An image file whose structure was read; width and height, in pixels, are those of its header.

    Attributes:
        orientation: How a viewer has to turn it: 1 to 8 as in Exif, 1 for not at all.
        seen: The parts that the pixels need: begin and end of each, in bytes.
    """

    kind: _Kind
    width: int
    height: int
    orientation: int
    content: bytes
    seen: list[tuple[int, int]]

    def bare(self) -> bytes:
        """Return the file without the parts that the pixels do not need."""
        if self.seen == [(0, len(self.content))]:
            return self.content
        view = memoryview(self.content)
        return b"".join(view[start:end] for start, end in self.seen)


def begins_like_an_image(body: bytes) -> bool:
    """Return whether the first bytes are those of a JPEG, PNG or WebP file."""
    return _FIRST_BYTES.match(body) is not None


def not_an_image(name: str) -> MalformedBody:
    """Return the error for a damaged image, or for one of another format; `name` is for the message."""
    return MalformedBody(f"{name} is not a JPEG, PNG or WebP image, or is damaged or cut short.")


def read_image_file(content: bytes, name: str) -> ImageFile:
    """Read the structure of an image file, called `name` in messages; the decoder finds damage among its pixels."""
    if not begins_like_an_image(content):
        raise not_an_image(name)
    read = {0xFF: _read_jpeg, 0x89: _read_png}.get(content[0], _read_webp)
    file = read(content, name)
    if not file.width or not file.height:
        raise not_an_image(name)
    return file


def _read_jpeg(content: bytes, name: str) -> ImageFile:
    seen, size = [(0, 2)], (0, 0)
    orientation, table_bytes, at = 0, 0, 2
    for _ in range(_MAX_SEGMENTS):
        marker = _MARKER.search(content, at, at + _MAX_GAP_BYTES)
        if at > _MAX_JPEG_HEAD_BYTES or (marker is None and at + _MAX_GAP_BYTES < len(content)):
            break
        if marker is None:
            raise not_an_image(name)
        code, body = content[marker.end() - 1], marker.end()
        at = body + _number(content, body)
        if code in _WITHOUT_LENGTH or not body + 2 <= at <= len(content):
            raise not_an_image(name)
        if code == _SCAN:
            _check_scans(content, marker.start(), name)
            _keep(seen, marker.start(), len(content))
            return ImageFile("JPEG", *size, orientation or 1, content, seen)
        if code in _FRAMES:
            # With two frames, the decoder might use the other one.
            if any(size):
                raise not_an_image(name)
            size = _number(content, body + 5), _number(content, body + 3)
        if code in _SEEN_SEGMENTS:
            table_bytes += at - body
            _keep(seen, marker.start(), at)
        elif code == _EXIF_SEGMENT and not orientation and content.startswith(_EXIF_PREFIX, body + 2):
            orientation = _orientation(content[body + 2 : at])
        if table_bytes > _MAX_TABLE_BYTES:
            break
    raise ImageTooLarge(f"{name} is a JPEG with more before its first scan than is read.")


def _check_scans(content: bytes, at: int, name: str) -> None:
    """Refuse a JPEG with very many scans, or segments between them; damage ends the count."""
    scans = 0
    for _ in range(_MAX_SEGMENTS):
        marker = _next_marker(content, at)
        if marker is None or content[marker.end() - 1] == _END:
            return
        scans += content[marker.end() - 1] == _SCAN
        if scans > _MAX_SCANS:
            raise ImageTooLarge(f"{name} is a JPEG of more than {_MAX_SCANS} scans.")
        at = marker.end() + _number(content, marker.end())
    raise ImageTooLarge(f"{name} is a JPEG of more than {_MAX_SEGMENTS} segments.")


def _next_marker(content: bytes, at: int) -> re.Match[bytes] | None:
    # Pieces overlap, because a marker may cross their border.
    for start in range(at, len(content), _PIECE_BYTES - 1):
        if marker := _MARKER.search(content, start, start + _PIECE_BYTES):
            return marker
    return None


def _read_png(content: bytes, name: str) -> ImageFile:
    seen, orientation, at = [(0, 8)], 1, 8
    if content[12:16] != b"IHDR" or len(content) < 24:
        raise not_an_image(name)
    width, height = struct.unpack_from(">II", content, 16)
    for _ in range(_MAX_CHUNKS):
        if at + _CHUNK.size > len(content):
            break
        length, kind = _CHUNK.unpack_from(content, at)
        start, at = at, at + _CHUNK.size + length + _CHUNK_END_BYTES
        if kind in _SEEN_CHUNKS:
            _keep(seen, start, min(at, len(content)))
        elif kind == b"eXIf":
            body = start + _CHUNK.size
            orientation = _orientation(content[body : body + min(length, _MAX_EXIF_BYTES)])
        if kind == b"IEND":
            break
    else:
        raise ImageTooLarge(f"{name} is a PNG of more than {_MAX_CHUNKS} chunks.")
    return ImageFile("PNG", width, height, orientation, content, seen)


def _read_webp(content: bytes, name: str) -> ImageFile:
    kind, orientation = content[12:16], 1
    match kind:
        case b"VP8 " if content[23:26] == b"\x9d\x01\x2a":
            width, height = (_little(content[at : at + 2]) & 0x3FFF for at in (26, 28))
        case b"VP8L" if content[20:21] == b"\x2f":
            bits = _little(content[21:25])
            width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X" if len(content) >= 30:
            width, height = _little(content[24:27]) + 1, _little(content[27:30]) + 1
            orientation = _webp_orientation(content, name)
        case _:
            raise not_an_image(name)
    return ImageFile("WEBP", width, height, orientation, content, [(0, len(content))])


def _webp_orientation(content: bytes, name: str) -> int:
    at = 12
    for _ in range(_MAX_CHUNKS):
        kind, length = content[at : at + 4], _little(content[at + 4 : at + 8])
        if len(kind) < 4:
            return 1
        if kind == b"EXIF":
            return _orientation(content[at + 8 : at + 8 + min(length, _MAX_EXIF_BYTES)])
        at += 8 + length + length % 2
    raise ImageTooLarge(f"{name} is a WebP of more than {_MAX_CHUNKS} chunks.")


def _orientation(exif: bytes) -> int:
    """Return the orientation in an Exif block; 1 if it has none or is damaged."""
    exif = exif.removeprefix(_EXIF_PREFIX)
    orders: dict[bytes, _Order] = {b"II*\0": "little", b"MM\0*": "big"}
    order = orders.get(exif[:4])
    if order is None:
        return 1
    start = int.from_bytes(exif[4:8], order)
    tags = min(int.from_bytes(exif[start : start + 2], order), _MAX_TAGS)
    for at in range(start + 2, start + 2 + tags * _TAG_BYTES, _TAG_BYTES):
        if int.from_bytes(exif[at : at + 2], order) == _ORIENTATION:
            number_bytes = _NUMBER_BYTES.get(int.from_bytes(exif[at + 2 : at + 4], order), 0)
            value = int.from_bytes(exif[at + 8 : at + 8 + number_bytes], order)
            return value if 1 <= value <= 8 else 1
    return 1


def _keep(seen: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a part, or extend the one before it if there is no gap."""
    if seen[-1][1] == start:
        seen[-1] = (seen[-1][0], end)
    else:
        seen.append((start, end))


def _number(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 2], "big")


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")
