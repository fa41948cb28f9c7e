"""The requirements of an environment file, in the words of pip; and the names that packages of conda have on PyPI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_HOST: Final = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]+)", re.IGNORECASE)
_SOURCES: Final = ("--index-url", "--extra-index-url", "--find-links", "--trusted-host")
_UPPER_BOUNDS = {"==", "===", "~=", "<", "<="}


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file, counted from 1."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}"

    @property
    def short(self) -> str:
        """The same without the folder."""
        return f"{self.path.name}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of an environment file.

    Attributes:
        line: What an installer is given for it, a line of a requirements file; empty where nothing is installed.
        requirement: The same, parsed; None too where it is a URL or a path that does not tell the name.
        note: Why it is taken for something else than what is written, or for nothing; empty where it is not.
        original: What was asked for, if `requirement` has another version or another build for GPUs; else None.
    """

    text: str
    place: Place
    line: str = ""
    requirement: Requirement | None = None
    note: str = ""
    original: Requirement | None = None

    @property
    def applies(self) -> bool:
        """Whether it asks this interpreter, on this machine, for a package with a known name."""
        if self.requirement is None:
            return False
        return self.requirement.marker is None or self.requirement.marker.evaluate()


@dataclass(frozen=True, slots=True)
class Specification:
    """An environment file that has been read.

    Attributes:
        python: Versions of Python that it allows; empty allows all.
        options: Options for the installer, as pip's requirements files have them, each `--name` or `--name value`.
        files: Files and folders of this machine that it refers to: constraints, wheels, projects.
    """

    path: Path
    entries: tuple[Entry, ...]
    python: SpecifierSet
    options: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def lines(self) -> list[str]:
        """Lines of the requirements file that installs it, each once, in alphabetical order."""
        return sorted({entry.line for entry in self.entries if entry.line})

    def runs_code(self) -> list[str]:
        """The code that its installation runs and trusts beyond the usual index, in words; empty for wheels.

        Addresses are told by their hosts: they may hold passwords.
        """
        found = []
        for entry in self.entries:
            target = entry.line.removeprefix("--editable ")
            host = _host_of(target)
            is_local = host is None and target.startswith(("/", "file:"))
            if (host is not None or is_local) and not target.partition("#")[0].endswith(".whl"):
                where = entry.text if host is None else f"a project of {host}"
                found.append(f"{where} ({entry.place.short}) is built by its own setup.py or pyproject.toml")
        for option in self.options:
            name, _, value = option.partition(" ")
            # A folder of wheels on this machine is nobody else's.
            source = value if name == "--trusted-host" else _host_of(value)
            if name in _SOURCES and source is not None:
                found.append(f"packages come from {source} ({name})")
            elif name == "--no-binary":
                found.append(f"{value} is built by its own setup.py or pyproject.toml ({name})")
        return found

    @property
    def python_text(self) -> str:
        """`python` as people write it: `3.6.2`, `>=3.8`."""
        text = str(self.python)
        exact = len(self.python) == 1 and text.startswith("==")
        return text[2:].removesuffix(".*") if exact else text

    @property
    def tensorflow_1(self) -> Requirement | None:
        """TensorFlow 1, where exactly that is to be installed."""
        names = ("tensorflow", "tensorflow-gpu", "tensorflow-cpu")
        found = (one for one in self._named(*names) if stays_below(one.specifier, "2"))
        return next(found, None)

    @property
    def cntk(self) -> Requirement | None:
        """CNTK, where that is to be installed."""
        return next(self._named("cntk", "cntk-gpu"), None)

    def _named(self, *names: str) -> Iterator[Requirement]:
        asked = (entry.requirement for entry in self.entries)
        return (one for one in asked if one is not None and one.name in names)


def _host_of(address: str) -> str | None:
    """The host of a URL, without what stands before an `@`; None for what is none, or has no host."""
    found = _HOST.search(address)
    return found[1].rpartition("@")[2] if found else None


def stays_below(specifier: SpecifierSet, bound: str) -> bool:
    """Whether a specifier allows only versions below `bound`: below `2` stay `==1.12.*` and `~=1.4`, not `>=1`."""
    limit = Version(bound)
    for clause in specifier:
        if clause.operator not in _UPPER_BOUNDS:
            continue
        try:
            version = Version(clause.version.removesuffix(".*"))
        except InvalidVersion:  # === takes any text
            continue
        if version < limit or (clause.operator == "<" and version == limit):
            return True
    return False


# Names of packages: what conda's are called on PyPI, which are no Python packages, which Stoker itself provides.


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
            # What conda builds for itself, its compilers, and C libraries.
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
"""Packages of one content: where one is asked for, any of its set will do."""


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
        requirement: What is asked for; its name need not be normalised.

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


def named_packages(specification: Specification) -> set[str]:
    """Return the normalised names of the packages that are asked for by name."""
    return {entry.requirement.name for entry in specification.entries if entry.requirement is not None}
