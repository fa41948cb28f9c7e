"""Entry scripts that take whole bodies: rows in JSON bodies, and their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import simdjson

from stoker.device.loaded_model import LoadedModel
from stoker.errors import BatchFailed, InvalidInput
from stoker.runtimes.base import RowFailure
from stoker.wire.script_requests import RequestHead, ScriptAnswer, script_row
from stoker_client.answers import Reply, as_arrays, decode_json, join_answers
from stoker_client.bodies import encode_json
from stoker_client.errors import InvalidRows, UnexpectedAnswer

_HEAD: Final = RequestHead("POST", "/score", "", [("content-type", "application/json")], "")
_SHOWN_CHARS: Final = 200
_SUCCESS: Final = range(200, 300)


class ScriptBodies:
    """Runs a script whose signature takes a `body`; belongs to the thread that has loaded it.

    Attributes:
        request_rows: Rows of one body.
    """

    def __init__(self, loaded: LoadedModel, batch_rows: int) -> None:
        form = loaded.signature.script
        assert form is not None, "scripts that take bodies have one"
        self._runtime = loaded.runtime
        self._form = form
        self._head = _HEAD if form.wants_head or form.kind != "string" else None
        self.request_rows = batch_rows
        self._parser = simdjson.Parser()
        self._key = _only_argument(form.input_schema) or form.merge_key

    def run(self, rows: Any) -> Any:
        """Score rows, in bodies `{"data": [row, ...]}`.

        Args:
            rows: An array, or a list of JSON values; the first axis counts the rows.

        Returns:
            Answers like those of `stoker_client.Client.score_many`: an array with an entry a row, or several by name.

        Raises:
            InvalidInput: A row has no JSON form.
            BatchFailed: The script fails, or does not answer row by row.
        """
        parts = [rows[start : start + self.request_rows] for start in range(0, len(rows), self.request_rows)]
        try:
            bodies = [encode_json({self._key: part}) for part in parts]
            answers = [as_arrays(decode_json(Reply(200, text))) for text in self.answers(bodies)]
            return join_answers(answers, [len(part) for part in parts])
        except InvalidRows as error:
            raise InvalidInput(str(error)) from error
        except UnexpectedAnswer as error:
            raise BatchFailed(f"the script's answers are not one a row: {error}") from error

    def answers(self, bodies: Sequence[bytes]) -> Iterator[bytes]:
        """Score bodies; yields the body of each answer.

        Raises:
            MalformedBody: A body that has to be text is not.
            BatchFailed: The script fails, or answers with an error.
        """
        most = self._form.max_requests
        for start in range(0, len(bodies), most):
            packed = [
                self.request(number, body) for number, body in enumerate(bodies[start : start + most], start)
            ]
            (given,) = self._runtime.run([packed])
            for number, answer in enumerate(given, start):
                yield _body(number, answer)

    def request(self, number: int, body: bytes) -> bytes:
        """A body as the row that the script gets of a server.

        Raises:
            MalformedBody: It has to be text and is not.
        """
        return script_row(self._parser, self._form, b"body %d" % number, body, self._head)


def _body(number: int, answer: np.ndarray | bytes | RowFailure) -> bytes:
    if isinstance(answer, RowFailure):
        raise BatchFailed(f"body {number} could not be scored: {answer.error}") from answer.error
    unpacked = ScriptAnswer.unpack(bytes(answer))
    if unpacked.status not in _SUCCESS:
        shown = unpacked.body.decode(errors="replace")[:_SHOWN_CHARS]
        raise BatchFailed(f"body {number}: the script answered with status {unpacked.status}: {shown}")
    return unpacked.body


def _only_argument(schema: dict[str, Any] | None) -> str | None:
    """The only argument that a schema names."""
    arguments = list((schema or {}).get("properties", {}))
    return str(arguments[0]) if len(arguments) == 1 else None
