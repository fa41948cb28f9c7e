"""The choice of an execution by measuring; puppets take their time by a hand clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.cuda_puppets import DOUBLES, PuppetRows

from stoker.errors import LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.runtimes.base import OutOfMemory
from stoker.runtimes.execution_choice import choose_fastest, feasible_sizes, sample_rows
from stoker.tensors import TensorSpec

MS = 1_000_000


def clocked() -> tuple[list[int], Any]:
    """Return the time in ns, and a clock that reads it."""
    clock = [0]
    return clock, lambda: clock[0]


def test_fastest_execution_over_both_ends_is_chosen_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Relative gains count: half the time of the small batch outweighs a quarter more of the large one."""
    caplog.set_level("DEBUG")
    clock, read = clocked()
    plain = PuppetRows(clock, {1: 2 * MS, 2: 0, 8: 8 * MS})
    halved = PuppetRows(clock, {1: MS, 2: 0, 8: 10 * MS})
    slower = PuppetRows(clock, {1: MS // 2, 2: 0, 8: 40 * MS})
    candidates = {"bound": lambda: halved, "graph": lambda: slower}
    assert choose_fastest("digits", plain, candidates, [1, 2, 8], read) is halved
    assert (
        "digits: execution bound; ms for batches of 1 and 8 rows: "
        "copied 2.000 / 8.000, bound 1.000 / 10.000, graph 0.500 / 40.000"
    ) in caplog.text


def test_plain_calls_stay_if_nothing_is_faster() -> None:
    """They stay in a draw too."""
    clock, read = clocked()
    plain = PuppetRows(clock, {4: MS})
    assert choose_fastest("digits", plain, {"bound": lambda: PuppetRows(clock, {4: MS})}, [4], read) is plain


def test_one_slow_run_does_not_decide() -> None:
    """The median decides."""
    clock, read = clocked()

    class Hiccup(PuppetRows):
        runs = 0

        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            self.runs += 1
            self.clock[0] += 1000 * MS if self.runs == 5 else 0
            return super().run(inputs)

    hiccup = Hiccup(clock, {4: MS})
    assert (
        choose_fastest("digits", PuppetRows(clock, {4: 2 * MS}), {"bound": lambda: hiccup}, [4], read)
        is hiccup
    )


def test_cost_of_changing_sizes_is_part_of_the_measured_time() -> None:
    """ONNX Runtime plans convolutions for each new size, so trials change the size."""
    clock, read = clocked()

    class Replanning(PuppetRows):
        planned_for = 0

        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            rows = len(inputs[0])
            self.clock[0] += 50 * MS if rows != self.planned_for else 0
            self.planned_for = rows
            return super().run(inputs)

    plain = PuppetRows(clock, {1: 2 * MS, 8: 9 * MS})
    replanning = Replanning(clock, {1: MS, 8: 8 * MS})
    assert choose_fastest("pictures", plain, {"bound": lambda: replanning}, [1, 8], read) is plain
    assert choose_fastest("pictures", plain, {"bound": lambda: replanning}, [8], read) is replanning


def fail() -> Any:
    raise RuntimeError("this session cannot use the graph capture feature")


def test_execution_with_other_answers_or_an_error_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """It is not chosen, although it is faster; the log has the reason."""
    caplog.set_level("INFO")
    clock, read = clocked()
    plain = PuppetRows(clock, {4: 9 * MS})
    wrong = PuppetRows(clock, {4: MS}, factor=2.1)
    chosen = choose_fastest("digits", plain, {"bound": lambda: wrong, "graph": fail}, [4], read)
    assert chosen is plain
    assert "digits: execution bound is left out: its outputs for 4 rows differ by 0.05" in caplog.text
    assert "digits: execution graph is left out: this session cannot use the graph capture" in caplog.text


def test_execution_with_other_answers_for_one_size_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Each size has its own graph, and one between the ends may be wrong."""
    caplog.set_level("INFO")
    clock, read = clocked()

    class WrongForTwo(PuppetRows):
        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            (output,) = super().run(inputs)
            output += len(output) == 2
            return [output]

    plain = PuppetRows(clock, {1: 9 * MS, 2: 9 * MS, 4: 9 * MS})
    wrong = WrongForTwo(clock, {1: MS, 2: MS, 4: MS})
    assert choose_fastest("digits", plain, {"graph": lambda: wrong}, [4, 2, 1], read) is plain
    assert "execution graph is left out: its outputs for 2 rows differ" in caplog.text


def test_a_candidate_that_breaks_the_device_is_named() -> None:
    """After an illegal access nothing runs any more in the process; the message has the setting."""
    clock, read = clocked()
    failures: list[Exception] = []

    class OnOneDevice(PuppetRows):
        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            if failures:
                raise failures[0]
            outputs: list[np.ndarray] = super().run(inputs)
            return outputs

    def breaking() -> Any:
        failures.append(RuntimeError("CUDA failure 700: an illegal memory access was encountered"))
        raise failures[0]

    plain = OnOneDevice(clock, {4: 9 * MS})
    with pytest.raises(
        LoadFailed, match=r"since execution graph was tried \(CUDA failure 700.*set execution: copied"
    ):
        choose_fastest("pictures", plain, {"graph": breaking}, [4], read)


class Stale(PuppetRows):
    """Repeats its first answers, as a binding that copied its input once."""

    first: Any = None

    def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        self.first = super().run(inputs) if self.first is None else self.first
        return self.first


def test_a_runtime_that_repeats_its_first_answer_is_left_out() -> None:
    """It is compared on two different batches."""
    clock, read = clocked()
    plain = PuppetRows(clock, {4: 9 * MS})
    assert choose_fastest("digits", plain, {"bound": lambda: Stale(clock, {4: MS})}, [4], read) is plain


def test_forced_execution_is_used_or_fails() -> None:
    """A forced execution is used even if it is slower; if it is wrong or impossible, loading fails."""
    clock, read = clocked()
    plain = PuppetRows(clock, {4: MS})
    slow = PuppetRows(clock, {4: 2 * MS})
    assert choose_fastest("digits", plain, {"graph": lambda: slow}, [4], read, forced=True) is slow
    with pytest.raises(LoadFailed, match="digits cannot run with execution: graph: this session cannot"):
        choose_fastest("digits", plain, {"graph": fail}, [4], read, forced=True)
    wrong = PuppetRows(clock, {4: MS}, factor=3)
    with pytest.raises(LoadFailed, match=r"differ by 0\.5 from those of plain calls"):
        choose_fastest("digits", plain, {"graph": lambda: wrong}, [4], read, forced=True)


def test_a_runtime_with_buffers_is_measured_with_its_rows_in_them() -> None:
    """The worker gathers rows in these buffers."""
    clock, read = clocked()

    class Buffered(PuppetRows):
        def buffers(self) -> list[np.ndarray]:
            return [self.buffer]

        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            self.seen.append(np.shares_memory(inputs[0], self.buffer))
            return super().run(inputs)

    buffered = Buffered(clock, {4: MS})
    buffered.buffer, buffered.seen = np.zeros((8, 3), np.float32), []
    choose_fastest("digits", PuppetRows(clock, {4: 2 * MS}), {"bound": lambda: buffered}, [4], read)
    assert buffered.seen == [False, False, *[True] * 8]


def test_sizes_that_the_device_has_no_memory_for_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """The largest that runs is the last; the list may be empty."""

    class Small(PuppetRows):
        def run(self, inputs: Sequence[Any]) -> list[np.ndarray]:
            if len(inputs[0]) > self.most_rows:
                raise OutOfMemory("no more")
            return super().run(inputs)

    small = Small([0], {1: 0, 2: 0, 4: 0})
    small.most_rows = 4
    assert feasible_sizes("digits", small, [8, 1, 4, 16]) == [1, 4]
    assert "digits: the device has no memory for 16 rows: no more" in caplog.text
    small.most_rows = 0
    assert feasible_sizes("digits", small, [8, 1]) == []


def array(*values: float) -> list[np.ndarray]:
    return [np.array(values, np.float32)]


@pytest.mark.parametrize(
    ("outputs", "expected", "difference"),
    [
        (array(1, 2), array(1, 2), 0),
        (array(1, 3), array(1, 4), 0.25),
        (array(float("nan"), 4), array(float("nan"), 4), 0),
        (array(float("nan"), 4), array(1, 4), float("inf")),
        (array(1, float("inf")), array(1, float("nan")), float("inf")),
        (array(1), array(1, 2), float("inf")),
        ([np.array([1])], [np.array([1])], 0),
        ([np.array([1])], [np.array([2])], float("inf")),
        ([np.array([1.0])], array(1), float("inf")),
        (array(), array(), 0),
    ],
)
def test_differences_are_relative_to_the_largest_number(
    outputs: list[np.ndarray], expected: list[np.ndarray], difference: float
) -> None:
    """Shapes, types, whole numbers and what is not finite must be the same."""
    assert largest_difference(outputs, expected) == difference


def test_samples_are_the_same_for_a_seed_and_others_for_another() -> None:
    """Integers are small enough to be indices; rows beyond the first few repeat."""
    specs = (*DOUBLES.inputs, TensorSpec("i", "int64", ()))
    first, again, other = sample_rows(specs, 20, 1), sample_rows(specs, 20, 1), sample_rows(specs, 20, 2)
    assert [sample.shape for sample in first] == [(20, 3), (20,)]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    assert set(first[1].tolist()) <= {0, 1}
    assert [sample.dtype for sample in first] == [np.float32, np.int64]
