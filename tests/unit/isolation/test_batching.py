"""The decision on a model's rows, from its graph, from tests and from the operator, and how the model is served."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.batching import decide_batching
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.packed import PackedRuntime, Run
from stoker.runtimes.wrapping import wrap_model
from stoker.tensors import ModelTensors, Signature, TensorInfo

X = TensorInfo("x", "float32", (-1, 2))
Y = TensorInfo("y", "float32", (-1, 2))
TENSORS = ModelTensors((X,), (Y,), batched=True)
Feeds = Mapping[str, np.ndarray]


def double(feeds: Feeds) -> Feeds:
    """Double each row."""
    with np.errstate(over="ignore"):
        return {"y": feeds["x"] * np.float32(2)}


def leak(feeds: Feeds) -> Feeds:
    """Add the mean over all rows to each row."""
    with np.errstate(all="ignore"):
        return {"y": feeds["x"] + feeds["x"].mean(axis=0)}


def refuse(_: Feeds) -> Feeds:
    """Refuse all made-up rows."""
    raise ValueError("not this")


def isolation(run: Run, reading: GraphAnalysis | None = None, **settings: Any) -> RowIsolation:
    read = None if reading is None else (lambda: reading)
    return decide_batching(deployment(**settings), run, TENSORS, read)


def deployment(**settings: Any) -> Deployment:
    return Deployment(
        "tiny", 1, "onnx", Path("tiny.onnx"), Path(), settings.pop("max_batch_rows", 8), 1, **settings
    )


APART, MIXED, UNKNOWN = (
    GraphAnalysis("apart"),
    GraphAnalysis("mixed", "ReduceMean 'm' takes a mean"),
    GraphAnalysis("unknown", "?"),
)


@pytest.mark.parametrize(
    ("run", "reading", "batched", "how", "setting"),
    [
        (double, None, True, "tested", ""),
        (double, UNKNOWN, True, "tested", ""),
        (double, APART, True, "read", ""),
        (double, MIXED, False, "read", "batching: rows"),
        (leak, None, False, "tested", "batching: rows"),
        (leak, UNKNOWN, False, "tested", "batching: rows"),
        # A test overrules the graph.
        (leak, APART, False, "tested", "batching: rows"),
        (refuse, None, False, "tested", "sample_input: FILE or batching: rows"),
        (refuse, UNKNOWN, False, "tested", "sample_input: FILE or batching: rows"),
        (refuse, APART, True, "read", ""),
    ],
)
def test_reading_and_test_together(
    run: Run, reading: GraphAnalysis | None, batched: bool, how: str, setting: str
) -> None:
    """The graph or the test is enough against batching; a proof is enough for it; without either there is none."""
    found = isolation(run, reading)
    assert (found.batched, found.how, found.setting) == (batched, how, setting)
    assert found.reason


def test_the_reason_names_the_node() -> None:
    """The text names the node, and the setting that changes the decision."""
    assert str(isolation(double, MIXED)) == (
        "not batched: ReduceMean 'm' takes a mean (batching: rows changes that)"
    )


def test_the_operator_is_believed_and_warned(caplog: pytest.LogCaptureFixture) -> None:
    """`rows` always batches, and the log warns of evidence against it; `none` needs no evidence."""
    assert isolation(double, None, batching="rows").how == "said"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    found = isolation(leak, MIXED, batching="rows")
    assert (found.batched, found.how) == (True, "said")
    assert "tiny is batched because batching is rows, though beside a row of the kind" in caplog.text
    assert isolation(refuse, None, batching="none") == RowIsolation(
        False, "said", "batching is none, as it was asked for"
    )


def test_vouching_is_refused_if_an_output_has_no_rows() -> None:
    """Two entries for any number of rows would be taken for the answers of two callers."""

    def pair(feeds: Feeds) -> Feeds:
        return {"y": np.stack([feeds["x"].sum(axis=0), feeds["x"].max(axis=0)])}

    with pytest.raises(
        LoadFailed, match="tiny cannot be batched as batching: rows says, for output 'y' has shape"
    ):
        isolation(pair, None, batching="rows")


def test_nan_that_is_refused_is_kept_apart() -> None:
    """The test did not include NaN, so rows with NaN are not batched with others."""

    def finite(feeds: Feeds) -> Feeds:
        if not np.isfinite(feeds["x"]).all():
            raise ValueError("not finite")
        return double(feeds)

    assert isolation(finite).non_finite_apart
    assert not isolation(finite, APART).non_finite_apart
    assert not isolation(double).non_finite_apart


def test_much_difference_to_answers_alone_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The model is batched, because that is a question of accuracy."""

    def coarse(feeds: Feeds) -> Feeds:
        answers = np.array(double(feeds)["y"])
        if len(answers) > 1:
            answers[np.isfinite(answers)] *= np.float32(1.005)
        return {"y": answers}

    with np.errstate(over="ignore"):
        found = isolation(coarse)
    assert found.batched
    assert found.difference == pytest.approx(0.005, rel=0.1)
    assert "that is much for their type" in caplog.text


@pytest.mark.parametrize(
    ("computed_in", "factor", "level"),
    [
        ("tf32", 1.005, "INFO"),
        ("fp16", 1.005, "INFO"),
        ("fp32", 1.005, "WARNING"),
        ("tf32", 1.03, "WARNING"),
        ("bf16", 1.03, "INFO"),
    ],
)
def test_a_difference_that_is_usual_for_its_arithmetic_is_no_warning(
    computed_in: str, factor: float, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """TF32 is the default on a GPU, and a healthy start has no warnings; the log has the figure."""
    caplog.set_level("INFO")

    def coarse(feeds: Feeds) -> Feeds:
        answers = np.array(double(feeds)["y"])
        if len(answers) > 1:
            answers[np.isfinite(answers)] *= np.float32(factor)
        return {"y": answers}

    with np.errstate(over="ignore"):
        decide_batching(deployment(), coarse, TENSORS, None, computed_in=computed_in)
    (record,) = [record for record in caplog.records if "differ from answers alone" in record.message]
    assert record.levelname == level
    assert record.message.endswith(f"usual for {computed_in}" if level == "INFO" else "much for their type")


def test_a_model_without_a_batch_axis_is_not_tested() -> None:
    """It has no batch to share."""
    tensors = ModelTensors((TensorInfo("x", "float32", (3,)),), (Y,), batched=False)
    assert decide_batching(deployment(), refuse, tensors, None).how == "declared"


class Rows:
    """A puppet of the runtime of rows."""

    def __init__(self, signature: Signature) -> None:
        self.signature = signature

    def run(self, inputs: Any) -> Any:
        raise NotImplementedError


def runtime(run: Run, **settings: Any) -> Runtime:
    return wrap_model(deployment(**settings), run, TENSORS, Rows)


def test_rows_that_are_apart_are_served_row_by_row() -> None:
    """The finding is a part of the signature, and comes back from JSON."""
    signature = runtime(double).signature
    assert (signature.takes, signature.isolation and signature.isolation.how) == ("rows", "tested")
    assert Signature.from_json(signature.to_json()).isolation == signature.isolation


def test_probe_has_no_more_rows_than_are_served_at_once() -> None:
    """A large model may just fit its device."""

    def tight(feeds: Feeds) -> Feeds:
        if len(feeds["x"]) > 2:
            raise OutOfMemory("no memory")
        return double(feeds)

    assert runtime(tight, max_batch_rows=2).signature.takes == "rows"


def test_a_proven_graph_is_not_tested_again_when_it_is_loaded_on_demand(tmp_path: Path) -> None:
    """It is tested again if its file was replaced; a graph that is not proven is tested at each load."""
    path = tmp_path / "tiny.onnx"
    batches: list[int] = []
    path.write_bytes(b"a graph")

    def run(feeds: Feeds) -> Feeds:
        batches.append(len(feeds["x"]))
        return double(feeds)

    def load(finding: Literal["apart", "unknown"], number: int) -> int:
        batches.clear()
        on_demand = replace(deployment(on_demand=True, number=number), path=path)
        served = wrap_model(on_demand, run, TENSORS, Rows, lambda: GraphAnalysis(finding))
        assert served.signature.isolation is not None
        assert served.signature.isolation.batched
        return len(batches)

    tested = load("apart", 4711)
    assert load("apart", 4711) < tested / 10
    path.write_bytes(b"another graph")
    assert load("apart", 4711) > tested / 10
    assert load("apart", 4712) > tested / 10, "its settings may differ"
    assert load("unknown", 4713) > tested / 10
    assert load("unknown", 4713) > tested / 10


@pytest.mark.parametrize(
    ("run", "settings"), [(leak, {}), (refuse, {"max_batch_rows": 1}), (double, {"batching": "none"})]
)
def test_unbatched_model_runs_request_by_request(run: Run, settings: dict[str, Any]) -> None:
    """A model that is not batched is served with as many rows as each request has."""
    served = runtime(run, **settings)
    assert isinstance(served, PackedRuntime)
    assert served.signature.isolation is not None
    assert not served.signature.isolation.batched
    assert served.signature.tensors is not None
    assert not served.signature.tensors.batched


def test_batches_of_one_row_are_rows_where_rows_are_apart() -> None:
    """`max_batch_rows: 1` keeps the fast path for a model with independent rows."""
    assert runtime(double, max_batch_rows=1).signature.takes == "rows"


def test_a_device_that_fails_for_all_inputs_ends_the_load() -> None:
    """A failure of all inputs is no refusal of some."""
    with pytest.raises(LoadFailed, match=r"tiny.onnx fails for all inputs: not this"):
        runtime(refuse)


def test_a_model_that_takes_only_its_sample_is_batched_with_one(tmp_path: Path) -> None:
    """It is tested with the rows of the sample, and batched."""

    def picky(feeds: Feeds) -> Feeds:
        if not np.isin(feeds["x"], [5, 6, 7]).all():
            raise ValueError("only 5, 6 and 7")
        return double(feeds)

    sample = tmp_path / "sample.json"
    sample.write_text('{"data": [[5, 6], [7, 5], [6, 6]]}')
    signature = runtime(picky, sample_input=sample).signature
    assert signature.takes == "rows"
    assert signature.isolation is not None
    assert signature.isolation.non_finite_apart
