"""Deploying a service as a process of this machine: its deployment file, its keys, its process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from stoker.deployment import Deployment
from stoker.errors import InvalidSettings
from stoker.keys.keyring import Keyring, Keys
from stoker.models.deployments import environment_of, resolve
from stoker.models.repository import Repository
from stoker.settings.loading import load_settings
from stoker.settings.model import ModelSettings
from stoker.settings.names import name_from_file
from stoker.settings.server import ImportedSettings, ServerSettings
from stoker.settings.workspace import Workspace
from stoker_azure.config import DeploymentConfig, InferenceConfig
from stoker_azure.sdk.bindings import binding_of
from stoker_azure.sdk.services import cluster_deploying, endpoint_deploying
from stoker_azure.sdk.services import process as service_process
from stoker_azure.sdk.services.records import Plan, ServiceRecord, Services
from stoker_cluster import applying
from stoker_cluster.access import Cluster

SERVICE_NAME: Final = re.compile(r"(?=.{3,32}\Z)[a-z]([-a-z0-9]*[a-z0-9])?", re.ASCII)
"""Azure's own rule for names of services."""

# Services are asked by plain HTTP, on this machine.
_TLS: Final = ("STOKER_TLS_CERT", "STOKER_TLS_KEY", "STOKER_TLS_CLIENT_CA")
# Each service has its own.
_NOT_INHERITED: Final = {
    *("STOKER_PORT", "STOKER_WORKSPACE", *_TLS),
    *("STOKER_PRIMARY_KEY", "STOKER_SECONDARY_KEY"),
}

Report = Callable[[str], object]


def deploy(workspace: Workspace, plan: Plan, *, overwrite: bool, report: Report = print) -> ServiceRecord:
    """Start the process of a service, replacing an existing one.

    The plan is checked before the old process is stopped. A service whose process has ended is replaced without
    `overwrite`.

    Raises:
        OperatorError: The service runs already, or a setting, file or model cannot be used.
    """
    if not SERVICE_NAME.fullmatch(plan.name):
        raise InvalidSettings(
            f"{plan.name!r} cannot be the name of a service: it has to be 3 to 32 small letters, digits and '-', "
            "the first a letter, the last none of '-'"
        )
    services = Services(workspace.create())
    with services.changing():
        old = services.find(plan.name)
        binding = binding_of(workspace, plan.compute_name) if plan.kind == "aks" else None
        if plan.first_version is not None:
            if binding is None:
                raise InvalidSettings(
                    f"{plan.name} is to have versions, which are pods of a cluster; bind its compute target to one "
                    "(stoker compute bind), or deploy each version as a service of its own"
                )
            return endpoint_deploying.create(
                workspace, services, plan, binding, old, overwrite=overwrite, report=report
            )
        if binding is not None:
            return cluster_deploying.deploy(
                workspace, services, plan, binding, old, overwrite=overwrite, report=report
            )
        if old is not None and old.cluster is not None:
            raise InvalidSettings(
                f"{plan.name} is in the cluster {old.cluster['context']}, and its compute target stands for this "
                "machine; delete() it first, or bind the target again (stoker compute bind)"
            )
        if old is not None and not overwrite:
            if service_process.is_running(services.folder(old)):
                raise InvalidSettings(
                    f"there is a service {plan.name} already, at {old.base_uri}; deploy it with overwrite=True, "
                    "update() it, or delete() it first"
                )
            report(f"{plan.name}: its process has ended, it is started anew")
        return _replace(workspace, services, plan, old, report)


def delete(workspace: Workspace, name: str) -> None:
    """Delete a service, and its keys if they were made for it; do nothing if there is no such service."""
    services = Services(workspace)
    with services.changing():
        record = services.find(name)
        if record is None:
            return
        if record.cluster is not None:
            cluster = Cluster.connect(record.cluster["context"])
            applying.delete(cluster, record.cluster["namespace"], name)
            services.remove(name)
            return
        service_process.stop(services.folder(record), record.pid)
        if record.made_keys:
            Keyring(workspace.keys_dir, name).remove()
        services.remove(name)


def deployment_file(workspace: Workspace, folder: Path, plan: Plan) -> Path:
    """Write the deployment file of a service that is not started.

    Args:
        folder: Where to write the file and what it names.
    """
    return _prepare(workspace, folder, plan, 0).file


def _replace(
    workspace: Workspace, services: Services, plan: Plan, old: ServiceRecord | None, report: Report
) -> ServiceRecord:
    folder = services.new_folder(plan.name)
    try:
        prepared = _prepare(workspace, folder, plan, _port(services, old))
        _check_port(services, prepared.settings.port, old)
        made_keys = _provide_keys(workspace, plan.name, prepared.settings, old)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if old is None:
            services.remove(plan.name)
        raise
    if old is not None:
        service_process.stop(services.folder(old), old.pid)
    head = list(_lines(plan, prepared, folder))
    for line in head:
        report(line)
    command = [sys.executable, "-P", "-m", "stoker.cli", "serve"]
    command += ["--config", str(prepared.file), "--workspace", str(workspace.root)]
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    pid = service_process.start(folder, command, environ, head)
    settings = prepared.settings
    record = plan.record(
        prepared.values,
        old,
        revision=int(folder.name),
        pid=pid,
        host="127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host,  # noqa: S104  # compared
        port=settings.port,
        auth=settings.auth,
        token_auth=settings.token_auth,
        replicas=len(prepared.deployed.devices),
        made_keys=made_keys,
    )
    services.write(record)
    if old is not None:
        shutil.rmtree(services.folder(old), ignore_errors=True)
    return record


class _Prepared(Struct, frozen=True):
    """A checked plan: the deployment file, and what `stoker serve` makes of it."""

    file: Path
    values: Mapping[str, Any]
    settings: ServerSettings
    deployed: Deployment
    notes: tuple[str, ...]


def _prepare(workspace: Workspace, folder: Path, plan: Plan, port: int) -> _Prepared:
    configuration = DeploymentConfig.from_keywords(plan.kind, **plan.keywords)
    imported = configuration.imported()
    model, notes = _model(workspace, folder, plan)
    content = {"port": port, **imported.server, "models": [_as_yaml(model.over(imported.model))]}
    file = folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name not in ("STOKER_PORT", *_TLS)}
    keys = ImportedSettings(
        imported.source, {}, ModelSettings(), imported.primary_key, imported.secondary_key
    )
    settings = load_settings({}, environ, file, (), [keys])
    with ExitStack() as leases:
        (deployed,) = resolve(settings, workspace, leases)
    return _Prepared(file, configuration.values, settings, deployed, (*imported.notes, *notes))


def _model(workspace: Workspace, folder: Path, plan: Plan) -> tuple[ModelSettings, tuple[str, ...]]:
    """Return the settings of the model and notes for the user."""
    if plan.inference is None:
        named = dict.fromkeys(plan.models)
        models = [Repository(workspace.models_dir).resolve(reference) for reference in named]
        cluster_deploying.model_alone(plan, models)
        return ModelSettings(registered=plan.models[0], name=plan.name), ()
    file = folder / "inferenceconfig.json"
    file.write_text(json.dumps(plan.inference, indent=2) + "\n", encoding="utf-8")
    inference = InferenceConfig.from_file(file)
    model = inference.model(folder)
    if model.environment is not None:
        # Its name stands in messages.
        name = name_from_file(plan.inference["environment"]["name"])
        environment = model.environment.rename(folder / f"{name}.yml")
        model = dataclasses.replace(model, environment=environment)
    return dataclasses.replace(model, name=plan.name, uses=plan.models or None), inference.notes


def _as_yaml(model: ModelSettings) -> dict[str, Any]:
    """Return the settings of a model that differ from the defaults, as YAML has them."""
    given = {f.name: getattr(model, f.name) for f in dataclasses.fields(model) if f.name != "given"}
    defaults = ModelSettings()
    return {
        name: _plain(value) for name, value in given.items() if value not in (getattr(defaults, name), None)
    }


def _plain(value: Any) -> Any:
    match value:
        case Path():
            return str(value)
        case tuple():
            return list(value)
        case Mapping():
            return dict(value)
        case _:
            return value


def _port(services: Services, old: ServiceRecord | None) -> int:
    """Return a free port: the previous one of the service, unless it is taken."""
    if old is not None and (service_process.is_running(services.folder(old)) or _is_free(old.port)):
        return old.port
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _check_port(services: Services, port: int, old: ServiceRecord | None) -> None:
    """Check that a port is free, or belongs to the process that is replaced."""
    if old is not None and old.port == port and service_process.is_running(services.folder(old)):
        return
    if not _is_free(port):
        holders = [record.name for record in services.list() if record.port == port and record is not old]
        held_by = f" by the service {holders[0]}" if holders else ""
        raise InvalidSettings(
            f"port {port} is taken{held_by}; choose another one, or give none for a free one"
        )


def _is_free(port: int) -> bool:
    with socket.socket() as sock, contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        return True
    return False


def _provide_keys(
    workspace: Workspace, name: str, settings: ServerSettings, old: ServiceRecord | None
) -> bool:
    """Create the keys of a service or store the given ones, and return whether they are deleted with the service."""
    keyring = Keyring(workspace.keys_dir, name)
    made = old.made_keys if old is not None else not keyring.path.exists()
    # Checked first: a key that cannot be one must not leave others behind.
    Keys.from_operator(settings.primary_key, settings.secondary_key)
    if settings.auth or settings.token_auth:
        keyring.ensure()
        if settings.primary_key:
            keyring.regenerate("primary", settings.primary_key)
        if settings.secondary_key:
            keyring.regenerate("secondary", settings.secondary_key)
    if settings.token_auth:
        keyring.ensure_signing_secret()
    return made


def _lines(plan: Plan, prepared: _Prepared, folder: Path) -> Iterator[str]:
    """Yield lines for the user: settings without effect, packages that differ, the number of replicas."""
    yield f"{plan.name}: a process of this machine serves it; its log is {folder / service_process.LOG}"
    for note in prepared.notes:
        yield f"  azure    {note}"
    deployed = prepared.deployed
    environment = environment_of(deployed)
    if environment is not None and (environment.specification.entries or environment.specification.python):
        yield from _indented("packages", environment.lines())
    count = len(deployed.devices)
    if deployed.shortfall:
        yield from _indented("replicas", [deployed.shortfall])
    elif count > 1:
        yield from _indented("replicas", [f"{count} device processes serve it"])


def _indented(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield f"  {title if number == 0 else '':<8} {line}"
