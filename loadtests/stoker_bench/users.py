"""The users of load tests: the digits that they send, how many they are, and how they read answers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
import orjson
from numpy.typing import NDArray

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install

DRAWN_ROWS: Final = 2_000
TEXT_TOLERANCE: Final = 1e-4


@dataclass(frozen=True)
class Digits:
    """Images and their labels.

    Attributes:
        rows: float32 [n, 784] in 0..1, white on black, row by row.
        labels: int64 [n], 0..9.
    """

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]
    source: str


def read_digits(mnist_folder: Path | None) -> Digits:
    """Read MNIST's test images (t10k-*, gzip or raw) from a folder, or draw digits without one.

    Raises:
        OperatorError: If the folder lacks a file, or the training module is not installed.
    """
    if find_spec("stoker_training") is None:
        raise OperatorError(f"the users' digits are read by stoker-training; {how_to_install('training')}")
    if mnist_folder is None:
        from stoker_training.drawn_digits import draw_digits

        return Digits(*draw_digits(DRAWN_ROWS, seed=2), "digits drawn by a program (not MNIST)")
    from stoker_training.digits import read_mnist_part

    images, labels = read_mnist_part(mnist_folder, "t10k")
    rows = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
    return Digits(rows, labels.astype(np.int64), "MNIST's test images")


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


def stage_times_ms(header: str) -> dict[str, float]:
    """Return milliseconds by stage from a value such as `parse;dur=0.12, compute;dur=1.5`.

    Entries without a readable duration are left out.
    """
    times = {}
    for entry in header.split(","):
        name, *parameters = (part.strip() for part in entry.split(";"))
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "dur":
                try:
                    times[name] = float(value.strip().strip('"'))
                except ValueError:
                    continue
    return times


Shape = Literal["steady", "ramp", "spike"]
SHAPES: tuple[Shape, ...] = get_args(Shape)

RAMP_STEPS = 10
SPIKE_BASE = 0.1
SPIKE_BEGIN, SPIKE_END = 1 / 3, 2 / 3


def users_at(shape: Shape, elapsed_s: float, duration_s: float, peak_users: int) -> int | None:
    """Return the number of users after `elapsed_s` seconds, None once the test is over.

    steady: all users from the start. ramp: ten equal steps up to all users. spike: a tenth of the users, all of
    them during the middle third, then a tenth again, to see how the server recovers.
    """
    if elapsed_s >= duration_s:
        return None
    progress = elapsed_s / duration_s
    match shape:
        case "steady":
            users = float(peak_users)
        case "ramp":
            users = peak_users * (int(progress * RAMP_STEPS) + 1) / RAMP_STEPS
        case "spike":
            users = float(peak_users) if SPIKE_BEGIN <= progress < SPIKE_END else peak_users * SPIKE_BASE
    return max(1, round(users))
