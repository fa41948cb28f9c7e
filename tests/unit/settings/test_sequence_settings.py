"""How a deployment says which state a model keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.settings.sequence import ControlInput, SequenceSettings, StateTensor, read_sequence

STATE = [{"input_name": "h", "output_name": "hn"}]


def test_sequence_settings_are_read_with_their_defaults() -> None:
    """Each key is read, and those left out, or null, have their defaults."""
    assert read_sequence({"state": STATE}) == SequenceSettings((StateTensor("h", "hn"),))
    nulls = dict.fromkeys(("dims", "batch_axis", "initial"))
    assert read_sequence({"state": [{**STATE[0], **nulls}]}) == SequenceSettings((StateTensor("h", "hn"),))
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
        ({"state": "h"}, "has a value of state that must be a list such as"),
        ({"state": [{**STATE[0], "initial": 5}]}, "must be a text"),
        (
            {"controls": {"START": "begin"}},
            "a value of START that has a value of is that must be start or end",
        ),
        ({"controls": {"START": {"is": "start", "true": 1}}}, "a value of START that has no 'true'"),
        ({"controls": {"A": "start", "B": "start"}}, "has several controls for start"),
        ({"controls": {"A": {"is": "end", "values": [0]}}}, "must be two numbers"),
        ({"controls": {"A": {"is": "end", "values": [0, "1"]}}}, "a value of values that must be a number"),
        ({"controls": {"A": {"is": "end", "dtype": 5}}}, "a value of dtype that must be the name of a dtype"),
        ({"state": STATE, "controls": {"h": "start"}}, "has 'h' twice"),
        ({"controls": {"START": "start"}, "constants": {"START": 1}}, "has 'START' twice"),
        ({"state": STATE, "constants": {"h": 1}}, "has 'h' twice"),
        ({"state": STATE, "idle": 5}, "has no 'idle'"),
        ({"state": STATE, "max_idle": 5}, "did you mean max_idle_s"),
        ({"state": ["h"]}, "must be a list such as"),
        ({"state": [{"input_name": "h"}]}, "must have an input_name and an output_name in each item"),
        ({"state": [{**STATE[0], "axes": 1}]}, "a value of state that has no 'axes'"),
        (
            {"state": [{**STATE[0], "batch_axis": -1}]},
            "batch_axis that must be a whole number between 0 and 7",
        ),
        ({"state": [{**STATE[0], "dims": [0]}]}, "must be a list of sizes above 0"),
        ({"state": [{**STATE[0], "dims": [65536, 65536]}]}, "with at most 2147483647 elements"),
        ({"state": [{**STATE[0], "dtype": 32}]}, "a value of dtype that must be the name of a dtype"),
        ({"state": [*STATE, {"input_name": "c", "output_name": "hn"}]}, "has 'hn' twice"),
        ({"state": STATE, "dims": {"x": "512"}}, "must be a list of sizes above 0"),
        ({"state": STATE, "dims": [512]}, "must be a mapping of inputs"),
        ({"state": STATE, "constants": {"sr": True}}, "a value of sr that must be a number"),
        ({"state": STATE, "max_idle_s": 0}, "a value of max_idle_s that must be between 1e-06"),
        ({"state": STATE, "max_sequences": 0}, "must be a whole number"),
        ({"state": STATE, "max_sequences": 1.5}, "must be a whole number"),
    ],
)
def test_invalid_sequence_settings_are_refused(value: Any, complaint: str) -> None:
    """The complaint continues the sentence that begins with the setting's name."""
    with pytest.raises(ValueError, match=complaint):
        read_sequence(value)
