"""Scores for Spark data frames: the executors send their rows to a server."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker_client.bearer import KEY_VARIABLE
from stoker_client.client import Client
from stoker_client.gathering import check_batch_rows, check_concurrency

if TYPE_CHECKING:
    from stoker_client.answers import Answer

__all__ = ["scored"]

_AHEAD: Final = 2
"""Arrow batches of a task that are scored while Spark takes the rows before them and brings those behind them."""
_REQUEST_BYTES: Final = 1 << 20
_REQUEST_ROWS: Final = 1024
"""A server refuses rows that it has no room for, and tasks that were refused pause."""


def scored(
    frame: Any,
    uri: str | Sequence[str],
    key: str | None,
    columns: str | Sequence[str],
    outputs: str = "score double",
    *,
    batch_rows: int | None = None,
    concurrency: int = 2,
    **options: Any,
) -> Any:
    """Return a Spark data frame with the model's answers beside its columns; rows keep their order.

        classes = scored(frame, "http://127.0.0.1:8080/score", key, "pixels", "digit long")

    Each task has a client of its own, which cuts the rows into requests and retries as `Client` does. The executors
    need the package stoker-client. Spark sends the key to them with the function, so it is in no plan and no log.

    Args:
        frame: A `pyspark.sql.DataFrame`.
        uri: The scoring URI, or those of several servers, as for `Client`.
        key: The service's key; None for the variable STOKER_KEY of this process, or else no key.
        columns: The column whose value is a row, such as an array of numbers; or a list of columns whose values
            together are a row.
        outputs: The columns for the answers, as in `"label long, scores array<float>"`. A single column takes the
            answer; several, or one of a model with several outputs, take the outputs of their names.
        batch_rows: Rows per request; by default at most 1024, and 1 MB of numbers. Spark hands over at most the
            10,000 of `spark.sql.execution.arrow.maxRecordsPerBatch` at once.
        concurrency: Requests in flight for the rows that Spark hands over at once; a task has two such parts in work.
        **options: Further arguments of `Client`, such as `timeout_s`, `retries`, `deadline_ms` and `ca_file`.

    Raises:
        ValueError: A column is missing or would be there twice, or an argument is out of range.
    """
    if batch_rows is not None:
        check_batch_rows(batch_rows)
    check_concurrency(concurrency)
    named = [columns] if isinstance(columns, str) else list(columns)
    schema, types = _schemas(frame, named, outputs)
    if key is None and "token_provider" not in options:
        key = os.environ.get(KEY_VARIABLE)
    # A wrong argument is refused here, before each executor refuses it four times.
    Client(uri, key, **options).close()
    connect = partial(Client, uri, key, **options)
    score = partial(_scored_batches, connect, named, types, isinstance(columns, str), batch_rows, concurrency)
    return frame.mapInArrow(score, schema)


def _schemas(frame: Any, columns: list[str], outputs: str) -> tuple[Any, Any]:
    """Return Spark's schema of the result, and Arrow's of the answers."""
    from pyspark.sql.pandas.types import to_arrow_schema

    added = frame.sparkSession.createDataFrame([], outputs).schema
    if missing := [name for name in columns if name not in frame.columns]:
        raise ValueError(f"the frame has no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    if twice := [name for name in added.names if name in frame.columns]:
        raise ValueError(f"the frame has a column {twice[0]!r} already; name another one in outputs")
    return type(frame.schema)([*frame.schema.fields, *added.fields]), to_arrow_schema(added)


def _rows_of_request(rows: Any) -> int:
    """Return how many of some rows go into a request, so that all requests are of one size."""
    row_bytes = rows.nbytes // len(rows) if isinstance(rows, np.ndarray) else 0
    most = max(1, min(_REQUEST_ROWS, _REQUEST_BYTES // max(1, row_bytes)))
    return math.ceil(len(rows) / math.ceil(len(rows) / most))


def _scored_batches(
    connect: Callable[[], Client],
    columns: list[str],
    outputs: Any,
    is_whole: bool,
    batch_rows: int | None,
    concurrency: int,
    batches: Iterator[Any],
) -> Iterator[Any]:
    """Yield Arrow's record batches with the answers to their rows, in their order.

    Args:
        connect: Makes the client of a task.
        outputs: The `pyarrow.Schema` of the answers.
        is_whole: Whether the value of the only column is a row.
    """
    under_way: deque[tuple[Any, Future[Answer]]] = deque()
    # A task that ends early, as for a limit, waits for what is in flight, and for no more.
    with connect() as client, ThreadPoolExecutor(_AHEAD) as pool:

        def ask(rows: Any) -> Answer:
            return client.score_many(
                rows, batch_rows=batch_rows or _rows_of_request(rows), concurrency=concurrency
            )

        for batch in batches:
            # Spark may pass batches without rows.
            if not batch.num_rows:
                continue
            values = [_values(batch.column(name)) for name in columns]
            under_way.append((batch, pool.submit(ask, values[0] if is_whole else _together(values))))
            if len(under_way) > _AHEAD:
                yield _with_answer(*under_way.popleft(), outputs)
        while under_way:
            yield _with_answer(*under_way.popleft(), outputs)


def _with_answer(batch: Any, answered: Future[Answer], outputs: Any) -> Any:
    """Return a record batch with the answers to its rows as further columns."""
    import pyarrow as pa

    answer = answered.result()
    by_name = answer if isinstance(answer, dict) else {outputs.names[0]: answer}
    if not set(outputs.names) <= by_name.keys():
        there = ", ".join(by_name) if isinstance(answer, dict) else "one answer without a name"
        raise ValueError(f"outputs names {', '.join(outputs.names)}, and the model returns {there}")
    added = [_column(by_name[field.name], field.type) for field in outputs]
    names = [*batch.schema.names, *outputs.names]
    return pa.RecordBatch.from_arrays([*batch.columns, *added], names=names)


def _values(column: Any) -> Any:
    """Return an array of a column's numbers, or of its lists of numbers if they have one shape; else a list."""
    import pyarrow as pa

    shape, inner = [len(column)], column
    while pa.types.is_list(inner.type) or pa.types.is_fixed_size_list(inner.type):
        flat = inner.flatten()
        size, left = divmod(len(flat), max(1, len(inner)))
        if inner.null_count or left or (inner.value_lengths().to_numpy() != size).any():
            return column.to_pylist()
        shape.append(size)
        inner = flat
    is_number = pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type)
    # A missing number becomes NaN.
    return inner.to_numpy(zero_copy_only=False).reshape(shape) if is_number else column.to_pylist()


def _together(values: list[Any]) -> Any:
    """Return rows of the values of several columns: numbers as an array, others as lists."""
    if all(isinstance(one, np.ndarray) and one.ndim == 1 for one in values):
        return np.stack(values, axis=1)
    return [list(row) for row in zip(*values, strict=True)]


def _column(values: Any, kind: Any) -> Any:
    """Return an answer as a column of an Arrow type."""
    import pyarrow as pa

    if not isinstance(values, np.ndarray):
        return pa.array(values, kind)
    column = pa.array(values.reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        size, rows = values.shape[axis], math.prod(values.shape[:axis])
        column = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32) * size, column)
    return column.cast(kind)
