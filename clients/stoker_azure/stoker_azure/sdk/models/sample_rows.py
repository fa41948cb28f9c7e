"""Rows that `Model.register` is given as a sample, as the request that a server tries the model with."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from stoker_azure.exceptions import NotOffered

__all__ = ["written_sample"]

_MOST_ROWS: Final = 16


@contextmanager
def written_sample(rows: Any) -> Iterator[Path | None]:
    """Write the first rows as a request into a file, which is there for as long as the context.

    Args:
        rows: A table of pandas, an array, or lists; None writes nothing.

    Raises:
        NotOffered: It is something else, such as a data set of Azure.
    """
    if rows is None:
        yield None
        return
    array = rows.to_numpy() if hasattr(rows, "to_numpy") else rows
    listed = array.tolist() if hasattr(array, "tolist") else array
    try:
        content = json.dumps({"data": list(listed)[:_MOST_ROWS]}, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotOffered(
            "sample_input_dataset is taken here as a table, an array or lists of rows without NaN, and not as a data "
            f"set: {error}"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "sample_input.json")
        file.write_text(content, encoding="utf-8")
        yield file
