"""BERT as an ONNX graph, in the form that exporters write."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from stoker.runtimes.onnx.fusion import fuse_graph
from stoker_bench.networks.bert import SIZES, VOCABULARY, bert, seeded_weights, weight_shapes

TINY = SIZES["tiny"]


def open_on_cpu(model: bytes | Path) -> Any:
    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


def logits(model: Any, ids: np.ndarray) -> np.ndarray:
    (outputs,) = open_on_cpu(model.SerializeToString()).run(None, {"input_ids": ids})
    return outputs


def texts() -> np.ndarray:
    ids = np.random.default_rng(1).integers(1, VOCABULARY, (4, TINY.tokens))
    ids[1, 9:] = 0
    return ids


def test_the_base_network_has_the_weights_of_bert() -> None:
    """108 million: those of the published network without token types, pooler and positions beyond 128."""
    count = sum(int(np.prod(shape)) for shape in weight_shapes(SIZES["base"]).values())
    published, pooler = 109_482_240, 768 * 768 + 768
    assert count == published - 2 * 768 - pooler - (512 - 128) * 768 + 2 * 768 + 2


def test_texts_get_different_classes_and_padding_is_not_read() -> None:
    """Rows do not depend on each other, and what stands for padding changes nothing but padding."""
    weights = seeded_weights(TINY)
    model = bert(weights, TINY)
    onnx.checker.check_model(model, full_check=True)
    ids = texts()
    found = logits(model, ids)
    assert found.shape == (4, 2)
    assert np.ptp(found, axis=0).min() > 0.1
    np.testing.assert_allclose(logits(model, ids[1:2]), found[1:2], atol=1e-5)
    words = weights["words"].copy()
    words[0] += 3
    np.testing.assert_allclose(logits(bert({**weights, "words": words}, TINY), ids), found, atol=1e-5)
    assert not np.allclose(logits(bert(seeded_weights(TINY, 8), TINY), ids), found, atol=0.1)


def test_optimize_has_work_that_keeps_the_answers(tmp_path: Path) -> None:
    """Each attention and each GELU is fused, and the batch axis can still be fixed by its name."""
    path = tmp_path / "bert.onnx"
    model = bert(seeded_weights(TINY), TINY)
    onnx.save(model, path)
    content = fuse_graph(path, open_on_cpu)
    assert content is not None
    fused = onnx.load_from_string(content)
    operators = Counter(node.op_type for node in fused.graph.node)
    assert operators["MultiHeadAttention"] == operators["BiasGelu"] == TINY.layers
    assert not operators.keys() & {"Softmax", "Shape", "Erf"}
    assert fused.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "rows"
    np.testing.assert_allclose(logits(fused, texts()), logits(model, texts()), atol=1e-5)


@pytest.mark.parametrize("name", ["base", "tiny"])
def test_heads_share_the_width(name: str) -> None:
    """Sizes are multiples of the number of their parts, and of 8, as tensor cores want them."""
    sizes = SIZES[name]
    assert sizes.head_width * sizes.heads == sizes.width
    assert not any(size % 8 for size in (sizes.head_width, sizes.width, sizes.inner, sizes.tokens))
