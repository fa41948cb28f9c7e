"""Models of scikit-learn without a script: an estimator in a pickle, or in a file of joblib.

An object with the methods of an estimator is one, such as a classifier of XGBoost or LightGBM. Boosters of these
libraries are served too, also from files of their own. Each method is a signature. There is no graph to read, so only
trying shows whether rows affect each other.

See decision 44.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import pickle
import struct
import sys
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment, Device, library_of_booster
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.model_errors import in_one_line
from stoker.runtimes.base import PROBE_ROWS, Runtime
from stoker.runtimes.boosters import read_booster, wrap_booster
from stoker.runtimes.estimator_columns import possible_inputs
from stoker.runtimes.estimator_inputs import EstimatorInput, Table
from stoker.runtimes.packed import Feeds
from stoker.runtimes.rows_runtime import RowsRuntime
from stoker.runtimes.signatures import SignaturesRuntime, choose_signatures, name_signature, pack_signature
from stoker.runtimes.wrapping import wrap_model
from stoker.scripts.load_advice import load_advice
from stoker.system.extras import how_to_install
from stoker.system.wording import format_count
from stoker.tensors import NUMERIC_DTYPES, ModelTensors, NamedSignature, TensorInfo
from stoker_base.former_names import provide_former_names

logger = logging.getLogger(__name__)

_METHODS: Final = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform")
_DEFAULT_METHODS: Final = ("predict", "predict_proba")
_SCORE_METHODS: Final = ("predict_proba", "predict_log_proba")
"""Methods whose columns are the classes."""
_DAMAGED: Final = (
    pickle.UnpicklingError,
    EOFError,
    zlib.error,
    IndexError,
    KeyError,
    struct.error,
    UnicodeError,
)
"""Errors of pickle and joblib for files that are cut short, changed, or of another kind."""


def load_sklearn(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load an estimator. One method is served row by row if its rows allow it, several request by request.

    The file runs code as it is loaded, and changes how modules are found: the process should have nothing else to do.

    Args:
        deployment: The model; its `signatures` are methods.
        threads: The threads of one operation, and the jobs of estimators that use several.

    Raises:
        LoadFailed: A package is missing, the file cannot be loaded or holds no estimator, it has no such method, or
            the rows that it takes are unknown.
    """
    del device
    estimator = _read(deployment, threads)
    _limit_threads(estimator, threads)
    present = [name for name in _METHODS if callable(getattr(estimator, name, None))]
    if not present:
        raise LoadFailed(
            f"{deployment.path} holds {_type_name(estimator)}, which has none of the methods {', '.join(_METHODS)}: "
            "serve it by a score.py whose init() loads it"
        )
    named = deployment.signatures or [name for name in present if name in _DEFAULT_METHODS] or present[:1]
    wanted = named if named[0] in _METHODS else [present[0], *named]
    names = choose_signatures(deployment.path, present, wanted)
    rows = _find_input(estimator, names[0], deployment)
    methods = _make_methods(estimator, names, deployment, rows)
    runtime = _serve_one(methods[0], deployment) if len(methods) == 1 else _serve_several(methods, deployment)
    # If a request names no method, Azure's server calls `predict_proba` of a model that has it.
    served = [method.name for method in methods]
    azure_method = "predict_proba" if "predict_proba" in served and not deployment.signatures else served[0]
    runtime.signature = dataclasses.replace(runtime.signature, method=azure_method)
    return runtime


def _serve_one(method: _Method, deployment: Deployment) -> Runtime:
    runtime = wrap_model(
        deployment,
        method.run,
        method.tensors,
        lambda rows: RowsRuntime(method.run, rows),
        examples=method.examples,
    )
    name_signature(runtime, method.name, method.tensors)
    return runtime


def _serve_several(methods: Sequence[_Method], deployment: Deployment) -> Runtime:
    signatures, runtimes = [], {}
    for method in methods:
        runtime = pack_signature(
            f"method {method.name}",
            deployment,
            method.run,
            method.tensors,
            is_default=method is methods[0],
            examples=method.examples,
        )
        assert runtime.signature.tensors is not None, "packed rows have them"
        runtimes[method.name] = runtime
        signatures.append(NamedSignature(method.name, runtime.signature.tensors))
    return SignaturesRuntime(signatures, runtimes)


def _make_methods(
    estimator: Any, names: Sequence[str], deployment: Deployment, rows: EstimatorInput
) -> list[_Method]:
    """Make the methods to serve. A failure leaves out a further method, unless the operator chose the methods."""
    methods = []
    for name in names:
        try:
            methods.append(_make_method(estimator, name, deployment, rows))
        except LoadFailed as error:
            if not methods or deployment.signatures:
                raise
            logger.warning("%s is served without %s: %s", deployment.name, name, error)
    return methods


def _make_method(estimator: Any, name: str, deployment: Deployment, rows: EstimatorInput) -> _Method:
    try:
        return _Method(estimator, name, deployment, rows)
    except LoadFailed:
        raise
    except Exception as error:
        raise LoadFailed(
            f"{name} of {deployment.path} does not take {rows}, as its other methods do ({type(error).__name__}: "
            f"{in_one_line(error)}); choose the methods that are served with the setting signature (--signature)"
        ) from error


class _Method:
    """A method of an estimator as a function of named tensors.

    Attributes:
        name: The name of the method and of its output.
        tensors: Its inputs and outputs: rows of numbers as float64, texts, or the columns of a table.
        examples: Rows that it answers, if the estimator shows the values with which it was fitted.
    """

    def __init__(self, estimator: Any, name: str, deployment: Deployment, rows: EstimatorInput) -> None:
        """Learn the output from batches of several sizes.

        Raises:
            LoadFailed: The method returns no array with an entry for each row.
            Exception: Any error of the estimator.
        """
        self.name = name
        self._call = getattr(estimator, name)
        self._rows = rows
        examples = rows.examples()
        results = {count: self._result(_repeat(examples, count)) for count in PROBE_ROWS}
        self._by_output = _is_by_output(results)
        self._dtype = _dtype_of_objects([*results.values()])
        output = self._learn_output(results, deployment.path)
        if name in _SCORE_METHODS:
            output = dataclasses.replace(output, labels=_labels(estimator, output.shape))
        self.tensors = ModelTensors(rows.inputs, (output,), batched=True, estimator=True, table=rows.table)
        self.examples = examples if rows.has_known_values else None

    def _learn_output(self, results: Mapping[int, Any], path: Path) -> TensorInfo:
        try:
            arrays = {rows: self._array(result) for rows, result in results.items()}
        except (ValueError, TypeError) as error:
            raise LoadFailed(
                f"{self.name} of {path} gives no array with one entry a row ({in_one_line(error)}): serve it by a "
                "score.py that makes one of it"
            ) from error
        kinds = {(array.dtype, array.shape[1:]) for array in arrays.values()}
        dtype, row_shape = next(iter(kinds))
        has_rows = all(array.shape[:1] == (rows,) for rows, array in arrays.items())
        if not has_rows or len(kinds) > 1 or not (dtype.name in NUMERIC_DTYPES or dtype.kind == "O"):
            shown = ", ".join(
                f"{array.dtype}{list(array.shape)} for {format_count(rows, 'row')}"
                for rows, array in sorted(arrays.items())
            )
            raise LoadFailed(
                f"{self.name} of {path} gives {shown}: serve it by a score.py that makes an array with one entry a "
                "row of it"
            )
        return TensorInfo(self.name, "string" if dtype.kind == "O" else dtype.name, (-1, *row_shape))

    def run(self, feeds: Feeds) -> dict[str, np.ndarray]:
        """Run one batch.

        Raises:
            InvalidInput: The estimator does not take these values, such as NaN.
            ValueError: The method does not return an entry for each row.
        """
        rows = len(next(iter(feeds.values())))
        array = self._array(self._result(feeds))
        if array.shape[:1] != (rows,):
            raise ValueError(f"{self.name} gives {list(array.shape)} for {rows} rows")
        return {self.name: array}

    def _array(self, result: Any) -> np.ndarray:
        if self._by_output:
            arrays = [_array(one, None) for one in result]
            if len({array.shape for array in arrays}) > 1:
                widths = ", ".join("×".join(map(str, array.shape[1:])) or "1" for array in arrays)
                raise ValueError(f"its outputs differ in their widths: {widths}")
            return np.stack(arrays, axis=1)
        return _array(result, self._dtype)

    def _result(self, feeds: Feeds) -> Any:
        argument = self._rows.value(feeds)
        try:
            # Rows may hold numbers that overflow: the answer shows it, and a warning would be an error in tests.
            with np.errstate(all="ignore"):
                return self._call(argument)
        except ValueError as error:
            # scikit-learn's checks of inputs, and its encoders, begin their messages so.
            if str(error).startswith(("Input ", "Found unknown categories")):
                raise InvalidInput.refused_by_model(str(error).partition("\n")[0]) from error
            raise


def _repeat(examples: Feeds, rows: int) -> dict[str, np.ndarray]:
    return {name: np.resize(array, (rows, *array.shape[1:])) for name, array in examples.items()}


def _is_by_output(results: Mapping[int, Any]) -> bool:
    """Whether results are lists with an array for each output, as `predict_proba` returns for several outputs."""
    if all(len(result) == rows for rows, result in results.items() if isinstance(result, list)):
        return False
    return all(
        isinstance(result, list) and all(getattr(one, "shape", ())[:1] == (rows,) for one in result)
        for rows, result in results.items()
    )


def _labels(estimator: Any, shape: tuple[int, ...]) -> tuple[str, ...]:
    """Return the class of each column of scores; none for several outputs, each with classes of its own."""
    classes = getattr(estimator, "classes_", None)
    if classes is None or isinstance(classes, list) or shape != (-1, len(classes)):
        return ()
    return tuple(map(str, np.asarray(classes).tolist()))


def _dtype_of_objects(results: Sequence[Any]) -> np.dtype | None:
    """Return the dtype of numbers in arrays of objects; None for other arrays."""
    arrays = [one for one in results if isinstance(one, np.ndarray) and one.dtype == object]
    values = [value for array in arrays for value in array.reshape(-1).tolist()]
    if not values or not all(isinstance(value, bool | int | float) for value in values):
        return None
    dtype = np.array(values).dtype
    return dtype if dtype.name in NUMERIC_DTYPES else None


def _find_input(estimator: Any, name: str, deployment: Deployment) -> EstimatorInput:
    """Find the rows that a method takes; the other methods take the same.

    Raises:
        LoadFailed: The method takes none of the known kinds of rows.
    """
    first: tuple[EstimatorInput, Exception] | None = None
    for rows in possible_inputs(estimator, deployment.path, deployment.sample_file):
        try:
            _Method(estimator, name, deployment, rows)
        except LoadFailed:
            raise
        except Exception as error:  # noqa: BLE001  # an estimator may raise any error for rows of another kind
            first = first or (rows, error)
        else:
            if isinstance(rows, Table):
                logger.info("%s takes %s", deployment.name, rows)
            return rows
    assert first is not None, "there is at least one kind of rows"
    plausible, refusal = first
    raise LoadFailed(
        f"{name} of {deployment.path} does not take {plausible} ({type(refusal).__name__}: {in_one_line(refusal)}); "
        "give it a sample input with a row that it takes (sample_input.json beside it, or --sample-input), or serve "
        "it by a score.py"
    ) from refusal


def _array(result: Any, dtype: np.dtype | None) -> np.ndarray:
    """Return a method's result as an array of numbers, or of texts as `bytes`.

    Args:
        dtype: The dtype of numbers that are objects of Python; None if there are none.

    Raises:
        ValueError: The dtype does not hold these numbers.
        TypeError: An object is no text.
    """
    array = np.asarray(result.toarray() if hasattr(result, "toarray") else result)
    if dtype is not None and array.dtype.kind == "O":
        numbers = np.array(array.tolist())
        if not np.can_cast(numbers.dtype, dtype):
            raise ValueError(f"it gives {numbers.dtype}, and gave {dtype} when it was loaded")
        return numbers.astype(dtype)
    if array.dtype.kind not in "OUS":
        return array
    texts = np.empty(array.size, object)
    texts[:] = [
        value if isinstance(value, bytes) else _text(value).encode() for value in array.reshape(-1).tolist()
    ]
    return texts.reshape(array.shape)


def _text(value: Any) -> str:
    if isinstance(value, str) or value is None or (isinstance(value, float) and value != value):
        return str(value)
    raise TypeError(f"a value of the type {type(value).__name__} is among them, which is no text")


def _read(deployment: Deployment, threads: int) -> Any:
    """Load the file.

    Raises:
        LoadFailed: It cannot be loaded, or scikit-learn is not installed.
    """
    path = deployment.path
    if (library := library_of_booster(path)) is not None:
        return read_booster(path, library, threads)
    if importlib.util.find_spec("sklearn") is None:
        raise LoadFailed(
            f"{path} is a model of scikit-learn, which is not installed; {how_to_install('sklearn')}"
        )
    import joblib

    logger.info("loading %s runs %s", deployment.name, deployment.code_of_load)
    provide_former_names(logger.info)
    # Modules beside the file define the classes of its objects.
    sys.path.extend(folder for folder in [str(path.parent)] if folder not in sys.path)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            estimator = joblib.load(path)
    except Exception as error:
        raise LoadFailed(_explain_failure(path, error)) from error
    _log_warnings(path, caught)
    return wrap_booster(estimator, threads)


def _explain_failure(path: Path, error: Exception) -> str:
    """Return a sentence that says why a pickle cannot be loaded, and what to do."""
    if isinstance(error, _DAMAGED):
        return (
            f"{path} cannot be loaded: it is damaged, cut short, or no pickle ({in_one_line(error)}); copy it anew "
            "from where it was saved"
        )
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").partition(".")[0]
        reason = f"it needs the package {missing}, which is not installed"
    else:
        reason = f"its code fails with {type(error).__name__}: {in_one_line(error)}"
    advice = load_advice(error).strip()
    return f"{path} cannot be loaded: {reason}{advice and f'. {advice}'}"


def _log_warnings(path: Path, caught: Sequence[warnings.WarningMessage]) -> None:
    """Log the warnings of a load; report another version of scikit-learn once."""
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


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
