"""How a deployment says which state a model keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.settings.sequence import ControlInput, SequenceSettings, StateTensor, read_sequence

STATE = [{"input_name": "h", "output_name": "hn"}]


def test_sequence_settings_are_read_with_their_defaults() -> None:
    """Each key is read, and those left out have their defaults."""
    assert read_sequence({"state": STATE}) == SequenceSettings((StateTensor("h", "hn"),))
    value = {
        "state": [{"input_name": "h", "output_name": "hn", "dims": [2, 64], "batch_axis": 1}],
        "dims": {"x": [512]},
        "constants": {"sr": 16000},
        "max_idle_s": 5,
        "max_sequences": 20,
    }
    assert read_sequence(value) == SequenceSettings(
        (StateTensor("h", "hn", (2, 64), 1),), {"x": (512,)}, {"sr": 16000}, 5.0, 20
    )


def test_controls_and_initial_states_are_read() -> None:
    """Controls are read by their input and values; a state may begin with a file."""
    assert read_sequence({}) == SequenceSettings()
    value = {
        "state": [{**STATE[0], "initial": "h0.npy"}],
        "controls": {
            "START": "start",
            "READY": {"is": "ready", "values": [False, True], "dtype": "bool"},
            "CORRID": {"is": "id", "dtype": "uint64"},
        },
    }
    assert read_sequence(value) == SequenceSettings(
        (StateTensor("h", "hn", initial=Path("h0.npy")),),
        controls=(
            ControlInput("START", "start"),
            ControlInput("READY", "ready", 0, 1, "bool"),
            ControlInput("CORRID", "id", dtype="uint64"),
        ),
    )


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("h=hn", "must be a mapping"),
        ({"state": "h"}, "has a state that is no list"),
        ({"state": [{**STATE[0], "initial": 5}]}, "must be a text"),
        ({"controls": {"START": "begin"}}, "'START' that is none of start, end, ready, id"),
        ({"controls": {"START": {"is": "start", "true": 1}}}, "the control 'START' with no 'true'"),
        ({"controls": {"A": "start", "B": "start"}}, "has several controls for start"),
        ({"controls": {"A": {"is": "end", "values": [0]}}}, "that are not two"),
        ({"controls": {"A": {"is": "end", "values": [0, "1"]}}}, "values of 'A' that is no number"),
        ({"controls": {"A": {"is": "end", "dtype": 5}}}, "a dtype of 'A' that is no name"),
        ({"state": STATE, "controls": {"h": "start"}}, "has 'h' twice"),
        ({"controls": {"START": "start"}, "constants": {"START": 1}}, "has 'START' twice"),
        ({"state": STATE, "constants": {"h": 1}}, "has 'h' twice"),
        ({"state": STATE, "idle": 5}, "has no 'idle'"),
        ({"state": STATE, "max_idle": 5}, "did you mean max_idle_s"),
        ({"state": ["h"]}, "a state that is no mapping"),
        ({"state": [{"input_name": "h"}]}, "without input_name or output_name"),
        ({"state": [{**STATE[0], "axes": 1}]}, "a state with no 'axes'"),
        ({"state": [{**STATE[0], "batch_axis": -1}]}, "no number of an axis"),
        ({"state": [{**STATE[0], "dims": [0]}]}, "no list of sizes above 0"),
        ({"state": [{**STATE[0], "dims": [65536, 65536]}]}, "with at most 2147483647 elements"),
        ({"state": [{**STATE[0], "dtype": 32}]}, "has a dtype of .* that is no name"),
        ({"state": [*STATE, {"input_name": "c", "output_name": "hn"}]}, "has 'hn' twice"),
        ({"state": STATE, "dims": {"x": "512"}}, "no list of sizes above 0"),
        ({"state": STATE, "dims": [512]}, "no mapping of inputs"),
        ({"state": STATE, "constants": {"sr": True}}, "is no number"),
        ({"state": STATE, "max_idle_s": 0}, "not above 0"),
        ({"state": STATE, "max_sequences": 0}, "no whole number"),
        ({"state": STATE, "max_sequences": 1.5}, "no whole number"),
    ],
)
def test_invalid_sequence_settings_are_refused(value: Any, complaint: str) -> None:
    """The complaint continues the sentence that begins with the setting's name."""
    with pytest.raises(ValueError, match=complaint):
        read_sequence(value)
