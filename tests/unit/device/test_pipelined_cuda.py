"""The worker with batches in flight: both are the product's; CUDA, ONNX Runtime and PyTorch are puppets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import NO_MEMORY, PuppetCudart, PuppetSession
from tests.pipelined_puppets import PipelinedJoined
from tests.puppets import ROWS, answer_of, doubled
from tests.torch_puppets import PuppetTorch

from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.runtimes.cuda import CudaRuntime
from stoker.runtimes.onnx.capture import SessionGraphs
from stoker.runtimes.pipeline import Graphs, PipelinedExecution
from stoker.runtimes.torch.cuda import TorchGraphs

SIZES = (1, 2, 4, 8)


class Card:
    """A GPU on which straight copies are the cheaper ones, and the model that is captured on it.

    Attributes:
        model: Its `most_rows` are those for which there is memory.
    """

    shares_memory = True

    def __init__(self, most_rows: int = 8, framework: str = "onnx") -> None:
        self.cudart = PuppetCudart()
        self.session = PuppetSession(self.cudart, most_rows)
        self.torch = PuppetTorch(self.cudart)
        self.torch.most_rows, self.torch.refuses_capture = most_rows, framework == "torch eager"
        self.model: Any = self.session if framework == "onnx" else self.torch
        graphs: Graphs = SessionGraphs(self)
        if framework != "onnx":
            graphs = TorchGraphs(self.torch, self.torch.compute, 1, captures=framework == "torch graph")
        self.runtime: Any = PipelinedExecution(
            "doubler", ROWS, CudaRuntime(self.cudart), graphs, SIZES, 8, 2, self.clock_ns
        )
        # The calls of CUDA show progress.
        self.runtime.batches = self.cudart.calls

    def open(self, rows: int, stream: int) -> Any:
        self.session.stream = stream
        return self.session

    def close(self, rows: int) -> None:
        pass

    def clock_ns(self) -> int:
        gathered = sum(call[0] == "to_device" and call[2] in self.cudart.host for call in self.cudart.calls)
        return len(self.cudart.calls) + 1000 * gathered

    def serve(self, frontends: int = 2) -> PipelinedJoined:
        return PipelinedJoined(
            self.runtime,
            frontends=frontends,
            policy=BatchPolicy(8),
            capacity=64,
            sizes=BatchSizes(SIZES),
        )


@pytest.mark.parametrize("framework", ["onnx", "torch graph", "torch eager"])
@pytest.mark.parametrize("seed", range(4))
def test_callers_get_the_answers_of_their_rows(seed: int, framework: str) -> None:
    """Holds for two frontends, requests of all sizes, and any streams that run ahead."""
    random = np.random.default_rng(seed)
    card = Card(framework=framework)
    card.cudart.eager = set(random.permutation(sorted(card.cudart.queues))[:seed].tolist())
    with card.serve() as joined:
        joined.completes = False
        assert len(card.cudart.registered) == 2
        submitted = []
        for _ in range(60):
            if random.random() < 0.5:
                first = random.integers(0, 1000, int(random.integers(1, 9))).tolist()
                submitted.append((joined.submit(*first, frontend=int(random.integers(2))), first))
            joined.turn_frontends()
            joined.turn_device()
            if random.random() < 0.4:
                joined.complete(1)
        joined.completes = True
        joined.settle()
        for ticket, first in submitted:
            assert answer_of(ticket) == doubled(*first)


@pytest.mark.parametrize("framework", ["onnx", "torch graph"])
def test_a_frontend_dies_while_the_device_copies_its_rows(framework: str) -> None:
    """Its memory is released when nothing reads it any more, which the puppet checks; others are answered."""
    card = Card(framework=framework)
    with card.serve() as joined:
        joined.completes = False
        lost, kept = joined.submit(1, frontend=0), joined.submit(2, frontend=1)
        joined.turn_frontends()
        joined.turn_device()
        joined.kill_frontend(0)
        joined.turn_device()
        assert len(card.cudart.registered) == 2
        joined.completes = True
        joined.settle()
        assert len(card.cudart.registered) == 1
        assert answer_of(kept) == doubled(2)
        assert lost.completions == 0


@pytest.mark.parametrize("framework", ["onnx", "torch eager"])
def test_a_batch_without_memory_runs_in_parts(framework: str) -> None:
    """A replay of ONNX Runtime, or kernels of PyTorch, may need memory that another model has taken meanwhile."""
    card = Card(framework=framework)
    with card.serve() as joined:
        card.model.most_rows = 4
        ticket = joined.submit(*range(8))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(8))
        assert joined.totals().batch_cap_rows == 4


@pytest.mark.parametrize("framework", ["onnx", "torch graph"])
def test_batches_of_sizes_that_were_not_prepared_are_answered(
    framework: str, caplog: pytest.LogCaptureFixture
) -> None:
    """There was no memory for them at the load."""
    card = Card(most_rows=4, framework=framework)
    assert NO_MEMORY in caplog.text or "CUDA out of memory" in caplog.text
    assert tuple(card.runtime.sizes) == (1, 2, 4)
    with card.serve() as joined:
        ticket = joined.submit(*range(8))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(8))


@pytest.mark.parametrize("framework", ["onnx", "torch graph"])
def test_rows_of_a_copy_that_fails_are_run_again_by_themselves(framework: str) -> None:
    """Gathered in memory that is not registered; nothing of the batch is left in flight."""
    card = Card(framework=framework)
    with card.serve() as joined:
        joined.completes = False
        ticket = joined.submit(1, 2, 3)
        joined.turn_frontends()
        card.cudart.failing["cudaMemcpyBatchAsync"] = card.cudart.failing["cudaMemcpyAsync"] = 1
        joined.turn_device()
        card.cudart.failing.clear()
        joined.complete()
        joined.completes = True
        joined.settle()
        assert answer_of(ticket) == doubled(1, 2, 3)


@pytest.mark.parametrize("framework", ["torch graph", "torch eager"])
def test_answers_that_are_not_finite_stay_with_their_row(framework: str) -> None:
    """NaN in a row is an answer of that row; its companions have theirs."""
    card = Card(framework=framework)
    with card.serve() as joined:
        first, second = joined.submit(float("nan")), joined.submit(3)
        joined.settle()
        assert np.isnan(np.array(answer_of(first))).all()
        assert answer_of(second) == doubled(3)


@pytest.mark.parametrize("framework", ["torch graph", "torch eager"])
def test_a_replay_that_fails_is_run_again_in_parts(framework: str) -> None:
    """All its rows are answered once the device computes again."""
    card = Card(framework=framework)
    with card.serve() as joined:
        joined.completes = False
        ticket = joined.submit(1, 2, 3)
        joined.turn_frontends()
        card.torch.run_fails = RuntimeError("CUDA error: unspecified launch failure")
        joined.turn_device()
        card.torch.run_fails = None
        joined.complete()
        joined.completes = True
        joined.settle()
        assert answer_of(ticket) == doubled(1, 2, 3)
