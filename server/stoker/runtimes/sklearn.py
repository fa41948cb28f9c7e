"""Models of scikit-learn without a script: an estimator in a pickle, or in a file of joblib.

Whatever has its methods is one, such as the classifiers of XGBoost and LightGBM. Each method is a signature. There is
no graph to read, so whether rows see each other is known by trying alone.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, LoadFailed
from stoker.runtimes.base import Outputs, Runtime
from stoker.runtimes.packed import Feeds, PackedRuntime
from stoker.runtimes.serving_way import as_runtime
from stoker.runtimes.signatures import SignaturesRuntime, chosen_signatures
from stoker.scripts.former_names import provide_former_names
from stoker.scripts.load_advice import load_advice
from stoker.servable import Device, Servable
from stoker.system.extras import how_to_install
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, NamedSignature, Signature, TensorInfo

__all__ = ["SklearnRuntime", "load_sklearn"]

logger = logging.getLogger(__name__)

_INPUT: Final = "data"
_METHODS: Final = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform")
_BY_DEFAULT: Final = ("predict", "predict_proba")
_OF_SCORES: Final = ("predict_proba", "predict_log_proba")
"""Methods whose columns are the classes."""
_TEXTS: Final = np.array([b"one text", b"another one"], object)


def load_sklearn(servable: Servable, device: Device, threads: int) -> Runtime:
    """Load an estimator: one method is served row by row where that can be, several request by request.

    The file runs code as it is loaded, and changes how modules are found: the process should have nothing else to do.

    Args:
        servable: The model; its `signatures` are methods.
        device: The CPU.
        threads: Threads of one operation, and jobs of estimators that were made to have several.

    Raises:
        LoadFailed: A package is missing, the file cannot be loaded or holds no estimator, it has no such method, or
            it takes neither rows of numbers nor texts.
    """
    del device
    estimator = _read(servable)
    _limit_threads(estimator, threads)
    present = [name for name in _METHODS if callable(getattr(estimator, name, None))]
    if not present:
        raise LoadFailed(
            f"{servable.path} holds {_kind(estimator)}, which has none of the methods {', '.join(_METHODS)}: serve "
            "it by a score.py whose init() loads it"
        )
    named = servable.signatures or [name for name in present if name in _BY_DEFAULT] or present[:1]
    wanted = named if named[0] in _METHODS else [present[0], *named]
    names = chosen_signatures(servable.path, present, wanted)
    methods = [_Method(estimator, name, servable) for name in names]
    runtime = _single(methods[0], servable) if len(methods) == 1 else _several(methods, servable)
    # Azure's server calls it where the model has it and the request names nothing.
    of_azure = "predict_proba" if "predict_proba" in names and not servable.signatures else names[0]
    runtime.signature = dataclasses.replace(runtime.signature, method=of_azure)
    return runtime


def _single(method: _Method, servable: Servable) -> Runtime:
    runtime = as_runtime(servable, method.run, method.tensors, lambda rows: SklearnRuntime(method, rows))
    tensors = runtime.signature.model_tensors
    assert tensors is not None, "only scripts have none"
    named = NamedSignature(method.name, tensors)
    runtime.signature = dataclasses.replace(runtime.signature, signatures=(named,))
    return runtime


def _several(methods: Sequence[_Method], servable: Servable) -> Runtime:
    signatures, runtimes = [], {}
    for method in methods:
        runtime = _packed(method, servable, is_default=method is methods[0])
        assert runtime.signature.tensors is not None, "packed rows have them"
        runtimes[method.name] = runtime
        signatures.append(NamedSignature(method.name, runtime.signature.tensors))
    return SignaturesRuntime(signatures, runtimes)


def _packed(method: _Method, servable: Servable, *, is_default: bool) -> PackedRuntime:
    own = dataclasses.replace(servable, name=f"{servable.name}, method {method.name}")

    def pack_rows(rows: Signature) -> Runtime:
        assert rows.model_tensors is not None, "rows of numbers have them"
        return PackedRuntime(method.run, rows.model_tensors, own, rows.verdict)

    # What is declared of the model, is declared of its default.
    runtime = as_runtime(own, method.run, method.tensors, pack_rows, sampled=is_default)
    assert isinstance(runtime, PackedRuntime), "made here, or for what is packed anyway"
    return runtime


class SklearnRuntime:
    """One method of an estimator for rows of numbers; several threads may run it."""

    def __init__(self, method: _Method, signature: Signature) -> None:
        self._method = method
        self.signature = signature

    def run(self, inputs: Sequence[Any]) -> Outputs:
        """Run one batch; see `Runtime.run`."""
        return [self._method.of_rows(inputs[0])]

    def fork(self) -> SklearnRuntime:
        """A further one of the same estimator."""
        return SklearnRuntime(self._method, self.signature)


class _Method:
    """A method of an estimator as a function of named tensors.

    Attributes:
        name: Its name, which is that of its output.
        tensors: What it takes and gives: rows of numbers as float64, or texts.
    """

    def __init__(self, estimator: Any, name: str, servable: Servable) -> None:
        """Find out what it takes and gives, by two rows.

        Raises:
            LoadFailed: It takes neither rows of numbers nor texts, or gives no array with an entry for each row.
        """
        self.name = name
        self._call = getattr(estimator, name)
        self._columns = _columns(estimator, servable.path)
        width = getattr(estimator, "n_features_in_", None)
        self._texts = width is None
        try:
            given = self.of_rows(_TEXTS if width is None else np.zeros((2, width)))
        except Exception as error:
            raise LoadFailed(_refused(servable.path, estimator, name, error)) from error
        is_number = given.dtype.name in NUMERIC_DTYPES
        if given.shape[:1] != (2,) or not (is_number or given.dtype == object):
            raise LoadFailed(
                f"{name} of {servable.path} gives {given.dtype}{list(given.shape)} for two rows: serve it by a "
                "score.py that makes an array with one entry a row of it"
            )
        classes = getattr(estimator, "classes_", None) if name in _OF_SCORES else None
        labels = () if classes is None else tuple(map(str, np.asarray(classes).tolist()))
        inputs = (
            TensorInfo(_INPUT, "string", (-1,))
            if width is None
            else TensorInfo(_INPUT, "float64", (-1, int(width)), labels=self._columns)
        )
        dtype = given.dtype.name if is_number else "string"
        output = TensorInfo(name, dtype, (-1, *given.shape[1:]), labels=labels)
        self.tensors = ModelTensors((inputs,), (output,), batched=True)

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run one batch.

        Raises:
            InvalidInput: The estimator does not take these numbers, such as NaN.
        """
        return {self.name: self.of_rows(feeds[_INPUT])}

    def of_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return what the method gives for rows `[rows, columns]`, or texts `[rows]`; raises as `run`."""
        given: Any = self._taken(rows)
        try:
            # Rows that are tried, and those of callers, may be too large: that is in the answer.
            with np.errstate(all="ignore"):
                result = self._call(given)
        except ValueError as error:
            # As the checks of its inputs say it.
            if str(error).startswith("Input "):
                raise InvalidInput.refused_by_model(str(error).partition("\n")[0]) from error
            raise
        return _array(result)

    def _taken(self, rows: np.ndarray) -> Any:
        if self._texts:
            return [text.decode(errors="replace") for text in rows.tolist()]
        # Some write into what they are given, and the batch is not theirs.
        copied = np.array(rows)
        if not self._columns:
            return copied
        import pandas as pd

        return pd.DataFrame(copied, columns=list(self._columns), copy=False)


def _array(result: Any) -> np.ndarray:
    """What a method gave as an array of numbers, or of texts as `bytes`."""
    array = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if array.dtype.kind not in "OUS":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [
        value if isinstance(value, bytes) else str(value).encode() for value in array.reshape(-1).tolist()
    ]
    return texts.reshape(array.shape)


def _read(servable: Servable) -> Any:
    """Load the file.

    Raises:
        LoadFailed: It cannot be loaded, or scikit-learn is not installed.
    """
    path = servable.path
    if importlib.util.find_spec("sklearn") is None:
        raise LoadFailed(
            f"{path} is a model of scikit-learn, which is not installed; {how_to_install('sklearn')}"
        )
    import joblib

    provide_former_names()
    # Classes of its own are in modules beside it.
    sys.path.extend(folder for folder in [str(path.parent)] if folder not in sys.path)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator = joblib.load(path)
    except Exception as error:
        advice = load_advice(error).strip()
        raise LoadFailed(f"{path} cannot be loaded: {error!r}{advice and f'. {advice}'}") from error
    _tell(path, caught)
    return estimator


def _tell(path: Path, caught: Sequence[warnings.WarningMessage]) -> None:
    """Log what was warned of; that a file is of another version of scikit-learn once, whatever it consists of."""
    saved = set()
    for warning in dict.fromkeys(one.message for one in caught):
        version = getattr(warning, "original_sklearn_version", None)
        if version is None:
            logger.warning("%s: %s", path.name, warning)
        else:
            saved.add((str(version), str(getattr(warning, "current_sklearn_version", "another"))))
    for version, here in sorted(saved):
        logger.warning(
            "%s was saved with scikit-learn %s and runs with %s, which may answer otherwise: save it again with "
            "that, or give it scikit-learn==%s in an environment of its own (--environment FILE --system-managed)",
            path.name,
            version,
            here,
            version,
        )


def _columns(estimator: Any, path: Path) -> tuple[str, ...]:
    """The names of the columns that it was fitted on; empty if it was fitted on an array."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return ()
    if importlib.util.find_spec("pandas") is None:
        raise LoadFailed(
            f"{path} was fitted on a table with the columns {', '.join(map(str, names))}, for which pandas is "
            "needed: pip install pandas"
        )
    return tuple(map(str, names))


def _limit_threads(estimator: Any, threads: int) -> None:
    import threadpoolctl

    threadpoolctl.threadpool_limits(limits=threads)
    if not hasattr(estimator, "get_params") or not hasattr(estimator, "set_params"):
        return
    several = {
        name: threads
        for name, jobs in estimator.get_params().items()
        if name.rpartition("__")[2] == "n_jobs" and jobs not in (None, 1)
    }
    if several:
        estimator.set_params(**several)


def _refused(path: Path, estimator: Any, name: str, error: Exception) -> str:
    taken = (
        "texts, and does not say how many numbers a row has (n_features_in_)"
        if getattr(estimator, "n_features_in_", None) is None
        else f"rows of {estimator.n_features_in_} numbers"
    )
    return (
        f"{name} of {path} does not take {taken}: {error!r}; serve it as a model of MLflow with a signature of its "
        "columns, or by a score.py"
    )


def _kind(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
