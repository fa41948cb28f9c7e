"""Side effects of a SavedModel: it keeps state, reads and writes files, or runs code.

They are read from the operators that a signature or the loading runs, in the file's wire format, without TensorFlow.
Field numbers are from `tensorflow/core/protobuf/meta_graph.proto` and `tensorflow/core/framework`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from stoker.wire.protobuf import Buffer
from stoker.wire.protobuf_message import Message

PYTHON: Final = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
"""Operators that call functions of the Python that wrote the model; these are in no SavedModel."""
_STATE: Final = re.compile(
    # Variables,
    "Assign|CountUpTo|StridedSliceAssign|Scatter(Nd)?(Add|Sub|Mul|Div|Min|Max|Update)|(Sparse)?Apply[A-Z]|"
    "Resource(CountUpTo|StridedSliceAssign|Scatter|(Sparse)?Apply)|"
    # generators of random numbers, which are variables too, tables and queues.
    "Rng|Stateful(Random|StandardNormal|TruncatedNormal|Uniform)|LookupTable(Insert|Remove|Import)|"
    "Queue(Enqueue|Dequeue)|(OrderedMap|Map)?(Stage|Unstage)|"
    # Files.
    r"WriteFile|Save|MergeV2Checkpoints|Write\w*Summary|(Experimental)?DatasetToTFRecord|DumpTensor"
)
"""The beginnings of the names of operators that change state or write files."""
_OUTSIDE: Final = re.compile(
    "ReadFile|WriteFile|MatchingFiles|Save|Restore|MergeV2Checkpoints|LoadAndRemapMatrix|RecordInput|"
    "(TextLine|WholeFile|TFRecord|FixedLengthRecord|LMDB)Reader|"
    "(Experimental)?(TextLine|TFRecord|FixedLengthRecord|LMDB|Sql|CSV|Load|Snapshot|DataService|DatasetToTFRecord)|"
    r"CreateSummary|Write\w*Summary|DebugIdentity|DumpTensor|Rpc|BigQuery|PubSub|IO>"
)
"""The beginnings of the names of operators that read or write files, or reach other machines."""

_INIT: Final = "__saved_model_init_op"
_INIT_COLLECTIONS: Final = ("saved_model_main_op", "legacy_init_op")
_SERVE: Final = ["serve"]


class Effects(Struct, frozen=True):
    """The kinds of operators that a SavedModel runs.

    Attributes:
        loading: The kinds that run when it is loaded.
        signatures: The kinds that run for a request, by signature.
    """

    loading: frozenset[str]
    signatures: Mapping[str, frozenset[str]]

    def outside(self) -> list[str]:
        """Return lines about operators that run Python, read or write files, or reach other machines."""
        moments = {"when it is loaded": self.loading} | {
            f"for requests to {name}": kinds for name, kinds in sorted(self.signatures.items())
        }
        found = {moment: sorted(filter(_reaches_out, kinds)) for moment, kinds in moments.items()}
        return [f"{moment}: {', '.join(kinds)}" for moment, kinds in found.items() if kinds]


def find_state(kinds: Iterable[str]) -> list[str]:
    """Return those kinds of operators that change state for later requests, or write files."""
    return sorted(filter(_STATE.match, kinds))


def _reaches_out(kind: str) -> bool:
    return kind in PYTHON or _OUTSIDE.match(kind) is not None


class _Node(Struct, frozen=True):
    kind: str
    inputs: list[str]
    calls: list[str]


class _Graph(Struct, frozen=True):
    """The parts of a MetaGraphDef that are needed here."""

    tags: list[str]
    nodes: dict[str, _Node]
    functions: dict[str, list[_Node]]
    signatures: dict[str, tuple[set[str], set[str]]]
    initial: list[str]


def read_effects(data: Buffer) -> Effects:
    """Read the effects of the served graph from a SavedModel's file `saved_model.pb`.

    Raises:
        ValueError: The file is malformed.
    """
    try:
        graphs = [_graph(one) for one in Message(data).messages(2)] or [_graph(Message(b""))]
    except IndexError as error:
        raise ValueError("the file ends too early") from error
    served = next((graph for graph in graphs if graph.tags == _SERVE), graphs[0])
    loading = {*served.initial, *served.signatures.pop(_INIT, (set(), set()))[1]}
    return Effects(
        _kinds(served, loading, set()),
        {name: _kinds(served, outputs, inputs) for name, (inputs, outputs) in served.signatures.items()},
    )


def _kinds(graph: _Graph, outputs: Iterable[str], fed: set[str]) -> frozenset[str]:
    """Return the kinds of the nodes that run for these outputs if other nodes are fed, with those that they call."""
    kinds: set[str] = set()
    called: set[str] = set()
    seen = set(fed)
    todo = list(outputs)
    while todo:
        name = todo.pop()
        node = graph.nodes.get(name)
        if name in seen or node is None:
            continue
        seen.add(name)
        todo += node.inputs
        _run(graph, node, kinds, called)
    return frozenset(kinds)


def _run(graph: _Graph, node: _Node, kinds: set[str], called: set[str]) -> None:
    """Add the kind of a node, and those of all nodes of the functions that it calls."""
    todo = [node]
    while todo:
        one = todo.pop()
        kinds.add(one.kind)
        for name in (one.kind, *one.calls):
            if name in graph.functions and name not in called:
                called.add(name)
                todo += graph.functions[name]


def _entries(message: Message, number: int) -> dict[str, Message]:
    """Return the messages of a map."""
    return {entry.text(1): entry.message(2) for entry in message.messages(number)}


def _graph(message: Message) -> _Graph:
    graph_def, collections = message.message(2), _entries(message, 4)
    return _Graph(
        tags=message.message(1).texts(4),
        nodes={node.text(1): _node(node) for node in graph_def.messages(1)},
        functions={
            function.message(1).text(1): list(map(_node, function.messages(3)))
            for function in graph_def.message(2).messages(1)
        },
        signatures={
            name: (_tensors_of(signature, 1), _tensors_of(signature, 2))
            for name, signature in _entries(message, 5).items()
        },
        initial=[
            _node_of(name)
            for key in _INIT_COLLECTIONS
            if key in collections
            for name in collections[key].message(1).texts(1)
        ],
    )


def _tensors_of(signature: Message, side: int) -> set[str]:
    return {name for info in _entries(signature, side).values() for name in _tensors(info)}


def _tensors(info: Message) -> Iterator[str]:
    """Yield the nodes of a TensorInfo: one, or those of the parts of a tensor that is not dense."""
    yield from map(_node_of, info.texts(1))
    for sparse in info.messages(4):
        for part in (1, 2, 3):
            yield from map(_node_of, sparse.texts(part))
    for composite in info.messages(5):
        for component in composite.messages(2):
            yield from _tensors(component)


def _node(message: Message) -> _Node:
    attributes = _entries(message, 5).values()
    return _Node(
        kind=message.text(2),
        inputs=list(map(_node_of, message.texts(3))),
        calls=[name for attribute in attributes for name in _functions(attribute)],
    )


def _functions(attribute: Message) -> Iterator[str]:
    """Yield the names of the functions in an attribute: one, or a list."""
    for function in (*attribute.messages(10), *attribute.message(1).messages(9)):
        yield function.text(1)


def _node_of(tensor: str) -> str:
    """Return the node of a tensor `node:0`, or of an input that only has to run before: `^node`."""
    return tensor.removeprefix("^").partition(":")[0]
