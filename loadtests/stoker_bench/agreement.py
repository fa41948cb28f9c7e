"""`stoker bench --agreement`: compares a server whose model sleeps with the simulator on the same arrivals."""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.device.batch_sizes import ServiceTimes, timed_first
from stoker.device.batching import BatchPolicy
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler
from stoker.simulation.workload import Curve, Jitter, Requests
from stoker.simulation.world import NEVER_NS, row_tables, run
from stoker_bench.contestants.contest import Clocks
from stoker_bench.contestants.servers import HOST, Launch, RunningServer, deployment_launch, get, post
from stoker_bench.generators.closed_loop import HTTP_OK
from stoker_bench.generators.load_generator import outputs_of
from stoker_bench.generators.scoring_request import DATA_LISTS, ScoringRequest
from stoker_bench.gpu.poisson import DRAIN_S, loop_command
from stoker_bench.laboratory.replay import learned_curve
from stoker_bench.reports import Bound, Report, aligned, at_most, figure, say

# What the simulator makes of the very arrivals that a server had.


@dataclass(frozen=True)
class Expected:
    """The expected results of a run.

    Attributes:
        ready: Share of answers that are ready within the target.
        in_time: Share of answers that reach the caller within the target.
        p50_ms: Median time of these answers; NaN without any.
        refused: Share of requests that are refused on arrival.
    """

    ready: float
    in_time: float
    p50_ms: float
    refused: float


def simulated(
    due_s: NDArray[np.float64],
    rows: int,
    curve: Curve,
    target_ms: float,
    way_ms: float,
    jitter: Jitter,
) -> Expected:
    """Pass these requests to the server's batching scheduler and admission under a virtual clock.

    Args:
        way_ms: Time of a request and its answer beside the batch: sockets, decoding, doorbells.
        jitter: How much longer batches take.
    """
    count = len(due_s)
    ones = np.ones(count, np.int64)
    at_ns = (due_s * 1e9).astype(np.int64)
    requests = Requests(at_ns, rows * ones, 0 * ones, round(target_ms * 1e6) * ones, ones, 0 * ones)
    (table,) = row_tables(requests, 1)
    policy = BatchPolicy(curve.max_batch_rows, target_ms=target_ms, late="refuse")
    admission = AdmissionControl(policy, np.random.default_rng(count).random)
    planned = PlannedScheduler(table, policy, times=_first_times(curve), admission=admission)
    done_ns = run(requests, [curve], [table], planned, jitter).done_ns
    ready_ms = np.where(done_ns < NEVER_NS, (done_ns - at_ns) / 1e6, np.inf)
    took_ms = ready_ms + way_ms
    in_time = took_ms <= target_ms
    return Expected(
        float((ready_ms <= target_ms).mean()) if count else 0.0,
        float(in_time.mean()) if count else 0.0,
        float(np.median(took_ms[in_time])) if in_time.any() else float("nan"),
        admission.refused / max(1, count * rows),
    )


def _first_times(curve: Curve) -> ServiceTimes:
    """Return the batch times that a server measures before it serves."""
    times = ServiceTimes()
    for size in timed_first((), curve.max_batch_rows):
        for _ in range(2):
            times.learn(size, curve.batch_ns(size))
    return times


# The report of how far a server does what the simulator says.


GOODPUT: Final = 0.05
P50: Final = 0.10
REFUSALS_MS: Final = 5.0
LIGHT_P50: Final = 0.02


def _share(value: float | None) -> str:
    return figure(None) if value is None else f"{value:.3f}"


COLUMNS: Final = (
    ("in time", "in_time", _share),
    ("simulated", "in_time_simulated", _share),
    ("in time for callers", "in_time_for_callers", _share),
    ("p50 ms", "p50_ms", figure),
    ("simulated", "p50_simulated_ms", figure),
    ("refused", "refused", _share),
    ("simulated", "refused_simulated", _share),
    ("refusals p99 ms", "refusals_p99_ms", figure),
    ("full batch ms", "full_batch_ms", figure),
    ("foreign cores", "foreign_cores", figure),
)
"""The heading of each column, the attribute of runs whose median it tells, and what writes it."""


@dataclass(frozen=True)
class Run:
    """One run of an open loop, and what the simulator makes of its arrivals.

    Attributes:
        load: Offered rows, relative to the throughput of full batches.
        in_time: Share that was ready within the target, by the server's count.
        in_time_simulated: The same, simulated.
        in_time_for_callers: Share that reached the caller within the target.
        p50_ms, p50_simulated_ms: Median time of answers that reached their callers within the target.
        refused, refused_simulated: Share that was refused on arrival.
        refusals_p99_ms: The 99th percentile of the time to a refusal; None without any.
        failed: Requests with neither an answer nor a refusal.
        full_batch_ms: The time of a full batch as learned by the server; the simulator gets the times of all sizes.
        foreign_cores: Cores that other processes kept busy meanwhile.
    """

    load: float
    queries: int
    in_time: float
    in_time_simulated: float
    in_time_for_callers: float
    p50_ms: float
    p50_simulated_ms: float
    refused: float
    refused_simulated: float
    refusals_p99_ms: float | None
    failed: int
    full_batch_ms: float
    foreign_cores: float | None


@dataclass(frozen=True)
class LightRun:
    """Two runs at a light load, with the same arrivals.

    Attributes:
        load: Offered rows, relative to the throughput of full batches.
        p50_ms: Median latency of the server with a target.
        p50_without_ms: Median latency of the server without one.
    """

    load: float
    p50_ms: float
    p50_without_ms: float


@dataclass
class AgreementReport(Report):
    """How far a server does what the simulator says.

    Attributes:
        lone_ms: Latency of lone requests; the simulator adds what exceeds the batch to its answers.
    """

    target_ms: float = 0.0
    lone_ms: float = 0.0
    runs: list[Run] = field(default_factory=list)
    light: list[LightRun] = field(default_factory=list)

    def notes(self) -> list[str]:
        """Return the tables."""
        lone = f"A lone request took {self.lone_ms:.1f} ms (median)."
        rows = [
            [
                f"{load:g}",
                *(formatted(self._median(load, attrgetter(name))) for _, name, formatted in COLUMNS),
            ]
            for load in _loads(self.runs)
        ]
        headings = ["load", *(heading for heading, _, _ in COLUMNS)]
        light = [[f"{load:g}", *map(figure, self._light(load))] for load in _loads(self.light)]
        failed = sum(run.failed for run in self.runs)
        return [
            lone,
            f"Medians of runs with a target of {self.target_ms:g} ms\n\n{aligned(headings, rows)}",
            *([f"{failed:,} requests had no answer."] if failed else []),
            aligned(("load", "p50 ms with a target", "without", "p50 over that without"), light),
        ]

    def bounds(self) -> list[Bound]:
        """Return the bounds."""
        return list(self._bounds())

    def _bounds(self) -> Iterator[Bound]:
        for load in _loads(self.runs):
            apart = self._median(load, lambda run: _apart(run.in_time, run.in_time_simulated))
            yield from at_most(f"load {load:g}: rows in time apart from the simulator", apart, GOODPUT)
            apart = self._median(load, lambda run: _apart(run.p50_ms, run.p50_simulated_ms))
            yield from at_most(f"load {load:g}: p50 apart from the simulator", apart, P50)
            refusals_ms = self._median(load, lambda run: run.refusals_p99_ms)
            yield from at_most(f"load {load:g}: refusals told within, ms, p99", refusals_ms, REFUSALS_MS)
        for load in _loads(self.light):
            apart = abs(self._light(load)[2] - 1)
            yield from at_most(f"load {load:g}: p50 apart from that without a target", apart, LIGHT_P50)

    def further(self) -> dict[str, Any]:
        """Return all runs."""
        return {
            "target_ms": self.target_ms,
            "lone_ms": self.lone_ms,
            "runs": [asdict(run) for run in self.runs],
            "light": [asdict(run) for run in self.light],
        }

    def _median(self, load: float, get: Callable[[Run], float | None]) -> float | None:
        values = [value for run in self.runs if run.load == load and (value := get(run)) is not None]
        return statistics.median(values) if values else None

    def _light(self, load: float) -> tuple[float, float, float]:
        runs = [run for run in self.light if run.load == load]
        return (
            statistics.median(run.p50_ms for run in runs),
            statistics.median(run.p50_without_ms for run in runs),
            statistics.median(run.p50_ms / run.p50_without_ms for run in runs),
        )


def _loads(runs: Sequence[Run | LightRun]) -> list[float]:
    return list(dict.fromkeys(run.load for run in runs))


def _apart(measured: float, simulated: float) -> float:
    """Return the difference relative to the simulated value."""
    if math.isnan(measured) or not simulated > 0:
        return math.inf
    return abs(measured / simulated - 1)


# A model that sleeps, served with a target and without.


CURVE: Final = Curve(20.0, 1.0, 64)
"""What its batches take: 20 ms, and 1 ms a row."""

SCRIPT: Final = f'''"""Sleeps as long as a batch takes, counted from when it has begun."""

import time

import stoker

BATCH_S, ROW_S = {CURVE.batch_ms / 1e3}, {CURVE.row_ms / 1e3}


def init():
    """There is nothing to load."""


@stoker.batched(shape=(2,), dtype="float32")
def run(batch):
    """Give the rows back, in time."""
    until_s = time.monotonic() + BATCH_S + ROW_S * len(batch)
    answer = batch.copy()
    while (left_s := until_s - time.monotonic()) > 0:
        time.sleep(left_s)
    return answer
'''


def puppet_launch(folder: Path, target_ms: float | None) -> Launch:
    """How to start a server of the puppet, with one frontend and nothing that uses its device besides."""
    folder.mkdir()
    script = folder / "puppet.py"
    script.write_text(SCRIPT, encoding="utf-8")
    model: dict[str, Any] = {"path": str(script), "max_batch_rows": CURVE.max_batch_rows, "audit": "off"}
    if target_ms is not None:
        # With late answers those who wait for them would need thousands of connections.
        model |= {"target_ms": target_ms, "late": "refuse"}
    return deployment_launch({"models": [model]}, folder, folder / "workspace", ("--frontends", "1"))


def puppet_request(launch: Launch, rows: int) -> ScoringRequest:
    """Return a request of `rows` rows."""
    body = DATA_LISTS.encode(np.zeros((rows, 2), np.float32))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {launch.key}"}
    return ScoringRequest(HOST, launch.port, launch.score_path, body, headers)


# An open loop that goes on under overload, and tells of every query what became of it.


REFUSED: Final = 503
MISSED: Final = 504
SETTLE_S: Final = 1.5


@dataclass(frozen=True, eq=False)
class Answers:
    """What became of the queries of one run.

    Attributes:
        due_s: When each request was due, since the first one: `float64[queries]`, ascending.
        latency_s: Time from then to the answer.
        status: Status of the answer; 0 without one.
    """

    due_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    status: NDArray[np.int64]

    @classmethod
    def of(cls, table: NDArray[np.float64]) -> Answers:
        """Make them of a table of due times, latencies and statuses, in any order."""
        table = table[table[:, 0].argsort(kind="stable")]
        first_s = table[0, 0] if len(table) else 0.0
        return cls(table[:, 0] - first_s, table[:, 1], table[:, 2].astype(np.int64))

    def in_time(self, target_ms: float) -> float:
        """Which part was answered within a target."""
        return float(self._in_time(target_ms).mean()) if len(self.status) else 0.0

    def p50_ms(self, target_ms: float) -> float:
        """Median latency of those; NaN if there are none."""
        return _quantile_ms(self.latency_s[self._in_time(target_ms)], 0.5)

    def _in_time(self, target_ms: float) -> NDArray[np.bool_]:
        in_time: NDArray[np.bool_] = (self.status == HTTP_OK) & (self.latency_s <= target_ms / 1e3)
        return in_time

    @property
    def refused(self) -> float:
        """Which part was refused."""
        return float((self.status == REFUSED).mean()) if len(self.status) else 0.0

    @property
    def refusals_p99_ms(self) -> float | None:
        """The 99th percentile of the time to a refusal; None without any."""
        which = self.status == REFUSED
        return _quantile_ms(self.latency_s[which], 0.99) if which.any() else None

    @property
    def failed(self) -> int:
        """How many have neither an answer nor a refusal for lack of time."""
        return int((~np.isin(self.status, (HTTP_OK, REFUSED, MISSED))).sum())


def _quantile_ms(latencies_s: NDArray[np.float64], quantile: float) -> float:
    return float(np.quantile(latencies_s, quantile)) * 1e3 if len(latencies_s) else float("nan")


def run_open_loop(
    request: ScoringRequest, rate_per_s: float, seconds: float, seed: int, connections: int
) -> Answers:
    """Send a request at the times of a Poisson process, whatever becomes of those before.

    Args:
        rate_per_s: Mean number of requests per second.
        connections: Maximum number of requests in flight; further ones wait, and their waiting time counts.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        message, latencies, answers = (Path(folder, name) for name in ("request", "all.npy", "answers.npy"))
        message.write_bytes(request.http_bytes)
        command = loop_command(request, message, rate_per_s, seconds, limit_ms=0, settle_s=SETTLE_S)
        command += ["--connections", str(connections), "--seed", str(seed)]
        command += ["--latencies", str(latencies), "--answers", str(answers)]
        outputs_of([command], SETTLE_S + seconds + DRAIN_S)
        return Answers.of(np.load(answers))


TARGET_MS: Final = 200.0
LOADS: Final = (0.8, 2.0, 4.0)
LIGHT_LOADS: Final = (0.1, 0.3)
LONE_LOAD: Final = 0.02
CONNECTIONS: Final = 1024
IN_TARGET: Final = re.compile(rb"^stoker_in_target_total\{[^}]*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class AgreementOptions:
    """Options of `stoker bench --agreement`; see its help."""

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
        """Send requests."""
        rate = load * CURVE.peak_rows_per_s / self._rows
        return run_open_loop(self._request, rate, seconds, seed, CONNECTIONS)

    def in_target(self) -> float:
        """Rows that were ready in time so far."""
        _, page = get(HOST, self._request.port, "/metrics", self._key)
        return sum(map(float, IN_TARGET.findall(page)))

    def curve(self) -> Curve:
        """Return the batch times that the server has learned."""
        _, page = get(HOST, self._request.port, "/metrics", self._key)
        return learned_curve(page.decode(), None)

    def beside_simulator(self, load: float, seconds: float, seed: int, lone_ms: float) -> Run:
        """Send requests, and simulate them with the learned batch times."""
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
