"""The commands of `stoker`: groups, summaries, extras and aliases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Serve": {
        "quickstart": "train an MNIST model if nothing is registered yet, register it and serve it",
        "serve": "load models onto the device and answer scoring requests",
        "status": "list the servers of this workspace that run here: address, models, readiness",
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
        "experiments": "list and archive experiments",
        "stores": "list and add data stores, and copy files to them and from them",
        "datasets": "give data names and versions, list and show them",
        "targets": "create, attach, list, show, check, prepare and detach compute targets",
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
