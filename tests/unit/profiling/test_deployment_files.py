"""The deployment file of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from stoker.errors import InvalidSettings
from stoker.profiling.candidates import Candidate
from stoker.profiling.deployment_files import check_output, make_deployment, select_model, write_deployment
from stoker.settings.loading import load_settings

CANDIDATE = Candidate(64, 2, (1, 64), "graph")


def test_a_server_loads_the_written_file(tmp_path: Path) -> None:
    """The file has the chosen settings and the target, and its first lines are a comment."""
    output = tmp_path / "deployment.yaml"
    write_deployment(output, make_deployment("digits:3", None, "cuda:0", 50, CANDIDATE), ["expected: much"])
    (model,) = load_settings({}, {}, output, ()).models
    assert (model.registered, model.target_ms, model.device) == ("digits:3", 50, ("cuda:0",))
    assert (model.max_batch_rows, model.instances, model.execution) == (64, 2, "graph")
    assert model.batch_buckets == (1, 64)
    assert output.read_text().startswith("# expected: much\n")


def test_profiling_keeps_unrelated_settings(tmp_path: Path) -> None:
    """Other models and settings that are not searched stay as they were in the file."""
    config = tmp_path / "old.yaml"
    content = {
        "port": 8081,
        "device": "cpu",
        "models": [
            {"path": "a.onnx", "instances": 3, "batch_buckets": [8], "timeout_ms": 900},
            {"path": "b.onnx", "name": "other"},
        ],
    }
    config.write_text(yaml.safe_dump(content))
    made = make_deployment("a", config, "auto", 20, Candidate(32))
    assert made["models"][0] == {
        "path": "a.onnx", "timeout_ms": 900, "target_ms": 20, "max_batch_rows": 32, "instances": 1
    }  # fmt: skip
    assert (made["port"], made["models"][1]) == (8081, content["models"][1])
    alone = select_model(made, "a", config)
    assert alone["device"] == "cpu"
    assert [entry["path"] for entry in alone["models"]] == [str(tmp_path / "a.onnx")]
    with pytest.raises(InvalidSettings, match="it has: a, other"):
        make_deployment("c", config, "auto", 20, Candidate(32))


def test_an_existing_file_is_overwritten_only_by_force(tmp_path: Path) -> None:
    """A missing folder is refused too, and one in which relative paths would mean other files."""
    output = tmp_path / "deployment.yaml"
    check_output(output, None, force=False)
    output.touch()
    with pytest.raises(InvalidSettings, match="--force"):
        check_output(output, None, force=False)
    check_output(output, None, force=True)
    with pytest.raises(InvalidSettings, match="no folder"):
        check_output(tmp_path / "not" / "there.yaml", None, force=False)
    with pytest.raises(InvalidSettings, match="has to be in the folder of"):
        check_output(tmp_path / "new.yaml", tmp_path / "sub" / "old.yaml", force=False)
