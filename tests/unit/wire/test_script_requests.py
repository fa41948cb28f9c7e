"""Bodies merged as texts, results split by rows, and the halving of what fails."""

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
import simdjson
from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.errors import ScoringTimeout
from stoker.scripts.invocation import ScriptCalls
from stoker.scripts.merging import MergedCalls, Unsplittable, split
from stoker.wire.script_requests import (
    MERGED_BYTES,
    RequestHead,
    ScriptAnswer,
    ScriptRequest,
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


def requests_of(*bodies: bytes, **others: Any) -> list[ScriptRequest]:
    """Requests as a frontend packs them."""
    return [
        ScriptRequest(b"id%d" % place, body, row_count(PARSER, body), **others)
        for place, body in enumerate(bodies)
    ]


class Scripted:
    """A script that notes how many rows each of its calls had."""

    def __init__(self, run: Callable[[list[Any]], Any]) -> None:
        self.sizes: list[int] = []
        self._run = run

    def merged(self, max_rows: int = 256) -> MergedCalls:
        """Its calls."""

        def run(raw_data: str) -> Any:
            rows = json.loads(raw_data)["data"]
            self.sizes.append(len(rows))
            return self._run(rows)

        return MergedCalls(ScriptCalls(run), key="data", max_rows=max_rows)


def bodies(answers: Sequence[ScriptAnswer]) -> list[Any]:
    """What callers read, their statuses where these are not 200."""
    return [json.loads(answer.body) if answer.status == 200 else answer.status for answer in answers]


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
    """The quicker one makes the objects of Python's reader out of every body that was counted, types included."""
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
    """Anything but one key with a list, and whatever is not strict JSON, goes to the script alone."""
    assert row_count(PARSER, body) == 0


def test_a_body_may_be_written_unusually() -> None:
    """Escapes in the key, a byte order mark and white space do not move the first and the last bracket."""
    unusual = b'\xef\xbb\xbf \n{ "d\\u0061ta"\t:\r[ [1, 2] ,\n["]"] ] } \n'
    assert row_count(PARSER, unusual) == 2
    assert json.loads(merge([unusual, b'{"data":[3]}'])) == {"data": [[1, 2], ["]"], 3]}


def test_another_key_can_be_the_only_one() -> None:
    """Some scripts call their rows otherwise."""
    assert row_count(PARSER, b'{"inputs \\"x\\"": [1, 2]}', 'inputs "x"') == 2
    assert json.loads(merge([b'{"inputs \\"x\\"": [1, 2]}'], 'inputs "x"')) == {'inputs "x"': [1, 2]}


def test_a_long_body_is_not_merged() -> None:
    """What reading it costs is not saved by company."""
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
    """In an array or a table they would change the types of each other's values."""
    assert row_texture(written(one)) != row_texture(written(other))
    assert row_texture(written(one)) == row_texture(written(one * 2))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.data())
@STEADY
def test_parts_put_together_are_the_result(counts: list[int], data: st.DataObject) -> None:
    """Lists, tuples, arrays and JSON texts of rows are divided without loss, in order."""
    rows = data.draw(st.lists(VALUES, min_size=sum(counts), max_size=sum(counts)))
    results: list[Any] = [rows, tuple(rows), json.dumps(rows), np.arange(sum(counts) * 2).reshape(-1, 2)]
    for result in results:
        parts = split(result, counts)
        if isinstance(result, str):
            assert json.dumps([row for part in parts for row in json.loads(part)]) == result
            assert [len(json.loads(part)) for part in parts] == counts
            continue
        assert [type(part) for part in parts] == [type(result)] * len(counts)
        assert [len(part) for part in parts] == counts
        assert [repr(row) for part in parts for row in part] == [repr(row) for row in result]


def test_a_dict_is_divided_list_by_list() -> None:
    """What is no list, and what is empty, belongs to all."""
    result = {
        "labels": ["a", "b", "c"],
        "scores": np.eye(3),
        "model": {"name": "m", "version": np.int64(3)},
        "inner": {"ids": (1, 2, 3), "unit": None},
        "warnings": [],
        "took": 0.5,
    }
    first, second = split(result, [1, 2])
    assert list(first) == list(result)
    assert first["labels"] == ["a"]
    assert second["scores"].tolist() == [[0, 1, 0], [0, 0, 1]]
    assert [part["model"] for part in (first, second)] == [result["model"]] * 2
    assert (first["inner"], second["inner"]) == (
        {"ids": (1,), "unit": None},
        {"ids": (2, 3), "unit": None},
    )
    assert (first["warnings"], second["took"]) == ([], 0.5)


@pytest.mark.parametrize(
    "write",
    [
        json.dumps,
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(value, indent=2),
        lambda value: json.dumps(value, indent=4),
        lambda value: orjson.dumps(value).decode(),
    ],
)
def test_a_text_is_written_as_it_was(write: Callable[[Any], str]) -> None:
    """The parts of a result that the script has written as JSON are what it writes for their rows."""
    rows = [{"label": "é", "p": 1.5e-7}, {"label": "b", "p": 0.25}, {"label": "/", "p": 1e22}]
    assert split(write(rows), [1, 2]) == [write(rows[:1]), write(rows[1:])]
    assert split(write({"result": rows}), [2, 1]) == [
        write({"result": rows[:2]}),
        write({"result": rows[2:]}),
    ]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ([1, 2], "the result has 2 entries for 3 rows"),
        (np.zeros((2, 3)), "the result has 2 entries for 3 rows"),
        (np.array(3), "the result is ndarray, which has no entry for each row"),
        (3, "the result is int, which has no entry"),
        (None, "the result is NoneType, which has no entry"),
        ({1, 2, 3}, "the result is set, which has no entry"),
        ({}, "the result is a dict without anything for each row"),
        ({"a": 1, "b": {"c": "x"}}, "the result is a dict without anything for each row"),
        ({"a": [1, 2, 3], "b": [1, 2]}, "the result['b'] has 2 entries for 3 rows"),
        ({"a": {"b": [1]}}, "the result['a']['b'] has 1 entries for 3 rows"),
        ({"a": [1, 2, 3], "b": object()}, "the result['b'] is object"),
        ("three", "the result is a text that is not JSON"),
        ("[1,  2, 3]", "notation that cannot be written again"),
        ("[1, 2, 123456789012345678901234567890]  ", "notation that cannot be written again"),
        ("[1, 2]", "the result has 2 entries for 3 rows"),
        ("3", "the result is int, which has no entry"),
    ],
)
def test_result_without_rows_is_not_divided(result: Any, complaint: str) -> None:
    """A result that cannot be divided into rows raises an error for the operator."""
    with pytest.raises(Unsplittable) as refused:
        split(result, [1, 2])
    assert complaint in str(refused.value)


def test_requests_are_answered_by_one_call() -> None:
    """Each gets the part of its rows, in the order of the requests, with the time of the call."""
    script = Scripted(lambda rows: [row * 10 for row in rows])
    answers = script.merged().answers(requests_of(written([1]), written([2, 3]), written([4])))
    assert bodies(answers) == [[10], [20, 30], [40]]
    assert script.sizes == [4]
    assert {answer.exec_ns for answer in answers} == {answers[0].exec_ns}
    assert answers[0].exec_ns is not None


def test_companies_have_at_most_so_many_rows() -> None:
    """A request with more rows than fit, or that cannot be merged, is called by itself."""
    script = Scripted(lambda rows: rows)
    sizes = [3, 1, 1, 9, 2, 1]
    answers = script.merged(max_rows=4).answers(requests_of(*(written([0] * size) for size in sizes)))
    assert [len(body) for body in bodies(answers)] == sizes
    assert script.sizes == [4, 1, 9, 3]


def test_companies_have_at_most_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged body has a bound, too."""
    monkeypatch.setattr("stoker.scripts.merging.MERGED_BYTES", 3 * len(written([0])))
    script = Scripted(lambda rows: rows)
    script.merged().answers(requests_of(*[written([0])] * 7))
    assert script.sizes == [3, 3, 1]


def test_rows_of_other_types_keep_to_themselves() -> None:
    """An answer does not change because somebody else sent fractions."""
    script = Scripted(lambda rows: np.array(rows).tolist())
    sent = [
        written([[1]]),
        written([[1.5]]),
        written([[2]]),
        written([[2.5]]),
        b'{"other": 1, "data": [[3]]}',
    ]
    assert bodies(script.merged().answers(requests_of(*sent))) == [[[1]], [[1.5]], [[2]], [[2.5]], [[3]]]
    assert script.sizes == [2, 2, 1]


def test_content_types_keep_to_themselves() -> None:
    """The head of a merged call is that of its first request."""
    heads = [RequestHead("POST", "/", "", [("Content-Type", kind)], "") for kind in ("text/a", "text/b")]
    seen: list[Any] = []

    def run(raw_data: str, request_headers: dict[str, str]) -> list[int]:
        rows = json.loads(raw_data)["data"]
        seen.append((request_headers["Content-Type"], len(rows)))
        return list(rows)

    merged = MergedCalls(ScriptCalls(run), key="data", max_rows=8)
    merged.answers([requests_of(written([1]), head=heads[place % 2])[0] for place in range(5)])
    assert seen == [("text/a", 3), ("text/b", 2)]


def failing(rows: list[Any]) -> list[Any]:
    """Raise for a 13, leave for a 14, answer a 15 with a text."""
    if 13 in rows:
        raise ValueError("thirteen")
    if 14 in rows:
        raise SystemExit(1)
    return "no fifteen here" if 15 in rows else rows  # type: ignore[return-value]


@given(st.lists(st.sampled_from([1, 2, 3, 13, 14, 15]), min_size=1, max_size=12))
@STEADY
def test_only_what_fails_alone_fails(sent: list[int]) -> None:
    """Whatever is in a merged call, each request gets the answer that it gets alone."""
    script = Scripted(failing)
    merged = script.merged()
    alone = [merged.answers(requests_of(written([row])))[0] for row in sent]
    together = merged.answers(requests_of(*(written([row]) for row in sent)))
    assert bodies(together) == bodies(alone)
    assert [answer.failed for answer in together] == [row in (13, 14) for row in sent]


def test_one_bad_request_costs_few_calls() -> None:
    """It is found by halving."""
    script = Scripted(failing)
    answers = script.merged().answers(requests_of(*(written([13 if n == 5 else 1]) for n in range(16))))
    assert bodies(answers) == [[1]] * 5 + [500] + [[1]] * 10
    assert len(script.sizes) <= 1 + 2 * math.log2(16)


def test_a_part_that_cannot_be_sent_is_run_alone() -> None:
    """The others keep their part of the merged call."""
    script = Scripted(lambda rows: [object() if row == 13 else row for row in rows])
    assert bodies(script.merged().answers(requests_of(*map(written, ([1], [13], [2]))))) == [[1], 500, [2]]
    assert script.sizes == [3, 1]


def test_a_merged_call_that_times_out_is_not_tried_again() -> None:
    """Its callers have waited for as long as they may."""
    script = Scripted(lambda rows: rows)

    class Late(ScriptCalls):
        def invoke(self, *args: Any) -> Any:
            super().invoke(*args)
            raise ScoringTimeout(5)

    def run(raw_data: str) -> None:
        script.sizes.append(len(json.loads(raw_data)["data"]))

    answers = MergedCalls(Late(run), key="data", max_rows=8).answers(requests_of(*map(written, ([1], [2]))))
    assert [json.loads(answer.body)["message"] for answer in answers] == ["Scoring timeout after 5 ms"] * 2
    assert script.sizes == [2]
