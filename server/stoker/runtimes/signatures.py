"""The signatures of a SavedModel: which are served, and several of them in one model.

An arena has rows of one form. So where a model serves several signatures, a row is a packed request that says which
one it is for; a model with a single one keeps rows of numbers where its shapes allow that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from stoker.errors import LoadFailed
from stoker.isolation.batch_watch import BatchWatch
from stoker.runtimes.base import Outputs, RowFailure
from stoker.runtimes.packed import Feeds, PackedRuntime
from stoker.tensors import DEFAULT_SIGNATURE, NamedSignature
from stoker.wire.packed import signature_of

__all__ = ["SignaturesRuntime", "chosen_signatures"]

_EVERY: Final = "*"
"""Stands for all signatures of a SavedModel."""


def chosen_signatures(path: Path, present: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Return the signatures to serve, first the one that is meant where a request names none.

    Args:
        path: The SavedModel, for error messages.
        present: What it has.
        wanted: What the settings ask for: names, `*` for all, or nothing.

    Raises:
        LoadFailed: One is not there, or which one is meant is not clear.
    """
    missing = [name for name in wanted if name != _EVERY and name not in present]
    if not present or missing:
        raise LoadFailed(
            f"{path} has no signature {missing[0] if missing else DEFAULT_SIGNATURE!r}, "
            f"it has: {', '.join(present) or 'none'}"
        )
    named = [name for name in wanted if name != _EVERY]
    if not named and DEFAULT_SIGNATURE not in present and len(present) > 1:
        raise LoadFailed(
            f"{path} has no signature {DEFAULT_SIGNATURE!r}, and several others: {', '.join(present)}; name the one "
            "to serve with the setting signature (--signature), the first of several is the default"
        )
    first = named or [DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in present else present[0]]
    further = [name for name in present if name not in first] if _EVERY in wanted else []
    return [*first, *further]


class SignaturesRuntime:
    """Runs packed requests, each through the signature that it names.

    Attributes:
        signature: What it takes and gives.
        watch: What is looked at in the batches of all signatures.
    """

    def __init__(self, signatures: Sequence[NamedSignature], runtimes: Mapping[str, PackedRuntime]) -> None:
        """Serve several signatures, the first of them to requests that name none.

        Args:
            signatures: The signatures.
            runtimes: What runs each, by name; their batches are watched here from now on.
        """
        self._default = signatures[0].name
        self._runtimes = dict(runtimes)
        self._taken_from = self._default
        self.watch = BatchWatch()
        for runtime in self._runtimes.values():
            runtime.watch = self.watch
        first = self._runtimes[self._default].signature
        verdict = first.verdict
        if verdict is not None and any(one.signature.keeps_state for one in self._runtimes.values()):
            # They share their variables.
            verdict = dataclasses.replace(verdict, keeps_state=True)
        self.signature = dataclasses.replace(first, signatures=tuple(signatures), verdict=verdict)

    def run(self, inputs: Sequence[np.ndarray | Sequence[bytes]]) -> Outputs:
        """Run requests; those of one signature together, as far as they go together."""
        places: dict[str, list[int]] = {}
        requests: list[bytes] = [bytes(packed) for packed in inputs[0]]
        for place, packed in enumerate(requests):
            places.setdefault(signature_of(packed) or self._default, []).append(place)
        answers: list[bytes | RowFailure] = [b""] * len(requests)
        for name, asking in places.items():
            taken = self.watch.taken
            (given,) = self._runtimes[name].run([[requests[place] for place in asking]])
            if self.watch.taken is not taken:
                self._taken_from = name
            for place, answer in zip(asking, given, strict=True):
                answers[place] = answer
        return [answers]

    def run_tensors(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Run one batch of tensors of the signature whose rows `watch` has kept last."""
        return self._runtimes[self._taken_from].run_tensors(feeds)

    def fork(self) -> SignaturesRuntime:
        """A further one of the same model."""
        forks = {name: runtime.fork() for name, runtime in self._runtimes.items()}
        return SignaturesRuntime(self.signature.signatures, forks)
