"""Bodies of requests: their rows are counted, compared by texture, and merged as texts."""

import json
from collections.abc import Sequence
from typing import Any

import orjson
import pytest
import simdjson
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.wire.script_requests import (
    MERGED_BYTES,
    merge,
    row_count,
    row_texture,
)

PARSER = simdjson.Parser()

INTEGERS = st.integers(-(2**63), 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)
ROWS = st.lists(VALUES, min_size=1, max_size=6)
INDENTS = st.sampled_from([None, 0, 3])


def written(rows: Sequence[Any], indent: int | None = None) -> bytes:
    """A body with these rows."""
    return json.dumps({"data": rows}, indent=indent).encode()


@given(ROWS, INDENTS)
@STEADY
def test_rows_are_counted(rows: list[Any], indent: int | None) -> None:
    """However a body with one list is written, its rows are the entries of the list."""
    assert row_count(PARSER, written(rows, indent)) == len(rows)


@given(st.lists(st.tuples(ROWS, INDENTS), min_size=1, max_size=5))
@STEADY
def test_merged_bodies_hold_the_rows_of_all(parts: list[tuple[list[Any], int | None]]) -> None:
    """Reading the merged text gives the rows in order, and the text of each row is the caller's."""
    texts = [written(rows, indent) for rows, indent in parts]
    merged = merge(texts)
    together = [row for rows, _ in parts for row in rows]
    assert json.loads(merged) == {"data": together}
    assert row_count(PARSER, merged) == len(together)
    for text in texts:
        assert text[text.index(b"[") + 1 : text.rindex(b"]")] in merged


@given(ROWS)
@STEADY
def test_counted_bodies_mean_the_same_to_both_readers(rows: list[Any]) -> None:
    """The fast reader makes the same objects and types as Python's from every counted body."""
    body = written(rows)
    assert repr(orjson.loads(body)) == repr(json.loads(body))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        b"[[1]]",
        b"7",
        b'"data"',
        b"{}",
        b'{"data": []}',
        b'{"data": {}}',
        b'{"data": {"a": [1]}}',
        b'{"data": "[1]"}',
        b'{"data": 1}',
        b'{"rows": [1]}',
        b'{"data": [1], "data": [2]}',
        b'{"data": [1], "other": 1}',
        b'{"other": [1], "data": [1]}',
        b'{"data": [NaN]}',
        b'{"data": [1e400]}',
        b'{"data": [18446744073709551616]}',
        b'{"data": [1,]}',
        b'{"data": [1]} x',
        b'{"data": [1]',
        b'{"data": ["\xff"]}',
        b'{"data": ["\\ud800"]}',
        b'{"data": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        '{"data": [1]}'.encode("utf-16"),
    ],
)
def test_other_bodies_have_no_rows_to_merge(body: bytes) -> None:
    """Bodies without exactly one key with a list, and bodies that are not strict JSON, go to the script alone."""
    assert row_count(PARSER, body) == 0


def test_a_body_may_be_written_unusually() -> None:
    """Escapes in the key, a byte order mark and white space do not move the first and the last bracket."""
    unusual = b'\xef\xbb\xbf \n{ "d\\u0061ta"\t:\r[ [1, 2] ,\n["]"] ] } \n'
    assert row_count(PARSER, unusual) == 2
    assert json.loads(merge([unusual, b'{"data":[3]}'])) == {"data": [[1, 2], ["]"], 3]}


def test_another_key_can_be_the_only_one() -> None:
    """Scripts may name their rows differently."""
    assert row_count(PARSER, b'{"inputs \\"x\\"": [1, 2]}', 'inputs "x"') == 2
    assert json.loads(merge([b'{"inputs \\"x\\"": [1, 2]}'], 'inputs "x"')) == {'inputs "x"': [1, 2]}


def test_a_long_body_is_not_merged() -> None:
    """Merging would not save the time of reading it."""
    body = written(["x" * MERGED_BYTES])
    assert row_count(PARSER, body) == 0
    assert row_count(PARSER, written(["x" * (MERGED_BYTES - len(written([""])))])) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([[1, 2]], [[1, 2.5]]),
        ([[1, 2]], [[1, 1e30]]),
        ([[1, 2]], [[1, None]]),
        ([[1, 2]], [[1, True]]),
        ([[1, 2]], [[1, False]]),
        ([[1, 2]], [["1", "2"]]),
        ([{"a": "x"}], ["x"]),
        ([["x"]], [["x", None]]),
    ],
)
def test_rows_of_other_types_have_another_texture(one: list[Any], other: list[Any]) -> None:
    """In one array or table, rows of other types would change the types of all values."""
    assert row_texture(written(one)) != row_texture(written(other))
    assert row_texture(written(one)) == row_texture(written(one * 2))
