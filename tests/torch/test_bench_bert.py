"""BERT of the bench on a GPU, in PyTorch: the network that the ONNX graph is."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import orjson
import pytest
from tests.torch.conftest import load, run, torch

from stoker_bench.gpu.torch_alone import main
from stoker_bench.networks.bert import SIZES, VOCABULARY, bert, seeded_weights
from stoker_bench.networks.torch_bert import Bert

TINY = SIZES["tiny"]


def test_pytorch_and_the_onnx_graph_are_one_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Logits are equal, also from the exported program with other numbers of rows; each batch size is measured."""
    ids = np.random.default_rng(1).integers(0, VOCABULARY, (5, TINY.tokens))
    ids[1, 9:] = 0
    weights = seeded_weights(TINY)
    session = onnxruntime.InferenceSession(
        bert(weights, TINY).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"input_ids": ids})
    path = tmp_path / "bert.pt2"
    words = "--sizes tiny --seed 7 --device cpu --batches 1 4 --seconds 0.01 --export"
    monkeypatch.setattr(sys, "argv", ["torch_alone", *words.split(), str(path)])
    main()
    figures = orjson.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["rows"] for each in figures] == [1, 4]
    assert all(each["rows_per_s"] > 0 and each["ms"] > 0 for each in figures)
    with torch.inference_mode():
        direct = Bert(weights, TINY).eval()(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(direct, expected, atol=1e-5)
    runtime = load(path)
    assert runtime.signature.isolation is not None
    assert runtime.signature.isolation.batched, runtime.signature.isolation
    (served,) = run(runtime, ids)
    np.testing.assert_allclose(served, expected, atol=1e-5)
