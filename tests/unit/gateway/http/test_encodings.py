"""Inflating bodies piece by piece."""

import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import MalformedBody, UnsupportedEncoding
from stoker.gateway.http.encodings import PIECE_BYTES, Inflater, inflater_for


def raw_deflate(data: bytes) -> bytes:
    """Deflate without a frame."""
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


CODINGS: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "gzip": (b"gzip", gzip.compress),
    "deflate": (b"deflate", zlib.compress),
    "raw deflate": (b"deflate", raw_deflate),
}


def inflater(name: bytes) -> Inflater:
    """Return the inflater of this encoding."""
    made = inflater_for([name])
    assert made is not None
    return made


@pytest.mark.parametrize("coding", CODINGS)
@STEADY
@given(data=st.binary(max_size=2000), cuts=st.lists(st.integers(0, 2500), max_size=5))
def test_compressed_body_in_any_pieces_is_restored(coding: str, data: bytes, cuts: list[int]) -> None:
    """A compressed body is restored however it is cut."""
    name, compress = CODINGS[coding]
    packed, reads, made, start = compress(data), inflater(name), b"", 0
    for stop in [*sorted(cuts), len(packed)]:
        made += b"".join(reads.feed(packed[start : max(start, stop)]))
        start = max(start, stop)
    reads.finish()
    assert made == data


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("extra", [-1, 0, 1, 300])
@pytest.mark.parametrize("pieces", [1, 2, 40])
def test_pieces_are_bounded_and_freed(coding: str, extra: int, pieces: int) -> None:
    """A bomb comes out in pieces, of which a caller can stop to take more."""
    name, compress = CODINGS[coding]
    size = pieces * PIECE_BYTES + extra
    reads = inflater(name)
    sizes = [len(piece) for piece in reads.feed(compress(b"a" * size))]
    reads.finish()
    assert max(sizes) <= PIECE_BYTES
    assert sum(sizes) == size


@STEADY
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_gzip_may_have_several_members(parts: list[bytes]) -> None:
    """Their contents follow each other (RFC 1952, section 2.2)."""
    reads = inflater(b"gzip")
    packed = b"".join(map(gzip.compress, parts))
    made = b"".join(b"".join(reads.feed(packed[i : i + 1])) for i in range(len(packed)))
    reads.finish()
    assert made == b"".join(parts)


def test_much_that_makes_little_is_read_with_pauses() -> None:
    """Thousands of empty members: a caller can let others have their turn every few of them."""
    reads, empty = inflater(b"gzip"), gzip.compress(b"")
    packed = empty * ((1 << 16) // len(empty))
    pieces = list(reads.feed(packed))
    reads.finish()
    assert set(pieces) == {b""}
    assert len(pieces) == (len(packed) - 1) >> 13


@pytest.mark.parametrize("coding", CODINGS)
def test_every_cut_is_noticed(coding: str) -> None:
    """A body without its last byte is not whole, wherever it is cut; one without any byte is no body."""
    name, compress = CODINGS[coding]
    packed = compress(b"some text")
    for length in range(1, len(packed)):
        reads = inflater(name)
        for _ in reads.feed(packed[:length]):
            pass
        with pytest.raises(MalformedBody, match="ends too early"):
            reads.finish()
    empty = inflater(name)
    assert list(empty.feed(b"")) == []
    empty.finish()


@pytest.mark.parametrize("values", [[], [b""], [b"identity"], [b"Identity", b" identity "]])
def test_bodies_that_are_not_compressed_need_nothing(values: list[bytes]) -> None:
    """No header, an empty one, or `identity`."""
    assert inflater_for(values) is None


@pytest.mark.parametrize("values", [[b"br"], [b"gzip, gzip"], [b"gzip", b"deflate"], [b"gzip,identity"]])
def test_other_encodings_are_refused(values: list[bytes]) -> None:
    """The error says which there are."""
    with pytest.raises(UnsupportedEncoding) as refused:
        inflater_for(values)
    assert refused.value.accepted == ("gzip", "deflate")
