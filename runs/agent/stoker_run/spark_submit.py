"""The program that the agent starts on the head node of a Spark cluster: spark-submit with the script.

`client`: spark-submit takes the place of this process, and the driver is its child. `cluster`: YARN starts the driver
on some node, from an archive with the working directory. The driver leaves log, outputs and metrics as one file in
the user's folder of the cluster's file system, from where this process fetches them, by the commands `hadoop` and
`yarn`.
"""

import contextlib
import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import traceback
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

from stoker_run.attempt import OUTPUTS

_APPLICATION = re.compile(r"(application_[0-9]+_[0-9]+)\s+(\S+)")
_VARIABLES = ("STOKER_", "AZUREML_", "MLFLOW_")
_DRIVER = (
    "import sys\nsys.path.insert(0, 'stoker/agent')\nfrom stoker_run.spark_submit import drive\ndrive()\n"
)
_BUNDLE = "stoker"
_PACKAGES = "stoker_packages"
_TEE_S = 5.0


def main(words: List[str]) -> int:
    """Submit a script to a cluster, and wait for its end.

    Args:
        words: The program spark-submit, `--master`, `--deploy-mode`; `packages` to send those of this Python's
            virtual environment to the executors, else an empty text; the script and its arguments.
    """
    program, master, mode, packages, script = words[:5]
    folder = Path(os.environ["STOKER_ATTEMPT_DIR"])
    name = "{STOKER_RUN_ID}-{STOKER_ATTEMPT}".format(**os.environ)
    command = [program, "--master", master, "--deploy-mode", mode, "--name", name]
    archives = []
    if packages:
        archives.append(f"{_packages_archive()}#{_PACKAGES}")
        command += ["--conf", f"spark.executorEnv.PYTHONPATH={_PACKAGES}"]
    python = (
        getattr(sys, "_base_executable", os.path.realpath(sys.executable)) if packages else sys.executable
    )
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Executors need the modules that functions of the script import.
    modules = [path for path in Path().rglob("*.py") if path.parts[0] not in OUTPUTS]
    command += ["--py-files", str(_archive(folder / "modules.zip", {str(path): path for path in modules}))]
    options = shlex.split(os.environ.pop("PYSPARK_SUBMIT_ARGS", ""))
    options = [word for word in options if word != "pyspark-shell"]
    if mode == "client":
        command += ["--archives", ",".join(archives)] * bool(archives) + options + [script] + words[5:]
        return _become(command)
    archives.append(f"{_bundle(folder, name, script, words[5:])}#{_BUNDLE}")
    driver = folder / "stoker_driver.py"
    driver.write_text(_DRIVER, encoding="ascii")
    path = f"{_PACKAGES}:{_BUNDLE}/agent"
    python = os.environ["PYSPARK_PYTHON"]
    for key, value in (
        ("spark.yarn.maxAppAttempts", "1"),
        ("spark.yarn.appMasterEnv.PYTHONPATH", path),
        ("spark.yarn.appMasterEnv.PYSPARK_PYTHON", python),
    ):
        command += ["--conf", f"{key}={value}"]
    return _follow([*command, "--archives", ",".join(archives), *options, str(driver)], folder, name)


def _become(command: List[str]) -> int:
    try:
        os.execvp(command[0], command)  # noqa: S606  # no shell is wanted
    except OSError as error:
        print(
            f"{command[0]} cannot be started: {error.strerror}; is this machine the head node of a Spark cluster? "
            "spark_submit of the compute target names the program",
            file=sys.stderr,
        )
    return 127


def _packages_archive() -> Path:
    """Return the zip of the packages of this virtual environment, made once."""
    path = Path(sys.prefix, "spark-packages.zip")
    if not path.exists():
        places = [Path(place) for place in sys.path if Path(place).name == "site-packages"]
        inside = [place for place in places if Path(sys.prefix) in place.parents]
        files = {str(file.relative_to(place)): file for place in inside for file in place.rglob("*")}
        staged = path.with_name(f"{path.name}.{os.getpid()}")
        _archive(staged, {name: file for name, file in files.items() if "__pycache__" not in file.parts})
        staged.rename(path)
    return path


def _archive(path: Path, files: Dict[str, Path]) -> Path:
    """Write a zip with files by their names in it, readable for its owner alone."""
    descriptor = os.open(str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(files.items()):
            if source.is_file():
                archive.write(str(source), name)
    return path


def _below(folder: Path, prefix: str) -> Dict[str, Path]:
    return {f"{prefix}/{path.relative_to(folder)}": path for path in folder.rglob("*")}


def _bundle(folder: Path, name: str, script: str, arguments: List[str]) -> Path:
    """Return the zip that the driver starts from: working directory, agent, and what it needs to know."""
    variables = json.loads((folder / "start.json").read_bytes().decode("utf-8"))["variables"]
    given = {
        key: value for key, value in os.environ.items() if key.startswith(_VARIABLES) or key in variables
    }
    facts = {"script": script, "arguments": arguments, "variables": given, "results": _results(name)}
    report = folder / "driver.json"
    with os.fdopen(os.open(str(report), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(facts, file)
    files = {**_below(Path.cwd(), "work"), **_below(folder / "agent", "agent"), "driver.json": report}
    return _archive(folder / "bundle.zip", files)


def _results(name: str) -> str:
    """Return the file of the results, in the user's folder of the cluster's file system."""
    return f".stoker/{name}.zip"


class _Stopped(Exception):
    """The script is to end."""


def _follow(command: List[str], folder: Path, name: str) -> int:
    """Wait for an application of YARN and take over what its driver has left; end it if this process is to end."""

    def stop(_number: int, _frame: Any) -> None:
        # The agent asks whatever is started from now on to end too, and that has to do its work.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Stopped

    signal.signal(signal.SIGTERM, stop)
    try:
        status = subprocess.call(command)
    except _Stopped:
        _end_application(name)
        return 143
    except OSError:
        return _become(command)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fetched = folder / "results.zip"
    results = _results(name)
    if subprocess.call(["hadoop", "fs", "-get", results, str(fetched)]) != 0:
        print("the driver has left no results; yarn logs -applicationId ID shows why", file=sys.stderr)
        return status or 1
    subprocess.call(["hadoop", "fs", "-rm", "-skipTrash", results], stdout=subprocess.DEVNULL)
    with zipfile.ZipFile(str(fetched)) as archive:
        for entry in archive.infolist():
            top = entry.filename.partition("/")[0]
            if top in OUTPUTS:
                archive.extract(entry, ".")
            elif top == "attempt" and len(Path(entry.filename).parts) > 1:
                entry.filename = entry.filename[len("attempt/") :]
                archive.extract(entry, str(folder))
        sys.stdout.flush()
        sys.stdout.buffer.write(archive.read("log.txt"))
        sys.stdout.flush()
        return int(archive.read("status"))


def _end_application(name: str) -> None:
    """End the application of YARN with this name."""
    listed = subprocess.run(["yarn", "application", "-list"], stdout=subprocess.PIPE, check=False)
    for line in listed.stdout.decode("utf-8", "replace").splitlines():
        found = _APPLICATION.match(line.strip())
        if found is not None and found.group(2) == name:
            subprocess.call(["yarn", "application", "-kill", found.group(1)])


def drive() -> None:
    """Run the script in the driver that YARN has started, and leave its results."""
    bundle, here = Path(_BUNDLE).absolute(), Path.cwd()
    facts = json.loads((bundle / "driver.json").read_bytes().decode("utf-8"))
    work, attempt = here / "work", here / "attempt"
    # Folders that YARN unpacks may be read-only, so the script works in a copy.
    shutil.copytree(str(bundle / "work"), str(work), copy_function=shutil.copyfile)
    for path in [work, *work.rglob("*")]:
        path.chmod(0o700)
    for folder in [attempt, *(work / name for name in OUTPUTS)]:
        folder.mkdir(exist_ok=True)
    os.environ.update(facts["variables"], STOKER_ATTEMPT_DIR=str(attempt), STOKER_WORK_DIR=str(work))
    sys.path[:0] = [str(work), str(bundle / "agent")]
    os.chdir(str(work))
    sys.argv = [facts["script"], *facts["arguments"]]
    with _copied_to(here / "log.txt"):
        status = _run(facts["script"])
    (here / "status").write_text(str(status), encoding="ascii")
    left = {"log.txt": here / "log.txt", "status": here / "status", **_below(attempt, "attempt")}
    for name in OUTPUTS:
        left.update(_below(work / name, name))
    _leave(_archive(here / "results.zip", left), facts["results"])
    sys.exit(status)


def _run(script: str) -> int:
    """Run the script as Python does; return its exit status."""
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  # the script's own, whatever it is
        traceback.print_exc()
        return 1
    return 0


@contextlib.contextmanager
def _copied_to(path: Path) -> Iterator[None]:
    """Copy what this process and its children print to a file."""
    before, (source, sink) = (os.dup(1), os.dup(2)), os.pipe()

    def copy() -> None:
        with path.open("wb") as file:
            while True:
                data = os.read(source, 1 << 16)
                if not data:
                    return
                os.write(before[0], data)
                file.write(data)
                file.flush()

    copying = threading.Thread(target=copy, daemon=True)
    copying.start()
    for number in (1, 2):
        os.dup2(sink, number)
    os.close(sink)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, kept in zip((1, 2), before):
            os.dup2(kept, number)
        # A child that goes on keeps it open.
        copying.join(_TEE_S)


def _leave(results: Path, place: str) -> None:
    """Put the results into the cluster's file system, by the driver's own connection to it."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()  # noqa: SLF001  # the script may have stopped its own
    java = SparkContext._jvm.org.apache.hadoop  # noqa: SLF001
    target = java.fs.Path(place)
    files = target.getFileSystem(java.conf.Configuration())
    files.copyFromLocalFile(False, True, java.fs.Path(f"file://{results}"), target)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
