"""`stoker az ml`: the command lines of Azure's Workbench and of its CLI, as the ones of Stoker that do the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from stoker.commands.terminal import print_json, sentence, table
from stoker.errors import InvalidSettings, OperatorError
from stoker_azure.commands import az_actions
from stoker_runs.commands.run_output import duration_text, time_text
from stoker_runs.errors import SubmissionRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker_runs.records.summary import RunSummary

_BY_SDK: Final = "write it in Python and run it by 'python -m stoker.azure FILE'"
_NO_CLOUD: Final = (
    "nothing of the kind is needed: the workspace is the folder .stoker, see 'stoker submit --help'"
)
_SERVING: Final = (
    "'stoker serve' and 'stoker models register' serve models; see also 'python -m stoker.azure'"
)
_SERVING_V2: Final = "'stoker serve --deployment FILE --endpoint FILE' serves deployments of an endpoint"

REFUSED: Final[Mapping[str, Mapping[str, str]]] = {
    "run": {
        "submit-pipeline": "pipelines are not offered: submit their scripts with 'stoker submit'",
        "monitor-logs": "'stoker runs logs RUN -f' follows a log",
        "monitor-tensorboard": "'stoker runs download RUN logs' copies what TensorBoard reads",
    },
    "experiment": {"diagnose": "'stoker targets check NAME' looks at a compute target"},
    "history": {"compare": "'stoker runs compare RUN RUN' says in what runs differ"},
    "computetarget": {
        "check": "'stoker targets check NAME' looks at one",
    },
    "datastore": {
        "attach-blob": f"data on Azure is not reached from here; to register a folder, {_BY_SDK}",
        "download": "a store is a folder of the workspace, below stores/: copy it from there",
    },
    "dataset": {"": f"Dataset.File is what there is: {_BY_SDK}"},
    "environment": {"": f"Environment.register is what there is: {_BY_SDK}"},
    "model": {"": _SERVING},
    "service": {"": _SERVING},
    "image": {"": _SERVING},
    "manifest": {"": _SERVING},
    "endpoint": {"": _SERVING},
    "online-endpoint": {
        "create": "'stoker serve --endpoint {file} --deployment DEPLOYMENT.yml' serves the endpoint's deployments",
        "update": "edit the file, and 'stoker reload' has the server read it",
        "invoke": "'stoker score --file REQUEST.json' sends a request",
        "get-credentials": "'stoker keys show' prints the keys",
        "list": "'stoker status' lists the servers that run here",
        "show": "'stoker status' lists the servers that run here",
        "delete": "'stoker stop' stops a server",
        "": _SERVING_V2,
    },
    "online-deployment": {
        "create": "'stoker serve --deployment {file}' serves it; --endpoint ENDPOINT.yml adds keys and traffic",
        "update": "edit the file, and 'stoker reload' has the server read it",
        "get-logs": "a server writes its log to standard error",
        "list": "'stoker status' lists the servers that run here",
        "show": "'stoker status' lists the servers that run here",
        "delete": "'stoker stop' stops a server",
        "": _SERVING_V2,
    },
    "batch-endpoint": {
        "": "'stoker score --script SCRIPT FILE ...' runs the script of a batch deployment over files"
    },
    "batch-deployment": {"": "'stoker score --script SCRIPT FILE ...' runs its script over files"},
    "compute": {"": "'stoker targets' creates, attaches and lists compute targets"},
    "data": {"": "'stoker submit --input NAME=PATH' gives data to a script"},
    "component": {"": "pipelines are not offered: submit their scripts with 'stoker submit'"},
    "schedule": {"": "cron or a timer of systemd starts 'stoker submit'"},
    "pipeline": {"": "pipelines are not offered: submit their scripts with 'stoker submit'"},
    "workspace": {"": _NO_CLOUD},
    "account": {"": _NO_CLOUD},
    "env": {"": _NO_CLOUD},
    "runconfig": {"": "edit the file, and look at it with 'stoker submit --config NAME --dry-run SCRIPT'"},
    "notebook": {"": "notebooks begin runs by 'stoker_runs.start_run'; start Jupyter by its own command"},
}
"""Commands of Azure without a counterpart: by group and verb what to do instead; an empty verb is a whole group."""


def refuse(args: argparse.Namespace) -> int:
    """Say what to do instead."""
    instead = REFUSED[args.group]
    verb = getattr(args, "verb", None) or next(iter(args.rest), "")
    words = instead.get(verb) or instead[""]
    file = next((word for option, word in pairwise(args.rest) if option in ("-f", "--file")), "FILE")
    raise SubmissionRefused(f"az ml {args.group} {verb} is not offered: {words.replace('{file}', file)}")


_FACTS: Final = 6
_SHOWN_METRICS: Final = 8


def history(args: argparse.Namespace) -> int:
    """List runs with the last value of each metric."""
    from stoker.settings.workspace import Workspace
    from stoker_runs.launch.runners import adopt_all
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
        print_json(content)
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


def _option(*names: str, **options: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the arguments of `add_argument` for an option."""
    return names, options


_NAME: Final = _option("-n", "--name", required=True, metavar="NAME", help="its name")
_RUN: Final = _option(
    "-r", "--run-id", "--run", dest="reference", required=True, metavar="RUN", help="the run"
)
_CONFIG: Final = _option(
    "-c",
    "--run-configuration",
    "--run-configuration-name",
    dest="config",
    metavar="NAME",
    help="NAME.runconfig of the project, or NAME.compute",
)
_TARGET: Final = _option("-t", "--target", "--ct", metavar="NAME", help="the compute target")
_SCRIPT: Final = _option("script", metavar="SCRIPT", help="the script")
_ARGUMENTS: Final = _option(
    "arguments", metavar="ARG", nargs=argparse.REMAINDER, help="what follows it, as it is"
)
_EXPERIMENT: Final = _option(
    "-e", "--experiment-name", dest="experiment", metavar="NAME", help="the experiment"
)
_DETACH: Final = _option("--async", dest="detach", action="store_true", help="do not follow the run")
_OUTPUT: Final = _option(
    "-o",
    "--output",
    choices=["json", "table", "tsv"],
    default="json",
    help="how it is printed (default: json)",
)
_QUERY: Final = _option(
    "--query", metavar="JMESPATH", help="what of it is printed; needs the package jmespath"
)
_DIRECTORY: Final = _option("-d", "--output-dir", dest="output", metavar="DIR", help="where to")
_PREFIX: Final = _option("--prefix", default="", metavar="PREFIX", help="only those that begin so")
ACTIONS: dict[tuple[str, str], tuple[str, Callable[[argparse.Namespace], int], Any]] = {
    ("computetarget", "attach"): (
        "write NAME.compute and NAME.runconfig of a compute target",
        az_actions.attach,
        (
            _option("kind", nargs="?", metavar="TYPE", help="remotedocker, remote, cluster or localdocker"),
            _option("--type", dest="type_of_before", metavar="TYPE", help="the same, as it once was"),
            _NAME,
            _option("-a", "--address", metavar="HOST", help="the machine"),
            _option("-u", "--username", metavar="NAME", help="who logs in there"),
            _option(
                "-p",
                "-w",
                "--password",
                metavar="PASSWORD",
                help="kept in a file of the workspace for you alone",
            ),
            _option("--ssh-port", metavar="PORT", help="where its SSH server listens (default: 22)"),
            _option("--private-key-file", metavar="FILE", help="the private key to log in with"),
            _option(
                "--private-key-passphrase", metavar="TEXT", help="its passphrase, kept as the password is"
            ),
            _option("-k", "--use-azureml-ssh-key", action="store_true", help="log in by a key of yours"),
            _option("--no-check", action="store_true", help="do not log in now"),
        ),
    ),
    ("computetarget", "create"): (
        "keep a cluster by its name; the cores and GPUs of this machine stand for it",
        az_actions.create_cluster,
        (
            _option("kind", choices=["amlcompute"], metavar="TYPE", help="amlcompute"),
            _NAME,
            _option("-s", "--vm-size", default="", metavar="SIZE", help="the size of its machines"),
            _option("--min-nodes", default=0, metavar="N", help="how many it keeps"),
            _option("--max-nodes", required=True, metavar="N", help="how many it may have"),
        ),
    ),
    ("computetarget", "update"): (
        "change how many nodes a cluster may have",
        az_actions.update_cluster,
        (
            _option("kind", choices=["amlcompute"], metavar="TYPE", help="amlcompute"),
            _NAME,
            _option("--min-nodes", metavar="N", help="how many it keeps"),
            _option("--max-nodes", metavar="N", help="how many it may have"),
            _option(
                "--idle-seconds-before-scaledown",
                metavar="S",
                help="how long one may be idle; kept, nothing here",
            ),
        ),
    ),
    ("computetarget", "list"): ("list the compute targets", az_actions.native("targets", "list"), ()),
    ("computetarget", "show"): (
        "show one",
        az_actions.native("targets", "show", "{name}"),
        (_NAME,),
    ),
    ("computetarget", "detach"): ("forget one of the project", az_actions.detach, (_NAME,)),
    ("experiment", "prepare"): (
        "have packages and image of a run configuration",
        az_actions.prepare,
        (_CONFIG, _TARGET),
    ),
    ("experiment", "submit"): (
        "run a script by a run configuration",
        az_actions.submit,
        (_CONFIG, _TARGET, _EXPERIMENT, _DETACH, _SCRIPT, _ARGUMENTS),
    ),
    ("experiment", "list"): ("list the experiments", az_actions.native("experiments", "list"), ()),
    ("history", "list"): (
        "list runs with what they have measured",
        history,
        (_OUTPUT, _QUERY, _EXPERIMENT),
    ),
    ("history", "info"): (
        "show a run",
        az_actions.native("runs", "show", "{reference}", "--json"),
        (_RUN, _OUTPUT),
    ),
    ("history", "download"): ("copy the files of a run", az_actions.download, (_RUN, _DIRECTORY, _PREFIX)),
    ("history", "promote"): (
        "register a file of a run as a model",
        az_actions.promote,
        (
            _RUN,
            _NAME,
            _option("-ap", "--artifact-path", dest="path", required=True, metavar="PATH", help="the file"),
        ),
    ),
    ("project", "restore"): (
        "copy the source files of a run to a new folder",
        az_actions.restore,
        (_RUN, _option("--path", "-d", dest="output", metavar="DIR", help="the folder (default: RUN)")),
    ),
    ("run", "submit-hyperdrive"): (
        "run a script with many parameters, by a HyperDrive configuration",
        az_actions.submit_hyperdrive,
        (
            _CONFIG,
            _TARGET,
            _EXPERIMENT,
            _DETACH,
            _option(
                "--hyperdrive-configuration-name",
                "--hd",
                dest="hyperdrive",
                required=True,
                metavar="NAME",
                help="NAME.yml, as hdconfig.yml",
            ),
            _SCRIPT,
            _ARGUMENTS,
        ),
    ),
    ("job", "create"): (
        "run the script of a command job, as the CLI v2 has them in YAML",
        az_actions.create_job,
        (
            _option("-f", "--file", dest="file", required=True, metavar="FILE", help="the job, in YAML"),
            _option("--stream", action="store_true", help="follow the run"),
            _option("-g", "--resource-group", metavar="NAME", help="kept from Azure, without effect"),
            _option("-w", "--workspace-name", metavar="NAME", help="kept from Azure, without effect"),
        ),
    ),
    ("job", "list"): ("list runs", az_actions.native("runs", "list", "--json"), ()),
    ("job", "show"): ("show a run", az_actions.native("runs", "show", "{name}", "--json"), (_NAME,)),
    ("job", "stream"): (
        "follow the output of a run",
        az_actions.native("runs", "logs", "{name}", "-f"),
        (_NAME,),
    ),
    ("job", "cancel"): ("have a run ended", az_actions.native("runs", "cancel", "{name}"), (_NAME,)),
    ("run", "cancel"): ("have a run ended", az_actions.native("runs", "cancel", "{reference}"), (_RUN,)),
    ("run", "download-logs"): ("copy the logs of a run", az_actions.download_logs, (_RUN, _DIRECTORY)),
    ("folder", "attach"): (
        "write .azureml/config.json, by which code for the SDK finds the workspace",
        az_actions.attach_folder,
        (
            _option("-w", "--workspace-name", required=True, metavar="NAME", help="the workspace"),
            _option("-g", "--resource-group", default="local", metavar="NAME", help="its resource group"),
        ),
    ),
    ("datastore", "upload"): (
        "copy a folder into a data store",
        az_actions.upload,
        (
            _NAME,
            _option("-p", "--src-path", dest="source", required=True, metavar="DIR", help="the folder"),
            _option(
                "-u", "--target-path", dest="place", default="", metavar="PATH", help="where in the store"
            ),
            _option("--overwrite", action="store_true", help="replace files that are there"),
        ),
    ),
    ("datastore", "list"): ("list the data stores", az_actions.list_stores, ()),
}
"""The commands by group and verb: help, function, and arguments."""
ACTIONS |= {
    ("computetarget", "delete"): ACTIONS["computetarget", "detach"],
    ("run", "submit-script"): ACTIONS["experiment", "submit"],
    ("run", "list"): ACTIONS["history", "list"],
    ("run", "show"): ACTIONS["history", "info"],
}
_GROUPS: Final = {
    "computetarget": "compute targets",
    "experiment": "scripts by run configurations",
    "history": "runs and their files",
    "project": "source files of runs",
    "run": "scripts and runs, in the words of later",
    "job": "jobs, in the words of the CLI v2",
    "folder": "the workspace of a folder",
    "datastore": "data stores",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command lines that there are; what is another one is refused by name."""
    areas = parser.add_subparsers(dest="area", required=True, metavar="AREA")
    ml = areas.add_parser("ml", help="machine learning", description="Command lines of az ml.")
    groups = ml.add_subparsers(dest="group", required=True, metavar="GROUP")
    verbs: dict[str, Any] = {}
    for (group, verb), (words, action, arguments) in ACTIONS.items():
        if group not in verbs:
            of_group = groups.add_parser(group, help=_GROUPS[group], description=sentence(_GROUPS[group]))
            verbs[group] = of_group.add_subparsers(dest="verb", required=True, metavar="VERB")
        one = verbs[group].add_parser(verb, help=words, description=sentence(words))
        for names, options in arguments:
            one.add_argument(*names, **options)
        one.set_defaults(az_run=action)
    for group, refusals in REFUSED.items():
        known = verbs.get(group)
        if known is None:
            _add_refused(groups, group, next(iter(refusals.values())))
            continue
        for verb, instead in refusals.items():
            _add_refused(known, verb, instead)


def _add_refused(parsers: Any, name: str, instead: str) -> None:
    """Take whatever follows, for no word of it begins an option; helps do not show it."""
    other = parsers.add_parser(
        name,
        add_help=False,
        prefix_chars="\0",
        description=f"Not offered: {instead.replace('{file}', 'FILE')}.",
    )
    other.add_argument("rest", nargs="*")
    other.set_defaults(az_run=refuse)


def run(args: argparse.Namespace) -> int:
    """Do what a command line of Azure asks for.

    Raises:
        OperatorError: It is refused; the message names the command of Stoker that there is instead.
    """
    from stoker_azure.exceptions import AzureMLException

    try:
        exit_code: int = args.az_run(args)
    except AzureMLException as error:
        # The command line prints a sentence where code for the SDK would catch the exception.
        raise SubmissionRefused(str(error)) from None
    return exit_code
