"""`stoker bench --runtimes`: the same networks by both runtimes, and a bench of real servers as short as can be."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from loadtests.tests.one_request import OneRequest
from tests.torch.conftest import torch

from stoker_bench.benches import lineup
from stoker_bench.benches.lineup import BenchOptions
from stoker_bench.benches.runtime_bench import ONNX_RUNTIME, PYTORCH, run_runtime_bench
from stoker_bench.networks.resnet50 import ROW_SHAPE, resnet50, seeded_weights
from stoker_bench.networks.torch_networks import Resnet50


def test_resnet_50_of_pytorch_is_the_onnx_graph() -> None:
    """Probabilities of two images are equal."""
    weights = seeded_weights()
    session = onnxruntime.InferenceSession(
        resnet50(weights).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    images = np.random.default_rng(2).random((2, *ROW_SHAPE), np.float32)
    (expected,) = session.run(None, {"images": images})
    with torch.inference_mode():
        given = Resnet50(weights).eval()(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(given, expected, rtol=1e-3, atol=1e-6)


def test_both_runtimes_get_requests_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is a small BERT; both are checked and answer without an error."""
    monkeypatch.setattr(lineup, "pick_generator", OneRequest)
    monkeypatch.setattr(lineup, "WARM_UP_S", 0)
    report = run_runtime_bench(BenchOptions(seconds=0, rounds=1, concurrency=(2,)), ("tiny",))
    (case,) = report.cases
    assert list(case.slices) == [PYTORCH, ONNX_RUNTIME]
    assert not any(taken.errors for slices in case.slices.values() for taken in slices)
    assert set(case.pss_bytes) == {PYTORCH, ONNX_RUNTIME}
