"""Names that scikit-learn has given up: scripts that import them, and pickles in which they stand."""

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from tests.patience import PROGRAM_S

from stoker_base import former_names
from stoker_base.former_names import FORMER_NAMES, provide_former_names
from stoker_run.archive import unpack
from stoker_run.attempt import VERSION, read_start, variables

X, Y = np.array([[0.0, 1], [1, 0], [2, 3], [3, 2]]), np.array([0, 0, 1, 1])


def withdraw_former_names() -> None:
    """Undo `provide_former_names`, and forget the modules that were imported by it."""
    if former_names.FINDER in sys.meta_path:
        sys.meta_path.remove(former_names.FINDER)
    for name in [
        name for name in sys.modules if name in FORMER_NAMES or former_names.copied_project(name)[0]
    ]:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)


@pytest.fixture(autouse=True)
def names() -> Iterator[None]:
    """Former names can be imported in a test, and nowhere else."""
    provide_former_names(lambda _: None)
    yield
    withdraw_former_names()


@pytest.fixture(scope="module")
def aged_pickle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pickle with the names that scikit-learn 0.20 would have written, its own joblib's among them."""
    # Here, as each test process imports this file, whichever tests it runs.
    from sklearn.linear_model import LogisticRegression

    file = tmp_path_factory.mktemp("aged") / "model.pkl"
    joblib.dump(LogisticRegression().fit(X, Y), file, protocol=2)
    content = file.read_bytes()
    for present, former in (
        (b"csklearn.linear_model._logistic\n", b"csklearn.linear_model.logistic\n"),
        (b"cjoblib.numpy_pickle\n", b"csklearn.externals.joblib.numpy_pickle\n"),
    ):
        assert present in content
        content = content.replace(present, former)
    file.write_bytes(content)
    return file


def test_a_pickle_of_its_age_is_loaded(aged_pickle: Path) -> None:
    """The class is that of today, its arrays are read by joblib, and it predicts."""
    from sklearn.linear_model import LogisticRegression

    namespace: dict[str, Any] = {}
    exec("from sklearn.externals import joblib", namespace)
    model = namespace["joblib"].load(aged_pickle)
    assert type(model) is LogisticRegression
    assert model.predict(X).tolist() == Y.tolist()


def test_without_them_it_is_not(aged_pickle: Path) -> None:
    """It is this module that makes the difference."""
    withdraw_former_names()
    with pytest.raises(ModuleNotFoundError, match=r"sklearn\.(linear_model\.logistic|externals\.joblib)"):
        joblib.load(aged_pickle)


@pytest.mark.parametrize("name", FORMER_NAMES)
def test_each_name_leads_to_the_module_of_today(name: str) -> None:
    """It is the very module, and hides nothing else of that name."""
    package, _, child = name.rpartition(".")
    assert not hasattr(importlib.import_module(package), child)
    assert importlib.import_module(name) is importlib.import_module(FORMER_NAMES[name])


def test_the_copies_are_the_projects() -> None:
    """Pickles and scripts get joblib's and six's own objects from `sklearn.externals`."""
    import six
    from sklearn.externals import joblib as copy
    from sklearn.externals.joblib import Parallel, numpy_pickle
    from sklearn.externals.six import string_types
    from sklearn.externals.six.moves import cPickle

    assert copy.load is joblib.load
    assert Parallel is joblib.Parallel
    assert numpy_pickle is joblib.numpy_pickle
    assert string_types is six.string_types
    assert cPickle is six.moves.cPickle


def test_a_project_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to install, also for `from sklearn.externals import …`."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "six" else found(name, *rest)
    )
    with pytest.raises(ImportError, match="copy of six, which is not installed: pip install six"):
        exec("from sklearn.externals import six")


@pytest.mark.parametrize("name", ["sklearn.nothing", "sklearn.grid_search", "sklearn.externals.funcsigs"])
def test_other_names_are_missing_as_ever(name: str) -> None:
    """Names without a successor raise ModuleNotFoundError."""
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{name}'"):
        importlib.import_module(name)


def test_installed_module_wins_over_a_former_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that scikit-learn has itself is not replaced."""
    (tmp_path / "joblib.py").write_text("mine = True\n")
    package = importlib.import_module("sklearn.externals")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert importlib.import_module("sklearn.externals.joblib").mine
    # It was not provided, so it is not withdrawn by its finder alone.
    sys.modules.pop("sklearn.externals.joblib")


def test_each_former_name_is_reported_once() -> None:
    """In one line, with the version and what stands for it; modules of a copied project count as that."""
    lines: list[str] = []
    former_names.FINDER.reported.clear()
    provide_former_names(lines.append)
    for name in (
        "sklearn.externals.joblib.numpy_pickle",
        "sklearn.linear_model.logistic",
        "sklearn.linear_model.logistic",
    ):
        sys.modules.pop(name, None)
        importlib.import_module(name)
    version = importlib.import_module("sklearn").__version__
    assert lines == [
        f"scikit-learn {version} has no sklearn.externals.joblib; it is joblib for this process",
        f"scikit-learn {version} has no sklearn.linear_model.logistic; it is sklearn.linear_model._logistic for this "
        "process",
    ]


OLD_SCRIPT = """\
import os, subprocess, sys
from sklearn.externals import joblib
from sklearn.linear_model.logistic import LogisticRegression
import joblib as today
print(joblib is today, LogisticRegression.__module__, os.environ["OWN"])
if "child" not in sys.argv:
    subprocess.check_call([sys.executable, __file__, "child"])
"""


@pytest.mark.parametrize("relaxed", [False, True])
def test_scripts_of_runs_have_them_too(tmp_path: Path, relaxed: bool) -> None:
    """Each process of a run, strict or relaxed, beside a sitecustomize of its own; the log says so once."""
    modules = {
        "sklearn/__init__.py": "__version__ = '1.9'",
        "sklearn/externals/__init__.py": "",
        "sklearn/linear_model/__init__.py": "",
        "sklearn/linear_model/_logistic.py": "class LogisticRegression: pass",
        "joblib.py": "",
        "sitecustomize.py": "import os; os.environ['OWN'] = 'imported'",
    }
    for name, text in modules.items():
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / name).write_text(text)
    (tmp_path / "train.py").write_text(OLD_SCRIPT)
    unpack(tmp_path / "agent")
    given = {"run_id": "r", "experiment": "e", "attempt": 1, "command": ["python"], "directory": "."}
    (tmp_path / "start.json").write_text(json.dumps({"version": VERSION, **given, "relaxed": relaxed}))
    found = variables(read_start(tmp_path), tmp_path, tmp_path, {"PYTHONPATH": str(tmp_path / "own")})
    ran = subprocess.run(
        [sys.executable, "train.py"],
        check=False,
        cwd=tmp_path,
        env=found,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert ran.stdout.splitlines() == ["True sklearn.linear_model._logistic imported"] * 2, ran.stderr
    assert ran.stderr.splitlines() == [
        "stoker_run: scikit-learn 1.9 has no sklearn.externals.joblib; it is joblib for this process",
        "stoker_run: scikit-learn 1.9 has no sklearn.linear_model.logistic; it is sklearn.linear_model._logistic for "
        "this process",
    ]
