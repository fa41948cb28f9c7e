"""BERT and ResNet-50 of the bench in PyTorch: the networks that the ONNX graphs are, with the same seeded weights.

`python -m stoker_bench.networks.torch_networks resnet50 --seed 7 --export FILE` exports one by torch.export.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from stoker_bench.networks import bert, resnet50
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


class Resnet50(torch.nn.Module):  # type: ignore[misc]
    """The network of `stoker_bench.networks.resnet50`."""

    def __init__(self, weights: Mapping[str, NDArray[np.float32]]) -> None:
        super().__init__()
        for name, values in weights.items():
            axes = {4: (3, 2, 0, 1), 2: (1, 0)}.get(values.ndim)
            # From Keras's order of axes to PyTorch's.
            ordered = values if axes is None else np.ascontiguousarray(values.transpose(axes))
            parameter = torch.nn.Parameter(torch.from_numpy(ordered), requires_grad=False)
            self.register_parameter(name.replace("/", "_"), parameter)

    def forward(self, images: Any) -> Any:
        """Return probabilities, float32 [rows, 1000], for images, float32 [rows, 224, 224, 3]."""
        maps = functional.relu(self._normalised("conv1", images.permute(0, 3, 1, 2), 2, 3))
        maps = functional.max_pool2d(maps, 3, 2, 1)
        for name, _, stride, shortcut in resnet50.blocks():
            past = self._normalised(f"{name}_0", maps, stride) if shortcut else maps
            inner = functional.relu(self._normalised(f"{name}_1", maps, stride))
            inner = functional.relu(self._normalised(f"{name}_2", inner, pad=1))
            maps = functional.relu(past + self._normalised(f"{name}_3", inner))
        logits = functional.linear(maps.mean((2, 3)), self.predictions_kernel, self.predictions_bias)
        return logits.softmax(-1)

    def _normalised(self, name: str, source: Any, stride: int = 1, pad: int = 0) -> Any:
        kernel, bias = getattr(self, f"{name}_conv_kernel"), getattr(self, f"{name}_conv_bias")
        convolved = functional.conv2d(source, kernel, bias, stride, pad)
        mean, variance, gamma, beta = (
            getattr(self, f"{name}_bn_{kind}") for kind in ("moving_mean", "moving_variance", "gamma", "beta")
        )
        return functional.batch_norm(convolved, mean, variance, gamma, beta, eps=resnet50.EPSILON)


def export(network: torch.nn.Module, example: Any, path: Path) -> None:
    """Save a network as an exported program whose number of rows is free.

    Args:
        example: Its input, with at least two rows.
    """
    rows = torch.export.Dim("rows", min=1, max=_MOST_ROWS)
    torch.export.save(torch.export.export(network, (example,), dynamic_shapes=({0: rows},)), path)


def main() -> None:
    """Save a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=("bert", "resnet50"))
    parser.add_argument("--sizes", choices=bert.SIZES, default="base", help="of BERT")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--export", type=Path, required=True, metavar="FILE")
    args = parser.parse_args()
    sizes = bert.SIZES[args.sizes]
    if args.network == "bert":
        network: torch.nn.Module = Bert(bert.seeded_weights(sizes, args.seed), sizes)
        example = torch.ones(2, sizes.tokens, dtype=torch.int64)
    else:
        network = Resnet50(resnet50.seeded_weights(args.seed))
        example = torch.rand(2, *resnet50.ROW_SHAPE)
    with torch.no_grad():
        export(network.eval(), example, args.export)


if __name__ == "__main__":
    main()
