"""Audits of rows that have been answered: models as functions of numpy arrays, and the zoo under ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.zoo import ZOO

from stoker.isolation.audit import AuditedRows, AuditResult, audit, copy_rows
from stoker.isolation.made_up_rows import sample_feeds
from stoker.tensors import TensorInfo

LEAK = 12345.0
"""A number that changes the other rows in `leaky`."""

_DTYPES = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(string)": "string"}

Function = Callable[[np.ndarray], np.ndarray]


def leaky(x: np.ndarray) -> np.ndarray:
    """Double each row; a row with `LEAK` changes all others."""
    return np.asarray(2 * x + (x == LEAK).any() * np.float32(1e-3) * x.max())


def apart(x: np.ndarray) -> np.ndarray:
    """Double each row."""
    return 2 * x


def batch(*first: float) -> np.ndarray:
    """Return rows of three numbers, with these first numbers."""
    return np.array([[number, 2, 3] for number in first], np.float32)


def as_run(function: Function) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return a model of this function."""
    return lambda feeds: {"y": function(feeds["x"])}


def taken(function: Function, x: np.ndarray, place: int = 0, stop: int | None = None) -> AuditedRows:
    """Return a row, or the rows up to `stop`, with the answers that they got in this batch."""
    return copy_rows({"x": x}, {"y": function(x)}, place, place + 1 if stop is None else stop)


def test_an_answer_that_another_row_changed_fails_the_audit() -> None:
    """An audit finds an influence that no companion at load triggers; the result has a digest of both answers."""
    finding = audit(as_run(leaky), taken(leaky, batch(1, LEAK, 4, 7), 2))
    assert finding.result == "failed"
    assert finding.reason == "row 3 of 4 got another answer beside other rows"
    assert finding.given != finding.found
    assert len(finding.given) == len(finding.found) == 16
    assert audit(as_run(leaky), taken(leaky, batch(1, 2, 4, 7), 2)) == AuditResult("passed")


@settings(STEADY, max_examples=60)
@given(st.integers(2, 40), st.data())
def test_rows_without_influence_on_each_other_pass(size: int, data: st.DataObject) -> None:
    """Contents, place and dtype of the audited rows do not matter."""
    place = data.draw(st.integers(0, size - 1))
    stop = data.draw(st.integers(place + 1, size))
    dtype = data.draw(st.sampled_from(["float32", "float16", "float64", "int8", "uint64", "bool"]))
    number = data.draw(st.sampled_from([0, 1, 100, np.nan, np.inf] if dtype.startswith("f") else [0, 1]))
    x = np.full((size, 2), number, dtype)
    x[0, 0] = 1

    def function(x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            return np.concatenate([x, x], axis=1)

    assert audit(as_run(function), taken(function, x, place, stop)) == AuditResult("passed")


def test_the_row_keeps_its_place_among_finite_rows_made_of_itself() -> None:
    """The batch keeps its size; companions are zeros and the row's own values, never NaN."""
    seen: list[np.ndarray] = []

    def function(x: np.ndarray) -> np.ndarray:
        seen.append(x.copy())
        return x.copy()

    rows = taken(apart, batch(5, 6, 7, 8, 9), 1, 3)
    audit(as_run(function), rows)
    assert seen[0].shape == (5, 3)
    assert seen[0][1:3].tolist() == batch(6, 7).tolist()
    others = seen[0][[0, 3, 4]].tolist()
    assert [0, 0, 0] in others
    assert any(sorted(row) == [2, 3, 6] for row in others)
    assert any(sorted(row) == [2000, 3000, 6000] for row in others)
    seen.clear()
    audit(as_run(function), taken(apart, batch(np.nan, 1, 1, 1, 1)))
    assert np.isfinite(seen[0][1:]).all()


def test_texts_are_audited_beside_texts() -> None:
    """A model whose answers have the length of the longest text fails; one of single texts passes."""
    x = np.array([[b"a"], [b"much longer"], [b"bc"]], object)

    def padded(x: np.ndarray) -> np.ndarray:
        longest = max(map(len, x[:, 0]))
        return np.array([[text[0].ljust(longest)] for text in x], object)

    def upper(x: np.ndarray) -> np.ndarray:
        return np.array([[text[0].upper()] for text in x], object)

    assert audit(as_run(padded), taken(padded, x)).result == "failed"
    assert audit(as_run(upper), taken(upper, x)).result == "passed"


def test_rows_that_the_model_refuses_are_no_finding() -> None:
    """If the model refuses zeros, the row's own values are tried; if it takes neither, the audit is skipped."""

    def picky(x: np.ndarray) -> np.ndarray:
        if (x.sum(axis=1) != 6).any():
            raise ValueError("rows have to\n add up to 6")
        return leaky(x)

    rows = copy_rows({"x": batch(1, 1)}, {"y": apart(batch(1, 1))}, 0, 1)
    assert audit(as_run(picky), rows).result == "passed"
    rows = copy_rows({"x": batch(2, 2)}, {"y": apart(batch(2, 2))}, 0, 1)
    finding = audit(as_run(picky), rows)
    assert finding.result == "skipped"
    assert finding.reason.endswith("beside the row: rows have to add up to 6")


def noisy(function: Function, noise: float) -> Function:
    """Return a model whose answers to equal batches differ by about this share."""
    random = np.random.default_rng(7)
    return lambda x: function(x) * np.float32(1 + noise * random.random())


def test_the_noise_of_a_device_is_no_leak_and_hides_none() -> None:
    """Differences up to those of equal batches pass and are remembered; a larger one fails."""
    run = noisy(apart, 1e-5)
    finding = audit(as_run(run), taken(run, batch(1, 2, 3)))
    assert finding.result == "passed"
    assert 0 < finding.noise < 1e-4
    again = audit(as_run(run), taken(run, batch(1, 2, 3)), finding.noise)
    assert (again.result, again.noise) == ("passed", finding.noise)
    run = noisy(leaky, 1e-5)
    assert audit(as_run(run), taken(run, batch(1, LEAK, 3)), finding.noise).result == "failed"


def test_the_audit_of_a_random_model_is_skipped() -> None:
    """Large differences between equal batches hide those between other batches."""
    run = noisy(apart, 0.5)
    finding = audit(as_run(run), taken(run, batch(1, 2)))
    assert (finding.result, finding.reason) == ("skipped", "equal batches get different answers")


@pytest.mark.parametrize("name", sorted(set(ZOO) - {"padding to the longest", "training batch norm"}))
def test_the_zoo_under_onnx_runtime(name: str) -> None:
    """For ordinary batches no audit of a model with independent rows fails; audits of its mixing version do."""
    random = np.random.default_rng(3)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    results: list[set[str]] = []
    for make in ZOO[name]:
        session = onnxruntime.InferenceSession(make(), options)
        names = [value.name for value in session.get_outputs()]
        inputs = [TensorInfo(v.name, _DTYPES[v.type], (-1, *v.shape[1:])) for v in session.get_inputs()]

        def run(
            feeds: Mapping[str, np.ndarray], session: Any = session, names: list[str] = names
        ) -> dict[str, np.ndarray]:
            return dict(zip(names, session.run(names, dict(feeds)), strict=True))

        results.append(set())
        for size in range(2, 18, 3):
            feeds = sample_feeds(inputs, size)
            for array in feeds.values():
                if array.dtype.kind == "f":
                    array[...] = random.standard_normal(array.shape) * 10 ** random.uniform(-2, 2)
            place = int(random.integers(size))
            results[-1].add(audit(run, copy_rows(feeds, run(feeds), place, place + 1)).result)
    mixing, independent = results
    assert "failed" in mixing
    assert independent == {"passed"}
