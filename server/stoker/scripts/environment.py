"""The process of an entry script as scripts for Azure expect it: variables, folders, log, and a fast `json.loads`.

Most of what an entry script does for a row of numbers is to read them from the body. simdjson has proved that a body
with rows is JSON, without NaN, without numbers that only Python can hold. From such a text orjson makes the same
objects as Python's reader, in about a tenth of the time. All other texts, and calls with options, go to Python's.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from stoker.collecting.model_data import open_model_data
from stoker.deployment import Deployment, Device
from stoker.errors import LoadFailed
from stoker.system.forks import call_in_this_process
from stoker.system.logs import log_settings, open_request_log

logger = logging.getLogger(__name__)


_known: Final = threading.local()


@contextlib.contextmanager
def known_json(body: bytes) -> Iterator[None]:
    """Say that `body` has passed `wire.script_requests.row_count`, or was merged from such bodies, on this thread."""
    _known.texts = {str: body.decode(), bytes: body}
    try:
        yield
    finally:
        _known.texts = {}


def quicken_json_loads() -> None:
    """Let `json.loads` in this process read known bodies faster; call it before the script is imported."""
    original = json.loads
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def loads(s: Any, *args: Any, **kwargs: Any) -> Any:
        texts: dict[type, Any] = getattr(_known, "texts", {})
        text = texts.get(type(s))
        # Comparing a text costs a thousandth of reading it.
        if text is not None and not args and not kwargs and s == text:
            # Each has a limit of depth of its own.
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(s)
        return original(s, *args, **kwargs)

    json.loads = loads


# The process of an entry script as scripts written for Azure expect it: variables, folders, log.


# Less than the supervisor waits before it kills the process.
_LEAVE_WITHIN_S: Final = 4.0


def app_root(deployment: Deployment, environ: Mapping[str, str]) -> Path:
    """Return the folder that relative paths of a script start from: AML_APP_ROOT, or where the script is."""
    return Path(environ.get("AML_APP_ROOT") or deployment.path.parent).absolute()


def script_variables(
    deployment: Deployment, device: Device, threads: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables that an entry script finds beside those that are there."""
    variables = {
        "AML_APP_ROOT": str(app_root(deployment, environ)),
        "AZUREML_MODEL_DIR": str(deployment.model_dir),
        "AZUREML_ENTRY_SCRIPT": str(deployment.path),
        "SCORING_TIMEOUT_MS": str(deployment.timeout_ms),
        "STOKER_DEVICE": device.name_in_process,
        "STOKER_INTRA_OP_THREADS": str(threads),
    }
    wishes = {
        "SERVICE_NAME": deployment.name,
        # On a CPU, TensorFlow logs the missing GPU as an error.
        "TF_CPP_MIN_LOG_LEVEL": "3" if device.kind == "cpu" else "2",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": "1",
    }
    variables.update({name: value for name, value in wishes.items() if not environ.get(name)})
    if device.kind == "cpu":
        # Frameworks would take a GPU that the operator has not given.
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    return variables


def script_folders(deployment: Deployment, environ: Mapping[str, str]) -> list[str]:
    """Return where modules of a script are looked for, after all other places.

    As on Azure these are AML_APP_ROOT and AZUREML_SOURCE_DIRECTORY within it; the script's own folder is last.
    """
    root = app_root(deployment, environ)
    source = environ.get("AZUREML_SOURCE_DIRECTORY")
    folders = [root, *([root / source] if source else []), deployment.path.parent]
    return [str(folder) for folder in dict.fromkeys(folders)]


def enter_script_process(deployment: Deployment) -> None:
    """Make this process, which is to do nothing else, one of an entry script; called before it is loaded.

    What `enter_script_folder` does, and what the script prints becomes log lines, which carry the ids of requests.
    The variable AZUREML_LOG_LEVEL is heeded, and there are no arguments.
    """
    enter_script_folder(deployment)
    # Not those of this process, which a script that parses arguments would take for its own.
    sys.argv = [str(deployment.path)]
    open_request_log({"model": deployment.name, "version": str(deployment.version)})
    level = os.environ.get("AZUREML_LOG_LEVEL", "").upper()
    if level and level not in logging.getLevelNamesMapping():
        logger.warning("AZUREML_LOG_LEVEL %s is not a level of Python's logging", level)
    elif level or log_settings().verbose_level:
        set_script_log_level()


def set_script_log_level() -> None:
    """Let what a script and its modules log be written from the level on that AZUREML_LOG_LEVEL says, else INFO.

    Where the log is verbose, all of it is.
    """
    level = logging.getLevelNamesMapping().get(os.environ.get("AZUREML_LOG_LEVEL", "").upper(), logging.INFO)
    logging.getLogger().setLevel(logging.DEBUG if log_settings().verbose_level else level)


def enter_script_folder(deployment: Deployment) -> None:
    """Give an entry script what it finds of its own: its folder, quick JSON, and where it collects.

    The working directory becomes `app_root`, so that the script finds its files by relative paths.
    """
    root = app_root(deployment, os.environ)
    try:
        os.chdir(root)
    except OSError as error:
        raise LoadFailed(f"AML_APP_ROOT cannot be entered: {error}") from error
    os.environ["AML_APP_ROOT"] = str(root)
    quicken_json_loads()
    terms = deployment
    if terms.collection is not None and terms.model_data_dir is not None:
        open_model_data(deployment.name, deployment.version, terms.collection, terms.model_data_dir)


def leave_script_process(end: Callable[[], None], within_s: float = _LEAVE_WITHIN_S) -> None:
    """Call what the script and its modules have registered by `atexit`, then `end`.

    Args:
        end: Ends the process. Called on another thread if the functions have not returned in time.
    """

    def give_up() -> None:
        logger.warning("functions that the script registered by atexit do not return: the process ends")
        end()

    timer = threading.Timer(within_s, give_up)
    timer.daemon = True
    timer.start()
    # A process that one of them forks is not to call the others. Neither function has a public name.
    os.register_at_fork(after_in_child=atexit._clear)  # noqa: SLF001
    # Python itself calls them only where it may wait for all threads.
    call_in_this_process(atexit._run_exitfuncs)  # noqa: SLF001
    timer.cancel()
    end()
