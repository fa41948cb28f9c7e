"""The rows that an estimator takes: a text each, numbers, or the columns of the table that it was fitted on."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct

from stoker.errors import InvalidInput, quoted
from stoker.runtimes.packed import Feeds
from stoker.tensors import TensorInfo
from stoker.wire.packed import MISSING

_INPUT: Final = "data"
TEXTS: Final = ("one text", "another one")
EXAMPLES: Final = 3
"""Rows with which an estimator is tried."""

Kind = Literal["number", "boolean", "text", "date"]
_DTYPES: Final[Mapping[Kind, str]] = {
    "number": "float64",
    "boolean": "bool",
    "text": "string",
    "date": "string",
}
_USUAL: Final[Mapping[Kind, tuple[Any, ...]]] = {
    "number": (1.0, 2.0, 0.0),
    "boolean": (False, True),
    "text": TEXTS,
    "date": ("2000-01-01", "2020-02-29"),
}


class Texts(Struct, frozen=True):
    """A text for each row, for a pipeline that begins with a vectoriser."""

    inputs: tuple[TensorInfo, ...] = (TensorInfo(_INPUT, "string", (-1,)),)
    table: tuple[str, ...] = ()
    has_known_values: bool = False

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        return {_INPUT: _encode(TEXTS)}

    def value(self, feeds: Feeds) -> list[str]:
        """Return the argument of the estimator's methods."""
        return [text.decode(errors="replace") for text in feeds[_INPUT].tolist()]

    def __str__(self) -> str:
        return "texts, and does not say how many numbers a row has (n_features_in_)"


class Column(Struct, frozen=True):
    """One column.

    Attributes:
        name: Its name.
        kind: The kind of its values.
        is_known: Whether the estimator shows the kind.
        examples: Values with which it was fitted, if they are known.
        categories: The categories of pandas' dtype `category`; None for other dtypes.
        refuses_others: Whether a value that is no category is refused. Otherwise it counts as missing, as in
            LightGBM.
        missing: The value that stands for a missing text.
        is_used: Whether the estimator reads the column.
    """

    name: str
    kind: Kind = "number"
    is_known: bool = False
    examples: tuple[Any, ...] = ()
    categories: tuple[Any, ...] | None = None
    refuses_others: bool = False
    missing: Any = math.nan
    is_used: bool = True

    @property
    def info(self) -> TensorInfo:
        """The column as an input of the model."""
        example = json.dumps((self.examples or _USUAL[self.kind])[0])
        return TensorInfo(self.name, _DTYPES[self.kind], (-1,), nullable=True, example=example)

    def example_values(self) -> np.ndarray:
        """Return a few values as they come in a request."""
        values = list(islice(cycle(self.examples or _USUAL[self.kind]), EXAMPLES))
        return _encode(values) if _DTYPES[self.kind] == "string" else np.array(values, _DTYPES[self.kind])

    def values(self, array: np.ndarray) -> Any:
        """Convert values of a request to those of a table with which the estimator was fitted.

        Raises:
            InvalidInput: A value is no date, or no category if other values are refused.
        """
        if self.kind == "date":
            return self._dates(array)
        values: Any = np.array(array)
        if self.kind == "text":
            values = np.empty(len(array), object)
            values[:] = [
                self.missing if text == MISSING else text.decode(errors="replace") for text in array.tolist()
            ]
        return values if self.categories is None else self._categorical(values, self.categories)

    def _dates(self, array: np.ndarray) -> Any:
        import pandas as pd

        texts = [None if text == MISSING else text.decode(errors="replace") for text in array.tolist()]
        try:
            dates = pd.Series(pd.to_datetime(texts, utc=True, format="ISO8601"))
            # pandas chooses the unit by the dates of a request; the estimator gets the same one each time.
            return dates.dt.tz_localize(None).dt.as_unit("us")
        except (ValueError, OverflowError) as error:
            raise InvalidInput(
                f"The column {self.name} holds dates, as ISO 8601 has them (2024-12-31T23:59:59): {error}"
            ) from None

    def _categorical(self, values: Any, categories: tuple[Any, ...]) -> Any:
        import pandas as pd

        index = pd.Index(list(categories))
        places = index.get_indexer(values)
        others = (places < 0) & ~pd.isna(values)
        if self.refuses_others and others.any():
            raise InvalidInput(
                f"The column {self.name} has no category {quoted(str(values[np.flatnonzero(others)[0]]))}; "
                f"it was fitted with {', '.join(map(str, categories[:20]))}{', …' if len(categories) > 20 else ''}."
            )
        return pd.Categorical.from_codes(places, categories=index)


def _encode(texts: Sequence[str]) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array


class Matrix(Struct, frozen=True):
    """Rows of numbers.

    Attributes:
        columns: The columns.
        is_named: Whether the estimator was fitted on a table, so that it gets one.
    """

    columns: tuple[Column, ...]
    is_named: bool
    table: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """One input that holds all columns."""
        labels = tuple(column.name for column in self.columns) if self.is_named else ()
        shape = (-1, len(self.columns))
        return (TensorInfo(_INPUT, "float64", shape, labels=labels, nullable=True),)

    @property
    def has_known_values(self) -> bool:
        """Whether values with which a column was fitted are known."""
        return any(column.examples for column in self.columns)

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        columns = [column.example_values() for column in self.columns]
        return {_INPUT: np.stack(columns, axis=1) if columns else np.empty((EXAMPLES, 0))}

    def value(self, feeds: Feeds) -> Any:
        """Return the argument of the estimator's methods."""
        # Some estimators write into their argument, and the batch is not theirs.
        copied = np.array(feeds[_INPUT])
        if not self.is_named:
            return copied
        import pandas as pd

        return pd.DataFrame(copied, columns=[column.name for column in self.columns], copy=False)

    def __str__(self) -> str:
        return f"rows of {len(self.columns)} numbers"


class Table(Struct, frozen=True):
    """A table with columns that are not all numbers.

    Attributes:
        columns: The columns, in the order in which the estimator was fitted on them.
        is_named: Whether the columns have names, so that the estimator gets a table; else an array of objects.
    """

    columns: tuple[Column, ...]
    is_named: bool

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """One input for each column that the estimator reads."""
        return tuple(column.info for column in self.columns if column.is_used)

    @property
    def table(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)

    @property
    def has_known_values(self) -> bool:
        """True: made-up texts are no dates, and no categories."""
        return True

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        return {column.name: column.example_values() for column in self.columns if column.is_used}

    def value(self, feeds: Feeds) -> Any:
        """Return the argument of the estimator's methods."""
        import pandas as pd

        rows = len(next(iter(feeds.values())))
        unused = np.full(rows, math.nan, object)
        values = [column.values(feeds[column.name]) if column.is_used else unused for column in self.columns]
        if self.is_named:
            series = (
                pd.Series(column, dtype=object)
                if isinstance(column, np.ndarray) and column.dtype.kind == "O"
                else column
                for column in values
            )
            return pd.DataFrame(dict(zip(self.table, series, strict=True)))
        array = np.empty((rows, len(values)), object)
        for place, column in enumerate(values):
            array[:, place] = column
        return array

    def __str__(self) -> str:
        return "rows of " + ", ".join(
            f"{column.name} ({column.kind if column.categories is None else 'category'})"
            for column in self.columns
            if column.is_used
        )


EstimatorInput = Texts | Matrix | Table
"""The rows that an estimator takes.

`inputs` and `table` are those of `ModelTensors`. `examples()` returns two or more rows that the estimator should
answer; `has_known_values` says whether it was fitted with their values. `value()` converts tensors to the argument of
the estimator's methods.
"""
