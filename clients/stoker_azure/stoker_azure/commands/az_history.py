"""`stoker az ml history list`: runs with what they have measured, as Azure's command lines print them."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.printing import table
from stoker.errors import InvalidSettings, OperatorError
from stoker_runs.commands.run_output import duration_text, time_text

if TYPE_CHECKING:
    import argparse

    from stoker_runs.records.summary import RunSummary

__all__ = ["history"]

_FACTS: Final = 6
_SHOWN_METRICS: Final = 8


def history(args: argparse.Namespace) -> int:
    """List runs with the last value of each metric."""
    from stoker.workspace import Workspace
    from stoker_runs.launch.adoption import adopt_all
    from stoker_runs.records.index import RunIndex
    from stoker_runs.records.store import RunStore

    workspace = Workspace.find()
    adopt_all(workspace)
    index = RunIndex(RunStore(workspace.runs_dir))
    names = index.metric_names(args.experiment)
    content: Any = [_as_azure(run) for run in index.runs(args.experiment, names)]
    if args.query:
        content = _queried(args.query, content)
    if args.output == "json" or not _is_rows(content):
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        _print_rows(content, args.output)
    return 0


def _as_azure(run: RunSummary) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "run_id": run.id,
        "status": run.status.value,
        "created": time_text(run.created_ms),
        "duration": duration_text(run.started_ms, run.ended_ms),
        "target": run.target,
        "script": run.script,
    }
    return facts | {name: numbers.last for name, numbers in run.metrics.items()}


def _queried(query: str, content: Any) -> Any:
    try:
        jmespath = import_module("jmespath")
    except ModuleNotFoundError:
        raise OperatorError("--query needs the package jmespath: pip install jmespath") from None
    try:
        return jmespath.search(query, content)
    except jmespath.exceptions.JMESPathError as error:
        raise InvalidSettings(f"--query {query}: {error}") from None


def _is_rows(content: Any) -> bool:
    return isinstance(content, list) and all(isinstance(row, dict) for row in content)


def _print_rows(rows: list[dict[str, Any]], form: str) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    if form == "tsv":
        sys.stdout.write("".join("\t".join(row) + "\n" for row in cells))
    elif rows:
        shown = [*columns[: _FACTS + _SHOWN_METRICS]]
        titles = [column[:1].upper() + column[1:] for column in shown]
        sys.stdout.write(table([titles, *(row[: len(shown)] for row in cells)]))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else str(value)
