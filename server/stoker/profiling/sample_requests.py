"""Sample requests to measure a model with, given or made from its signature, as batches and as HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from msgspec import Struct, field

from stoker.deployment import Deployment
from stoker.device.first_batches import batch_inputs
from stoker.device.loaded_model import LoadedModel
from stoker.errors import InvalidSettings, LoadFailed
from stoker.offline.script_bodies import ScriptBodies
from stoker.runtimes.base import RowFailure, Runtime
from stoker.samples.sample import find_sample_feeds, first_rows
from stoker.samples.text_sample import sample_texts
from stoker.scripts.script_sample import find_sample
from stoker.tensors import Signature, number_kind
from stoker.wire.datatypes import DATATYPES
from stoker.wire.packed import pack
from stoker.wire.texts import TEXT
from stoker_client import tensors as client

_HEADER_LENGTH: Final = "Inference-Header-Content-Length"
_SEED: Final = 11


class SampleRequest(Struct, frozen=True):
    """A request as a caller would send it.

    Attributes:
        path: The path it is posted to.
        note: A description for the operator.
        packed: For a model that takes whole requests, the row that it receives; empty for others.
    """

    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    note: str = ""
    packed: bytes = b""


def make_request(loaded: LoadedModel, deployment: Deployment, rows: int) -> SampleRequest:
    """Make a request for a model.

    Raises:
        InvalidSettings: A sample is needed, or the sample determines the number of rows.
        LoadFailed: The sample cannot be read, or the model fails on it.
    """
    signature = loaded.signature
    if signature.takes == "body":
        return _script_request(loaded, deployment, rows)
    sample = find_sample_feeds(deployment, _tensors(signature).inputs)
    if signature.takes == "rows":
        specs = signature.inputs
        feeds = dict(zip((spec.name for spec in specs), _rows(loaded, rows), strict=True))
        if signature.callers is not None:
            texts = sample_texts(deployment)
            feeds = {TEXT: np.resize(texts, (rows, *texts.shape[1:]))}
        noun = "rows" if rows > 1 else "row"
        note = f"{rows} {noun} of {sample.source}" if sample else f"{rows} random {noun}"
        return _infer(deployment.name, signature, feeds, f"{note}, binary")
    if sample is None:
        raise InvalidSettings(
            f"{deployment.name} takes tensors of free sizes ({signature}), so a request like those of its callers is "
            "needed: give one by --data FILE, or lay it beside the model as sample_input.json"
        )
    if rows > 1:
        raise InvalidSettings(
            f"{deployment.name} gets requests as they are; leave --rows out, and write the rows into --data FILE"
        )
    request = _infer(deployment.name, signature, sample.feeds, f"the request of {sample.source}, binary")
    return SampleRequest(
        request.path, request.headers, request.body, request.note, packed=pack(dict(sample.feeds))
    )


def prepare_batches(
    loaded: LoadedModel, deployment: Deployment, request: SampleRequest
) -> Callable[[Runtime, int], Callable[[], object]]:
    """Return a function that, for a runtime of the model and a batch size, returns a function that runs one batch.

    Args:
        request: The request that fills batches of whole requests.
    """

    def begin(runtime: Runtime, size: int) -> Callable[[], object]:
        inputs = [[request.packed] * size] if request.packed else batch_inputs(runtime, size, loaded.sample)
        return lambda: runtime.run(inputs)

    if request.packed:
        _check(loaded.runtime.run([[request.packed]]), deployment.name)
    return begin


def _rows(loaded: LoadedModel, rows: int) -> list[np.ndarray]:
    """The rows of a request: those of the sample, or random numbers between 0 and 1."""
    inputs = first_rows(loaded.signature.inputs, rows, loaded.sample)
    if loaded.sample is not None:
        return inputs
    chance = np.random.default_rng(_SEED)
    # Zeros might compute faster than other numbers, and are shorter as text.
    return [
        chance.random(array.shape).astype(array.dtype) if number_kind(array.dtype) == "f" else array
        for array in inputs
    ]


def _script_request(loaded: LoadedModel, deployment: Deployment, rows: int) -> SampleRequest:
    form = loaded.signature.script
    assert form is not None, "scripts that take bodies have one"
    sample = find_sample(deployment, form)
    if sample is None:
        raise InvalidSettings(
            f"{deployment.name} is a script, whose requests only its author knows: give one that it answers by "
            "--data FILE, lay it beside the script as sample_input.json, or decorate run with inference_schema"
        )
    if rows > 1:
        raise InvalidSettings(
            f"{deployment.name} gets whole bodies; leave --rows out, and write as many rows into --data FILE"
        )
    scripts = ScriptBodies(loaded, 1)
    # Refused requests cost less than answered ones, so the sample has to be answered.
    for _ in scripts.answers([sample.body]):
        pass
    return SampleRequest(
        f"/api/v1/service/{quote(deployment.name)}/score",
        {"Content-Type": sample.content_type},
        sample.body,
        f"the body of {sample.source}",
        packed=scripts.request(0, sample.body),
    )


def _infer(name: str, signature: Signature, feeds: Mapping[str, np.ndarray], note: str) -> SampleRequest:
    inputs = tuple(
        client.TensorInfo(info.name, DATATYPES[info.dtype], info.shape) for info in _tensors(signature).inputs
    )
    body, text_bytes = client.encode_inputs(client.ModelTensors(name, inputs, ()), feeds, None)
    headers = {"Content-Type": "application/octet-stream", _HEADER_LENGTH: str(text_bytes)}
    return SampleRequest(f"/v2/models/{quote(name)}/infer", headers, body, note)


def _tensors(signature: Signature) -> Any:
    # Of several signatures, requests that name none use the first.
    return signature.named[0].tensors


def _check(outputs: Any, name: str) -> None:
    for answer in outputs[0]:
        if isinstance(answer, RowFailure):
            raise LoadFailed(f"{name} fails on its sample: {answer.error}")
