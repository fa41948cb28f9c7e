"""The distributions: their requirements, and their built files."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Iterable
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import grimp
import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.live_server import LiveServer
from tests.tiny_models import write_doubler
from uv import find_uv_bin

import stoker

ROOT = Path(__file__).parents[2]
# Where each is built from; the package in it has the same name.
PROJECTS = {
    "stoker": ".",
    "stoker_client": "clients",
    "stoker_base": "server/stoker_base",
    "stoker_cluster": "server/stoker_cluster",
    "stoker_torchserve": "server/stoker_torchserve",
    "stoker_run": "runs/agent",
    "stoker_runs": "runs",
    "stoker_azure": "azure-ml",
    "stoker_training": "models",
    "stoker_bench": "loadtests",
}
OWN = {canonicalize_name(name) for name in PROJECTS}
VERSION = stoker.__version__


@functools.cache
def locked() -> list[Requirement]:
    """The lines of constraints.txt."""
    return [Requirement(line) for line in (ROOT / "constraints.txt").read_text(encoding="ascii").splitlines()]


def test_packages_of_grpc_are_locked_in_step() -> None:
    """They are released together, and tried together by those who release them: one minor version of all."""
    versions = {pin.name: str(pin.specifier) for pin in locked() if pin.name.startswith("grpcio")}
    assert versions.keys() >= {"grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-tools"}
    assert len({version.rpartition(".")[0] for version in versions.values()}) == 1, versions


@pytest.mark.parametrize("python", ["3.11.9", "3.13.1"])
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("folder", PROJECTS.values())
def test_every_requirement_is_locked(folder: str, machine: str, python: str) -> None:
    """Whichever extras are installed, and where, constraints.txt says in which version: one, that will do."""
    where = {
        "platform_machine": machine,
        "python_full_version": python,
        "python_version": python.rpartition(".")[0],
    }
    project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project.get("optional-dependencies", {}).values()
    declared = [Requirement(text) for texts in (project["dependencies"], *extras) for text in texts]
    for requirement in declared:
        name = canonicalize_name(requirement.name)
        if name in OWN:
            # They are released together.
            assert str(requirement.specifier) == f"=={VERSION}", name
            continue
        if not applies(requirement, where):
            continue
        pins = [pin for pin in locked() if canonicalize_name(pin.name) == name and applies(pin, where)]
        assert len(pins) == 1, name
        assert requirement.specifier.contains(str(pins[0].specifier).removeprefix("==")), name


def applies(requirement: Requirement, where: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(where)


@pytest.mark.parametrize(
    ("machine", "build"),
    [("x86_64", "onnxruntime-gpu"), ("aarch64", "onnxruntime-gpu"), ("ppc64le", "onnxruntime")],
)
def test_extra_gpu_installs_one_build_that_has_a_wheel_for_the_machine(machine: str, build: str) -> None:
    """The build for GPUs where there is one, ARM included, and that for CPUs elsewhere; never both."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = map(Requirement, project["optional-dependencies"]["gpu"])
    where = {"platform_machine": machine, "sys_platform": "linux"}
    names = [requirement.name for requirement in declared if applies(requirement, where)]
    assert [name for name in names if name.startswith("onnxruntime")] == [build]


OF_THE_OPERATOR = {"lightgbm", "mlflow", "torchvision", "uv", "xgboost", "_typeshed"}
"""Modules that no extra brings: where a model, a handler or a training environment has none, a sentence says so."""


@pytest.mark.parametrize("name", sorted(PROJECTS.keys() - {"stoker_run", "stoker_bench"}))
def test_every_import_is_of_a_required_package(name: str) -> None:
    """By the distribution, by an extra of the server but `dev`, or by a package that these ask for."""
    wanted = with_needs({canonicalize_name(requirement.name) for requirement in requirements_of(name)})
    provided = metadata.packages_distributions()
    missing = {
        module
        for module in imported_modules(name)
        if not {canonicalize_name(each) for each in provided.get(module, [module])} & wanted
    }
    assert missing <= OF_THE_OPERATOR


def requirements_of(name: str) -> list[Requirement]:
    """The requirements of a distribution and of the server, with extras, but for those of developers."""
    texts = []
    for folder in (".", PROJECTS[name]):
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        texts += project["dependencies"]
        texts += [text for extra, each in extras.items() if extra != "dev" for text in each]
    return [Requirement(text) for text in texts]


def with_needs(names: set[str]) -> set[str]:
    """Names of packages, with those that the installed ones ask for in turn."""
    found: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        found.add(name)
        try:
            needs = map(Requirement, metadata.requires(name) or ())
        except metadata.PackageNotFoundError:
            continue
        pending |= {canonicalize_name(need.name) for need in needs if applies(need, {"extra": ""})} - found
    return found


@functools.cache
def all_imports() -> grimp.ImportGraph:
    return grimp.build_graph(*PROJECTS, include_external_packages=True, cache_dir=None)


def imported_modules(name: str) -> set[str]:
    """The top of each module of other projects that a distribution imports, at the top or in a function."""
    modules = {name, *all_imports().find_descendants(name)}
    found = {
        imported.partition(".")[0]
        for module in modules
        for imported in all_imports().find_modules_directly_imported_by(module)
    }
    return {
        each
        for each in found
        if each not in sys.stdlib_module_names and not each.startswith("stoker") and each != "ts"
    }


def uv(*arguments: str | Path) -> None:
    """Run uv without an index: all packages are here."""
    environ = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    done = subprocess.run(
        [find_uv_bin(), *arguments],
        check=False,
        cwd=ROOT,
        env={**environ, "UV_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The distributions as `make dist` builds them: the sdist from the clone, the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    for project in PROJECTS.values():
        uv("build", "--no-build-isolation", "--python", sys.executable, "--out-dir", folder, project)
    return folder


@pytest.fixture
def wheel(dist: Path) -> Callable[[str], Path]:
    return lambda name: dist / f"{name}-{VERSION}-py3-none-any.whl"


@pytest.mark.parametrize("name", PROJECTS)
def test_a_wheel_has_its_packages_and_nothing_else(name: str, wheel: Callable[[str], Path]) -> None:
    """They say that they are typed; the license is with them, the tests are not."""
    with ZipFile(wheel(name)) as archive:
        paths = {Path(path) for path in archive.namelist()}
        license_text = archive.read(f"{name}-{VERSION}.dist-info/licenses/LICENSE")
    assert {path.parts[0] for path in paths} == {name, f"{name}-{VERSION}.dist-info"}
    assert {path.parent.name for path in paths if path.name == "py.typed"} == {name}
    assert license_text == (ROOT / "LICENSE").read_bytes()
    assert not {path for path in paths if "tests" in path.parts or path.name.startswith("test_")}


@pytest.mark.parametrize("name", ["console", "api_docs"])
def test_wheel_of_the_server_has_the_pages_for_browsers(wheel: Callable[[str], Path], name: str) -> None:
    """Of their libraries all that were fetched here, which no repository has."""
    page = ROOT / "server" / "stoker" / "gateway" / name / "page"
    with ZipFile(wheel("stoker")) as archive:
        names = set(archive.namelist())
    there = {path.relative_to(ROOT / "server").as_posix() for path in page.rglob("*") if path.is_file()}
    assert f"stoker/gateway/{name}/page/index.html" in names
    assert there <= names


@pytest.mark.parametrize("name", PROJECTS)
def test_wheel_metadata_is_valid_for_an_index(name: str, wheel: Callable[[str], Path]) -> None:
    """Its metadata keep their specification, as twine has it checked too, and it is described."""
    with ZipFile(wheel(name)) as archive:
        text = archive.read(f"{name}-{VERSION}.dist-info/METADATA")
    metadata = Metadata.from_email(text, validate=True)
    assert (metadata.name, str(metadata.version)) == (name.replace("_", "-"), VERSION)
    assert (metadata.license_expression, metadata.description_content_type) == ("Apache-2.0", "text/markdown")
    assert (metadata.description or "").startswith("# ")
    assert not HeaderParser().parsestr(text.decode()).defects


@pytest.mark.parametrize("name", PROJECTS)
def test_the_clone_gives_the_same_wheel_as_the_sdist(
    name: str, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    """Bit for bit: nothing that a wheel needs is missing in the sdist, and a build does not tell the time."""
    project = PROJECTS[name]
    uv("build", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", tmp_path, project)
    assert (tmp_path / wheel(name).name).read_bytes() == wheel(name).read_bytes()


def test_sdist_holds_the_named_files(dist: Path) -> None:
    """Other files in the folder of the clone stay out of it."""
    with tarfile.open(dist / f"stoker-{VERSION}.tar.gz") as archive:
        names = {Path(member.name).parts[1] for member in archive.getmembers() if member.isfile()}
    sources = {"server", "constraints.txt", "CHANGELOG.md"}
    assert names == sources | {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore"}


INSTALLED = """
import json, sys
import stoker, stoker.gateway.frontend, stoker.gateway.grpc, stoker.supervisor.supervisor
import stoker_azure, stoker_base, stoker_bench.benches.bench, stoker_client, stoker_cluster
import stoker_run, stoker_runs, stoker_training
from stoker_training.training import ENTRY_SCRIPT
assert ENTRY_SCRIPT.is_file()
names = [name for name in sys.modules if name.startswith("stoker") and "." not in name]
print(json.dumps([sys.modules[name].__file__ for name in names]))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """An environment in which all that Stoker asks for is found, and nothing of Stoker."""
    home = tmp_path / "environment"
    uv("venv", "--python", sys.executable, home)
    others = tmp_path / "others"
    others.mkdir()
    # To install it again would take minutes.
    for path in Path(pytest.__file__).parents[1].iterdir():
        if not path.name.startswith(("stoker", "_stoker")) and path.suffix != ".pth":
            (others / path.name).symlink_to(path)
    (packages,) = home.glob("lib/python3*/site-packages")
    (packages / "others.pth").write_text(f"{others}\n")
    return home


def install(home: Path, wheels: Iterable[Path]) -> None:
    uv("pip", "install", "--python", home / "bin" / "python", "--no-index", "--no-deps", *wheels)


BASE = ("stoker", "stoker_base", "stoker_client")
"""The server, and the distributions that it needs."""
ALONE = """
import sys
def init():
    pass
def run(raw_data):
    return sorted(name for name in sys.modules if name.startswith(("azureml", "stoker_azure", "stoker_runs")))
"""


def test_the_wheel_of_the_server_serves_alone(
    environment: Path, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    """An ONNX file and an entry script, where neither the modules of Azure nor those of runs are installed."""
    install(environment, map(wheel, BASE))
    model, script = write_doubler(tmp_path / "doubler.onnx"), tmp_path / "score.py"
    script.write_text(ALONE)
    for served, answer in ((model, [[2.0, 4.0, 6.0, 8.0]]), (script, [])):
        scratch = tmp_path / served.stem
        scratch.mkdir()
        with LiveServer(scratch, served, "--device", "cpu", python=environment / "bin" / "python") as server:
            assert server.score([1, 2, 3, 4]).json() == answer


def test_wheels_work_in_an_empty_environment(
    environment: Path, wheel: Callable[[str], Path], tmp_path: Path
) -> None:
    """The command and the client, then training and the bench too, with nothing of the clone in sight."""
    home, python = environment, environment / "bin" / "python"

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"]}
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)

    install(home, map(wheel, BASE))
    (packages,) = home.glob("lib/python3*/site-packages")
    version = run(home / "bin" / "stoker", "--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"stoker {VERSION}\n", "")
    for command, missing in (
        ("bench", "./loadtests"),
        ("train mnist", "./models"),
        ("az ml", "./azure-ml"),
    ):
        alone = run(home / "bin" / "stoker", *command.split())
        assert alone.returncode == 2, alone.stderr
        assert f"the command '{command.split()[0]}' is not installed; install it" in alone.stderr
        assert missing in alone.stderr.split()
    program = run(python, "-m", "stoker.azure", "deploy.py")
    assert (program.returncode, len(program.stderr.splitlines())) == (2, 1), program.stderr
    assert "./azure-ml" in program.stderr.split()
    install(home, (wheel(name) for name in PROJECTS if name not in BASE))
    bench = run(home / "bin" / "stoker", "bench", "--protocols", "--run", "outputs")
    assert "--run does not go with --protocols" in bench.stderr
    imported = run(python, "-c", INSTALLED)
    assert imported.returncode == 0, imported.stderr
    assert all(Path(file).is_relative_to(packages) for file in json.loads(imported.stdout))
    doctor = run(home / "bin" / "stoker", "doctor", "--port", "0", "--json")
    checks = {check["name"]: check["outcome"] for check in json.loads(doctor.stdout)["checks"]}
    assert (checks["packages"], checks["onnx runtime"]) == ("ok", "ok")
