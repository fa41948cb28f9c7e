"""Users that score real digits with the key and check every answer.

    STOKER_PRIMARY_KEY=KEY locust -f loadtests/locustfile.py --headless --host http://127.0.0.1:8080
        --users 32 --run-time 30s --load-shape spike        (all on one line)

Options beside locust's own, each also an environment variable:
    --stoker-key KEY         STOKER_PRIMARY_KEY    the bearer key
    --score-path PATH        STOKER_LOAD_PATH      /score
    --mnist-dir FOLDER       STOKER_LOAD_MNIST     MNIST's t10k IDX files; without it drawn digits
    --served-model FILE      STOKER_LOAD_MODEL     the ONNX file being served: each answer must then have exactly
                                                   the class that ONNX Runtime gives offline
    --rows-per-request N     STOKER_LOAD_ROWS      1
    --load-shape SHAPE       STOKER_LOAD_SHAPE     steady, ramp or spike, up to --users within --run-time
    --texts FILE             STOKER_LOAD_TEXTS     texts in place of digits, one a line: each must have the
                                                   same answer every time

An answer counts as a failure if its status is not 200, if it does not hold one class a row, or if a class differs
from the offline one. How often the class agrees with the digit's label is told at the end, and is no failure: a
model may be wrong. The stages that the server reports in `Server-Timing` are recorded as requests of the type
"stage" and in microseconds, since locust rounds to whole milliseconds; its percentiles then cover them too. (Its
"Aggregated" line mixes both; read the POST line.)
"""

from __future__ import annotations

import logging
import random
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from locust import FastHttpUser, LoadTestShape, constant, events, task

from stoker.errors import OperatorError
from stoker_bench.users import SHAPES, TextExam, classes_in_answer, read_digits, stage_times_ms, users_at

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from locust.env import Environment
    from numpy.typing import NDArray

logger = logging.getLogger("stoker.load")

DECIMALS = 4
US_A_MS = 1e3
HTTP_OK = 200
MAX_DIGITS = 2000
DEFAULT_RUN_TIME_S = 60


class Exam:
    """The digits as request bodies, what their answers must be, and how the answers were."""

    def __init__(self, mnist_folder: Path | None, model: Path | None, rows_per_request: int) -> None:
        digits = read_digits(mnist_folder)
        order = np.random.default_rng(1).permutation(len(digits.rows))[:MAX_DIGITS]
        rows = digits.rows[order].astype(np.float64).round(DECIMALS)
        self.source = digits.source
        self.labels = digits.labels[order]
        self.expected = offline_classes(model, rows.astype(np.float32)) if model else None
        self.rows_per_request = rows_per_request
        self.starts = range(0, len(rows) - rows_per_request + 1, rows_per_request)
        self.bodies = [
            orjson.dumps({"data": rows[start : start + rows_per_request].tolist()}) for start in self.starts
        ]
        self.answered_rows = 0
        self.agreed_rows = 0

    def complaint(self, number: int, body: bytes) -> str | None:
        """Check the answer to a body; None if it is right."""
        rows = slice(self.starts[number], self.starts[number] + self.rows_per_request)
        try:
            classes = classes_in_answer(orjson.loads(body), self.rows_per_request)
        except ValueError as error:
            return f"no classes: {error}"
        if self.expected is not None and (classes != self.expected[rows]).any():
            return "not the class that the runtime gives offline"
        self.answered_rows += self.rows_per_request
        self.agreed_rows += int((classes == self.labels[rows]).sum())
        return None


def offline_classes(model: Path, rows: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the class of each row, int64 [n], as ONNX Runtime gives it on the CPU."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    outputs = session.run(None, {session.get_inputs()[0].name: rows})[0]
    return classes_in_answer(outputs, len(rows))


@events.init_command_line_parser.add_listener
def _add_options(parser: ArgumentParser) -> None:
    options: list[tuple[str, str, dict[str, Any]]] = [
        ("--stoker-key", "STOKER_PRIMARY_KEY", {"default": "", "is_secret": True}),
        ("--score-path", "STOKER_LOAD_PATH", {"default": "/score"}),
        ("--mnist-dir", "STOKER_LOAD_MNIST", {"default": ""}),
        ("--served-model", "STOKER_LOAD_MODEL", {"default": ""}),
        ("--rows-per-request", "STOKER_LOAD_ROWS", {"default": 1, "type": int}),
        ("--load-shape", "STOKER_LOAD_SHAPE", {"default": "steady", "choices": SHAPES}),
        ("--texts", "STOKER_LOAD_TEXTS", {"default": ""}),
    ]
    for name, variable, settings in options:
        parser.add_argument(name, env_var=variable, help="see the top of locustfile.py", **settings)


@events.init.add_listener
def _prepare(environment: Environment, **_: object) -> None:
    """Make the bodies before the test's time begins to run."""
    options = environment.parsed_options
    try:
        exam: Exam | TextExam
        if options.texts:
            exam = TextExam(Path(options.texts))
        else:
            exam = Exam(
                Path(options.mnist_dir) if options.mnist_dir else None,
                Path(options.served_model) if options.served_model else None,
                options.rows_per_request,
            )
    except OperatorError as error:
        logger.error("%s", error)  # noqa: TRY400 - the operator needs no traceback
        sys.exit(error.exit_code)
    logger.info("%d bodies of %s", len(exam.bodies), exam.source)
    environment.exam = exam


@events.quitting.add_listener
def _tell(environment: Environment, **_: object) -> None:
    if not environment.stats.num_requests:
        environment.process_exit_code = 1
    exam: Exam | TextExam | None = getattr(environment, "exam", None)
    if isinstance(exam, Exam) and exam.answered_rows:
        share = exam.agreed_rows / exam.answered_rows
        print(f"Labels agreed for {share:.1%} of {exam.answered_rows:,} rows ({exam.source}).")


class DigitUser(FastHttpUser):
    """Asks for a random digit's class, or sends a text, checks the answer, and asks for the next at once."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Take the bodies that the test's start prepared."""
        options = self.environment.parsed_options
        self.exam: Exam | TextExam = self.environment.exam
        self.path = options.score_path
        self.headers = {"Content-Type": "application/json"}
        if options.stoker_key:
            self.headers["Authorization"] = f"Bearer {options.stoker_key}"

    @task
    def score(self) -> None:
        """Score one body."""
        number = random.randrange(len(self.exam.bodies))  # noqa: S311 - which digit is no secret
        with self.client.post(
            self.path, data=self.exam.bodies[number], headers=self.headers, catch_response=True
        ) as answer:
            if answer.status_code != HTTP_OK:
                answer.failure(f"status {answer.status_code}")
                return
            if complaint := self.exam.complaint(number, answer.content):
                answer.failure(complaint)
            for stage, time_ms in stage_times_ms(answer.headers.get("Server-Timing") or "").items():
                self.environment.events.request.fire(
                    request_type="stage",
                    name=f"{stage} µs",
                    response_time=time_ms * US_A_MS,
                    response_length=0,
                    exception=None,
                    context={},
                )


class ChosenShape(LoadTestShape):
    """The shape that --load-shape names; locust's --users is its peak and --run-time its length."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Return the users wanted now and how many of them to start a second."""
        options = self.runner.environment.parsed_options
        peak_users, duration_s = options.num_users or 1, _seconds(options.run_time)
        users = users_at(options.load_shape, self.get_run_time(), duration_s, peak_users)
        return None if users is None else (users, float(peak_users))


def _seconds(run_time: str | int | None) -> float:
    """Read locust's --run-time, which is seconds or such as 1h30m, and is parsed only when there is no shape."""
    if run_time is None:
        return DEFAULT_RUN_TIME_S
    units = {"h": 3600, "m": 60, "s": 1, "": 1}
    return float(sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([hms]?)", str(run_time))))
