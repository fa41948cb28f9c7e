"""An audit: a row that has been answered is run again, at the same place among others, and has to get the same bits.

What was put beside a row before the model served cannot be all that callers put beside it. An audit compares the
answer that a caller was given, beside whatever others had sent, with the one that the same row gets beside rows made
of itself. So it needs nobody else's data, and what it looks at is what is served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stoker.isolation.companions import Companions
from stoker.isolation.difference import largest_difference, same_bits
from stoker.isolation.finite import all_finite
from stoker.isolation.noise import Noisy, noise_of
from stoker.isolation.row_test import Run, in_one_line

__all__ = ["Finding", "Taken", "audit", "take"]

_KINDS: Final = (("zero", "other", "large", "short"), ("other",))
"""What is put beside a row; and if the model does not take that, only what the row itself holds, in other orders."""
_ROUNDS: Final = 4
"""How often the noise of the device is measured before a difference is called none of it."""
_DIGEST: Final = 16
_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Taken:
    """Rows of one caller, and the answers that they were given in a batch.

    Attributes:
        size: How many rows the batch had, those that filled it up included.
        place: At which of them these begin.
        inputs: What they hold, `[rows, ...]` of each input.
        answers: What they got, `[rows, ...]` of each output.
    """

    size: int
    place: int
    inputs: dict[str, np.ndarray]
    answers: dict[str, np.ndarray]

    @property
    def stop(self) -> int:
        """The place behind the last row."""
        return self.place + len(next(iter(self.inputs.values())))

    def __str__(self) -> str:
        rows = (
            f"row {self.place + 1}"
            if self.stop == self.place + 1
            else f"rows {self.place + 1} to {self.stop}"
        )
        return f"{rows} of {self.size}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What an audit has found.

    Attributes:
        result: `passed` if the rows got the same answer, `failed` if not, `skipped` if that cannot be said.
        reason: Why it was not passed; else empty.
        given: A digest of the answer that was given.
        found: A digest of the one that was found.
        noise: How far equal batches of this model were seen to be from each other so far.
    """

    result: Literal["passed", "failed", "skipped"]
    reason: str = ""
    given: str = ""
    found: str = ""
    noise: float = 0.0


def take(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], place: int, stop: int) -> Taken:
    """Copy the rows from `place` up to before `stop` out of a batch.

    Args:
        inputs: Its inputs, `[size, ...]` each.
        outputs: Its outputs; likewise.
        place: The first row.
        stop: The row behind the last one.
    """
    size = len(next(iter(inputs.values())))
    return Taken(size, place, _copied(inputs, place, stop), _copied(outputs, place, stop))


def audit(run: Run, taken: Taken, noise: float = 0.0) -> Finding:
    """Run rows again among others, and compare what they get with what they were given.

    Args:
        run: The model, as a function of named tensors.
        taken: The rows.
        noise: What is known of the noise of its device.
    """
    refusal = ""
    for kinds in _KINDS:
        batch = _batch(taken, kinds)
        try:
            found = _answers(run, batch, taken)
        except Exception as error:  # noqa: BLE001  # whatever a model raises on what was made up
            refusal = in_one_line(error)
            continue
        return _compare(run, batch, taken, found, noise)
    return Finding("skipped", f"it does not take what was put beside the row: {refusal}", noise=noise)


def _compare(
    run: Run, batch: dict[str, np.ndarray], taken: Taken, found: list[np.ndarray], noise: float
) -> Finding:
    given = list(taken.answers.values())
    if all(map(same_bits, found, given)):
        return Finding("passed", noise=noise)
    difference = largest_difference(found, given)
    for _ in range(_ROUNDS):
        if difference <= noise:
            return Finding("passed", noise=noise)
        try:
            noise = noise_of(lambda: _answers(run, batch, taken), found, noise)
        except Noisy:
            return Finding("skipped", "equal batches get different answers", noise=noise)
        except Exception as error:  # noqa: BLE001  # it took the same batch before
            return Finding("skipped", f"it fails now and then: {error}"[:_SHOWN], noise=noise)
    if difference <= noise:
        return Finding("passed", noise=noise)
    reason = f"{taken} got another answer beside other rows"
    return Finding("failed", reason, _digest(given), _digest(found), noise)


def _batch(taken: Taken, kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """The rows at their place among companions that are made of the first of them."""
    own = {name: array[:1] for name, array in taken.inputs.items()}
    companions = Companions([own])
    known = [kind for kind in kinds if kind in companions.kinds()]
    # What is not finite may be no part of what is known of the model.
    beside = [
        row for kind in known for row in companions.grades(kind) if all(map(all_finite, row.values()))
    ] or [own]
    # In turn at the other places; the rows' own are written over.
    order = np.arange(taken.size)
    order[taken.stop :] -= taken.stop - taken.place
    order %= len(beside)
    batch = {}
    for name, array in taken.inputs.items():
        batch[name] = np.concatenate([row[name] for row in beside]).take(order, axis=0)
        batch[name][taken.place : taken.stop] = array
    return batch


def _answers(run: Run, batch: Mapping[str, np.ndarray], taken: Taken) -> list[np.ndarray]:
    outputs = run(batch)
    for name, array in outputs.items():
        if array.shape[:1] != (taken.size,):
            raise ValueError(f"output {name!r} has shape {list(array.shape)} for a batch of {taken.size}")
    return [outputs[name][taken.place : taken.stop].copy() for name in taken.answers]


def _copied(arrays: Mapping[str, np.ndarray], place: int, stop: int) -> dict[str, np.ndarray]:
    return {name: array[place:stop].copy() for name, array in arrays.items()}


def _digest(answers: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in answers:
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return digest.hexdigest()[:_DIGEST]
