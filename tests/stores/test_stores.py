"""Models in object stores: sent, fetched, served, followed, and what a kill in the middle of it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.http.raw_http import bearer, request
from tests.live_server import LiveServer, environment_with, run_stoker, wait_until
from tests.observing import look_at_files
from tests.patience import PROGRAM_S
from tests.stores.conftest import AZURITE_KEY, Store
from tests.targets.sshd import Sshd
from tests.tiny_models import write_doubler

from stoker.errors import OperatorError
from stoker.models.mirrors import Mirror
from stoker.models.remote_stores import open_store
from stoker.models.remote_writing import send


@pytest.fixture
def doubler(tmp_path: Path) -> Path:
    folder = tmp_path / "doubler"
    folder.mkdir()
    write_doubler(folder / "model.onnx")
    return folder / "model.onnx"


def states(server: LiveServer, model: str) -> dict[str, str]:
    with server.connect() as connection:
        answer = connection.ask(request("GET", f"/v1/models/{model}", [bearer(server.key)]))
    return {one["version"]: one["state"] for one in json.loads(answer.body)["model_version_status"]}


def test_a_version_is_pushed_and_pulled(store: Store, doubler: Path, tmp_path: Path) -> None:
    """With its signature and labels; a file that was changed in the store is refused by its checksum."""
    here, there = tmp_path / "here", tmp_path / "there"
    address = f"{store.address}/models/doubler/1"
    made = run_stoker("models", "register", "doubler", doubler, "--tag", "team=a", "--workspace", here)
    assert made.returncode == 0, made.stderr
    pushed = run_stoker("models", "push", "doubler", address, "--workspace", here, env=store.environment)
    assert (pushed.returncode, pushed.stdout) == (0, f"{address}\n"), pushed.stderr
    pulled = run_stoker("models", "pull", address, "--workspace", there, env=store.environment)
    assert (pulled.returncode, pulled.stdout) == (0, "doubler:1\n"), pulled.stderr
    shown = [
        json.loads(run_stoker("models", "show", "doubler", "--json", "--workspace", place).stdout)
        for place in (here, there)
    ]
    for name in ("signature", "tags", "files", "framework", "entry"):
        assert shown[0][name] == shown[1][name]
    (tmp_path / "changed").write_bytes(doubler.read_bytes() + b"\0")
    send({"model/model.onnx": tmp_path / "changed"}, address)
    refused = run_stoker("models", "pull", address, "--workspace", tmp_path / "third", env=store.environment)
    assert refused.returncode != 0
    assert "was changed after registration" in refused.stderr
    bare = run_stoker(
        "models", "pull", f"{store.address}/models", "--workspace", there, env=store.environment
    )
    assert "has no version that 'stoker models push' has sent" in bare.stderr


def test_a_model_is_served_from_its_address(store: Store, doubler: Path, tmp_path: Path) -> None:
    """Called as its folder in the store; registering takes an address too; credentials are in no output."""
    address = f"{store.address}/plain/doubler/model.onnx"
    send({"model.onnx": doubler}, address.rpartition("/")[0])
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, address, env=store.environment) as server:
        assert json.loads(server.score([1, 2, 3, 4]).body) == [[2, 4, 6, 8]]
        assert states(server, "doubler") == {"1": "AVAILABLE"}
        for name, value in store.environment.items():
            if "KEY" in name or "STRING" in name:
                assert value not in server.output()
    made = run_stoker(
        "models", "register", "again", address, "--workspace", tmp_path / "w", env=store.environment
    )
    assert (made.returncode, made.stdout) == (0, "again:1\n"), made.stderr


def test_a_repository_is_followed(store: Store, doubler: Path, tmp_path: Path) -> None:
    """A version that appears in the store is loaded, one that goes is unloaded."""
    repository = f"{store.address}/repository"
    send({"doubler/1/model.onnx": doubler}, repository)
    scratch = tmp_path / "server"
    scratch.mkdir()
    with LiveServer(scratch, repository, "--poll-s", "0.5", env=store.environment) as server:
        assert states(server, "doubler") == {"1": "AVAILABLE"}
        send({"doubler/2/model.onnx": doubler}, repository)
        wait_until(lambda: states(server, "doubler").get("2") == "AVAILABLE", "version 2 is served")


def test_missing_file_and_missing_key_end_the_start_with_the_address(s3: Store, tmp_path: Path) -> None:
    """Before anything starts; the message names the address and where credentials come from."""
    arguments = ("serve", "s3://bucket/none.onnx", "--workspace", tmp_path)
    assert "there is nothing at s3://bucket/none.onnx" in run_stoker(*arguments, env=s3.environment).stderr
    away = {**s3.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    refused = run_stoker(*arguments, env=away)
    assert refused.returncode != 0
    assert "s3://bucket/none.onnx cannot be reached" in refused.stderr
    assert "AWS_PROFILE" in refused.stderr


_FETCH = """
import sys
from pathlib import Path
from stoker.models.mirrors import Mirror
Mirror("s3://bucket/large", Path(sys.argv[1])).update()
"""


def test_a_killed_fetch_goes_on_where_it_was(
    s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some MB of 150, by kill -9: the next one keeps them, and the file is whole."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    large = tmp_path / "weights"
    with large.open("wb") as file:
        for _ in range(150):
            file.write(os.urandom(1 << 20))
    send({"weights": large}, "s3://bucket/large")
    cache = tmp_path / "cache"
    command = [sys.executable, "-c", _FETCH, str(cache)]

    def fetched_bytes() -> int:
        parts = look_at_files(cache, Path.stat)
        return sum(facts.st_size for path, facts in parts.items() if path.parent.name == "parts")

    fetching = subprocess.Popen(command, env=environment_with(s3.environment))
    wait_until(lambda: fetched_bytes() > 0, "some of it has come")
    fetching.send_signal(signal.SIGKILL)
    fetching.wait()
    kept_bytes = fetched_bytes()
    assert 0 < kept_bytes < large.stat().st_size
    reports: list[tuple[int, int]] = []
    mirror = Mirror("s3://bucket/large", cache)
    assert mirror.update(progress=lambda *of: reports.append(of))
    assert reports[-1][0] == large.stat().st_size - kept_bytes
    assert (mirror.path / "weights").read_bytes() == large.read_bytes()


_TRAIN = """
import argparse, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--data")
(file,) = pathlib.Path(parser.parse_args().data).rglob("*.csv")
print("read", file.read_text())
"""


def test_a_run_reads_a_container_of_azure(azure: Store, tmp_path: Path) -> None:
    """Uploaded by the SDK's own lines, and found by the script; the second run fetches nothing."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2,3")
    (tmp_path / "train.py").write_text(_TRAIN)
    control = f"""
from azureml.core import Datastore, Workspace
ws = Workspace.from_config()
text = {azure.environment["AZURE_STORAGE_CONNECTION_STRING"]!r}
store = Datastore.register_address(ws, "blobs", "az://box/training", connection_string=text)
store.upload("data", "digits")
print(store)
"""
    (tmp_path / "control.py").write_text(control)
    environment = environment_with({"STOKER_WORKSPACE": str(tmp_path / "workspace")})

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    uploaded = run("stoker.azure", "control.py")
    assert "Uploaded 1 files" in uploaded.stdout, uploaded.stderr
    reference = "$AZUREML_DATAREFERENCE_digits"
    outputs = [
        run("stoker.cli", "submit", "--input", "digits=blobs/digits", "train.py", "--data", reference)
        for _ in range(2)
    ]
    for output in outputs:
        assert (output.returncode, "read 1,2,3" in output.stdout) == (0, True), output.stderr
    assert ["fetching" in output.stderr for output in outputs] == [True, False]
    kept = "".join(path.read_text() for path in (tmp_path / "workspace" / "runs").rglob("run.json"))
    assert AZURITE_KEY not in kept + "".join(one.stdout + one.stderr for one in (uploaded, *outputs))


_GOOGLE = """
import sys
from pathlib import Path
from stoker.models.mirrors import Mirror
from stoker.models.remote_writing import send
source, cache = map(Path, sys.argv[1:])
send({"deep/weights": source}, "gs://bucket/model")
mirror = Mirror("gs://bucket/model", cache)
assert mirror.update() and not mirror.update()
assert (mirror.path / "deep" / "weights").read_bytes() == source.read_bytes()
"""


def test_files_come_from_google(google: Store, tmp_path: Path) -> None:
    """Of a size that goes in several parts: the emulator damages smaller ones, which go in one."""
    (tmp_path / "weights").write_bytes(os.urandom(9 << 20))
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        _GOOGLE,
        str(tmp_path / "weights"),
        str(tmp_path / "cache"),
    ]
    subprocess.run(command, env=environment_with(google.environment), check=True)


def test_a_model_is_read_from_another_machine(
    machine: Sshd, doubler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SFTP, with the keys of its user; a host that nobody has vouched for is refused."""
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {
        "port": machine.port,
        "username": os.environ.get("USER", "root"),
        "client_keys": [str(machine.folder / "user")],
        "known_hosts": None,
    }
    mirror = Mirror(f"sftp://127.0.0.1{doubler}", tmp_path / "cache", options)
    assert mirror.update()
    del options["known_hosts"]
    with pytest.raises(OperatorError, match="Host key is not trusted"):
        Mirror(f"sftp://127.0.0.1{doubler}", tmp_path / "cache", options).update()
    assert mirror.path.read_bytes() == doubler.read_bytes()


_COUNT = """
import os, pathlib
files = [path for path in pathlib.Path(os.environ["digits"]).rglob("*") if path.is_file()]
print("read", len(files), "files of", sum(path.stat().st_size for path in files), "bytes")
"""
_MANY = _FETCH.replace("s3://bucket/large", "s3://bucket/many")


def test_2527_files_come_once(s3: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that is killed at about half costs nothing of that half, and the second run fetches nothing."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    system, _ = open_store("s3://bucket")
    contents = {f"bucket/many/{number % 6}/{number}.jpg": b"%08d" % number * 300 for number in range(2_527)}
    system.pipe(contents)
    (tmp_path / "train.py").write_text(_COUNT)
    workspace = tmp_path / "workspace"
    cache = workspace / "remote"

    def inodes(folder: str) -> set[int]:
        """Of the files at `PLACE/folder`, however deep."""
        facts = look_at_files(cache, Path.stat)
        return {facts[path].st_ino for path in facts if path.relative_to(cache).parts[1] == folder}

    fetching = subprocess.Popen(
        [sys.executable, "-c", _MANY, str(cache)], env=environment_with(s3.environment)
    )
    wait_until(lambda: len(inodes("parts")) > 1_000, "about half has come", timeout_s=PROGRAM_S, every_s=0.5)
    fetching.send_signal(signal.SIGKILL)
    fetching.wait()
    half = {path.stat().st_ino for path in cache.glob("*/parts/*") if path.stat().st_size == 2_400}
    assert 900 < len(half) < 2_527
    words = ["submit", "--input", "digits=s3://bucket/many", "--workspace", workspace, tmp_path / "train.py"]
    runs = [run_stoker(*words, env=s3.environment) for _ in range(2)]
    for run in runs:
        assert f"read 2527 files of {2_527 * 2_400} bytes" in run.stdout, run.stderr
    assert half <= inodes("files")
    assert ["fetching" in run.stderr for run in runs] == [True, False]


def test_rows_of_a_store_are_scored_into_it(store: Store, doubler: Path, tmp_path: Path) -> None:
    """By two machines, the second of which finds the work of the first."""
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.ones((3, 4), np.float32))
    send({f"{name}.npy": tmp_path / f"{name}.npy" for name in "ab"}, f"{store.address}/rows")
    words = ["offline", doubler, "--input", f"{store.address}/rows", "--output", f"{store.address}/answers"]
    results = [
        run_stoker(*words, "--workspace", tmp_path / machine, env=store.environment)
        for machine in ("one", "two")
    ]
    assert [one.stdout for one in results] == [
        f"2 files with 6 rows in {store.address}/answers\n",
        f"0 files with 0 rows in {store.address}/answers, 2 done before\n",
    ], results[0].stderr + results[1].stderr
    answers = Mirror(f"{store.address}/answers", tmp_path / "cache")
    answers.update()
    np.testing.assert_array_equal(np.load(answers.path / "b.npy"), np.full((3, 4), 2, np.float32))
