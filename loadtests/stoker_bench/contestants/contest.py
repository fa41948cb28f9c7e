"""Contestants measured in turns, A B C D A B C D …, so that a drifting clock affects all of them alike.

The usual contestant is a server under closed-loop load; its answers are checked before that.
"""

from __future__ import annotations

import copy
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stoker.system.wording import format_count
from stoker_bench.contestants.process_tree import ProcessTree, machine_busy_s
from stoker_bench.contestants.servers import get, post
from stoker_bench.errors import BenchedServerError
from stoker_bench.generators.load_generator import OwnGenerator
from stoker_bench.generators.scoring_request import Dialect, ScoringRequest, random_rows, scoring_request

LEAD_IN_S = 1
NOTABLE_FOREIGN_CORES = 0.1


@dataclass(frozen=True)
class Case:
    """One kind of load.

    Attributes:
        connections: Callers, each with one request in flight.
    """

    connections: int
    rows: int = 1

    @property
    def title(self) -> str:
        """A heading for tables."""
        rows, connections = format_count(self.rows, "row"), format_count(self.connections, "connection")
        return f"{connections}, {rows} a request"


@dataclass(frozen=True)
class Slice:
    """The figures of one contestant in one turn; None if unknown."""

    rows_per_s: float
    requests_per_s: float
    errors: int
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu_us_per_request: float | None = None
    mean_batch_rows: float | None = None
    foreign_cores: float | None = None
    """Cores that were busy with neither the server nor the load: what disturbed the slice."""


class Contestant(Protocol):
    """Something that can be loaded for a while."""

    @property
    def name(self) -> str:
        """Its name in tables."""

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn."""


def run_in_turns(
    contestants: Sequence[Contestant],
    case: Case,
    seconds: int,
    rounds: int,
    on_slice: Callable[[str, Slice], None],
) -> dict[str, list[Slice]]:
    """Give each contestant one slice per round; entry i of every list is of the same round.

    Each slice begins after a second of the same load that does not count: during the turns of others, the system may
    have reclaimed pages of an idle server, which should not count as load.
    """
    slices: dict[str, list[Slice]] = {contestant.name: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            if seconds > LEAD_IN_S:
                contestant.run(case, LEAD_IN_S)
            taken = contestant.run(case, seconds)
            slices[contestant.name].append(taken)
            on_slice(contestant.name, taken)
    return slices


def standing(slices: Sequence[Slice]) -> Slice:
    """Summarise one contestant's slices: the median of each figure, the sum of the errors."""

    def median(figure: Callable[[Slice], float | None]) -> float | None:
        known = [value for value in map(figure, slices) if value is not None]
        return statistics.median(known) if known else None

    return Slice(
        rows_per_s=statistics.median(taken.rows_per_s for taken in slices),
        requests_per_s=statistics.median(taken.requests_per_s for taken in slices),
        errors=sum(taken.errors for taken in slices),
        p50_ms=median(lambda taken: taken.p50_ms),
        p99_ms=median(lambda taken: taken.p99_ms),
        cpu_us_per_request=median(lambda taken: taken.cpu_us_per_request),
        mean_batch_rows=median(lambda taken: taken.mean_batch_rows),
        foreign_cores=median(lambda taken: taken.foreign_cores),
    )


def ratio(
    figure: Callable[[Slice], float | None], mine: Sequence[Slice], theirs: Sequence[Slice]
) -> float | None:
    """Return the median over the rounds of one contestant's figure over another's in the same round."""
    quotients = []
    for own, other in zip(mine, theirs, strict=True):
        top, bottom = figure(own), figure(other)
        if top is not None and bottom:
            quotients.append(top / bottom)
    return statistics.median(quotients) if quotients else None


def disturbance(slices: Iterable[Slice]) -> str | None:
    """Say how much other processes disturbed the slices; None where they did not to speak of."""
    known = [taken.foreign_cores for taken in slices if taken.foreign_cores is not None]
    if not known or statistics.mean(known) < NOTABLE_FOREIGN_CORES:
        return None
    return (
        f"Other processes kept {statistics.mean(known):.1f} cores busy meanwhile, so these figures are "
        "not those of a free machine."
    )


HTTP_OK = 200
CHECKED_REQUESTS, CHECKING_CALLERS = 24, 8
TOLERANCE = 1e-3
BATCH_SUM = re.compile(rb"^stoker_batch_rows_sum(?:\{[^}]*\})? (\S+)", re.MULTILINE)
BATCH_COUNT = re.compile(rb"^stoker_batch_rows_count(?:\{[^}]*\})? (\S+)", re.MULTILINE)


class Clocks(Struct, frozen=True):
    """CPU seconds of the server, of the load generators that have ended, and of the whole machine."""

    wall_s: float
    server_s: float | None
    load_s: float
    machine_s: float

    @classmethod
    def read(cls, tree: ProcessTree | None) -> Clocks:
        """Read them now; the server's are not known without its processes."""
        children = os.times()
        return cls(
            wall_s=time.monotonic(),
            server_s=tree.cpu_s() if tree else None,
            load_s=children.children_user + children.children_system,
            machine_s=machine_busy_s(),
        )

    def since(self, earlier: Clocks) -> Clocks:
        """Return the difference to an earlier reading."""
        server_s = None
        if self.server_s is not None and earlier.server_s is not None:
            server_s = self.server_s - earlier.server_s
        return Clocks(
            self.wall_s - earlier.wall_s,
            server_s,
            self.load_s - earlier.load_s,
            self.machine_s - earlier.machine_s,
        )

    @property
    def foreign_cores(self) -> float | None:
        """For a difference of two readings: cores that others kept busy; None for an unknown server."""
        if self.server_s is None:
            return None
        return max(0.0, self.machine_s - self.server_s - self.load_s) / self.wall_s


class LoadedServer:
    """A running server under closed-loop load."""

    def __init__(
        self,
        name: str,
        uri: str,
        generator: OwnGenerator,
        dialect: Dialect,
        row_shape: tuple[int, ...],
        *,
        tree: ProcessTree | None = None,
        key: str | None = None,
        metrics_path: str | None = None,
    ) -> None:
        self.name = name
        self.uri = uri
        self.tree = tree
        self.dialect = dialect
        self.key = key
        self._generator = generator
        self._row_shape = row_shape
        self._metrics_path = metrics_path

    def run(self, case: Case, seconds: int) -> Slice:
        """Take a turn; the CPU time is that of the server's whole tree, its idle time included."""
        request = self.request(random_rows(case.rows, self._row_shape))
        batches = self._batches(request.host, request.port)
        before = Clocks.read(self.tree)
        figures = self._generator.run(request, case.connections, seconds)
        spent = Clocks.read(self.tree).since(before)
        cpu_us = None
        if spent.server_s is not None and figures.requests:
            cpu_us = spent.server_s * 1e6 / figures.requests
        return Slice(
            rows_per_s=figures.requests_per_s * case.rows,
            requests_per_s=figures.requests_per_s,
            errors=figures.errors,
            p50_ms=figures.p50_ms,
            p99_ms=figures.p99_ms,
            cpu_us_per_request=cpu_us,
            foreign_cores=spent.foreign_cores,
            mean_batch_rows=mean_batch_rows(batches, self._batches(request.host, request.port)),
        )

    def speaking(self, name: str, path: str, dialect: Dialect) -> LoadedServer:
        """Return the same server under another name, asked at another path in another dialect."""
        other = copy.copy(self)
        other.name, other.dialect = name, dialect
        other.uri = urljoin(self.uri, path)
        return other

    def request(self, rows: NDArray[np.float32]) -> ScoringRequest:
        """Return the request that scores some rows."""
        return scoring_request(self.uri, self.dialect.encode(rows), self.key, self.dialect.headers(rows))

    def _batches(self, host: str, port: int) -> tuple[float, float] | None:
        if self._metrics_path is None:
            return None
        status, page = get(host, port, self._metrics_path, self.key)
        return batch_totals(page) if status == HTTP_OK else None


def batch_totals(metrics_page: bytes) -> tuple[float, float] | None:
    """Return the rows and the count of all batches so far, summed over models, from a Prometheus page."""
    rows, counts = BATCH_SUM.findall(metrics_page), BATCH_COUNT.findall(metrics_page)
    return (sum(map(float, rows)), sum(map(float, counts))) if counts else None


def mean_batch_rows(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    """Return the mean rows a batch between two readings of the totals, None where it cannot be known."""
    if before is None or after is None or after[1] == before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1])


def _is_close(outputs: NDArray[np.float64], wanted: NDArray[np.float32]) -> bool:
    return bool(np.abs(outputs - wanted).max() <= TOLERANCE)


def check_answers(
    server: LoadedServer,
    row_shape: tuple[int, ...],
    expected: Callable[[NDArray[np.float32]], NDArray[np.float32]] | None,
    max_rows: int = 3,
    close: Callable[[NDArray[np.float64], NDArray[np.float32]], bool] = _is_close,
) -> None:
    """Score distinct rows from several callers at once, and check each answer.

    Args:
        expected: Computes the outputs [n, outputs] for rows [n, ...]; None to check only status and shape.
        max_rows: Maximum rows of the requests.
        close: Whether outputs are close enough.

    Raises:
        BenchedServerError: If an answer is not 200, has the wrong shape or the wrong values.
    """

    def score(number: int) -> None:
        rows = random_rows(1 + number % max_rows, row_shape, seed=number)
        request = server.request(rows)
        status, body = post(request.host, request.port, request.path, request.body, request.headers)
        if not status:
            raise BenchedServerError(f"{server.name} gave no answer at {server.uri}; is it running there?")
        if status != HTTP_OK:
            raise BenchedServerError(f"{server.name} answered {status}: {body[:200]!r}")
        try:
            outputs = server.dialect.decode(body, len(rows))
        except ValueError as error:
            raise BenchedServerError(f"{server.name} answered {body[:200]!r}: {error}") from error
        if expected is None:
            return
        wanted = expected(rows)
        if outputs.shape != wanted.shape or not close(outputs, wanted):
            raise BenchedServerError(f"{server.name} answered {outputs[0][:4]} …, not {wanted[0][:4]} …")

    with ThreadPoolExecutor(CHECKING_CALLERS) as callers:
        for _ in callers.map(score, range(CHECKED_REQUESTS)):
            pass
