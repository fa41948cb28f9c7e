"""Compares runs: parameters, packages, code, data and results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from stoker_base.trees import files_below
from stoker_runs.records.folder import RunFolder
from stoker_runs.records.summary import MetricStatistics, metric_statistics

_OMITTED = frozenset({"environment", "arguments", "variables", "inputs"})
_DIGITS = 4


class Difference(Struct, frozen=True):
    """One difference between runs.

    Attributes:
        group: `result`, `metric`, `parameter`, `package`, `code`, `data`.
        values: Its value in each run, in order; empty if a run has none.
    """

    group: str
    name: str
    values: tuple[str, ...]


def compare_runs(folders: Sequence[RunFolder], snapshots_dir: Path) -> list[Difference]:
    """List the differences between runs.

    Args:
        snapshots_dir: The folder of snapshots; without them only a difference of the code as a whole is reported.

    Raises:
        UnknownRun: A run does not exist any more.
    """
    return [
        *_differences("result", [_result(folder) for folder in folders]),
        *_differences("metric", [_metrics(folder) for folder in folders]),
        *_differences("parameter", [_settings(folder) for folder in folders]),
        *_differences("package", [_packages(folder) for folder in folders]),
        *_differences("code", [_code(folder, snapshots_dir) for folder in folders]),
        *_differences("data", [_data(folder) for folder in folders]),
    ]


def _differences(group: str, columns: Sequence[Mapping[str, str]]) -> Iterator[Difference]:
    names = dict.fromkeys(name for column in columns for name in column)
    for name in names:
        values = tuple(column.get(name, "") for column in columns)
        if len(set(values)) > 1:
            yield Difference(group, name, values)


def _result(folder: RunFolder) -> dict[str, str]:
    state = folder.state()
    error = "" if state.error is None else state.error.code
    return {"status": state.status.value, "error": error}


def _metrics(folder: RunFolder) -> dict[str, str]:
    return {
        name: _text(numbers) for name, numbers in sorted(metric_statistics(folder.metric_files()).items())
    }


def _text(numbers: MetricStatistics) -> str:
    return f"{numbers.last:.6g}"


def _settings(folder: RunFolder) -> dict[str, str]:
    definition = folder.record().definition
    facts = {name: str(value) for name, value in definition.to_json().items() if name not in _OMITTED}
    facts.update({f"variable {name}": _masked(value) for name, value in definition.variables.items()})
    return facts | parameters_of(folder)


def parameters_of(folder: RunFolder) -> dict[str, str]:
    """The parameters of a run's script: its arguments by name, and logged parameters."""
    facts = dict(_arguments(folder.record().definition.arguments))
    for line in folder.event_lines():
        if line.get("e") == "param":
            facts[str(line.get("k"))] = str(line.get("v"))
    return facts


def _masked(value: str) -> str:
    """A short digest that distinguishes secret values without revealing them."""
    return "#" + hashlib.sha256(value.encode()).hexdigest()[:_DIGITS]


def _arguments(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Arguments `--lr 0.1`, `--lr=0.1` and flags by name; positional ones by index."""
    waiting = ""
    for place, argument in enumerate(arguments, 1):
        is_option = argument.startswith("--") or (argument.startswith("-") and not _is_number(argument))
        if waiting and is_option:
            yield waiting, "yes"
            waiting = ""
        if is_option:
            name, equals, value = argument.partition("=")
            if equals:
                yield name, value
            else:
                waiting = name
        elif waiting:
            yield waiting, argument
            waiting = ""
        else:
            yield f"argument {place}", argument
    if waiting:
        yield waiting, "yes"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _packages(folder: RunFolder) -> dict[str, str]:
    try:
        lines = (folder.environment / "got.txt").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition("==") for line in lines if not line.startswith("#"))
    return {name: version for name, equals, version in pairs if equals}


def _code(folder: RunFolder, snapshots_dir: Path) -> dict[str, str]:
    digest = folder.record().snapshot
    if not digest:
        return {}
    tree = snapshots_dir / digest
    if not tree.is_dir():
        return {"snapshot": digest}
    return {name: _content_of(tree / name) for name in _names(tree)}


def _data(folder: RunFolder) -> dict[str, str]:
    """The path and digest of each input: the content of a path may have changed between runs."""
    record = folder.record()
    paths = record.definition.inputs
    return {name: f"{digest[:12]} {paths.get(name, '')}".rstrip() for name, digest in record.data.items()}


def _names(tree: Path) -> list[str]:
    return sorted(str(path.relative_to(tree)) for path in files_below(tree))


def _content_of(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_size} bytes, {digest[:8]}"
