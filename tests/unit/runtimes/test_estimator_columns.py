"""Estimators that were fitted on tables: the kinds of their columns, and the conversion of requests."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import BaggingClassifier, VotingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from tests.estimator_requests import answers, inputs_of, load
from tests.estimators import MIXED, mixed, save

from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.estimator_columns import possible_inputs
from stoker.tensors import Signature

INPUTS = [
    "size float64[?]",
    "city string[?]",
    "note string[?]",
    "garden bool[?]",
    "rooms float64[?]",
    "built string[?]",
]
CITIES = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "city": ["Bonn", "Rome", "Bonn", "Rome"]})


@pytest.fixture(autouse=True)
def restore_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the folders that loading adds to the import path."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def row(**other: Any) -> dict[str, list[Any]]:
    values = {"size": 1.0, "city": "Rome", "note": "new", "garden": True, "rooms": 2, "built": "2000-01-01"}
    return {name: [value] for name, value in {**values, **other}.items()}


def test_the_columns_of_a_table_are_inputs(tmp_path: Path) -> None:
    """Each has the type with which it was fitted. A column that no part reads is no input, but keeps its place."""
    signature = load(save(mixed(), tmp_path / "model.pkl")).signature
    assert inputs_of(signature) == INPUTS
    tensors = signature.signatures[0].tensors
    assert tensors.table == tuple(MIXED)
    assert [json.loads(info.example) for info in tensors.inputs] == [
        1.0,
        "Bonn",
        "new",
        False,
        1,
        "2000-01-01T00:00:00",
    ]
    assert Signature.from_json(signature.to_json()) == signature


def test_requests_are_answered_as_by_the_estimator(tmp_path: Path) -> None:
    """Texts, booleans, dates with and without a zone, and null where an imputer fills in a value."""
    runtime = load(save(mixed(), tmp_path / "model.pkl"))
    assert answers(
        runtime,
        row(),
        row(garden=False),
        row(city="Bonn"),
        row(city="Bonn", note="an old one"),
        row(size=math.nan, city="Rome", built="2020-02-29T00:00:00+00:00"),
        row(built=None, city=None),
    ) == [[b"house"], [b"flat"], [b"flat"], [b"house"], [b"house"], [b"flat"]]


def test_a_bad_value_fails_its_own_request_alone(tmp_path: Path) -> None:
    """An unknown category, a null without an imputer and a text that is no date do not fail other requests."""
    runtime = load(save(mixed(), tmp_path / "model.pkl"), batching="auto")
    assert runtime.signature.isolation is not None
    assert runtime.signature.isolation.batched
    good, unknown, missing, date, last = answers(
        runtime, row(), row(city="Oslo"), row(rooms=9), row(built="yesterday"), row(city="Bonn")
    )
    assert (good, last) == ([b"house"], [b"flat"])
    for error in (unknown, missing, date):
        assert isinstance(error, InvalidInput)
    assert "Found unknown categories ['Oslo']" in str(unknown)
    assert "The column built holds dates" in str(date)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: GridSearchCV(model, {"logisticregression__C": [1]}, cv=2),
        lambda model: CalibratedClassifierCV(model, cv=2),
        lambda model: VotingClassifier([("one", model), ("two", model)]),
        TransformedTargetRegressor,
    ],
)
def test_columns_of_a_wrapped_pipeline_are_found(tmp_path: Path, wrap: Any) -> None:
    """The transformers are found in searches, calibration, votes and transformed targets."""
    table = pd.concat([CITIES] * 4, ignore_index=True).assign(owner="somebody")
    encoder = make_column_transformer((OneHotEncoder(), ["city"]), ("passthrough", ["size"]))
    model = wrap(make_pipeline(encoder, LogisticRegression())).fit(table, [0, 1] * 8)
    runtime = load(save(model, tmp_path / "model.pkl"))
    assert inputs_of(runtime.signature) == ["size float64[?]", "city string[?]"]
    assert answers(runtime, {"size": [1.0], "city": ["Rome"]}) == [[1]]


def test_an_array_of_objects_is_a_table_without_names(tmp_path: Path) -> None:
    """Its columns are named for their places, and the estimator gets an array again."""
    encoder = make_column_transformer((OneHotEncoder(), [1]), ("passthrough", [0]))
    model = make_pipeline(encoder, LinearRegression()).fit(CITIES.to_numpy(object), [1, 20, 3, 40])
    runtime = load(save(model, tmp_path / "model.pkl"))
    assert inputs_of(runtime.signature) == ["column_0 float64[?]", "column_1 string[?]"]
    ((given,),) = answers(runtime, {"column_0": [2.0], "column_1": ["Rome"]})
    assert given == pytest.approx(model.predict(np.array([[2.0, "Rome"]], object))[0])


def test_numbers_that_are_categories_stay_rows_of_numbers(tmp_path: Path) -> None:
    """The load tries the model with its own categories: zero is none of them."""
    model = make_pipeline(OneHotEncoder(), LinearRegression()).fit([[3], [5]], [1, 2])
    runtime = load(save(model, tmp_path / "model.pkl"), batching="auto")
    assert str(runtime.signature) == "data float64[n,1] -> predict float64[n]"


def years(table: Any) -> Any:
    return table.apply(lambda column: column.dt.year)


def lengths(table: Any) -> Any:
    return table.apply(lambda column: column.str.len())


@pytest.mark.parametrize(
    ("function", "values", "expected"),
    [(years, pd.to_datetime(["2000-01-01", "2020-01-01"]), 2010), (lengths, ["four", "longer"], 5)],
)
def test_columns_that_only_a_function_reads_are_tried(
    tmp_path: Path, function: Any, values: Any, expected: int
) -> None:
    """Numbers, texts and dates in turn, until the estimator takes them."""
    table = pd.DataFrame({"value": values})
    model = make_pipeline(FunctionTransformer(function), LinearRegression())
    model.fit(table, function(table)["value"])
    file = tmp_path / "model.joblib"
    joblib.dump(model, file)
    runtime = load(file)
    assert inputs_of(runtime.signature) == ["value string[?]"]
    text = "2010-07-01" if function is years else "fives"
    assert answers(runtime, {"value": [text]}) == [[pytest.approx(expected)]]


def select_reversed(table: Any) -> Any:
    return table[["note", "city"]]


@pytest.mark.parametrize(
    "estimator",
    [
        BaggingClassifier(
            make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()),
            n_estimators=6,
            max_features=2,
            bootstrap=False,
            random_state=0,
        ),
        make_pipeline(FunctionTransformer(select_reversed), OneHotEncoder(), LogisticRegression()),
    ],
    ids=["bagging", "a function"],
)
def test_parts_with_columns_in_another_order_describe_their_own_columns(
    estimator: Any, tmp_path: Path
) -> None:
    """Bagging and a function select columns; the values of an encoder behind them belong to the selected ones."""
    table = CITIES.assign(note=["new", "old", "old", "new"])
    estimator.fit(table, [0, 1, 1, 0])
    (first, *_) = possible_inputs(estimator, tmp_path / "model.pkl", None)
    assert [str(info) for info in first.inputs] == ["size float64[?]", "city string[?]", "note string[?]"]
    assert {name: values[0] for name, values in first.examples().items()} == {
        "size": 1.0,
        "city": b"Bonn",
        "note": b"new",
    }


def word_lengths(table: Any) -> Any:
    return table.assign(word=table["word"].str.len())


def test_a_sample_shows_the_kinds_of_columns(tmp_path: Path) -> None:
    """If columns differ and the estimator does not show how; without a sample the load fails and asks for one."""
    table = pd.DataFrame({"size": [1.0, 2.0], "word": ["a", "bbb"]})
    file = tmp_path / "model.joblib"
    joblib.dump(make_pipeline(FunctionTransformer(word_lengths), LinearRegression()).fit(table, [2, 5]), file)
    with pytest.raises(
        LoadFailed, match=r"does not take rows of 2 numbers \(AttributeError.*\); give it a sample input"
    ):
        load(file)
    sample = tmp_path / "sample_input.json"
    for body in (
        {"data": [{"size": 1, "word": "a"}]},
        {"data": [[1, "a"], [2, None]]},
        {"data": {"size": [1], "word": ["a"]}},
    ):
        sample.write_text(json.dumps(body))
        assert inputs_of(load(file).signature) == ["size float64[?]", "word string[?]"]


def kilometres(table: Any) -> Any:
    return table.apply(lambda column: column.str.removesuffix(" km").astype(float))


def test_texts_of_a_sample_are_tried(tmp_path: Path) -> None:
    """An estimator that takes no other texts is tried with the texts of the sample."""
    table = pd.DataFrame({"way": ["1 km", "3 km"]})
    file = tmp_path / "model.joblib"
    joblib.dump(make_pipeline(FunctionTransformer(kilometres), LinearRegression()).fit(table, [1, 3]), file)
    with pytest.raises(LoadFailed, match="give it a sample input"):
        load(file)
    (tmp_path / "sample_input.json").write_text(json.dumps({"data": [["2 km"]]}))
    assert answers(load(file), {"way": ["5 km"]}) == [[pytest.approx(5)]]


class Foreign:
    """An estimator of another package, which uses names of scikit-learn otherwise."""

    n_features_in_ = 1
    steps = 100
    estimators_ = 3
    categories_ = "many"
    statistics_ = 1.0

    def predict(self, rows: Any) -> Any:
        return rows[:, 0]


def test_attributes_of_other_packages_are_ignored(tmp_path: Path) -> None:
    """The estimator takes as many numbers as its `n_features_in_` says."""
    file = tmp_path / "model.joblib"
    joblib.dump(Foreign(), file)
    assert inputs_of(load(file).signature) == ["data float64[?,1]"]


def test_values_that_no_request_can_hold_are_refused(tmp_path: Path) -> None:
    """The message names the column, a value, and a remedy."""
    column = pd.DataFrame({"when": pd.to_timedelta([1, 2], unit="D")})
    model = make_pipeline(OneHotEncoder(), LinearRegression()).fit(column, [1, 2])
    with pytest.raises(
        LoadFailed, match=r"column when was fitted with values such as .*; serve it by a score.py"
    ):
        load(save(model, tmp_path / "model.pkl"))
