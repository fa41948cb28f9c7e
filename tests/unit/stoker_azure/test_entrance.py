"""The two entrances of code for Azure's SDK: `python -m stoker.azure` and `import stoker.azure`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import h5py
import pytest
from tests.patience import PROGRAM_S

from stoker_azure import entrance

SEEN = """
import os, sys
import numpy
import azureml.core
print(azureml.core.__name__, os.environ.get("TF_USE_LEGACY_KERAS"), str([numpy.float64(0.5)]))
"""
STAND_IN = "stoker_azure.sdk.core 1 [0.5]"
FAILURE = "raise ValueError('the legacy SavedModel format is not supported')\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with packages that look like the real azureml-core, Keras 2 and Keras 3."""
    for name in ("azureml", "azureml/core", "tf_keras", "keras"):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").write_text("__version__ = '3.1'\n")
    return tmp_path / "site"


def run(site: Path, program: str, by_import: bool, **environ: str) -> tuple[str, str]:
    """Run a program through one of the entrances; returns its output and its errors."""
    file = site / "program.py"
    file.write_text(f"import stoker.azure\n{program}" if by_import else program)
    done = subprocess.run(
        [sys.executable, *([] if by_import else ["-m", "stoker.azure"]), str(file)],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), **environ},
        check=False,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("by_import", [False, True], ids=["command", "import"])
def test_both_entrances_do_the_same(site: Path, by_import: bool) -> None:
    """The stand-in wins and says so, Keras 2 is chosen, numpy prints numbers; what to do follows a traceback."""
    printed, complaint = run(site, f"{SEEN}import keras\n{FAILURE}", by_import)
    first, *traceback, last = complaint.splitlines()
    assert printed == STAND_IN
    assert first == (
        "stoker.azure: Stoker takes the place of the azureml-core that is installed, "
        f"{site / 'azureml' / 'core' / '__init__.py'}; set STOKER_AZURE=real if Azure is meant"
    )
    assert (traceback[0], traceback[-1]) == (
        "Traceback (most recent call last):",
        "ValueError: the legacy SavedModel format is not supported",
    )
    assert last == (
        "stoker.azure: the model was saved by Keras 2, and Keras 3.1 does not load it: install Stoker's extra "
        "keras2, or its tf-keras alone (pip install tf-keras), and run this again"
    )


@pytest.mark.parametrize("by_import", [False, True], ids=["command", "import"])
def test_azure_can_be_meant(site: Path, by_import: bool) -> None:
    """With STOKER_AZURE=real the package that is installed is imported, and nothing else is changed."""
    assert run(site, SEEN, by_import, STOKER_AZURE="real") == ("azureml.core None [np.float64(0.5)]", "")
    _, complaint = run(site, SEEN, by_import, STOKER_AZURE="reel")
    assert "STOKER_AZURE is 'reel'; it can be stoker or real" in complaint
    assert by_import or len(complaint.splitlines()) == 1
    shutil.rmtree(site / "azureml" / "core")
    _, complaint = run(site, SEEN, by_import, STOKER_AZURE="real")
    assert (
        "STOKER_AZURE is real, but azureml-core is not installed; install it, or unset the variable"
        in complaint
    )
    assert by_import or len(complaint.splitlines()) == 1


def test_earlier_imports_are_reported(site: Path) -> None:
    """If the real package or TensorFlow was imported first, lines say so and what to do."""
    (site / "tensorflow.py").touch()
    (site / "program.py").write_text(f"import azureml.core, tensorflow\nimport stoker.azure\n{SEEN}")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.stdout.startswith("azureml.core 1 ")
    assert done.stderr.splitlines() == [
        f"stoker.azure: azureml.core was imported before, from {site / 'azureml' / 'core' / '__init__.py'}: this "
        "program talks to Azure. Import stoker.azure first, or set STOKER_AZURE=real if Azure is meant",
        "stoker.azure: tensorflow was imported before, with Keras 3; for the Keras 2 of tf-keras import stoker.azure "
        "first",
    ]


def test_stokers_own_processes_do_not_enter(site: Path) -> None:
    """An entry script that is run by hand finds the installed package, and its numpy and Keras are left alone."""
    (site / "own.py").write_text(f"import stoker.scripts.entry_script\n{SEEN}")
    done = subprocess.run(
        [sys.executable, "own.py"],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert (done.stdout.strip(), done.stderr) == ("azureml.core None [np.float64(0.5)]", "")


def test_a_cell_of_a_live_notebook_is_advised(site: Path) -> None:
    """In IPython, which shows exceptions itself, the advice follows them too."""
    program = """
import sys, types
class Shell:
    def __init__(self): self.events, self.acts = self, []
    def register(self, event, act): self.acts.append((event, act))
shell = Shell()
sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
import stoker.azure, keras
((event, act),) = shell.acts
act(types.SimpleNamespace(error_in_exec=None))
act(types.SimpleNamespace(error_in_exec=ValueError("the legacy SavedModel format is not supported")))
print(event)
"""
    shutil.rmtree(site / "azureml" / "core")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert done.stdout == "post_run_cell\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("stoker.azure: the model was saved by Keras 2")


READER = """
def load_model(filepath, custom_objects=None, **others):
    if __name__.startswith("keras.") and "old" in str(filepath):
        raise TypeError("it could not be deserialized")
    return f"{__name__.partition('.')[0]} reads {filepath} {custom_objects}"
"""


@pytest.fixture
def both(site: Path) -> Path:
    """Packages that look like Keras 2 and 3 with their readers, and models that each has saved."""
    for name in ("keras", "tf_keras"):
        (site / name / "src" / "saving").mkdir(parents=True)
        (site / name / "src" / "saving" / "saving_api.py").write_text(READER)
        (site / name / "saving.py").write_text(f"from {name}.src.saving.saving_api import load_model\n")
    for name, version in (("new", "3.15.1"), ("old", "2.21.0")):
        with zipfile.ZipFile(site / f"{name}.keras", "w") as archive:
            archive.writestr("metadata.json", json.dumps({"keras_version": version}))
        with h5py.File(site / f"{name}.h5", "w") as file:
            file.attrs["keras_version"] = version
    (site / "old").mkdir()
    (site / "old" / "saved_model.pb").touch()
    (site / "torn.keras").write_bytes(b"PK\3\4")
    return site


@pytest.mark.parametrize("by_import", [False, True], ids=["command", "import"])
@pytest.mark.parametrize("own", ["keras", "tf_keras"])
def test_a_model_is_read_by_the_keras_that_has_saved_it(both: Path, own: str, by_import: bool) -> None:
    """Whichever the script has, of each form; what tells nothing is read by the script's own."""
    program = f"""
from {own}.saving import load_model
for name in ("new.keras", "new.h5", "old.keras", "old.h5", "old", "torn.keras", "none"):
    print(load_model(name, {{"a": 1}}))
"""
    printed, complaint = run(both, program, by_import)
    assert "Traceback" not in complaint
    assert printed.splitlines() == [
        *(f"keras reads {name} {{'a': 1}}" for name in ("new.keras", "new.h5")),
        *(f"tf_keras reads {name} {{'a': 1}}" for name in ("old.keras", "old.h5", "old")),
        *(f"{own} reads {name} {{'a': 1}}" for name in ("torn.keras", "none")),
    ]


def test_a_model_of_a_keras_that_is_not_installed_has_advice(both: Path) -> None:
    """Of each form; what Keras itself says stays."""
    shutil.rmtree(both / "tf_keras")
    for name in ("old.keras", "old.h5", "old"):
        _, complaint = run(both, f"from keras.saving import load_model\nload_model({name!r})\n", False)
        assert complaint.splitlines()[-2] == "TypeError: it could not be deserialized"
        assert complaint.splitlines()[-1].startswith(
            "stoker.azure: the model was saved by Keras 2, and Keras 3.1 "
        )


def test_other_exceptions_have_no_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of others, nor the same words where no Keras is loaded."""
    assert entrance.advise(ValueError("else")) == entrance.advise(None) == ""
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    assert entrance.advise(ValueError("legacy SavedModel format")) == ""
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    assert entrance.advise(ValueError("legacy SavedModel format")).startswith(
        "the model was saved by Keras 2"
    )
