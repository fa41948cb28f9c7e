"""Which execution a model of rows gets on a GPU; sessions and CUDA are puppets, time is a hand clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES, PuppetCudart, PuppetSession

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.runtimes.onnx import cuda_runtime
from stoker.runtimes.onnx_executions import BoundExecution, CopiedExecution
from stoker.settings.choices import Acceleration

MS = 1_000_000
BUCKETS = (1, 2, 4)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


class Machine:
    """A GPU, the session that is open on it, and those that are opened for graphs."""

    def __init__(self, plain_ms: int = 4, bound_ms: int = 2, graph_ms: int = 1) -> None:
        self.cudart = PuppetCudart()
        self.times_ns = {"plain": plain_ms * MS, "bound": bound_ms * MS, "graph": graph_ms * MS}
        self.clock = [0]
        self.session = self.new_session()
        self.with_graphs: list[tuple[PuppetSession, int]] = []
        self.refusal: Exception | None = None

    def new_session(self) -> PuppetSession:
        session = PuppetSession(self.cudart)
        session.clock, session.times_ns = self.clock, self.times_ns
        return session

    def open_with_graphs(self, sessions: int) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.with_graphs.append((self.new_session(), sessions))
        return self.with_graphs[-1][0]

    def load(
        self, cuda: Callable[[], CudaRuntime] | None = None, instances: int | None = None, **settings: Any
    ) -> Runtime:
        deployment = Deployment(
            "doubler",
            1,
            "onnx",
            Path("doubler.onnx"),
            Path(),
            4,
            1024,
            batch_buckets=BUCKETS,
            instances=instances,
            acceleration=Acceleration(**settings),
        )
        sessions: Any = SimpleNamespace(deployment=deployment, open_with_graphs=self.open_with_graphs)
        session: Any = self.session
        find = cuda or (lambda: CudaRuntime(self.cudart))
        return cuda_runtime(sessions, session, DOUBLES, find, lambda: self.clock[0])


@pytest.mark.parametrize(
    ("times_ms", "chosen"), [((4, 2, 1), "graph"), ((4, 1, 2), "bound"), ((1, 2, 3), "copied")]
)
def test_the_fastest_execution_is_chosen(
    times_ms: tuple[int, int, int], chosen: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of the three can win; the answers are right, and one line of the log has the times."""
    caplog.set_level("INFO")
    machine = Machine(*times_ms)
    runtime = machine.load()
    told = [line for line in caplog.messages if "execution" in line]
    assert told == [
        f"doubler: execution {chosen}; ms for batches of 1 and 4 rows: "
        + ", ".join(
            f"{kind} {ms}.000 / {ms}.000"
            for kind, ms in zip(("copied", "bound", "graph"), times_ms, strict=True)
        )
    ]
    for rows in (4, 3, 1):
        assert np.asarray(runtime.run([ROWS[:rows]])[0]).tolist() == (ROWS[:rows] * 2).tolist()


def test_a_setting_forces_an_execution() -> None:
    """Though another one is faster; nothing else is prepared for it."""
    machine = Machine()
    assert isinstance(machine.load(execution="bound"), BoundExecution)
    assert machine.with_graphs == []

    assert isinstance(machine.load(execution="graph"), BoundExecution)
    ((session, share),) = machine.with_graphs
    assert len(session.graphs) == len(BUCKETS)
    assert share == 2


def test_copied_needs_nothing_of_cuda() -> None:
    """Neither its runtime nor time to choose."""
    machine = Machine()
    runtime = machine.load(lambda: pytest.fail("CUDA was looked for"), execution="copied")
    assert isinstance(runtime, CopiedExecution)
    assert machine.clock == [0]


def test_sessions_with_graphs_share_the_memory_limit() -> None:
    """Each instance has one."""
    machine = Machine()
    machine.load(execution="graph", instances=3)
    assert machine.with_graphs[0][1] == 3


def test_a_model_that_cannot_be_captured_is_bound(caplog: pytest.LogCaptureFixture) -> None:
    """Unless graphs are asked for: then it is not loaded."""
    caplog.set_level("INFO")
    machine = Machine()
    machine.refusal = LoadFailed("all compute graph nodes have not been partitioned to CUDA")
    bound = machine.load()
    assert isinstance(bound, BoundExecution)
    assert "execution graph is left out: all compute graph nodes have not been partitioned" in caplog.text
    with pytest.raises(LoadFailed, match="cannot run with execution: graph: all compute graph nodes"):
        machine.load(execution="graph")


def test_without_a_cuda_runtime_calls_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    """And an execution that needs it cannot be forced."""
    caplog.set_level("INFO")

    def none() -> CudaRuntime:
        raise CudaError("no libcudart is loaded in this process")

    machine = Machine()
    assert isinstance(machine.load(none), CopiedExecution)
    assert "execution bound is left out: no libcudart" in caplog.text
    with pytest.raises(LoadFailed, match="cannot run with execution: bound: no libcudart"):
        machine.load(none, execution="bound")


def test_tensorrt_has_no_graphs_of_cuda() -> None:
    """Bound memory it has."""
    machine = Machine()
    assert isinstance(machine.load(provider="tensorrt"), BoundExecution)
    assert machine.with_graphs == []


def test_sizes_that_do_not_fit_are_not_prepared() -> None:
    """The others are; a batch that is too large says so when it comes, and the worker divides it."""
    machine = Machine()
    machine.session.most_rows = 2
    runtime = machine.load(execution="bound")
    with pytest.raises(OutOfMemory):
        runtime.run([ROWS])
    assert machine.session.plain_runs[-1] == 0
    machine.cudart.calls.clear()
    runtime.run([ROWS[:2]])
    assert ("run", 2, 0) in machine.cudart.calls
    assert isinstance(runtime, BoundExecution)
    assert runtime.buffers()[0].shape == (4, 3)

    machine.session.most_rows = 0
    assert isinstance(machine.load(), CopiedExecution)
