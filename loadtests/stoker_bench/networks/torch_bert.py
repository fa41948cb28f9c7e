"""BERT of the bench in PyTorch: the network that the ONNX graph is, with the same seeded weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from stoker_bench.networks.bert import EPSILON, MASKED, BertSizes

_MOST_ROWS = 1024


class Bert(torch.nn.Module):  # type: ignore[misc]
    """The network of `stoker_bench.networks.bert`, with one product for query, keys and values."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]], sizes: BertSizes) -> None:
        super().__init__()
        self._sizes = sizes
        parameters = dict(weights)
        for layer in range(sizes.layers):
            for suffix in ("", "_bias"):
                parts = [
                    parameters.pop(f"layer{layer}_{part}{suffix}") for part in ("query", "keys", "values")
                ]
                parameters[f"layer{layer}_attention{suffix}"] = np.concatenate(parts, axis=-1)
        for name, values in parameters.items():
            is_kernel = values.ndim > 1 and name not in ("words", "positions")
            # PyTorch's kernels are [outputs, inputs].
            tensor = torch.from_numpy(np.ascontiguousarray(values.T if is_kernel else values))
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    def forward(self, input_ids: Any) -> Any:
        """Return logits, float32 [rows, 2], for ids, int64 [rows, tokens]."""
        hidden = self._normalised("embedded", functional.embedding(input_ids, self.words) + self.positions)
        mask = ((input_ids == 0) * MASKED).to(hidden.dtype)[:, None, None, :]
        for layer in range(self._sizes.layers):
            hidden = self._layer(f"layer{layer}", hidden, mask)
        return self._linear("classes", hidden[:, 0]).float()

    def _layer(self, name: str, hidden: Any, mask: Any) -> Any:
        rows, tokens, width = hidden.shape
        parts = self._linear(f"{name}_attention", hidden)
        parts = parts.view(rows, tokens, 3, self._sizes.heads, self._sizes.head_width)
        query, keys, values = parts.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        attended = attended.transpose(1, 2).reshape(rows, tokens, width)
        hidden = self._normalised(f"{name}_attended", hidden + self._linear(f"{name}_projection", attended))
        active = functional.gelu(self._linear(f"{name}_inner", hidden))
        return self._normalised(f"{name}_output", hidden + self._linear(f"{name}_outer", active))

    def _linear(self, name: str, source: Any) -> Any:
        return functional.linear(source, getattr(self, name), getattr(self, f"{name}_bias"))

    def _normalised(self, name: str, source: Any) -> Any:
        scale, bias = getattr(self, f"{name}_scale"), getattr(self, f"{name}_bias")
        return functional.layer_norm(source, (self._sizes.width,), scale, bias, EPSILON)


def export(network: torch.nn.Module, example: Any, path: Path) -> None:
    """Save a network as an exported program whose number of rows is free.

    Args:
        example: Its input, with at least two rows.
    """
    rows = torch.export.Dim("rows", min=1, max=_MOST_ROWS)
    torch.export.save(torch.export.export(network, (example,), dynamic_shapes=({0: rows},)), path)
