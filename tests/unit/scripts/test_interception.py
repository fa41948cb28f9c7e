"""Calls to libraries that run models are redirected for chosen threads."""

import threading
from pathlib import Path

import numpy as np
import onnxruntime
from tests.tiny_models import write_doubler

from stoker.scripts.handle_calls import HandleCall
from stoker.scripts.interception import Interception, redirect_calls


def test_only_calls_of_redirected_threads_reach_the_receiver(tmp_path: Path) -> None:
    """Calls of other threads reach the library; its methods are restored afterwards."""
    before = onnxruntime.InferenceSession.run
    session = onnxruntime.InferenceSession(write_doubler(tmp_path / "m.onnx"))
    taken: list[HandleCall] = []

    class Receiver:
        def submit(self, call: HandleCall) -> str:
            taken.append(call)
            return "taken"

    interception = Interception()
    interception.refresh()
    interception.refresh()
    feeds = {"x": np.ones((1, 4), np.float32)}
    try:
        assert session.run(None, feeds)[0].tolist() == [[2.0] * 4]
        with redirect_calls(Receiver()):
            assert session.run(["y"], feeds) == "taken"
            other = threading.Thread(target=lambda: taken.append(session.run(None, feeds)))
            other.start()
            other.join()
        assert session.run(None, feeds)[0].tolist() == [[2.0] * 4]
    finally:
        interception.remove()
    assert onnxruntime.InferenceSession.run is before
    assert "run" not in vars(onnxruntime.InferenceSession)
    call, other_result = taken
    assert (call.handle, call.name, call.rows) == (session, "InferenceSession.run", 1)
    assert other_result[0].tolist() == [[2.0] * 4]
