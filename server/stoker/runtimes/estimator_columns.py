"""Finding the columns that an estimator was fitted on, and the values that they hold."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from stoker.errors import LoadFailed, RequestError
from stoker.runtimes.boosters import booster_of, categories_by_place, is_of_xgboost
from stoker.runtimes.estimator_inputs import (
    EXAMPLES,
    TEXTS,
    Column,
    EstimatorInput,
    Kind,
    Matrix,
    Table,
    Texts,
)
from stoker.settings.files import read_sample_file
from stoker.tensors import ModelTensors
from stoker.wire.json_bodies import parse_document
from stoker.wire.tables import columns_of_rows


def possible_inputs(estimator: Any, path: Path, sample: Path | None) -> Iterator[EstimatorInput]:
    """Yield the rows that an estimator may take, the most plausible first.

    Args:
        sample: A request of the operator that the estimator answers; None if there is none.

    Raises:
        LoadFailed: pandas is missing, or the estimator was fitted with values that no request can hold.
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
    labels = map(str, names) if names is not None else (f"column_{place}" for place in range(int(width)))
    columns = _ColumnSearch([Column(label) for label in labels], path).all_columns(estimator)
    unknown = [place for place, column in enumerate(columns) if column.is_used and not column.is_known]
    sampled = _read_sample(sample, columns) if sample is not None and unknown else {}
    kinds: tuple[Kind, ...] = ("number", "text", "date")
    has_pandas = importlib.util.find_spec("pandas") is not None
    for kind in kinds if unknown and has_pandas else kinds[:1]:
        guessed = list(columns)
        for place in unknown:
            likely, examples = sampled.get(place, (kind, ()))
            # A date of JSON is a text too.
            likely = "date" if likely == "text" and kind == "date" else likely
            guessed[place] = replace(columns[place], kind=likely, examples=examples)
        yield _matrix_or_table(tuple(guessed), is_named=is_named, path=path)


def _matrix_or_table(columns: tuple[Column, ...], *, is_named: bool, path: Path) -> EstimatorInput:
    are_numbers = all(
        column.kind == "number" and column.categories is None and column.is_used for column in columns
    )
    if are_numbers or not any(column.is_used for column in columns):
        return Matrix(columns, is_named)
    if importlib.util.find_spec("pandas") is None:
        raise LoadFailed(
            f"{path} was fitted on columns of texts, for which pandas is needed: pip install pandas"
        )
    return Table(columns, is_named)


def _read_sample(sample: Path, columns: Sequence[Column]) -> dict[int, tuple[Kind, tuple[Any, ...]]]:
    """Return kinds and values of a sample by column; an empty dict if the sample is no table in JSON."""
    infos = tuple(replace(column, kind="text").info for column in columns if column.is_used)
    tensors = ModelTensors(infos, (), batched=True, table=tuple(column.name for column in columns))
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
        # `find_sample_feeds` reads the sample later and reports its faults.
        return {}
    found: dict[int, tuple[Kind, tuple[Any, ...]]] = {}
    for place, column in enumerate(columns):
        entries = values.get(column.name)
        present = tuple(value for value in entries if value is not None) if isinstance(entries, list) else ()
        types = set(map(type, present))
        if types == {str}:
            found[place] = "text", present
        elif types == {bool}:
            found[place] = "boolean", present
        elif types and types <= {int, float}:
            found[place] = "number", present
    return found


_LISTS: Final = ("transformer_list", "calibrated_classifiers_", "estimators_")
_PARTS: Final = (
    "transformer_list", "best_estimator_", "regressor_", "calibrated_classifiers_", "_preprocessor", "estimators_",
    "estimator_",
)  # fmt: skip
"""Attributes of estimators that consist of others; those of `_LISTS` have several."""


def _parts_of(estimator: Any, places: Sequence[int]) -> list[tuple[Any, Sequence[int]]] | None:
    """Return the parts of an estimator with the places of their columns; None if it does not consist of others."""
    indices = getattr(estimator, "_transformer_to_input_indices", None)
    if indices and isinstance(indices, dict):
        return [
            (transformer, [places[index] for index in indices.get(name, ())])
            for name, transformer, _ in estimator.transformers_
            if not (isinstance(transformer, str) and transformer == "drop")
        ]
    for name in _PARTS:
        found = getattr(estimator, name, None)
        parts = found if name in _LISTS else [found]
        # Estimators of other packages may use these names otherwise.
        if found is None or not parts or not isinstance(parts, list):
            continue
        if name == "calibrated_classifiers_":
            parts = [parts[0].estimator]
        # Bagging gives each part a choice of the columns.
        chosen = getattr(estimator, "estimators_features_", [range(len(places))] * len(parts))
        return [
            (part[1] if isinstance(part, tuple) else part, [places[index] for index in own])
            for part, own in zip(parts, chosen, strict=True)
        ]
    return None


@dataclass
class _ColumnSearch:
    """Searches an estimator and its parts for the values of its columns, and notes them in `columns`."""

    columns: list[Column]
    path: Path
    _seen: set[int] = field(default_factory=set)
    _used: set[int] = field(default_factory=set)

    def all_columns(self, estimator: Any) -> list[Column]:
        """Return the columns of an estimator that was fitted on all of them."""
        self.inspect(estimator, range(len(self.columns)))
        return [replace(column, is_used=place in self._used) for place, column in enumerate(self.columns)]

    def inspect(self, estimator: Any, places: Sequence[int]) -> bool:
        """Inspect an estimator that was fitted on the columns at these places.

        Returns:
            Whether its output has the same columns, so that the next step of a pipeline may show more of them.
        """
        if estimator is None or isinstance(estimator, str):
            self._used.update(places)
            return True
        if id(estimator) in self._seen:
            return False
        self._seen.add(id(estimator))
        places = self._places_of(estimator, places)
        if getattr(estimator, "n_features_in_", len(places)) != len(places):
            # A function before it has dropped or added columns.
            self._used.update(places)
            return False
        steps = getattr(estimator, "steps", None)
        if steps and isinstance(steps, list):
            return all(self.inspect(step, places) for _, step in steps)
        parts = _parts_of(estimator, places)
        if parts is not None:
            if getattr(estimator, "passthrough", False) is True:
                # The estimator behind the parts gets the columns too.
                self._used.update(places)
            for part, own in parts:
                self.inspect(part, own)
            return False
        self._used.update(places)
        self._note_categories_of_booster(booster_of(estimator), places)
        if (categories := getattr(estimator, "categories_", None)) is not None:
            for place, values in zip(
                places, categories if isinstance(categories, list) else (), strict=False
            ):
                self._note(place, np.atleast_1d(np.asarray(values)))
            return False
        if (statistics := getattr(estimator, "statistics_", None)) is not None:
            return self._note_statistics(estimator, statistics, places)
        if hasattr(estimator, "build_analyzer"):
            self._note_texts(estimator, places)
            return False
        return type(estimator).__name__ == "FunctionTransformer"

    def _places_of(self, estimator: Any, places: Sequence[int]) -> Sequence[int]:
        """Return the places of the columns that an estimator was fitted on, by their names if it has these."""
        names = getattr(estimator, "feature_names_in_", None)
        by_name = {column.name: place for place, column in enumerate(self.columns)}
        if names is None or not by_name.keys() >= set(map(str, names)):
            return places
        return [by_name[str(name)] for name in names]

    def _note_statistics(self, estimator: Any, statistics: Any, places: Sequence[int]) -> bool:
        for place, value in zip(places, np.atleast_1d(np.asarray(statistics, object)), strict=False):
            if isinstance(value, str):
                self._note(place, np.array([value], object))
        if getattr(estimator, "missing_values", math.nan) is None:
            for place in places:
                self.columns[place] = replace(self.columns[place], missing=None)
        return not getattr(estimator, "add_indicator", False)

    def _note_texts(self, estimator: Any, places: Sequence[int]) -> None:
        words = [word for word in (getattr(estimator, "vocabulary_", None) or ()) if isinstance(word, str)]
        for place in places:
            self._note(place, np.array([*words[:EXAMPLES], *TEXTS][:EXAMPLES], object))

    def _note(self, place: int, values: np.ndarray) -> None:
        """Note values with which a column was fitted."""
        present = [value for value in values.tolist() if value is not None and value == value]
        kind: Kind = "number"
        if values.dtype.kind == "M":
            kind, present = "date", np.datetime_as_string(values[~np.isnat(values)], unit="s").tolist()
        elif any(isinstance(value, str) for value in present):
            kind, present = "text", [value for value in present if isinstance(value, str)]
        elif present and all(isinstance(value, bool) for value in present):
            kind = "boolean"
        elif not all(isinstance(value, int | float) for value in present):
            raise LoadFailed(
                f"{self.path}: the column {self.columns[place].name} was fitted with values such as {present[0]!r}, "
                "which no request can hold; serve it by a score.py"
            )
        missing = None if None in values.tolist() else self.columns[place].missing
        self.columns[place] = replace(
            self.columns[place], kind=kind, is_known=True, examples=tuple(present[:EXAMPLES]), missing=missing
        )

    def _note_categories_of_booster(self, booster: Any, places: Sequence[int]) -> None:
        """Note the categories that XGBoost and LightGBM keep of columns with pandas' dtype `category`."""
        for index, categories in categories_by_place(booster).items():
            place = places[index]
            if not categories:
                raise LoadFailed(
                    f"{self.path}: the column {self.columns[place].name} holds categories, and the file does not say "
                    "which: fit it with XGBoost 3.1 or newer, or put an encoder of scikit-learn before it"
                )
            self._note(place, np.array(categories, object))
            self.columns[place] = replace(
                self.columns[place], categories=tuple(categories), refuses_others=is_of_xgboost(booster)
            )
