"""The columns that an estimator takes; boosters of XGBoost and LightGBM, from files of their own, as estimators."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from stoker.errors import InvalidInput, LoadFailed, RequestError, quoted
from stoker.runtimes.packed import Feeds
from stoker.settings.files import read_sample_file
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.json_bodies import parse_document
from stoker.wire.packed import MISSING
from stoker.wire.tables import columns_of_rows


class XgboostEstimator:
    """A booster of XGBoost.

    Attributes:
        booster: The booster.
        n_features_in_: How many columns it was fitted on.
        feature_names_in_: What they are called; absent if nobody said.
    """

    def __init__(self, booster: Any, threads: int) -> None:
        """Wrap a booster, which then uses this many threads."""
        booster.set_param({"nthread": threads})
        self.booster = booster
        self.n_features_in_ = int(booster.num_features())
        if booster.feature_names:
            self.feature_names_in_ = np.array(booster.feature_names, object)

    def predict(self, rows: Any) -> Any:
        """Return the predictions for rows."""
        import xgboost

        return self.booster.predict(xgboost.DMatrix(rows, enable_categorical=True))


class LightgbmEstimator:
    """A booster of LightGBM; the attributes are those of `XgboostEstimator`."""

    def __init__(self, booster: Any, threads: int) -> None:
        """Wrap a booster, which then uses this many threads."""
        self.booster = booster
        self._threads = threads
        self.n_features_in_ = int(booster.num_feature())
        names = booster.feature_name()
        # What it calls those that have no names.
        if names != [f"Column_{place}" for place in range(len(names))]:
            self.feature_names_in_ = np.array(names, object)

    def predict(self, rows: Any) -> Any:
        """Return the predictions for rows."""
        return self.booster.predict(rows, num_threads=self._threads)


def wrap_booster(value: Any, threads: int) -> Any:
    """Return a booster with an estimator's methods, and everything else as it is."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    if kind == "xgboost.Booster":
        return XgboostEstimator(value, threads)
    return LightgbmEstimator(value, threads) if kind == "lightgbm.Booster" else value


def read_booster(path: Path, library: str, threads: int) -> Any:
    """Load a booster from a file of its library, or the classifier that has saved it as one. No code runs.

    Args:
        library: `xgboost` or `lightgbm`.

    Raises:
        LoadFailed: The library is not installed, or cannot read the file.
    """
    try:
        if library == "xgboost":
            import xgboost

            booster = xgboost.Booster(model_file=str(path))
            if '"classifier"' in (booster.attr("scikit_learn") or ""):
                classifier = xgboost.XGBClassifier(n_jobs=threads)
                classifier.load_model(path)
                return classifier
            return XgboostEstimator(booster, threads)
        import lightgbm

        return LightgbmEstimator(lightgbm.Booster(model_file=str(path)), threads)
    except ImportError:
        raise LoadFailed(
            f"{path} is a model of {library}, which is not installed: pip install {library}"
        ) from None
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise LoadFailed(f"{path} cannot be loaded by {library}: {lines[0] if lines else error!r}") from error


# What an estimator takes: a text for each row, a matrix of numbers, or the columns of the table it was fitted on.


_INPUT: Final = "data"
_TEXTS: Final = ("one text", "another one")
_EXAMPLES: Final = 3

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
    "text": _TEXTS,
    "date": ("2000-01-01", "2020-02-29"),
}


@dataclass(frozen=True)
class Texts:
    """A text for each row, for a pipeline that begins with a vectoriser."""

    inputs: tuple[TensorInfo, ...] = (TensorInfo(_INPUT, "string", (-1,)),)
    table: tuple[str, ...] = ()
    has_known_values: bool = False

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        return {_INPUT: _encoded(_TEXTS)}

    def value(self, feeds: Feeds) -> list[str]:
        """Return what the methods of the estimator take."""
        return [text.decode(errors="replace") for text in feeds[_INPUT].tolist()]

    def __str__(self) -> str:
        return "texts, and does not say how many numbers a row has (n_features_in_)"


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Its name.
        kind: What it holds.
        is_known: Whether the estimator says so.
        examples: Values that it was fitted with, if they are known.
        categories: What pandas' dtype `category` is to have as categories; None for other dtypes.
        refuses_others: Whether a value that is no category is refused. It is a missing value otherwise, as LightGBM
            takes it.
        missing: What stands for a missing text.
        is_used: Whether the estimator looks at it.
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
        """The input that it is."""
        example = json.dumps((self.examples or _USUAL[self.kind])[0])
        return TensorInfo(self.name, _DTYPES[self.kind], (-1,), nullable=True, example=example)

    def example_values(self) -> np.ndarray:
        """Some values, as they come in a request."""
        values = list(islice(cycle(self.examples or _USUAL[self.kind]), _EXAMPLES))
        return _encoded(values) if _DTYPES[self.kind] == "string" else np.array(values, _DTYPES[self.kind])

    def values(self, given: np.ndarray) -> Any:
        """Values of a request as the estimator was fitted with them.

        Raises:
            InvalidInput: One is no date, or no category where that is refused.
        """
        made: Any = np.array(given)
        if self.kind == "date":
            return self._dates(given)
        if self.kind == "text":
            made = np.empty(len(given), object)
            made[:] = [
                self.missing if text == MISSING else text.decode(errors="replace") for text in given.tolist()
            ]
        return made if self.categories is None else self._categorical(made, self.categories)

    def _dates(self, given: np.ndarray) -> Any:
        import pandas as pd

        texts = [None if text == MISSING else text.decode(errors="replace") for text in given.tolist()]
        try:
            dates = pd.Series(pd.to_datetime(texts, utc=True, format="ISO8601"))
            # In one unit, whatever dates stand beside it.
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


def _encoded(texts: Sequence[str]) -> np.ndarray:
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array


@dataclass(frozen=True)
class Matrix:
    """Rows of numbers.

    Attributes:
        columns: The columns.
        is_named: Whether it was fitted on a table, so that it gets one.
    """

    columns: tuple[Column, ...]
    is_named: bool
    table: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """One."""
        labels = tuple(column.name for column in self.columns) if self.is_named else ()
        shape = (-1, len(self.columns))
        return (TensorInfo(_INPUT, "float64", shape, labels=labels, nullable=True),)

    @property
    def has_known_values(self) -> bool:
        """Whether some column tells what it was fitted with."""
        return any(column.examples for column in self.columns)

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        columns = [column.example_values() for column in self.columns]
        return {_INPUT: np.stack(columns, axis=1) if columns else np.empty((_EXAMPLES, 0))}

    def value(self, feeds: Feeds) -> Any:
        """Return what the methods of the estimator take."""
        # Some write into what they are given, and the batch is not theirs.
        copied = np.array(feeds[_INPUT])
        if not self.is_named:
            return copied
        import pandas as pd

        return pd.DataFrame(copied, columns=[column.name for column in self.columns], copy=False)

    def __str__(self) -> str:
        return f"rows of {len(self.columns)} numbers"


@dataclass(frozen=True)
class Table:
    """A table whose columns hold other things than numbers.

    Attributes:
        columns: The columns, in the order in which it was fitted on them.
        is_named: Whether they have names, so that it gets a table; else an array of objects.
    """

    columns: tuple[Column, ...]
    is_named: bool

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """One for each column that it looks at."""
        return tuple(column.info for column in self.columns if column.is_used)

    @property
    def table(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)

    @property
    def has_known_values(self) -> bool:
        """Always: made-up texts are no dates, and no categories."""
        return True

    def examples(self) -> Feeds:
        """Return rows that the estimator should answer."""
        return {column.name: column.example_values() for column in self.columns if column.is_used}

    def value(self, feeds: Feeds) -> Any:
        """Return what the methods of the estimator take."""
        import pandas as pd

        rows = len(next(iter(feeds.values())))
        nothing = np.full(rows, math.nan, object)
        values = [column.values(feeds[column.name]) if column.is_used else nothing for column in self.columns]
        if self.is_named:
            series = (
                pd.Series(one, dtype=object) if isinstance(one, np.ndarray) and one.dtype.kind == "O" else one
                for one in values
            )
            return pd.DataFrame(dict(zip(self.table, series, strict=True)))
        made = np.empty((rows, len(values)), object)
        for place, one in enumerate(values):
            made[:, place] = one
        return made

    def __str__(self) -> str:
        return "rows of " + ", ".join(
            f"{column.name} ({column.kind if column.categories is None else 'category'})"
            for column in self.columns
            if column.is_used
        )


EstimatorInput = Texts | Matrix | Table
"""How an estimator gets the tensors of a batch.

`inputs` and `table` are those of `ModelTensors`. `examples()` returns two or more rows that the estimator should
answer; `has_known_values` says whether it was fitted with their values. `value()` makes of tensors what its methods
take.
"""


def possible_inputs(estimator: Any, path: Path, sample: Path | None) -> Iterator[EstimatorInput]:
    """Yield how an estimator may take its rows, the most plausible first.

    Args:
        sample: A request that its operator says it answers; None if there is none.

    Raises:
        LoadFailed: pandas is missing, or the columns are known to be none that can be served.
    """
    width = getattr(estimator, "n_features_in_", None)
    if width is None:
        yield Texts()
        return
    names: Sequence[Any] | None = getattr(estimator, "feature_names_in_", None)
    is_named = names is not None
    if names is not None and importlib.util.find_spec("pandas") is None:
        raise LoadFailed(
            f"{path} was fitted on a table with the columns {', '.join(map(str, names))}, for which pandas is "
            "needed: pip install pandas"
        )
    called = map(str, names) if names is not None else (f"column_{place}" for place in range(int(width)))
    columns = _Search([Column(name) for name in called], path).all_columns(estimator)
    unknown = [place for place, one in enumerate(columns) if one.is_used and not one.is_known]
    said = _sampled(sample, columns) if sample is not None and unknown else {}
    first: tuple[Kind, ...] = ("number", "text", "date")
    has_pandas = importlib.util.find_spec("pandas") is not None
    for kind in first[: len(first) if unknown and has_pandas else 1]:
        guessed = list(columns)
        for place in unknown:
            found, examples = said.get(place, (kind, ()))
            # A date of JSON is a text too.
            found = "date" if found == "text" and kind == "date" else found
            guessed[place] = replace(columns[place], kind=found, examples=examples)
        yield _as_taken(tuple(guessed), is_named=is_named, path=path)


def _as_taken(columns: tuple[Column, ...], *, is_named: bool, path: Path) -> EstimatorInput:
    are_numbers = all(one.kind == "number" and one.categories is None and one.is_used for one in columns)
    if are_numbers or not any(one.is_used for one in columns):
        return Matrix(columns, is_named)
    if importlib.util.find_spec("pandas") is None:
        raise LoadFailed(
            f"{path} was fitted on columns of texts, for which pandas is needed: pip install pandas"
        )
    return Table(columns, is_named)


def _sampled(sample: Path, columns: Sequence[Column]) -> dict[int, tuple[Kind, tuple[Any, ...]]]:
    """Return kinds and values of a sample by column; nothing if the sample is no table in JSON."""
    infos = tuple(replace(one, kind="text").info for one in columns if one.is_used)
    tensors = ModelTensors(infos, (), batched=True, table=tuple(one.name for one in columns))
    try:
        document = parse_document(read_sample_file(sample))
        rows = next(
            document[key]
            for key in ("data", "input_data", "dataframe_records", "dataframe_split", "instances", "inputs")
            if key in document
        )
        if isinstance(rows, dict) and "columns" in rows and "data" in rows:
            rows = [dict(zip(rows["columns"], row, strict=True)) for row in rows["data"]]
        values = columns_of_rows(rows, tensors)
    except (OSError, RequestError, ValueError, TypeError, StopIteration):
        # Who reads the sample for the model says what is wrong with it.
        return {}
    found: dict[int, tuple[Kind, tuple[Any, ...]]] = {}
    for place, one in enumerate(columns):
        column = values.get(one.name)
        there = tuple(value for value in column if value is not None) if isinstance(column, list) else ()
        kinds = set(map(type, there))
        if kinds == {str}:
            found[place] = "text", there
        elif kinds == {bool}:
            found[place] = "boolean", there
        elif kinds and kinds <= {int, float}:
            found[place] = "number", there
    return found


_Look = Callable[[Any, Any, Sequence[int]], bool]


@dataclass
class _Search:
    """Looks through an estimator for what its columns hold, and notes it in them."""

    columns: list[Column]
    path: Path
    _seen: set[int] = field(default_factory=set)
    _used: set[int] = field(default_factory=set)

    def all_columns(self, estimator: Any) -> list[Column]:
        """Return the columns of an estimator that was fitted on all of them."""
        self.inspect(estimator, range(len(self.columns)))
        return [replace(one, is_used=place in self._used) for place, one in enumerate(self.columns)]

    def inspect(self, estimator: Any, places: Sequence[int]) -> bool:
        """Look at an estimator that was fitted on these columns.

        Returns:
            Whether what it gives has the same columns, so that what comes behind it may say more of them.
        """
        if estimator is None or isinstance(estimator, str):
            self._used.update(places)
            return True
        if id(estimator) in self._seen:
            return False
        self._seen.add(id(estimator))
        places = self._places_of(estimator, places)
        if getattr(estimator, "n_features_in_", len(places)) != len(places):
            # A function before it has left columns out, or made others.
            self._used.update(places)
            return False
        for attribute, (kind, look) in self._parts().items():
            value = getattr(estimator, attribute, None)
            # Estimators of others may mean something else by these names.
            if value is not None and isinstance(value, kind) and (kind is object or value):
                return look(estimator, value, places)
        self._used.update(places)
        self._note_categories_of_booster(_booster_of(estimator), places)
        for attribute, note in self._notes().items():
            value = getattr(estimator, attribute, None)
            if value is not None:
                return note(estimator, value, places)
        return type(estimator).__name__ == "FunctionTransformer"

    def _places_of(self, estimator: Any, places: Sequence[int]) -> Sequence[int]:
        """The columns that an estimator was fitted on, by their names where it knows these."""
        names = getattr(estimator, "feature_names_in_", None)
        called = {column.name: place for place, column in enumerate(self.columns)}
        if names is None or not called.keys() >= set(map(str, names)):
            return places
        return [called[str(name)] for name in names]

    def _parts(self) -> dict[str, tuple[type, _Look]]:
        """How to look at what consists of others, by an attribute that it has, which is of this type."""
        return {
            "steps": (list, self._look_at_steps),
            "_transformer_to_input_indices": (dict, self._look_at_parts),
            "transformer_list": (list, self._look_at_all),
            "best_estimator_": (object, self._look_inside),
            "regressor_": (object, self._look_inside),
            "calibrated_classifiers_": (list, self._look_at_calibrated),
            "_preprocessor": (object, self._look_inside),
            "estimators_": (list, self._look_at_all),
            "estimator_": (object, self._look_inside),
        }

    def _notes(self) -> dict[str, _Look]:
        """How to note what an estimator says of its columns, by an attribute that it has."""
        return {
            "categories_": self._note_categories,
            "statistics_": self._note_statistics,
            "build_analyzer": self._note_texts,
        }

    def _look_at_steps(self, estimator: Any, steps: Any, places: Sequence[int]) -> bool:
        del estimator
        return all(self.inspect(step, places) for _, step in steps)

    def _look_at_parts(self, estimator: Any, indices: Any, places: Sequence[int]) -> bool:
        for name, transformer, _ in estimator.transformers_:
            if not (isinstance(transformer, str) and transformer == "drop"):
                self.inspect(transformer, [places[index] for index in indices.get(name, ())])
        return False

    def _look_at_all(self, estimator: Any, parts: Any, places: Sequence[int]) -> bool:
        if getattr(estimator, "passthrough", False) is True:
            # What stands behind them gets the columns too.
            self._used.update(places)
        # Bagging gives each only some of the columns.
        chosen = getattr(estimator, "estimators_features_", None)
        for number, part in enumerate(parts):
            given = places if chosen is None else [places[index] for index in chosen[number]]
            self.inspect(part[1] if isinstance(part, tuple) else part, given)
        return False

    def _look_at_calibrated(self, estimator: Any, parts: Any, places: Sequence[int]) -> bool:
        del estimator
        return self._look_inside(None, parts[0].estimator, places)

    def _look_inside(self, estimator: Any, inner: Any, places: Sequence[int]) -> bool:
        del estimator
        self.inspect(inner, places)
        return False

    def _note_categories(self, estimator: Any, categories: Any, places: Sequence[int]) -> bool:
        del estimator
        for place, values in zip(places, categories if isinstance(categories, list) else (), strict=False):
            self._note(place, np.atleast_1d(np.asarray(values)))
        return False

    def _note_statistics(self, estimator: Any, statistics: Any, places: Sequence[int]) -> bool:
        for place, value in zip(places, np.atleast_1d(np.asarray(statistics, object)), strict=False):
            if isinstance(value, str):
                self._note(place, np.array([value], object))
        if getattr(estimator, "missing_values", math.nan) is None:
            for place in places:
                self.columns[place] = replace(self.columns[place], missing=None)
        return not getattr(estimator, "add_indicator", False)

    def _note_texts(self, estimator: Any, analyzer: Any, places: Sequence[int]) -> bool:
        del analyzer
        words = [word for word in (getattr(estimator, "vocabulary_", None) or ()) if isinstance(word, str)]
        for place in places:
            self._note(place, np.array([*words[:_EXAMPLES], *_TEXTS][:_EXAMPLES], object))
        return False

    def _note(self, place: int, values: np.ndarray) -> None:
        """Note values of a column that were seen when it was fitted."""
        there = [value for value in values.tolist() if value is not None and value == value]
        kind: Kind = "number"
        if values.dtype.kind == "M":
            kind, there = "date", np.datetime_as_string(values[~np.isnat(values)], unit="s").tolist()
        elif any(isinstance(value, str) for value in there):
            kind, there = "text", [value for value in there if isinstance(value, str)]
        elif there and all(isinstance(value, bool) for value in there):
            kind = "boolean"
        elif not all(isinstance(value, int | float) for value in there):
            raise LoadFailed(
                f"{self.path}: the column {self.columns[place].name} was fitted with values such as {there[0]!r}, "
                "which no request can hold; serve it by a score.py"
            )
        missing = None if None in values.tolist() else self.columns[place].missing
        self.columns[place] = replace(
            self.columns[place], kind=kind, is_known=True, examples=tuple(there[:_EXAMPLES]), missing=missing
        )

    def _note_categories_of_booster(self, booster: Any, places: Sequence[int]) -> None:
        """Note the categories that XGBoost and LightGBM keep of columns with pandas' dtype `category`."""
        is_xgboost = hasattr(booster, "feature_types")
        found = _of_xgboost(booster) if is_xgboost else _of_lightgbm(booster)
        for index, categories in found.items():
            place = places[index]
            if not categories:
                raise LoadFailed(
                    f"{self.path}: the column {self.columns[place].name} holds categories, and the file does not say "
                    "which: fit it with XGBoost 3.1 or newer, or put an encoder of scikit-learn before it"
                )
            self._note(place, np.array(categories, object))
            self.columns[place] = replace(
                self.columns[place], categories=tuple(categories), refuses_others=is_xgboost
            )


def _booster_of(estimator: Any) -> Any:
    """The booster of XGBoost or LightGBM in an estimator; None if there is none."""
    if type(estimator).__module__.startswith("xgboost."):
        return estimator.get_booster()
    if type(estimator).__module__.startswith("lightgbm."):
        return getattr(estimator, "booster_", None)
    return estimator.booster if isinstance(estimator, XgboostEstimator | LightgbmEstimator) else None


def _of_xgboost(booster: Any) -> dict[int, list[Any]]:
    """The categories of its columns by their places; empty lists where they are not kept."""
    if "c" not in (booster.feature_types or ()):
        return {}
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    kept = model.get("model", model.get("gbtree", {}).get("model", {})).get("cats", {}).get("enc", [])
    places = [place for place, kind in enumerate(booster.feature_types) if kind == "c"]
    return {place: _decoded(kept[place]) if place < len(kept) else [] for place in places}


def _decoded(kept: Mapping[str, Any]) -> list[Any]:
    """The categories of one column, as XGBoost's JSON has them."""
    if "offsets" not in kept:
        return list(kept["values"])
    content, offsets = bytes(value % 256 for value in kept["values"]), kept["offsets"]
    return [content[start:end].decode(errors="replace") for start, end in pairwise(offsets)]


def _of_lightgbm(booster: Any) -> dict[int, list[Any]]:
    """The categories of its columns by their places."""
    kept = getattr(booster, "pandas_categorical", None)
    if not kept:
        return {}
    parameters = booster.model_to_string(num_iteration=1).rpartition("\nparameters:")[2].splitlines()
    named = next((line for line in parameters if line.startswith("[categorical_feature: ")), "[: ]")
    places = [int(text) for text in named.partition(": ")[2].rstrip("]").split(",") if text.strip()]
    return dict(zip(sorted(places), map(list, kept), strict=True))
