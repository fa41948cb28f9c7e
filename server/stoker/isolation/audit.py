"""Audits answers while a model serves: a row runs again at the same position among other rows, for the same bits.

The tests before a model serves cannot cover all rows that callers send. An audit compares the answer that a caller
got, beside the rows of other callers, with the answer that the same row gets beside rows derived from itself. It
needs no data of other callers, and it checks the very batches that are served.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np
from msgspec import Struct

from stoker.isolation.companions import Companions
from stoker.isolation.difference import largest_difference, same_bits
from stoker.isolation.model_errors import in_one_line
from stoker.isolation.noise import Noisy, measure_noise
from stoker.isolation.row_test import Run
from stoker.tensors import all_finite

_KINDS: Final = (("zero", "other", "large", "short"), ("other",))
"""Kinds of rows put beside a row; the second set, tried if the model refuses the first, only permutes its values."""
_ROUNDS: Final = 4
"""How often the device's noise is measured before a difference counts as a failure."""
_DIGEST: Final = 16
_SHOWN_CHARACTERS: Final = 200


class AuditedRows(Struct, frozen=True):
    """Rows of one caller from a batch, with the answers that the caller got.

    Attributes:
        size: The batch's size in rows, padding included.
        place: The position of the first of these rows in the batch.
        inputs: Their inputs by name, `[rows, ...]`.
    """

    size: int
    place: int
    inputs: dict[str, np.ndarray]
    answers: dict[str, np.ndarray]

    @property
    def stop(self) -> int:
        """The position after the last row."""
        return self.place + len(next(iter(self.inputs.values())))

    def __str__(self) -> str:
        rows = (
            f"row {self.place + 1}"
            if self.stop == self.place + 1
            else f"rows {self.place + 1} to {self.stop}"
        )
        return f"{rows} of {self.size}"


class AuditResult(Struct, frozen=True):
    """The result of an audit.

    Attributes:
        result: `passed` if the answers were equal, `failed` if not, `skipped` if that cannot be decided.
        reason: The reason why it did not pass; else empty.
        given: Digest of the answer that the caller got.
        found: Digest of the answer of the second run.
        noise: The largest relative difference between runs of an equal batch of this model so far.
    """

    result: Literal["passed", "failed", "skipped"]
    reason: str = ""
    given: str = ""
    found: str = ""
    noise: float = 0.0


def copy_rows(
    inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], place: int, stop: int
) -> AuditedRows:
    """Copy the rows `place:stop` out of a batch.

    Args:
        inputs: The batch's inputs, `[size, ...]` each.
        outputs: The batch's outputs, `[size, ...]` each.
    """
    size = len(next(iter(inputs.values())))
    return AuditedRows(size, place, _copied(inputs, place, stop), _copied(outputs, place, stop))


def audit(run: Run, taken: AuditedRows, noise: float = 0.0) -> AuditResult:
    """Run rows again among others, and compare the answers with those that the caller got.

    Args:
        run: The model, as a function of named tensors.
        noise: The noise of the device as measured so far, relative to the output.
    """
    refusal = ""
    for kinds in _KINDS:
        batch = _batch(taken, kinds)
        try:
            found = _answers(run, batch, taken)
        except Exception as error:  # noqa: BLE001  # a model may raise anything for made-up rows
            refusal = in_one_line(error)
            continue
        return _compare(run, batch, taken, found, noise)
    return AuditResult(
        "skipped", f"it does not take the rows that were put beside the row: {refusal}", noise=noise
    )


def _compare(
    run: Run, batch: dict[str, np.ndarray], taken: AuditedRows, found: list[np.ndarray], noise: float
) -> AuditResult:
    given = list(taken.answers.values())
    if all(map(same_bits, found, given)):
        return AuditResult("passed", noise=noise)
    difference = largest_difference(found, given)
    for _ in range(_ROUNDS):
        if difference <= noise:
            return AuditResult("passed", noise=noise)
        try:
            noise = measure_noise(lambda: _answers(run, batch, taken), found, noise)
        except Noisy:
            return AuditResult("skipped", "equal batches get different answers", noise=noise)
        except Exception as error:  # noqa: BLE001  # the model accepted the same batch before
            return AuditResult("skipped", f"it fails now and then: {error}"[:_SHOWN_CHARACTERS], noise=noise)
    if difference <= noise:
        return AuditResult("passed", noise=noise)
    reason = f"{taken} got another answer beside other rows"
    return AuditResult("failed", reason, _digest(given), _digest(found), noise)


def _batch(taken: AuditedRows, kinds: Sequence[str]) -> dict[str, np.ndarray]:
    """A batch with the rows at their position, filled with companions derived from the first of them."""
    own = {name: array[:1] for name, array in taken.inputs.items()}
    companions = Companions([own])
    known = [kind for kind in kinds if kind in companions.kinds()]
    # NaN and infinities are left out: the model may be one that does not keep them out of other rows.
    beside = [
        row for kind in known for row in companions.grades(kind) if all(map(all_finite, row.values()))
    ] or [own]
    # Companions fill all positions in turn; the audited rows then overwrite their own.
    order = np.arange(taken.size)
    order[taken.stop :] -= taken.stop - taken.place
    order %= len(beside)
    batch = {}
    for name, array in taken.inputs.items():
        batch[name] = np.concatenate([row[name] for row in beside]).take(order, axis=0)
        batch[name][taken.place : taken.stop] = array
    return batch


def _answers(run: Run, batch: Mapping[str, np.ndarray], taken: AuditedRows) -> list[np.ndarray]:
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
