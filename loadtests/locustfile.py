"""Users that score rows or texts with the key and check every answer.

    STOKER_PRIMARY_KEY=KEY locust -f loadtests/locustfile.py --headless --host http://127.0.0.1:8080
        --users 32 --spawn-rate 2 --run-time 30s        (all on one line)

Options beside locust's own, each also an environment variable:
    --stoker-key KEY         STOKER_PRIMARY_KEY    the bearer key
    --score-path PATH        STOKER_LOAD_PATH      /score
    --served-model FILE      STOKER_LOAD_MODEL     the ONNX file being served: each answer must then have exactly
                                                   the class that ONNX Runtime gives offline
    --rows-per-request N     STOKER_LOAD_ROWS      1
    --texts FILE             STOKER_LOAD_TEXTS     texts in place of rows, one a line: each must have the
                                                   same answer every time

An answer counts as a failure if its status is not 200, if it does not hold one class a row, or if a class differs
from the offline one.
"""

from __future__ import annotations

import logging
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from locust import FastHttpUser, constant, events, task

from stoker.errors import OperatorError
from stoker_bench.users import RowExam, TextExam

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from locust.env import Environment

logger = logging.getLogger("stoker.load")

HTTP_OK = 200


@events.init_command_line_parser.add_listener
def _add_options(parser: ArgumentParser) -> None:
    options: list[tuple[str, str, dict[str, Any]]] = [
        ("--stoker-key", "STOKER_PRIMARY_KEY", {"default": "", "is_secret": True}),
        ("--score-path", "STOKER_LOAD_PATH", {"default": "/score"}),
        ("--served-model", "STOKER_LOAD_MODEL", {"type": Path}),
        ("--rows-per-request", "STOKER_LOAD_ROWS", {"default": 1, "type": int}),
        ("--texts", "STOKER_LOAD_TEXTS", {"type": Path}),
    ]
    for name, variable, settings in options:
        parser.add_argument(name, env_var=variable, help="see the top of locustfile.py", **settings)


@events.init.add_listener
def _prepare(environment: Environment, **_: object) -> None:
    """Make the bodies before the test's time begins to run."""
    options = environment.parsed_options
    try:
        exam: RowExam | TextExam
        exam = (
            TextExam(options.texts)
            if options.texts
            else RowExam(options.served_model, options.rows_per_request)
        )
    except OperatorError as error:
        logger.error("%s", error)  # noqa: TRY400 - the operator needs no traceback
        sys.exit(error.exit_code)
    logger.info("%d bodies of %s", len(exam.bodies), exam.source)
    environment.exam = exam


@events.quitting.add_listener
def _fail_without_requests(environment: Environment, **_: object) -> None:
    if not environment.stats.num_requests:
        environment.process_exit_code = 1


class CheckingUser(FastHttpUser):
    """Sends a random body, checks the answer, and sends the next at once."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Take the bodies that the test's start prepared."""
        options = self.environment.parsed_options
        self.exam: RowExam | TextExam = self.environment.exam
        self.path = options.score_path
        self.headers = {"Content-Type": "application/json"}
        if options.stoker_key:
            self.headers["Authorization"] = f"Bearer {options.stoker_key}"

    @task
    def score(self) -> None:
        """Score one body."""
        number = random.randrange(len(self.exam.bodies))  # noqa: S311 - which body is no secret
        with self.client.post(
            self.path, data=self.exam.bodies[number], headers=self.headers, catch_response=True
        ) as answer:
            if answer.status_code != HTTP_OK:
                answer.failure(f"status {answer.status_code}")
            elif complaint := self.exam.complaint(number, answer.content):
                answer.failure(complaint)
