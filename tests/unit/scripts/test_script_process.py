"""The process of an entry script: variables, folders, working directory."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.patience import PATIENCE_S

from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.scripts.script_process import (
    app_root,
    enter_script_process,
    leave_script_process,
    script_folders,
    script_variables,
    set_script_log_level,
)
from stoker.system.logs import LimitedHandler, LineFormatter, LineLimit, LogSettings, change_log_settings

CPU = Device("cpu", 0, "a processor")
GPU = Device("cuda", 1, "a GPU")


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A script in a folder of its own."""
    return Deployment(
        "digits",
        3,
        "script",
        tmp_path / "code" / "score.py",
        tmp_path / "weights",
        8,
        1000,
        timeout_ms=1234,
    )


def test_a_script_finds_the_variables_of_the_contract(deployment: Deployment, tmp_path: Path) -> None:
    """The variables of Azure, and the device."""
    assert script_variables(deployment, GPU, 3, {}) == {
        "AML_APP_ROOT": str(tmp_path / "code"),
        "AZUREML_ENTRY_SCRIPT": str(tmp_path / "code" / "score.py"),
        "AZUREML_MODEL_DIR": str(tmp_path / "weights"),
        "SCORING_TIMEOUT_MS": "1234",
        "SERVICE_NAME": "digits",
        "STOKER_DEVICE": "cuda:0",
        "STOKER_INTRA_OP_THREADS": "3",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "3",
    }


def test_on_the_cpu_no_framework_sees_a_gpu(deployment: Deployment) -> None:
    """The variable of the operator is replaced: the device is the CPU."""
    variables = script_variables(deployment, CPU, 1, {"CUDA_VISIBLE_DEVICES": "0"})
    assert variables["CUDA_VISIBLE_DEVICES"] == "-1"
    # TensorFlow would log that as an error.
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "3"


@pytest.mark.parametrize(
    "name",
    [
        "AML_APP_ROOT",
        "SERVICE_NAME",
        "TF_CPP_MIN_LOG_LEVEL",
        "TF_FORCE_GPU_ALLOW_GROWTH",
        "TF_NUM_INTRAOP_THREADS",
    ],
)
def test_variables_set_by_the_operator_are_kept(deployment: Deployment, name: str) -> None:
    """Defaults replace no variable that the operator has set."""
    assert script_variables(deployment, GPU, 1, {name: "/mine"}).get(name, "/mine") == "/mine"


@pytest.mark.parametrize("name", ["AZUREML_MODEL_DIR", "AZUREML_ENTRY_SCRIPT", "SCORING_TIMEOUT_MS"])
def test_variables_known_to_the_server_are_overwritten(deployment: Deployment, name: str) -> None:
    """Variables of another service would mislead the script, so the server sets its own."""
    assert script_variables(deployment, GPU, 1, {name: "other"})[name] != "other"


def test_modules_are_looked_for_as_on_azure(deployment: Deployment, tmp_path: Path) -> None:
    """The app root and the source directory come first, the script's own folder last."""
    code, root = tmp_path / "code", tmp_path / "app"
    assert script_folders(deployment, {}) == [str(code)]
    assert script_folders(deployment, {"AML_APP_ROOT": str(root)}) == [str(root), str(code)]
    environ = {"AML_APP_ROOT": str(root), "AZUREML_SOURCE_DIRECTORY": "source"}
    assert script_folders(deployment, environ) == [str(root), str(root / "source"), str(code)]
    assert script_folders(deployment, {**environ, "AZUREML_SOURCE_DIRECTORY": "../code"})[0] == str(root)


def test_a_relative_app_root_is_the_operators(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is relative to the server's working directory, not to the script."""
    monkeypatch.chdir(tmp_path)
    assert app_root(deployment, {"AML_APP_ROOT": "app"}) == tmp_path / "app"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """A process that a test may make that of a script; it is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    # A copy, so that variables that are set disappear afterwards.
    monkeypatch.setattr(
        os, "environ", {k: v for k, v in os.environ.items() if k not in ("AML_APP_ROOT", "AZUREML_LOG_LEVEL")}
    )
    monkeypatch.setattr(sys, "argv", ["device", "--control-fd", "3"])
    root, printed = logging.getLogger(), logging.getLogger("stoker.script.print")
    filters = {handler: handler.filters[:] for handler in root.handlers}
    level = root.level
    yield monkeypatch
    root.setLevel(level)
    for handler, before in filters.items():
        handler.filters = before
    printed.handlers, printed.propagate = [], True


def test_relative_files_are_found_beside_the_script(
    deployment: Deployment, process: pytest.MonkeyPatch
) -> None:
    """The working directory is the app root."""
    deployment.path.parent.mkdir()
    deployment.path.with_name("labels.txt").write_text("a b")
    enter_script_process(deployment)
    assert Path("labels.txt").read_text() == "a b"
    assert os.environ["AML_APP_ROOT"] == str(deployment.path.parent)


def test_a_script_that_parses_arguments_finds_none(
    deployment: Deployment, process: pytest.MonkeyPatch
) -> None:
    """`parse_args` would end the script for the arguments of the device process."""
    deployment.path.parent.mkdir()
    enter_script_process(deployment)
    assert sys.argv == [str(deployment.path)]


def test_a_missing_app_root_is_refused(deployment: Deployment, process: pytest.MonkeyPatch) -> None:
    """The error has the path."""
    with pytest.raises(LoadFailed, match=r"AML_APP_ROOT cannot be entered: .*code"):
        enter_script_process(deployment)


@pytest.mark.parametrize(("text", "level"), [("DEBUG", logging.DEBUG), ("warning", logging.WARNING)])
def test_the_log_level_of_azure_counts(
    deployment: Deployment, process: pytest.MonkeyPatch, text: str, level: int
) -> None:
    """Capitals do not matter."""
    deployment.path.parent.mkdir()
    os.environ["AZUREML_LOG_LEVEL"] = text
    enter_script_process(deployment)
    assert logging.getLogger().level == level


def test_a_verbose_log_has_all_lines_of_a_script(
    process: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AZUREML_LOG_LEVEL counts again when the log is no longer verbose."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [LimitedHandler(LineLimit(), LineFormatter("device"))])
    os.environ["AZUREML_LOG_LEVEL"] = "ERROR"
    levels = []
    for verbose_level in (1, 0):
        change_log_settings(LogSettings(verbose_level=verbose_level))
        set_script_log_level()
        levels.append(root.level)
    assert levels == [logging.DEBUG, logging.ERROR]


def test_an_unknown_log_level_is_a_warning(
    deployment: Deployment, process: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The level stays as it is."""
    deployment.path.parent.mkdir()
    os.environ["AZUREML_LOG_LEVEL"] = "LOUD"
    before = logging.getLogger().level
    enter_script_process(deployment)
    assert "AZUREML_LOG_LEVEL LOUD is not a level" in caplog.text
    assert logging.getLogger().level == before


def test_exit_functions_of_a_script_run_before_its_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of `atexit` run, then the process ends, once."""
    done: list[str] = []
    monkeypatch.setattr(atexit, "_run_exitfuncs", lambda: done.append("functions"))
    leave_script_process(lambda: done.append("end"))
    assert done == ["functions", "end"]


def test_exit_functions_that_hang_do_not_stop_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process ends after the time limit."""
    ended = threading.Event()
    monkeypatch.setattr(
        atexit, "_run_exitfuncs", lambda: ended.wait(PATIENCE_S) or pytest.fail("the process waited")
    )
    leave_script_process(ended.set, within_s=0.01)
    assert ended.is_set()
    assert "registered by atexit do not return" in caplog.text
