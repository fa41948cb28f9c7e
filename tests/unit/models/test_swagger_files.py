"""Descriptions that a user has written."""

import dataclasses
from pathlib import Path

import pytest

from stoker.errors import LoadFailed
from stoker.models.swagger_files import find_swagger_files, read_swagger_file
from stoker.servable import Servable


@pytest.fixture
def servable(tmp_path: Path) -> Servable:
    """A script in a folder of its own, with its model in another."""
    for folder in ("script", "model", "root"):
        (tmp_path / folder).mkdir()
    return Servable("a", 1, "script", tmp_path / "script" / "score.py", tmp_path / "model", 16, 1000)


def found(servable: Servable, **environ: str) -> dict[str, str]:
    """The files by version, from the folder above all of them."""
    base = servable.model_dir.parent
    return {v: str(file.relative_to(base)) for v, file in find_swagger_files(servable, environ).items()}


def test_files_are_found_beside_the_script_and_in_the_models_folder(servable: Servable) -> None:
    """Each version has its own names; `swagger.json` is version 2."""
    base = servable.model_dir.parent
    assert found(servable) == {}
    for name in ("model/swagger.json", "model/swagger3.1.json", "script/swagger3.json"):
        (base / name).write_text('{"a": 1}')
    assert found(servable) == {
        "2": "model/swagger.json",
        "3": "script/swagger3.json",
        "3.1": "model/swagger3.1.json",
    }
    assert read_swagger_file(base / "script/swagger3.json") == {"a": 1}


def test_the_nearest_file_counts(servable: Servable) -> None:
    """AML_APP_ROOT before the script's folder, that before the model's; `swagger.json` before `swagger2.json`."""
    base = servable.model_dir.parent
    root = str(base / "root")
    for name in ("model/swagger.json", "script/swagger2.json", "script/swagger.json", "root/swagger2.json"):
        (base / name).write_text("{}")
        assert found(servable, AML_APP_ROOT=root) == {"2": name}
    assert found(servable) == {"2": "script/swagger.json"}


def test_a_model_without_a_script_has_its_folder_alone(servable: Servable) -> None:
    """What lies beside an ONNX file somewhere on the disk is not meant for it."""
    base = servable.model_dir.parent
    (base / "script/swagger.json").write_text("{}")
    (base / "root/swagger.json").write_text("{}")
    model = dataclasses.replace(servable, framework="onnx")
    assert found(model, AML_APP_ROOT=str(base / "root")) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_what_is_no_description_stops_the_start(servable: Servable, content: bytes) -> None:
    """Whoever writes one wants it to be served; the message names the file."""
    (servable.model_dir / "swagger.json").write_bytes(content)
    with pytest.raises(LoadFailed, match=r"swagger\.json is to describe the service"):
        find_swagger_files(servable, {})
