"""Load estimators and send them requests of tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.deployment import Deployment, Device
from stoker.runtimes.base import RowFailure, Runtime
from stoker.runtimes.sklearn import load_sklearn
from stoker.tensors import Signature
from stoker.wire.packed import MISSING, pack, unpack

__all__ = ["answers", "inputs_of", "load"]


def load(path: Path, **settings: Any) -> Runtime:
    """Load an estimator, one method and without a test of its rows unless `settings` say otherwise."""
    settings = {"signatures": ("predict",), "batching": "none", **settings}
    deployment = Deployment("homes", 1, "sklearn", path, path.parent, 8, 1000, **settings)
    return load_sklearn(deployment, Device("cpu", 0, "a processor"), os.cpu_count() or 1)


def _feeds(rows: Mapping[str, Sequence[Any]]) -> dict[str, np.ndarray]:
    feeds = {}
    for name, values in rows.items():
        if all(isinstance(value, str | None) for value in values):
            feeds[name] = np.empty(len(values), object)
            feeds[name][:] = [MISSING if value is None else value.encode() for value in values]
        else:
            feeds[name] = np.array(values, bool if isinstance(values[0], bool) else float)
    return feeds


def answers(runtime: Runtime, *requests: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return the answer to each request, or its error."""
    (given,) = runtime.run([[pack(_feeds(request)) for request in requests]])
    return [
        one.error if isinstance(one, RowFailure) else next(iter(unpack(bytes(one)).values())).tolist()
        for one in given
    ]


def inputs_of(signature: Signature) -> list[str]:
    """Return the inputs of the first method."""
    return [str(info) for info in signature.signatures[0].tensors.inputs]
