"""Bodies that an entry script takes as they were sent, and the answers that it makes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec
import simdjson

from stoker.errors import UnsupportedEncoding
from stoker.gateway.http.responses import JSON_TYPE_LINE, failed_line
from stoker.gateway.scoring.observers import head_with_span
from stoker.wire.images import is_media
from stoker.wire.script_requests import ScriptAnswer, script_row

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange
    from stoker.gateway.scoring.call import Call, ServiceBase
    from stoker.script_form import ScriptForm
    from stoker.wire.script_requests import RequestHead


from stoker.gateway.scoring.dialects import AzureDialect

_NO_CONTENT: Final = 204
_TIMING_LINE: Final = b"server-timing: parse;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\n"


class ScriptDialect(AzureDialect):
    """Whole bodies for a model's script, as text or with their heads."""

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

    def blocks_on_long(self, service: ServiceBase, body: bytes, head: RequestHead | None) -> bool:
        """Whether the body has to be searched for rows."""
        del service, body, head
        return self._script.batching == "merge"

    def submit(self, call: Call, exchange: Exchange, body: bytes, head: RequestHead | None) -> None:
        """Submit a body as it was sent; a script that reads headers also gets the caller's deadline."""
        if head is not None:
            head = head_with_span(call, head)
            if call.deadline_ns < call.received_ns + call.service.limits.timeout_ns:
                head = msgspec.structs.replace(head, deadline_ns=call.deadline_ns)
        exchange.submit_body(call, script_row(self._parser, self._script, call.ids.request_id, body, head))

    def complete(self, call: Call) -> None:
        """Answer with the script's answer."""
        self.send(call, ScriptAnswer.unpack(call.output_texts(0)[0]))

    def send(self, call: Call, answer: ScriptAnswer) -> None:
        """Answer with this."""
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
