"""A SavedModel and its signatures as functions of named tensors, for files of TensorFlow 1 and 2."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import InvalidInput, LoadFailed
from stoker.isolation.graph_analysis import GraphAnalysis
from stoker.isolation.tensorflow.analysis import analyse_function
from stoker.isolation.tensorflow.effects import PYTHON, find_state, read_effects
from stoker.runtimes.base import OutOfMemory
from stoker.tensors import NUMERIC_DTYPES, Method, ModelTensors, TensorInfo

logger = logging.getLogger(__name__)

_SERVE: Final = "serve"
_UNKNOWN_CLASS: Final = "_generic_user_object"
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
"""The beginnings of TensorFlow's warnings on objects that `_load` leaves out, or that only training needs."""
_DENSE_FORMS: Final = {
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
        effects: The effects of its signatures besides computing.
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
        # The signatures of TensorFlow 1 include its initialisation and its training.
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
    """Whether a log record of TensorFlow is none of `_EXPECTED`."""
    return not str(record.msg).startswith(_EXPECTED)


def _read_file(path: Path) -> Any:
    """Read the file of a SavedModel, binary or text, as TensorFlow's message `SavedModel`."""
    from google.protobuf import text_format
    from tensorflow.core.protobuf import saved_model_pb2

    file = path / "saved_model.pb"
    if file.is_file():
        return saved_model_pb2.SavedModel.FromString(file.read_bytes())
    return text_format.Parse((path / "saved_model.pbtxt").read_text("utf-8"), saved_model_pb2.SavedModel())


def _refuse_python(path: Path, part: str, kinds: Collection[str]) -> None:
    calls = sorted(PYTHON & set(kinds))
    if calls:
        raise LoadFailed(
            f"{part} of {path} calls Python of the program that wrote it ({', '.join(calls)}), which no SavedModel "
            "contains: export it without tf.py_function and tf.numpy_function, or serve it by a score.py"
        )


def _served_graph(path: Path, content: Any) -> tuple[Any, list[str] | None]:
    """Return the MetaGraphDef that TensorFlow Serving would serve, and its tags if there are several graphs."""
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
    """Load the model without optimizers of Keras 2, which hold one or two copies of all weights.

    TensorFlow makes the variables of an optimizer by methods that only Keras 2 has. References to optimizers are
    removed from the graph of objects: their variables load as plain ones, without values, and nothing uses them.
    """
    objects = content.meta_graphs[0].object_graph_def
    optimizers = {number for number, node in enumerate(objects.nodes) if node.slot_variables}
    if tags or not optimizers:
        return tf.saved_model.load(str(path), tags)
    for number in optimizers:
        # Otherwise TensorFlow would import Keras.
        objects.nodes[number].user_object.identifier = _UNKNOWN_CLASS
    for node in objects.nodes:
        kept = [child for child in node.children if child.node_id not in optimizers]
        del node.children[:], node.slot_variables[:]
        node.children.extend(kept)
    # tf.saved_model.load uses this class after reading the file.
    from tensorflow.python.saved_model.load import Loader

    options = tf.train.CheckpointOptions(), tf.saved_model.LoadOptions()
    return Loader(objects, content, str(path), *options, None).get(0)


class SavedSignature:
    """A SavedModel's signature as a function of named tensors; strings are `bytes`, as in TensorFlow.

    Attributes:
        name: Its name.
        inputs: Its inputs, ordered by name.
        outputs: Its outputs, ordered by name.
        state: Its operators that change variables or files.
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
        self._initial = [(variable, np.array(variable.numpy())) for variable in variables]

    @property
    def tensors(self) -> ModelTensors:
        """The declared tensors; `batched` if the first axis of all inputs may be a batch."""
        return ModelTensors(self.inputs, self.outputs, all(info.shape[:1] == (-1,) for info in self.inputs))

    def read(self) -> GraphAnalysis:
        """Analyse how the signature's graph treats rows."""
        if self.state:
            return GraphAnalysis("mixed", f"{self.state[0]} changes more than the answer")
        return analyse_function(self._function)

    def restore(self) -> None:
        """Restore the values of the variables that the signature changes."""
        for variable, value in self._initial:
            variable.assign(value)

    def compile(self, rows: int) -> Any:
        """Return the signature for batches of `rows`, which XLA compiles in the first call."""
        tensors = {
            info.name: self._tf.TensorSpec((rows, *info.shape[1:]), info.dtype, info.name)
            for info in self.inputs
        }

        def signature(**feeds: Any) -> Any:
            return self._function(**feeds)

        return self._tf.function(signature, jit_compile=True).get_concrete_function(**tensors)

    def run(self, feeds: Mapping[str, np.ndarray], compiled: Any = None) -> dict[str, np.ndarray]:
        """Run one batch.

        Args:
            compiled: The result of `compile` for the size of the batch; None runs the signature without XLA.

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
            # The last line before the nodes has the reason; the lines above are places in the exporter's code.
            reason = error.message.partition("\n\t [[")[0].splitlines()[-1]
            raise InvalidInput.refused_by_model(reason) from error
        except self._tf.errors.ResourceExhaustedError as error:
            raise OutOfMemory(error.message) from error
        except UnicodeDecodeError as error:
            # TensorFlow's error quotes its input bytes; if they are no text, Python cannot make the error.
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
            f"{_DENSE_FORMS.get(kind, 'its parts as tensors')} in its place, or serve the model by a score.py"
        )
    dtype = spec.dtype.name
    if dtype not in NUMERIC_DTYPES and dtype != "string":
        raise LoadFailed(f"{name!r} of {path} holds {dtype}, only numbers and strings are served")
    if spec.shape.rank is None:
        return TensorInfo(name, dtype, (), any_rank=True)
    return TensorInfo(name, dtype, tuple(-1 if size is None else size for size in spec.shape.as_list()))
