"""The Stoker of another environment, beside the one that is benched."""

import sys
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker_bench.contestants.servers import OTHER, check_python, other_launch


def test_the_other_stoker_is_that_of_its_python(tmp_path: Path) -> None:
    """It is started by that Python, with a workspace of its own, and otherwise as the one that is benched."""
    python = Path(sys.executable)
    launch = other_launch(python, tmp_path / "model.onnx", tmp_path, 2, ["--grpc-port", "1"])
    assert launch.name == OTHER
    assert launch.command[:5] == (str(python), "-P", "-m", "stoker.cli", "serve")
    assert {"2", "1", str(tmp_path / "other-workspace")} <= set(launch.command)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("#!/bin/sh\necho 'no module' >&2; exit 1\n", r"has no Stoker \(no module\)"),
        (None, "takes the Python of an environment"),
    ],
)
def test_what_has_no_stoker_is_told(script: str | None, told: str, tmp_path: Path) -> None:
    """An environment without Stoker, and a path that is no Python, are refused with a reason."""
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o700)
    with pytest.raises(InvalidSettings, match=told):
        other_launch(python, tmp_path / "model.onnx", tmp_path)


def test_the_folder_and_the_path_of_the_bench_are_not_the_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that the bench runs in, or has in its PYTHONPATH, would be compared with itself."""
    (tmp_path / "stoker").mkdir()
    (tmp_path / "stoker" / "__init__.py").write_text("raise ImportError('the bench has its own Stoker')")
    monkeypatch.chdir(tmp_path)
    check_python(Path(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check_python(Path(sys.executable))
    launch = other_launch(Path(sys.executable), tmp_path / "model.onnx", tmp_path)
    assert launch.environment["PYTHONPATH"] == ""
