"""Dockerfile.gpu, built once for all tests of a run, for GPUs and for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.image.containers import Container
from tests.image.podman import BASE, ROOT, Podman, folder, missing
from tests.tiny_models import write_doubler

REVISION = "5e61f3a2c4d8b7096e1f2a3b4c5d6e7f80912a3b"


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Podman with the base image; skips where that cannot be."""
    if reason := missing():
        pytest.skip(f"{reason}; apt-get install podman runc debootstrap")
    made = Podman(folder())
    with made.alone():
        # Containers of a killed run may be left.
        made.run("rm", "--all", "--force", "--volumes", "--time=0")
        made.base()
        yield made


def build(podman: Podman, runtime: str) -> str:
    """Build Dockerfile.gpu as it is, on another base, with the label that the page on images shows."""
    file, arguments = ROOT / "Dockerfile.gpu", [f"--build-arg=BASE={BASE}", f"--build-arg=RUNTIME={runtime}"]
    # Under a name, for the next build to begin with what has not changed.
    podman.build(f"localhost/stoker-test-build:{runtime}", file, ROOT, *arguments, "--target=build")
    label = f"--label=org.opencontainers.image.revision={REVISION}"
    return podman.build(f"localhost/stoker-test:{runtime}", file, ROOT, *arguments, label)


@pytest.fixture(scope="session")
def gpu_image(podman: Podman) -> str:
    """The image for GPUs, which serves on CPUs too."""
    return build(podman, "gpu")


@pytest.fixture(scope="session")
def cpu_image(podman: Podman) -> str:
    """The image without a runtime for GPUs."""
    return build(podman, "cpu")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `doubler.onnx`, y = 2 x for rows of 4, that everybody may read."""
    made = tmp_path_factory.mktemp("models")
    write_doubler(made / "doubler.onnx")
    opened(made)
    return made


def opened(path: Path) -> Path:
    """Let everybody into a folder, which pytest has made for its own user."""
    for parent in (path, *path.parents):
        if parent.stat().st_mode & 0o777 == 0o700:
            parent.chmod(0o711)
    path.chmod(0o755)
    return path


@pytest.fixture
def start(podman: Podman) -> Iterator[Callable[..., Container]]:
    """Starts containers that go with the test."""
    started: list[Container] = []

    def start(image: str, *arguments: str, **settings: Any) -> Container:
        started.append(Container(podman, image, *arguments, **settings))
        return started[-1]

    yield start
    for container in started:
        container.__exit__()
