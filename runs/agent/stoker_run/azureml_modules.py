"""Modules of Azure's packages that nothing provides: importing one raises an ImportError that says what to do.

What is installed wins: the finder stands last in `sys.meta_path`.
"""

import contextlib
import importlib
import importlib.abc
import sys
from types import ModuleType
from typing import Any, Optional, Sequence

_EXPLAIN = (
    "explain the model by packages that need no Azure, such as interpret-community or shap, listed in the script's "
    "environment, and keep what they find by run.upload_file"
)
_OWN_SCRIPT = "train by a script of your own; 'stoker tune' searches its parameters"
_STEPS = "submit each script with Experiment.submit(ScriptRunConfig(...)), one after the other"
_FILES = "data sets are files here: Dataset.File.from_files(...) makes one, and the script reads tables with pandas"
_SUBMITS = "it belongs into the code that submits the run"

# By the beginnings of names; the longest one that fits counts.
_INSTEAD = {
    "azureml": "take it out of the script, or list its package in the script's environment if it works without Azure",
    "azureml.accel": "serve the model on a CPU or GPU: Model.deploy",
    "azureml.automl": _OWN_SCRIPT,
    "azureml.contrib": "it is a preview of a service of Azure's: take it out of the script",
    "azureml.contrib.explain": _EXPLAIN,
    "azureml.contrib.fairness": "measure by fairlearn, which the script's environment lists",
    "azureml.contrib.interpret": _EXPLAIN,
    "azureml.contrib.pipeline": _STEPS,
    "azureml.contrib.tensorboard": "import it from azureml.tensorboard",
    "azureml.data": _FILES,
    "azureml.dataprep": _FILES,
    "azureml.datadrift": "'stoker serve --collect' keeps the rows of a service; compare them by a script of your own",
    "azureml.explain": _EXPLAIN,
    "azureml.fsspec": "read the files at the path that the run gets as an argument: dataset.as_mount()",
    "azureml.history": "a run is logged to by Run.get_context(), or by experiment.start_logging()",
    "azureml.interpret": _EXPLAIN,
    "azureml.opendatasets": "download the data, and make a data set of the folder: Dataset.File.from_files(...)",
    "azureml.pipeline": _STEPS,
    "azureml.tensorboard": _SUBMITS,
    "azureml.train": "submit the script with Experiment.submit(ScriptRunConfig(...))",
    "azureml.train.automl": _OWN_SCRIPT,
    "azureml.training": _OWN_SCRIPT,
    "azureml.widgets": _SUBMITS,
}

# Scripts find these without importing them, since azureml.core 1.61 imports them.
_STANDARD = (
    "concurrent.futures email.message email.parser email.utils html.entities http.client http.cookiejar http.cookies "
    "importlib.abc importlib.machinery importlib.metadata importlib.resources importlib.util logging.handlers "
    "urllib.error urllib.parse urllib.request wsgiref.handlers xml.etree.ElementTree"
)


class _Refusal(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname: str, path: Optional[Sequence[str]] = None, target: Any = None) -> None:
        """Refuse a module of Azure's.

        Raises:
            ModuleNotFoundError: It is one, and its name is that of a module and not of a class: `from azureml.core
                import Workspaces` asks for both.
        """
        del path, target
        parts = fullname.split(".")
        if parts[0] != "azureml" or len(parts) == 1 or not parts[-1][0].islower():
            return
        beginnings = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        known = next(beginning for beginning in beginnings if beginning in _INSTEAD)
        raise ModuleNotFoundError(f"{fullname} is not offered: {_INSTEAD[known]}", name=fullname)


def find_in_package(package: str, name: str) -> ModuleType:
    """Return a module of a package that has nothing but modules, for `from PACKAGE import NAME`.

    Without it, Python passes over why there is no such module.

    Raises:
        AttributeError: It is no name of a module.
        ModuleNotFoundError: There is no such module.
    """
    if not name[0].islower():
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return importlib.import_module(f"{package}.{name}")


FINDER = _Refusal()


def explain_missing_modules() -> None:
    """Let imports of missing modules say what to do instead; a second call changes nothing."""
    if FINDER not in sys.meta_path:
        sys.meta_path.append(FINDER)


def import_standard_modules() -> None:
    """Import the modules of the standard library that `azureml.core` imports."""
    for name in _STANDARD.split():
        # Older Pythons lack some.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
