"""The table of `azure_acceptance.md`: its commands, in folders with the material of Azure's documents."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = Path(__file__).parent / "azure_acceptance.md"
SHARED = Path(os.environ.get("STOKER_TEST_SHARED", ROOT.parent / "shared"))
AZURE = SHARED / "azure"
LONGEST_S = 900.0

pytestmark = [
    pytest.mark.targets,
    pytest.mark.timeout(LONGEST_S),
    pytest.mark.skipif(
        not AZURE.is_dir(),
        reason=f"the documents' material is not at {SHARED}; set STOKER_TEST_SHARED to the folder with azure/",
    ),
]

_CODE = re.compile(r"`([^`]+)`")
_PROGRAMS = ("python ", "stoker ", "cat ")

MODEL = """
from pathlib import Path
from stoker_training import exports
from stoker_training.fitting import build
exports.write_checkpoint(build("softmax"), Path("outputs") / exports.CHECKPOINT)
from stoker_azure.sdk.core import Model, Workspace
Model.register(Workspace.from_config(), "outputs/model", "tf-dnn-mnist")
"""
DATA_SET = """
import stoker.azure
from azureml.core import Dataset, Workspace
ws = Workspace.create("mnist")
ws.write_config()
store = ws.get_default_datastore()
Dataset.File.from_files((store, "mnist")).register(ws, "mnist_opendataset")
"""
METRICS = """
from azureml.core import Experiment, ScriptRunConfig, Workspace
run = Experiment(Workspace.from_config(), "lists").submit(ScriptRunConfig("src", "train.py"))
run.wait_for_completion()
print(run.get_metrics())
"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        number: Its first cell.
        material: The first word of its second one: which folder it is run in.
        commands: What is called, in this order; or the names of tests.
        exit_code: How the last command ends.
        words: What is printed.
    """

    number: int
    material: str
    commands: tuple[str, ...]
    exit_code: int
    words: tuple[str, ...]

    @property
    def is_run_here(self) -> bool:
        return self.commands[0].startswith(_PROGRAMS)


def rows() -> list[Row]:
    """The rows of the page's table."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 4 and cells[0].isdecimal():
            number, material, command, result = cells
            ends = re.search(r"exit (\d)", result)
            found.append(
                Row(
                    int(number),
                    material.partition(":")[0],
                    tuple(_CODE.findall(command)),
                    int(ends[1]) if ends else 0,
                    tuple(_CODE.findall(result)),
                )
            )
    return found


ROWS = rows()
HERE = [row for row in ROWS if row.is_run_here]


def _how_to(folder: Path) -> None:
    """The documents' files, a model of the kind that they restore, and all of it as a notebook."""
    for name in ("deploy.py", "score.py", "myenv.yml"):
        shutil.copyfile(AZURE / name, folder / name)
    subprocess.run(
        [sys.executable, "-c", MODEL], cwd=folder, env=_environ(folder), check=True, capture_output=True
    )
    deploy, _, deleted = (AZURE / "deploy.py").read_text().partition("aks_service.delete()")
    client = (AZURE / "client.py").read_text()
    # Nobody has the files at that address any more.
    client = client.replace("http://yann.lecun.com/exdb/mnist/", f"{(SHARED / 'data' / 'mnist').as_uri()}/")
    _write_notebook(
        folder / "how_to.ipynb", deploy, "!pip install requests", client, f"aks_service.delete(){deleted}"
    )


def _write_notebook(path: Path, *cells: str) -> None:
    written = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    path.write_text(json.dumps({"nbformat": 4, "metadata": {}, "cells": written}))


def _tutorial(name: str) -> Callable[[Path], None]:
    def copy(folder: Path) -> None:
        shutil.copytree(AZURE / "training" / name, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        for place in (folder, *folder.rglob("*/")):
            place.chmod(0o700)

    return copy


def _mnist(folder: Path) -> None:
    _tutorial("mnist")(folder)
    subprocess.run([sys.executable, "-c", DATA_SET], cwd=folder, env=_environ(folder), check=True)


def _cli(folder: Path) -> None:
    (folder / "train.py").write_text("print(1)\n")


def _pins(folder: Path) -> None:
    shutil.copyfile(AZURE / "myenv.yml", folder / "myenv.yml")
    (folder / "version.py").write_text("import tensorflow as tf\nprint('tensorflow', tf.__version__)\n")


def _keras(folder: Path) -> None:
    shutil.copytree(SHARED / "reports" / "keras2-savedmodel-with-adam" / "tf24_adam", folder / "tf24_adam")


def _parent(folder: Path) -> None:
    names = {"subscription_id": "s", "resource_group": "g", "workspace_name": "shared"}
    (folder / "config.json").write_text(json.dumps(names))
    begin = "from azureml.core import Model, Workspace\nws = Workspace.from_config()\n"
    for place, text in {
        "a/register.py": "open('m.bin', 'w').close()\nModel.register(ws, 'm.bin', 'digits')\n",
        "b/find.py": "print('found', Model(ws, 'digits').name, Model(ws, 'digits').version)\n",
    }.items():
        (folder / place).parent.mkdir()
        (folder / place).write_text(begin + text)


def _metrics(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(
        "from azureml.core import Run\nRun.get_context().log_list('loss', [0.3, 0.2])\n"
    )
    (folder / "submit.py").write_text(METRICS)


def _nothing(folder: Path) -> None:
    """The command writes what it needs."""
    assert folder.is_dir()


MATERIAL: dict[str, Callable[[Path], None]] = {
    "how-to": _how_to,
    "waste": _tutorial("waste"),
    "mnist": _mnist,
    "targets": _tutorial("targets"),
    "workbench": _tutorial("workbench"),
    "cli": _cli,
    "pins": _pins,
    "keras": _keras,
    "parent": _parent,
    "metrics": _metrics,
    "conda": _nothing,
}


def _environ(folder: Path) -> dict[str, str]:
    """A user's environment: a home of its own, no setting of Stoker but for a small server."""
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("STOKER_", "AZUREML_"))
    }
    settings = {"STOKER_DEVICE": "cpu", "STOKER_FRONTENDS": "1", "STOKER_DRAIN_GRACE_S": "0"}
    # Packages that were downloaded before come from the cache.
    settings["UV_CACHE_DIR"] = os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv"))
    return {**environ, **settings, "HOME": str(folder), "TF_CPP_MIN_LOG_LEVEL": "3"}


def _run(folder: Path, command: str) -> tuple[int, str]:
    """Run a command as its reader would; returns its exit code, and all that it prints."""
    program, *words = shlex.split(command)
    before = {"python": [sys.executable], "stoker": [sys.executable, "-m", "stoker.cli"]}.get(
        program, [program]
    )
    script = Path(words[-1])
    if len(script.parts) > 1 and (folder / script).suffix == ".py":
        # Each in the folder that it lies in.
        folder, words = folder / script.parent, [*words[:-1], script.name]
    done = subprocess.run(
        [*before, *words],
        cwd=folder,
        env=_environ(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each material, in which its rows are run one after the other."""
    made: dict[str, Path] = {}

    def folder(material: str) -> Path:
        if material not in made:
            made[material] = tmp_path_factory.mktemp(material)
            MATERIAL[material](made[material])
        return made[material]

    return folder


@pytest.mark.parametrize("row", HERE, ids=[f"{row.number}-{row.material}" for row in HERE])
def test_a_row_is_as_it_says(row: Row, folders: Callable[[str], Path]) -> None:
    """Its commands end and print as the table has it."""
    folder = folders(row.material)
    printed = ""
    for number, command in enumerate(row.commands, 1):
        exit_code, output = _run(folder, command)
        printed += output
        assert exit_code == (row.exit_code if number == len(row.commands) else 0), printed
    for words in row.words:
        assert words in printed, printed


def test_other_rows_name_tests_that_there_are() -> None:
    """A row that another test runs names that test; numbers count up, and each material is known."""
    assert [row.number for row in ROWS] == list(range(1, len(ROWS) + 1))
    assert {row.material for row in ROWS} <= set(MATERIAL)
    named = {name for row in ROWS if not row.is_run_here for name in row.commands}
    texts = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert {name for name in named if f"def {name}(" not in texts} == set()
