"""Chooses a model's dialect at Azure's scoring endpoint when it is loaded."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import simdjson

from stoker.errors import UnsupportedEncoding
from stoker.gateway.http.responses import JSON_TYPE_LINE, failed_line
from stoker.gateway.scoring.azure_dialect import AzureDialect
from stoker.gateway.scoring.json_dialects import JsonDialect, PackedDialect, RowsDialect
from stoker.gateway.scoring.tensor_dialect import named_outputs, submit_tensors
from stoker.gateway.scoring.watched_calls import traced_head
from stoker.settings.choices import NonFinite
from stoker.wire.images import is_media
from stoker.wire.script_requests import ScriptAnswer, script_row
from stoker.wire.tensor_json import MethodDecoder, encode_named, encode_results

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Ticket
    from stoker.gateway.scoring.call import Call, Scorer
    from stoker.tensors import ScriptForm, Signature
    from stoker.wire.script_requests import RequestHead

__all__ = ["MethodDialect", "ScriptDialect", "loaded_dialect"]


# Bodies that an entry script takes as they were sent, and the answers that it makes.


_NO_CONTENT: Final = 204
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"


class ScriptDialect(AzureDialect):
    """Whole bodies for a model's script, as text or with their heads.

    Args:
        name: The model's name.
        script: How the script is called.
    """

    def __init__(self, name: str, script: ScriptForm) -> None:
        self._name = name
        self._script = script
        self._parser = simdjson.Parser()
        # Its schema decides by the content type, even if the script itself does not read headers.
        self.wants_head = script.wants_head or script.kind != "string"
        self.direct = not self.wants_head

    def check_media(self, content_type: bytes) -> None:
        """Refuse a form where the script takes text."""
        if (
            self._script.kind == "string"
            and is_media(content_type)
            and content_type.lower().startswith(b"multipart/")
        ):
            raise UnsupportedEncoding(
                f"The script of {self._name} takes the body as text, and cannot read multipart; "
                "send what it is to read as the body."
            )

    def reads_long(self, service: Scorer, body: bytes, head: RequestHead | None) -> bool:
        """Whether the body has to be searched for rows."""
        del service, body, head
        return self._script.batching == "merge"

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit a body as it was sent; a script that reads headers also gets the caller's deadline."""
        if head is not None:
            head = traced_head(call, head)
            if call.deadline_ns < call.received_ns + call.service.timeout_ns:
                head = dataclasses.replace(head, deadline_ns=call.deadline_ns)
        exchange.submit_body(call, script_row(self._parser, self._script, call.ids.request_id, body, head))

    def complete(self, call: Call) -> None:
        """Answer with the script's answer."""
        answer = ScriptAnswer.unpack(call.output_texts(0)[0])
        parse_ns = call.enqueued_ns - call.received_ns
        total_ns = time.monotonic_ns() - call.received_ns
        metrics = call.service.metrics
        if answer.status == 200:
            metrics.note_scored(1, parse_ns, total_ns)
            if metrics.remarks is not None and total_ns > metrics.remarks.slow_ns:
                metrics.remarks.slow(call, total_ns)
        else:
            metrics.count_request(answer.status)
        call.answer(answer.status, _lines(call, answer, parse_ns, total_ns), answer.body)


def _lines(call: Call, answer: ScriptAnswer, parse_ns: int, total_ns: int) -> bytes:
    executed = b"" if answer.exec_ns is None else b"x-ms-run-fn-exec-ms: %.3f\r\n" % (answer.exec_ns / 1e6)
    timing = _TIMING_LINE % (
        parse_ns / 1e6,
        (call.started_ns - call.enqueued_ns) / 1e6,
        (call.finished_ns - call.started_ns) / 1e6,
        total_ns / 1e6,
    )
    return b"".join(
        (
            answer.lines or JSON_TYPE_LINE,
            # An answer without content must have no Content-Length either (RFC 9110, section 8.6).
            b"" if answer.status == _NO_CONTENT else b"content-length: %d\r\n" % len(answer.body),
            call.ids.lines,
            failed_line(answer.failed),
            executed,
            timing,
        )
    )


# Azure's JSON of models of scikit-learn without a script, whose bodies name a method and whose answers do so too.


class MethodDialect(JsonDialect):
    """`{"data": rows, "method": name}`, answered with an object of the rows by that name."""

    def __init__(self, name: str, signature: Signature, non_finite: NonFinite) -> None:
        """Make it for a model with this signature, whose answers have NaN and infinities so."""
        super().__init__(name)
        self._decode = MethodDecoder(signature).decode
        self._non_finite = non_finite

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit the rows of a body to the method that it names."""
        del head
        request = self._decode(body)
        if request.results:
            call.write = partial(_write_results, self._non_finite)
        submit_tensors(call, exchange, request.inputs, request.method)

    def complete(self, call: Call) -> None:
        """Answer in the form of the request."""
        write = getattr(call, "write", None)
        if write is None:
            super().complete(call)
        else:
            lines, body = write(named_outputs(call))
            call.answer_scored(body, time.monotonic_ns(), lines)

    def encode(self, ticket: Ticket) -> bytes:
        """Return an object of the outputs by name."""
        return encode_named(named_outputs(ticket), self._non_finite)


def _write_results(non_finite: NonFinite, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, bytes]:
    return b"", encode_results(outputs, non_finite)


def loaded_dialect(name: str, signature: Signature, non_finite: NonFinite) -> JsonDialect | ScriptDialect:
    """Make the dialect for a model with this signature; `non_finite` says how NaN and infinities are written."""
    if signature.script is not None:
        return ScriptDialect(name, signature.script)
    if signature.method:
        return MethodDialect(name, signature, non_finite)
    if signature.tensors is None:
        return RowsDialect(name, signature, non_finite)
    return PackedDialect(name, signature.tensors, non_finite)
