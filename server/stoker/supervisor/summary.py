"""The summary printed when a server is ready: devices, models, addresses, and a working example."""

from __future__ import annotations

import json
import mimetypes
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final
from urllib.parse import quote

from stoker.deployment import SAMPLE_INPUT, Deployment
from stoker.errors import RequestError
from stoker.keys.keyring import Keyring
from stoker.models.available_models import left_out
from stoker.samples.example_bodies import make_body
from stoker.settings.files import read_sample_file
from stoker.settings.readers import DEVICE_SEPARATOR
from stoker.settings.server import ServerSettings, default_frontends
from stoker.settings.traffic import keys_owner
from stoker.settings.workspace import Workspace
from stoker.supervisor.addresses import http_address, local_host
from stoker.supervisor.reports import DeviceReport, ModelReport, StartUp
from stoker.supervisor.sign_in import LASTS_S
from stoker.supervisor.tls_ports import TlsPort
from stoker.system.extras import console_missing, is_console_built
from stoker.system.resources import usable_cores
from stoker.system.wording import format_count
from stoker.tensors import Signature
from stoker.wire.json_bodies import parse_document
from stoker.wire.nested_lists import native_rows_note

_NPY: Final = "application/x-npy"
_MOST_NAMED: Final = 5
_BODY_TO_FILL_IN: Final = """'{"data": [ROW, ...]}'"""


def summary(
    settings: ServerSettings,
    workspace: Workspace,
    port: int,
    start_up: StartUp,
    secured: Mapping[str, TlsPort] = MappingProxyType({}),
    token: str = "",
) -> list[str]:
    """Return the lines that are printed when the server is ready; `token` is that of the sign-in link, or empty."""
    lines = [*device_lines(start_up.devices), frontend_line(settings.frontends, usable_cores())]
    for model in start_up.models:
        lines += _model_lines(model)
    if start_up.on_demand:
        lines.append(f"  memory   {start_up.on_demand_text}, in memory_mb: {settings.memory_mb}")
    lines += [f"  pipeline {line}" for line in _pipelines(settings, start_up)]
    lines += _code_lines([model.deployed for model in start_up.models])
    lines += _broken_lines(start_up.broken)
    lines += [f"  azure    {note}" for note in settings.notes]
    lines += [f"  note     {note}" for note in settings.passed_over]
    lines += [f"  note     {note}" for note in notes(settings, workspace)]
    host = local_host(settings)
    address = http_address(host, port, secured.get("http"), _shown)
    lines += _tls_lines(secured)
    # Of several versions of a model, the newest one's sample is used.
    by_name = {model.deployed.name: model for model in start_up.models}
    for name, model in by_name.items():
        leads = settings.endpoint is not None and name == settings.endpoint.leading
        path = "/score" if leads or name == start_up.only else _path(name)
        lines += service_lines(settings, workspace, model, address.base + path, address.curl)
    for name, signature in start_up.pipelines.items():
        data = curl_data(_made_up_file(workspace, name, signature))
        lines += _scoring_lines(settings, workspace, name, data, address.base + _path(name), address.curl)
    if start_up.on_demand:
        # They may be hundreds.
        name = start_up.on_demand[0] if len(start_up.on_demand) == 1 else "NAME"
        lines += _scoring_lines(settings, workspace, name, "", address.base + _path(name), address.curl)
    lines += _grpc_lines(settings, host)
    if settings.management_port:
        at = http_address(host, settings.management_port, secured.get("http"), _shown).base
        lines.append(f"  manage   {at}/models: TorchServe's management API")
    lines.append(f"  json     {native_rows_note()}")
    if settings.console and not is_console_built():
        lines.append(f"  console  {console_missing()}")
    elif settings.console:
        lines.append(f"  console  {address.base}/console{f'#token={token}' if token else ''}")
        if token:
            lines.append(f"           This link signs in once, within {LASTS_S // 60} minutes.")
    if settings.docs and is_console_built():
        lines.append(f"  docs     {address.base}/docs")
    lines.append(
        f"  ready    after {start_up.elapsed_s:.2f} s; metrics at {address.base}/metrics; stop with Ctrl-C"
    )
    return lines


def frontend_line(chosen_count: int, cores: int) -> str:
    """Return the line about the number of frontends; `chosen_count` is 0 if the operator did not choose it."""
    sensible = default_frontends(cores)
    count = chosen_count or sensible
    if count > cores:
        # The turns of their event loops are short then, and the cost of each is shared by few requests.
        chosen = (
            f"more than the {format_count(cores, 'core')}: each request takes more CPU than with {sensible}"
        )
    else:
        chosen = (
            "as asked for" if chosen_count else f"by the {format_count(cores, 'core')}; --frontends chooses"
        )
    return f"  http     {format_count(count, 'process', 'processes')} ({chosen})"


def _model_lines(model: ModelReport) -> list[str]:
    deployment = model.deployed
    return [
        f"  model    {deployment.name} version {deployment.version} ({deployment.framework}): {model.signature}",
        f"           loaded in {model.load_s:.2f} s, warm after {model.warm_up_s:.2f} s, {describe_batches(model)}",
        *batching_lines(model),
        *replica_lines(model),
        *_environment_lines(model.deployed),
        *(f"           {note}" for note in model.deployed.notes),
        *_data_lines(model.deployed, model.signature),
    ]


def _code_lines(models: Sequence[Deployment]) -> Iterator[str]:
    """Yield a line that names the files which run code at the load although they do not look like code."""
    found = [
        f"{model.name} ({model.code_of_load})"
        for model in models
        if model.code_of_load not in ("", f"the code of {model.path.name}")
    ]
    if found:
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        yield f"  code     loading runs code of {', '.join(found[:_MOST_NAMED])}{more}: serve what you trust"


def _tls_lines(secured: Mapping[str, TlsPort]) -> Iterator[str]:
    for protocol, port in secured.items():
        shown = ", only for callers with a certificate" if port.files.client_ca is not None else ""
        yield f"  tls      {protocol}: {_shown(port.files.certificate)}, {port.until}{shown}"


def _path(name: str) -> str:
    return f"/api/v1/service/{quote(name)}/score"


def _pipelines(settings: ServerSettings, start_up: StartUp) -> Iterator[str]:
    for pipeline in settings.pipelines:
        if pipeline.name in start_up.pipelines:
            steps = ", ".join(step.name for step in pipeline.steps)
            yield f"{pipeline.name} ({steps}): {start_up.pipelines[pipeline.name]}"


def describe_batches(model: ModelReport) -> str:
    """Describe how large batches are."""
    deployment, signature = model.deployed, model.signature
    if signature.tensors is not None and not signature.tensors.batched:
        return "one request after the other"
    if signature.script is not None:
        most = signature.script.max_requests
        if (signature.script.yields or signature.sequences) and (deployment.instances or 1) > 1:
            return f"{deployment.instances} requests at the same time"
        return f"batches of at most {most} requests" if most > 1 else "one request after the other"
    return f"batches of at most {format_count(model.max_batch_rows, 'row')}"


def _grpc_lines(settings: ServerSettings, host: str) -> list[str]:
    if not settings.grpc_port:
        return []
    security = " with TLS" if settings.grpc_tls is not None else ""
    address = f"{f'[{host}]' if ':' in host else host}:{settings.grpc_port}"
    return [
        f"  grpc     {address}{security}: the Open Inference Protocol v2, TensorFlow Serving's API, TorchServe's API"
    ]


def batching_lines(model: ModelReport) -> list[str]:
    """Return the lines about how requests are batched, and why that is allowed or not."""
    script = model.signature.script
    if script is not None:
        return [f"           batching: {script.batching}, {script.batching_reason}"]
    isolation = model.signature.isolation
    return [] if isolation is None else [f"           {isolation}"]


def _broken_lines(broken: Mapping[tuple[str, int], Exception]) -> list[str]:
    """Yield a line for each configured version that is not served, with the reason."""
    return [
        f"  broken   {name} version {version} is not served: {' '.join(str(error).split())}"
        for (name, version), error in broken.items()
    ]


def device_lines(devices: Sequence[DeviceReport]) -> list[str]:
    """Each device and why it was chosen, and which devices are shared."""
    lines = [
        f"  device   {device.device}: {device.description} ({device.reason})"
        for device in dict.fromkeys(devices)
    ]
    names = (name for device in devices for name in device.device.split(DEVICE_SEPARATOR))
    for device, processes in Counter(names).items():
        if processes > 1:
            shared = "the cores" if device == "cpu" else f"the memory of {device}"
            lines.append(f"           {processes} device processes share {shared}")
    return lines


def _environment_lines(model: Deployment) -> list[str]:
    if not model.environment_lines:
        return []
    first, *others = model.environment_lines
    return [f"  packages {first}", *(f"           {line}" for line in others)]


def notes(settings: ServerSettings, workspace: Workspace) -> list[str]:
    """Yield lines about the unexpected: models that are not served, variables that are not used."""
    names = left_out(settings, workspace)
    unserved = [
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} registered and not served: an entry script has to "
        "load it (--use-model)"
    ]
    return [*settings.unknown_variables, *(unserved if names else [])]


def _data_lines(model: Deployment, signature: Signature) -> list[str]:
    lines = []
    terms = model
    if terms.image is not None:
        lines.append(f"  images   JPEG, PNG and WebP of any size become {terms.image}")
    if terms.text is not None and signature.callers is not None:
        lines.append(f"  texts    {terms.text}")
    if terms.collection is not None and terms.data_dir is not None:
        kept, percent = " and ".join(terms.collection.collections), 100 * terms.collection.sample_rate
        lines.append(
            f"  collect  {kept} of {percent:.4g} % of the requests, at most {terms.collection.max_mb} MiB, "
            f"in {_shown(terms.data_dir)}"
        )
    return lines


def replica_lines(model: ModelReport) -> list[str]:
    """Where the replicas of a model are, if there are several, or fewer than configured."""
    lines = []
    if len(model.devices) > 1:
        places = Counter(model.devices)
        shown = ", ".join(f"{count} on {device}" for device, count in places.items())
        lines.append(f"           {len(model.devices)} replicas: {shown}")
    if model.deployed.shortfall:
        lines.append(f"           {model.deployed.shortfall}")
    return lines


def service_lines(
    settings: ServerSettings, workspace: Workspace, model: ModelReport, uri: str, curl: str = "curl -s"
) -> list[str]:
    """Return the lines with the address and the key of a model, and a command that scores it."""
    name = model.deployed.name
    headers = '-H "Stoker-Sequence: 1; start" ' if model.signature.sequences else ""
    sample, script = sample_file(workspace, model), model.signature.script
    is_json = sample is None or sample.suffix == ".json"
    if is_json and script is not None and script.kind == "raw":
        # The script itself, or TorchServe's envelope, looks at the media type; curl's default is that of a form.
        headers += '-H "Content-Type: application/json" '
    if sample is not None or script is None:
        return _scoring_lines(settings, workspace, name, curl_data(sample), uri, curl, headers)
    return [
        *_scoring_lines(settings, workspace, name, f"-d {_BODY_TO_FILL_IN}", uri, curl, headers),
        f"           Fill in a body that run() takes, or keep one as {SAMPLE_INPUT} beside the script.",
    ]


def _scoring_lines(
    settings: ServerSettings,
    workspace: Workspace,
    name: str,
    data: str,
    uri: str,
    curl: str,
    headers: str = "",
) -> list[str]:
    access, bearer = _access(settings, workspace, keys_owner(settings.endpoint, name))
    lines = [f"  scoring  {uri}", *access]
    if data:
        header = f'-H "Authorization: Bearer {bearer}" ' if bearer else ""
        lines.append(f"  try      {curl} {header}{headers}{data} {shlex.quote(uri)}")
    return lines


def curl_data(sample: Path | None) -> str:
    """The option for curl that sends a file unchanged; empty without a file."""
    if sample is None:
        return ""
    at = shlex.quote(f"@{_shown(sample)}")
    media_type = _NPY if sample.suffix == ".npy" else mimetypes.guess_type(sample.name)[0]
    if media_type in (None, "application/json"):
        return f"-d {at}"
    return f'-H "Content-Type: {media_type}" --data-binary {at}'


def _access(settings: ServerSettings, workspace: Workspace, name: str) -> tuple[list[str], str]:
    """How callers authenticate: in words for the operator, and as part of a shell command."""
    if not (settings.auth or settings.token_auth):
        return ["  keys     none needed (--no-auth)"], ""
    stoker = shlex.quote(_command("stoker"))
    service = f"--name {shlex.quote(name)} --workspace {shlex.quote(_shown(workspace.root))}"
    if settings.keys_dir is not None:
        primary = shlex.quote(_shown(settings.keys_dir / "primary"))
        keys, bearer = f"from {_shown(settings.keys_dir)}, followed", f"$(cat {primary})"
    elif settings.keys_file:
        keys, bearer = f"from {settings.keys_file}", "$KEY"
    elif settings.given_keys:
        keys = f"from the environment: {' and '.join(settings.given_keys)}"
        bearer = f"${settings.given_keys[0]}"
    else:
        keys = _shown(Keyring(workspace.keys_dir, name).path)
        bearer = f"$({stoker} keys show primary {service})"
    if not settings.token_auth:
        return [f"  keys     {keys}"], bearer
    sign = f"{stoker} token {service}"
    use = "" if settings.auth else ", to fetch tokens with"
    return [f"  keys     {keys}{use}", f"  tokens   {sign}"], f"$({sign})"


def _command(name: str) -> str:
    """The program in this environment as the operator's shell can call it."""
    if shutil.which(name):
        return name
    return _shown(Path(sys.executable).parent / name)


def _shown(path: Path) -> str:
    """The shortest form of a path that works in the current folder."""
    try:
        relative = os.path.relpath(path)
    except FileNotFoundError:
        # The current folder has been removed.
        return str(path)
    # Relative to the root folder, as in containers, the path would just lack its slash and be misleading.
    return str(path) if relative.startswith("..") or Path.cwd() == Path("/") else relative


def sample_file(workspace: Workspace, model: ModelReport) -> Path | None:
    """A body that the model accepts: the sample beside it, one from its script's decorators, or rows of zeros.

    Returns:
        None if only the model knows, or if nothing can be written to the workspace.
    """
    deployment = model.deployed
    if deployment.sample_file is not None and _is_scoring_body(
        deployment.sample_file, deployment, model.signature
    ):
        return deployment.sample_file
    return _made_up_file(workspace, deployment.name, model.signature)


def _made_up_file(workspace: Workspace, name: str, signature: Signature) -> Path | None:
    """A file with a generated body; None if none can be generated, or nothing can be written."""
    body = make_body(signature)
    if not body:
        return None
    try:
        path = workspace.create_run_dir() / f"{name}.{SAMPLE_INPUT}"
        path.write_text(json.dumps(body))
    except OSError:
        return None
    return path


def _is_scoring_body(sample: Path, deployment: Deployment, signature: Signature) -> bool:
    """Whether `/score` accepts a sample file as it is.

    A model's sample may be for other protocols, or no body at all.
    """
    if signature.takes == "body":
        return True
    if sample.suffix == ".npy":
        tensors = signature.model_tensors
        return tensors is not None and len(tensors.inputs) == 1
    if (mimetypes.guess_type(sample.name)[0] or "").startswith("image/"):
        return deployment.image is not None
    try:
        document = parse_document(read_sample_file(sample))
    except (OSError, RequestError):
        return False
    return isinstance(document, dict) and "data" in document
