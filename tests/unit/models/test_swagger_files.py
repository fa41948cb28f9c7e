"""Descriptions that a user has written."""

from pathlib import Path

import pytest

from stoker.errors import LoadFailed
from stoker.models.swagger_files import find_swagger_files, read_swagger_file


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The folder above a script in a folder of its own, and its model in another."""
    for folder in ("script", "model", "root"):
        (tmp_path / folder).mkdir()
    return tmp_path


def found(base: Path, *, with_script: bool = True, **environ: str) -> dict[str, str]:
    """The files by version, from the folder above all of them."""
    script = base / "script" / "score.py" if with_script else None
    files = find_swagger_files(script, base / "model", environ)
    return {version: str(file.relative_to(base)) for version, file in files.items()}


def test_files_are_found_beside_the_script_and_in_the_models_folder(base: Path) -> None:
    """Each version has its own names; `swagger.json` is version 2."""
    assert found(base) == {}
    for name in ("model/swagger.json", "model/swagger3.1.json", "script/swagger3.json"):
        (base / name).write_text('{"a": 1}')
    assert found(base) == {
        "2": "model/swagger.json",
        "3": "script/swagger3.json",
        "3.1": "model/swagger3.1.json",
    }
    assert read_swagger_file(base / "script/swagger3.json") == {"a": 1}


def test_the_nearest_file_counts(base: Path) -> None:
    """AML_APP_ROOT before the script's folder, that before the model's; `swagger.json` before `swagger2.json`."""
    root = str(base / "root")
    for name in ("model/swagger.json", "script/swagger2.json", "script/swagger.json", "root/swagger2.json"):
        (base / name).write_text("{}")
        assert found(base, AML_APP_ROOT=root) == {"2": name}
    assert found(base) == {"2": "script/swagger.json"}


def test_a_model_without_a_script_has_its_folder_alone(base: Path) -> None:
    """Files beside an ONNX file somewhere on the disk do not belong to it."""
    (base / "script/swagger.json").write_text("{}")
    (base / "root/swagger.json").write_text("{}")
    assert found(base, with_script=False, AML_APP_ROOT=str(base / "root")) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff"])
def test_invalid_swagger_file_stops_the_start(base: Path, content: bytes) -> None:
    """A file that is no description stops the start, and the message names the file."""
    (base / "model" / "swagger.json").write_bytes(content)
    with pytest.raises(LoadFailed, match=r"swagger\.json is to describe the service"):
        find_swagger_files(None, base / "model", {})
