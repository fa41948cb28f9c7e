"""From settings to a running server, with what the operator sees of it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from stoker import __version__
from stoker.deployment import resolve
from stoker.keyring import Keyring, Keys
from stoker.logs import configure_logging
from stoker.settings import ServerSettings
from stoker.supervisor import ModelReport, StartUp, Supervisor, bind
from stoker.workspace import Workspace

__all__ = ["serve"]

_SAMPLE: Final = "sample_input.json"


def serve(settings: ServerSettings, workspace: Workspace) -> None:
    """Serve until a signal asks to stop.

    Raises:
        OperatorError: A setting is bad, or a model or device cannot be used.
    """
    configure_logging("supervisor")
    with ExitStack() as leases:
        models = resolve(settings, workspace, leases)
        given = Keys.given(settings.primary_key, settings.secondary_key)
        if settings.auth and given is None:
            for model in models:
                Keyring(workspace.keys_dir, model.servable.name).ensure()
        sockets = bind(settings.host, settings.port, settings.frontend_count)
        port = sockets[0].getsockname()[1]
        _say(f"Stoker {__version__} starts: {', '.join(model.servable.name for model in models)}")

        def on_ready(start_up: StartUp) -> None:
            for line in _banner(settings, workspace, port, start_up):
                _say(line)

        async def run() -> None:
            await Supervisor(settings, models, workspace.keys_dir, sockets, on_ready).run()

        asyncio.run(run())
        _say("Stoker has stopped.")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _banner(settings: ServerSettings, workspace: Workspace, port: int, start_up: StartUp) -> list[str]:
    lines = [
        f"  device   {device.device}: {device.description} ({device.reason})"
        for device in dict.fromkeys(start_up.devices)
    ]
    for model in start_up.models:
        servable = model.deployed.servable
        lines.append(
            f"  model    {servable.name} version {servable.version} ({servable.framework}): {model.signature}"
        )
        lines.append(
            f"           loaded in {model.load_s:.2f} s, warm after {model.warm_up_s:.2f} s, "
            f"batches of at most {servable.max_batch_rows} rows"
        )
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104  # compared, not bound
    base = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    for model in start_up.models:
        name = model.deployed.servable.name
        path = "/score" if len(start_up.models) == 1 else f"/api/v1/service/{name}/score"
        lines += _service_lines(settings, workspace, model, base + path)
    lines.append(f"  ready    after {start_up.elapsed_s:.2f} s; metrics at {base}/metrics; stop with Ctrl-C")
    return lines


def _service_lines(settings: ServerSettings, workspace: Workspace, model: ModelReport, uri: str) -> list[str]:
    name = model.deployed.servable.name
    lines = [f"  scoring  {uri}"]
    header = ""
    if not settings.auth:
        lines.append("  keys     none needed (--no-auth)")
    elif settings.given_keys:
        lines.append(f"  keys     from the environment: {' and '.join(settings.given_keys)}")
        header = f'-H "Authorization: Bearer ${settings.given_keys[0]}" '
    else:
        stoker = _command("stoker")
        lines.append(f"  keys     {_shown(Keyring(workspace.keys_dir, name).path)}")
        show = f"{stoker} keys show primary --name {name} --workspace {_shown(workspace.root)}"
        header = f'-H "Authorization: Bearer $({show})" '
    sample = _sample_file(workspace, model)
    if sample is not None:
        lines.append(f"  try      curl -s {header}-d @{_shown(sample)} {uri}")
    return lines


def _command(name: str) -> str:
    """How to call a command of this environment from the operator's shell."""
    if shutil.which(name):
        return name
    return _shown(Path(sys.executable).parent / name)


def _shown(path: Path) -> str:
    """A path as short as it can be typed here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def _sample_file(workspace: Workspace, model: ModelReport) -> Path | None:
    """A body that the model takes: the sample beside it, or rows of zeros; None if only the script knows."""
    beside = model.deployed.servable.model_dir / _SAMPLE
    if beside.is_file():
        return beside
    if model.signature.takes == "body":
        return None
    data: Any = {spec.name: [_zeros(spec.shape, spec.dtype)] for spec in model.signature.inputs}
    if len(data) == 1:
        (data,) = data.values()
    workspace.create()
    path = workspace.run_dir / f"{model.deployed.servable.name}.{_SAMPLE}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"data": data}))
    return path


def _zeros(shape: Sequence[int], dtype: str) -> Any:
    if not shape:
        return False if dtype == "bool" else 0
    return [_zeros(shape[1:], dtype) for _ in range(shape[0])]
