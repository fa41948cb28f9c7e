"""Collects sampled requests and answers of one model, without slowing requests down.

The event loop only appends references to a bounded queue; a thread makes records of them and writes them. What does
not fit into the queue, under more load than the thread's share of the time allows, is dropped and counted.
"""

from __future__ import annotations

import base64
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final, NamedTuple

import orjson
import simdjson

from stoker.collecting.record_files import RecordFiles
from stoker.gateway.http.responses import Respond
from stoker.gateway.scoring.background_writer import BackgroundWriter
from stoker.metrics.counters import ModelMetrics
from stoker.settings.collection import CollectionSettings, is_sampled

logger = logging.getLogger(__name__)

LARGEST_BODY_BYTES: Final = 1 << 20
"""Longer bodies and answers are left out of their records, which say so."""

_MAX_QUEUED_RECORDS: Final = 8192
_MAX_QUEUED_BYTES: Final = 64 << 20
_TICK_S: Final = 0.25
_WARN_EVERY_S: Final = 60.0
_BOM: Final = b"\xef\xbb\xbf"
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")


class _Scored(NamedTuple):
    """One request as the event loop passes it to the thread."""

    time_s: float
    request_id: bytes
    content_type: bytes
    status: int
    input_bytes: int
    inputs: bytes | None
    output_bytes: int
    outputs: bytes | None

    @property
    def kept_bytes(self) -> int:
        return len(self.inputs or b"") + len(self.outputs or b"")


class Collector(BackgroundWriter[_Scored, tuple[float, bytes]]):
    """The data collection of one model in one frontend."""

    def __init__(
        self,
        model: str,
        version: int,
        settings: CollectionSettings,
        files: RecordFiles,
        metrics: ModelMetrics,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(f"collect {model}", _TICK_S)
        self._common = {"model": model, "version": version}
        self._files = files
        self._metrics = metrics
        self._clock_s = clock_s
        self._sample_rate = settings.sample_rate
        self._keeps_inputs = "inputs" in settings.collections
        self._keeps_outputs = "outputs" in settings.collections
        self._as_text = settings.format == "parquet"
        self._parser = simdjson.Parser()
        # Each has one writer only: the event loop, or the writing thread.
        self._enqueued_bytes = 0
        self._taken_bytes = 0
        self._warned_s = -_WARN_EVERY_S

    @property
    def queued_bytes(self) -> int:
        """How many bytes of bodies wait to be written."""
        return self._enqueued_bytes - self._taken_bytes

    def samples(self, request_id: bytes) -> bool:
        """Whether a request is sampled: decided by its id, so every server decides alike."""
        return is_sampled(request_id, self._sample_rate)

    def observe(self, body: bytes, content_type: bytes, request_id: bytes, respond: Respond) -> Respond:
        """Return a function that answers like `respond` and, for a sampled request, queues its record afterwards."""
        if not self.samples(request_id):
            return respond
        input_bytes = len(body)
        # A body that is too long must not be kept until its answer.
        kept = body if self._keeps_inputs and input_bytes <= LARGEST_BODY_BYTES else None

        def respond_and_enqueue(status: int, lines: bytes, answer: bytes) -> None:
            respond(status, lines, answer)
            # A request refused for lack of room or of a device has not been looked at.
            if status != 503:
                self._enqueue(request_id, content_type, status, input_bytes, kept, answer)

        return respond_and_enqueue

    def _enqueue(
        self,
        request_id: bytes,
        content_type: bytes,
        status: int,
        input_bytes: int,
        inputs: bytes | None,
        answer: bytes,
    ) -> None:
        outputs = answer if self._keeps_outputs and len(answer) <= LARGEST_BODY_BYTES else None
        scored = _Scored(
            self._clock_s(), request_id, content_type, status, input_bytes, inputs, len(answer), outputs
        )
        size_bytes = scored.kept_bytes
        if len(self._queue) >= _MAX_QUEUED_RECORDS or self.queued_bytes + size_bytes > _MAX_QUEUED_BYTES:
            self._metrics.count_collection_dropped("queue_full", 1)
            return
        self._enqueued_bytes += size_bytes
        self._queue.append(scored)

    def _run(self) -> None:
        super()._run()
        self._files.close()

    def write_queued(self) -> None:
        """Write all that is queued, and close the files of past hours."""
        super().write_queued()
        self._files.close_past(self._clock_s())

    def _encode(self, queued: _Scored) -> tuple[float, bytes]:
        self._taken_bytes += queued.kept_bytes
        return queued.time_s, self._line(queued)

    def _write(self, encoded: list[tuple[float, bytes]]) -> None:
        for _, hour in groupby(encoded, lambda record: record[0] // 3600):
            self._write_hour(list(hour))

    def _write_hour(self, records: list[tuple[float, bytes]]) -> None:
        try:
            self._files.write(records[0][0], [line for _, line in records])
        except OSError as error:
            self._metrics.count_collection_dropped("write_failed", len(records))
            if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
                self._warned_s = time.monotonic()
                logger.warning("collected records of %s cannot be written: %s", self._common["model"], error)
        else:
            self._metrics.count_collected(len(records))

    def _line(self, scored: _Scored) -> bytes:
        moment = datetime.fromtimestamp(scored.time_s, UTC).isoformat(timespec="milliseconds")
        record: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "request_id": scored.request_id.decode("latin-1"),
            **self._common,
            "status": scored.status,
            "input_bytes": scored.input_bytes,
            "output_bytes": scored.output_bytes,
        }
        if scored.content_type:
            record["content_type"] = scored.content_type.decode("latin-1")
        dropped = []
        for name, kept, content in (
            ("inputs", self._keeps_inputs, scored.inputs),
            ("outputs", self._keeps_outputs, scored.outputs),
        ):
            if content is not None:
                record[name] = self._embedded(content)
            elif kept:
                dropped.append(name)
        if dropped:
            record["dropped_large"] = dropped
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)

    def _embedded(self, content: bytes) -> Any:
        """A body within a record: JSON as it is, other text as a string, other bytes as base64.

        In a journal for Parquet it is the text of that JSON.
        """
        content = content.removeprefix(_BOM)
        if self._is_json(content):
            # Line ends stand only between the tokens of JSON, never within one.
            ends = b"\n" in content or b"\r" in content
            json_text = content.translate(_LINE_ENDS) if ends else content
        else:
            json_text = orjson.dumps(_text_or_base64(content))
        return json_text.decode() if self._as_text else orjson.Fragment(json_text)

    def _is_json(self, content: bytes) -> bool:
        try:
            # Makes no Python objects, so a long body does not hold the interpreter lock for long.
            self._parser.parse(content)
        except (ValueError, RuntimeError):
            return False
        return True


def _text_or_base64(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(content).decode()}
