"""Small models of scikit-learn in files, as people save them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["COLUMNS", "classifier", "regression", "save"]

COLUMNS = ["rooms", "size"]
_ROWS = np.array([[1.0, 10], [2, 30], [3, 20], [4, 45]])


def regression(*, columns: bool = False) -> Any:
    """100 for each room and 2 for each unit of size; with names of the columns where it was fitted on a table."""
    import pandas as pd
    from sklearn.linear_model import LinearRegression

    rows = pd.DataFrame(_ROWS, columns=COLUMNS) if columns else _ROWS
    return LinearRegression().fit(rows, _ROWS @ [100.0, 2.0])


def classifier(classes: tuple[Any, Any] = ("flat", "house"), *, columns: bool = False) -> Any:
    """The second class where there are more than two rooms."""
    import pandas as pd
    from sklearn.tree import DecisionTreeClassifier

    rows = pd.DataFrame(_ROWS, columns=COLUMNS) if columns else _ROWS
    return DecisionTreeClassifier(random_state=0).fit(rows, np.array(classes)[[0, 0, 1, 1]])


def save(estimator: Any, path: Path) -> Path:
    """Write it as a pickle."""
    path.write_bytes(pickle.dumps(estimator))
    return path
