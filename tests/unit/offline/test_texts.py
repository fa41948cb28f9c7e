"""Texts without a server: the same answers as from one."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tests.text_models import write_text_model

from stoker.errors import InvalidInput
from stoker.offline import Predictor

TEXTS = ("how far is it", "a quiet harbour before the first ships of the morning", "stones")


def test_a_predictor_takes_texts(tmp_path: Path) -> None:
    """A column of texts, or an array; they have the answers of the model to each alone."""
    tokenizer = write_text_model(tmp_path / "model")
    path = tmp_path / "model" / "model.onnx"
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    expected = []
    for text in TEXTS:
        found = tokenizer.encode(text)
        feeds = {
            "input_ids": found.ids,
            "attention_mask": found.attention_mask,
            "token_type_ids": found.type_ids,
        }
        expected.append(session.run(None, {name: np.array([ids]) for name, ids in feeds.items()})[0][0])
    with Predictor(tmp_path / "model", "cpu", workspace=tmp_path / "workspace") as predictor:
        by_name = predictor({"text": np.array(TEXTS, object)})
        assert np.allclose(by_name["sentence_embedding"], expected, atol=1e-5)
        assert np.allclose(predictor(np.array(TEXTS)), expected, atol=1e-5)
        with pytest.raises(InvalidInput):
            predictor({"text": np.array([["a", "b", "c"]], object)})
