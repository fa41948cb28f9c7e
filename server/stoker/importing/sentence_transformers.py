"""Folders of sentence-transformers: one ONNX graph of the encoder, its pooling and its normalisation.

`modules.json` lists the steps of a model: the encoder, whose ONNX file is in the folder too, how the vectors of the
tokens become one, and what becomes of that: a layer of weights, and scaling to length 1.

Nodes are chosen whose form is the same in all versions of ONNX.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.errors import RepositoryError
from stoker.models.frameworks import detect
from stoker.models.tokenizers import FILES, read_model_json
from stoker.settings.files import read_json
from stoker.system.extras import how_to_install, is_installed

MODULES: Final = "modules.json"
_MODES: Final = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
"""The ways of pooling, in the order in which their vectors are joined."""
_FLOAT, _BOOL = 1, 9
"""The numbers of these types in ONNX."""
_ACTIVATIONS: Final = ("Identity", "Tanh", "Relu", "Sigmoid")
"""The activations whose names are the same in ONNX."""
_AXES: Final = 3
_AXES_ARE_INPUTS: Final = 18
_MOST_ONNX_BYTES: Final = 1 << 30


def pooled_model(folder: Path, target: Path) -> Path:
    """Write the model of a folder of sentence-transformers, with its tokenizer, as a folder to serve.

    Raises:
        RepositoryError: The folder has no ONNX file, or a step that is not known.
    """
    if not (is_installed("onnx") and is_installed("safetensors")):
        missing = (
            f"pooling is added by onnx and safetensors, which are not installed; {how_to_install('import')}"
        )
        raise RepositoryError(missing)
    import onnx

    encoder = detect(folder, "onnx").path
    modes, steps = _read_modules(folder)
    model = onnx.load(encoder)
    graph = _Graph(model)
    vector = graph.pool(modes)
    for kind, path in steps:
        vector = graph.normalize(vector) if kind == "Normalize" else graph.project(vector, path)
    graph.give(vector)
    onnx.checker.check_model(model)
    target.mkdir()
    beside = "model.onnx.data" if model.ByteSize() > _MOST_ONNX_BYTES else None
    onnx.save(model, target / "model.onnx", save_as_external_data=beside is not None, location=beside)
    for name in FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    return target


def _read_modules(folder: Path) -> tuple[Sequence[str], Sequence[tuple[str, Path]]]:
    """Return the ways of pooling, and the kind and folder of each further step."""
    listed = read_model_json(folder / MODULES, list)
    # A path may name no folder outside of this one.
    steps = [
        (str(step.get("type", "")).rpartition(".")[2], folder / Path(str(step.get("path", ""))).name)
        for step in listed
        if isinstance(step, dict)
    ]
    kinds = [kind for kind, _ in steps]
    if kinds[:2] != ["Transformer", "Pooling"] or not {"Dense", "Normalize"}.issuperset(kinds[2:]):
        raise RepositoryError(
            f"{folder / MODULES} has the steps {', '.join(kinds)}; known are Transformer, Pooling, and perhaps Dense "
            "and Normalize"
        )
    config = read_json(steps[1][1] / "config.json")
    given = config.get("pooling_mode") or [
        mode
        for mode in _MODES
        if any(config.get(f"pooling_mode_{mode}{end}") for end in ("", "_token", "_tokens"))
    ]
    modes = [given] if isinstance(given, str) else list(given) or ["mean"]
    if unknown := [mode for mode in modes if mode not in _MODES]:
        raise RepositoryError(f"{folder} pools by {unknown[0]}; known are {', '.join(_MODES)}")
    if (read_model_json(folder / "sentence_bert_config.json") or {}).get("do_lower_case"):
        raise RepositoryError(f"{folder} has do_lower_case; let the tokenizer do that, and set it to false")
    return modes, steps[2:]


class _Graph:
    """A graph to which nodes are added."""

    def __init__(self, model: Any) -> None:
        self._graph = model.graph
        self._opset = next(one.version for one in model.opset_import if one.domain in ("", "ai.onnx"))
        self._count = 0

    def pool(self, modes: Sequence[str]) -> str:
        """Add the pooled vector of each text, joined of several ways if there are."""
        names = [one.name for one in self._graph.input]
        outputs = {one.name: one for one in self._graph.output}
        hidden = outputs.get("last_hidden_state") or outputs.get("token_embeddings") or self._graph.output[0]
        if "attention_mask" not in names or len(hidden.type.tensor_type.shape.dim) != _AXES:
            raise RepositoryError(
                f"the encoder takes {', '.join(names)}, and gives {', '.join(outputs)}; pooling needs an "
                "attention_mask, and a vector for each token"
            )
        self._tokens = self._add("Cast", hidden.name, to=_FLOAT)
        self._mask = self._add("Cast", "attention_mask", to=_FLOAT)
        vectors = [self._pooled(mode) for mode in modes]
        return vectors[0] if len(vectors) == 1 else self._add("Concat", *vectors, axis=-1)

    def project(self, vector: str, folder: Path) -> str:
        """Add a `Dense` step."""
        from safetensors.numpy import load_file

        activation = str(read_json(folder / "config.json").get("activation_function", "")).rpartition(".")[2]
        weights = folder / "model.safetensors"
        if activation not in _ACTIVATIONS or not weights.is_file():
            raise RepositoryError(
                f"{folder} has the activation {activation}; known are {', '.join(_ACTIVATIONS)}, with weights in "
                f"{weights.name}"
            )
        try:
            tensors = load_file(weights)
        except Exception as error:
            raise RepositoryError(f"{weights} cannot be read: {error!r}") from error
        vector = self._add("MatMul", vector, self._constant(tensors["linear.weight"].T, np.float32))
        if "linear.bias" in tensors:
            vector = self._add("Add", vector, self._constant(tensors["linear.bias"], np.float32))
        return self._add(activation, vector)

    def normalize(self, vector: str) -> str:
        """Add the vector at length 1."""
        length = self._add("Sqrt", self._product(self._across(vector), self._along(vector)))
        return self._add("Div", vector, self._add("Max", length, self._constant(1e-12, np.float32)))

    def give(self, vector: str) -> None:
        """Make a vector the only output."""
        from onnx import helper

        self._add("Identity", vector, output="sentence_embedding")
        del self._graph.output[:]
        output = helper.make_tensor_value_info("sentence_embedding", _FLOAT, ["rows", None])
        self._graph.output.append(output)

    def _pooled(self, mode: str) -> str:
        if mode == "cls":
            return self._add("Gather", self._tokens, self._constant(0), axis=1)
        if mode == "max":
            return self._greatest()
        weights = self._mask
        if mode in ("weightedmean", "lasttoken"):
            places = self._add("CumSum", self._mask, self._constant(1))
            if mode == "lasttoken":
                count = self._product(self._across(self._mask), self._along(self._mask))
                places = self._add("Cast", self._add("Equal", places, count), to=_FLOAT)
            weights = self._add("Mul", self._mask, places)
        total = self._product(self._across(weights), self._tokens)
        divisor = self._product(self._across(weights), self._along(self._mask))
        divisor = self._add("Max", divisor, self._constant(1e-9, np.float32))
        if mode == "mean_sqrt_len_tokens":
            divisor = self._add("Sqrt", divisor)
        return self._add("Div", total, divisor)

    def _greatest(self) -> str:
        """The greatest number of all tokens, `[rows, size]`."""
        seen = self._add("Cast", self._along(self._mask), to=_BOOL)
        given = self._add("Where", seen, self._tokens, self._constant(-np.inf, np.float32))
        if self._opset >= _AXES_ARE_INPUTS:
            return self._add("ReduceMax", given, self._constant([1]), keepdims=0)
        return self._add("ReduceMax", given, axes=[1], keepdims=0)

    def _product(self, one: str, other: str) -> str:
        """The product of `[rows, 1, n]` and `[rows, n, m]` as `[rows, m]`."""
        return self._add("Gather", self._add("MatMul", one, other), self._constant(0), axis=1)

    def _across(self, name: str) -> str:
        return self._add("Reshape", name, self._constant([0, 1, -1]))

    def _along(self, name: str) -> str:
        return self._add("Reshape", name, self._constant([0, -1, 1]))

    def _constant(self, value: Any, dtype: type = np.int64) -> str:
        from onnx import numpy_helper

        self._count += 1
        name = f"stoker_pooling_{self._count}"
        self._graph.initializer.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def _add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        self._count += 1
        output = output or f"stoker_pooling_{self._count}"
        self._graph.node.append(helper.make_node(operator, inputs, [output], **attributes))
        return output
