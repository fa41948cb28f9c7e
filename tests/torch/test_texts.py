"""Programs of PyTorch that take texts."""

from pathlib import Path

import numpy as np
import pytest
from tests.torch.conftest import torch

from stoker.deployment import Deployment, Device
from stoker.device.loading import load
from stoker.settings.text_input import TextInput

pytest.importorskip("tokenizers", reason="the extra text is not installed")

TEXTS = ("how far is it", "", "a quiet harbour before the first ships of the morning")


class Encoder(torch.nn.Module):
    """Attention within a text, and the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(300, 16)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        words = self.words(input_ids)
        scores = words @ words.transpose(1, 2) / 4 - 1e4 * (1 - attention_mask[:, None, :].float())
        words = words + torch.softmax(scores, -1) @ words
        seen = attention_mask[:, :, None].float()
        return (words * seen).sum(1) / seen.sum(1)


def test_programs_take_texts(tmp_path: Path) -> None:
    """A text has the answer that it has alone, whatever is beside it."""
    from tests.text_models import write_tokenizer

    from stoker.wire.texts import Tokenizing

    write_tokenizer(tmp_path)
    module = Encoder().eval()
    free = {0: torch.export.Dim("rows", min=1, max=1024), 1: torch.export.Dim("tokens", min=1, max=64)}
    example = (torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.long))
    shapes = {"input_ids": free, "attention_mask": free}
    torch.export.save(torch.export.export(module, example, dynamic_shapes=shapes), tmp_path / "model.pt2")
    text = TextInput(tmp_path / "tokenizer.json", 64, pad_id=0, is_required=True)
    model = Deployment("m", 1, "torch", tmp_path / "model.pt2", tmp_path, 8, 1 << 20, text=text)
    loaded = load(model, Device("cpu", 0, "CPU"))
    assert loaded.signature.isolation is not None
    assert loaded.signature.isolation.batched
    rows = Tokenizing(text).encode(np.array([one.encode() for one in TEXTS], object)).rows
    (answers,) = loaded.runtime.run([rows])
    for row, answer in zip(rows, answers, strict=True):
        ids = torch.from_numpy(row[None, 1 : 1 + row[0]].astype(np.int64))
        assert np.allclose(answer, module(ids, torch.ones_like(ids)).detach().numpy()[0], atol=1e-5)
