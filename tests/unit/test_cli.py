"""The `stoker` command as a whole."""

from pathlib import Path

import pytest
from tests.tiny_models import write_doubler

from stoker.cli import main


def test_what_the_system_refuses_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A workspace that cannot be made ends with exit code 2 and its path, without a traceback."""
    model = write_doubler(tmp_path / "doubler.onnx")
    assert main(["models", "register", "doubler", str(model), "--workspace", "/proc/nowhere"]) == 2
    assert capsys.readouterr().err == "stoker models: No such file or directory: /proc/nowhere\n"
