"""`stoker bench --agreement`: a server of a model that sleeps, beside the simulator with the same arrivals."""

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.simulation.devices import Jitter
from stoker_bench.agreement.open_loop import Answers, run_open_loop
from stoker_bench.agreement.puppet import CURVE, puppet_launch, puppet_request
from stoker_bench.agreement.report import AgreementReport, LightRun, Run
from stoker_bench.agreement.simulated import Expected, simulated
from stoker_bench.contestants.loaded_server import Clocks
from stoker_bench.contestants.servers import HOST, RunningServer, get, post
from stoker_bench.generators.http_caller import HTTP_OK
from stoker_bench.laboratory.replay import learned_curve
from stoker_bench.progress import say

if TYPE_CHECKING:
    from stoker.simulation.devices import Curve
    from stoker_bench.generators.scoring_request import ScoringRequest

__all__ = ["AgreementOptions", "run_agreement"]

TARGET_MS: Final = 200.0
LOADS: Final = (0.8, 2.0, 4.0)
LIGHT_LOADS: Final = (0.1, 0.3)
LONE_LOAD: Final = 0.02
CONNECTIONS: Final = 1024
IN_TARGET: Final = re.compile(rb"^stoker_in_target_total\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class AgreementOptions:
    """What `stoker bench --agreement` was asked for; see its help texts."""

    seconds: int = 6
    rounds: int = 3
    rows: int = 4


class _Server:
    """A server of the puppet under an open loop."""

    def __init__(self, folder: Path, target_ms: float | None, rows: int, stack: contextlib.ExitStack) -> None:
        launch = puppet_launch(folder, target_ms)
        self._rows, self._key = rows, launch.key
        self._request: ScoringRequest = puppet_request(launch, rows)
        self._running = stack.enter_context(RunningServer(launch, folder / "log"))
        request = self._request
        status, answer = post(HOST, request.port, request.path, request.body, request.headers)
        if status != HTTP_OK:
            raise self._running.failed(f"answered {status}: {answer[:200]!r}")

    def run(self, load: float, seconds: float, seed: int) -> Answers:
        """Let requests come."""
        rate = load * CURVE.peak_rows_per_s / self._rows
        return run_open_loop(self._request, rate, seconds, seed, CONNECTIONS)

    def in_target(self) -> float:
        """Rows that were ready in time so far."""
        _, page = get(HOST, self._request.port, "/metrics", self._key)
        return sum(map(float, IN_TARGET.findall(page)))

    def curve(self) -> Curve:
        """What the server says that its batches take."""
        _, page = get(HOST, self._request.port, "/metrics", self._key)
        return learned_curve(page.decode(), None)

    def beside_simulator(self, load: float, seconds: float, seed: int, lone_ms: float) -> Run:
        """Let requests come, and simulate them with what batches have taken."""
        before, clocks = self.in_target(), Clocks.read(self._running.tree)
        answers = self.run(load, seconds, seed)
        spent = Clocks.read(self._running.tree).since(clocks)
        ready = (self.in_target() - before) / max(1, len(answers.status) * self._rows)
        curve, jitter = self.curve(), Jitter(np.random.default_rng(seed))
        way_ms = max(0.0, lone_ms - curve.batch_ns(self._rows) / 1e6)
        expected = simulated(answers.due_s, self._rows, curve, TARGET_MS, way_ms, jitter)
        return _compared(load, answers, ready, expected, curve, spent.foreign_cores)


def _compared(
    load: float,
    answers: Answers,
    ready: float,
    expected: Expected,
    curve: Curve,
    foreign_cores: float | None,
) -> Run:
    return Run(
        load,
        len(answers.status),
        ready,
        expected.ready,
        answers.in_time(TARGET_MS),
        answers.p50_ms(TARGET_MS),
        expected.p50_ms,
        answers.refused,
        expected.refused,
        answers.refusals_p99_ms,
        answers.failed,
        curve.full_ns / 1e6,
        foreign_cores,
    )


def run_agreement(options: AgreementOptions) -> AgreementReport:
    """Run all loads and return the report; every process started here has ended when this returns or raises.

    Raises:
        OperatorError: A server does not start or answer, or the load generator fails.
    """
    subject = f"a model that sleeps {CURVE.batch_ms:g} ms + {CURVE.row_ms:g} ms a row, {options.rows} rows a request"
    report = AgreementReport(
        "an open loop of the bench's own", options.seconds, options.rounds, subject, target_ms=TARGET_MS
    )
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as temporary, contextlib.ExitStack() as stack:
        aiming = _Server(Path(temporary, "target"), TARGET_MS, options.rows, stack)
        aimless = _Server(Path(temporary, "none"), None, options.rows, stack)
        say("lone requests")
        lone = aiming.run(LONE_LOAD, options.seconds, seed=1)
        report.lone_ms = lone.p50_ms(TARGET_MS)
        for number in range(options.rounds):
            for load in LIGHT_LOADS:
                say(f"load {load:g}, with a target and without, round {number + 1}")
                # Who is first in one round is second in the next.
                turns = (aiming, aimless) if number % 2 == 0 else (aimless, aiming)
                p50_ms = {
                    server: server.run(load, options.seconds, number + 1).p50_ms(np.inf) for server in turns
                }
                report.light.append(LightRun(load, p50_ms[aiming], p50_ms[aimless]))
            for load in LOADS:
                say(f"load {load:g}, round {number + 1}")
                report.runs.append(aiming.beside_simulator(load, options.seconds, number + 1, report.lone_ms))
    return report
