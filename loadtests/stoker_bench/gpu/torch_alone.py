"""The throughput of BERT in PyTorch without a server: FP16, fused attention, captured as a CUDA graph.

`python -m stoker_bench.gpu.torch_alone --device cuda:0 …` measures in a process of its own and writes JSON to stdout.
On the CPU the network computes in float32, and nothing is captured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from numpy.typing import NDArray
from torch.nn import functional

from stoker.gpu.devices import enter_device
from stoker_bench.networks.bert import EPSILON, MASKED, SIZES, VOCABULARY, BertSizes, seeded_weights

_WARM_UP_RUNS = 3


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


def export(network: Bert, ids: Any, path: Path) -> None:
    """Save the network as an exported program whose number of rows is free."""
    rows = torch.export.Dim("rows", min=1, max=1024)
    torch.export.save(torch.export.export(network, (ids,), dynamic_shapes=({0: rows},)), path)


def _runner(network: Bert, ids: Any) -> Callable[[], object]:
    """Return a function that runs one batch, and returns once the device has finished."""
    if ids.device.type == "cpu":
        return lambda: network(ids)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):
            network(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(ids)

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay


def _measure(network: Bert, ids: Any, seconds: float) -> dict[str, float]:
    run = _runner(network, ids)
    for _ in range(_WARM_UP_RUNS):
        run()
    began_s, runs = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began_s) < seconds or not runs:
        run()
        runs += 1
    return {"rows": len(ids), "rows_per_s": len(ids) * runs / taken_s, "ms": 1e3 * taken_s / runs}


def main() -> None:
    """Measure, save the network, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", choices=SIZES, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--device", required=True, help="cpu or cuda:N")
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--export", type=Path, required=True, metavar="FILE", help="for the server")
    args = parser.parse_args()
    device, _ = enter_device(args.device, ())
    sizes = SIZES[args.sizes]
    network = Bert(seeded_weights(sizes, args.seed), sizes).eval()
    where = "cpu" if device.kind == "cpu" else "cuda:0"
    network = network.to(where) if where == "cpu" else network.half().to(where)
    random = np.random.default_rng(11)
    with torch.no_grad():
        figures = []
        for rows in args.batches:
            ids = torch.from_numpy(random.integers(0, VOCABULARY, (rows, sizes.tokens))).to(where)
            figures.append(_measure(network, ids, args.seconds))
        export(network, ids, args.export)
    print(orjson.dumps(figures).decode())


if __name__ == "__main__":
    main()
