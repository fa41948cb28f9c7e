"""An open loop that goes on under overload, and tells of every query what became of it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from stoker_bench.generators.http_caller import HTTP_OK
from stoker_bench.generators.load_generator import outputs_of
from stoker_bench.gpu.poisson import DRAIN_S, loop_command

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stoker_bench.generators.scoring_request import ScoringRequest

__all__ = ["Answers", "run_open_loop"]

REFUSED: Final = 503
MISSED: Final = 504
SETTLE_S: Final = 1.5


@dataclass(frozen=True, eq=False)
class Answers:
    """What became of the queries of one run.

    Attributes:
        due_s: When each was due, from the first on, `float64[queries]`, ascending.
        latency_s: From then until its answer was there.
        status: Of its answer; 0 if there was none.
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
        """Within which time 99 % of these were told so; None if there are none."""
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
        request: What each query sends.
        rate_per_s: Queries in a second, in the mean.
        seconds: For how long.
        seed: Of the arrivals.
        connections: Most queries under way at a time; further ones wait for one of these, which counts.

    Raises:
        GeneratorError: The generator failed.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-bench-") as folder:
        message, latencies, answers = (Path(folder, name) for name in ("request", "all.npy", "answers.npy"))
        message.write_bytes(request.http_bytes)
        command = loop_command(request, message, rate_per_s, seconds, limit_ms=0, settle_s=SETTLE_S)
        command += ["--connections", str(connections), "--seed", str(seed)]
        command += ["--latencies", str(latencies), "--answers", str(answers)]
        outputs_of([command], SETTLE_S + seconds + DRAIN_S)
        return Answers.of(np.load(answers))
