"""What JSON bodies may hold, and what they are made of before anybody looks inside."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import BodyTooLarge, MalformedBody
from stoker.wire import json_bodies
from stoker.wire.json_bodies import (
    check_slow,
    check_text,
    check_values,
    nesting_depth,
    nests_deeper,
    parse_document,
)


@settings(STEADY, max_examples=100)
@given(
    st.recursive(
        st.integers() | st.booleans() | st.none() | st.just("text"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just("key"), inner),
        max_leaves=8,
    )
)
def test_nesting_depth_is_the_depth(value: Any) -> None:
    """Without brackets in strings it is exact."""

    def depth(value: Any) -> int:
        match value:
            case list():
                return 1 + max(map(depth, value), default=0)
            case dict():
                return 1 + max(map(depth, value.values()), default=0)
            case _:
                return 0

    assert nesting_depth(json.dumps(value).encode()) == depth(value)


@settings(STEADY, max_examples=100)
@given(
    st.lists(st.sampled_from([b"[", b"{", b"]", b"}", b"x"]), max_size=30).map(b"".join), st.integers(0, 12)
)
def test_the_quick_look_at_the_depth_says_the_same(body: bytes, levels: int) -> None:
    """Whatever brackets stand in a text, in order or not, a bound that is looked at first changes no verdict."""
    assert nests_deeper(body, levels) == (nesting_depth(body) > levels)


def test_the_depth_goes_on_from_piece_to_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is looked at in pieces, of which one may have no bracket."""
    monkeypatch.setattr(json_bodies, "_PIECE_BYTES", 3)
    assert nesting_depth(b"[[[1, 2, 3, 4], [5, [6, 7]]]]") == 4


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (
            b'{"data": [[np.float64(inf)]]}',
            "; np.float64\\(inf\\) looks like Python's repr of numpy values, .*tolist",
        ),
        ('["ü", array([1, 2])]'.encode(), "; array\\(\\[1, 2\\]\\) looks like"),
        (b'{"data": [[None]]}', "char 11\\)$"),
    ],
)
def test_the_repr_of_numpy_values_is_explained(body: bytes, hint: str) -> None:
    """As `str(list(row))` makes it since numpy 2, which ran with the one before; other words get the place alone."""
    with pytest.raises(MalformedBody, match=f"is not valid JSON: .*{hint}"):
        parse_document(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"data": [[np.float64(0.0), np.float32(1e-05)]]}', {"data": [[0.0, 1e-05]]}),
        (b"\xef\xbb\xbf[np.int64(-3),np.uint8(255)]", [-3, 255]),
        ('["ü np.int8(1) \\\\", np.int8(1)]'.encode(), ["ü np.int8(1) \\", 1]),
    ],
)
def test_scalars_of_numpy_are_read(body: bytes, value: object) -> None:
    """`str(list(row))` of numpy 2 means numbers; what stands in strings is not touched."""
    assert parse_document(body) == value


@pytest.mark.parametrize(
    "scalar",
    [
        *(
            "np.float64(nan)",
            "np.float64(01)",
            "np.float64(1.)",
            "np.float64('1')",
            "np.float64( 1)",
            "np.int64(+1)",
        ),
        *(
            "np.float(1)",
            "numpy.float64(1)",
            "float64(1)",
            "np.float64(1",
            "np.float64(True)",
            "np.complex128(1)",
        ),
        *("np.float64(1)2", "np.float64(1)np.float64(2)", "3np.float64(1)", "-np.float64(1)"),
    ],
)
def test_everything_else_of_numpy_stays_no_json(scalar: str) -> None:
    """What could mean anything but one number is refused, as any other word."""
    with pytest.raises(MalformedBody):
        parse_document(f'{{"data": [[{scalar}]]}}'.encode())
    with pytest.raises(MalformedBody):
        parse_document(f'{{"data": [[np.int8(1), {scalar}]]}}'.encode())


def test_text_is_checked_as_utf_8() -> None:
    """ASCII and UTF-8 pass, anything else is refused with the place."""
    check_text(b"plain")
    check_text("naïve ✓".encode())
    with pytest.raises(MalformedBody, match="in position 3"):
        check_text(b"abc\xe9")


def test_long_bodies_with_wide_letters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them makes Python take two or four bytes for each other letter of its text."""
    monkeypatch.setattr(json_bodies, "MAX_VALUES", 10)
    monkeypatch.setattr(json_bodies, "_MAX_WIDE_BYTES", 20)
    for letter in "\u0100中😀\U0010ffff":
        with pytest.raises(BodyTooLarge, match="letters beyond U"):
            check_values(f'"{letter}"'.encode().ljust(21))
        check_values(f'"{letter}"'.encode().ljust(20))
    check_values('"a\x7f\x80é\xff"'.encode().ljust(21))


def test_long_texts_for_the_slow_parser_are_refused() -> None:
    """It takes a second for each dozen megabytes, in which the frontend does nothing else."""
    check_slow(bytes(16 << 20))
    with pytest.raises(BodyTooLarge, match="is read up to 16 MiB"):
        check_slow(bytes((16 << 20) + 1))


@pytest.mark.parametrize("unit", [b"0,", b"[0],", b"{},", b'"",', b'{"a":0},'])
def test_more_values_than_memory_allows_are_refused(unit: bytes) -> None:
    """Some bytes of JSON make ten times as many of Python's: so many of them are told to come in another form."""
    few, many = (b'{"data": [' + unit * count + b'0], "x": 1}' for count in (1 << 19, 1 << 22))
    check_values(few)
    with pytest.raises(BodyTooLarge, match="4194304 JSON values"):
        parse_document(many)
