"""Views of `stoker runs`: lists, one run, differences, pictures."""

from __future__ import annotations

import json
import math
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import note, print_json, table
from stoker.errors import InvalidSettings
from stoker.system.logs import escaped, escaped_lines
from stoker.system.wording import format_count
from stoker_runs.commands import sweep_output
from stoker_runs.commands.run_output import duration_text, found_store, found_workspace, time_text

if TYPE_CHECKING:
    import argparse

    from stoker_runs.records.folder import RunFolder
    from stoker_runs.records.record import RunRecord
    from stoker_runs.records.states import RunState, Status
    from stoker_runs.records.summary import RunSummary

_SHOWN_METRICS: Final = 50
_SHORT: Final = 60
_SHOWN_VALUES: Final = 20
_LONGEST: Final = 100


def list_runs(args: argparse.Namespace) -> int:
    """Print a table, or JSON."""
    from stoker_runs.records.store import RunStore
    from stoker_runs.records.summary import SortKey, read_conditions

    workspace = found_workspace(args)
    conditions = read_conditions(args.where) if args.where else []
    status = _checked_status(args.status)
    key = SortKey(args.sort) if args.sort else None
    metrics = [*args.metric, *(name for one in conditions if (name := one.metric) is not None)]
    if key is not None and key.metric is not None:
        metrics.append(key.metric)
    metrics = list(dict.fromkeys(metrics))
    store = RunStore(workspace.runs_dir)
    if args.experiment:
        store.check_experiment(args.experiment)
    # Of a list that is neither chosen from nor sorted the first ones are all that has to be read.
    hidden = frozenset() if args.experiment or args.all else store.archived()
    most = args.limit if args.limit and not (status or conditions or key or hidden) else None
    # A program that reads JSON has no columns to choose.
    read = args.index.runs(args.experiment, None if args.json else metrics, most)
    runs = [run for run in read if run.experiment not in hidden]
    count = args.index.count(args.experiment) if most else 0
    if status is not None:
        runs = [run for run in runs if run.status is status]
    runs = [run for run in runs if all(condition.holds(run) for condition in conditions)]
    if key is not None:
        runs = key.sort(runs)
    shown = runs[: args.limit] if args.limit else runs
    if args.json:
        print_json([_as_json(run) for run in shown])
        return 0
    if not shown:
        if read and not runs and not (status or conditions):
            note(f"{format_count(len(read), 'run')} of archived experiments: --all shows more")
            return 0
        filtered = args.experiment or status or conditions
        scope = (
            "runs of this kind"
            if filtered
            else f"runs in {workspace.runs_dir}; stoker submit SCRIPT begins one"
        )
        # Conditions on a metric that none has may be why.
        missing = _never_measured(args, metrics, read)
        note(f"there are no {scope}{f': none has {missing}' if read and missing else ''}")
        return 0
    sys.stdout.write(_runs_table(shown, metrics))
    if more := max(len(runs), count) - len(shown):
        note(f"{more} more: --limit 0 shows all")
    if missing := _never_measured(args, metrics, runs):
        note(f"none of these runs has {missing}")
    return 0


def _never_measured(args: argparse.Namespace, metrics: list[str], runs: list[RunSummary]) -> str:
    """Name the metrics that no run has, and the metrics and facts that were probably meant; empty for none."""
    from stoker_runs.records.summary import FACTS

    unknown = [name for name in metrics if not any(name in run.metrics for run in runs)]
    known = [*args.index.metric_names(args.experiment), *FACTS] if unknown else []
    near = [found[0] for name in unknown if (found := get_close_matches(name, known, 1))]
    meant = f"; did you mean {' and '.join(near)}?" if near else ""
    return f"measured {', '.join(unknown)}{meant}" if unknown else ""


def _checked_status(text: str | None) -> Status | None:
    """The status that `--status` means, however it is written."""
    from stoker_runs.records.states import Status

    if not text:
        return None
    found = next((one for one in Status if one.value.lower() == text.lower()), None)
    if found is None:
        raise InvalidSettings(f"--status {text}: a run is one of {', '.join(one.value for one in Status)}")
    return found


def _runs_table(runs: list[RunSummary], metrics: list[str]) -> str:
    header = ("RUN", "STATUS", "SUBMITTED", "TOOK", "TARGET", *(name.upper() for name in metrics), "")
    return table([header, *(_row(run, metrics) for run in runs)])


def _row(run: RunSummary, metrics: list[str]) -> tuple[str, ...]:
    values = [f"{run.metrics[name].last:.6g}" if name in run.metrics else "-" for name in metrics]
    took = duration_text(run.started_ms, run.ended_ms) if run.is_terminal or run.started_ms else "-"
    return (
        run.id,
        run.status.value,
        time_text(run.created_ms),
        took,
        run.target,
        *values,
        run.reason[:_SHORT],
    )


def _as_json(run: RunSummary) -> dict[str, Any]:
    last = {name: numbers.last for name, numbers in run.metrics.items()}
    metrics = {name: value if math.isfinite(value) else str(value) for name, value in last.items()}
    return {**run.to_json(), "metrics": metrics}


def show_run(args: argparse.Namespace) -> int:
    """Print what is known of one run."""
    from stoker_runs.records.record import SWEEP
    from stoker_runs.records.summary import metric_statistics

    folder = found_store(args).find(args.reference)
    record, state = folder.record(), folder.state()
    if args.json:
        content = record.to_json()
        # Their values may be secrets, and what is printed is passed on.
        content["definition"]["variables"] = sorted(record.definition.variables)
        content |= {"state": state.to_json(), "tags": folder.tags(), "properties": folder.properties()}
        if record.kind == SWEEP:
            content |= sweep_output.sweep_json(args, folder)
        print_json(content)
        return 0
    sys.stdout.write(table(_facts(folder, record, state)))
    if record.kind == SWEEP:
        sys.stdout.write("\n" + sweep_output.sweep_text(args, folder))
    numbers = metric_statistics(folder.metric_files())
    if numbers:
        rows = [
            (name, f"{one.last:.6g}", f"{one.least:.6g}", f"{one.most:.6g}", str(one.count))
            for name, one in sorted(numbers.items())[:_SHOWN_METRICS]
        ]
        sys.stdout.write("\n" + table([("METRIC", "LAST", "LEAST", "GREATEST", "COUNT"), *rows]))
    sys.stdout.write(_lists_text(folder))
    if state.error is not None and (traceback := state.error.details.get("traceback")):
        sys.stdout.write(f"\n{escaped_lines(str(traceback).strip())}\n")
    return 0


def list_children(args: argparse.Namespace) -> int:
    """Print the runs of a sweep, the best first, or those that a script has begun, the newest first."""
    from stoker_runs.records.children import children_of
    from stoker_runs.records.record import SWEEP
    from stoker_runs.records.summary import metric_statistics, summarize

    folder = found_store(args).find(args.reference)
    if folder.record().kind == SWEEP:
        return sweep_output.list_children(args)
    runs = [
        summarize(child).replace(metrics=metric_statistics(child.metric_files()))
        for child in children_of(folder)
    ]
    runs.sort(key=lambda run: (run.created_ms, run.id), reverse=True)
    if args.json:
        print_json([_as_json(run) for run in runs])
    elif runs:
        sys.stdout.write(_runs_table(runs, []))
    else:
        note(f"the script of {folder.id} has begun no child runs")
    return 0


def _lists_text(folder: RunFolder) -> str:
    """A table of lists, columns and texts with their first values."""
    from stoker_runs.records.summary import logged_values

    rows = []
    for name, values in sorted(logged_values(folder.metric_files()).items())[:_SHOWN_METRICS]:
        shown = ", ".join(
            f"{one:.6g}" if isinstance(one, float) else str(one) for one in values[:_SHOWN_VALUES]
        )
        text = " ".join(shown.split())
        more = len(values) > _SHOWN_VALUES or len(text) > _LONGEST
        rows.append((name, str(len(values)), f"{text[:_LONGEST]} …" if more else text))
    return "\n" + table([("LIST", "COUNT", "VALUES"), *rows]) if rows else ""


def _facts(folder: RunFolder, record: RunRecord, state: RunState) -> list[tuple[str, str]]:
    from stoker_runs.records.children import children_of
    from stoker_runs.records.record import CHILD

    definition, count = record.definition, len(children_of(folder))
    facts = [
        ("run", record.id),
        ("status", f"{state.status.value}{': ' + state.reason if state.reason else ''}"),
        ("command", " ".join([definition.script, *definition.arguments])),
        ("target", definition.target_name),
        ("submitted", time_text(record.created_ms)),
        ("started", time_text(state.started_ms)),
        ("ended", time_text(state.ended_ms)),
        ("took", duration_text(state.started_ms, state.ended_ms)),
        ("attempt", f"{state.attempt} of {state.attempts}"),
        *([] if record.sweep or record.kind == CHILD else [("environment", _environment_text(folder))]),
        ("snapshot", record.snapshot or "-"),
        *(
            (f"data {name}", f"{digest} {definition.inputs.get(name, '')}")
            for name, digest in record.data.items()
        ),
        *(
            (f"output {name}", f"{output.store}/{output.path_of(name, record.id)}")
            for name, output in definition.outputs.items()
        ),
        ("tags", ", ".join(f"{key}={value}" for key, value in sorted(folder.tags().items())) or "-"),
        *([("parent", record.parent)] if record.parent else []),
        *([("children", f"{count}: stoker runs children {folder.id}")] if count else []),
        ("folder", str(folder.path)),
    ]
    if state.exit_status is not None:
        facts.insert(2, ("exit status", str(state.exit_status)))
    if state.error is not None:
        facts.insert(2, ("error", f"{state.error.code}: {state.error.message}"))
        if state.error.hint:
            facts.insert(3, ("hint", state.error.hint))
    return facts


def _environment_text(folder: RunFolder) -> str:
    try:
        lines = (folder.environment / "got.txt").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return "not there yet"
    notes = [line[2:] for line in lines if line.startswith("# ")]
    return f"{'; '.join(notes)}; {format_count(len(lines) - len(notes), 'package')}"


def compare(args: argparse.Namespace) -> int:
    """Print in what runs differ."""
    from stoker_runs.records.comparing import compare_runs

    folders = _compared(args)
    if len(folders) < 2:
        raise InvalidSettings("name two runs or more to compare, such as @-2 @latest")
    differences = compare_runs(folders, found_workspace(args).snapshots_dir)
    if args.json:
        content = [{"group": one.group, "name": one.name, "values": list(one.values)} for one in differences]
        sys.stdout.write(
            json.dumps({"runs": [folder.id for folder in folders], "differences": content}, indent=2) + "\n"
        )
    elif differences:
        header = ("", "", *(folder.id for folder in folders))
        rows = [
            (one.group, one.name, *(value[:_SHORT] or "-" for value in one.values)) for one in differences
        ]
        sys.stdout.write(table([header, *rows]))
    else:
        note("these runs do not differ")
    return 0


def _compared(args: argparse.Namespace) -> list[RunFolder]:
    """The runs that are named; a sweep alone stands for its best ones."""
    folders = [found_store(args).find(reference) for reference in args.references]
    return sweep_output.best_children(args, folders[0]) if len(folders) == 1 else folders


def plot(args: argparse.Namespace) -> int:
    """Draw metrics of runs, of a sweep those of its best runs."""
    from stoker_runs.records.exports import draw

    names = draw(_compared(args), args.metric, args.output)
    sys.stdout.write(f"{args.output}: {', '.join(names)}\n")
    return 0


def list_files(args: argparse.Namespace) -> int:
    """Print names and lengths."""
    from stoker_runs.records.folder import run_files

    for name, path in run_files(found_store(args).find(args.reference)).items():
        sys.stdout.write(f"{path.stat().st_size:>14,}  {escaped(str(name))}\n")
    return 0
