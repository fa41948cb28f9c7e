"""A model whose answers are longer than anybody could know: they come, however long they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx
import numpy as np
import onnx
from onnx import TensorProto, helper
from tests.live_server import LiveServer, wait_until
from tests.patience import PROGRAM_S

NUMBERS = 20_000_000
"""80 MB of them; a row begins with room for 68 MiB where bodies may have 1 MiB."""


def _write_repeater(path: Path) -> Path:
    """A model that gives as many numbers as its input says."""
    half = helper.make_tensor("half", TensorProto.FLOAT, [1], [0.5])
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["count"], ["halves"], value=half)],
        "repeater",
        [helper.make_tensor_value_info("count", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("halves", TensorProto.FLOAT, ["count"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), path)
    return path


def test_an_answer_that_is_larger_than_its_row_is_not_lost(tmp_path: Path) -> None:
    """It is computed a second time in larger rows; the next one at once."""
    model = _write_repeater(tmp_path / "repeater.onnx")
    with LiveServer(tmp_path, model, "--frontends", "1", "--max-body-mb", "1") as server:
        tensor = {"name": "count", "shape": [1], "datatype": "INT64", "data": [NUMBERS]}
        request = {"inputs": [tensor], "parameters": {"binary_data_output": True}}

        def more_batches(than: int) -> float:
            batches = server.metric("stoker_batch_rows_count", model="repeater")
            return batches if batches > than else 0

        for runs in (2, 3):
            answer = httpx.post(
                f"http://127.0.0.1:{server.port}/v2/models/repeater/infer",
                json=request,
                headers={"authorization": f"Bearer {server.key}"},
                timeout=PROGRAM_S,
                trust_env=False,
            )
            assert answer.status_code == 200, answer.text
            head = int(answer.headers["inference-header-content-length"])
            numbers = np.frombuffer(answer.content, "<f4", offset=head)
            assert len(numbers) == NUMBERS
            assert (numbers == 0.5).all()
            # A batch is counted when its answer has left.
            counted = wait_until(partial(more_batches, runs - 1), "the batch is counted")
            assert counted == runs
        assert server.metric("stoker_requests_total", model="repeater", status="200") == 2
        assert server.metric("stoker_rows_in_flight", model="repeater") == 0
