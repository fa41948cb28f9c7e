"""Names of packages: those on PyPI of conda's packages, those without one, and those that Stoker provides."""

from __future__ import annotations

import re
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from stoker.environments.specification import stays_below

_CUDA: Final = "CUDA libraries come from the machine, or from PyPI together with the framework"
_MATHS: Final = "NumPy and SciPy from PyPI bring their own"
_SYSTEM: Final = "a library or program of the system, not a Python package"
_NOTEBOOKS: Final = "conda's support for notebooks"
_INSTALLER: Final = "Stoker installs with its own pip or uv"

_NOT_APPLICABLE: Final = (
    (re.compile(r"nb_conda\w*"), _NOTEBOOKS),
    (re.compile(r"conda|conda-build|mamba|pip|uv"), _INSTALLER),
    (re.compile(r"(cuda|cudnn|cupti|nccl|lib(cu|nv|npp)).*|pytorch-(cuda|mutex)"), _CUDA),
    (
        re.compile(
            r"blas|nomkl|openblas|tbb|mkl([_-]\w+)?|(intel|llvm)-openmp|lib(c?blas|lapacke?|openblas)"
        ),
        _MATHS,
    ),
    (
        re.compile(
            # Packages that conda builds for itself, its compilers, and C libraries.
            r"_.*|xorg-.*|.*_linux-\w+|lib(?!(rosa|cst|svm|clang|sass|linear)$).*|(c|cxx|fortran)-compiler|compilers|"
            r"binutils|bzip2|c-ares|ca-certificates|cairo|curl|dbus|eigen|expat|ffmpeg|fontconfig|freetype|fribidi|"
            r"g(cc|db|eos|ettext|iflib|it|lib|mp|nutls|raphviz|xx)|gst-plugins-base|gstreamer|harfbuzz|hdf5|icu|jpeg|"
            r"krb5|lame|lcms2|lerc|lz4-c|make|mp(c|fr|i|ich)|ncurses|nettle|nodejs|open(h264|jdk|jpeg|mpi|ssl)|pango|"
            r"pcre2?|pixman|pkg-config|poppler|proj|python_abi|qt(-main)?|readline|sqlite|swig|sysroot|tesseract|tk|"
            r"x264|xz|yaml|zeromq|zlib|zstd"
        ),
        _SYSTEM,
    ),
)

CNTK: Final = frozenset({"cntk", "cntk-gpu"})
"""The names of CNTK, whose last releases are for Python 3.6."""
_CNTK_NOTE: Final = (
    "CNTK is no longer published, and its last release is for Python 3.6: train with python=3.6, save the model as "
    "ONNX, and serve that"
)
TENSORFLOW_GPU: Final = "tensorflow-gpu"
"""Former names of TensorFlow with GPUs."""

# Names that mislead in a pip list too.
_RENAMED: Final = {
    "opencv": "opencv-python-headless",
    "pytorch": "torch",
    "sklearn": "scikit-learn",
    TENSORFLOW_GPU: "tensorflow",
}
_RENAMED_FROM_CONDA: Final = {
    "dask-core": "dask",
    "keras-gpu": "keras",
    "matplotlib-base": "matplotlib",
    "msgpack-python": "msgpack",
    "numpy-base": "numpy",
    "py-opencv": "opencv-python-headless",
    "py-xgboost": "xgboost",
    "py-xgboost-cpu": "xgboost",
    "py-xgboost-gpu": "xgboost",
    "pyqt": "PyQt5",
    "pytables": "tables",
    "python-graphviz": "graphviz",
    "python-lmdb": "lmdb",
    "pytorch-cpu": "torch",
    "pytorch-gpu": "torch",
    "ruamel-yaml": "ruamel.yaml",
    "tensorflow-base": "tensorflow",
    "tensorflow-eigen": "tensorflow",
    "tensorflow-mkl": "tensorflow",
}

_PROVIDED: Final = {
    "azureml-ai-monitoring",
    "azureml-automl-core",
    "azureml-contrib-services",
    "azureml-core",
    "azureml-dataset-runtime",
    "azureml-defaults",
    "azureml-inference-server-http",
    "azureml-mlflow",
    "azureml-monitoring",
    "azureml-sdk",
    "azureml-telemetry",
    "azureml-tensorboard",
    "azureml-train",
    "azureml-train-core",
    "azureml-widgets",
    "inference-schema",
}
_PROVIDED_NOTE: Final = "Stoker provides what scripts import from it, where it is not installed"
_EXTRAS_OF_PROVIDED: Final = {"numpy-support": "numpy", "pandas-support": "pandas"}

TENSORFLOW_1: Final = "TensorFlow 1 has no release for this Python; today's serves it by tensorflow.compat.v1"
"""The note about TensorFlow 1."""

EQUIVALENTS: Final = (
    {"onnxruntime", "onnxruntime-gpu"},
    {"opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"},
    {"psycopg2", "psycopg2-binary"},
    {"tensorflow", "tensorflow-cpu"},
)
"""Packages of one content: any of a set stands for the others."""


def not_applicable(conda_name: str) -> str:
    """Why nothing is installed for a package of conda, or an empty text."""
    name = conda_name.lower()
    return next((reason for pattern, reason in _NOT_APPLICABLE if pattern.fullmatch(name)), "")


def on_pypi(conda_name: str) -> str:
    """The name on PyPI of a package of conda; most have the same."""
    return _RENAMED_FROM_CONDA.get(canonicalize_name(conda_name), conda_name)


def translate(requirement: Requirement) -> list[tuple[Requirement | None, str]]:
    """Return the requirements to install for a requirement.

    Args:
        requirement: The original; its name need not be normalised.

    Returns:
        What to install instead, with normalised names, each with a note where it differs from what was asked
        for; None stands for nothing, with the reason.
    """
    requirement = Requirement(str(requirement))
    requirement.name = canonicalize_name(requirement.name)
    if requirement.name in _PROVIDED:
        extras = [
            _EXTRAS_OF_PROVIDED[extra] for extra in sorted(requirement.extras) if extra in _EXTRAS_OF_PROVIDED
        ]
        return [(None, _PROVIDED_NOTE), *((Requirement(extra), "") for extra in extras)]
    if requirement.name in CNTK:
        return [(None, _CNTK_NOTE)]
    note = ""
    if requirement.name in _RENAMED and requirement.url is None:
        requirement.name = _RENAMED[requirement.name]
        note = f"called {requirement.name} on PyPI"
    if requirement.name == "tensorflow" and stays_below(requirement.specifier, "2"):
        requirement.specifier = SpecifierSet()
        note = TENSORFLOW_1
    return [(requirement, note)]
