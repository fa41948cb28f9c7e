"""Estimators that were fitted on tables: what their columns are found to hold, and what requests of them become."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier, VotingClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder
from tests.estimators import MIXED, mixed, save

from stoker.deployment import Deployment, Device
from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import RowFailure, Runtime
from stoker.runtimes.estimator_columns import possible_inputs
from stoker.runtimes.sklearn import load_sklearn
from stoker.tensors import Signature
from stoker.wire.packed import MISSING, pack, unpack

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
def own_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """What loading adds to the places of imports is gone afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def load(path: Path, **settings: Any) -> Runtime:
    # Whether rows see each other is not tried, which saves time.
    settings = {"signatures": ("predict",), "batching": "none", **settings}
    deployment = Deployment("homes", 1, "sklearn", path, path.parent, 8, 1000, **settings)
    return load_sklearn(deployment, Device("cpu", 0, "a processor"), os.cpu_count() or 1)


def feeds_of(rows: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    feeds = {}
    for name, values in rows.items():
        if all(isinstance(value, str | None) for value in values):
            feeds[name] = np.empty(len(values), object)
            feeds[name][:] = [MISSING if value is None else value.encode() for value in values]
        else:
            feeds[name] = np.array(values, bool if isinstance(values[0], bool) else float)
    return feeds


def answers(runtime: Runtime, *requests: Mapping[str, Sequence[Any]]) -> list[Any]:
    """What each request gets, or why it fails."""
    (given,) = runtime.run([[pack(feeds_of(one)) for one in requests]])
    return [
        one.error if isinstance(one, RowFailure) else next(iter(unpack(bytes(one)).values())).tolist()
        for one in given
    ]


def row(**other: Any) -> dict[str, list[Any]]:
    values = {"size": 1.0, "city": "Rome", "note": "new", "garden": True, "rooms": 2, "built": "2000-01-01"}
    return {name: [value] for name, value in {**values, **other}.items()}


def inputs_of(signature: Signature) -> list[str]:
    return [str(info) for info in signature.signatures[0].tensors.inputs]


def test_the_columns_of_a_table_are_inputs(tmp_path: Path) -> None:
    """Each has the type that it was fitted with; one that nothing looks at is none, but is known by its place."""
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
    """Texts, booleans, dates with and without a zone, and null for what an imputer fills in."""
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
    """A category that was not there, a null that nothing fills in, and no date: beside them others are answered."""
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
    """Its columns are called by their places, and it gets an array again."""
    encoder = make_column_transformer((OneHotEncoder(), [1]), ("passthrough", [0]))
    model = make_pipeline(encoder, LinearRegression()).fit(CITIES.to_numpy(object), [1, 20, 3, 40])
    runtime = load(save(model, tmp_path / "model.pkl"))
    assert inputs_of(runtime.signature) == ["column_0 float64[?]", "column_1 string[?]"]
    ((given,),) = answers(runtime, {"column_0": [2.0], "column_1": ["Rome"]})
    assert given == pytest.approx(model.predict(np.array([[2.0, "Rome"]], object))[0])


def test_numbers_that_are_categories_stay_rows_of_numbers(tmp_path: Path) -> None:
    """And are tried with those that it knows: zero is none of them."""
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
def test_columns_that_only_a_function_knows_are_tried(
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
    asked = "2010-07-01" if function is years else "fives"
    assert answers(runtime, {"value": [asked]}) == [[pytest.approx(expected)]]


def turned(table: Any) -> Any:
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
        make_pipeline(FunctionTransformer(turned), OneHotEncoder(), LogisticRegression()),
    ],
    ids=["bagging", "a function"],
)
def test_parts_that_were_fitted_on_some_columns_in_another_order(estimator: Any, tmp_path: Path) -> None:
    """What they say is of those."""
    table = CITIES.assign(note=["new", "old", "old", "new"])
    estimator.fit(table, [0, 1, 1, 0])
    (first, *_) = possible_inputs(estimator, tmp_path / "model.pkl", None)
    assert [str(info) for info in first.inputs] == ["size float64[?]", "city string[?]", "note string[?]"]
    assert {name: values[0] for name, values in first.examples().items()} == {
        "size": 1.0,
        "city": b"Bonn",
        "note": b"new",
    }


def both(table: Any) -> Any:
    return table.assign(word=table["word"].str.len())


def test_a_sample_says_what_columns_hold(tmp_path: Path) -> None:
    """Where they differ and the estimator does not tell; without one the load is refused, and says what helps."""
    table = pd.DataFrame({"size": [1.0, 2.0], "word": ["a", "bbb"]})
    file = tmp_path / "model.joblib"
    joblib.dump(make_pipeline(FunctionTransformer(both), LinearRegression()).fit(table, [2, 5]), file)
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


def test_a_sample_says_what_texts_look_like(tmp_path: Path) -> None:
    """An estimator that takes no other texts is tried with those."""
    table = pd.DataFrame({"way": ["1 km", "3 km"]})
    file = tmp_path / "model.joblib"
    joblib.dump(make_pipeline(FunctionTransformer(kilometres), LinearRegression()).fit(table, [1, 3]), file)
    with pytest.raises(LoadFailed, match="give it a sample input"):
        load(file)
    (tmp_path / "sample_input.json").write_text(json.dumps({"data": [["2 km"]]}))
    assert answers(load(file), {"way": ["5 km"]}) == [[pytest.approx(5)]]


class Foreign:
    """An estimator of somebody else, who means something else by names that scikit-learn has too."""

    n_features_in_ = 1
    steps = 100
    estimators_ = 3
    categories_ = "many"
    statistics_ = 1.0

    def predict(self, rows: Any) -> Any:
        return rows[:, 0]


def test_attributes_of_other_estimators_are_passed_over(tmp_path: Path) -> None:
    """It is loaded as the rows of numbers that it says it takes."""
    file = tmp_path / "model.joblib"
    joblib.dump(Foreign(), file)
    assert inputs_of(load(file).signature) == ["data float64[?,1]"]


def test_values_that_no_request_can_hold_are_refused(tmp_path: Path) -> None:
    """With the column, such a value, and what to do."""
    column = pd.DataFrame({"when": pd.to_timedelta([1, 2], unit="D")})
    model = make_pipeline(OneHotEncoder(), LinearRegression()).fit(column, [1, 2])
    with pytest.raises(
        LoadFailed, match=r"column when was fitted with values such as .*; serve it by a score.py"
    ):
        load(save(model, tmp_path / "model.pkl"))


def trees(library: str) -> Any:
    """A classifier of a number and two columns of categories, which is of class 1 where the city is Rome."""
    if library == "sklearn":
        return HistGradientBoostingClassifier(
            max_iter=2, learning_rate=1, min_samples_leaf=1, categorical_features="from_dtype"
        )
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    if library == "xgboost":
        return module.XGBClassifier(n_estimators=4, min_child_weight=0, enable_categorical=True)
    return module.LGBMClassifier(n_estimators=4, min_child_samples=1, verbose=-1)


CATEGORIES = pd.DataFrame(
    {
        "size": np.arange(36.0),
        "city": pd.Categorical(["Rome", "Bonn", "Graz"] * 12),
        "rooms": pd.Categorical([3, 5] * 18),
    }
)
CLASSES = (CATEGORIES["city"] == "Rome").astype(int)
ASKED = {"size": [1.0, 2.0], "city": ["Rome", "Graz"], "rooms": [5, 3]}
LIBRARIES = ["sklearn", "xgboost", "lightgbm"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_categories_of_pandas_are_kept(tmp_path: Path, library: str) -> None:
    """Trees that were fitted on them get them again, texts and numbers, whatever rows a request has."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    runtime = load(save(model, tmp_path / "model.pkl"))
    assert inputs_of(runtime.signature) == ["size float64[?]", "city string[?]", "rooms float64[?]"]
    assert answers(runtime, ASKED, {name: values[:1] for name, values in ASKED.items()}) == [[1, 0], [1]]


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_categories_that_were_not_there(tmp_path: Path, library: str) -> None:
    """Are what the library makes of them: a missing value; XGBoost has no say, and such a request is refused."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    (given,) = answers(
        load(save(model, tmp_path / "model.pkl")), {"size": [1.0], "city": ["Oslo"], "rooms": [5]}
    )
    if library == "xgboost":
        assert isinstance(given, InvalidInput)
        assert "The column city has no category 'Oslo'; it was fitted with Bonn, Graz, Rome" in str(given)
    else:
        assert given == [0]


def test_categories_that_a_file_does_not_keep_are_refused() -> None:
    """XGBoost before 3.1 kept none: which number was Rome, the file does not say."""

    class Booster:
        feature_types = ("float", "c")

        def save_raw(self, _: str) -> bytes:
            return b'{"learner": {"gradient_booster": {"model": {}}}}'

    class Fitted:
        n_features_in_ = 2

        def get_booster(self) -> Booster:
            return Booster()

    Fitted.__module__ = "xgboost.sklearn"
    with pytest.raises(
        LoadFailed, match="column_1 holds categories, and the file does not say which: fit it with"
    ):
        next(possible_inputs(Fitted(), Path("model.pkl"), None))


@pytest.mark.parametrize(
    ("library", "suffix"),
    [
        ("xgboost", ".json"),
        ("xgboost", ".ubj"),
        ("lightgbm", ".txt"),
        ("lightgbm", ".bst"),
        ("xgboost", ".pkl"),
        ("lightgbm", ".pkl"),
    ],
)
def test_boosters_are_served(tmp_path: Path, library: str, suffix: str) -> None:
    """From pickles, and from files of their libraries; they give what the objective says, the scores of class 1."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    booster = model.get_booster() if library == "xgboost" else model.booster_
    file = tmp_path / f"model{suffix}"
    if suffix == ".pkl":
        save(booster, file)
    else:
        booster.save_model(str(file))
    runtime = load(file, signatures=())
    (scores,) = answers(runtime, ASKED)
    table = pd.DataFrame(ASKED).astype({"city": CATEGORIES["city"].dtype, "rooms": CATEGORIES["rooms"].dtype})
    assert scores == pytest.approx(model.predict_proba(table)[:, 1].tolist())


def test_file_of_a_classifier_answers_classes_and_scores(tmp_path: Path) -> None:
    """XGBoost notes in the file that a classifier has saved it, whose `predict` gives classes."""
    model = trees("xgboost").fit(CATEGORIES, CLASSES)
    model.save_model(tmp_path / "model.json")
    runtime = load(tmp_path / "model.json", signatures=())
    assert [one.name for one in runtime.signature.signatures] == ["predict", "predict_proba"]
    (classes,) = answers(runtime, ASKED)
    table = pd.DataFrame(ASKED).astype({"city": CATEGORIES["city"].dtype, "rooms": CATEGORIES["rooms"].dtype})
    assert classes == model.predict(table).tolist()


def test_a_damaged_booster_is_told_in_a_sentence(tmp_path: Path) -> None:
    """By the library that its beginning names."""
    pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    file = tmp_path / "model.txt"
    file.write_text("tree\nversion=v4\n")
    with pytest.raises(LoadFailed, match="cannot be loaded by lightgbm: "):
        load(file)
