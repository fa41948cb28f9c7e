"""The canary: after failures and in idle times, one made-up row decides whether the device still computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.puppets import ROWS, Joined, PuppetRuntime, rows_of

from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary, first_row
from stoker.errors import DeviceLost, InvalidInput, ModelFailed
from stoker.runtimes.base import RowFailure
from stoker.system.processes import ExitCode
from stoker.tensors import ModelTensors, Signature, TensorInfo, TensorSpec
from stoker.wire.packed import unpack

ZEROS = [[0, 0]]
IDLE_MS = Canary.idle_ns / 1e6


class ProcessEnded(BaseException):
    """A puppet process has ended."""


class Cage:
    """A canary that notes how it ends its process, and how long it waited."""

    def __init__(self, signature: Signature = ROWS, sizes: BatchSizes | None = None) -> None:
        self.ends: list[ExitCode] = []
        self.waits_s: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None
        inputs = first_row(signature, sizes or BatchSizes())
        self.canary = Canary(inputs, end_process=self._end, sleep=self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.waits_s.append(seconds)
        self.meanwhile()

    def _end(self, code: ExitCode) -> None:
        self.ends.append(code)
        raise ProcessEnded


def raising(error: Exception) -> Callable[[], None]:
    """Return a function that raises in the middle of each run."""

    def during() -> None:
        raise error

    return during


def test_a_bad_row_costs_one_canary() -> None:
    """The device computes on, other rows are answered, and the canary is not run again for parts of the batch."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:
        joined.runtime.fails_for = {3}
        tickets = [joined.submit(number) for number in range(1, 5)]
        joined.settle()
        assert [ticket.failure() for ticket in tickets] == [None, None, ModelFailed, None]
        assert joined.runtime.batches[1] == ZEROS
        assert joined.runtime.batches.count(ZEROS) == 1
        assert cage.ends == []


def test_a_device_that_fails_for_good_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    """No caller is blamed: the process ends, and rows in flight get the error of a lost device."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:
        joined.runtime.during = raising(RuntimeError("CUDA error 700: an illegal memory access"))
        tickets = [joined.submit(number) for number in (1, 2)]
        joined.turn_frontends()
        with pytest.raises(ProcessEnded):
            joined.turn_device()
        assert cage.ends == [ExitCode.CANARY_FAILED]
        assert joined.runtime.batches == [rows_of(1, 2)[0].tolist(), ZEROS, ZEROS, ZEROS]
        assert "an illegal memory access" in caplog.text
        assert "does not even compute one row of zeros" in caplog.text
        joined.kill_device()
        joined.settle()
        assert [ticket.failure() for ticket in tickets] == [DeviceLost] * 2


def test_a_canary_that_was_only_hit_by_chance_is_sent_again() -> None:
    """Another thread of the process may have disturbed it, so it is tried three times, with pauses."""
    cage = Cage()
    runtime = PuppetRuntime()
    runtime.during = raising(RuntimeError("a graph is being captured"))

    def recover() -> None:
        if len(cage.waits_s) == 2:
            runtime.during = lambda: None

    cage.meanwhile = recover
    cage.canary.check(runtime)
    assert (cage.ends, cage.waits_s, len(runtime.batches)) == ([], [0.5, 0.5], 3)


def test_input_that_the_model_refuses_needs_no_canary() -> None:
    """The caller is to blame, not the device."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:
        joined.runtime.during = raising(InvalidInput("5 by 7 cannot be multiplied"))
        joined.submit(1)
        joined.settle()
        assert ZEROS not in joined.runtime.batches


def test_an_idle_model_sends_the_canary_now_and_then() -> None:
    """After ten seconds without a batch, and every ten seconds; a batch counts as well as a canary."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:

        def canaries_after_ms(elapsed_ms: float) -> int:
            joined.clock.advance_ms(elapsed_ms)
            joined.turn_device()
            return joined.runtime.batches.count(ZEROS)

        assert canaries_after_ms(IDLE_MS - 1) == 0
        assert canaries_after_ms(1) == 1
        assert canaries_after_ms(0) == 1
        assert canaries_after_ms(IDLE_MS - 1) == 1
        joined.submit(1)
        joined.settle()
        assert canaries_after_ms(1) == 1
        assert canaries_after_ms(IDLE_MS) == 2
        assert joined.worker.wait_s(None) == pytest.approx(IDLE_MS / 1e3)


def test_rows_that_wait_come_before_the_canary() -> None:
    """The batch shows as well that the device computes."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:
        joined.clock.advance_ms(IDLE_MS)
        joined.submit(1)
        joined.settle()
        assert joined.runtime.batches == [rows_of(1)[0].tolist()]


def test_a_device_that_fails_while_idle_ends_the_process() -> None:
    """The failure is found before a caller comes."""
    cage = Cage()
    with Joined(canary=cage.canary) as joined:
        joined.runtime.during = raising(RuntimeError("the GPU has fallen off the bus"))
        joined.clock.advance_ms(IDLE_MS)
        with pytest.raises(ProcessEnded):
            joined.turn_device()
        assert cage.ends == [ExitCode.CANARY_FAILED]


def test_without_a_canary_an_idle_worker_sleeps_until_somebody_rings() -> None:
    """On the CPU no row is made up."""
    with Joined() as joined:
        joined.clock.advance_ms(10 * IDLE_MS)
        joined.turn_device()
        assert joined.runtime.batches == []
        assert joined.worker.wait_s(None) is None


def test_the_canary_has_the_size_of_the_smallest_bucket() -> None:
    """The GPU is prepared for that size."""
    inputs = first_row(ROWS, BatchSizes((4, 8)))
    assert [array.shape for array in inputs] == [(4, 2)]
    assert not inputs[0].any()


def test_a_packed_canary_is_one_request() -> None:
    """A model of free sizes gets a made-up request, and a failure of that is one of the device."""
    tensors = ModelTensors(
        (TensorInfo("x", "float32", (-1, -1)),), (TensorInfo("y", "float32", (-1,)),), True
    )
    row = (TensorSpec("tensors", "uint8", (1000,), variable=True),)
    signature = Signature(row, row, takes="tensors", tensors=tensors)
    ((packed,),) = first_row(signature, BatchSizes())
    assert unpack(packed)["x"].shape == (1, 8)

    def failing(_: Any) -> Any:
        return [[RowFailure(RuntimeError("CUDA error 700"))]]

    cage = Cage(signature)
    with pytest.raises(ProcessEnded):
        cage.canary.check(PuppetRuntime(signature, failing))
    assert cage.canary.failure(PuppetRuntime(signature, lambda _: [[b"fine"]])) is None


def test_a_packed_request_that_fails_sends_the_canary() -> None:
    """Its failure is that of its row, not of the batch; it may lie in the device all the same."""
    signature = Signature(ROWS.inputs, (TensorSpec("y", "uint8", (64,), variable=True),))
    cage = Cage(signature)

    def answer(inputs: Any) -> Any:
        return [[RowFailure(RuntimeError("CUDA error 700")) if np.any(row) else b"0" for row in inputs[0]]]

    with Joined(PuppetRuntime(signature, answer), canary=cage.canary) as joined:
        ticket = joined.submit(1)
        joined.settle()
        assert ticket.failure() is ModelFailed
        assert joined.runtime.batches == [rows_of(1)[0].tolist(), ZEROS]
