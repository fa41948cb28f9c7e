"""Models with state as runtimes of rows: initial states, and states that differ."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from tests.puppets import PuppetRuntime

from stoker.errors import LoadFailed
from stoker.runtimes import sequence_runtime
from stoker.runtimes.sequence_runtime import keep_state
from stoker.settings.sequence import read_sequence
from stoker.tensors import Signature, TensorSpec


@pytest.mark.parametrize("name", ["state.npy", "state"])
def test_initial_state_in_a_fifo_is_refused_at_once(tmp_path: Path, name: str) -> None:
    """The process of the model does not wait for a writer."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(LoadFailed, match="it is no regular file"):
        sequence_runtime._initial_state("net", TensorSpec("h", "float32", (2,)), tmp_path, Path(name))


def test_initial_state_that_announces_more_numbers_than_it_has_is_refused(tmp_path: Path) -> None:
    """No memory is reserved for the missing numbers."""
    announced = b"(2, 999999999999), }"
    with io.BytesIO() as file:
        np.save(file, np.zeros((2, 2), np.float32))
        content = file.getvalue()
    (tmp_path / "state.npy").write_bytes(content.replace(b"(2, 2), }".ljust(len(announced)), announced))
    with pytest.raises(LoadFailed, match="an array is cut short"):
        sequence_runtime._initial_state(
            "net", TensorSpec("h", "float32", (2, 2)), tmp_path, Path("state.npy")
        )


def test_state_that_differs_between_input_and_output_is_refused() -> None:
    """The message has both shapes."""
    specs = [TensorSpec(name, "float32", (size,)) for name, size in (("x", 1), ("h", 2), ("y", 1), ("hn", 3))]
    inner = ForkingPuppet(Signature(tuple(specs[:2]), tuple(specs[2:])))
    settings = read_sequence({"state": [{"input_name": "h", "output_name": "hn"}]})
    with pytest.raises(LoadFailed, match=r"takes h float32\[2\] as state and gives hn float32\[3\]"):
        keep_state("m", inner, settings)


class ForkingPuppet(PuppetRuntime):
    """A puppet that can be forked."""

    def fork(self) -> ForkingPuppet:
        """Return the puppet itself."""
        return self
