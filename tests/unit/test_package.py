"""The package as a whole: what its modules import and export."""

import importlib
import inspect
import json
import pkgutil
import runpy
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from tests.patience import PROGRAM_S

import stoker
import stoker_azure
import stoker_cluster
import stoker_runs
import stoker_torchserve

MODULES = [
    module.name
    for package in (stoker, stoker_azure, stoker_cluster, stoker_runs, stoker_torchserve)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not module.ispkg
]
FRAMEWORKS = {"tensorflow", "onnxruntime", "onnx", "keras"}
HTTP = {"starlette", "uvicorn", "httptools", "uvloop"}
# Packages of features that few servers use.
RARE = {"jwt", "cryptography", "PIL", "opentelemetry", "pyarrow", "pandas", "asyncssh"}


def imported_by(*modules: str) -> set[str]:
    """Top-level names of everything that importing these modules imports, in an interpreter of its own."""
    program = f"import sys, json, {', '.join(modules)}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, timeout=PROGRAM_S
    ).stdout
    return {name.partition(".")[0] for name in json.loads(output)}


@pytest.mark.parametrize(("preset", "wanted"), [(None, "1"), ("0", "0")])
def test_telemetry_of_onnx_runtime_is_off_by_default(
    monkeypatch: pytest.MonkeyPatch, preset: str | None, wanted: str
) -> None:
    """Its telemetry is off in every process that has imported Stoker, before the library can be loaded."""
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if preset is not None:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", preset)
    program = "import stoker.device.process, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)

    assert output.stdout.strip() == wanted


def test_the_gateway_and_the_supervisor_import_no_framework() -> None:
    """A frontend starts in a moment and stays small, for any models."""
    imported = imported_by(
        "stoker.gateway.frontend", "stoker.supervisor.supervisor", "stoker.commands.command_line"
    )
    assert "starlette" in imported
    assert not imported & (FRAMEWORKS | RARE)


def test_the_device_process_imports_no_http_server() -> None:
    """Nor a framework before it knows which one its models need."""
    imported = imported_by(
        "stoker.device.process", "stoker.device.worker", "stoker.device.loading", "stoker.runtimes.script"
    )
    assert "numpy" in imported
    assert not imported & (HTTP | FRAMEWORKS)


def test_the_decorator_costs_a_script_nothing() -> None:
    """`import stoker` in an entry script imports none of the server's dependencies."""
    third_party = {"numpy", "orjson", "yaml", "prometheus_client", "simdjson", "tqdm"} | HTTP | FRAMEWORKS
    assert not imported_by("stoker") & third_party


def undescribed_things(name: str) -> Iterator[str]:
    """Yield the module, and the public classes and functions in it, that have no docstring of their own."""
    module = importlib.import_module(name)
    if not module.__doc__:
        yield name
    for public, value in vars(module).items():
        if public.startswith("_") or getattr(value, "__module__", None) != name:
            continue
        # The messages of a protocol are described where it is published.
        generated = hasattr(value, "DESCRIPTOR")
        if ((inspect.isclass(value) and not generated) or inspect.isfunction(value)) and not value.__doc__:
            yield f"{name}.{public}"


def test_public_things_are_described() -> None:
    """Every module, and every public class and function in it, has a docstring of its own."""
    assert [thing for name in MODULES for thing in undescribed_things(name)] == []


def test_the_version_is_the_distributions() -> None:
    """`stoker --version` prints the version that pip installed."""
    assert stoker.__version__ == version("stoker")


def test_older_python_gets_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter that cannot read the code says which one is needed, and not where it has stopped."""
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    monkeypatch.setattr(sys, "version", "3.8.18 (default)")
    with pytest.raises(ImportError, match=r"Stoker needs Python 3\.11 or newer, and \S+ is 3\.8\.18"):
        runpy.run_path(stoker.__file__)
