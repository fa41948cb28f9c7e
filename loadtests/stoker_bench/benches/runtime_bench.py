"""`stoker bench --runtimes`: BERT and ResNet-50 on the CPU by PyTorch and by ONNX Runtime, with the same weights."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.benches.lineup import BenchOptions, Lineup
from stoker_bench.contestants.contest import Case
from stoker_bench.generators.load_generator import output_of
from stoker_bench.generators.scoring_request import binary_open_inference
from stoker_bench.networks import bert, resnet50
from stoker_bench.reports import CaseResult, Report, say

PYTORCH, ONNX_RUNTIME = "PyTorch", "ONNX Runtime"
CONNECTIONS = (4, 1)
_SEED: Final = 7
_INFER_PATH: Final = "/v2/models/bench/infer"
_OPTIONS: Final = ("--max-batch-rows", "4")
"""Larger batches of these networks gain nothing on a CPU, and take long to be tried at the load."""
_EXPORT_S: Final = 300.0
"""Most time for importing PyTorch and exporting."""


def run_runtime_bench(options: BenchOptions, networks: tuple[str, ...] = ("base", "resnet50")) -> Report:
    """Run all cases and return the report; every process started here has ended when this returns or raises.

    Args:
        networks: `resnet50`, or sizes of BERT.

    Raises:
        OperatorError: A server does not start or answers wrongly, a network cannot be exported, or a load generator
            fails.
    """
    report: Report | None = None
    for network in networks:
        shape = resnet50.ROW_SHAPE if network == "resnet50" else (bert.SIZES[network].tokens,)
        with Lineup(options, row_shape=shape) as lineup:
            cases = _cases(lineup, network)
            report = report or lineup.report(Report, "BERT-base with 128 tokens and ResNet-50 in float32")
            report.cases += cases
    assert report is not None, "there are networks"
    return report


def _cases(lineup: Lineup, network: str) -> list[CaseResult]:
    onnx_file, exported = lineup.folder / "model.onnx", lineup.folder / "model.pt2"
    title = "ResNet-50" if network == "resnet50" else f"BERT-{network}"
    say(f"writing {title}")
    input_name = _write_onnx(network, onnx_file)
    named = [network] if network == "resnet50" else ["bert", "--sizes", network]
    command = [sys.executable, "-m", "stoker_bench.networks.torch_networks", *named]
    output_of([*command, "--seed", str(_SEED), "--export", str(exported)], _EXPORT_S)
    convert = _images if network == "resnet50" else _token_ids
    dialect = binary_open_inference(input_name, convert)
    servers = []
    for name, path in ((PYTORCH, exported), (ONNX_RUNTIME, onnx_file)):
        launch = dataclasses.replace(lineup.launch(path, _OPTIONS), name=name)
        servers.append(lineup.start(launch, metrics=True).speaking(name, _INFER_PATH, dialect))
    connections = lineup.options.concurrency or CONNECTIONS
    lineup.check(servers, _outputs(onnx_file, input_name, convert), connections)
    return [lineup.contest(servers, Case(each), title) for each in connections]


def _write_onnx(network: str, path: Path) -> str:
    """Write a network, and return the name of its input."""
    import onnx

    if network == "resnet50":
        onnx.save(resnet50.resnet50(resnet50.seeded_weights(_SEED)), path)
        return resnet50.INPUT_NAME
    sizes = bert.SIZES[network]
    onnx.save(bert.bert(bert.seeded_weights(sizes, _SEED), sizes), path)
    return bert.INPUT_NAME


def _images(rows: NDArray[np.float32]) -> NDArray[Any]:
    return rows


def _token_ids(rows: NDArray[np.float32]) -> NDArray[Any]:
    return (rows * bert.VOCABULARY).astype(np.int64)


def _outputs(
    path: Path, input_name: str, convert: Callable[[NDArray[np.float32]], NDArray[Any]]
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """Return the function of rows of numbers in 0..1 that the network is, by ONNX Runtime in this process."""
    import onnxruntime

    session: Any = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        first: NDArray[np.float32] = session.run(None, {input_name: convert(rows)})[0]
        return first

    return run
