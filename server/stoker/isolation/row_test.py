"""Tests without a tolerance whether a row's answer depends on the rows beside it.

Batches of one shape run the same kernels, whatever numbers they hold. So, if rows do not affect each other, the
answer to a row at one position is bit-identical whatever the other rows are. Answers alone and in a batch may differ,
because other shapes run other kernels: that is a question of accuracy, not of isolation.

See decision 20.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from stoker.isolation.companions import NON_FINITE, Companions, Row, same_rows
from stoker.isolation.difference import largest_difference, same_bits
from stoker.isolation.made_up_rows import made_up_rows
from stoker.isolation.model_errors import in_one_line
from stoker.isolation.noise import Noisy, measure_noise
from stoker.tensors import TensorInfo

Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""A model as a function of named tensors; their first axes are the batch axis."""

_BUDGET_S: Final = 0.025
"""The time for optional tests after the mandatory ones."""
_SLOW_ROW_S: Final = 0.01
_TELLING: Final = ("nan", "huge", "negative", "infinite", "high", "long", "empty")
"""The kinds that suffice for a slow model whose graph is already known to keep rows apart."""
_OTHER_ANSWER: Final = 1e-2
"""Relative to the output: kernels of other shapes do not differ by this much for every row."""
_MOST_BATCH_BYTES: Final = 64 << 20
_MUCH_LONGER: Final = 20


class Evidence(Struct, frozen=True):
    """The result of testing rows.

    Attributes:
        finding: `apart` if no answer changed with the rows beside it, `mixed` if one did or if outputs have not one
            answer for each row, `unknown` if the model refused all made-up rows.
        reason: The reason why it is not `apart`, shown to the operator; else empty.
        non_finite: Whether NaN and infinities were among the companions, or cannot occur in the inputs.
        difference: The largest difference between an answer alone and in a batch, relative to the largest number of
            its output; None if nothing was compared.
        has_rows: Whether each output had one entry for each row in all batches.
    """

    finding: Literal["apart", "mixed", "unknown"]
    reason: str = ""
    companions: int = 0
    non_finite: bool = False
    difference: float | None = None
    has_rows: bool = True


class _Mixed(Exception):
    """Rows affect each other; the message says how that was detected."""


class _NoRows(_Mixed):
    """An output has not one entry for each row."""


def try_rows(
    run: Run,
    inputs: Sequence[TensorInfo],
    sizes: Sequence[int],
    sample: Mapping[str, np.ndarray] | None = None,
    *,
    proven: bool = False,
    clock_s: Callable[[], float] = time.perf_counter,
) -> Evidence:
    """Put companions beside rows, and compare the answers.

    Args:
        inputs: Its inputs; the first axis of each is the batch axis.
        sizes: Batch sizes to test, in addition to 2 and 3.
        sample: Rows that the model is known to answer, `[rows, ...]` of each input; None to make up rows.
        proven: Whether the graph is known to keep rows apart: then a slow model is tested with few batches.
    """
    if sample is None:
        candidates = made_up_rows(inputs)
    else:
        rows = len(next(iter(sample.values())))
        picked = [
            {name: array[place : place + 1] for name, array in sample.items()}
            for place in range(min(rows, 3))
        ]
        candidates = iter([Companions(picked)])
    test, refusal = None, ""
    for companions in candidates:
        try:
            test = _RowTest(run, companions, clock_s)
            break
        except _Mixed as mixed:
            return Evidence("mixed", str(mixed), has_rows=not isinstance(mixed, _NoRows))
        except Exception as error:  # noqa: BLE001  # a model may raise anything for made-up rows
            refusal = refusal or in_one_line(error)
    if test is None:
        return Evidence("unknown", refusal)
    try:
        test.compare_all(sizes, proven=proven)
    except _Mixed as mixed:
        has_rows = not isinstance(mixed, _NoRows)
        return Evidence("mixed", str(mixed), test.compared, test.non_finite, test.difference, has_rows)
    except Noisy:
        return Evidence("unknown", "equal batches get different answers", test.compared, test.non_finite)
    if not test.compared:
        return Evidence("unknown", "it refuses all other rows that were made up")
    return Evidence("apart", "", test.compared, test.non_finite, test.difference)


class _RowTest:
    """The test of one model with rows that it accepts.

    Attributes:
        compared: The number of batches in which an answer was compared.
        noise: The largest difference between answers to equal batches, relative to the output; 0 if bit-identical.
        difference: As in `Evidence`.
    """

    def __init__(self, run: Run, companions: Companions, clock_s: Callable[[], float]) -> None:
        self._model = run
        self._clock_s = clock_s
        self._rows: list[Row] = list(companions.rows)
        self._ordinary = range(len(self._rows))
        self._companions = companions
        self._beside: dict[str, Row] = {}
        self._references: dict[tuple[int, int, int], list[np.ndarray]] = {}
        self._row_s = 0.0
        self.compared = 0
        self.noise = 0.0
        self.difference: float | None = None
        self._alone = {0: _at(self._run([self._rows[0]]), 0)}
        try:
            first = self._run([self._rows[0], self._rows[1]])
        except _Mixed:
            raise
        except Exception as error:
            raise _Mixed(f"it takes one row, and fails on a batch of two: {in_one_line(error)}") from error
        self._names = list(first)
        self._references[2, 0, 0] = _at(first, 0)

    @property
    def non_finite(self) -> bool:
        """Whether NaN and infinities were put beside rows, or cannot occur in the inputs."""
        return not self._companions.takes_floats or all(kind in self._beside for kind in NON_FINITE)

    def _run(self, rows: Sequence[Row]) -> Mapping[str, np.ndarray]:
        feeds = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        begun_s = self._clock_s()
        outputs = self._model(feeds)
        # Each run overwrites the time: the first ones include one-time costs such as the choice of kernels.
        self._row_s = (self._clock_s() - begun_s) / len(rows)
        # The number of answers may depend on the contents of other rows; then the first answers look right.
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != len(rows):
                shape = list(array.shape)
                raise _NoRows(
                    f"output {name!r} has shape {shape} for a batch of {len(rows)}, no answer for each row"
                )
        return outputs

    def compare_all(self, sizes: Sequence[int], *, proven: bool) -> None:
        """Run the mandatory tests, then further ones while there is time."""
        slow = self._row_s > _SLOW_ROW_S
        kinds = self._companions.kinds()
        if slow and proven:
            self._find_companions([kind for kind in kinds if kind in _TELLING] or kinds)
            self._compare_alone()
            return
        self._find_companions(kinds)
        # The first batch of two may have included one-time costs.
        slow = self._row_s > _SLOW_ROW_S
        found = list(self._beside)
        if not found:
            return
        for place in (0, 1):
            self._compare(2, place, 1, *found[:2])
        for beside in (found[:3], found[3:]) if slow else [[kind] for kind in found]:
            # The sum over one text may be taken in the same order whatever is beside it, so several texts are tested.
            for row in self._ordinary if self._companions.takes_texts and not proven else (0,):
                self._compare(3, 1, row, *beside)
        if not (slow or proven):
            self._compare_companions(found)
        begun_s = self._clock_s()
        for size, place, row, pair in self._further(sizes):
            if self._clock_s() - begun_s + size * self._row_s > _BUDGET_S:
                if size * self._row_s > _BUDGET_S:
                    continue
                break
            self._compare(size, place, row, *pair)
        self._compare_alone()

    def _find_companions(self, kinds: Sequence[str]) -> None:
        """Find, for each kind, the most extreme companion that the model accepts."""
        for kind in kinds:
            usual_s = self._row_s
            for row in self._companions.grades(kind):
                if same_rows(row, self._rows[1]):
                    continue
                place = len(self._beside) % 2
                if not self._compare_beside(2, place, 0, [row], f"a row of the kind {kind!r}"):
                    break
                self._beside[kind] = row
                if self._row_s > _MUCH_LONGER * max(usual_s, 1e-4):
                    # The model allocates in proportion to the number: the next step could use up all memory.
                    break

    def _compare_companions(self, kinds: Sequence[str]) -> None:
        """Compare the answers to companions too: possibly only an unusual row is affected."""
        for number, kind in enumerate(kinds):
            if kind != "same":
                self._rows.append(self._beside[kind])
                self._compare(3, 1, len(self._rows) - 1, kinds[number - 1], kinds[(number + 1) % len(kinds)])

    def _further(self, sizes: Sequence[int]) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
        kinds = list(self._beside)
        row_bytes = sum(array.nbytes for array in self._rows[0].values())
        wanted = [size for size in sorted({3, *sizes}) if size > 2 and size * row_bytes <= _MOST_BATCH_BYTES]
        for turn in range(len(kinds)):
            for number, size in enumerate(wanted):
                for position, place in enumerate((0, size // 2, size - 1)):
                    first = kinds[(turn + number + position) % len(kinds)]
                    second = kinds[(turn + number + 2 * position + 1) % len(kinds)]
                    yield size, place, (turn + position) % len(self._ordinary), (first, second)

    def _compare(self, size: int, place: int, row: int, *kinds: str) -> None:
        """Compare with companions of those kinds that the model accepts, in turn."""
        taken = [kind for kind in kinds if kind in self._beside]
        if taken:
            named = " and ".join(map(repr, dict.fromkeys(taken)))
            beside = [self._beside[kind] for kind in taken]
            self._compare_beside(size, place, row, beside, f"rows of the kind {named}")

    def _compare_beside(self, size: int, place: int, row: int, beside: Sequence[Row], named: str) -> bool:
        """Compare one row's answer; return whether the model accepts such a batch, because a refusal proves nothing.

        Raises:
            Noisy: The noise is too large to conclude anything.
        """
        try:
            self._compare_with(size, place, row, beside)
        except _Mixed as mixed:
            raise type(mixed)(f"beside {named} {mixed}") from None
        except Noisy:
            raise
        except Exception:  # noqa: BLE001  # a model may raise anything for made-up rows
            return False
        return True

    def _compare_with(self, size: int, place: int, row: int, beside: Sequence[Row]) -> None:
        expected = self._reference(size, place, row)
        found = _at(self._run(self._batch(size, place, row, beside)), place)
        self.compared += 1
        for name, mine, theirs in zip(self._names, expected, found, strict=True):
            if same_bits(mine, theirs):
                continue
            if largest_difference([mine], [theirs]) > self._noise_of(size, place, row):
                raise _Mixed(
                    f"row {place + 1} of {size} gets another answer in {name!r} than beside ordinary rows"
                )

    def _noise_of(self, size: int, place: int, row: int) -> float:
        """Measure the difference between answers to equal batches; called only if bits differ.

        Raises:
            Noisy: The noise is too large to conclude anything.
        """
        batch = self._batch(size, place, row, self._others(row))
        expected = self._reference(size, place, row)
        self.noise = measure_noise(lambda: _at(self._run(batch), place), expected, self.noise)
        return self.noise

    def _reference(self, size: int, place: int, row: int) -> list[np.ndarray]:
        """Return the answers to a row beside ordinary rows; computed once."""
        key = (size, place, row)
        if key not in self._references:
            outputs = self._run(self._batch(size, place, row, self._others(row)))
            self._references[key] = _at(outputs, place)
        return self._references[key]

    def _others(self, row: int) -> list[Row]:
        return [self._rows[number] for number in self._ordinary if number != row]

    def _batch(self, size: int, place: int, row: int, beside: Sequence[Row]) -> list[Row]:
        others = islice(cycle(beside), size - 1)
        return [self._rows[row] if number == place else next(others) for number in range(size)]

    def _compare_alone(self) -> None:
        """Compare answers alone with those in a batch: a large difference for every row is no rounding error."""
        by_place: dict[tuple[int, int], list[float]] = {}
        for (size, place, row), answers in self._references.items():
            if row not in self._ordinary:
                continue
            if row not in self._alone:
                self._alone[row] = self._answer_alone(row)
            by_place.setdefault((size, place), []).append(largest_difference(self._alone[row], answers))
        largest = max(difference for found in by_place.values() for difference in found)
        # An answer that is not comparable, such as another class, counts as entirely different.
        self.difference = min(1.0, largest)
        for (size, place), differences in by_place.items():
            if len(differences) > 1 and min(differences) > _OTHER_ANSWER:
                raise _Mixed(f"row {place + 1} of {size} gets another answer than alone, whatever it holds")

    def _answer_alone(self, row: int) -> list[np.ndarray]:
        try:
            return _at(self._run([self._rows[row]]), 0)
        except _Mixed:
            raise
        except Exception as error:
            raise _Mixed(
                f"a row is answered in a batch of two, and refused alone: {in_one_line(error)}"
            ) from error


def _at(outputs: Mapping[str, np.ndarray], place: int) -> list[np.ndarray]:
    """Copy one row of each output: outputs may be reused."""
    return [array[place : place + 1].copy() for array in outputs.values()]
