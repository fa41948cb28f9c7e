"""Optional packages: what is named to install them, and ONNX Runtime's two builds."""

from __future__ import annotations

import json
import logging
import shlex
import sys
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement

import stoker
import stoker_azure
import stoker_cluster
import stoker_runs
import stoker_torchserve
from stoker.deployment import Deployment
from stoker.device.runtime_loading import load_runtime
from stoker.errors import LoadFailed, OperatorError
from stoker.gpu.selection import cpu_device
from stoker.settings.model import ModelSettings
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor import serving
from stoker.system import extras
from stoker.system.extras import (
    how_to_install,
    installed_onnx_builds,
    onnx_clash,
    onnx_extra,
    onnx_missing,
    requirements,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DECLARED = [
    "always>=1",
    "always-there",
    "pytest>=1; extra == 'tests'",
    "pytest>=9999; extra == 'newer'",
    "not-there[all]<3,>=2; extra == 'tests'",
    "elsewhere; sys_platform == 'nowhere' and extra == 'tests'",
]


CONSTRAINTS = shlex.quote(str(Path(__file__).parents[3] / "constraints.txt"))


@pytest.fixture
def other_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution with other extras."""
    monkeypatch.setattr(metadata, "requires", lambda _: DECLARED)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Put distributions into a folder of packages of their own, and hide those that are really there."""
    folders: list[str] = []
    monkeypatch.setattr(sys, "path", folders)

    def put(folder: str, **versions: str) -> Path:
        packages = tmp_path / folder
        for name, version in versions.items():
            info = packages / f"{name}-{version}.dist-info"
            info.mkdir(parents=True)
            text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
            (info / "METADATA").write_text(text)
        folders.append(str(packages))
        return packages

    return put


@pytest.mark.usefixtures("other_extras")
def test_extra_adds_requirements_of_this_machine() -> None:
    """Without what is needed anyway, and without what other platforms need."""
    assert [each.name for each in requirements("tests")] == ["pytest", "not-there"]
    assert [each.name for each in requirements()] == ["always", "always-there"]


@pytest.mark.usefixtures("other_extras")
@pytest.mark.parametrize(
    ("extra", "named"),
    [
        # Quoted, since < and > are the shell's; without what is there in a version that will do.
        (("tests",), ["'not-there<3,>=2'"]),
        (("newer",), ["'pytest>=9999'"]),
        (("newer", "tests"), ["'pytest>=9999'", "'not-there<3,>=2'"]),
    ],
)
def test_missing_packages_are_named_with_their_command(extra: tuple[str, ...], named: list[str]) -> None:
    """The command is for this Python, and names the packages themselves."""
    command = f"{shlex.quote(sys.executable)} -m pip install {' '.join(named)}"
    assert how_to_install(*extra) == f"install it with: {command} -c {CONSTRAINTS}"


def test_an_environment_of_uv_is_installed_into_by_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no pip; where Python is, uv is told."""
    monkeypatch.setattr(metadata, "requires", lambda _: DECLARED)
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    expected = f"uv pip install --python {shlex.quote(sys.executable)} 'pytest>=9999'"
    assert how_to_install("newer").endswith(f"{expected} -c {CONSTRAINTS}")


@pytest.mark.parametrize("extra", sorted(metadata.metadata("stoker").get_all("Provides-Extra") or ()))
def test_no_command_names_stoker(extra: str) -> None:
    """On the index that name is somebody else's; folders of the clone are Stoker's own."""
    command = how_to_install(extra).partition(" install ")[2]
    packages, _, constraints = command.partition(" -c ")
    assert Path(constraints).name == "constraints.txt"
    named = shlex.split(packages)
    assert named
    folders = [text for text in named if text.startswith("/")]
    assert all(Path(text.partition("[")[0]).is_dir() for text in folders)
    assert not [text for text in named if text not in folders and "stoker" in Requirement(text).name]


def test_no_message_has_a_command_of_its_own_for_an_extra() -> None:
    """One function says how to install an extra, and knows that Stoker is on no index."""
    packages = (stoker, stoker_azure, stoker_cluster, stoker_runs, stoker_torchserve)
    sources = [file for package in packages for file in Path(str(package.__file__)).parent.rglob("*.py")]
    assert [source for source in sources if "stoker[" in source.read_text(encoding="utf-8")] == []


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Stoker that has been installed out of its clone."""
    monkeypatch.setattr(stoker, "__file__", str(tmp_path / "lib" / "python3" / "stoker" / "__init__.py"))
    return tmp_path / "lib"


ASKED_OF = {
    "stoker": ["always", "stoker-training; extra == 'training'", "stoker-bench[load]==1; extra == 'load'"],
}


@pytest.mark.parametrize(
    ("there", "extra", "named"),
    [
        ({}, "training", "install it{place} with: {pip} {clone}/models"),
        ({}, "load", "install it{place} with: {pip} '{clone}/loadtests[load]'"),
        ({"stoker_training": "1"}, "training", "install it{place} with: {pip} {clone}/models"),
        ({"stoker_bench": "0"}, "load", "install it{place} with: {pip} '{clone}/loadtests[load]'"),
        ({"stoker_bench": "1"}, "load", "install it{place} with: {pip} '{clone}/loadtests[load]'"),
    ],
)
@pytest.mark.parametrize("in_clone", [True, False])
def test_a_distribution_of_stokers_own_is_a_folder_of_the_clone(
    install: Callable[..., Path],
    outside: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_clone: bool,
    there: dict[str, str],
    extra: str,
    named: str,
) -> None:
    """It is on no index; one that is there is installed again, with what it asks for in turn."""
    install("site-packages", always="1", **there)
    monkeypatch.setattr(metadata, "requires", ASKED_OF.__getitem__)
    monkeypatch.setattr(extras, "find_spec", lambda _: True)
    if in_clone:
        for folder in extras.FOLDERS.values():
            (outside / folder).mkdir(parents=True, exist_ok=True)
        (outside / "constraints.txt").touch()
    pip = f"{shlex.quote(sys.executable)} -m pip install"
    place, clone = ("", outside) if in_clone else (", in a clone of Stoker,", ".")
    wanted = named.format(place=place, pip=pip, clone=clone)
    constraints = f" -c {outside / 'constraints.txt'}" if in_clone else ""
    assert how_to_install(extra) == wanted.replace("'./models'", "./models") + constraints


def test_stoker_that_was_installed_from_a_clone_has_its_constraints(
    install: Callable[..., Path], outside: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The record of pip says where it was; a clone that is gone by now has none."""
    packages, clone = install("site-packages", stoker="1"), tmp_path / "a clone"
    (packages / "stoker-1.dist-info" / "direct_url.json").write_text(json.dumps({"url": clone.as_uri()}))
    monkeypatch.setattr(metadata, "requires", lambda _: DECLARED)
    assert "-c" not in shlex.split(how_to_install("tests"))
    for folder in extras.FOLDERS.values():
        (clone / folder).mkdir(parents=True, exist_ok=True)
    (clone / "constraints.txt").touch()
    assert shlex.split(how_to_install("tests"))[-2:] == ["-c", str(clone / "constraints.txt")]


@pytest.mark.parametrize("in_clone", [True, False])
def test_advice_to_build_the_pages_fits_the_installation(
    install: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_clone: bool
) -> None:
    """A Stoker that was installed from a clone has to be installed again after the libraries were fetched there."""
    clone = tmp_path / "clone"
    for folder in extras.FOLDERS.values():
        (clone / folder).mkdir(parents=True, exist_ok=True)
    (clone / "constraints.txt").touch()
    # Environments often lie in the clone.
    packages = install("clone/venv", stoker="1")
    (packages / "stoker-1.dist-info" / "direct_url.json").write_text(json.dumps({"url": clone.as_uri()}))
    place = clone / "server" if in_clone else packages
    monkeypatch.setattr(stoker, "__file__", str(place / "stoker" / "__init__.py"))
    advice = extras.console_missing()
    assert f"{clone}/server/console/build.py" in advice
    assert (f"--force-reinstall --no-deps {clone}" in advice) is not in_clone


def test_modules_alone_know_no_packages(install: Callable[..., Path]) -> None:
    """In the environment of a model for another Python, Stoker's modules are there and its metadata are not."""
    install("site-packages", onnx="1.0")
    assert how_to_install("fp16") == "install what Stoker's pyproject.toml lists as fp16"


def test_the_base_has_no_onnx_runtime() -> None:
    """An extra names the wanted build, so neither comes by itself beside the other."""
    assert not {each.name for each in requirements()} & {"onnxruntime", "onnxruntime-gpu"}
    assert [each.name for each in requirements("cpu")] == ["onnxruntime"]
    (build,) = (each.name for each in requirements("gpu") if each.name.startswith("onnxruntime"))
    assert build in ("onnxruntime", "onnxruntime-gpu")


def test_builds_in_one_folder_clash(install: Callable[..., Path]) -> None:
    """Each has overwritten files of the other; what to keep is for the operator to say."""
    install("site-packages", onnxruntime="1.31.1", onnxruntime_gpu="1.31.1")
    clash = onnx_clash() or ""
    assert clash.startswith("onnxruntime and onnxruntime-gpu are both installed")
    assert " uninstall onnxruntime onnxruntime-gpu, then " in clash.replace(f"--python {sys.executable} ", "")


def test_builds_in_two_folders_do_not_clash(install: Callable[..., Path]) -> None:
    """A model's environment has its own in front of the server's."""
    install("environment", onnxruntime="1.20.0")
    install("server", onnxruntime_gpu="1.31.1")
    assert onnx_clash() is None
    assert installed_onnx_builds() == {"onnxruntime": "1.20.0", "onnxruntime-gpu": "1.31.1"}


@pytest.mark.parametrize(
    ("build", "extra"),
    [({}, "cpu"), ({"onnxruntime": "1.31.1"}, "cpu"), ({"onnxruntime_gpu": "1.31.1"}, "gpu")],
)
def test_one_build_or_none_is_fine(install: Callable[..., Path], build: dict[str, str], extra: str) -> None:
    """The extra is that of the build that is there."""
    install("site-packages", **build)
    assert (onnx_clash(), onnx_extra()) == (None, extra)


def test_the_start_says_that_builds_clash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before anything is loaded, so that it stands above whatever fails then."""
    monkeypatch.setattr(serving, "configure_logging", lambda _, form: None)
    monkeypatch.setattr(serving, "onnx_clash", lambda: "both are installed")
    nothing = ServerSettings(models=(ModelSettings(path=tmp_path / "nothing.onnx"),))
    with caplog.at_level(logging.WARNING), pytest.raises(OperatorError, match=r"nothing\.onnx"):
        serving.serve(nothing, Workspace(tmp_path / "workspace"), 0.0)
    assert [record.getMessage() for record in caplog.records] == ["both are installed"]


def test_an_onnx_model_without_onnx_runtime_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the command for each build."""
    monkeypatch.delitem(sys.modules, "stoker.runtimes.onnx.loading", raising=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    deployment = Deployment("digits", "1", "onnx", tmp_path / "model.onnx", tmp_path, 1, 1)
    with pytest.raises(LoadFailed) as failed:
        load_runtime(deployment, cpu_device())
    assert str(failed.value).startswith("an ONNX model needs ONNX Runtime (")
    assert str(failed.value).endswith(onnx_missing())
    assert "(for NVIDIA GPUs, onnxruntime-gpu in its place)" in onnx_missing()
    assert util.find_spec("onnxruntime") is None
