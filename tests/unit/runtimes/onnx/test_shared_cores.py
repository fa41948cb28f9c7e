"""A batch alone runs in the session of all cores, batches beside it in the other one; sessions are puppets."""

from typing import Any

import pytest

from stoker.runtimes.onnx.shared_cores import SharedCores


def test_batch_alone_has_all_cores_and_others_share_them() -> None:
    """A batch that begins within another one shares; after both, also after a failure, the next one is alone."""
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
    with pytest.raises(ValueError, match="it fails"):
        cores.run({"x": "another within"})
    cores.run({})
    assert ran == ["alone", "shared", "alone"]
