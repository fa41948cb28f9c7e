"""Batches for which a device has no memory: smaller ones follow, and only rows that fit nowhere fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.puppets import TEXTS, Joined, PuppetRuntime, rows_of

from stoker.deployment import Deployment, Device
from stoker.device import first_batches, loading, runtime_loading
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary, first_row
from stoker.errors import DeviceOutOfMemory, LoadFailed
from stoker.runtimes.base import OutOfMemory, RowFailure, Runtime
from stoker.system.processes import ExitCode
from stoker.tensors import Signature, TensorSpec


def sizes_of(joined: Joined) -> list[int]:
    """How many rows each batch had that the model was given."""
    return [len(batch) for batch in joined.runtime.batches]


def test_a_batch_that_does_not_fit_is_run_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    """All callers get their answers; each halving is logged once, and no part above the new cap is tried."""
    with Joined(policy=BatchPolicy(16)) as joined:
        joined.runtime.fits_rows = 4
        tickets = [joined.submit(number, number + 100) for number in range(8)]
        joined.settle()
        for number, ticket in enumerate(tickets):
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == (rows_of(number, number + 100)[0] * 2).tolist()
        assert sizes_of(joined) == [16, 8, 4, 4, 4, 4]
        assert [record.getMessage().partition("at most ")[2] for record in caplog.records] == [
            "8 rows, not 16",
            "4 rows, not 8",
        ]
        assert joined.totals().batch_cap_rows == 4


def test_later_batches_keep_below_the_cap() -> None:
    """The cap stays as it is until the process is started again."""
    with Joined(capacity=64, policy=BatchPolicy(16)) as joined:
        assert joined.totals().batch_cap_rows == 16
        joined.runtime.fits_rows = 8
        joined.submit(*range(8), *range(8))
        joined.settle()
        joined.runtime.batches.clear()
        joined.runtime.fits_rows = 16
        joined.submit(*range(8), *range(8))
        joined.settle()
        assert sizes_of(joined) == [8, 8]


def test_a_small_batch_that_does_not_fit_halves_the_cap_once() -> None:
    """Memory that is short for a moment does not make all later batches tiny."""
    with Joined(policy=BatchPolicy(16)) as joined:
        joined.runtime.fits_rows = 1
        joined.submit(1, 2)
        joined.settle()
        assert sizes_of(joined) == [2, 1, 1]
        assert joined.totals().batch_cap_rows == 8


def test_instances_that_run_out_at_once_halve_the_cap_once() -> None:
    """Both batches were too large together, though half of one may fit. The cap is never below one row."""
    with Joined(policy=BatchPolicy(4)) as joined:
        cap = joined.worker.cap
        for seen_rows, expected in ((4, 2), (4, 2), (2, 1), (2, 1), (1, 1)):
            cap.halve(seen_rows)
            assert (cap.rows, cap.policy.max_batch_rows) == (expected, expected)


def test_with_buckets_the_cap_is_one_of_them() -> None:
    """Else batches below the cap would be filled up above it."""
    with Joined(policy=BatchPolicy(12), sizes=BatchSizes((2, 5, 12))) as joined:
        joined.runtime.fits_rows = 5
        ticket = joined.submit(*range(7))
        joined.settle()
        assert sizes_of(joined) == [12, 5, 2]
        assert joined.totals().batch_cap_rows == 5
        assert ticket.answer is not None


def test_a_row_without_memory_gets_device_out_of_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Its caller gets 503 and an id under which the log has the reason; then the canary decides about the device."""
    ends: list[ExitCode] = []

    def answered_first(code: ExitCode) -> None:
        joined.turn_frontends()
        assert ticket.completions == 1
        ends.append(code)

    canary = Canary(
        first_row(PuppetRuntime().signature, BatchSizes()), end_process=answered_first, sleep=lambda _: None
    )
    with Joined(canary=canary) as joined:
        joined.runtime.fits_rows = 0
        ticket = joined.submit(1)
        joined.settle()
        assert isinstance(ticket.error, DeviceOutOfMemory)
        assert (ticket.error.status, ticket.error.code) == (503, "device_out_of_memory")
        assert f"error id {ticket.error.error_id}: MainThread: the device has no memory" in caplog.text
        assert ends == [ExitCode.CANARY_FAILED]
        # It was tried again, for what was in its way may have gone; so was the canary.
        assert [batch[0][0] for batch in joined.runtime.batches] == [1, 1, 0, 0, 0]


def test_a_device_with_memory_for_the_canary_goes_on() -> None:
    """Rows that fit nowhere fail, all of them in one batch with one canary; others are answered."""
    ends: list[ExitCode] = []
    canary = Canary(first_row(PuppetRuntime().signature, BatchSizes()), end_process=ends.append)
    with Joined(canary=canary) as joined:

        def only_zeros_fit() -> None:
            joined.runtime.fits_rows = 0 if any(row[0] for row in joined.runtime.batches[-1]) else 1

        joined.runtime.during = only_zeros_fit
        tickets = [joined.submit(number) for number in (1, 2, 3)]
        joined.settle()
        assert [ticket.failure() for ticket in tickets] == [DeviceOutOfMemory] * 3
        assert ends == []
        assert [batch for batch in joined.runtime.batches if batch == [[0, 0]]] == [[[0, 0]]]


def test_a_packed_request_without_memory_gets_device_out_of_memory() -> None:
    """Models of free sizes run requests in parts by themselves; what is left fails alone, as out of memory."""
    runtime = PuppetRuntime(TEXTS, lambda _: [[b"1", RowFailure(OutOfMemory("too large"))]])
    with Joined(runtime) as joined:
        tickets = [joined.submit(number) for number in (1, 2)]
        joined.settle()
        assert tickets[0].texts == [b"1"]
        assert tickets[1].failure() is DeviceOutOfMemory


def model_of(monkeypatch: pytest.MonkeyPatch, runtime: PuppetRuntime) -> Deployment:
    """A model that is loaded as this runtime."""
    monkeypatch.setattr(runtime_loading, "_loader", lambda _: lambda *_: runtime)
    return Deployment("vast", 1, "onnx", Path("model.onnx"), Path(), 8, 1000)


@pytest.mark.parametrize("side", ["inputs", "outputs"])
def test_a_row_that_no_memory_holds_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    """On either side of the model, with its size."""
    small, vast = TensorSpec("a", "float32", (1,)), TensorSpec("b", "float32", (1 << 45,))
    sides = ((vast,), (small,)) if side == "inputs" else ((small,), (vast,))
    runtime = PuppetRuntime(Signature(*sides))
    deployment = model_of(monkeypatch, runtime)
    with pytest.raises(
        LoadFailed, match=r"no memory for one row of vast: a batch of 1 row would take 131,072\.0 GiB"
    ):
        loading.load(deployment, Device("cpu", 0, "CPU"))
    assert not runtime.batches


def test_batches_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batches are smaller where the largest would not fit, as on a device."""
    monkeypatch.setattr(first_batches, "require_memory", refuse_beyond(4 * 16))
    runtime = PuppetRuntime()
    assert loading.load(model_of(monkeypatch, runtime), Device("cpu", 0, "CPU")).max_batch_rows == 4
    assert max(len(batch) for batch in runtime.batches) == 4


def refuse_beyond(most_bytes: int) -> Callable[[int, str], None]:
    """Return a check of the memory that refuses more bytes than these."""

    def require(size_bytes: int, purpose: str) -> None:
        if size_bytes > most_bytes:
            raise MemoryError(f"{purpose} would take {size_bytes} bytes")

    return require


def test_out_of_memory_at_load_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the model, for there may be several."""

    def fails(*_: object) -> Runtime:
        raise MemoryError("two rows would take 9 GiB")

    monkeypatch.setattr(runtime_loading, "_loader", lambda _: fails)
    with pytest.raises(LoadFailed, match="vast: two rows would take 9 GiB; give its inputs smaller sizes"):
        runtime_loading.load_runtime(
            Deployment("vast", 1, "onnx", Path(), Path(), 8, 1000), Device("cpu", 0, "CPU")
        )
