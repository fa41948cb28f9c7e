"""TensorFlow Serving's PredictionService: Predict, Classify and Regress as dialects of scoring."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import BodyTooLarge, InvalidInput, NotSupported, StokerError
from stoker.gateway.grpc.calls import BEARER_METADATA, RpcCall
from stoker.gateway.grpc.infer import GrpcDialect, Scoring
from stoker.gateway.grpc.messages import SERVING, message
from stoker.gateway.grpc.serving_requests import ExamplesMessage, ModelSpec, PredictMessage
from stoker.gateway.grpc.tensor_protos import read_tensor, tensor_bytes
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, Allowance
from stoker.gateway.protocols.infer_dialect import signatures_of
from stoker.gateway.protocols.tfs_describing import service_of
from stoker.gateway.scoring.askers import asker_of
from stoker.gateway.scoring.callers import caller_of
from stoker.gateway.scoring.tensor_dialect import submit_tensors
from stoker.wire.protobuf import field
from stoker.wire.tensor_json import check_rows
from stoker.wire.tfs import named_signature
from stoker.wire.tfs_examples import MAX_REPEATED, Verb, results_of, takes_examples

if TYPE_CHECKING:
    from stoker.gateway.gateway import Gateway
    from stoker.gateway.grpc.inquiry import Inquiry
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.gateway.scoring.service import Service
    from stoker.keys.callers import CallerTerms
    from stoker.tensors import ModelTensors, NamedSignature
    from stoker.wire.envelope import RequestHead

__all__ = ["ServingScoring", "answered_spec"]

_Spec: Final = message("ModelSpec", SERVING)
_Classified: Final = message("ClassificationResponse", SERVING)
_Regressed: Final = message("RegressionResponse", SERVING)
_OUTPUTS, _KEY, _VALUE, _SPEC = 1, 1, 2, 2


class _ServingDialect(GrpcDialect):
    """What the three have in common: `Call.asked` is the message, and `submit` sets `Call.write`."""

    __slots__ = ()

    def read(self, content: bytes) -> PredictMessage | ExamplesMessage:
        """Read a message; raises StokerError if it is none."""
        raise NotImplementedError

    @staticmethod
    def _answer(call: Call, outputs: Mapping[str, np.ndarray]) -> None:
        _, content = call.write(outputs)
        call.answer_bare(content)


class _Predict(_ServingDialect):
    """Tensors in, tensors out."""

    __slots__ = ()

    def read(self, content: bytes) -> PredictMessage:
        return PredictMessage.read(content)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Decode the request and queue its tensors."""
        del body, head
        request: PredictMessage = call.asked
        service = call.service
        signature = _signature(service, request.spec)
        inputs = _inputs(service.name, signature.tensors, request)
        wanted = _wanted(signature, request)
        call.write = partial(_predicted, wanted, answered_spec(service, signature.name).SerializeToString())
        submit_tensors(call, exchange, inputs, signature.name)


class _Examples(_ServingDialect):
    """Serialized examples in, labels with scores or numbers out."""

    __slots__ = ("_verb",)

    def __init__(self, verb: Verb) -> None:
        self._verb = verb

    def read(self, content: bytes) -> ExamplesMessage:
        return ExamplesMessage.read(content)

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Queue the examples, each with the features of the context."""
        del body, head
        request: ExamplesMessage = call.asked
        service = call.service
        signature = _signature(service, request.spec)
        if not takes_examples(service.name, self._verb, signature):
            raise InvalidInput(
                f"'{service.name}' cannot {self._verb} over gRPC by its signature {signature.name}: that takes "
                "tensors, call Predict"
            )
        if len(request.context) * len(request.examples) > MAX_REPEATED:
            raise BodyTooLarge(
                f"The context, repeated for each example, has more than {MAX_REPEATED} bytes; send the examples in "
                "parts, or without a context."
            )
        examples = np.empty(len(request.examples), object)
        # The features of an example stand behind those of the context, and the last of one name counts.
        examples[:] = [request.context + example for example in request.examples]
        inputs = {signature.tensors.inputs[0].name: examples}
        check_rows(inputs, signature.tensors)
        call.write = partial(self._results, signature, answered_spec(service, signature.name))
        submit_tensors(call, exchange, inputs, signature.name)

    def _results(
        self, signature: NamedSignature, spec: Any, outputs: Mapping[str, np.ndarray]
    ) -> tuple[bytes, bytes]:
        results = results_of(self._verb, signature, outputs)
        response: Any
        if self._verb == "regress":
            response = _Regressed(model_spec=spec)
            response.result.SetInParent()
            for value in results.tolist():
                response.result.regressions.add(value=value)
        else:
            response = _Classified(model_spec=spec)
            response.result.SetInParent()
            for pairs in results:
                classes = response.result.classifications.add().classes
                for label, score in pairs:
                    classes.add(label=label, score=score)
        return b"", response.SerializeToString()


_DIALECTS: Final[dict[str, _ServingDialect]] = {
    "Predict": _Predict(),
    "Classify": _Examples("classify"),
    "Regress": _Examples("regress"),
}


class ServingScoring:
    """Finds the services that calls of one of the three methods are for.

    Args:
        gateway: The frontend's services.
        scoring: What checks keys and finds services for the other protocol of this port.
        method: Predict, Classify or Regress.
    """

    def __init__(self, gateway: Gateway, scoring: Scoring, method: str) -> None:
        self._gateway, self._scoring = gateway, scoring
        self._dialect = _DIALECTS[method]
        self.check_key = scoring.check_key

    def score(self, inquiry: Inquiry, content: bytes) -> Call:
        """Hand a message to the service that it is for.

        Raises:
            StokerError: It is refused.
        """
        call = inquiry.call
        request = self._dialect.read(content)
        service, caller = self._find(request.spec, call)
        try:
            if len(content) > LARGE_BODY_BYTES:
                whose = partial(caller_of, service, call.authorization, call.address)
                inquiry.cover(Allowance(self._gateway.bodies, whose), len(content))
            deadline_ns = call.deadline_ns()
            asker = asker_of(caller, call.head.metadata)
            if service.script is not None and service.script.yields:
                raise NotSupported(
                    f"'{service.name}' yields its answer piece by piece: call ModelStreamInfer"
                )
        except StokerError as error:
            self._gateway.note_refusal(service, call.headers(), error)
            raise
        scored = service.score_soon(content, call.ids, inquiry, self._dialect)
        scored.asked = request
        if deadline_ns is not None:
            scored.deadline_ns = min(scored.deadline_ns, deadline_ns)
        if asker is not None:
            asker.put_on(scored)
        return scored

    def _find(self, spec: ModelSpec, call: RpcCall) -> tuple[Service, CallerTerms]:
        if not spec.label:
            return self._scoring.plain(spec, call.authorization) or self._scoring.find(spec, call)
        error = self.check_key(call.authorization)
        if error is not None:
            raise error
        service = service_of(self._gateway, spec.model_name, None, spec.label)
        try:
            return service, service.access.check(call.authorization, BEARER_METADATA)
        except StokerError as refused:
            self._gateway.note_refusal(service, call.headers(), refused)
            raise


def answered_spec(service: Scorer, signature_name: str = "") -> Any:
    """Return the `ModelSpec` of an answer: who has given it."""
    spec = _Spec(name=service.name, signature_name=signature_name)
    if service.version.isdecimal():
        spec.version.value = int(service.version)
    return spec


def _signature(service: Scorer, spec: ModelSpec) -> NamedSignature:
    return named_signature(signatures_of(service), {"signature_name": spec.signature_name})


def _inputs(model: str, tensors: ModelTensors, request: PredictMessage) -> dict[str, np.ndarray]:
    names = [info.name for info in tensors.inputs]
    if request.inputs.keys() != set(names):
        missing = [name for name in names if name not in request.inputs]
        wrong = f"missing: {', '.join(missing)}" if missing else "there are others"
        raise InvalidInput(f"input keys do not match the signature, which has {', '.join(names)}; {wrong}")
    arrays = {info.name: read_tensor(model, info, request.inputs[info.name]) for info in tensors.inputs}
    check_rows(arrays, tensors)
    return arrays


def _wanted(signature: NamedSignature, request: PredictMessage) -> tuple[str, ...]:
    names = tuple(info.name for info in signature.tensors.outputs)
    if not request.wanted:
        return names
    if not set(request.wanted) <= set(names) or len(set(request.wanted)) < len(request.wanted):
        raise InvalidInput(f"output_filter has others than the outputs {', '.join(names)}, or one twice")
    return request.wanted


def _predicted(
    wanted: tuple[str, ...], spec: bytes, outputs: Mapping[str, np.ndarray]
) -> tuple[bytes, bytes]:
    """No header lines, and a `PredictResponse`."""
    parts = [
        field(_OUTPUTS, field(_KEY, name.encode()) + field(_VALUE, tensor_bytes(outputs[name])))
        for name in wanted
    ]
    return b"", b"".join((*parts, field(_SPEC, spec)))
