"""Deployment files with the settings that a search has found."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Final

import yaml

from stoker.errors import InvalidSettings
from stoker.models.layouts import likely_name
from stoker.profiling.candidates import Candidate
from stoker.settings.yaml_files import read_yaml

_SEARCHED: Final = ("max_batch_rows", "instances", "batch_buckets")
"""Settings that the search overrides; `execution` is written only if it differs from the configured one."""
_PATHS: Final = ("path", "model_dir", "environment", "sample_input")


def make_deployment(
    model: str, config: Path | None, device: str, target_ms: float, candidate: Candidate
) -> dict[str, Any]:
    """The content of a deployment file that serves a model with these settings.

    Args:
        model: A path, or a registered model; with `config` one of its models.
        config: A deployment file whose other settings are kept; None for one with this model only.
        device: The device; `auto` keeps the configured one.
        target_ms: The latency target.
        candidate: The settings found.

    Raises:
        InvalidSettings: The file does not list the model.
    """
    if config is None:
        content: dict[str, Any] = {"models": [_make_entry(model)]}
    else:
        content = copy.deepcopy(read_yaml(config, "deployment file", "settings by name"))
    entry = _find_entry(content, model, config)
    for name in _SEARCHED:
        if name != "max_batch_rows" or not candidate.requests:
            entry.pop(name, None)
    entry |= {"target_ms": target_ms, **candidate.settings()}
    if device != "auto":
        entry["device"] = device
    return content


def select_model(content: dict[str, Any], model: str, config: Path | None) -> dict[str, Any]:
    """The part of a deployment for one model, with absolute paths."""
    entry = copy.deepcopy(_find_entry(content, model, config))
    base = Path() if config is None else config.parent
    for name in _PATHS:
        if entry.get(name) is not None:
            entry[name] = str((base / entry[name]).absolute())
    alone: dict[str, Any] = {"models": [entry]}
    return alone if "device" not in content else {"device": content["device"], **alone}


def check_output(output: Path, config: Path | None, *, force: bool) -> None:
    """Refuse an output file that could not be written, before anything is measured.

    Raises:
        InvalidSettings: It exists, its folder is missing, or relative paths would have another meaning in its folder.
    """
    if output.exists() and not force:
        raise InvalidSettings(
            f"{output} is there already; overwrite it with --force, or name another --output"
        )
    if not output.absolute().parent.is_dir():
        raise InvalidSettings(f"there is no folder {output.parent} for {output.name}; make it first")
    if config is not None and output.absolute().parent.resolve() != config.absolute().parent.resolve():
        raise InvalidSettings(
            f"{output} has to be in the folder of {config}, whose relative paths begin there; name it "
            f"{config.parent / output.name}"
        )


def write_deployment(output: Path, content: dict[str, Any], lines: list[str]) -> None:
    """Write a deployment file.

    Args:
        content: The deployment.
        lines: Comment lines for its head.
    """
    head = "".join(f"# {line}\n" for line in lines)
    output.write_text(head + yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


def _make_entry(model: str) -> dict[str, Any]:
    if Path(model).exists() or model != Path(model).name:
        return {"path": str(Path(model).absolute())}
    return {"registered": model}


def _find_entry(content: dict[str, Any], model: str, config: Path | None) -> dict[str, Any]:
    """The entry of a model in a deployment, to be changed in place."""
    entries: list[dict[str, Any]] = content.get("models") or []
    if config is None:
        return entries[0]
    names = [_name_entry(entry, config.parent) for entry in entries]
    if model not in names:
        raise InvalidSettings(f"{config} lists no model {model!r}; it has: {', '.join(names) or 'none'}")
    return entries[names.index(model)]


def _name_entry(entry: dict[str, Any], folder: Path) -> str:
    if entry.get("name"):
        return str(entry["name"])
    if entry.get("registered"):
        return str(entry["registered"]).partition(":")[0]
    return likely_name(folder / str(entry.get("path", "")))
