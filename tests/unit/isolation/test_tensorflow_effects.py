"""Side effects of SavedModels, read from their files without TensorFlow."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_models import saved_model_bytes

from stoker.isolation.tensorflow.effects import find_state, read_effects

WRITTEN = Path(__file__).parents[2] / "saved_models"


@pytest.mark.parametrize("name", sorted(folder.name for folder in WRITTEN.glob("tf*")))
def test_models_that_only_compute_do_nothing_else(name: str) -> None:
    """Files of all versions of TensorFlow are read; saving and restoring variables is no part of serving."""
    effects = read_effects((WRITTEN / name / "saved_model.pb").read_bytes())
    assert effects.outside() == []
    state = {signature: find_state(kinds) for signature, kinds in effects.signatures.items()}
    assert state == {
        signature: ["AssignAddVariableOp"] if "functions" in name and signature == "serving_default" else []
        for signature in state
    }


def test_effects_of_a_signature_include_called_functions() -> None:
    """Called functions and control dependencies count; nodes beyond an input or out of reach do not."""
    effects = read_effects(
        saved_model_bytes(
            nodes={
                "beyond": ("ReadFile", [], []),
                "x": ("Identity", ["beyond"], []),
                "log": ("WriteFile", ["x:0"], []),
                "y": ("StatefulPartitionedCall", ["x:0", "^log"], ["called"]),
                "other": ("SaveV2", [], []),
                "start": ("MatchingFiles", [], []),
            },
            functions={
                "called": [("If", ["deeper"])],
                "deeper": [("EagerPyFunc", []), ("Assign", ["called"])],
            },
            signatures={"serving_default": (["x:0"], ["y:0"]), "__saved_model_init_op": ([], ["start"])},
        )
    )
    assert effects.outside() == [
        "when it is loaded: MatchingFiles",
        "for requests to serving_default: EagerPyFunc, WriteFile",
    ]
    assert find_state(effects.signatures["serving_default"]) == ["Assign", "WriteFile"]


def test_the_served_graph_of_several_is_read() -> None:
    """The served graph has the single tag `serve`."""
    train = saved_model_bytes({"y": ("WriteFile", [], [])}, {}, {"serving_default": ([], ["y:0"])}, "train")
    serve = saved_model_bytes({"y": ("Identity", [], [])}, {}, {"serving_default": ([], ["y:0"])})
    assert read_effects(train + serve).signatures == {"serving_default": {"Identity"}}


@pytest.mark.parametrize("data", [b"\x12\x7f", b"\x12\x05\x0a", b"\xff" * 12])
def test_file_that_is_no_saved_model_is_refused(data: bytes) -> None:
    """Other content raises ValueError."""
    with pytest.raises(ValueError, match=r"."):
        read_effects(data)


def test_an_empty_file_has_no_effects() -> None:
    """It has no graph."""
    assert read_effects(b"").outside() == []
