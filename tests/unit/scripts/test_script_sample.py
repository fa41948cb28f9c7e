"""The sample input of a script is found in its settings, beside it, or in its decorators."""

import dataclasses
from pathlib import Path

import pytest
from tests.unit.scripts.deploying import deployment

from stoker.errors import LoadFailed
from stoker.script_form import ScriptForm
from stoker.scripts.script_sample import Sample, find_sample


def test_samples_are_found(tmp_path: Path) -> None:
    """The setting comes first, then the model folder, the script's folder, and the decorators."""
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    form = ScriptForm(kind="schema", input_schema={"type": "object", "example": {"data": [[0.5]]}})
    script = dataclasses.replace(deployment(tmp_path / "score.py"), model_dir=model_dir)
    assert find_sample(script, ScriptForm()) is None
    assert find_sample(script, ScriptForm(input_schema={"type": "object", "example": {}})) is None
    assert find_sample(script, form) == Sample(
        b'{"data": [[0.5]]}', "application/json", "the decorators' sample"
    )
    (tmp_path / "sample_input.json").write_bytes(b"[1]")
    assert find_sample(script, form) == Sample(b"[1]", "application/json", "sample_input.json")
    (model_dir / "sample_input.json").write_bytes(b"[2]")
    assert find_sample(script, form) == Sample(b"[2]", "application/json", "sample_input.json")
    picture = tmp_path / "shoe.jpg"
    picture.write_bytes(b"\xff\xd8")
    named = dataclasses.replace(script, sample_input=picture)
    assert find_sample(named, form) == Sample(b"\xff\xd8", "image/jpeg", "shoe.jpg")
    picture.unlink()
    with pytest.raises(LoadFailed, match=r"the sample input cannot be read: .*shoe"):
        find_sample(named, form)
