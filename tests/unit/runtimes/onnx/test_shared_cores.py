"""A batch alone runs in the session of all cores, batches beside it in the other one; sessions are puppets."""

from typing import Any

import pytest

from stoker.arena import LONE_ROWS
from stoker.runtimes.onnx.shared_cores import SharedCores


def test_batch_alone_has_all_cores_and_others_share_them() -> None:
    """A batch that begins within another one shares. So do the first ones after both."""
    ran: list[str] = []

    def alone(feeds: Any) -> Any:
        ran.append("alone")
        if feeds:
            return cores.run({})
        return {}

    def shared(feeds: Any) -> Any:
        ran.append("shared")
        raise ValueError("it fails")

    cores = SharedCores(alone, shared)
    for _ in range(2):
        cores.run({})
    for feeds in ({"x": "another within"}, *[{}] * LONE_ROWS):
        with pytest.raises(ValueError, match="it fails"):
            cores.run(feeds)
    cores.run({})
    assert ran == ["alone"] * 3 + ["shared"] * (1 + LONE_ROWS) + ["alone"]
