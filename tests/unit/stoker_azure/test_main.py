"""`python -m stoker.azure SCRIPT`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType

import pytest
from tests.patience import PROGRAM_S

from stoker_azure.__main__ import main
from stoker_azure.entrance import show_exception
from stoker_azure.exceptions import ComputeTargetException

SCRIPT = """
import sys
from azureml.core import Workspace
from beside import NAME

print(__name__, sys.argv[1:], NAME, Workspace.from_config().name)
sys.exit(7)
"""


def frames_of_main(traceback: TracebackType) -> TracebackType:
    """A traceback from `stoker_azure.__main__` on, without what pytest has on top of that."""
    while Path(traceback.tb_frame.f_code.co_filename).name != "__main__.py":
        assert traceback.tb_next is not None
        traceback = traceback.tb_next
    return traceback


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.azure", *arguments],
        cwd=cwd,
        check=False,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )


def test_a_script_runs_as_python_runs_it(tmp_path: Path) -> None:
    """As the main module, with its arguments, modules beside it, and its exit code; Azure's imports work."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "deploy.py").write_text(SCRIPT)
    (tmp_path / "code" / "beside.py").write_text("NAME = 'beside'\n")
    done = run("code/deploy.py", "--flag", "value", cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("__main__ ['--flag', 'value'] beside local\n", 7), done.stderr


def test_missing_script_exits_with_usage(tmp_path: Path) -> None:
    """Nothing to run, or a file that is not there: exit code 2."""
    help_page, nothing, missing = run("--help", cwd=tmp_path), run(cwd=tmp_path), run("none.py", cwd=tmp_path)
    assert (help_page.returncode, help_page.stdout) == (0, nothing.stderr)
    assert help_page.stdout.startswith(
        "usage: python -m stoker.azure [--environment exact|relaxed|here] [--no-check] FILE"
    )
    assert (nothing.returncode, missing.returncode) == (2, 2)
    assert missing.stderr == "python -m stoker.azure: there is no file none.py\n"


def test_packages_option_chooses_the_environment(tmp_path: Path) -> None:
    """One of three ways, for the runs that the script submits; another one is refused."""
    (tmp_path / "a.py").write_text(
        "import os, sys; print(os.environ['STOKER_RUN_ENVIRONMENT'], sys.argv[1:])"
    )
    assert run("--environment", "relaxed", "a.py", "x", cwd=tmp_path).stdout == "relaxed ['x']\n"
    (tmp_path / "b.py").write_text("import os, sys; print(os.environ['STOKER_ATTACH_CHECK'], sys.argv[1:])")
    assert run("--no-check", "b.py", "--no-check", cwd=tmp_path).stdout == "0 ['--no-check']\n"
    wrong = run("--environment", "some", "a.py", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr) == (
        2,
        "python -m stoker.azure: --environment can be exact, relaxed, here\n",
    )


@pytest.mark.parametrize(
    "call",
    [
        "ComputeTarget(Workspace.from_config(), 'nope')",
        "ComputeTarget.create(Workspace.from_config(), '../x', AmlCompute.provisioning_configuration(max_nodes=1))",
    ],
)
def test_an_exception_of_azures_has_the_frames_of_the_script_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    """Its message says all that those of Stoker could."""
    script = tmp_path / "submit.py"
    script.write_text(
        f"from azureml.core import Workspace\nfrom azureml.core.compute import AmlCompute, ComputeTarget\n{call}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stoker.azure", str(script)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ComputeTargetException) as raised:
        main()
    frames = frames_of_main(raised.tb)
    show_exception(raised.type, raised.value.with_traceback(frames), frames)
    head, *places, last = capsys.readouterr().err.splitlines()
    assert head == "Traceback (most recent call last):"
    assert [line for line in places if line.lstrip().startswith("File ")] == [
        f'  File "{script}", line 3, in <module>'
    ]
    assert "ComputeTargetException: " in last


def test_an_exception_is_shown_from_the_script_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Python shows it, without the frames that run the script."""
    script = tmp_path / "deploy.py"
    script.write_text("\n1 / 0\n")
    monkeypatch.setattr(sys, "argv", ["stoker.azure", str(script)])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ZeroDivisionError) as raised:
        main()
    frames = frames_of_main(raised.tb)
    show_exception(raised.type, raised.value.with_traceback(frames), frames)
    begins = f'Traceback (most recent call last):\n  File "{script}", line 2, in <module>\n'
    assert capsys.readouterr().err.startswith(begins)
