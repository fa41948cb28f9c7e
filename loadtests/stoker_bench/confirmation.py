"""Confirms that a deployment sustains its expected load: a server of its own under an open loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stoker.profiling.profile import Confirmation, LoadTest
from stoker_bench.contestants.servers import HOST, RunningServer, deployment_launch, post
from stoker_bench.generators.closed_loop import HTTP_OK
from stoker_bench.generators.scoring_request import ScoringRequest
from stoker_bench.gpu.poisson import PoissonOptions, PoissonRun, highest_rate, run_poisson

SETTLE_S: Final = 0.8
CONNECTIONS: Final = 128
MOST_REQUESTS_PER_S: Final = 20_000.0
"""One process of the generator sends no more."""
HALVINGS: Final = 6
STEPS: Final = 2
BUSY: Final = 0.9
LEAST_RUN_S: Final = 0.4
MOST_RUN_S: Final = 6.0
# Runs of a search that goes down two times, in the mean, the starts of their processes, and the server's.
_RUNS: Final = 5
_START_S: Final = 4.0


def confirm(
    deployment: dict[str, Any], question: LoadTest, seconds: float, folder: Path, workspace: Path
) -> Confirmation:
    """Start a server with a deployment, and find the load that it sustains.

    Args:
        workspace: The workspace with its registered models; any other folder without any.

    Raises:
        BenchedServerError: The server does not start, or does not answer the request.
        GeneratorError: The load generator fails.
    """
    folder.mkdir()
    launch = deployment_launch(deployment, folder, workspace)
    headers = {**question.headers, "Authorization": f"Bearer {launch.key}"}
    request = ScoringRequest(HOST, launch.port, question.path, question.body, headers)
    run_s = max(LEAST_RUN_S, min(MOST_RUN_S, (seconds - _START_S) / _RUNS - SETTLE_S))
    options = PoissonOptions(
        question.target_ms, processes=1, connections=CONNECTIONS, loadgen=False, settle_s=SETTLE_S
    )
    with RunningServer(launch, folder / "log") as server:
        status, answer = post(HOST, launch.port, request.path, request.body, request.headers)
        if status != HTTP_OK:
            raise server.failed(f"answered the sample request with {status}: {answer[:200]!r}")
        return _searched(request, question, options, run_s)


def _searched(
    request: ScoringRequest, question: LoadTest, options: PoissonOptions, run_s: float
) -> Confirmation:
    runs: list[PoissonRun] = []

    def run(rate: float) -> PoissonRun:
        runs.append(run_poisson(request, rate, run_s, len(runs) + 1, options, loadgen=False))
        return runs[-1]

    wanted = min(question.rows_per_s / question.rows, MOST_REQUESTS_PER_S)
    rate = borne_load(lambda rate: run(rate).valid, wanted)
    if not rate:
        return Confirmation(0.0, 0.0, 0.0, _busy(runs))
    busy = _busy(runs)
    half = run(rate / 2)
    return Confirmation(rate * question.rows, half.p50_ms, half.p99_ms, busy)


def borne_load(is_borne: Callable[[float], bool], wanted: float) -> float:
    """Return the wanted load if it is sustained, else a lower one that is; 0 if there is none."""
    rate = wanted
    for _ in range(HALVINGS):
        if is_borne(rate):
            break
        rate /= 2
    else:
        return 0.0
    if rate == wanted:
        return rate
    return rate + highest_rate(lambda more: is_borne(rate + more), rate, STEPS)


def _busy(runs: list[PoissonRun]) -> bool:
    return any(run.cores > BUSY for run in runs)
