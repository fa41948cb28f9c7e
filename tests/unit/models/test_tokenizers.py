"""The tokenizer beside a model."""

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import InvalidSettings
from stoker.models import tokenizers
from stoker.models.sources import ModelSource
from stoker.models.tokenizers import find_text_input
from stoker.settings.model import ModelSettings
from stoker.settings.sequence import read_sequence
from stoker.settings.text_input import TextInput, TextSettings


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").touch()
    (tmp_path / "tokenizer.json").touch()
    return tmp_path


def find(folder: Path, framework: Any = "onnx", **settings: Any) -> TextInput | None:
    source = ModelSource("m", 1, framework, folder / "model.onnx")
    return find_text_input(source, folder, ModelSettings(**settings))


def test_limits_come_from_the_files_beside_it(folder: Path) -> None:
    """The least of all counts; numbers of a hundred bits, and negative ones, are none."""
    assert find(folder) == TextInput(folder / "tokenizer.json", 512)
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 256, "pad_token_id": 3}))
    assert find(folder) == TextInput(folder / "tokenizer.json", 256, pad_id=3)
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128}))
    assert find(folder) == TextInput(folder / "tokenizer.json", 128, pad_id=3)
    (folder / "config.json").write_text(
        json.dumps({"max_position_embeddings": 100, "pad_token_id": 1, "model_type": "roberta"})
    )
    assert find(folder) == TextInput(folder / "tokenizer.json", 98, pad_id=1)


@pytest.mark.parametrize("model_type", ["roberta", ["roberta"]])
def test_limits_that_are_no_numbers_or_too_large_are_ignored(folder: Path, model_type: Any) -> None:
    """Words, and numbers beyond all limits; then a setting is free."""
    (folder / "config.json").write_text(
        json.dumps({"max_position_embeddings": "many", "model_type": model_type})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    found = find(folder, text=TextSettings(1024))
    assert found is not None
    assert found.max_tokens == 1024


def test_settings_narrow_the_limits(folder: Path) -> None:
    """The operator may allow fewer tokens than the files, and no more."""
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64}))
    found = find(folder, text=TextSettings(32, "refuse"))
    assert found == TextInput(folder / "tokenizer.json", 32, "refuse", is_required=True)
    with pytest.raises(InvalidSettings, match="m: text has max_tokens 65, and its files allow 64"):
        find(folder, text=TextSettings(65))


def test_models_without_texts(folder: Path) -> None:
    """Without a tokenizer, with `off`, as another framework, with state or padding of its own: numbers alone."""
    assert find(folder, text=False) is None
    assert find(folder, "sklearn") is None
    assert find(folder, pad={"input_ids": 0.0}) is None
    state = read_sequence({"state": [{"input_name": "h", "output_name": "hn"}]})
    assert find(folder, sequence=state) is None
    with pytest.raises(InvalidSettings, match="m: text is for models of onnx, torch, tensorflow without"):
        find(folder, "sklearn", text=TextSettings())
    (folder / "tokenizer.json").unlink()
    assert find(folder) is None
    with pytest.raises(InvalidSettings, match=r"m: text needs a tokenizer\.json beside the model"):
        find(folder, text=TextSettings())


def test_without_the_library(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are served with numbers, unless texts are set."""
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
    assert find(folder) is None
    with pytest.raises(InvalidSettings, match="m: the library tokenizers is not installed"):
        find(folder, text=TextSettings())


@pytest.mark.parametrize("content", ["{", "[]", "[" * 5000])
def test_a_broken_file_is_an_error(folder: Path, content: str) -> None:
    """The message names the file."""
    (folder / "config.json").write_text(content)
    with pytest.raises(InvalidSettings, match=r"config\.json"):
        find(folder)
