"""`stoker_client.spark.scored` without Spark: a frame of one batch after the other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import orjson
import pyarrow as pa
import pytest
from tests.patience import PATIENCE_S
from tests.unit.stoker_client.scripted import error, is_description

from stoker_client.spark import scored

KEY = "a-key-of-the-tests-0001"
URI = "http://127.0.0.1:9/score"


class Schema:
    """A schema of Spark, which is Arrow's here."""

    def __init__(self, fields: list[pa.Field]) -> None:
        self.fields = fields
        self.names = [field.name for field in fields]


class Frame:
    """A frame of Spark whose session makes frames without rows."""

    def __init__(self, *batches: pa.RecordBatch, types: pa.Schema | None = None) -> None:
        self.batches = batches
        self.schema = Schema(list(types or batches[0].schema))
        self.columns = self.schema.names
        context = SimpleNamespace(broadcast=lambda content: SimpleNamespace(value=content))
        self.sparkSession = SimpleNamespace(createDataFrame=self._empty, sparkContext=context)
        self.declared: Schema | None = None

    def _empty(self, rows: list[Any], types: str) -> Frame:
        assert rows == []
        kinds = {"long": pa.int64(), "float": pa.float32(), "array<float>": pa.list_(pa.float32())}
        pairs = [one.strip().split() for one in types.split(",")]
        return Frame(types=pa.schema([(name, kinds[kind]) for name, kind in pairs]))

    def mapInArrow(self, score: Any, schema: Schema) -> Frame:  # noqa: N802  # Spark's name
        result = Frame(*score(iter(self.batches)))
        assert result.schema.fields == schema.fields
        return result

    def column(self, name: str) -> list[Any]:
        return [value for batch in self.batches for value in batch.column(name).to_pylist()]


@pytest.fixture(autouse=True)
def types(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of Spark that is imported."""
    module = SimpleNamespace(to_arrow_schema=lambda schema: pa.schema(schema.fields))
    for name in ("pyspark", "pyspark.sql", "pyspark.sql.pandas"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "pyspark.sql.pandas.types", module)


def batches() -> tuple[pa.RecordBatch, ...]:
    """Ids 0 to 3 with two numbers each, and a batch without rows in between."""
    x = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float32)), 2)
    whole = pa.RecordBatch.from_arrays([pa.array([0, 1, 2, 3]), x], names=["id", "x"])
    return whole[:3], whole[:0], whole[3:]


def answering(answer: Any, bodies: list[Any]) -> httpx.MockTransport:
    """A server that answers `answer(rows)`."""

    def handle(request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        if is_description(request):
            return error(404, "not_found")
        rows = orjson.loads(request.content)["data"]
        bodies.append(rows)
        return httpx.Response(200, content=orjson.dumps(answer(rows)))

    return httpx.MockTransport(handle)


def test_answers_stand_beside_the_columns() -> None:
    """Rows are cut into requests and keep their order; a batch without rows is left out."""
    bodies: list[Any] = []
    transport = answering(lambda rows: [int(sum(row)) for row in rows], bodies)
    frame = scored(
        Frame(*batches()), URI, KEY, "x", "y long", batch_rows=2, concurrency=1, transport=transport
    )
    assert (frame.column("id"), frame.column("y")) == ([0, 1, 2, 3], [1, 5, 9, 13])
    # Batches of Spark are asked for side by side.
    assert sorted(bodies) == [[[0, 1], [2, 3]], [[4, 5]], [[6, 7]]]


def test_next_rows_are_sent_before_the_first_answer() -> None:
    """While Spark brings further rows and takes answers, requests are under way; their answers keep the order."""
    both = Barrier(2, timeout=PATIENCE_S)

    def answer(rows: list[Any]) -> list[int]:
        # Nobody gets through alone.
        both.wait()
        return [int(row[0]) for row in rows]

    first, _, last = batches()
    frame = scored(Frame(first, last), URI, KEY, "x", "y long", transport=answering(answer, []))
    assert frame.column("y") == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("rows", "width", "sizes"),
    [(10_000, 4, [1000] * 10), (900, 784, [300] * 3), (3, 1 << 19, [1] * 3), (5, 1, [5])],
)
def test_requests_are_of_one_size(rows: int, width: int, sizes: list[int]) -> None:
    """At most 1024 rows and 1 MiB each."""
    seen: list[int] = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(404)
        count = len(orjson.loads(request.content)["data"])
        seen.append(count)
        return httpx.Response(200, content=orjson.dumps([0] * count))

    x = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * width, np.float32)), width)
    frame = Frame(pa.RecordBatch.from_arrays([x], names=["x"]))
    scored(frame, URI, KEY, "x", "y long", transport=httpx.MockTransport(handle))
    assert seen == sizes


def test_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken where `scored` is called: executors do not have it."""
    monkeypatch.setenv("STOKER_KEY", KEY)
    sent: list[Any] = []
    monkeypatch.setattr(Frame, "mapInArrow", lambda _, score, __: sent.append(score))
    transport = answering(lambda rows: [1] * len(rows), [])
    scored(Frame(*batches()), URI, None, "x", "y long", transport=transport)
    monkeypatch.delenv("STOKER_KEY")
    assert Frame(*sent[0](iter(batches()))).column("y") == [1, 1, 1, 1]


def test_several_columns_are_a_row() -> None:
    """Numbers as an array, others as a list; nested lists of one shape are arrays, ragged ones lists."""
    bodies: list[Any] = []
    nested = pa.array([[[1, 2]], [[3, 4]]])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2]), pa.array([0.5, 1.5]), pa.array(["a", None]), nested, pa.array([[1], [2, 3]])],
        names=["n", "f", "s", "nested", "ragged"],
    )
    for columns in (["n", "f"], ["n", "s"], "nested", "ragged"):
        transport = answering(lambda rows: [0.5] * len(rows), bodies)
        frame = scored(Frame(batch), URI, KEY, columns, "y float", transport=transport)
        assert frame.column("y") == [0.5, 0.5]
    assert bodies == [[[1, 0.5], [2, 1.5]], [[1, "a"], [2, None]], [[[1, 2]], [[3, 4]]], [[1], [2, 3]]]


def test_outputs_by_name() -> None:
    """Of a model with several, those that are named; a name that it has not is an error that says so."""
    transport = answering(lambda rows: {"a": [1] * len(rows), "b": [[0.5, 1.5]] * len(rows)}, [])
    frame = scored(Frame(batches()[0]), URI, KEY, "x", "b array<float>, a long", transport=transport)
    assert (frame.column("a"), frame.column("b")) == ([1, 1, 1], [[0.5, 1.5]] * 3)
    with pytest.raises(ValueError, match="outputs names c, and the model returns a, b"):
        scored(Frame(batches()[0]), URI, KEY, "x", "c long", transport=transport)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"columns": ["id", "z"]}, "the frame has no column 'z'; it has id, x"),
        ({"outputs": "x long"}, "the frame has a column 'x' already"),
        ({"batch_rows": 0}, "batch_rows has to be 1 or more"),
        ({"concurrency": 0}, "concurrency has to be 1 or more"),
        ({"timeout_s": 0}, "timeout_s has to be above 0"),
        ({"uri": "nowhere"}, "nowhere"),
    ],
)
def test_wrong_arguments_are_refused_on_the_driver(changed: dict[str, Any], message: str) -> None:
    """On the driver, once."""

    def never(_: Iterator[Any]) -> Iterator[Any]:
        raise AssertionError

    frame = Frame(*batches())
    frame.mapInArrow = never  # type: ignore[method-assign]
    arguments = {"uri": URI, "key": KEY, "columns": "x", "outputs": "y long", **changed}
    with pytest.raises(ValueError, match=message):
        scored(frame, **arguments)
