"""SavedModels by TensorFlow."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.deployment import Deployment, Device
from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.difference import largest_difference
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.tensorflow.analysis import analyse_function
from stoker.isolation.tensorflow.effects import PYTHON, find_state, read_effects
from stoker.runtimes.base import OutOfMemory, Runtime
from stoker.runtimes.execution_choice import feasible_sizes, sample_rows
from stoker.runtimes.packed import PackedRuntime, SignaturesRuntime, chosen_signatures
from stoker.runtimes.wrapping import wrap_model
from stoker.settings.choices import Acceleration
from stoker.system.extras import how_to_install
from stoker.system.native_chatter import without_native_chatter
from stoker.tensors import NUMERIC_DTYPES, Method, ModelTensors, NamedSignature, Signature, TensorInfo

# A SavedModel's signatures as functions of named tensors, whichever TensorFlow has written it.


_SERVE: Final = "serve"
_PLAIN: Final = "_generic_user_object"
"""TensorFlow's name for an object of an unknown class."""
_METHODS: Final[Mapping[str, Method]] = {
    "tensorflow/serving/classify": "classify",
    "tensorflow/serving/regress": "regress",
}
"""The methods of signatures that do not predict."""
_EXPECTED: Final = (
    "Detecting that an object or model or tf.train.Checkpoint is being deleted with unrestored values",
    "Value in checkpoint could not be found in the restored object",
    "Unable to create a python object for variable",
)
_AS_DENSE: Final = {
    "RaggedTensor": "its to_tensor(shape=...)",
    "SparseTensor": "tf.sparse.to_dense of it",
    "IndexedSlices": "tf.convert_to_tensor of it",
}
"""The replacement for each kind of output that is no dense tensor."""


class SavedModel:
    """A SavedModel.

    Attributes:
        tf: TensorFlow.
        path: Its folder.
        signatures: The names of its signatures, in order.
        effects: What they do besides computing.
    """

    def __init__(self, tf: Any, path: Path) -> None:
        self.tf = tf
        self.path = path
        logging.getLogger("tensorflow").addFilter(_is_unexpected)
        try:
            content = _read_file(path)
            graph, tags = _served_graph(path, content)
            self.effects = read_effects(content.SerializeToString())
            if outside := self.effects.outside():
                logger.warning("%s reaches out of the server: %s", path, "; ".join(outside))
            _refuse_python(path, "the initialisation", self.effects.loading)
            self._model = _load(tf, path, content, tags)
        except LoadFailed:
            raise
        except Exception as error:
            raise LoadFailed(f"TensorFlow cannot load {path}: {error}") from error
        # What initialises it, and what trains it, are among those of TensorFlow 1.
        self.signatures = sorted(
            name for name in self._model.signatures if not name.startswith("__saved_model_")
        )
        self._methods = {
            name: _METHODS[each.method_name]
            for name, each in graph.signature_def.items()
            if each.method_name in _METHODS
        }

    def function(self, name: str) -> Any:
        """Return the function of a signature, which has only weak references to the variables of this object."""
        return self._model.signatures[name]

    def method(self, name: str) -> Method:
        """Return the method of a signature."""
        return self._methods.get(name, "predict")


def _is_unexpected(record: logging.LogRecord) -> bool:
    """Whether a log record of TensorFlow is not about what is left out on purpose, or concerns training alone."""
    return not str(record.msg).startswith(_EXPECTED)


def _read_file(path: Path) -> Any:
    """Read the file of a SavedModel, binary or text, as TensorFlow's message of that name."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    if file.is_file():
        return saved_model_pb2.SavedModel.FromString(file.read_bytes())
    return text_format.Parse((path / "saved_model.pbtxt").read_text("utf-8"), saved_model_pb2.SavedModel())


def _refuse_python(path: Path, what: str, kinds: Collection[str]) -> None:
    called = sorted(PYTHON & set(kinds))
    if called:
        raise LoadFailed(
            f"{what} of {path} calls Python of the program that wrote it ({', '.join(called)}), which no SavedModel "
            "contains: export it without tf.py_function and tf.numpy_function, or serve it by a score.py"
        )


def _served_graph(path: Path, content: Any) -> tuple[Any, list[str] | None]:
    """The graph that TensorFlow Serving would serve, a MetaGraphDef, and its tags where there are several graphs."""
    graphs = content.meta_graphs
    if len(graphs) == 1:
        return graphs[0], None
    tags = [sorted(graph.meta_info_def.tags) for graph in graphs]
    if [_SERVE] not in tags:
        raise LoadFailed(
            f"{path} has {len(graphs)} graphs, and none with the one tag {_SERVE!r}: they have {tags}; export one "
            "with it"
        )
    return graphs[tags.index([_SERVE])], [_SERVE]


def _load(tf: Any, path: Path, content: Any, tags: list[str] | None) -> Any:
    """Load it, but no optimizer of Keras 2, with a copy or two of all weights.

    TensorFlow makes the variables of one by its methods, which only Keras 2 has. What leads to it is taken out of the
    graph of objects, so that they are variables as others are, without values, which nothing uses.
    """
    objects = content.meta_graphs[0].object_graph_def
    optimizers = {number for number, node in enumerate(objects.nodes) if node.slot_variables}
    if tags or not optimizers:
        return tf.saved_model.load(str(path), tags)
    for number in optimizers:
        # It need not import Keras either.
        objects.nodes[number].user_object.identifier = _PLAIN
    for node in objects.nodes:
        kept = [child for child in node.children if child.node_id not in optimizers]
        del node.children[:], node.slot_variables[:]
        node.children.extend(kept)
    # What tf.saved_model.load makes of the file itself.
    from tensorflow.python.saved_model.load import Loader

    options = tf.train.CheckpointOptions(), tf.saved_model.LoadOptions()
    return Loader(objects, content, str(path), *options, None).get(0)


class SavedSignature:
    """A SavedModel's signature as a function of named tensors; strings are `bytes`, as in TensorFlow.

    Attributes:
        name: Its name.
        inputs: What it takes, by name in order.
        outputs: What it gives, the same.
        state: Its operators that leave something behind, for later requests or in files.
    """

    def __init__(self, model: SavedModel, name: str) -> None:
        self.name = name
        kinds = model.effects.signatures.get(name, frozenset())
        _refuse_python(model.path, f"the signature {name}", kinds)
        self.state = find_state(kinds)
        self._tf = model.tf
        self._model = model
        self._function = model.function(name)
        _, keywords = self._function.structured_input_signature
        self.inputs = tuple(_info(key, spec, model) for key, spec in sorted(keywords.items()))
        if not self.inputs:
            raise LoadFailed(f"the signature {name} of {model.path} has no inputs")
        outputs = self._function.structured_outputs
        self.outputs = tuple(_info(key, spec, model) for key, spec in sorted(outputs.items()))
        variables = self._function.variables if self.state else ()
        self._first = [(variable, np.array(variable.numpy())) for variable in variables]

    @property
    def tensors(self) -> ModelTensors:
        """Return the declared signature; `batched` if the first axis of all inputs may be a batch."""
        return ModelTensors(self.inputs, self.outputs, all(info.shape[:1] == (-1,) for info in self.inputs))

    def read(self) -> GraphAnalysis:
        """Analyse how the signature's graph treats rows."""
        if self.state:
            return GraphAnalysis("mixed", f"{self.state[0]} changes more than the answer")
        return analyse_function(self._function)

    def restore(self) -> None:
        """Restore the values of the variables that the signature changes."""
        for variable, value in self._first:
            variable.assign(value)

    def compile(self, rows: int) -> Any:
        """The signature for batches of `rows`, to be compiled with XLA by its first call."""
        tensors = {
            info.name: self._tf.TensorSpec((rows, *info.shape[1:]), info.dtype, info.name)
            for info in self.inputs
        }

        def signature(**feeds: Any) -> Any:
            return self._function(**feeds)

        return self._tf.function(signature, jit_compile=True).get_concrete_function(**tensors)

    def run(self, feeds: Mapping[str, np.ndarray], compiled: Any = None) -> dict[str, np.ndarray]:
        """Run one batch, by what `compile` made for its size if that is given.

        Raises:
            InvalidInput: The model cannot take these tensors, by their sizes or contents.
            OutOfMemory: The device has no memory for them.
        """
        function = self._function if compiled is None else compiled
        try:
            # tf.constant copies: the gathered batch is overwritten by the next one.
            tensors = {name: self._tf.constant(array) for name, array in feeds.items()}
            results = function(**tensors)
            return {info.name: _array(results[info.name].numpy()) for info in self.outputs}
        except (self._tf.errors.InvalidArgumentError, self._tf.errors.OutOfRangeError) as error:
            # The last line, before the nodes: those above say where in the exporter's code it was.
            reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
            raise InvalidInput.refused_by_model(reason) from error
        except self._tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(error.message) from error
        except UnicodeDecodeError as error:
            # Its error quotes the bytes that it was given, and they are no text: no error of it can be made then.
            raise InvalidInput.refused_by_model("it cannot read their bytes") from error


def _array(value: Any) -> np.ndarray:
    """Return a value of TensorFlow as an array: a scalar is a number of numpy, or `bytes`."""
    return np.asarray(value, object if isinstance(value, bytes) else None)


def _info(name: str, spec: Any, model: SavedModel) -> TensorInfo:
    path = model.path
    if not isinstance(spec, (model.tf.TensorSpec, model.tf.Tensor)):
        kind = getattr(spec, "value_type", type(spec)).__name__
        raise LoadFailed(
            f"{name!r} of {path} is no dense tensor ({kind}), only these are served: export a signature that has "
            f"{_AS_DENSE.get(kind, 'its parts as tensors')} in its place, or serve the model by a score.py"
        )
    dtype = spec.dtype.name
    if dtype not in NUMERIC_DTYPES and dtype != "string":
        raise LoadFailed(f"{name!r} of {path} holds {dtype}, only numbers and strings are served")
    if spec.shape.rank is None:
        return TensorInfo(name, dtype, (), any_rank=True)
    return TensorInfo(name, dtype, tuple(-1 if size is None else size for size in spec.shape.as_list()))


logger = logging.getLogger(__name__)

_XLA_TOLERANCE = 1e-2


def import_tensorflow(device: Device, threads: int, acceleration: Acceleration | None = None) -> Any:
    """Import TensorFlow, quietly, and confine it to `device`.

    Args:
        device: The CPU, or the GPUs that the process sees, of which only a script has several.
        threads: Threads that one operation may use on the CPU.
        acceleration: How it uses the GPU; None leaves all to the script but that its memory grows as it needs it.

    Raises:
        LoadFailed: TensorFlow is not installed, or does not find the GPU.
    """
    # On a CPU, TensorFlow logs the missing GPU as an error.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3" if device.kind == "cpu" else "2")
    if device.kind == "cpu":
        # Else it looks for CUDA libraries and complains of each that is missing.
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    try:
        with without_native_chatter():
            import tensorflow as tf
    except ImportError as error:
        raise LoadFailed(
            f"a SavedModel needs TensorFlow ({error}); {how_to_install('tensorflow')}"
        ) from error
    gpus = tf.config.list_physical_devices("GPU")
    if device.kind == "cpu":
        tf.config.set_visible_devices([], "GPU")
    elif len(gpus) < len(device.gpus):
        raise LoadFailed(f"TensorFlow does not find {device}; see TensorFlow's log above")
    else:
        own = gpus[: len(device.gpus)]
        tf.config.set_visible_devices(own, "GPU")
        for gpu in own:
            _set_up_gpu(tf, gpu, acceleration)
    # Both can be set once only, before the first operation; a second model in the process keeps them.
    if tf.config.threading.get_intra_op_parallelism_threads() == 0:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def _set_up_gpu(tf: Any, gpu: Any, acceleration: Acceleration | None) -> None:
    """Set memory and precision, which are the process's: a model with settings of its own is alone in it."""
    if acceleration is None or acceleration.memory_mb is None:
        tf.config.experimental.set_memory_growth(gpu, True)
    else:
        # Excludes memory growth: the whole of it is taken with the first operation.
        limit = tf.config.LogicalDeviceConfiguration(memory_limit=acceleration.memory_mb)
        tf.config.set_logical_device_configuration(gpu, [limit])
    if acceleration is not None:
        tf.config.experimental.enable_tensor_float_32_execution(acceleration.precision != "fp32")
    if acceleration is not None and acceleration.precision == "fp16":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision": True})


def load_saved_model(deployment: Deployment, device: Device, threads: int) -> Runtime:
    """Load the signatures of a SavedModel that are to be served.

    A single one is served row by row or request by request; several are served request by request.

    Raises:
        LoadFailed: The folder cannot be loaded, it is not clear which signature is meant, or one holds tensors of
            types that are not served; or XLA cannot compile it.
    """
    computed_in = deployment.acceleration.precision if device.kind == "cuda" else None
    model = SavedModel(import_tensorflow(device, threads, deployment.acceleration), deployment.path)
    names = chosen_signatures(deployment.path, model.signatures, deployment.signatures)
    if len(names) == 1:
        return _single(model, names[0], deployment, computed_in)
    signatures, runtimes = [], {}
    for name in names:
        try:
            signature = SavedSignature(model, name)
        except LoadFailed as error:
            if name in deployment.signatures or name == names[0]:
                raise
            logger.info("%s: the signature %s is left out: %s", deployment.name, name, error)
            continue
        runtimes[name] = _packed(signature, deployment, computed_in, is_default=name == names[0])
        tensors = runtimes[name].signature.tensors
        assert tensors is not None, "packed rows have them"
        signatures.append(NamedSignature(name, tensors, model.method(name)))
    _check_padded(deployment, signatures)
    if deployment.acceleration.xla:
        logger.warning("%s: xla does nothing for a model that serves several signatures", deployment.name)
    return SignaturesRuntime(signatures, runtimes)


def _single(model: SavedModel, name: str, deployment: Deployment, computed_in: str | None) -> Runtime:
    signature = SavedSignature(model, name)

    def rows_runtime(rows: Signature) -> Runtime:
        runtime = TensorFlowRuntime(signature, rows)
        if deployment.acceleration.xla:
            runtime.compile(deployment.name, deployment.batch_buckets or ())
        return runtime

    runtime = wrap_model(
        deployment, signature.run, signature.tensors, rows_runtime, signature.read, computed_in=computed_in
    )
    _after_trials(runtime, signature)
    tensors = runtime.signature.model_tensors
    assert tensors is not None, "only scripts have none"
    named = NamedSignature(name, tensors, model.method(name))
    runtime.signature = dataclasses.replace(runtime.signature, signatures=(named,))
    return runtime


def _packed(
    signature: SavedSignature, deployment: Deployment, computed_in: str | None, *, is_default: bool
) -> PackedRuntime:
    """One of several signatures: its requests are packed, even if they could be rows of numbers."""
    names = {info.name for info in signature.inputs}
    own = dataclasses.replace(
        deployment,
        name=f"{deployment.name}, signature {signature.name}",
        pad={name: value for name, value in deployment.pad.items() if name in names},
    )

    def pack_rows(rows: Signature) -> Runtime:
        assert rows.model_tensors is not None, "rows of numbers have them"
        return PackedRuntime(signature.run, rows.model_tensors, own, rows.isolation)

    # What the model is known to answer is a request to its default.
    runtime = wrap_model(
        own,
        signature.run,
        signature.tensors,
        pack_rows,
        signature.read,
        sampled=is_default,
        computed_in=computed_in,
    )
    assert isinstance(runtime, PackedRuntime), "made here, or for what is packed anyway"
    _after_trials(runtime, signature)
    return runtime


def _after_trials(runtime: Runtime, signature: SavedSignature) -> None:
    """Restore the variables that the tests of rows have changed, and mark the model as stateful."""
    isolation = runtime.signature.isolation
    if signature.state and isolation is not None:
        signature.restore()
        isolation = dataclasses.replace(isolation, keeps_state=True)
        runtime.signature = dataclasses.replace(runtime.signature, isolation=isolation)


def _check_padded(deployment: Deployment, signatures: Sequence[NamedSignature]) -> None:
    known = {info.name for signature in signatures for info in signature.tensors.inputs}
    for name in deployment.pad:
        if name not in known:
            raise LoadFailed(
                f"{deployment.name} cannot pad {name!r}: no signature that is served has this input"
            )


class TensorFlowRuntime:
    """A signature whose inputs are batches of rows of a fixed shape; several threads may run it."""

    def __init__(
        self, model: SavedSignature, signature: Signature, compiled: Mapping[int, Any] | None = None
    ) -> None:
        self.signature = signature
        self._model = model
        self._compiled = compiled or {}
        self._input_names = [spec.name for spec in signature.inputs]
        self._output_names = [spec.name for spec in signature.outputs]

    def compile(self, name: str, sizes: Sequence[int]) -> None:
        """Compile the signature with XLA for batches of these sizes; others run as they did.

        Raises:
            LoadFailed: XLA cannot compile it, or what it makes of it gives something else.
        """
        if not sizes:
            logger.warning("%s: xla does nothing without batch_buckets, for it compiles fixed sizes", name)
            return
        begun = time.perf_counter()
        compiled = {}
        for rows in feasible_sizes(name, self, sizes):
            inputs = sample_rows(self.signature.inputs, rows, 1)
            expected = self.run(inputs)
            try:
                compiled[rows] = self._model.compile(rows)
                given = self._run(inputs, compiled[rows])
            except Exception as error:
                raise LoadFailed(f"{name}: XLA cannot compile it for {rows} rows: {error}") from error
            difference = largest_difference(given, expected)
            if difference > _XLA_TOLERANCE:
                raise LoadFailed(
                    f"{name}: compiled with XLA its outputs differ by {difference:.2g} of the largest one; "
                    "leave xla out"
                )
        self._compiled = compiled
        told = ", ".join(map(str, compiled))
        took_s = time.perf_counter() - begun
        logger.info("%s: compiled with XLA for batches of %s rows in %.1f s", name, told, took_s)

    def run(self, inputs: Sequence[Any]) -> Sequence[np.ndarray]:
        """Run one batch; see `Runtime.run`."""
        return self._run(inputs, self._compiled.get(len(inputs[0])))

    def restore(self) -> None:
        """See `RestoringRuntime`."""
        self._model.restore()

    def fork(self) -> TensorFlowRuntime:
        """Return another runtime of the same model."""
        return TensorFlowRuntime(self._model, self.signature, self._compiled)

    def _run(self, inputs: Sequence[Any], compiled: Any) -> Sequence[np.ndarray]:
        results = self._model.run(dict(zip(self._input_names, inputs, strict=True)), compiled)
        return [results[name] for name in self._output_names]
