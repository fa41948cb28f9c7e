"""The `stoker` command as a whole."""

import os
import subprocess
import sys
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


def test_a_mistyped_option_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the command and of those below it; what is near to nothing is only named."""
    for words, said in (
        (["submit", "--experimnt", "x", "train.py"], "--experimnt; did you mean --experiment?"),
        (["runs", "list", "--metrc=loss"], "--metrc=loss; did you mean --metric?"),
        (["runs", "list", "--zzzzzz"], "unrecognized arguments: --zzzzzz\n"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert (stopped.value.code, said in capsys.readouterr().err) == (2, True)


def test_standard_streams_that_are_closed_are_opened_on_nothing(tmp_path: Path) -> None:
    """Else the first socket of a server would be its standard output, and what is printed has no place to go."""
    seen = tmp_path / "seen"
    code = (
        "import os, sys; from stoker.cli import main; "
        f"code = main(['models', 'list', '--workspace', {str(tmp_path)!r}]); print('text', file=sys.stderr); "
        f"links = [os.readlink('/proc/self/fd/%d' % fd) for fd in (0, 1, 2)]; "
        f"open({str(seen)!r}, 'w').write(repr((code, links)))"
    )
    shell = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["/bin/sh", "-c", shell, sys.executable, code], check=True, timeout=30)
    assert seen.read_text() == repr((0, [os.devnull] * 3))


def test_letters_that_the_locale_has_not_are_printed_in_another_way(tmp_path: Path) -> None:
    """A description in German on a terminal of ASCII is no reason to fail."""
    model = write_doubler(tmp_path / "doubler.onnx")
    options = ["--workspace", str(tmp_path / "workspace")]
    assert main(["models", "register", "doubler", str(model), "--description", "für alle", *options]) == 0
    listed = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "models", "list", *options],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert listed.returncode == 0, listed.stderr
    assert rb"f\xfcr alle" in listed.stdout


@pytest.mark.parametrize("arguments", ["models list", "models list --workspace relative"])
def test_a_current_folder_that_is_gone_is_told_in_a_sentence(tmp_path: Path, arguments: str) -> None:
    """A release that was swapped; everything that is named by an absolute path goes on."""
    here = tmp_path / "here"
    here.mkdir()
    shell = 'rmdir "$PWD"; shift; exec "$0" -m stoker.cli "$@"'
    environ = {name: value for name, value in os.environ.items() if name != "STOKER_WORKSPACE"}
    command = ["/bin/sh", "-c", shell, sys.executable, "-", *arguments.split()]
    asked = subprocess.run(
        command, cwd=here, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert (asked.returncode, asked.stderr) == (
        2,
        "stoker models: the current folder has been removed; change to another one\n",
    )
