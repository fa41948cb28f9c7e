"""What `az ml` of Azure has and `stoker az ml` has not: each by a sentence that says what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from stoker.errors import SubmissionRefused

if TYPE_CHECKING:
    import argparse

__all__ = ["REFUSED", "refuse"]

_BY_SDK: Final = "write it in Python and run it by 'python -m stoker.azure FILE'"
_NO_CLOUD: Final = (
    "nothing of the kind is needed: the workspace is the folder .stoker, see 'stoker submit --help'"
)
_SERVING: Final = (
    "'stoker serve' and 'stoker models register' serve models; see also 'python -m stoker.azure'"
)

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
    "pipeline": {"": "pipelines are not offered: submit their scripts with 'stoker submit'"},
    "workspace": {"": _NO_CLOUD},
    "account": {"": _NO_CLOUD},
    "env": {"": _NO_CLOUD},
    "runconfig": {"": "edit the file, and look at it with 'stoker submit --config NAME --dry-run SCRIPT'"},
    "notebook": {"": "notebooks begin runs by 'stoker.start_run'; start Jupyter by its own command"},
}
"""What Azure has and this has not: by group and verb, what to do instead; an empty verb is all of a group."""


def refuse(args: argparse.Namespace) -> int:
    """Say what to do instead.

    Raises:
        SubmissionRefused: Always.
    """
    instead = REFUSED[args.group]
    verb = getattr(args, "verb", None) or next(iter(args.rest), "")
    words = instead.get(verb) or instead[""]
    raise SubmissionRefused(f"az ml {args.group} {verb} is not offered: {words}")
