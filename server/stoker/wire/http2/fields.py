"""Header fields of HTTP/2: decoding a client's blocks, and encoding fields (HPACK, RFC 7541)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from stoker.wire.http2.frames import MAX_LIST_BYTES, ConnectionFault, ErrorCode, StreamFault

_MAX_HEADS: Final = 64
_REMEMBERED_BYTES: Final = 1024
_RESIZES: Final = 0x20
_RESIZES_MASK: Final = 0xE0
_SHORT: Final = 127
_NAME: Final = re.compile(rb":?[!#$%&'*+\-.^_`|~0-9a-z]+")
_BAD_VALUE: Final = re.compile(rb"[\0\r\n]")
_SPACE: Final = b" \t"
_PSEUDO: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_NEEDED: Final = (b":method", b":scheme", b":path")
# Fields of a connection of HTTP/1.1 (section 8.2.2).
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)

Fields = list[tuple[bytes, bytes]]
"""Names and values, in their order."""

Head = TypeVar("Head")


class _Table(HeaderTable):
    """The header table of a connection, which notes its changes."""

    changed = False

    def add(self, name: bytes, value: bytes) -> None:
        self.changed = True
        super().add(name, value)


class HeadReader(Generic[Head]):
    """Reads the heads of one connection's requests; `read` parses the fields of one.

    Callers repeat theirs: a block that changes no table means the same until the table changes, so its result is
    remembered by its bytes.
    """

    def __init__(self, read: Callable[[Fields], Head]) -> None:
        self._read = read
        self._decoder = Decoder(max_header_list_size=MAX_LIST_BYTES)
        self._table = self._decoder.header_table = _Table()
        self._known: dict[bytes, Head] = {}

    def head(self, block: bytes) -> Head:
        """Return the head of a request.

        Raises:
            StreamFault: Its fields are not those of a request.
            ConnectionFault: The block cannot be read, so nothing that follows can.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        head = self._read(_checked_request(self.fields(block)))
        if not self._table.changed and len(block) <= _REMEMBERED_BYTES:
            if len(self._known) >= _MAX_HEADS:
                self._known.clear()
            self._known[block] = head
        return head

    def fields(self, block: bytes) -> Fields:
        """Return the fields of any block; raise ConnectionFault if it cannot be read."""
        table: Any = self._table
        table.changed = bool(block) and block[0] & _RESIZES_MASK == _RESIZES
        try:
            return list(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "header list is too long") from None
        except (HPACKError, IndexError, ValueError):
            raise ConnectionFault(ErrorCode.COMPRESSION_ERROR, "header block cannot be read") from None
        finally:
            if table.changed:
                self._known.clear()


def _checked_request(fields: Fields) -> Fields:
    """Return the fields of a request if they are well-formed (RFC 9113, section 8), else raise StreamFault.

    Spaces around values are removed, as gRPC lets servers do: `Bearer ` without a key is then refused for its key.
    """
    pseudo: set[bytes] = set()
    regular = False
    read: Fields = []
    for name, raw in fields:
        _check_field(name, raw)
        value = raw.strip(_SPACE)
        read.append((name, value))
        if name[:1] != b":":
            regular = True
            if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
                raise _malformed(name)
        elif regular or name in pseudo or name not in _PSEUDO or value != raw:
            raise _malformed(name)
        else:
            pseudo.add(name)
    if not pseudo.issuperset(_NEEDED) or (b":path", b"") in fields:
        raise StreamFault(ErrorCode.PROTOCOL_ERROR, "request without method, scheme or path")
    return read


def checked_trailers(fields: Fields) -> Fields:
    """Return the fields after the content of a request if they are well-formed, else raise StreamFault."""
    for name, value in fields:
        _check_field(name, value)
        if name[:1] == b":" or name in _OF_CONNECTIONS:
            raise _malformed(name)
    return fields


def _check_field(name: bytes, value: bytes) -> None:
    if _NAME.fullmatch(name) is None or _BAD_VALUE.search(value) is not None:
        raise _malformed(name)


def _malformed(name: bytes) -> StreamFault:
    return StreamFault(ErrorCode.PROTOCOL_ERROR, f"malformed field {name[:100]!r}")


def encoded(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode fields as a block that neither needs nor changes a table."""
    return b"".join(b"\0" + _string(name) + _string(value) for name, value in fields)


def _string(content: bytes) -> bytes:
    """Encode a string of HPACK without compression (RFC 7541, section 5.2)."""
    size = len(content)
    if size < _SHORT:
        return bytes((size,)) + content
    prefix = bytearray((_SHORT,))
    size -= _SHORT
    while size > _SHORT:
        prefix.append(size & _SHORT | _SHORT + 1)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + content
