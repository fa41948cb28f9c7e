"""Makes a process as entry scripts written for Azure expect it: variables, folders, and the log."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from stoker.collecting.model_data import open_model_data
from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.scripts.quick_json import quicken_json_loads
from stoker.system.forks import call_in_this_process
from stoker.system.logs import log_settings, open_request_log

logger = logging.getLogger(__name__)


# Less than the time after which the supervisor kills the process.
_LEAVE_WITHIN_S: Final = 4.0


def app_root(deployment: Deployment, environ: Mapping[str, str]) -> Path:
    """Return the folder that relative paths of a script start from: AML_APP_ROOT, or the folder of the script."""
    return Path(environ.get("AML_APP_ROOT") or deployment.path.parent).absolute()


def script_variables(
    deployment: Deployment, device: Device, threads: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables that an entry script finds beside those of the server."""
    variables = {
        "AML_APP_ROOT": str(app_root(deployment, environ)),
        "AZUREML_MODEL_DIR": str(deployment.model_dir),
        "AZUREML_ENTRY_SCRIPT": str(deployment.path),
        "SCORING_TIMEOUT_MS": str(deployment.timeout_ms),
        "STOKER_DEVICE": device.name_in_process,
        "STOKER_INTRA_OP_THREADS": str(threads),
    }
    defaults = {
        "SERVICE_NAME": deployment.name,
        # On a CPU, TensorFlow logs the missing GPU as an error.
        "TF_CPP_MIN_LOG_LEVEL": "3" if device.kind == "cpu" else "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
    }
    variables.update({name: value for name, value in defaults.items() if not environ.get(name)})
    if device.kind == "cpu":
        # Frameworks would take a GPU that the operator has not given.
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    return variables


def script_folders(deployment: Deployment, environ: Mapping[str, str]) -> list[str]:
    """Return the folders in which modules of a script are looked for, after all other places.

    As on Azure these are AML_APP_ROOT and AZUREML_SOURCE_DIRECTORY within it; the script's own folder is last.
    """
    root = app_root(deployment, environ)
    source = environ.get("AZUREML_SOURCE_DIRECTORY")
    folders = [root, *([root / source] if source else []), deployment.path.parent]
    return [str(folder) for folder in dict.fromkeys(folders)]


def enter_script_process(deployment: Deployment) -> None:
    """Make this process that of one entry script; call it before the script is loaded.

    Besides `enter_script_folder`: printed lines become log lines with the ids of requests, the variable
    AZUREML_LOG_LEVEL counts, and `sys.argv` has no arguments.
    """
    enter_script_folder(deployment)
    # A script that parses arguments would read those of the device process.
    sys.argv = [str(deployment.path)]
    open_request_log({"model": deployment.name, "version": str(deployment.version)})
    level = os.environ.get("AZUREML_LOG_LEVEL", "").upper()
    if level and level not in logging.getLevelNamesMapping():
        logger.warning("AZUREML_LOG_LEVEL %s is not a level of Python's logging", level)
    elif level or log_settings().verbose_level:
        set_script_log_level()


def set_script_log_level() -> None:
    """Set the log level of a script and its modules: DEBUG if the log is verbose, else AZUREML_LOG_LEVEL or INFO."""
    level = logging.getLevelNamesMapping().get(os.environ.get("AZUREML_LOG_LEVEL", "").upper(), logging.INFO)
    logging.getLogger().setLevel(logging.DEBUG if log_settings().verbose_level else level)


def enter_script_folder(deployment: Deployment) -> None:
    """Enter the folder of an entry script, quicken its JSON, and open the files of its collected data.

    The working directory becomes `app_root`, so that the script finds its files by relative paths.
    """
    root = app_root(deployment, os.environ)
    try:
        os.chdir(root)
    except OSError as error:
        raise LoadFailed(f"AML_APP_ROOT cannot be entered: {error}") from error
    os.environ["AML_APP_ROOT"] = str(root)
    quicken_json_loads()
    if deployment.collection is not None and deployment.model_data_dir is not None:
        open_model_data(deployment.name, deployment.version, deployment.collection, deployment.model_data_dir)


def leave_script_process(end: Callable[[], None], within_s: float = _LEAVE_WITHIN_S) -> None:
    """Call the functions that the script and its modules have registered by `atexit`, then `end`.

    Args:
        end: Ends the process. Called on another thread if the functions have not returned in time.
    """

    def give_up() -> None:
        logger.warning("functions that the script registered by atexit do not return: the process ends")
        end()

    timer = threading.Timer(within_s, give_up)
    timer.daemon = True
    timer.start()
    # A process that one of them forks must not call the others. These functions of `atexit` have no public names.
    os.register_at_fork(after_in_child=atexit._clear)  # noqa: SLF001
    # Python itself would first wait for all threads.
    call_in_this_process(atexit._run_exitfuncs)  # noqa: SLF001
    timer.cancel()
    end()
