"""Advice to operators about exceptions that scripts raise while they load."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from stoker.scripts.imports import PROVIDED_BY_AZURE
from stoker.system.extensions import find_extension
from stoker.system.extras import how_to_install

_AUTOML: Final = (
    "azureml.automl.dnn",
    "azureml.automl.runtime",
    "azureml.train.automl.runtime",
    "azureml.training",
)

# The words of pickle, and those of its older protocols.
_NO_CLASS: Final = re.compile(
    r"Can't get attribute .* on <module 'sklearn\.|module 'sklearn\.\S+' has no attribute"
)
_TREES: Final = "node array from the pickle has an incompatible dtype"


def load_advice(error: BaseException) -> str:
    """Return a line of advice about an exception of a script; empty without advice.

    Args:
        error: The exception; its causes and contexts count too.
    """
    for each in _chain(error):
        name = getattr(each, "name", None) or ""
        if isinstance(each, ModuleNotFoundError) and _is_below(name, _AUTOML):
            return (
                f"Advice: the model consists of classes of Azure's AutoML ({name}), whose packages ask for numpy "
                "1.23, with which a device process does not run: export the model as ONNX (AutoML's "
                "enable_onnx_compatible_models), or build the pipeline with scikit-learn, and serve that.\n"
            )
        if isinstance(each, ModuleNotFoundError) and _is_below(name, PROVIDED_BY_AZURE):
            if find_extension("azure") is None:
                return f"Advice: {name} is provided by a distribution of Stoker; {how_to_install('azure')}\n"
            return (
                f"Advice: {name} is a part of Azure's SDK that Stoker does not have: take it out of the script if it "
                "is for training, or list its package in the environment of the script.\n"
            )
        if _is_of_scikit_learn(each, name):
            return (
                f"Advice: the model was saved with another version of scikit-learn than {_scikit_learn()}, which "
                "cannot read it: name the version that saved it in the environment of the script (--environment FILE "
                "--system-managed), or load it there, and save it anew as ONNX or with this version.\n"
            )
    missing = next((each.name for each in _chain(error) if isinstance(each, ModuleNotFoundError)), None)
    if missing:
        return f"Advice: {missing} is neither installed nor beside the script; stoker doctor lists what is missing.\n"
    return ""


def _is_of_scikit_learn(error: BaseException, name: str) -> bool:
    text = str(error)
    return (
        # Only a pickle names modules of scikit-learn; if scikit-learn is not installed, `sklearn` itself is missing.
        (isinstance(error, ModuleNotFoundError) and name.startswith("sklearn."))
        or (isinstance(error, AttributeError) and _NO_CLASS.search(text) is not None)
        or (isinstance(error, ValueError) and _TREES in text)
    )


def _scikit_learn() -> str:
    try:
        return metadata.version("scikit-learn")
    except metadata.PackageNotFoundError:
        return "the one that is installed"


def _is_below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
