"""BERT with seeded random weights as an ONNX graph, as PyTorch exports it: attention as products and a softmax.

Token 0 is padding and masked. There are no token types and no pooler: classes are read from the first token. Source
of the architecture: https://arxiv.org/abs/1810.04805.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stoker_bench.networks.graph_builder import GraphBuilder

INPUT_NAME: Final = "input_ids"
OUTPUT_NAME: Final = "logits"
VOCABULARY: Final = 30_522
CLASSES: Final = 2
EPSILON: Final = 1e-12
MASKED: Final = -1e4
"""The number added to the scores of padding; FP16 can hold it."""


class BertSizes(Struct, frozen=True):
    """Sizes of a network.

    Attributes:
        width: Of a token's vector.
        inner: Width between the two layers behind each attention.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    inner: int = 3072
    tokens: int = 128

    @property
    def head_width(self) -> int:
        """The part of a vector that one head sees."""
        return self.width // self.heads


SIZES: Final = {"base": BertSizes(), "tiny": BertSizes(2, 32, 2, 64, 16)}


def weight_shapes(sizes: BertSizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of each weight; kernels are [inputs, outputs]."""
    width, inner = sizes.width, sizes.inner
    shapes: dict[str, tuple[int, ...]] = {
        "words": (VOCABULARY, width),
        "positions": (sizes.tokens, width),
        "embedded_scale": (width,),
        "embedded_bias": (width,),
    }
    for layer in range(sizes.layers):
        kernels = dict.fromkeys(("query", "keys", "values", "projection"), (width, width))
        for name, shape in {**kernels, "inner": (width, inner), "outer": (inner, width)}.items():
            shapes[f"layer{layer}_{name}"] = shape
            shapes[f"layer{layer}_{name}_bias"] = shape[1:]
        for name in ("attended", "output"):
            shapes[f"layer{layer}_{name}_scale"] = shapes[f"layer{layer}_{name}_bias"] = (width,)
    return shapes | {"classes": (width, CLASSES), "classes_bias": (CLASSES,)}


def seeded_weights(sizes: BertSizes, seed: int = 7) -> dict[str, NDArray[np.float32]]:
    """Draw all weights from one seed, so that vectors keep their length and two texts get different classes."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in weight_shapes(sizes).items():
        if name.endswith("_scale"):
            drawn = np.ones(shape, np.float32)
        elif name.endswith("_bias"):
            drawn = random.standard_normal(shape, np.float32) * np.float32(0.05)
        else:
            inputs = 1 if name in ("words", "positions") else shape[0]
            drawn = random.standard_normal(shape, np.float32) * np.float32(1 / math.sqrt(inputs))
        weights[name] = drawn
    return weights


def bert(weights: Mapping[str, NDArray[np.float32]], sizes: BertSizes) -> Any:
    """Return the network as an `onnx.ModelProto`: `input_ids`, int64 [rows, tokens], to `logits`, float32 [rows, 2].

    Args:
        weights: One float32 array for each name of `weight_shapes`.
    """
    from onnx import TensorProto, helper

    graph = _BertBuilder(weights)
    padding = graph.add("Equal", [INPUT_NAME, graph.constant("padding", 0, np.int64)], "is_padding")
    padding = graph.add("Cast", [padding], "padding_numbers", to=TensorProto.FLOAT)
    padding = graph.add("Mul", [padding, graph.constant("masked", MASKED)], "masked_tokens")
    mask = graph.add("Unsqueeze", [padding, graph.constant("mask_axes", [1, 2], np.int64)], "mask")
    words = graph.add("Gather", [graph.weight("words"), INPUT_NAME], "word_vectors", axis=0)
    hidden = graph.add("Add", [words, graph.weight("positions")], "embedded_sum")
    hidden = graph.normalised("embedded", hidden)
    for layer in range(sizes.layers):
        hidden = _layer(graph, f"layer{layer}", hidden, mask, sizes)
    first = graph.add("Gather", [hidden, graph.constant("first", 0, np.int64)], "first_token", axis=1)
    graph.add("Gemm", [first, graph.weight("classes"), graph.weight("classes_bias")], OUTPUT_NAME)
    tokens = helper.make_tensor_value_info(INPUT_NAME, TensorProto.INT64, ["rows", sizes.tokens])
    logits = helper.make_tensor_value_info(OUTPUT_NAME, TensorProto.FLOAT, ["rows", CLASSES])
    return graph.model("bert", [tokens], [logits])


def _layer(graph: _BertBuilder, name: str, hidden: str, mask: str, sizes: BertSizes) -> str:
    """Add a layer, and return its output."""
    # Exporters read the numbers of rows and tokens from shapes, so that both may be free.
    shape = graph.add("Shape", [hidden], f"{name}_shape")
    rows_tokens = graph.add("Gather", [shape, graph.constant("leading", [0, 1], np.int64)], f"{name}_leading")
    split = graph.constant("split", [sizes.heads, sizes.head_width], np.int64)
    by_head = graph.add("Concat", [rows_tokens, split], f"{name}_by_head", axis=0)
    joined = graph.constant("joined", [sizes.width], np.int64)
    by_token = graph.add("Concat", [rows_tokens, joined], f"{name}_by_token", axis=0)
    heads = {}
    for part, order in (("query", [0, 2, 1, 3]), ("keys", [0, 2, 3, 1]), ("values", [0, 2, 1, 3])):
        vectors = graph.linear(f"{name}_{part}", hidden)
        vectors = graph.add("Reshape", [vectors, by_head], f"{name}_{part}_split")
        heads[part] = graph.add("Transpose", [vectors], f"{name}_{part}_heads", perm=order)
    scores = graph.add("MatMul", [heads["query"], heads["keys"]], f"{name}_products")
    root = graph.constant("root", math.sqrt(sizes.head_width))
    scores = graph.add("Div", [scores, root], f"{name}_scores")
    scores = graph.add("Add", [scores, mask], f"{name}_masked")
    shares = graph.add("Softmax", [scores], f"{name}_shares", axis=-1)
    attended = graph.add("MatMul", [shares, heads["values"]], f"{name}_attended_heads")
    attended = graph.add("Transpose", [attended], f"{name}_attended_tokens", perm=[0, 2, 1, 3])
    attended = graph.add("Reshape", [attended, by_token], f"{name}_joined")
    attended = graph.linear(f"{name}_projection", attended)
    attended = graph.normalised(
        f"{name}_attended", graph.add("Add", [attended, hidden], f"{name}_attended_sum")
    )
    inner = graph.linear(f"{name}_inner", attended)
    erf = graph.add("Div", [inner, graph.constant("root_of_two", math.sqrt(2))], f"{name}_inner_divided")
    erf = graph.add("Erf", [erf], f"{name}_erf")
    erf = graph.add("Add", [erf, graph.constant("one", 1)], f"{name}_erf_sum")
    active = graph.add("Mul", [inner, erf], f"{name}_doubled")
    active = graph.add("Mul", [active, graph.constant("half", 0.5)], f"{name}_active")
    outer = graph.linear(f"{name}_outer", active)
    return graph.normalised(f"{name}_output", graph.add("Add", [outer, attended], f"{name}_output_sum"))


class _BertBuilder(GraphBuilder):
    """The parts that BERT is made of."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__(weights)
        self._constants: set[str] = set()

    def constant(self, name: str, values: object, dtype: type = np.float32) -> str:
        """Add a constant; one name stands for the same values each time."""
        if name not in self._constants:
            self._constants.add(name)
            self.initializer(name, np.array(values, dtype))
        return name

    def linear(self, name: str, source: str) -> str:
        """Add a product with a kernel, and its bias."""
        product = self.add("MatMul", [source, self.weight(name)], f"{name}_product")
        return self.add("Add", [self.weight(f"{name}_bias"), product], f"{name}_sum")

    def normalised(self, name: str, source: str) -> str:
        """Add a layer normalisation."""
        inputs = [source, self.weight(f"{name}_scale"), self.weight(f"{name}_bias")]
        return self.add("LayerNormalization", inputs, f"{name}_normalised", axis=-1, epsilon=EPSILON)
