"""Small models of scikit-learn in files, as people save them."""

from __future__ import annotations

import pickle
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["COLUMNS", "MIXED", "classifier", "mixed", "regression", "save"]

COLUMNS = ["rooms", "size"]
MIXED = ["size", "city", "note", "garden", "rooms", "owner", "built"]
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


def mixed(method: Any = None) -> Any:
    """A classifier of a table with numbers, texts, booleans and dates, of which it looks at all but the owner.

    The second class where the city is Rome or the note says "old", and there is a garden. A city that it was not
    fitted with is refused.
    """
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    rows = [
        (10.0 + place % 2, city, note, garden, rooms, f"owner {place}", built)
        for place, (city, note, garden, rooms, built) in enumerate(
            product(
                ("Bonn", "Rome"),
                ("new house", "old house"),
                (False, True),
                (1, 2),
                ("2000-01-01", "2020-02-29"),
            )
        )
    ]
    table = pd.DataFrame(rows, columns=MIXED).astype({"built": "datetime64[ns]"})
    classes = ((table.city == "Rome") | table.note.str.startswith("old")) & table.garden
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size"]),
        (make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), ["city"]),
        (CountVectorizer(), "note"),
        (OneHotEncoder(), ["garden", "rooms"]),
        (OneHotEncoder(handle_unknown="ignore"), ["built"]),
    )
    found = make_pipeline(columns, method or DecisionTreeClassifier(random_state=0))
    return found.fit(table, np.array(["flat", "house"])[classes.astype(int)])


def save(estimator: Any, path: Path) -> Path:
    """Write it as a pickle."""
    path.write_bytes(pickle.dumps(estimator))
    return path
