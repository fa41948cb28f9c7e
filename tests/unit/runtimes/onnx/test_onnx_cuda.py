"""The choice of the execution of a model of rows on a GPU; sessions and CUDA are puppets, time is a hand clock."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Final

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES, PuppetCudart, PuppetSession
from tests.tiny_models import write_doubler

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.runtimes.base import ChosenRuntime, OutOfMemory, Runtime
from stoker.runtimes.cuda import CudaError, CudaRuntime
from stoker.runtimes.onnx.cuda import cuda_runtime
from stoker.runtimes.onnx.executions import BoundExecution, CopiedExecution
from stoker.runtimes.onnx.sessions import FixedSize
from stoker.runtimes.pipeline import PipelinedExecution
from stoker.settings.choices import Acceleration

MS = 1_000_000
BUCKETS = (1, 2, 4)
ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


NODES: Final = "all compute graph nodes have not been partitioned to CUDA"


class Machine:
    """A GPU, the session that is open on it, and those that are opened for graphs.

    Attributes:
        opened: The sessions for graphs, each with the size that it is for, None for any.
        refusals: By `free` or `fixed` why such a session cannot be opened.
        factor: What sessions of one size multiply by; by the number of weights that they share.
        nodes: Those that run on the CPU in a session of one size.
    """

    def __init__(self, plain_ms: int = 4, bound_ms: int = 2, graph_ms: int = 1) -> None:
        self.cudart = PuppetCudart()
        self.times_ns = {"plain": plain_ms * MS, "bound": bound_ms * MS, "graph": graph_ms * MS}
        self.session = self.new_session()
        self.opened: list[tuple[PuppetSession, FixedSize | None]] = []
        self.refusals: dict[str, Exception] = {}
        self.factor: Callable[[FixedSize | None], float] = lambda _: 2
        self.nodes: list[str] = []

    def new_session(self) -> PuppetSession:
        session = PuppetSession(self.cudart)
        session.times_ns = self.times_ns
        return session

    def open_with_graphs(self, stream: int, fixed: FixedSize | None = None) -> Any:
        refusal = self.refusals.get("free" if fixed is None else "fixed")
        if refusal is not None:
            raise refusal
        session = self.new_session()
        session.stream, session.factor = stream, self.factor(fixed)
        if fixed is not None:
            session.rows = fixed.axes["rows"]
        self.opened.append((session, fixed))
        return session

    def load(
        self,
        cuda: Callable[[], CudaRuntime] | None = None,
        instances: int | None = None,
        buckets: tuple[int, ...] | None = BUCKETS,
        **settings: Any,
    ) -> Runtime:
        deployment = Deployment(
            "doubler",
            1,
            "onnx",
            self.path,
            self.path.parent,
            4,
            1024,
            batch_buckets=buckets,
            instances=instances,
            acceleration=Acceleration(**settings),
        )
        sessions: Any = SimpleNamespace(
            deployment=deployment,
            model=self.path,
            open_with_graphs=self.open_with_graphs,
            nodes_on_cpu=lambda _: self.nodes,
        )
        session: Any = self.session
        find = cuda or (lambda: CudaRuntime(self.cudart))
        return cuda_runtime(sessions, session, DOUBLES, find, lambda: self.cudart.clock[0])

    path: ClassVar[Path]


@pytest.fixture(autouse=True, scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write a file without weights to share."""
    Machine.path = write_doubler(tmp_path_factory.mktemp("models") / "doubler.onnx")


def captured(runtime: Runtime) -> PipelinedExecution:
    """Return the runtime after a check that it repeats captured graphs and answers correctly."""
    assert isinstance(runtime, PipelinedExecution)
    for rows in (4, 3, 1):
        assert runtime.run([ROWS[:rows]])[0].tolist() == (ROWS[:rows] * 2).tolist()
    return runtime


@pytest.mark.parametrize("execution", ["auto", "graph"])
def test_model_is_captured_in_one_session(execution: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing else is measured, and the load logs the choice."""
    caplog.set_level("INFO")
    machine = Machine()
    runtime = captured(machine.load(execution=execution))
    assert tuple(runtime.sizes) == BUCKETS
    assert [fixed for _, fixed in machine.opened] == [None]
    assert not any(call[0] == "run" and call[2] == 0 for call in machine.cudart.calls)
    assert runtime.choice == "execution graph, one session for all sizes, 2 batches in flight"
    assert not [line for line in caplog.messages if "execution" in line]


def test_instances_are_the_batches_in_flight() -> None:
    """Each has a graph of each size."""
    machine = Machine()
    assert captured(machine.load(instances=3)).depth == 3
    assert len(machine.opened[0][0].graphs) == 3 * len(BUCKETS)


@pytest.mark.parametrize(("times_ms", "chosen"), [((4, 1), BoundExecution), ((1, 2), CopiedExecution)])
def test_a_model_that_cannot_be_captured_runs_in_the_faster_way(
    times_ms: tuple[int, int], chosen: type, caplog: pytest.LogCaptureFixture
) -> None:
    """Bound or copied, as is measured; the log says which nodes prevent a graph, and what to do."""
    caplog.set_level("DEBUG")
    machine = Machine(*times_ms)
    machine.refusals = {"free": LoadFailed(NODES), "fixed": LoadFailed(NODES)}
    machine.nodes = [f"NonZero 'find{number}'" for number in range(9)]
    runtime = machine.load()
    assert isinstance(runtime, chosen)
    assert isinstance(runtime, ChosenRuntime)
    assert runtime.choice == ("execution bound" if chosen is BoundExecution else "execution copied")
    assert np.asarray(runtime.run([ROWS])[0]).tolist() == (ROWS * 2).tolist()
    assert (
        "doubler: it cannot be captured as a CUDA graph: with batches of one size these nodes still run on the CPU: "
        "NonZero 'find0', "
    ) in caplog.text
    assert "NonZero 'find7' and 1 more; export the model with operators" in caplog.text
    assert "copied {0}.000 / {0}.000, bound {1}.000 / {1}.000".format(*times_ms) in caplog.text


def test_execution_graph_fails_if_it_is_impossible() -> None:
    """The message has the reason."""
    machine = Machine()
    machine.refusals = {"free": LoadFailed(NODES), "fixed": LoadFailed(NODES)}
    machine.nodes = ["NonZero 'find'"]
    with pytest.raises(
        LoadFailed, match=rf"cannot run with execution: graph: {NODES}: .*NonZero 'find'; export"
    ):
        machine.load(execution="graph")


def test_a_model_that_computes_shapes_has_a_session_for_each_size(caplog: pytest.LogCaptureFixture) -> None:
    """The sessions divide the memory limit by their rows."""
    caplog.set_level("INFO")
    machine = Machine()
    machine.refusals = {"free": LoadFailed(NODES)}
    runtime = captured(machine.load())
    assert [(fixed.axes, fixed.memory_share) for _, fixed in machine.opened if fixed is not None] == [
        ({"rows": 4}, 4 / 7),
        ({"rows": 2}, 2 / 7),
        ({"rows": 1}, 1 / 7),
    ]
    assert "execution graph, one session for all sizes, is left out: all compute graph nodes" in caplog.text
    shared = "a session for each size with shared weights"
    assert runtime.choice == f"execution graph, {shared}, 2 batches in flight"


def test_sizes_that_are_added_later_leave_memory_for_each_other() -> None:
    """Without buckets the smallest size is prepared, and further ones are added up to the largest batch."""
    machine = Machine()
    machine.refusals = {"free": LoadFailed(NODES)}
    runtime = captured_one(machine.load(buckets=None))
    runtime.add_size(2)
    runtime.add_size(4)
    shares = [fixed.memory_share for _, fixed in machine.opened if fixed is not None]
    assert shares == [1 / 7, 2 / 7, 4 / 7]


def captured_one(runtime: Runtime) -> PipelinedExecution:
    """Return the runtime after a check that it is prepared for one row."""
    assert isinstance(runtime, PipelinedExecution)
    assert tuple(runtime.sizes) == (1,)
    return runtime


def test_shared_weights_that_give_other_answers_are_not_shared(caplog: pytest.LogCaptureFixture) -> None:
    """ONNX Runtime may have changed a weight under its name; then each session has its own."""
    caplog.set_level("INFO")
    machine = Machine()
    machine.refusals = {"free": LoadFailed(NODES)}
    tries: list[int] = []

    def factor(fixed: FixedSize | None) -> float:
        tries.append(0 if fixed is None else fixed.axes["rows"])
        return 2.5 if len(tries) <= len(BUCKETS) else 2

    machine.factor = factor
    runtime = captured(machine.load())
    assert tries == [4, 2, 1] * 2
    assert "with shared weights, is left out: its outputs for 1 rows differ by 0.2" in caplog.text
    assert runtime.choice == "execution graph, a session for each size, 2 batches in flight"


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Leave cycles where they are, as a device process does that makes no objects."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("wrong_kinds", "open_before"), [(0, [0]), (1, [0, 0, 1, 2]), (2, [0, *[0, 1, 2] * 2])]
)
@pytest.mark.usefixtures("no_collection")
def test_sessions_that_do_not_serve_are_freed_at_once(wrong_kinds: int, open_before: list[int]) -> None:
    """Sessions of a kind that is left out end before the next kind is opened, that of plain calls with the load."""
    machine = Machine()
    alive: weakref.WeakSet[PuppetSession] = weakref.WeakSet()
    counts: list[int] = []

    def factor(_: FixedSize | None) -> float:
        alive.update(session for session, _ in machine.opened)
        machine.opened.clear()
        counts.append(len(alive))
        return 2 if len(counts) > (0, 1, 1 + len(BUCKETS))[wrong_kinds] else 2.5

    machine.factor = factor
    plain = weakref.ref(machine.session)
    runtime = machine.load()
    del machine.session
    assert plain() is None
    assert counts == open_before
    captured(runtime)


@pytest.mark.usefixtures("no_collection")
def test_a_size_without_memory_keeps_no_session() -> None:
    """Memory is scarce there."""
    machine = Machine()
    most_rows = iter([2, 1 << 20, 1 << 20])
    open_session = machine.new_session

    def new_session() -> PuppetSession:
        session = open_session()
        session.most_rows = next(most_rows)
        return session

    machine.new_session = new_session  # type: ignore[method-assign]
    machine.refusals = {"free": LoadFailed(NODES)}
    plain = weakref.ref(machine.session)
    runtime = machine.load()
    del machine.session, machine.refusals
    assert tuple(runtime.sizes) == (1, 2)  # type: ignore[attr-defined]
    assert plain() is None


def test_a_capture_that_breaks_the_device_is_named() -> None:
    """After an illegal access nothing runs any more in the process; the message has the setting."""
    machine = Machine()

    def breaking(fixed: FixedSize | None) -> float:
        machine.session.failure = RuntimeError("CUDA failure 700: an illegal memory access was encountered")
        raise machine.session.failure

    machine.factor = breaking
    with pytest.raises(LoadFailed, match=r"since execution graph was tried .*set execution: copied"):
        machine.load()


def test_a_setting_forces_an_execution() -> None:
    """The other execution is faster, and is not prepared."""
    machine = Machine()
    assert isinstance(machine.load(execution="bound"), BoundExecution)
    assert machine.opened == []


def test_copied_needs_nothing_of_cuda() -> None:
    """It needs neither the CUDA runtime nor a measurement."""
    machine = Machine()
    runtime = machine.load(lambda: pytest.fail("CUDA was looked for"), execution="copied")
    assert isinstance(runtime, CopiedExecution)
    assert machine.cudart.clock == [0]


def test_without_a_cuda_runtime_calls_are_plain(caplog: pytest.LogCaptureFixture) -> None:
    """An execution that needs it cannot be forced."""
    caplog.set_level("INFO")

    def none() -> CudaRuntime:
        raise CudaError("no libcudart is loaded in this process")

    machine = Machine()
    assert isinstance(machine.load(none), CopiedExecution)
    assert "execution graph is left out: no libcudart" in caplog.text
    assert "execution bound is left out: no libcudart" in caplog.text
    for execution in ("bound", "graph"):
        with pytest.raises(LoadFailed, match=f"cannot run with execution: {execution}: no libcudart"):
            machine.load(none, execution=execution)


def test_tensorrt_has_no_graphs_of_cuda() -> None:
    """It can have bound memory."""
    machine = Machine()
    assert isinstance(machine.load(provider="tensorrt"), BoundExecution)
    assert machine.opened == []


@pytest.mark.parametrize(("buckets", "bound"), [(None, [1, 2, 4]), ((), [4]), ((2, 4), [2, 4])])
def test_memory_is_bound_for_likely_sizes(buckets: tuple[int, ...] | None, bound: list[int]) -> None:
    """They are the buckets, all sizes from which the load chooses, or full batches."""
    machine = Machine()
    runtime = machine.load(execution="bound", buckets=buckets)
    machine.session.plain_runs.clear()
    for rows in (1, 2, 4):
        runtime.run([ROWS[:rows]])
    assert len(machine.session.plain_runs) == 3 - len(bound)


def test_sizes_that_do_not_fit_are_not_prepared() -> None:
    """The others are. A batch that is too large fails, and the worker divides it."""
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
    assert isinstance(machine.load(execution="bound"), CopiedExecution)


def test_captured_sizes_that_plain_calls_lack_memory_for_are_compared_with_others() -> None:
    """Two sessions are open while they are compared, and the second may leave too little for the first."""
    machine = Machine()
    machine.session.most_rows = 2
    assert tuple(captured(machine.load()).sizes) == BUCKETS
    machine.session.most_rows = 0
    assert isinstance(machine.load(), CopiedExecution)
