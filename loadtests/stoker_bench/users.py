"""The bodies that users of load tests send, and how they check the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker_bench.generators.scoring_request import DATA_LISTS, random_rows
from stoker_bench.networks.onnx_graphs import WIDTHS
from stoker_bench.networks.served_model import given_model

BODIES: Final = 500
TEXT_TOLERANCE: Final = 1e-4


class RowExam:
    """Random rows as request bodies; each answer has to hold one class a row.

    Args:
        model: The ONNX file being served, if it is known: then each class has to be the runtime's own.
    """

    def __init__(self, model: Path | None, rows_per_request: int) -> None:
        served = given_model(model) if model else None
        self.source = "random rows"
        self._rows_per_request = rows_per_request
        rows = random_rows(BODIES * rows_per_request, served.row_shape if served else (WIDTHS[0],))
        parts = rows.reshape(BODIES, rows_per_request, *rows.shape[1:])
        self.bodies = [DATA_LISTS.encode(part) for part in parts]
        self._expected = [served.outputs(part).argmax(axis=1) for part in parts] if served else None

    def complaint(self, number: int, body: bytes) -> str | None:
        """Check the answer to a body; None if it is right."""
        try:
            classes = classes_in_answer(orjson.loads(body), self._rows_per_request)
        except ValueError as error:
            return f"no classes: {error}"
        if self._expected is not None and (classes != self._expected[number]).any():
            return "not the class that the runtime gives offline"
        return None


class TextExam:
    """Texts as request bodies; each has to have the same answer every time, whatever runs beside it."""

    def __init__(self, file: Path) -> None:
        """Read a file with a text a line."""
        try:
            texts = file.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise OperatorError(f"{file} is no text that could be sent: {error}") from error
        self.source = str(file)
        self.bodies = [orjson.dumps({"data": [text]}) for text in texts if text]
        self._first: dict[int, NDArray[np.float64]] = {}

    def complaint(self, number: int, body: bytes) -> str | None:
        """Check the answer to a body; None if it is right."""
        answer = np.array(orjson.loads(body), np.float64)
        first = self._first.setdefault(number, answer)
        same = answer.shape == first.shape and np.allclose(answer, first, atol=TEXT_TOLERANCE)
        return None if same else "not the answer that this text had before"


def classes_in_answer(answer: object, rows: int) -> NDArray[np.int64]:
    """Return the class of each row from parsed JSON: the classes themselves, or outputs whose largest is the class.

    Raises:
        ValueError: If the answer is neither.
    """
    if isinstance(answer, dict):
        answer = next(iter(answer.values()), None)
    try:
        values = np.asarray(answer, dtype=np.float64)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if values.ndim == 0 or len(values) != rows:
        raise ValueError(f"an answer of shape {list(values.shape)} to {rows} rows")
    if values.ndim == 1:
        return values.astype(np.int64)
    classes: NDArray[np.int64] = values.reshape(rows, -1).argmax(axis=1)
    return classes
