"""Small encoders of texts with random weights, and a tokenizer trained on a few words, in Hugging Face's layout."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

WORDS = (
    "the harbour was quiet before first ships of morning came in and nobody spoke how far is it to next town "
    "a query about rivers mountains lakes stones birds engines letters music bread winter summer"
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def write_tokenizer(folder: Path, *, max_tokens: int = 64, **config: Any) -> Tokenizer:
    """Train a tokenizer of BERT's kind, and write it with its configuration."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(SPECIAL), show_progress=False)
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": max_tokens, **config}))
    return tokenizer


def encoder_weights(seed: int = 7, *, hidden: int = 32, positions: int = 64) -> dict[str, np.ndarray]:
    """Weights of one layer of attention, by name."""
    random = np.random.default_rng(seed)
    shapes = {
        "words": (300, hidden),
        "places": (positions, hidden),
        "segments": (2, hidden),
        **dict.fromkeys(("query", "key", "value", "mixed"), (hidden, hidden)),
        "wide": (hidden, 2 * hidden),
        "narrow": (2 * hidden, hidden),
    }
    return {name: (0.3 * random.standard_normal(shape)).astype(np.float32) for name, shape in shapes.items()}


def write_encoder(
    path: Path,
    weights: Mapping[str, np.ndarray],
    *,
    head: str = "pooled",
    masked: bool = True,
    labels: int = 3,
    inputs: Sequence[str] = INPUTS,
) -> Path:
    """Write an encoder.

    Args:
        head: `tokens` for the hidden state of each token, `pooled` for their mean, `logits` for scores of labels.
        masked: Whether the mask has an effect; without one padding changes answers.
    """
    hidden = weights["words"].shape[1]
    made = dict(weights)
    made |= {
        "one": np.array([1.0], np.float32),
        "far": np.array([-1e4 if masked else 0.0], np.float32),
        "scale": np.array([hidden**-0.5], np.float32),
        "tiny": np.array([1e-9], np.float32),
        "axis_1": np.array([1], np.int64),
        "axis_2": np.array([2], np.int64),
        "first": np.array([0], np.int64),
        "to_heads": np.random.default_rng(1).standard_normal((hidden, labels)).astype(np.float32),
    }
    node = helper.make_node
    segments = "token_type_ids" in inputs
    nodes = [
        node("Gather", ["words", "input_ids"], ["by_word"]),
        node("Shape", ["input_ids"], ["size"]),
        node("Gather", ["size", "axis_1"], ["tokens"]),
        node("Slice", ["places", "first", "tokens", "first"], ["by_place"]),
        node("Add", ["by_word", "by_place"], ["placed"]),
        *([node("Gather", ["segments", "token_type_ids"], ["by_segment"])] if segments else []),
        node("Add", ["placed", "by_segment" if segments else "first_segment"], ["embedded"]),
        *(node("MatMul", ["embedded", name], [f"{name}_of"]) for name in ("query", "key", "value")),
        node("Transpose", ["key_of"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["query_of", "turned"], ["raw"]),
        node("Mul", ["raw", "scale"], ["scaled"]),
        node("Cast", ["attention_mask"], ["seen"], to=TensorProto.FLOAT),
        node("Sub", ["one", "seen"], ["unseen"]),
        node("Mul", ["unseen", "far"], ["bias"]),
        node("Unsqueeze", ["bias", "axis_1"], ["bias_of"]),
        node("Add", ["scaled", "bias_of"], ["scores"]),
        node("Softmax", ["scores"], ["shares"], axis=-1),
        node("MatMul", ["shares", "value_of"], ["mixture"]),
        node("MatMul", ["mixture", "mixed"], ["mixed_of"]),
        node("Add", ["mixed_of", "embedded"], ["attended"]),
        node("MatMul", ["attended", "wide"], ["widened"]),
        node("Tanh", ["widened"], ["bent"]),
        node("MatMul", ["bent", "narrow"], ["narrowed"]),
        node("Add", ["narrowed", "attended"], ["last_hidden_state"]),
    ]
    if not segments:
        made["first_segment"] = made["segments"][:1]
    shape: list[int | str] = ["batch_size", "sequence_length", hidden]
    name = "last_hidden_state"
    if head != "tokens":
        nodes += [
            node("Unsqueeze", ["seen", "axis_2"], ["weights"]),
            node("Mul", ["last_hidden_state", "weights"], ["weighted"]),
            node("ReduceSum", ["weighted", "axis_1"], ["sum"], keepdims=0),
            node("ReduceSum", ["weights", "axis_1"], ["count"], keepdims=0),
            node("Max", ["count", "tiny"], ["divisor"]),
            node("Div", ["sum", "divisor"], ["sentence_embedding"]),
        ]
        name, shape = "sentence_embedding", ["batch_size", hidden]
    if head == "logits":
        nodes.append(node("MatMul", ["sentence_embedding", "to_heads"], ["logits"]))
        name, shape = "logits", ["batch_size", labels]
    takes = [
        helper.make_tensor_value_info(one, TensorProto.INT64, ["batch_size", "sequence_length"])
        for one in inputs
    ]
    gives = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)]
    used = {one for each in nodes for one in each.input}
    constants = [numpy_helper.from_array(array, key) for key, array in made.items() if key in used]
    graph = helper.make_graph(nodes, "encoder", takes, gives, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def write_text_model(folder: Path, **how: Any) -> Tokenizer:
    """Write `model.onnx` and its tokenizer into a folder; returns the tokenizer."""
    write_encoder(folder / "model.onnx", encoder_weights(), **how)
    return write_tokenizer(folder)
