"""Runs the suites of the project; `.ci/run` calls it. Needs nothing but Python.

`make test` comes first, alone, for it uses all cores by itself. The other suites wait more than they compute: three
of them run at a time. Chaos comes last, alone. A suite that was green in this clone with the same content of all that
it needs is skipped, unless `--all` is given: `.venv/.green` has a file for each suite with the key of that content.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GREEN = ROOT / ".venv" / ".green"
PROCESSOR_TIME = ROOT / ".ci" / "processor_time.py"
JOBS = 3
LIMIT_S = 1200
"""A suite that takes longer hangs: it is ended, and has failed."""

SERVER = (
    "server/stoker",
    "azure-ml/",
    "clients/",
    "native/",
    "tests/http/",
    "conftest.py",
    "constraints.txt",
    "Makefile",
    "pyproject.toml",
    ".ci/",
)
"""Each suite needs them, and the modules that lie in `tests` itself: the server, its extensions, its client."""
RUNS = ("runs/", "models/", "tests/targets/")
CLUSTER = (*RUNS, "deploy/", "tests/cluster/")
EVERYTHING = ("",)


@dataclass(frozen=True)
class Suite:
    """A target of the Makefile.

    Attributes:
        needs: Paths and beginnings of paths of the files that it depends on, besides `SERVER`.
        variables: What make is called with.
    """

    target: str
    needs: tuple[str, ...]
    variables: tuple[str, ...] = ()

    def includes(self, path: str) -> bool:
        """Whether the suite depends on a file."""
        return path.startswith(SERVER + self.needs) or (path.startswith("tests/") and path.count("/") == 1)


FIRST = Suite("test", EVERYTHING)
# The same faults for every commit: the reason for a refusal is to lie in the commit. The first two episodes have each
# fault twice or more; the first three have it thrice, and three of the four ends of a server.
LAST = Suite("chaos", ("loadtests/", "tests/chaos/"), ("SEED=19", "SECONDS=150"))
# The longest come first: one that begins last would be waited for alone.
SUITES = (
    Suite("test-targets", (*RUNS, "tests/unit/")),
    Suite("test-ray", (*RUNS, "tests/ray/", "tests/tutorials/", "tests/unit/")),
    Suite("image-test", EVERYTHING),
    Suite("test-cluster", (*CLUSTER, "tests/unit/stoker_cluster/", "tests/unit/stoker_runs/")),
    Suite("test-servers", ("loadtests/", "models/", "runs/", "tests/")),
    Suite("test-torch", (*RUNS, "loadtests/", "tests/torch/")),
    Suite("test-spark", (*RUNS, "tests/saved_models/", "tests/spark/")),
    Suite("test-simdjson", ("loadtests/", "models/", "runs/", "tests/")),
    Suite("test-pods", (*CLUSTER, "loadtests/", "tests/chaos/", "tests/pods/")),
    Suite("test-bench", ("loadtests/", "models/", "runs/", "tests/unit/")),
    Suite("test-tutorials", EVERYTHING),
    Suite("docs", EVERYTHING),
    Suite("test-offline", ("tests/offline/", "tests/saved_models/")),
    Suite("examples", ("tests/contract/", "tests/unit/")),
    Suite("test-console", ("server/console/", "tests/console/")),
    Suite("test-stores", (*RUNS, "tests/stores/")),
    Suite("test-monitoring", ("deploy/", "tests/monitoring/")),
    Suite("test-openapi", ("runs/", "tests/contract/", "tests/openapi/")),
    Suite("test-triton", ("loadtests/", "tests/cuda_sharing/", "tests/triton/")),
)


def tracked_files() -> list[str]:
    """Return the paths of all files of the working tree that git does not ignore."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    paths = subprocess.check_output(listing, cwd=ROOT, text=True).split("\0")
    return sorted({path for path in paths if (ROOT / path).is_file()})


def content_key(suite: Suite, paths: Sequence[str]) -> str:
    """Return a key of the content of all files that a suite depends on, and of the interpreter."""
    digest = hashlib.sha256(f"{sys.version} {suite.variables}".encode())
    for path in paths:
        if suite.includes(path):
            digest.update(f"\0{path}\0".encode())
            digest.update(hashlib.sha256((ROOT / path).read_bytes()).digest())
    return digest.hexdigest()


@dataclass(frozen=True)
class Result:
    """The end of a suite.

    Attributes:
        passed: Whether all its tests passed.
        wall_s: How long it took.
        processor_s: The processor time of all its processes; None if it was ended.
    """

    passed: bool
    wall_s: float
    processor_s: float | None


@dataclass
class Results:
    """The suites that have run, by their targets."""

    of: dict[str, Result] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def failed(self) -> bool:
        """Whether a suite failed."""
        return not all(result.passed for result in self.of.values())

    def run(self, suite: Suite, key: str) -> None:
        """Run a suite, and print all that it writes once it has ended."""
        with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
            result = run_command(["make", suite.target, *suite.variables], Path(folder), log.fileno())
            log.seek(0)
            with self._lock:
                self.of[suite.target] = result
                for line in log:
                    sys.stdout.write(line)
                if result.passed:
                    GREEN.mkdir(parents=True, exist_ok=True)
                    (GREEN / suite.target).write_text(key)
                else:
                    print(f"{suite.target} failed", flush=True)


def run_command(command: Sequence[str], folder: Path, log: int) -> Result:
    """Run a command with all that it starts, for `LIMIT_S` at most.

    Args:
        folder: An empty folder, for pytest's cache too: two of them at a time would mix theirs up.
        log: The file that it writes into.
    """
    processor_time = folder / "processor_s"
    measured = [sys.executable, str(PROCESSOR_TIME), str(processor_time), *command]
    environment = {**os.environ, "PYTEST_ADDOPTS": f"-o cache_dir={folder / 'cache'}"}
    begun_s = time.monotonic()
    with subprocess.Popen(
        measured, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            passed = process.wait(LIMIT_S) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            os.write(log, f"{' '.join(command)} was ended: it took more than {LIMIT_S} s\n".encode())
            passed = False
    # There is no file if the program that measures was ended.
    processor_s = float(processor_time.read_text()) if processor_time.exists() else None
    return Result(passed, time.monotonic() - begun_s, processor_s)


def run_in_parallel(suites: Sequence[Suite], keys: dict[str, str], results: Results) -> None:
    """Run suites, `JOBS` at a time; after one has failed, no other one begins."""
    waiting = list(suites)

    def work() -> None:
        while waiting and not results.failed:
            suite = waiting.pop(0)
            results.run(suite, keys[suite.target])

    workers = [threading.Thread(target=work) for _ in range(JOBS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main() -> int:
    """Run the suites; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="run also those whose content was green before")
    every = parser.parse_args().all
    paths = tracked_files()
    keys = {suite.target: content_key(suite, paths) for suite in (FIRST, *SUITES, LAST)}
    green = {file.name: file.read_text() for file in GREEN.iterdir()} if GREEN.is_dir() else {}
    due = [suite for suite in (*SUITES, LAST) if every or green.get(suite.target) != keys[suite.target]]
    results = Results()
    # The tests always run: they are what a commit is judged by.
    results.run(FIRST, keys[FIRST.target])
    if due and not results.failed:
        # Packages that two suites need are installed before either of them begins.
        subprocess.run(["make", "--output-sync", "-j", str(JOBS), "prepare"], cwd=ROOT, check=True)
        run_in_parallel([suite for suite in due if suite is not LAST], keys, results)
        if LAST in due and not results.failed:
            results.run(LAST, keys[LAST.target])
    for name, result in results.of.items():
        computed = "" if result.processor_s is None else f", {result.processor_s:.0f} s of processors"
        print(f"{name}: {result.wall_s:.0f} s{computed}")
    for suite in (*SUITES, LAST):
        if suite not in due:
            print(f"{suite.target}: skipped, it was green with this content")
    return 1 if results.failed else 0


if __name__ == "__main__":
    sys.exit(main())
