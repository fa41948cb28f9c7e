"""`stoker completion`."""

import shutil
import subprocess

import pytest
from tests.patience import PROGRAM_S

from stoker.cli import main

ASK = """
source /dev/stdin
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_stoker; echo "${COMPREPLY[@]}"; }
complete_words stoker models l
complete_words stoker serve --shared-memory-p
complete_words stoker pre
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_actions_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Aliases and the options that `--help` leaves out among them."""
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    done = subprocess.run(
        ["bash", "-c", ASK], input=script, capture_output=True, text=True, check=True, timeout=PROGRAM_S
    )
    assert done.stdout.splitlines() == ["list ls label load", "--shared-memory-peers", "predict"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It has commands and options; the shell itself finds no mistake in it, where there is one."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("quickstart", "shared-memory-peers", "predict"))
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=PROGRAM_S)
