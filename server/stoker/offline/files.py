"""Scoring files: the rows of a shard go through a Predictor into files of answers; finished parts are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct

from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, StokerError
from stoker.offline.answer_files import Columns, format_for, result_file
from stoker.offline.predictor import Predictor
from stoker.offline.sent_answers import SentAnswers
from stoker.offline.shards import Piece, Record, Shard, answers_path, find_files, pieces_of
from stoker.offline.table_files import FORMATS, count_rows, read_lines, read_tables

_READ_ROWS: Final = 4096
"""About how many rows are read at once."""


class ShardResult(Struct):
    """The progress of a shard."""

    files: int = 0
    rows: int = 0
    before: int = 0


def score_files(
    predictor: Predictor,
    inputs: Sequence[Path],
    output: Path,
    shard: Shard,
    kind: str | None,
    options: Mapping[str, Any],
    progress: Callable[[int], object],
    *,
    digests: Mapping[Path, str] | None = None,
    sent: SentAnswers | None = None,
) -> ShardResult:
    """Score a shard's part of files.

    Args:
        kind: The format of the answers; None for that of the rows.
        digests: The SHA-256 of files that were fetched, which have another time on each machine.
        sent: Where the answers go from `output`; None if they stay there.
        progress: Gets the number of rows that are scored, now or before.

    Raises:
        InvalidInput: Rows do not fit the model.
        BatchFailed: The model fails on a row.
    """
    unit = predictor.request_rows
    if unit is None:
        raise InvalidSettings(
            f"the rows of {predictor.deployment.name} see each other; say with --batch-rows how many make one request"
        )
    done = ShardResult()
    for piece in pieces_of(find_files(inputs, FORMATS), shard, unit, count_rows):
        model = f"{predictor.deployment.name}:{predictor.deployment.version}"
        digest = (digests or {}).get(piece.source)
        record = Record.of(piece, model, predictor.fingerprint, {**options, "format": kind}, digest)
        there = record.find(output, piece, () if sent is None else sent.names)
        if there is not None:
            done.before += 1
            progress(there.scored)
            continue
        answers, rows = _score(predictor, piece, output, kind, unit, progress)
        record.store(output, piece, answers, rows)
        if sent is not None:
            sent.send(output, [answers] if answers else [], answers_path(Path(), piece).as_posix())
        done.files += bool(answers)
        done.rows += rows
    return done


def _score(
    predictor: Predictor,
    piece: Piece,
    output: Path,
    kind: str | None,
    unit: int,
    progress: Callable[[int], object],
) -> tuple[str, int]:
    """Score a piece; returns the file of its answers, and how many rows it has."""
    parts = _answers(predictor, piece, kind, unit * -(-_READ_ROWS // unit))
    first = next(parts, None)
    if first is None:
        return "", 0
    chosen = format_for(kind, piece.source.suffix.removeprefix(".").lower(), first)
    name = f"{piece.name}.{chosen}"
    rows = 0
    with result_file(output / name, chosen) as add:
        columns: Columns | None = first
        while columns is not None:
            add(columns)
            count = len(next(iter(columns.values())))
            rows += count
            progress(count)
            columns = next(parts, None)
    return name, rows


def _answers(predictor: Predictor, piece: Piece, kind: str | None, rows: int) -> Iterator[Columns]:
    """Yield the answers to a piece in parts, as columns."""
    bodies = predictor.signature.takes == "body" and piece.source.suffix.lower() == ".jsonl"
    read = read_lines if bodies else read_tables
    if bodies and kind not in (None, "jsonl"):
        raise InvalidSettings("the answers to bodies are JSON; leave --format out, or give jsonl")
    seen = piece.start
    for table in read(piece.source, piece.start, piece.stop, rows):
        try:
            if bodies:
                yield {"answer": [_as_line(answer) for answer in predictor.score_bodies(table)]}
                continue
            answer = predictor(table)
        except (InvalidInput, BatchFailed) as error:
            raise _placed(error, f"{piece.source}, rows from {seen}") from error
        columns = answer if isinstance(answer, Mapping) else {"result": answer}
        counts = {len(column) if hasattr(column, "__len__") else None for column in columns.values()}
        if len(counts) > 1 or None in counts:
            raise BatchFailed(
                f"{piece.source}: the outputs of {predictor.deployment.name} have not one entry a row"
            )
        seen += counts.pop() or 0
        yield columns


def _as_line(answer: bytes) -> orjson.Fragment:
    """JSON as it came; line ends in it can only stand between its parts."""
    return orjson.Fragment(answer.replace(b"\r", b" ").replace(b"\n", b" "))


def _placed(error: StokerError, place: str) -> StokerError:
    return type(error)(f"{place}: {error}")
