"""The start of a script on a head node: spark-submit, and the files that YARN leaves. `make test-spark` has Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import stoker_run

ECHO = '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\necho "python $PYSPARK_DRIVER_PYTHON" >&2\n'


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """An attempt's folder, its working directory and its programs."""
    for name in ("agent", "work/outputs", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "work" / "train.py").write_text("")
    (tmp_path / "work" / "outputs" / "old.py").write_text("")
    (tmp_path / "start.json").write_text(json.dumps({"variables": {"GREETING": "hi"}}))
    write(tmp_path / "bin" / "spark-submit", ECHO)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o700)


def submit(
    attempt: Path, *words: str, program: str = "spark-submit", **variables: str
) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "PATH": f"{attempt / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(stoker_run.__file__).parent.parent),
        "STOKER_ATTEMPT_DIR": str(attempt),
        "STOKER_RUN_ID": "e_1_00000001",
        "STOKER_ATTEMPT": "1",
        **variables,
    }
    command = [sys.executable, "-m", "stoker_run.spark_submit", program, *words]
    return subprocess.run(
        command, cwd=attempt / "work", env=environ, capture_output=True, text=True, check=False
    )


def test_spark_submit_gets_the_script_last(attempt: Path) -> None:
    """Behind the options of the run; modules go to the executors, outputs do not."""
    options = '--conf "spark.app.name=my project" pyspark-shell'
    words = ("spark://head:7077", "client", "", "train.py", "--rate", "")
    done = submit(attempt, *words, PYSPARK_SUBMIT_ARGS=options)
    modules = attempt / "modules.zip"
    assert done.stdout.split("\n")[:-1] == [
        *("--master", "spark://head:7077", "--deploy-mode", "client", "--name", "e_1_00000001-1"),
        *("--py-files", str(modules), "--conf", "spark.app.name=my project", "train.py", "--rate", ""),
    ]
    assert done.stderr == f"python {sys.executable}\n"
    assert zipfile.ZipFile(modules).namelist() == ["train.py"]
    assert modules.stat().st_mode & 0o077 == 0


def test_a_program_that_is_not_there_is_named(attempt: Path) -> None:
    """With what to do, in both modes."""
    for mode in ("client", "cluster"):
        done = submit(attempt, "yarn", mode, "", "train.py", program="no-such-spark")
        assert done.returncode == 127
        assert "no-such-spark cannot be started: No such file" in done.stderr
        assert "spark_submit of the compute target" in done.stderr


def test_remains_of_the_spark_driver_are_collected(attempt: Path) -> None:
    """Log, outputs, metrics and exit status are unpacked, and no name leads out of the folders."""
    left = attempt / "left.zip"
    with zipfile.ZipFile(left, "w") as archive:
        contents = {
            "log.txt": "hello\n",
            "status": "3",
            "outputs/model": "m",
            "attempt/metrics.jsonl": "{}\n",
            "outputs/../../escaped": "",
            "other": "",
        }
        for name, content in contents.items():
            archive.writestr(name, content)
    write(attempt / "bin" / "hadoop", f'#!/bin/sh\n[ "$2" = -rm ] || cp {left} "$4"\n')
    done = submit(attempt, "yarn", "cluster", "", "train.py", "--rate")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "hello")
    assert (attempt / "work" / "outputs" / "model").read_text() == "m"
    assert (attempt / "metrics.jsonl").read_text() == "{}\n"
    assert not (attempt.parent / "escaped").exists()
    assert not (attempt / "work" / "other").exists()
    with zipfile.ZipFile(attempt / "bundle.zip") as bundle:
        facts = json.loads(bundle.read("driver.json"))
    assert (facts["script"], facts["arguments"]) == ("train.py", ["--rate"])
    assert facts["variables"]["STOKER_RUN_ID"] == "e_1_00000001"


def test_a_driver_that_leaves_nothing_has_failed(attempt: Path) -> None:
    """The run fails with any status of spark-submit, and a line says where to look."""
    write(attempt / "bin" / "hadoop", "#!/bin/sh\nexit 1\n")
    done = submit(attempt, "yarn", "cluster", "", "train.py")
    assert done.returncode == 1
    assert "yarn logs -applicationId ID shows why" in done.stderr
