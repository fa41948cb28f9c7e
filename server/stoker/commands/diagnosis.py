"""The checks of `stoker doctor`: the machine, the server's own packages, and the needs of the models."""

from __future__ import annotations

import functools
import http.client
import json
import os
import platform
import resource
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import Requirement

from stoker import __version__
from stoker.deployment import Deployment
from stoker.environments.check import ModelEnvironment, installed_version
from stoker.errors import OperatorError
from stoker.gpu.child_probes import probe_in_child
from stoker.gpu.facts import Driver, Gpu
from stoker.gpu.selection import choose_device
from stoker.gpu.survey import FoundDevice, find_devices
from stoker.isolation.tensorflow.effects import read_effects
from stoker.models.deployments import environment_of, resolve
from stoker.models.fetching import fetch_models
from stoker.models.repository import Repository
from stoker.scripts.imports import (
    PROVIDED_BY_AZURE,
    PROVIDED_FOR_TORCHSERVE,
    PROVIDED_FOR_TRITON,
    Import,
    find_missing,
    read_imports,
)
from stoker.scripts.script_process import script_folders
from stoker.settings.server import ServerSettings
from stoker.settings.workspace import Workspace
from stoker.supervisor.body_memory import body_memory
from stoker.supervisor.ports import bind, reserve_grpc_port
from stoker.supervisor.tls_ports import tls_ports
from stoker.system.extensions import find_extension
from stoker.system.extras import (
    console_missing,
    how_to_install,
    installed_extras,
    installed_onnx_builds,
    is_console_built,
    onnx_clash,
    onnx_missing,
    requirements,
)
from stoker.system.resources import main_memory
from stoker.system.wording import format_count
from stoker.wire.nested_lists import native_rows_note

Outcome = Literal["ok", "note", "wrong"]

_NAMED_PACKAGES: Final = (
    *("stoker-native", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorflow", "torch", "scikit-learn"),
    *("mlflow", "ray"),
)
"""The packages that a report of a defect should name."""
_PACKAGES_OF_FRAMEWORKS: Final = {
    "tensorflow": "tensorflow",
    "onnx": "onnxruntime",
    "torch": "torch",
    "sklearn": "sklearn",
}
_FEW_FILES: Final = 1024
_ENOUGH_FILES: Final = 16_384
_LITTLE_MEMORY_BYTES: Final = 1 << 30
_LEAST_FREE_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    Attributes:
        outcome: `ok`, `note`, or `wrong` if it keeps a model from being served as configured.
    """

    name: str
    outcome: Outcome
    text: str
    items: tuple[str, ...] = ()


def diagnose(
    settings: ServerSettings, workspace: Workspace, *, build: bool, say: Callable[[str], None]
) -> list[Check]:
    """Check all parts that `stoker serve` with these settings would use. No model is loaded."""
    checks = [
        Check("stoker", "ok", f"{__version__} on {platform.platform()}"),
        Check("python", "ok", f"Python {platform.python_version()} ({sys.executable})"),
        check_packages(),
        _versions(),
        _extras(),
        _onnx_runtime(),
        Check("json", "ok", native_rows_note()),
        Check("console", "ok", "is built")
        if is_console_built()
        else Check("console", "note", console_missing()),
    ]
    checks += [
        check_workspace(workspace),
        check_port(settings.host, settings.port, secure=settings.tls_cert is not None),
        *_tls(settings),
    ]
    if settings.management_port:
        secure = settings.tls_cert is not None
        of_management = check_port(settings.host, settings.management_port, secure=secure)
        checks.append(replace(of_management, name="management port"))
    if settings.grpc_port:
        checks.append(_grpc_port(settings))
    checks += [check_memory(), _large_bodies(settings), check_limits()]
    with ExitStack() as leases:
        try:
            models = _models(settings, workspace, leases, say)
        except OperatorError as error:
            return [*checks, *_devices([], settings), Check("models", "wrong", str(error))]
        checks += _devices(models, settings)
        if not models:
            checks.append(
                Check("models", "note", f"none is named, and none is registered in {workspace.models_dir}")
            )
        for model in models:
            checks += _model(model, workspace, build, say)
    return checks


def _models(
    settings: ServerSettings, workspace: Workspace, leases: ExitStack, say: Callable[[str], None]
) -> list[Deployment]:
    settings, _ = fetch_models(settings, workspace, say, leases)
    if not settings.models and not Repository(workspace.models_dir).names():
        return []
    return resolve(settings, workspace, leases)


def check_packages() -> Check:
    """Check the versions of the server's own packages."""
    try:
        needed = requirements()
    except metadata.PackageNotFoundError:
        return Check("packages", "wrong", "Stoker is not installed as a package; install it with pip or uv")
    problems = tuple(filter(None, map(_package_problem, needed)))
    if problems:
        return Check("packages", "wrong", f"{len(problems)} of the {len(needed)} that Stoker needs", problems)
    return Check("packages", "ok", f"the {len(needed)} that Stoker needs are there")


def _package_problem(requirement: Requirement) -> str:
    version = installed_version(requirement.name)
    if version is None:
        return f"{requirement} is missing"
    if not requirement.specifier.contains(version, prereleases=True):
        return f"{requirement} is needed, {version} is installed"
    return ""


def _versions() -> Check:
    """List the versions of the packages that run models and read rows."""
    found = {package: installed_version(package) for package in _NAMED_PACKAGES}
    return Check(
        "versions", "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version)
    )


def _extras() -> Check:
    """List Stoker's optional packages, by extra."""
    extras = installed_extras()
    there = [name for name, is_there in extras.items() if is_there]
    missing = [name for name, is_there in extras.items() if not is_there]
    lacking = f"; not installed: {', '.join(missing)}" if missing else ""
    return Check("extras", "ok", f"{', '.join(there) or 'none'}{lacking}")


def _onnx_runtime() -> Check:
    """Name the installed build of ONNX Runtime; not all servers need one."""
    name = "onnx runtime"
    clash = onnx_clash()
    if clash is not None:
        return Check(name, "wrong", clash)
    builds = installed_onnx_builds()
    if not builds and find_spec("onnxruntime") is None:
        return Check(name, "note", f"none: for ONNX models, {onnx_missing()}")
    shown = ", ".join(f"{build} {version}" for build, version in builds.items())
    return Check(name, "ok", shown or "a build of another name than Stoker's extras ask for")


def check_workspace(workspace: Workspace) -> Check:
    """Check that the workspace can be written to."""
    root = workspace.root
    nearest = next(folder for folder in (root, *root.parents) if folder.exists())
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Check(
            "workspace",
            "wrong",
            f"{nearest} cannot be written by you; choose another workspace with --workspace",
        )
    free_bytes = shutil.disk_usage(nearest).free
    there = "" if root.exists() else ", made when something is first written to it"
    if free_bytes < _LEAST_FREE_BYTES:
        return Check(
            "workspace", "wrong", f"{root}, only {_size(free_bytes)} free: keys could not be kept{there}"
        )
    return Check("workspace", "ok", f"{root}, {_size(free_bytes)} free{there}")


def check_port(host: str, port: int, *, secure: bool = False) -> Check:
    """Check that the port is free, or name the server that holds it."""
    if not port:
        return Check("port", "ok", f"a free one of {host} is taken")
    try:
        for sock in bind(host, port, 1):
            sock.close()
    except OperatorError as error:
        state = _running_server(host, port, secure=secure)
        if state is None:
            return Check("port", "wrong", str(error))
        return Check("port", "note", f"a Stoker server listens on {host} port {port} and is {state}")
    return Check("port", "ok", f"{host} port {port} is free")


def _tls(settings: ServerSettings) -> list[Check]:
    """The certificate of each port that speaks TLS."""
    try:
        ports = tls_ports(settings)
    except OperatorError as error:
        return [Check("tls", "wrong", str(error))]
    return [
        Check(
            "tls",
            "wrong" if port.expired(time.time()) else "ok",
            f"{protocol}: {port.files.certificate}, {port.until}"
            + (f", for {', '.join(port.certificate.names)}" if port.certificate.names else ""),
        )
        for protocol, port in ports.items()
    ]


def _grpc_port(settings: ServerSettings) -> Check:
    try:
        # The HTTP port has its own check; this socket is only for the address.
        with bind(settings.host, 0, 1)[0] as beside:
            reserve_grpc_port(settings, beside).close()
    except OperatorError as error:
        secure = settings.tls_cert is not None
        running = settings.port and _running_server(settings.host, settings.port, secure=secure) is not None
        return Check("grpc port", "note" if running else "wrong", str(error))
    return Check(
        "grpc port", "ok", f"{settings.host} port {settings.grpc_port} is free, its packages are there"
    )


def _running_server(host: str, port: int, *, secure: bool) -> str | None:
    """Return the readiness that a Stoker server reports on a port; None if no Stoker server answers."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    if secure:
        # The request carries no secret, so the server need not prove its identity.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=2, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        ready = json.loads(connection.getresponse().read(65536))["ready"]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()
    return "ready" if ready else "not ready"


def check_memory() -> Check:
    """Check how much memory is available."""
    _, available = main_memory()
    return Check(
        "memory", "note" if available < _LITTLE_MEMORY_BYTES else "ok", f"{_size(available)} available"
    )


def _large_bodies(settings: ServerSettings) -> Check:
    """Check how much memory request bodies may take."""
    chosen = body_memory(settings)
    items = (f"bodies could fill it: {chosen.advice}",) if chosen.scarce else ()
    return Check("large bodies", "note" if items else "ok", str(chosen), items)


def check_limits() -> Check:
    """Check the limits of open files and of address space."""
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    text = f"{files} open files for each process, {most} for frontends"
    items = []
    if most < _ENOUGH_FILES:
        items.append(
            f"each connection to a frontend is one; for more at once, raise the hard limit to {_ENOUGH_FILES} "
            "(LimitNOFILE of systemd, --ulimit nofile of Docker)"
        )
    if address_space != resource.RLIM_INFINITY:
        items.append(
            f"the address space is limited to {_size(address_space)} (ulimit -v): frameworks reserve much more than "
            "they use and can fail to start"
        )
    return Check("limits", "wrong" if files < _FEW_FILES else "note" if items else "ok", text, tuple(items))


def _devices(models: Sequence[Deployment], settings: ServerSettings) -> Iterator[Check]:
    """Check each configured device with the frameworks that would use it, and list all GPUs."""
    frameworks: dict[str, set[str]] = {}
    for model in models:
        runtime = "tensorrt" if model.acceleration.provider == "tensorrt" else model.framework
        for device in model.devices:
            frameworks.setdefault(device, set()).add(runtime)
    if not models:
        installed = {name for name in ("onnx", "tensorflow") if find_spec(_PACKAGES_OF_FRAMEWORKS[name])}
        frameworks = dict.fromkeys(settings.device, installed)
    driver, found = find_devices()
    listed = [*([] if driver is None else [_shown_driver(driver)]), *map(_shown, found)]
    problem = functools.cache(probe_in_child)
    for device, all_users in frameworks.items():
        # scikit-learn runs in its own processes, which use no GPU.
        users = all_users - {"sklearn"} or all_users
        items = (*listed, *_usable_by(users, found, problem))
        try:
            chosen, reason = choose_device(device, users, problem)
        except OperatorError as error:
            yield Check("device", "wrong", str(error), items)
            continue
        # With `auto`, an existing GPU that is not used is probably unexpected.
        missed = device == "auto" and chosen.kind == "cpu" and users != {"sklearn"}
        outcome: Outcome = "ok" if not missed else "wrong" if found else "note"
        yield Check("device", outcome, f"{device}: {chosen.description} ({reason})", items)


def _shown_driver(driver: Driver) -> str:
    return (
        f"driver: NVIDIA {driver.version or 'of unknown version'}, for CUDA up to {driver.cuda or 'unknown'}"
    )


def _shown(found: FoundDevice) -> str:
    device = found.device
    facts = [device.name]
    if device.memory_total_bytes is not None:
        free = "" if device.memory_free_bytes is None else f", {_size(device.memory_free_bytes)} free"
        facts.append(f"{_size(device.memory_total_bytes)} memory{free}")
    if isinstance(device, Gpu) and device.compute_capability is not None:
        facts.append(f"compute capability {device.compute_capability}")
    if isinstance(device, Gpu) and device.pci_bus is not None:
        facts.append(f"PCI bus {device.pci_bus}")
    if found.setting != device.uuid:
        facts.append(device.uuid)
    note = f" (cannot be used as it is: {found.note})" if found.note else ""
    return f"{found.setting or 'GPU'}: {', '.join(facts)}{note}"


def _usable_by(
    frameworks: set[str], found: Sequence[FoundDevice], problem: Callable[[str, str], str | None]
) -> Iterator[str]:
    """Yield a line for each framework: whether it can use the GPUs; a library missing for one is missing for all."""
    usable = [one.device.uuid for one in found if one.setting]
    for framework in sorted(frameworks - {"script"}) if usable else ():
        lacking = problem(usable[0], framework)
        yield f"{framework} {'can use them' if lacking is None else f'cannot use them: {lacking}'}"


def _model(
    model: Deployment, workspace: Workspace, build: bool, say: Callable[[str], None]
) -> Iterator[Check]:
    handler = _handler(model)
    path, kind = (
        (model.path, model.framework) if handler is None else (model.model_dir, "archive of TorchServe")
    )
    text = f"version {model.version} ({kind}), {path}"
    lacking = _lacking(model)
    effects = _effects(model) if model.framework == "tensorflow" else ()
    code = model.code_of_load if handler is None else f"the code of the handler {handler.name}"
    notes = (*effects, *((f"loading it runs {code}: serve what you trust",) if code else ()))
    outcome: Outcome = "wrong" if lacking else "note" if effects else "ok"
    yield Check(f"model {model.name}", outcome, text, (*lacking, *notes))
    name = f"packages of {model.name}"
    try:
        environment = environment_of(model)
        if environment is not None and build:
            environment = environment.prepared(workspace, model.framework, say)
        elif environment is not None:
            environment = environment.found(workspace, model.framework)
    except OperatorError as error:
        yield Check(name, "wrong", str(error))
        return
    if environment is not None:
        yield _environment(name, environment)
    is_built = environment is None or not environment.managed_by_system or environment.built is not None
    if model.framework == "script" and is_built:
        yield _imports(model, Path(sys.executable) if environment is None else environment.interpreter)


def _handler(model: Deployment) -> Path | None:
    """Return the file of the handler of an archive of TorchServe; None for other models."""
    torchserve = find_extension("torchserve")
    if torchserve is None or model.path != torchserve.ENTRY_SCRIPT:
        return None
    handler: Path = torchserve.find_handler(model.model_dir)
    return handler


def _imports(model: Deployment, interpreter: Path) -> Check:
    """Compare the imports of an entry script with the packages of the Python that runs it."""
    name = f"imports of {model.name}"
    handler = _handler(model)
    script, folders = model.path, [Path(folder) for folder in script_folders(model, os.environ)]
    if handler is not None:
        script, folders = handler, [model.model_dir]
    try:
        imports = read_imports(script, folders)
        provided = (
            *(PROVIDED_BY_AZURE if find_extension("azure") is not None else ()),
            *(PROVIDED_FOR_TRITON, PROVIDED_FOR_TORCHSERVE),
        )
        missing = find_missing(imports, interpreter, provided)
    except SyntaxError as error:
        return Check(name, "wrong", f"{script} is no valid Python: {error.msg} (line {error.lineno})")
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, "note", f"not compared: {error}")
    needed = [each for each in missing if each.needed]
    items = (
        *(f"missing  {each.name} ({each.place}){_advice(each)}" for each in needed),
        *(
            f"missing  {each.name} ({each.place}), which it imports only in a function or under try"
            for each in missing
            if not each.needed
        ),
    )
    if needed:
        text = f"{format_count(len(imports), 'package')}, {len(needed)} missing: the script fails to load"
        return Check(name, "wrong", text, items)
    lacking = f", but for {len(items)} that it can do without" if items else ""
    text = f"{format_count(len(imports), 'package')}, all there{lacking}"
    return Check(name, "note" if items else "ok", text, items)


def _advice(missing: Import) -> str:
    return f": {how_to_install('azure')}" if missing.name in PROVIDED_BY_AZURE else ""


def _lacking(model: Deployment) -> tuple[str, ...]:
    """Return the packages that a model needs and this Python lacks; Stoker installs system-managed ones itself."""
    framework = model.framework
    is_installed_here = model.environment is None or model.environment_managed != "system"
    package = _PACKAGES_OF_FRAMEWORKS.get(framework)
    if not is_installed_here or package is None or find_spec(package) is not None:
        return ()
    return (f"it needs {package}; {onnx_missing() if framework == 'onnx' else how_to_install(framework)}",)


def _effects(deployment: Deployment) -> tuple[str, ...]:
    """Return the effects of a SavedModel besides computing, so that operators know before they serve it."""
    file = deployment.path / "saved_model.pb"
    if not file.is_file():
        return (
            f"what its operators do is not looked at, for {deployment.path} has the text form of {file.name}",
        )
    try:
        outside = read_effects(file.read_bytes()).outside()
    except (OSError, ValueError) as error:
        return (f"{file} cannot be read: {error}",)
    return tuple(f"reaches out of the server {line}" for line in outside)


def _environment(name: str, environment: ModelEnvironment) -> Check:
    findings = environment.findings()
    code = (f"from elsewhere than the usual index: {line}" for line in environment.runs_code())
    items = (*(f"{finding.kind} {finding.text}" for finding in findings), *environment.notes(), *code)
    text = environment.summary()
    if environment.managed_by_system:
        if environment.built is not None:
            return Check(name, "ok", text, items)
        return Check(name, "note", f"{text}: stoker serve does it, or now stoker doctor --build", items)
    lacking = any(finding.kind != "python" for finding in findings)
    return Check(name, "wrong" if lacking else "note" if items else "ok", text, items)


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
