"""A model in this process, without a server: tables in, tables out, with the same answers as a server's."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self, TypeVar

import numpy as np

from stoker.deployment import Deployment
from stoker.device.loading import LoadedModel
from stoker.errors import BatchFailed, InvalidInput, InvalidSettings, LoadTimeout, quoted_names
from stoker.offline.loading import enter_model_device, enter_script, find_model, load_model
from stoker.offline.rows import Feeds, Ragged, RowBatches, ScriptBodies, failure_of
from stoker.runtimes.base import RowFailure
from stoker.tensors import Signature, TensorInfo, finite_rows, number_kind
from stoker.wire.packed import pack, unpack
from stoker.wire.tensor_json import as_dtype, check_rows

# Tensors of any shape, split into requests if the model allows it. Each request runs as in a server.


_Request = dict[str, np.ndarray]


class TensorRequests:
    """Runs a model whose signature takes `tensors`; belongs to the thread that has loaded it."""

    def __init__(self, loaded: LoadedModel, batch_rows: int | None) -> None:
        """Take a loaded model.

        Args:
            batch_rows: Rows of a request; None for the default.
        """
        self._runtime = loaded.runtime
        # Of several signatures requests that name none mean the first.
        self._tensors = loaded.signature.named[0].tensors
        self._most = loaded.max_batch_rows
        isolation = loaded.signature.isolation
        self._separates = isolation is not None and isolation.non_finite_apart
        self._batch_rows = batch_rows

    @property
    def request_rows(self) -> int | None:
        """Rows of a request; None if a call is one request because the model's rows depend on each other."""
        if self._batch_rows is not None:
            return self._batch_rows
        if self._tensors.batched:
            return self._most
        # A model with a first axis of 1 accepts one row at a time.
        sizes = {info.shape[0] if info.shape else -1 for info in self._tensors.inputs}
        fixed = sizes.pop()
        return fixed if fixed > 0 and not sizes else None

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Score one call.

        Args:
            feeds: By input an array with its batch axis, or rows of different sizes.

        Returns:
            By output an array; rows of different sizes are `object[rows]`.

        Raises:
            InvalidInput: The inputs do not fit each other, or the model refuses them.
            BatchFailed: The model fails, or its answers are none of rows.
        """
        rows = _row_count(feeds)
        requests = list(self._requests(feeds, rows))
        answers: list[Mapping[str, np.ndarray]] = []
        # Rows that come as requests of their own are joined by the runtime, as far as they are alike.
        together = self._most if any(isinstance(one, list) for one in feeds.values()) else 1
        for start in range(0, len(requests), together):
            answers += self._answers(requests[start : start + together], start)
        if len(answers) == 1:
            return dict(answers[0])
        return _joined(answers, [_rows(request) for request in requests])

    def _requests(self, feeds: Feeds, rows: int | None) -> Iterator[_Request]:
        if any(isinstance(one, list) for one in feeds.values()):
            yield from (
                {
                    name: one[row] if isinstance(one, list) else one[row : row + 1]
                    for name, one in feeds.items()
                }
                for row in range(rows or 0)
            )
            return
        arrays = {name: one for name, one in feeds.items() if isinstance(one, np.ndarray)}
        size = self.request_rows
        if size is None:
            yield arrays
            return
        check_rows(arrays, self._tensors)
        if not rows:
            raise InvalidInput("All inputs need the same number of rows, 1 at least.")
        for part in self._cuts(arrays, rows, size):
            yield {name: array[part] for name, array in arrays.items()}

    def _cuts(self, arrays: _Request, rows: int, size: int) -> Iterator[slice]:
        """Return the bounds of requests: `size` rows each, and rows with non-finite numbers alone."""
        alone: list[int] = []
        if self._separates and self._tensors.batched:
            finite = finite_rows(
                [array for array in arrays.values() if number_kind(array.dtype) == "f"], rows
            )
            alone = [] if finite is None else np.flatnonzero(~finite).tolist()
        bounds = [*alone, rows]
        start = 0
        for bound in bounds:
            while start < bound:
                stop = min(start + size, bound)
                yield slice(start, stop)
                start = stop
            if bound < rows:
                yield slice(bound, bound + 1)
                start = bound + 1

    def _answers(self, requests: Sequence[_Request], first: int) -> Iterator[Mapping[str, np.ndarray]]:
        packed = [pack(request) for request in requests]
        try:
            (given,) = self._runtime.run([packed])
        except Exception as error:
            raise failure_of(error, f"request {first}") from error
        for number, answer in enumerate(given, first):
            if isinstance(answer, RowFailure):
                raise failure_of(answer.error, f"request {number}") from answer.error
            yield unpack(bytes(answer))


def _row_count(feeds: Feeds) -> int | None:
    """Rows of all inputs; None if they differ, so that they can be no batch axis."""
    counts = {len(one) if isinstance(one, list) or one.ndim else None for one in feeds.values()}
    if any(isinstance(one, list) for one in feeds.values()) and len(counts) > 1:
        raise InvalidInput.different_rows((name, len(one)) for name, one in feeds.items())
    return counts.pop() if len(counts) == 1 else None


def _rows(request: _Request) -> int:
    array = next(iter(request.values()))
    return len(array) if array.ndim else 1


def _joined(answers: Sequence[Mapping[str, np.ndarray]], counts: Sequence[int]) -> dict[str, np.ndarray]:
    """The answers of all requests as if they had been one."""
    joined = {}
    for name in answers[0]:
        parts = [answer[name] for answer in answers]
        for part, rows in zip(parts, counts, strict=True):
            if part.ndim == 0 or len(part) != rows:
                raise BatchFailed(
                    f"output {name!r} has the shape {list(part.shape)} for {rows} rows, so the answers of several "
                    "requests cannot be put together; score each request in a call of its own"
                )
        if len({part.shape[1:] for part in parts}) == 1:
            joined[name] = np.concatenate(parts)
        else:
            joined[name] = np.empty(sum(counts), object)
            joined[name][:] = [row for part in parts for row in part]
    return joined


# Tables of callers as the inputs of a model, and its outputs as the same kind of table.
#
# A table is a mapping of arrays by name, a data frame, or an array alone. Its rows are its first axis.


Columns = dict[str, Any]
"""Columns of a table by name: arrays, or values that numpy makes arrays of."""

_KINDS: Final = {"b": "b", "i": "iub", "u": "iub", "f": "iuf"}
"""Kinds of numbers that an input of a kind takes: what a server takes of JSON, and of binary tensors."""
_BARE: Final = ""


def _is_frame(table: Any) -> bool:
    """Whether a table is a data frame of pandas."""
    return hasattr(table, "columns") and hasattr(table, "to_numpy")


def columns_of(table: Any, keep: Collection[str]) -> tuple[Columns, Columns]:
    """Split a table into columns for the model and columns that stay as they are.

    Args:
        table: A mapping, a data frame, or an array; that has one column without a name.

    Raises:
        InvalidInput: One of those is not there, or one for the model has masked elements.
    """
    if _is_frame(table):
        columns: Columns = {str(name): table[name].to_numpy() for name in table.columns}
    elif isinstance(table, Mapping):
        columns = {str(name): column for name, column in table.items()}
    else:
        columns = {_BARE: table}
    missing = [name for name in keep if name not in columns]
    if missing:
        raise InvalidInput(f"There is no column {missing[0]!r} to keep; there are: {quoted_names(columns)}.")
    kept = {name: columns.pop(name) for name in keep}
    if not columns:
        raise InvalidInput("There is no column for the model.")
    for name, column in columns.items():
        # numpy.ma is not loaded for arrays of the usual class.
        if type(column) is not np.ndarray and isinstance(column, np.ndarray) and np.ma.is_masked(column):
            where = "The rows are" if name == _BARE else f"The column {name!r} is"
            raise InvalidInput(
                f"{where} a masked array, and what lies under its mask would be scored: fill it first, by its "
                "method filled."
            )
    return columns, kept


def inputs_of(columns: Columns, infos: Sequence[TensorInfo]) -> Feeds:
    """Return the inputs of a model.

    A model with one input takes the only column, whatever it is called, or all of them, if a row of the input is as
    many numbers as there are columns.

    Raises:
        InvalidInput: A column is missing, unknown, or does not fit its input.
    """
    names = [info.name for info in infos]
    if len(infos) == 1 and set(columns) != set(names):
        if len(columns) == 1:
            columns = {names[0]: next(iter(columns.values()))}
        elif infos[0].shape[1:] in ((len(columns),), (-1,)):
            columns = {names[0]: np.stack([np.asarray(column) for column in columns.values()], axis=1)}
    if set(columns) != set(names):
        raise InvalidInput(
            f"The columns have to be the inputs {', '.join(names)}; got {quoted_names(columns)}. "
            "Columns that the model does not take go through it with keep."
        )
    return {info.name: _input(columns[info.name], info) for info in infos}


def _input(column: Any, info: TensorInfo) -> np.ndarray | Ragged:
    """A column as an input: an array, or rows of different sizes."""
    if info.dtype == "string":
        return _fitting(_strings(np.asarray(column, object), info), info)
    array = column if isinstance(column, np.ndarray) else _as_array(column)
    if array.dtype != object:
        return _fitting(_numbers(array, info), info)
    if not array.ndim:
        raise InvalidInput(f"Expected {info}, got no array: {type(column).__name__}.")
    rows = [np.asarray(row) for row in array.tolist()]
    if len({row.shape for row in rows}) == 1:
        return _fitting(_numbers(np.stack(rows), info), info)
    return [_fitting(_numbers(row[None], info), info) for row in rows]


def _as_array(column: Any) -> np.ndarray:
    try:
        return np.asarray(column)
    except ValueError:  # its rows have different sizes
        rows = list(column)
        array = np.empty(len(rows), object)
        array[:] = rows
        return array


def _numbers(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    kind = info.kind
    if number_kind(array.dtype) not in _KINDS[kind]:
        raise InvalidInput(f"{info.name}: expected {info}, got an array of dtype {array.dtype}.")
    return as_dtype(array, info)


def _strings(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """Texts as `object` arrays of `bytes`."""
    encoded = np.empty(array.size, object)
    for place, element in enumerate(array.reshape(-1).tolist()):
        if not isinstance(element, str | bytes):
            raise InvalidInput(f"{info.name}: expected strings, got {type(element).__name__}.")
        encoded[place] = element.encode() if isinstance(element, str) else element
    return encoded.reshape(array.shape)


def _fitting(array: np.ndarray, info: TensorInfo) -> np.ndarray:
    """The array, if it fits the input; a column of single values fits rows of one."""
    if array.ndim == 1 and len(info.shape) == 2 and info.shape[1] in (1, -1):
        array = array[:, None]
    any_rows = info.shape and TensorInfo(info.name, info.dtype, (-1, *info.shape[1:])).fits(array.shape)
    if not any_rows and not info.fits(array.shape):
        raise InvalidInput(f"Expected {info}, got the shape {list(array.shape)}.")
    return array


def script_rows(columns: Columns) -> Any:
    """Return the rows for an entry script: the values of a single column, or an object for each row of several."""
    if len(columns) == 1:
        (column,) = columns.values()
        if isinstance(column, np.ndarray) and column.dtype != object:
            return column
        return [_plain(row) for row in column]
    rows = (dict(zip(columns, map(_plain, row), strict=True)) for row in zip(*columns.values(), strict=True))
    return list(rows)


def _plain(cell: Any) -> Any:
    return cell.decode() if isinstance(cell, bytes) else cell


def in_form_of(table: Any, kept: Columns, outputs: Any) -> Any:
    """Return outputs as the same kind of table that the inputs came in.

    Args:
        outputs: Arrays by name; or one array, of a script whose answer has no names.
    """
    if isinstance(table, np.ndarray | list | tuple) and not isinstance(outputs, Mapping):
        return outputs
    named = outputs if isinstance(outputs, Mapping) else {"result": outputs}
    if _is_frame(table):
        import pandas as pd

        columns = {**kept, **{name: _cells(array) for name, array in named.items()}}
        return pd.DataFrame(columns, index=table.index)
    if isinstance(table, Mapping):
        return {**kept, **named}
    return next(iter(named.values())) if len(named) == 1 else dict(named)


def _cells(array: Any) -> Any:
    """The column of a frame that has an array's rows: numbers, texts, arrays of one axis, or lists."""
    if not isinstance(array, np.ndarray) or array.ndim == 1:
        texts = isinstance(array, np.ndarray) and array.dtype == object
        return [_text(cell) for cell in array] if texts else array
    return list(array) if array.ndim == 2 and array.dtype != object else array.tolist()


def _text(cell: Any) -> Any:
    try:
        return cell.decode() if isinstance(cell, bytes) else cell
    except UnicodeDecodeError:
        return cell


_Result = TypeVar("_Result")


class Predictor:
    """A loaded model that scores tables; the same runtimes, entry scripts and batches as a server's.

    Calling it scores a mapping of arrays by name (what Ray Data gives), a data frame of pandas, or an array alone,
    and returns the same kind of table. Any number of rows may come: they are cut into batches as the model allows
    it. All calls run one after the other, on a thread of its own.

    A GPU is chosen as by `stoker serve`, and the process is confined to it by `CUDA_VISIBLE_DEVICES`. An entry
    script makes the process its own: the working directory and Azure's variables become the script's, so a process
    has one script.

    Args:
        model: A path, or a registered model `NAME[:VERSION]`; with `config` the name of one of its models.
        device: `auto`, `cpu`, `cuda:N`, or the UUID of a GPU.
        batch_rows: Rows of one request, for entry scripts that take whole bodies (by default `max_batch_rows`) and
            for models whose rows see each other (by default a call is one request).
        keep: Names of columns that are no inputs, and stay in the answer; a text is one name.
        workspace: Where registered models are; by default as `stoker serve` finds it.
        config: A deployment file whose settings hold for the model.
        threads: Threads for one operation on the CPU; by default as many as a server on this machine gives. More are
            faster, and sums may be rounded otherwise.
        **settings: Settings of the model, as in a deployment file: `max_batch_rows=1024`, `batching="none"`.

    Raises:
        OperatorError: The model, its device or a setting cannot be used; the message says what to do.
    """

    def __init__(
        self,
        model: str | Path,
        device: str = "auto",
        *,
        batch_rows: int | None = None,
        keep: Collection[str] = (),
        workspace: str | Path | None = None,
        config: str | Path | None = None,
        threads: int | None = None,
        **settings: Any,
    ) -> None:
        if batch_rows is not None and batch_rows < 1:
            raise InvalidSettings(f"batch_rows has to be 1 or more, not {batch_rows}")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise InvalidSettings(f"threads has to be a whole number from 1 up, not {threads!r}")
        self._keep = (keep,) if isinstance(keep, str) else tuple(keep)
        self._leases = ExitStack()
        deployed = find_model(model, workspace, config, settings, self._leases)
        self.deployment: Deployment = dataclasses.replace(deployed, threads=threads or deployed.threads)
        """The loaded version and its settings."""
        self.fingerprint = deployed.fingerprint
        """A digest of its files."""
        self._arguments = (
            _absolute(model),
            device,
            {"batch_rows": batch_rows, "keep": self._keep, "threads": threads, **settings}
            | {"workspace": _absolute(workspace), "config": _absolute(config)},
        )
        if self.deployment.framework == "script":
            enter_script(self.deployment)
        where = deployed.devices[0] if device == "auto" else device
        self._thread = _ModelThread(f"model {self.deployment.name}")
        try:
            self._loaded = self._load(where)
            self._scorer = self._make_scorer(batch_rows)
        except BaseException:
            self.close()
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        return _reload, self._arguments

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.deployment.name}:{self.deployment.version})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for the running batch, and release the model's files."""
        self._thread.close()
        self._leases.close()

    @property
    def signature(self) -> Signature:
        """The inputs and outputs of the model."""
        return self._loaded.signature

    @property
    def request_rows(self) -> int | None:
        """Maximum rows of a batch; None if a call is one request because the rows depend on each other."""
        return self._scorer.request_rows

    def __call__(self, table: Any) -> Any:
        """Score a table.

        Args:
            table: A mapping of arrays by name, a data frame of pandas, or an array; the first axis counts the rows.

        Returns:
            The outputs by name, in the same form; for an array the array of a model's only output. Entry scripts that
            answer with a list have an output `result`.

        Raises:
            InvalidInput: The table does not fit the model.
            BatchFailed: The model fails on a row.
        """
        columns, kept = columns_of(table, self._keep)
        scorer = self._scorer
        if isinstance(scorer, ScriptBodies):
            rows = script_rows(columns)
            outputs = self._on_thread(lambda: scorer.run(rows))
        else:
            feeds = inputs_of(columns, self.signature.named[0].tensors.inputs)
            outputs = self._on_thread(lambda: scorer.run(feeds))
        if kept:
            _check_kept(kept, outputs)
        return in_form_of(table, kept, outputs)

    def score_bodies(self, bodies: Sequence[bytes]) -> list[bytes]:
        """Score bodies with an entry script that takes whole bodies, as a server would.

        Returns:
            The bodies of the answers.

        Raises:
            InvalidInput: The model is no such script.
            BatchFailed: The script fails, or answers with an error.
        """
        scorer = self._scorer
        if not isinstance(scorer, ScriptBodies):
            raise InvalidInput(f"{self.deployment.name} takes tensors, not bodies: {self.signature}.")
        return self._on_thread(lambda: list(scorer.answers(bodies)))

    def _make_scorer(self, batch_rows: int | None) -> RowBatches | TensorRequests | ScriptBodies:
        if self.signature.takes == "body":
            return ScriptBodies(self._loaded, batch_rows or self.deployment.max_batch_rows)
        if self.signature.takes == "rows":
            return RowBatches(self._loaded, self.deployment.name)
        return TensorRequests(self._loaded, batch_rows)

    def _on_thread(self, function: Callable[[], _Result]) -> _Result:
        """Call a function on the model's thread: frameworks and scripts keep state of the thread that loads them."""
        return self._thread.submit(function).result()

    def _load(self, device: str) -> LoadedModel:
        loaded = self._thread.submit(
            lambda: load_model(self.deployment, enter_model_device(self.deployment, device))
        )
        limit_s = self.deployment.load_timeout_s
        try:
            return loaded.result(limit_s)
        except TimeoutError:
            if loaded.done():
                raise
            self._thread.leave()
            raise LoadTimeout(
                f"{self.deployment.name} was not loaded and warmed up within {limit_s:g} s; if it only needs longer, "
                "raise load_timeout_s"
            ) from None


class _ModelThread:
    """Runs calls one after the other. The process does not wait for this thread at exit, because it may hang."""

    def __init__(self, name: str) -> None:
        self._todo: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._left = False
        self._thread = threading.Thread(target=self._run_calls, name=name, daemon=True)
        self._thread.start()

    def submit(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Call a function after all earlier ones have returned."""
        future: Future[_Result] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001  # raised where the result is asked for
                future.set_exception(error)

        self._todo.put(call)
        return future

    def leave(self) -> None:
        """Stop waiting for the running call."""
        self._left = True

    def close(self) -> None:
        """Accept no more calls, and wait for the running one."""
        self._todo.put(None)
        if not self._left:
            self._thread.join()

    def _run_calls(self) -> None:
        while (call := self._todo.get()) is not None:
            call()


def _reload(model: str, device: str, options: dict[str, Any]) -> Predictor:
    """Load a Predictor that was sent to another process."""
    return Predictor(model, device, **options)


def _absolute(path: str | Path | None) -> str | None:
    """Return an absolute path; names that are not paths stay."""
    if path is None:
        return None
    return str(Path(path).absolute()) if Path(path).exists() else str(path)


def _check_kept(kept: Columns, outputs: Any) -> None:
    rows = len(next(iter(kept.values())))
    columns: Iterable[Any] = outputs.values() if isinstance(outputs, Mapping) else [outputs]
    if any(len(column) != rows for column in columns):
        raise InvalidInput("The answer has not one entry a row, so the columns that stay do not fit it.")
