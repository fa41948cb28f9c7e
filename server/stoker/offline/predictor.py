"""A model in this process, without a server: tables in, tables out, with the same answers as a server's."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

import numpy as np

from stoker.deployment import Deployment
from stoker.device.loaded_model import LoadedModel
from stoker.errors import InvalidInput, InvalidSettings, LoadTimeout
from stoker.offline.loading import enter_model_device, enter_script, find_model, load_model
from stoker.offline.rows import RowBatches
from stoker.offline.script_bodies import ScriptBodies
from stoker.offline.tables import Columns, columns_of, in_form_of, inputs_of, script_rows
from stoker.offline.tensor_requests import TensorRequests
from stoker.tensors import Signature
from stoker.wire.texts import TEXT, Tokenizing

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
            text = self.deployment.text if self.signature.callers is not None else None
            self._tokenizing = None if text is None else Tokenizing(text)
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
            if self._tokenizing is not None:
                texts = np.asarray(feeds[TEXT])
                self._tokenizing.check(texts)
                feeds = {TEXT: self._tokenizing.encode(texts).rows}
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
