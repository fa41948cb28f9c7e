"""Boosters of XGBoost and LightGBM, in pickles and in files of their libraries, as estimators.

XGBoost and LightGBM keep the categories of columns with pandas' dtype `category`; scikit-learn does not show them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import LoadFailed


class XgboostEstimator:
    """A booster of XGBoost.

    Attributes:
        booster: The booster.
        n_features_in_: The number of columns that it was fitted on.
        feature_names_in_: The names of the columns; absent if they have none.
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
        # LightGBM gives these names to columns without names.
        if names != [f"Column_{place}" for place in range(len(names))]:
            self.feature_names_in_ = np.array(names, object)

    def predict(self, rows: Any) -> Any:
        """Return the predictions for rows."""
        return self.booster.predict(rows, num_threads=self._threads)


def wrap_booster(value: Any, threads: int) -> Any:
    """Return a booster with an estimator's methods, and any other value as it is."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    if kind == "xgboost.Booster":
        return XgboostEstimator(value, threads)
    return LightgbmEstimator(value, threads) if kind == "lightgbm.Booster" else value


def read_booster(path: Path, library: str, threads: int) -> Any:
    """Load a booster from a file of its library, or an `XGBClassifier` if the file says that one saved it.

    No code of the file runs.

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


def booster_of(estimator: Any) -> Any:
    """Return the booster of XGBoost or LightGBM in an estimator; None if there is none."""
    if type(estimator).__module__.startswith("xgboost."):
        return estimator.get_booster()
    if type(estimator).__module__.startswith("lightgbm."):
        return getattr(estimator, "booster_", None)
    return estimator.booster if isinstance(estimator, XgboostEstimator | LightgbmEstimator) else None


def is_of_xgboost(booster: Any) -> bool:
    """Whether a booster is one of XGBoost."""
    return hasattr(booster, "feature_types")


def categories_by_place(booster: Any) -> dict[int, list[Any]]:
    """Return the categories of each column with pandas' dtype `category`; empty lists if the file has none."""
    return _xgboost_categories(booster) if is_of_xgboost(booster) else _lightgbm_categories(booster)


def _xgboost_categories(booster: Any) -> dict[int, list[Any]]:
    if "c" not in (booster.feature_types or ()):
        return {}
    model = json.loads(booster.save_raw("json"))["learner"]["gradient_booster"]
    kept = model.get("model", model.get("gbtree", {}).get("model", {})).get("cats", {}).get("enc", [])
    places = [place for place, kind in enumerate(booster.feature_types) if kind == "c"]
    return {place: _decoded(kept[place]) if place < len(kept) else [] for place in places}


def _decoded(kept: Mapping[str, Any]) -> list[Any]:
    """Return the categories of one column from XGBoost's JSON."""
    if "offsets" not in kept:
        return list(kept["values"])
    content, offsets = bytes(value % 256 for value in kept["values"]), kept["offsets"]
    return [content[start:end].decode(errors="replace") for start, end in pairwise(offsets)]


def _lightgbm_categories(booster: Any) -> dict[int, list[Any]]:
    kept = getattr(booster, "pandas_categorical", None)
    if not kept:
        return {}
    parameters = booster.model_to_string(num_iteration=1).rpartition("\nparameters:")[2].splitlines()
    named = next((line for line in parameters if line.startswith("[categorical_feature: ")), "[: ]")
    places = [int(text) for text in named.partition(": ")[2].rstrip("]").split(",") if text.strip()]
    return dict(zip(sorted(places), map(list, kept), strict=True))
