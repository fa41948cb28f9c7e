"""Object stores of this machine: moto's S3, Azurite's blobs, an emulator of Google's, and a real sshd."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.live_server import free_port, wait_until
from tests.targets.sshd import Sshd, why_not

pytest.importorskip(
    "s3fs", reason="the packages of object stores are not installed: `make test-stores` brings them"
)

AZURITE = Path(os.environ.get("STOKER_TEST_AZURITE", "none"))
# Published for everyone by Azurite's documentation: it is no secret.
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Store:
    """A store that runs.

    Attributes:
        address: A folder in it.
        environment: The variables by which programs reach it.
    """

    address: str
    environment: Mapping[str, str]


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def _running(command: list[str], url: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "store.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    wait_until(lambda: _answers(url), f"{command[0]} answers")
    return process


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = _running(
        [sys.executable, "-m", "moto.server", "-p", str(port)], url, tmp_path_factory.mktemp("s3")
    )
    environment = {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret-of-s3",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": url,
    }
    import s3fs

    s3fs.S3FileSystem(key="someone", secret="secret-of-s3", client_kwargs={"endpoint_url": url}).mkdir(
        "bucket"
    )
    yield Store("s3://bucket", environment)
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    node = shutil.which("node")
    if node is None or not AZURITE.is_file():
        pytest.skip("Azurite is not installed: `make test-stores` fetches it with npm")
    port = free_port()
    folder = tmp_path_factory.mktemp("azure")
    options = ["--blobPort", str(port), "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    process = _running([node, str(AZURITE), *options], f"http://127.0.0.1:{port}", folder)
    text = (
        f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};"
        f"BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
    )
    import adlfs

    adlfs.AzureBlobFileSystem(connection_string=text).mkdir("box")
    yield Store("az://box", {"AZURE_STORAGE_CONNECTION_STRING": text})
    process.kill()
    process.wait()


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    port = free_port()
    options = ["start", f"--port={port}", "--default-bucket=bucket", "--in-memory"]
    command = [sys.executable, "-m", "gcp_storage_emulator", *options]
    process = _running(command, f"http://127.0.0.1:{port}", tmp_path_factory.mktemp("google"))
    yield Store("gs://bucket", {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"})
    process.kill()
    process.wait()


@pytest.fixture(params=["s3", "azure"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind of store, reached from this process too."""
    found: Store = request.getfixturevalue(request.param)
    for name, value in found.environment.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Sshd]:
    if reason := why_not():
        pytest.skip(reason)
    sshd = Sshd(tmp_path / "sshd", options=("Subsystem sftp internal-sftp",))
    sshd.start()
    yield sshd
    sshd.stop()
