"""Request ids: taken over as sent, or made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import HeaderTooLarge, RequestError
from stoker.gateway.http.request_ids import RequestIds, fresh_id_lines, refusal_id_lines
from stoker.gateway.http.request_ids import sent_ids as ids_in

NAMES = (b"x-request-id", b"x-ms-request-id", b"x-ms-client-request-id")
# Header values can hold these: printable characters and bytes beyond ASCII.
sent_ids = st.one_of(
    st.just(b""),
    st.binary(min_size=1, max_size=100).map(lambda b: bytes(c if c > 31 and c != 127 else 65 for c in b)),
)


def headers(lines: bytes) -> dict[bytes, bytes]:
    """Header lines by name; each line is whole and each name is there once."""
    assert lines.endswith(b"\r\n")
    pairs = [line.split(b": ", 1) for line in lines[:-2].split(b"\r\n")]
    assert len({name for name, _ in pairs}) == len(pairs)
    return {name: value for name, value in pairs}  # noqa: C416


@STEADY
@given(sent_ids, sent_ids, sent_ids)
def test_ids_of_the_client_are_returned_unchanged(sent: bytes, legacy: bytes, client: bytes) -> None:
    """The answer always has an id and its older name."""
    ids = RequestIds(sent, legacy, client)
    answer = headers(ids.lines)
    for name, value in zip(NAMES, (sent, legacy, client), strict=True):
        if value:
            assert answer[name] == value
    assert answer[b"x-request-id"] == ids.request_id
    assert set(answer) == {*NAMES[:2], *((NAMES[2],) if client or legacy else ())}


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ((b"a", b"", b""), (b"a", b"a", None)),
        ((b"", b"b", b""), (None, b"b", b"b")),
        ((b"", b"", b"c"), (None, b"c", b"c")),
        ((b"a", b"b", b""), (b"a", b"b", b"b")),
        ((b"a", b"b", b"c"), (b"a", b"b", b"c")),
    ],
)
def test_missing_ids_are_filled_in(
    sent: tuple[bytes, bytes, bytes], expected: tuple[bytes | None, bytes, bytes | None]
) -> None:
    """The older name stands for the client's own id, and the other way round; a fresh id where none was sent."""
    answer = headers(RequestIds(*sent).lines)
    assert answer[NAMES[1]] == expected[1]
    assert answer.get(NAMES[2]) == expected[2]
    if expected[0] is not None:
        assert answer[NAMES[0]] == expected[0]
    else:
        assert len(answer[NAMES[0]]) == 36


def test_fresh_ids_look_like_uuids_and_never_repeat() -> None:
    """Both ways to make one take from the same numbers."""
    made = [RequestIds().request_id for _ in range(500)]
    made += [headers(fresh_id_lines())[b"x-request-id"] for _ in range(500)]
    made += [RequestIds(b"", b"x").request_id for _ in range(500)]
    assert len(set(made)) == 1500
    assert {len(made_id) for made_id in made} == {36}
    assert {tuple(map(len, made_id.split(b"-"))) for made_id in made} == {(8, 4, 4, 4, 12)}


def test_a_fresh_id_has_both_names() -> None:
    """A client that reads only the older name finds the same id there."""
    for lines in (RequestIds().lines, fresh_id_lines()):
        answer = headers(lines)
        assert list(answer) == [b"x-request-id", b"x-ms-request-id"]
        assert answer[b"x-request-id"] == answer[b"x-ms-request-id"]


@pytest.mark.parametrize("place", range(3))
def test_an_id_has_a_limit(place: int) -> None:
    """100 characters are taken, 101 are not."""
    sent = [b"", b"", b""]
    sent[place] = b"x" * 100
    RequestIds(*sent)
    sent[place] += b"x"
    with pytest.raises(HeaderTooLarge, match="must not exceed 100 characters"):
        RequestIds(*sent)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("control", [b"\r\n", b"\n", b"\x00", b"\t", b"\x7f"])
def test_an_id_cannot_write_headers(place: int, control: bytes) -> None:
    """Control characters, line breaks above all, are refused rather than echoed."""
    sent = [b"", b"", b""]
    sent[place] = b"a" + control + b"set-cookie: b"
    with pytest.raises(RequestError, match="control characters"):
        RequestIds(*sent)


def test_ids_are_taken_from_headers() -> None:
    """In the order in which they are checked; empty where there is none."""
    assert ids_in({}) == [b"", b"", b"", b""]
    assert ids_in({b"x-ms-client-request-id": b"c", b"x-request-id": b"a"}) == [b"a", b"", b"c", b""]


@pytest.mark.parametrize(
    ("sent", "lines"),
    [
        ((b"a", b"b", b"c"), {NAMES[0]: b"a", NAMES[1]: b"b", NAMES[2]: b"c"}),
        ((b"a", b"x" * 101, b""), {NAMES[0]: b"a"}),
        ((b"a", b"", b"\x00"), {NAMES[0]: b"a"}),
        ((b"x" * 101, b"b", b"c"), {}),
    ],
)
def test_a_refusal_carries_the_ids_that_can_be_carried(
    sent: tuple[bytes, bytes, bytes], lines: dict[bytes, bytes]
) -> None:
    """All of them, else the request's own, else none."""
    answered = refusal_id_lines(sent)
    assert (headers(answered) if answered else {}) == lines


def test_a_refusal_makes_up_the_id_that_was_not_sent() -> None:
    """As an answer does."""
    (made,) = headers(refusal_id_lines((b"", b"x" * 101, b""))).values()
    assert len(made) == 36
