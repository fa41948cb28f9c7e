"""The throughput of BERT in PyTorch without a server: FP16, fused attention, captured as a CUDA graph.

`python -m stoker_bench.gpu.torch_alone --device cuda:0 …` measures in a process of its own and writes JSON to stdout.
On the CPU the network computes in float32, and nothing is captured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from stoker.gpu.confinement import enter_device
from stoker_bench.networks.bert import SIZES, VOCABULARY, seeded_weights
from stoker_bench.networks.torch_bert import Bert, export

_WARM_UP_RUNS = 3


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
