"""Folders of sentence-transformers become one graph, whose vectors are those that numpy pools."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import save_file
from tests.text_models import encoder_weights, write_encoder, write_tokenizer

from stoker.errors import InvalidSettings, RepositoryError
from stoker.importing.imports import ImportOrder, import_model
from stoker.importing.sentence_transformers import pooled_model
from stoker.models.repository import Repository

MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])
IDS = np.where(MASK, np.arange(15).reshape(3, 5) + 5, 0)
FEEDS = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": np.zeros_like(IDS)}
LEGACY = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


def write_folder(
    folder: Path, pooling: dict[str, Any], *, normalizes: bool = False, steps: Sequence[str] = (), **how: Any
) -> Path:
    """A folder as the library saves it, with the encoder as exporters write it."""
    write_encoder(folder / "onnx" / "model.onnx", encoder_weights(), head=how.pop("head", "tokens"), **how)
    write_tokenizer(folder)
    kinds = steps or ("Transformer", "Pooling", *(["Normalize"] if normalizes else []))
    listed = [
        {
            "idx": place,
            "path": f"{place}_{kind}" if place else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "sentence_bert_config.json").write_text(
        json.dumps({"max_seq_length": 48, "do_lower_case": False})
    )
    return folder


def run(path: Path) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, FEEDS), strict=True))


def pooled(tokens: np.ndarray, mode: str) -> np.ndarray:
    """The library's definitions, written again."""
    rows = []
    for vectors, mask in zip(tokens, MASK, strict=True):
        seen = vectors[: mask.sum()]
        places = np.arange(1, len(seen) + 1)[:, None]
        rows.append(
            {
                "cls": seen[0],
                "max": seen.max(axis=0),
                "mean": seen.mean(axis=0),
                "mean_sqrt_len_tokens": seen.sum(axis=0) / np.sqrt(len(seen)),
                "weightedmean": (seen * places).sum(axis=0) / places.sum(),
                "lasttoken": seen[-1],
            }[mode]
        )
    return np.array(rows)


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("mode", list(LEGACY))
@pytest.mark.parametrize("is_legacy", [False, True])
def test_one_graph_pools(tmp_path: Path, mode: str, normalizes: bool, is_legacy: bool) -> None:
    """In each way, with both forms of the configuration, scaled or not."""
    config = {name: key == mode for key, name in LEGACY.items()} if is_legacy else {"pooling_mode": mode}
    folder = write_folder(tmp_path / "folder", config, normalizes=normalizes)
    target = pooled_model(folder, tmp_path / "target")
    expected = pooled(run(folder / "onnx" / "model.onnx")["last_hidden_state"], mode)
    if normalizes:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    outputs = run(target / "model.onnx")
    assert list(outputs) == ["sentence_embedding"]
    assert np.allclose(outputs["sentence_embedding"], expected, atol=1e-5)
    assert {path.name for path in target.iterdir()} == {
        "model.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
        "sentence_bert_config.json",
    }


def test_several_ways_are_joined(tmp_path: Path) -> None:
    """In the order of the list; by the old form in that of the library."""
    for number, (config, modes) in enumerate(
        (
            ({"pooling_mode": ["mean", "cls"]}, ("mean", "cls")),
            ({LEGACY["mean"]: True, LEGACY["cls"]: True}, ("cls", "mean")),
            ({}, ("mean",)),
        )
    ):
        folder = write_folder(tmp_path / f"folder{number}", config)
        target = pooled_model(folder, tmp_path / f"target{number}")
        tokens = run(folder / "onnx" / "model.onnx")["last_hidden_state"]
        expected = np.concatenate([pooled(tokens, mode) for mode in modes], axis=1)
        assert np.allclose(run(target / "model.onnx")["sentence_embedding"], expected, atol=1e-5)


@pytest.mark.parametrize(
    "activation", ["torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"]
)
@pytest.mark.parametrize(("has_bias", "kind"), [(False, np.float32), (True, np.float32), (True, np.float16)])
def test_dense_steps_project_the_vector(
    tmp_path: Path, activation: str, has_bias: bool, kind: type[np.floating]
) -> None:
    """In the order of the list: here before the normalisation."""
    steps = ("Transformer", "Pooling", "Dense", "Normalize")
    folder = write_folder(tmp_path / "folder", {}, steps=steps)
    random = np.random.default_rng(3)
    weight, bias = (random.standard_normal(shape).astype(kind) for shape in ((5, 32), (5,)))
    dense = folder / "2_Dense"
    dense.mkdir()
    (dense / "config.json").write_text(json.dumps({"activation_function": activation}))
    tensors = {"linear.weight": weight, **({"linear.bias": bias} if has_bias else {})}
    save_file(tensors, dense / "model.safetensors")
    expected = (
        pooled(run(folder / "onnx" / "model.onnx")["last_hidden_state"], "mean") @ weight.T + bias * has_bias
    )
    expected = np.tanh(expected) if "Tanh" in activation else expected
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    target = pooled_model(folder, tmp_path / "target")
    assert np.allclose(run(target / "model.onnx")["sentence_embedding"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "weights", "words"),
    [
        ("torch.nn.GELU", b"", "has the activation GELU; known are Identity, Tanh"),
        ("torch.nn.Tanh", None, r"weights in model\.safetensors"),
        ("torch.nn.Tanh", b"no tensors", r"model\.safetensors cannot be read"),
    ],
)
def test_dense_steps_that_are_not_known_are_refused(
    tmp_path: Path, activation: str, weights: bytes | None, words: str
) -> None:
    """Other activations, weights in a pickle, and files that hold something else."""
    folder = write_folder(tmp_path / "folder", {}, steps=("Transformer", "Pooling", "Dense"))
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps({"activation_function": activation}))
    if weights is not None:
        (folder / "2_Dense" / "model.safetensors").write_bytes(weights)
    with pytest.raises(RepositoryError, match=words):
        pooled_model(folder, tmp_path / "target")


def test_newer_graphs_pool_alike(tmp_path: Path) -> None:
    """From version 18 of ONNX on the axes of a reduction are an input."""
    folder = write_folder(tmp_path / "folder", {"pooling_mode": "max"})
    path = folder / "onnx" / "model.onnx"
    expected = pooled(run(path)["last_hidden_state"], "max")
    onnx.save(onnx.version_converter.convert_version(onnx.load(path), 18), path)
    target = pooled_model(folder, tmp_path / "target")
    assert np.allclose(run(target / "model.onnx")["sentence_embedding"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "how", "words"),
    [
        (
            {},
            {"steps": ("Transformer", "Pooling", "LSTM")},
            "has the steps Transformer, Pooling, LSTM; known are",
        ),
        ({}, {"steps": ("Transformer",)}, "has the steps Transformer; known are"),
        ({"pooling_mode": "median"}, {}, "pools by median; known are cls, max"),
        ({}, {"head": "pooled"}, "pooling needs an attention_mask, and a vector for each token"),
    ],
)
def test_others_are_refused(tmp_path: Path, pooling: dict[str, Any], how: dict[str, Any], words: str) -> None:
    """The message says what is known."""
    folder = write_folder(tmp_path / "folder", pooling, **how)
    with pytest.raises(RepositoryError, match=words):
        pooled_model(folder, tmp_path / "target")


def test_broken_folders_are_refused(tmp_path: Path) -> None:
    """Without an ONNX file, with a list of steps that is none, with texts that the library changes first."""
    folder = write_folder(tmp_path / "folder", {})
    (folder / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(RepositoryError, match="has do_lower_case"):
        pooled_model(folder, tmp_path / "target")
    for content in ("{}", "{", "[1]"):
        (folder / "modules.json").write_text(content)
        with pytest.raises((InvalidSettings, RepositoryError), match=r"modules\.json"):
            pooled_model(folder, tmp_path / "target")
    (folder / "onnx" / "model.onnx").unlink()
    with pytest.raises(RepositoryError, match="holds no model"):
        pooled_model(folder, tmp_path / "target")


def test_a_folder_is_imported(tmp_path: Path) -> None:
    """The registered version has the graph with its pooling, and the tokenizer beside it."""
    folder = write_folder(tmp_path / "folder", {"pooling_mode": "mean"}, normalizes=True)
    order = ImportOrder("minilm", folder, None, (), "cpu", 1e-3, 4, 120)
    repository = Repository(tmp_path / "models")
    registered = import_model(order, repository, datetime.now(UTC), lambda *_: None)
    assert registered.path.name == "model.onnx"
    assert (registered.path.parent / "tokenizer.json").is_file()
    assert list(run(registered.path)) == ["sentence_embedding"]
