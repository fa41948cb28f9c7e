"""Boosters of XGBoost and LightGBM, which are what these write to files of their own, as estimators.

They have `predict` alone, which gives what the objective says: scores of classes, or numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stoker.errors import LoadFailed

__all__ = ["LightgbmEstimator", "XgboostEstimator", "as_estimator", "read_booster"]


class XgboostEstimator:
    """A booster of XGBoost.

    Attributes:
        booster: The booster.
        n_features_in_: How many columns it was fitted on.
        feature_names_in_: What they are called; absent if nobody said.
    """

    def __init__(self, booster: Any, threads: int) -> None:
        """Have it use this many threads."""
        booster.set_param({"nthread": threads})
        self.booster = booster
        self.n_features_in_ = int(booster.num_features())
        if booster.feature_names:
            self.feature_names_in_ = np.array(booster.feature_names, object)

    def predict(self, rows: Any) -> Any:
        """Return what the booster gives for rows."""
        import xgboost

        return self.booster.predict(xgboost.DMatrix(rows, enable_categorical=True))


class LightgbmEstimator:
    """A booster of LightGBM; the attributes are those of `XgboostEstimator`."""

    def __init__(self, booster: Any, threads: int) -> None:
        """Have it use this many threads."""
        self.booster = booster
        self._threads = threads
        self.n_features_in_ = int(booster.num_feature())
        names = booster.feature_name()
        # What it calls those that have no names.
        if names != [f"Column_{place}" for place in range(len(names))]:
            self.feature_names_in_ = np.array(names, object)

    def predict(self, rows: Any) -> Any:
        """Return what the booster gives for rows."""
        return self.booster.predict(rows, num_threads=self._threads)


def as_estimator(value: Any, threads: int) -> Any:
    """Return a booster with an estimator's methods, and everything else as it is."""
    kind = f"{type(value).__module__.partition('.')[0]}.{type(value).__name__}"
    if kind == "xgboost.Booster":
        return XgboostEstimator(value, threads)
    return LightgbmEstimator(value, threads) if kind == "lightgbm.Booster" else value


def read_booster(path: Path, library: str, threads: int) -> Any:
    """Load a booster from a file of its library. No code runs, other than of a pickle.

    Args:
        path: The file.
        library: `xgboost` or `lightgbm`.
        threads: How many threads it may use.

    Raises:
        LoadFailed: The library is not installed, or cannot read the file.
    """
    try:
        if library == "xgboost":
            import xgboost

            return XgboostEstimator(xgboost.Booster(model_file=str(path)), threads)
        import lightgbm

        return LightgbmEstimator(lightgbm.Booster(model_file=str(path)), threads)
    except ImportError:
        raise LoadFailed(
            f"{path} is a model of {library}, which is not installed: pip install {library}"
        ) from None
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        raise LoadFailed(f"{path} cannot be loaded by {library}: {lines[0] if lines else error!r}") from error
