"""Attention replaced by one operator. ONNX Runtime has it on the CPU too, so answers are compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from tests.exported_attention import HEADS, ROWS_TIME, SIZE, WIDTH, Form, save, write_attention

from stoker.runtimes.onnx.fusion import fuse_graph

FORMS = [
    Form(),
    Form(sizes="shapes"),
    Form(qkv="packed"),
    Form(keys="after"),
    Form(keys="matrices"),
    Form(scale="divided", sizes="shapes"),
    Form(scale="both", keys="matrices"),
    Form(scale="none"),
    Form(mask="keys"),
    Form(mask="bias"),
    Form(mask="both"),
    Form(mask="keys", time=0),
    Form(mask="keys", time=0, qkv="packed", sizes="shapes"),
    Form(gelu=True),
]


def session(model: Path | bytes) -> onnxruntime.InferenceSession:
    """Open a model on the CPU."""
    source = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def operators(model: bytes) -> Counter[str]:
    """Count the operators of a graph."""
    return Counter(node.op_type for node in onnx.load_from_string(model).graph.node)


def fused(path: Path) -> bytes:
    """Return the fused graph."""
    model = fuse_graph(path, session)
    assert model is not None
    return model


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_attention_becomes_one_operator_with_the_same_answers(tmp_path: Path, form: Form) -> None:
    """Rows, free lengths and masks vary."""
    path = write_attention(tmp_path / "attention.onnx", form)
    model = fused(path)
    assert operators(model)["MultiHeadAttention"] == 1
    assert not operators(model)["Softmax"]
    before, after = session(path), session(model)
    random = np.random.default_rng(1)
    for rows, time in ((1, 7), (2, 3), (5, 1), (4, 11)):
        length = form.time or time
        feeds = {"x": random.standard_normal((rows, length, WIDTH)).astype(np.float32)}
        if form.mask in ("keys", "both"):
            feeds["mask"] = (np.arange(length) < random.integers(1, length + 1, (rows, 1))).astype(np.float32)
        (expected,), (given,) = before.run(None, feeds), after.run(None, feeds)
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "form", [Form(), Form(sizes="shapes", scale="divided"), Form(keys="matrices")], ids=str
)
def test_transpositions_and_reshapes_are_removed(tmp_path: Path, form: Form) -> None:
    """The operator has the layout of the products beside it."""
    model = fused(write_attention(tmp_path / "attention.onnx", form))
    assert not operators(model)["Transpose"]
    assert not operators(model)["Reshape"]


def test_gelu_of_the_newer_exporter_becomes_one_operator(tmp_path: Path) -> None:
    """ONNX Runtime does not fuse its order of factors."""
    model = fused(write_attention(tmp_path / "attention.onnx", Form(gelu=True)))
    assert operators(model)["Gelu"] == 1
    assert not operators(model)["Erf"]


def changed(tmp_path: Path, change: str) -> Path:
    """Write attention with a change that makes it another computation."""
    shape = [0, 0, HEADS, SIZE]
    constants = {"s": np.array(shape), "w": np.eye(WIDTH, dtype=np.float32), "one": np.array(1, np.float32)}
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["h"]),
        helper.make_node("Transpose", ["h"], ["q"], perm=[0, 2, 1, 3]),
        helper.make_node("Transpose", ["h"], ["k"], perm=[0, 2, 3, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
    ]
    scores = "scores"
    if change == "scale of the rows":
        nodes += [
            helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
            helper.make_node("Mul", ["scores", "m"], ["scaled"]),
        ]
        scores = "scaled"
    if change == "scale after the bias":
        nodes += [
            helper.make_node("Add", ["scores", "one"], ["biased"]),
            helper.make_node("Mul", ["biased", "half"], ["scaled"]),
        ]
        constants["half"] = np.array(0.5, np.float32)
        scores = "scaled"
    if change == "chosen scores":
        nodes += [
            helper.make_node("Greater", ["scores", "one"], ["large"]),
            helper.make_node("Where", ["large", "scores", "one"], ["chosen"]),
        ]
        scores = "chosen"
    axis = 2 if change == "softmax over the queries" else -1
    nodes += [
        helper.make_node("Softmax", [scores], ["p"], axis=axis),
        helper.make_node("MatMul", ["p", "q"], ["a"]),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["t", "back"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"]),
    ]
    constants["back"] = np.array([0, 0, WIDTH])
    outputs: list[tuple[str, list[int | str]]] = [("y", ["rows", ROWS_TIME, WIDTH])]
    if change == "weights given too":
        outputs.append(("p", ["rows", HEADS, ROWS_TIME, ROWS_TIME]))
    return save(tmp_path / "changed.onnx", nodes, [("x", ["rows", ROWS_TIME, WIDTH])], outputs, constants)


def test_attention_without_a_scale_is_fused(tmp_path: Path) -> None:
    """Without a change the model of the test below is fused."""
    assert operators(fused(changed(tmp_path, "nothing")))["MultiHeadAttention"] == 1


@pytest.mark.parametrize(
    "change",
    [
        "scale of the rows",
        "scale after the bias",
        "chosen scores",
        "softmax over the queries",
        "weights given too",
    ],
)
def test_other_computations_are_not_fused(tmp_path: Path, change: str) -> None:
    """The pattern has to be exactly that of the operator."""
    assert fuse_graph(changed(tmp_path, change), session) is None
