"""Small models for tests of running servers: ONNX files and entry scripts whose answers are known beforehand.

The scripts do what the data tells them: a first number of `HOLD` waits at a gate that the test opens, `RAISE`
raises, `DIE` ends the device process, `FORK` forks a child that comes back as the second number says. So tests need
no sleeps to catch a server in a certain state.
"""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stoker.wire.protobuf import field

__all__ = [
    "BATCHED_SCRIPT",
    "BODY_SCRIPT",
    "DIE",
    "FORK",
    "HOLD",
    "PICKY_LIMIT",
    "RAISE",
    "Gate",
    "read_idx",
    "saved_model_bytes",
    "write_doubler",
    "write_marked",
    "write_mlp",
    "write_picky",
    "write_pictures",
    "write_running_sum",
    "write_script",
    "write_sequence_controls",
]

HOLD, RAISE, DIE, FORK = 1001, 1002, 1003, 1004
"""First numbers of a row that make an entry script wait at its gate, raise, end its process, or fork it.

The child returns wrong answers, or, for a second number of 1, 2 or 3, exits, raises, or is interrupted.
"""

PICKY_LIMIT = 8
"""The picky model fails at run time for a row whose first number is this or more."""

BODY_SCRIPT = """
import json
import os
import time
from pathlib import Path

def init():
    global folder
    folder = Path(os.environ["AZUREML_MODEL_DIR"])
    print("the body script is initialised")

def run(raw_data):
    request = json.loads(raw_data)
    command = request.get("tell", "")
    if command == "raise":
        raise ValueError("the script was told to raise: a secret of the log")
    if command == "exit":
        raise SystemExit(0)
    if command == "hold":
        folder.joinpath("entered").touch()
        while not folder.joinpath("open").exists():
            time.sleep(0.002)
    if "return" in request:
        return request["return"]
    if command == "nan":
        return [float("nan"), float("inf"), -float("inf")]
    return [sum(row) for row in request["data"]]
"""

BATCHED_SCRIPT = f"""
import os
import sys
import time
from pathlib import Path

import stoker

children = []

def init():
    global folder
    folder = Path(os.environ["AZUREML_MODEL_DIR"])

def come_back(data, how):
    if how == 1:
        sys.exit(0)
    if how == 2:
        raise ValueError("the script was told to raise: a secret of the log")
    if how == 3:
        raise KeyboardInterrupt("the script was told to raise: a secret of the log")
    return data * 0 - 1

@stoker.batched(shape=(4,))
def run(data):
    commands = data[:, 0]
    while children and os.waitpid(children[-1], os.WNOHANG)[0]:
        children.pop()
    if (commands == {FORK}).any():
        # Before: the rows are others' as soon as the parent has returned.
        how = data[commands == {FORK}][0, 1]
        children.append(os.fork())
        if not children[-1]:
            return come_back(data, how)
    if (commands == {RAISE}).any():
        raise ValueError("the script was told to raise: a secret of the log")
    if (commands == {DIE}).any():
        os._exit(7)
    if (commands == {HOLD}).any():
        folder.joinpath("entered").touch()
        while not folder.joinpath("open").exists():
            time.sleep(0.002)
    return data * 3
"""


class Gate:
    """The gate at which a script waits in its model folder."""

    def __init__(self, folder: Path) -> None:
        self._entered, self._open = folder / "entered", folder / "open"

    @property
    def entered(self) -> bool:
        """Whether the script waits, or has waited, since the last `reset`."""
        return self._entered.exists()

    def open(self) -> None:
        """Let the script go on."""
        self._open.touch()

    def reset(self) -> None:
        """Close the gate again and forget who came."""
        self._open.unlink(missing_ok=True)
        self._entered.unlink(missing_ok=True)


def write_script(folder: Path, text: str, name: str = "score.py") -> Path:
    """Write an entry script into a folder of its own, which is its model folder too; returns the script."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / name
    script.write_text(text)
    return script


def write_doubler(path: Path, by: float = 2) -> Path:
    """Write y = 2 x for rows of 4 float32 numbers, or times another number."""
    node = helper.make_node("Mul", ["x", "two"], ["y"])
    return _save(path, [node], {"two": np.array(by, np.float32)}, 4, 4)


def write_marked(path: Path, version: int) -> Path:
    """Write y = 2 x for rows of 4 float32 numbers, with v = `version` beside each row."""
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["y"]),
        helper.make_node("MatMul", ["x", "nothing"], ["zero"]),
        helper.make_node("Add", ["zero", "version"], ["v"]),
    ]
    constants = {
        "two": np.array(2, np.float32),
        "nothing": np.zeros((4, 1), np.float32),
        "version": np.array(version, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "marked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4]),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, ["rows", 1]),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return _save_graph(path, graph)


def write_picky(path: Path) -> Path:
    """Write y = 3 x for rows of 4; ONNX Runtime fails on a row whose first number is `PICKY_LIMIT` or more."""
    nodes = [
        helper.make_node("Gather", ["x", "zero"], ["first"], axis=1),
        helper.make_node("Cast", ["first"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["threes", "index"], ["factor"]),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    constants: dict[str, np.ndarray] = {
        "zero": np.zeros(1, np.int64),
        "threes": np.full(PICKY_LIMIT, 3, np.float32),
    }
    return _save(path, nodes, constants, 4, 4)


def write_mlp(path: Path, seed: int = 7) -> Path:
    """Write a 784-300-100-10 perceptron with ReLU and random weights; its output are the logits."""
    random = np.random.default_rng(seed)
    sizes = (784, 300, 100, 10)
    nodes, constants, flowing = [], {}, "x"
    for layer, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
        last = layer == len(sizes) - 2
        constants[f"w{layer}"] = (random.standard_normal((wide, narrow)) / np.sqrt(wide)).astype(np.float32)
        constants[f"b{layer}"] = (random.standard_normal(narrow) / 10).astype(np.float32)
        sums = "y" if last else f"sums{layer}"
        nodes.append(helper.make_node("Gemm", [flowing, f"w{layer}", f"b{layer}"], [sums]))
        if not last:
            flowing = f"hidden{layer}"
            nodes.append(helper.make_node("Relu", [sums], [flowing]))
    return _save(path, nodes, constants, sizes[0], sizes[-1])


def write_pictures(path: Path, seed: int = 7) -> Path:
    """Write a classifier of float32[rows, 3, 8, 8] pictures into 3 classes, with random weights."""
    random = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "pictures",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(random.standard_normal((192, 3)).astype(np.float32) / 8, "weights")],
    )
    return _save_graph(path, graph)


def write_running_sum(path: Path) -> Path:
    """Write a model with state: `y` float32[rows, 2] is `times` times the sum of all `x` of a sequence so far.

    The sum is its state, `sum` and `next_sum`, with the batch in the second of three axes; `times` is a scalar of
    integers, as exports have them.
    """
    nodes = [
        helper.make_node("Squeeze", ["sum", "first"], ["before"]),
        helper.make_node("Add", ["before", "x"], ["now"]),
        helper.make_node("Unsqueeze", ["now", "first"], ["next_sum"]),
        helper.make_node("Cast", ["times"], ["factor"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["now", "factor"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "running_sum",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "width"]),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, "rows", 2]),
            helper.make_tensor_value_info("times", TensorProto.INT64, []),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2]),
            helper.make_tensor_value_info("next_sum", TensorProto.FLOAT, [1, "rows", 2]),
        ],
        [numpy_helper.from_array(np.array([0]), "first")],
    )
    return _save_graph(path, graph)


def write_sequence_controls(
    path: Path, flags: int = TensorProto.FLOAT, ids: int = TensorProto.INT64, texts: Sequence[str] = ()
) -> Path:
    """Write a model that answers with its control inputs: `y` is `x`, START, END, READY and CORRID.

    `y` is float64[rows, 5]; a CORRID that is a text becomes its place among `texts`, or -1.
    """
    controls = {"START": flags, "END": flags, "READY": flags, "CORRID": ids}
    nodes = [
        helper.make_node("Cast", [name], [f"{name} seen"], to=TensorProto.DOUBLE) for name in ("x", *controls)
    ]
    if ids == TensorProto.STRING:
        nodes[-1] = helper.make_node("Cast", ["place"], ["CORRID seen"], to=TensorProto.DOUBLE)
        nodes.insert(
            0,
            helper.make_node(
                "LabelEncoder",
                ["CORRID"],
                ["place"],
                domain="ai.onnx.ml",
                keys_strings=list(texts),
                values_int64s=list(range(len(texts))),
                default_int64=-1,
            ),
        )
    seen = [f"{name} seen" for name in ("x", *controls)]
    graph = helper.make_graph(
        [*nodes, helper.make_node("Concat", seen, ["y"], axis=1)],
        "controls",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 1]),
            *(helper.make_tensor_value_info(name, kind, ["rows", 1]) for name, kind in controls.items()),
        ],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["rows", 5])],
    )
    return _save_graph(path, graph, ml=ids == TensorProto.STRING)


def _save(
    path: Path, nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], width: int, outputs: int
) -> Path:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", outputs])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return _save_graph(path, graph)


def _save_graph(path: Path, graph: onnx.GraphProto, *, ml: bool = False) -> Path:
    # The oldest versions that hold these operators, so that every supported ONNX Runtime loads the file.
    operators = [helper.make_opsetid("", 13), *([helper.make_opsetid("ai.onnx.ml", 2)] if ml else [])]
    model = helper.make_model(graph, opset_imports=operators, ir_version=7)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file of bytes: MNIST's images `uint8[n, 28, 28]` or labels `uint8[n]`."""
    with gzip.open(path) as file:
        content = file.read()
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def saved_model_bytes(
    nodes: Mapping[str, tuple[str, Sequence[str], Sequence[str]]],
    functions: Mapping[str, Sequence[tuple[str, Sequence[str]]]],
    signatures: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    tag: str = "serve",
) -> bytes:
    """A `saved_model.pb` of which no more is there than what its operators do follows from.

    Args:
        nodes: By name the kind, the inputs and the functions that are called.
        functions: By name the kind of each node, and the functions that it calls.
        signatures: By name the tensors that are fed, and those that are fetched.
        tag: The tag of the graph.
    """

    def text(number: int, value: str) -> bytes:
        return field(number, value.encode())

    def node(name: str, kind: str, inputs: Sequence[str], calls: Sequence[str]) -> bytes:
        called = b"".join(
            field(5, text(1, f"f{place}") + field(2, field(10, text(1, function))))
            for place, function in enumerate(calls)
        )
        return text(1, name) + text(2, kind) + b"".join(text(3, given) for given in inputs) + called

    def function(name: str, content: Sequence[tuple[str, Sequence[str]]]) -> bytes:
        return field(1, text(1, name)) + b"".join(
            field(3, node(f"n{place}", kind, [], calls)) for place, (kind, calls) in enumerate(content)
        )

    def sides(fed: Sequence[str], fetched: Sequence[str]) -> bytes:
        return b"".join(
            field(number, text(1, tensor) + field(2, text(1, tensor)))
            for number, tensors in ((1, fed), (2, fetched))
            for tensor in tensors
        )

    library = b"".join(field(1, function(name, content)) for name, content in functions.items())
    graph = b"".join(field(1, node(name, *content)) for name, content in nodes.items()) + field(2, library)
    described = b"".join(field(5, text(1, name) + field(2, sides(*one))) for name, one in signatures.items())
    return field(2, field(1, text(4, tag)) + field(2, graph) + described)
