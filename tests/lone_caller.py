"""One caller of a model on a card, from socket to answer: a puppet of the card in a real device process.

`python -m tests.lone_caller` prints the fastest of some thousand requests, beside the runtime's own time on an H200.
The cores of the machine may have other work, so slower ones say little.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.http.raw_http import binary_infer
from tests.live_server import LiveServer
from tests.timed_cuda import CardTimes

__all__ = ["MODELS", "CardModel", "times_us"]

_ROOT: Final = Path(__file__).parents[1]
_REQUESTS: Final = 4000

_CARD: Final = """
import sys

if {{"stoker.gateway.frontend", "stoker.device.process"}}.intersection(sys.orig_argv):
    import stoker.arena

    # As on the machine of the card, which has 16 cores.
    stoker.arena.AWAKE_NS = 2_000_000

if "stoker.device.process" in sys.orig_argv:
    from stoker.device import loading
    from tests.timed_cuda import CardTimes, on_timed_card

    load = loading.load_runtime
    loading.load_runtime = lambda *arguments: on_timed_card(load(*arguments), {times!r})
"""
"""Imported by each process of the server at its start."""


class CardModel(NamedTuple):
    """A model on a card.

    Attributes:
        row: A row that it takes.
        kept: The number of its outputs.
    """

    row: np.ndarray
    kept: int
    times: CardTimes


_NUMBERS: Final = np.arange(224 * 224 * 3) % 251
MODELS: Final = {
    "resnet50": CardModel(_NUMBERS.astype(np.uint8).reshape(224, 224, 3), 1000, CardTimes(10, 20, 581, 10)),
    "bert": CardModel(_NUMBERS[:128], 2, CardTimes(10, 8, 525, 8)),
}
"""ResNet-50 and BERT-base with 128 tokens, FP16, as on an H200 on 2026-11-26 and -27; their copies are estimates."""


def _write_first_elements(path: Path, row: np.ndarray, kept: int) -> Path:
    """Write a model of rows like this one, whose outputs are their first elements."""
    constants = {"first": 0, "end": kept, "axis": 1}
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("Slice", ["flat", *constants], ["part"]),
        helper.make_node("Cast", ["part"], ["y"], to=TensorProto.FLOAT),
    ]
    kind = helper.np_dtype_to_tensor_dtype(row.dtype)
    graph = helper.make_graph(
        nodes,
        "card",
        [helper.make_tensor_value_info("x", kind, ["rows", *row.shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", kept])],
        [numpy_helper.from_array(np.array([value]), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    return path


def times_us(folder: Path, model: CardModel, requests: int = _REQUESTS) -> np.ndarray:
    """The times of requests, one after the other, to a server that starts in an empty folder."""
    puppet, scratch, row = folder / "puppet", folder / "server", model.row
    puppet.mkdir()
    scratch.mkdir()
    (puppet / "sitecustomize.py").write_text(_CARD.format(times=model.times), encoding="utf-8")
    path = _write_first_elements(folder / "card.onnx", row, model.kept)
    env = {"PYTHONPATH": f"{puppet}:{_ROOT}"}
    took_ns = []
    with LiveServer(scratch, path, "--max-batch-rows", "8", "--frontends", "1", env=env) as server:
        request = binary_infer("card", server.key, row[np.newaxis], row.dtype.name.upper())
        with server.connect() as connection:
            for _ in range(requests):
                begun_ns = time.perf_counter_ns()
                answer = connection.ask(request)
                took_ns.append(time.perf_counter_ns() - begun_ns)
                outputs = np.frombuffer(answer.body[-4 * model.kept :], np.float32)
                assert outputs.tolist() == row.reshape(-1)[: model.kept].tolist()
    return np.array(took_ns) / 1e3


if __name__ == "__main__":
    for name, model in MODELS.items():
        with tempfile.TemporaryDirectory() as scratch:
            fastest_us, own_us = times_us(Path(scratch), model).min(), model.times.alone_us
        print(f"{name}: {fastest_us:.0f} µs, {fastest_us / own_us:.2f} × the runtime's own {own_us:.0f} µs")
