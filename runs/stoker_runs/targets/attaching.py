"""Attaching compute targets: a target is checked, then its file and its secrets are written together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stoker.errors import InvalidSettings
from stoker.settings.names import checked_name
from stoker.settings.workspace import Workspace
from stoker.system.durable import private_folder, replace_file
from stoker_runs.errors import SubmissionRefused
from stoker_runs.records.index import RunIndex
from stoker_runs.records.store import RunStore
from stoker_runs.targets.definitions import LOCAL, Target, checked_settings, find_target, list_targets
from stoker_runs.targets.engine import Engine, NodePool, SettingsDiscovery


def attach(
    workspace: Workspace,
    name: str,
    content: Mapping[str, Any],
    secrets: Mapping[str, str],
    engine_of: Callable[[Target, Workspace], Engine] | None,
    *,
    is_new: bool = False,
) -> list[str]:
    """Write the file of a target. Settings of a target with this name, type and address are kept unless replaced.

    Args:
        content: The content of its file, including `type`.
        secrets: Values that only the owner may read. Earlier secrets are kept if the settings for connecting are
            unchanged.
        engine_of: Makes an engine, which checks the target; None to skip the check.
        is_new: Whether a target of this name is refused.

    Returns:
        What the target says that it has, a line each.

    Raises:
        OperatorError: The settings are invalid, or the target cannot be used; nothing has been changed.
    """
    path = workspace.targets_dir / f"{name}.yaml"
    if is_new and name in list_targets(workspace.targets_dir) and path.exists():
        free = f"stoker targets detach {name} forgets it" if name != LOCAL else "remove it, or edit it"
        raise InvalidSettings(
            f"there is a compute target {name!r} already, {path}, which stays as it is; {free}"
        )
    if name == LOCAL and content.get("type", LOCAL) != LOCAL:
        raise InvalidSettings(f"{LOCAL} is this machine; choose another name")
    checked_name(name, "compute target")
    targets_dir = private_folder(workspace.create().targets_dir)
    content = {**_kept_settings(path, name, content), **content}
    kind, settings = checked_settings(path, content)
    content = {**content, **settings}
    kept = {} if secrets else _kept_secrets(targets_dir, name, kind, settings)
    with _restored_on_error(path), _restored_on_error(path.with_suffix(".secret")):
        _write(path, content, {**kept, **secrets})
        if engine_of is None:
            return []
        engine = engine_of(find_target(targets_dir, name), workspace)
        lines = list(engine.check())
        if isinstance(engine, SettingsDiscovery) and (discover_settings := engine.discover_settings()):
            _write(path, {**content, **discover_settings}, {**kept, **secrets})
        if isinstance(engine, NodePool) and settings.get("min_nodes"):
            engine.hold_nodes()
    return lines


def detach(workspace: Workspace, name: str) -> None:
    """Remove a target from the workspace. Files that runs have left on its machine stay there.

    Raises:
        InvalidSettings: There is no such target.
        SubmissionRefused: A run that has not ended is on it.
    """
    if name == LOCAL:
        raise InvalidSettings(f"{LOCAL} is this machine, and cannot be detached")
    path = workspace.targets_dir / f"{name}.yaml"
    if name not in list_targets(workspace.targets_dir):
        # Suggests the name that may be meant.
        find_target(workspace.targets_dir, name)
    store = RunStore(workspace.runs_dir)
    if store.runs_dir.is_dir():
        for run_id in RunIndex(store).unfinished_runs():
            if store.get(run_id).record().definition.target == name:
                raise SubmissionRefused(
                    f"{run_id} is on {name}; stoker runs cancel {run_id}, or wait for its end"
                )
    path.unlink()
    path.with_suffix(".secret").unlink(missing_ok=True)


def _write(path: Path, content: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
    import yaml

    secret = path.with_suffix(".secret")
    if secrets:
        replace_file(secret, json.dumps(dict(secrets)).encode() + b"\n", mode=0o600)
    else:
        secret.unlink(missing_ok=True)
    replace_file(path, yaml.safe_dump(dict(content), sort_keys=False).encode(), mode=0o600)


def _kept_settings(path: Path, name: str, content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a target that is attached again; none if its type or address differs."""
    from stoker.settings.yaml_files import read_yaml

    if not path.is_file():
        return {}
    before = read_yaml(path, f"compute target {name}", "the settings of a compute target")
    same = all(content.get(key, before.get(key)) == before.get(key) for key in ("type", "address"))
    return before if same else {}


def _kept_secrets(targets_dir: Path, name: str, kind: str, settings: Mapping[str, Any]) -> Mapping[str, str]:
    """The earlier secrets, for a target that is attached again with the same settings for connecting."""
    try:
        before = find_target(targets_dir, name)
        kept: dict[str, str] = json.loads((targets_dir / f"{name}.secret").read_bytes())
    except (InvalidSettings, OSError, ValueError):
        return {}
    same = all(before.settings.get(key) == settings.get(key) for key in ("address", "username", "key_file"))
    return kept if same and before.type == kind else {}


@contextmanager
def _restored_on_error(path: Path) -> Iterator[None]:
    """Restore a file if the body fails."""
    before = path.read_bytes() if path.exists() else None
    try:
        yield
    except BaseException:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            replace_file(path, before, mode=0o600)
        raise
