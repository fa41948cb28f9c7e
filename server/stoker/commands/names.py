"""The commands of `stoker`: groups, summaries, extras, aliases, and the words by which people look for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Serve": {
        "quickstart": "train an MNIST model if nothing is registered yet, register it and serve it",
        "serve": "load models onto the device and answer scoring requests",
        "status": "list the servers of this workspace that run here: address, models, readiness, requests/s",
        "reload": "restart a running server with its present settings and code, without losing a request",
        "stop": "stop a server that runs here, after it has answered its requests",
    },
    "Models": {
        "models": "register, list, show, label and delete models; load and unload them in a running server, list "
        "its events",
        "score": "send rows, images or files to a running server, or run a script over files, and print the answers",
        "offline": "score the rows of files, or of a shard of them, without a server",
    },
    "Keys": {
        "keys": "show and replace the bearer keys of a service, and add those of named callers",
        "token": "sign a short-lived token for a caller without a key",
    },
    "Look": {
        "doctor": "check this machine, its devices and versions, and the packages that models require",
        "profile": "find the settings with which a model serves the most requests within a latency target",
        "bench": "load a server, in turns with baselines on the same machine",
        "completion": "print a script that completes commands and options in a shell",
    },
    "Training": {
        "train": "train a digit classifier as a run, and write its outputs to a folder",
        "submit": "run a training script on a compute target and follow it",
        "tune": "run a training script with many parameters, and find the best ones",
        "runs": "list, show, follow, cancel, compare and draw training runs, and get their files",
        "experiments": "list, show and archive experiments",
        "stores": "list and add data stores, and copy files to them and from them",
        "datasets": "give data names and versions, list and show them",
        "targets": "create, attach, list, show, check, prepare, prune and detach compute targets",
    },
    "Cluster": {
        "kubernetes": "write and apply the objects of a service in a Kubernetes cluster, and operate it there",
        "router": "balance requests over several servers, with weights for versions, by HAProxy",
        "autoscale": "scale the pods of a service in a Kubernetes cluster with their load",
        "ray": "run a service on a Ray cluster: start, show, scale and drain its servers",
    },
    "Azure": {
        "az": "take command lines that were written for Azure: stoker az ml …",
        "compute": "let compute targets of Azure's SDK stand for a Kubernetes cluster",
    },
}
"""The commands as the help lists them, each with its summary.

They stand here and not in the modules of the commands, so that the help imports none of these.
"""
SUMMARIES: Final[Mapping[str, str]] = {
    name: text for commands in GROUPS.values() for name, text in commands.items()
}
EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "training": ("quickstart", "train"),
    "runs": tuple(GROUPS["Training"])[1:],
    "cluster": tuple(GROUPS["Cluster"]),
    "azure": tuple(GROUPS["Azure"]),
    "bench": ("bench",),
}
"""The extra that installs each command of another distribution."""
ALIASES: Final[Mapping[str, str]] = {"predict": "score", "run": "submit", "sweep": "tune"}
"""Other names of commands."""
ACTION_ALIASES: Final[Mapping[str, str]] = {"list": "ls"}
"""Other names of actions, by the names of these."""

_MEANT: Final[Mapping[str, str]] = {
    "serve": "start up deploy launch server host",
    "stop": "kill down shutdown terminate end quit",
    "status": "ps list ls top running servers info",
    "reload": "restart upgrade refresh update",
    "score": "infer inference request query call send ask invoke",
    "models": "model registry repository",
    "models register": "register add push",
    "models import": "import convert",
    "models label": "label alias canary promote",
    "models load": "load",
    "models unload": "unload",
    "offline": "batch",
    "keys": "key auth apikey secret",
    "token": "tokens jwt",
    "keys regenerate": "rotate regenerate",
    "doctor": "check diagnose health validate verify devices device gpu gpus cuda nvidia-smi version about",
    "profile": "analyze analyse optimize optimise autotune perf_analyzer simulate simulation",
    "bench": "benchmark perf load-test loadtest",
    "submit": "execute job",
    "tune": "hyperdrive search hpo optuna",
    "runs": "history jobs",
    "runs cancel": "cancel abort",
    "runs tensorboard": "tensorboard",
    "runs compare": "compare diff",
    "experiments": "experiment projects",
    "targets": "target",
    "stores": "store datastore datastores bucket",
    "datasets": "dataset",
    "targets attach": "attach ssh",
    "kubernetes": "k8s kubectl helm cluster",
    "kubernetes apply": "apply",
    "kubernetes render": "render manifest manifests yaml",
    "autoscale": "scale hpa autoscaler",
    "router": "route proxy balance haproxy loadbalancer",
    "az": "azure ml azureml",
}
"""For each command the words by which people look for it in vain."""
_ALIKE: Final = (
    "list ls all index show-all enumerate",
    "show get describe info cat view inspect",
    "delete rm remove del drop erase detach unregister down prune archive",
    "add create new register attach make up insert import",
    "cancel stop kill abort terminate end down",
    "logs log tail follow output",
    "regenerate rotate renew reset replace",
    "download fetch pull copy cp",
    "set update edit change label",
    "status ps top state show",
    "check test verify validate doctor",
    "apply deploy push up",
    "render template manifest write",
    "restore unarchive undelete",
    "resume continue retry restart",
    "rerun repeat again",
    "events history",
)
"""Words for actions that mean the same."""


def find_meant(word: str, names: Iterable[str], *, of_stoker: bool) -> str | None:
    """Return the command or action that a word means; None if it means none.

    Args:
        word: The typed word.
        names: The commands or actions that there are; a result of two words begins with one of them.
        of_stoker: Whether a command of `stoker` is meant, rather than an action of one.
    """
    known, word = list(names), word.lower()
    if of_stoker:
        found = (meant for meant, words in _MEANT.items() if word in words.split())
        return next((meant for meant in found if meant.split()[0] in known), None)
    alike = (words.split() for words in _ALIKE)
    return next((name for words in alike if word in words for name in words if name in known), None)
