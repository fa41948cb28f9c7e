"""The choice of a model's signatures, and requests to several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.deployment import Deployment
from stoker.errors import LoadFailed
from stoker.isolation.audit import audit
from stoker.runtimes.base import JoiningRuntime, RowFailure
from stoker.runtimes.packed import PackedRuntime
from stoker.runtimes.signatures import SignaturesRuntime, choose_signatures
from stoker.tensors import ModelTensors, NamedSignature, Signature, TensorInfo
from stoker.wire.packed import pack, unpack

PATH = Path("model")


@pytest.mark.parametrize(
    ("present", "wanted", "chosen"),
    [
        (["embed", "serving_default"], [], ["serving_default"]),
        (["embed"], [], ["embed"]),
        (["a", "b"], ["b"], ["b"]),
        (["a", "b", "serving_default"], ["b", "a"], ["b", "a"]),
        (["a", "serving_default"], ["*"], ["serving_default", "a"]),
        (["a"], ["*"], ["a"]),
        (["a", "b", "c"], ["b", "*"], ["b", "a", "c"]),
    ],
)
def test_the_default_comes_first(present: list[str], wanted: list[str], chosen: list[str]) -> None:
    """The default is the first in the setting, else `serving_default`, else the only one; a star adds the others."""
    assert choose_signatures(PATH, present, wanted) == chosen


@pytest.mark.parametrize(
    ("present", "wanted", "message"),
    [
        ([], [], "model has no signature 'serving_default', it has: none"),
        (["a", "b"], ["c"], "model has no signature 'c', it has: a, b"),
        (["a", "b"], ["*", "c"], "model has no signature 'c', it has: a, b"),
        (["a", "b"], [], "several others: a, b; name the one to serve with the setting signature"),
        (["a", "b"], ["*"], "several others: a, b; name the one to serve with the setting signature"),
    ],
)
def test_ambiguous_signature_is_refused_with_the_names(
    present: list[str], wanted: list[str], message: str
) -> None:
    """The message lists the signatures of the model."""
    with pytest.raises(LoadFailed) as refused:
        choose_signatures(PATH, present, wanted)
    assert message in str(refused.value)


def named(name: str, *, batched: bool = True) -> NamedSignature:
    """Return a signature of numbers."""
    infos = tuple((TensorInfo(side, "float32", (-1,)),) for side in "xy")
    return NamedSignature(name, ModelTensors(*infos, batched))


class Puppet:
    """A model of two signatures. `sizes` records signature and length of each batch."""

    def __init__(self, *signatures: NamedSignature) -> None:
        self.sizes: list[tuple[str, int]] = []
        deployment = Deployment("m", 1, "tensorflow", PATH, PATH, 8, 1000)
        signatures = signatures or (named("twice"), named("less", batched=False))
        self.runtime = SignaturesRuntime(
            signatures,
            {one.name: PackedRuntime(self._run(one.name), one.tensors, deployment) for one in signatures},
        )

    def _run(self, name: str) -> Any:
        def run(feeds: Any) -> dict[str, np.ndarray]:
            self.sizes.append((name, len(feeds["x"])))
            if np.isnan(feeds["x"]).any():
                raise ValueError("no number")
            return {"y": feeds["x"] * 2 if name == "twice" else feeds["x"] - 1}

        return run

    def answers(self, *requests: tuple[str, float], runtime: SignaturesRuntime | None = None) -> list[Any]:
        """Return the answers to requests, each a signature and a number."""
        rows = [pack({"x": np.array([number], np.float32)}, name) for name, number in requests]
        (answers,) = (runtime or self.runtime).run([rows])
        return [
            answer.error if isinstance(answer, RowFailure) else unpack(bytes(answer))["y"].tolist()
            for answer in answers
        ]


def test_each_request_is_answered_by_the_signature_that_it_names() -> None:
    """Requests of one signature are a batch; a request without a name uses the first; answers keep their order."""
    puppet = Puppet()
    answers = puppet.answers(("twice", 1), ("less", 2), ("", 3), ("less", 4), ("twice", 5))
    assert answers == [[2.0], [1.0], [6.0], [3.0], [10.0]]
    assert puppet.sizes == [("twice", 3), ("less", 1), ("less", 1)]
    assert puppet.answers(("", 1), ("less", 1), runtime=puppet.runtime.fork()) == [[2.0], [0.0]]


def test_failed_request_does_not_affect_others() -> None:
    """Requests of the same and of the other signature are answered."""
    first, second, third = Puppet().answers(("twice", np.nan), ("less", 2), ("twice", 3))
    assert isinstance(first, ValueError)
    assert (second, third) == ([1.0], [6.0])


def test_monitor_audits_the_batches_of_all_signatures() -> None:
    """Rows that are kept for an audit run again by the signature that has answered them."""
    puppet = Puppet(named("twice"), named("less"))
    runtime = puppet.runtime
    assert isinstance(runtime, JoiningRuntime)
    for name in ("less", "twice"):
        for seen in (runtime, runtime.fork()):
            seen.monitor.wants_rows = True
            puppet.answers(("twice", 1), ("less", 2), (name, 3), runtime=seen)
            taken, seen.monitor.kept_rows = seen.monitor.kept_rows, None
            assert taken is not None
            assert audit(seen.run_tensors, taken).result == "passed"
            assert puppet.sizes[-1] == (name, 2)
    with np.errstate(over="ignore"):
        puppet.answers(("less", np.inf), ("twice", 3e38))
    assert runtime.monitor.non_finite_rows == 1


def test_signatures_survive_json() -> None:
    """A frontend gets all of them in their order; a model without named ones has `serving_default`."""
    signature = Puppet().runtime.signature
    assert Signature.from_json(signature.to_json()) == signature
    assert [one.name for one in signature.named] == ["twice", "less"]
    rows = Signature.from_json({**signature.to_json(), "signatures": []})
    assert [(one.name, one.method) for one in rows.named] == [("serving_default", "predict")]
    assert rows.named[0].tensors == signature.tensors
