"""Boosters of XGBoost and LightGBM: the categories that they keep, and files of their libraries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from tests.estimator_requests import answers, inputs_of, load
from tests.estimators import save

from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.estimator_columns import possible_inputs


@pytest.fixture(autouse=True)
def restore_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the folders that loading adds to the import path."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def trees(library: str) -> Any:
    """A classifier for `CATEGORIES`; the class is 1 if the city is Rome."""
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
REQUEST = {"size": [1.0, 2.0], "city": ["Rome", "Graz"], "rooms": [5, 3]}
LIBRARIES = ["sklearn", "xgboost", "lightgbm"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_trees_get_the_categories_that_they_were_fitted_with(tmp_path: Path, library: str) -> None:
    """Texts and numbers become categories of pandas again, for any number of rows."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    runtime = load(save(model, tmp_path / "model.pkl"))
    assert inputs_of(runtime.signature) == ["size float64[?]", "city string[?]", "rooms float64[?]"]
    assert answers(runtime, REQUEST, {name: values[:1] for name, values in REQUEST.items()}) == [[1, 0], [1]]


@pytest.mark.parametrize("library", LIBRARIES[1:])
def test_unknown_category_is_missing_for_lightgbm_and_refused_for_xgboost(
    tmp_path: Path, library: str
) -> None:
    """LightGBM defines an unknown category as a missing value; XGBoost defines nothing."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    (given,) = answers(
        load(save(model, tmp_path / "model.pkl")), {"size": [1.0], "city": ["Oslo"], "rooms": [5]}
    )
    if library == "xgboost":
        assert isinstance(given, InvalidInput)
        assert "The column city has no category 'Oslo'; it was fitted with Bonn, Graz, Rome" in str(given)
    else:
        assert given == [0]


def test_file_without_its_categories_is_refused() -> None:
    """XGBoost before 3.1 saved no categories, so the number of Rome is unknown."""

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
def test_boosters_answer_scores(tmp_path: Path, library: str, suffix: str) -> None:
    """Boosters in pickles, and in files of their libraries, answer the score of class 1."""
    model = trees(library).fit(CATEGORIES, CLASSES)
    booster = model.get_booster() if library == "xgboost" else model.booster_
    file = tmp_path / f"model{suffix}"
    if suffix == ".pkl":
        save(booster, file)
    else:
        booster.save_model(str(file))
    runtime = load(file, signatures=())
    (scores,) = answers(runtime, REQUEST)
    table = pd.DataFrame(REQUEST).astype(
        {"city": CATEGORIES["city"].dtype, "rooms": CATEGORIES["rooms"].dtype}
    )
    assert scores == pytest.approx(model.predict_proba(table)[:, 1].tolist())


def test_file_of_a_classifier_answers_classes_and_scores(tmp_path: Path) -> None:
    """The file says that a classifier saved it; the `predict` of a classifier returns classes."""
    model = trees("xgboost").fit(CATEGORIES, CLASSES)
    model.save_model(tmp_path / "model.json")
    runtime = load(tmp_path / "model.json", signatures=())
    assert [one.name for one in runtime.signature.signatures] == ["predict", "predict_proba"]
    (classes,) = answers(runtime, REQUEST)
    table = pd.DataFrame(REQUEST).astype(
        {"city": CATEGORIES["city"].dtype, "rooms": CATEGORIES["rooms"].dtype}
    )
    assert classes == model.predict(table).tolist()


def test_damaged_file_names_the_library(tmp_path: Path) -> None:
    """The beginning of the file tells the library; its error is one line."""
    pytest.importorskip("lightgbm", reason="lightgbm is not installed")
    file = tmp_path / "model.txt"
    file.write_text("tree\nversion=v4\n")
    with pytest.raises(LoadFailed, match="cannot be loaded by lightgbm: "):
        load(file)
