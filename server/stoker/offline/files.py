"""Scoring files: the rows of a shard through a Predictor into files of answers, what is done only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, StokerError
from stoker.offline.predictor import Predictor
from stoker.offline.result_files import Columns, format_for, result_file
from stoker.offline.shards import Piece, Record, Shard, find_files, pieces_of
from stoker.offline.table_files import FORMATS, count_rows, read_lines, read_tables

__all__ = ["Done", "score_files"]

_READ_ROWS: Final = 4096
"""About how many rows are read at once."""


@dataclass(slots=True)
class Done:
    """What a shard has done.

    Attributes:
        files: Files of answers that were written.
        rows: Rows that were scored.
        before: Pieces that were done already.
    """

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
) -> Done:
    """Score what a shard has to of some files.

    Args:
        predictor: The model.
        inputs: Files and folders.
        output: The folder of the answers.
        shard: The shard.
        kind: The format of the answers; None takes that of the rows.
        options: What else the answers depend on, for the records.
        progress: Told how many rows have been scored, or were before.

    Raises:
        InvalidSettings: A file cannot be read, or there are other answers in its place.
        InvalidInput: Rows do not fit the model.
        BatchFailed: The model fails on a row.
    """
    unit = predictor.request_rows
    if unit is None:
        raise InvalidSettings(
            f"the rows of {predictor.servable.name} see each other; say with --batch-rows how many make one request"
        )
    done = Done()
    for piece in pieces_of(find_files(inputs, FORMATS), shard, unit, count_rows):
        model = f"{predictor.servable.name}:{predictor.servable.version}"
        record = Record.of(piece, model, predictor.fingerprint, {**options, "format": kind})
        there = record.find(output, piece)
        if there is not None:
            done.before += 1
            progress(there.scored)
            continue
        answers, rows = _score(predictor, piece, output, kind, unit, progress)
        record.store(output, piece, answers, rows)
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
    """The answers to a piece, so many rows at a time, as columns."""
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
                f"{piece.source}: the outputs of {predictor.servable.name} have not one entry a row"
            )
        seen += counts.pop() or 0
        yield columns


def _as_line(answer: bytes) -> orjson.Fragment:
    """JSON as it came; line ends in it can only stand between its parts."""
    return orjson.Fragment(answer.replace(b"\r", b" ").replace(b"\n", b" "))


def _placed(error: StokerError, place: str) -> StokerError:
    return type(error)(f"{place}: {error}")
