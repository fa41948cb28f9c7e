"""Side effects of a SavedModel: it keeps state, reads and writes files, or runs code.

They are read from the operators that a signature or the loading runs, in the file's wire format, without TensorFlow.
Field numbers are from `tensorflow/core/protobuf/meta_graph.proto` and `tensorflow/core/framework`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from stoker.wire.protobuf import BYTES, Buffer, fields_of

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


@dataclass(frozen=True, slots=True)
class Effects:
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


@dataclass(slots=True)
class _Node:
    kind: str = ""
    inputs: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Graph:
    """The parts of a MetaGraphDef that are needed here."""

    tags: list[str] = field(default_factory=list)
    nodes: dict[str, _Node] = field(default_factory=dict)
    functions: dict[str, list[_Node]] = field(default_factory=dict)
    signatures: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)
    initial: list[str] = field(default_factory=list)


def read_effects(data: Buffer) -> Effects:
    """Read the effects of the served graph from a SavedModel's file `saved_model.pb`.

    Raises:
        ValueError: The file is malformed.
    """
    try:
        graphs = [_graph(data, begin, end) for _, begin, end in _messages(data, 0, len(data), 2)]
    except IndexError as error:
        raise ValueError("the file ends too early") from error
    served = next((graph for graph in graphs if graph.tags == _SERVE), graphs[0] if graphs else _Graph())
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


def _messages(data: Buffer, begin: int, end: int, *numbers: int) -> Iterator[tuple[int, int, int]]:
    """Yield the places of messages, texts and bytes in the fields with these numbers."""
    for number, wire, _, start, stop in fields_of(data, begin, end):
        if wire == BYTES and number in numbers:
            yield number, start, stop


def _text(data: Buffer, begin: int, end: int) -> str:
    return data[begin:end].decode("utf-8", "surrogateescape")


def _texts(data: Buffer, begin: int, end: int, number: int) -> list[str]:
    return [_text(data, start, stop) for _, start, stop in _messages(data, begin, end, number)]


def _entry(data: Buffer, begin: int, end: int) -> tuple[str, int, int]:
    """Return the key of an entry of a map, and the place of its value."""
    key, place = "", (begin, begin)
    for number, start, stop in _messages(data, begin, end, 1, 2):
        if number == 1:
            key = _text(data, start, stop)
        else:
            place = (start, stop)
    return key, *place


def _graph(data: Buffer, begin: int, end: int) -> _Graph:
    graph = _Graph()
    for number, start, stop in _messages(data, begin, end, 1, 2, 4, 5):
        if number == 1:
            graph.tags = _texts(data, start, stop, 4)
        elif number == 2:
            _read_graph_def(data, start, stop, graph)
        elif number == 4:
            key, first, last = _entry(data, start, stop)
            if key in _INIT_COLLECTIONS:
                for _, inner, outer in _messages(data, first, last, 1):
                    graph.initial += map(_node_of, _texts(data, inner, outer, 1))
        else:
            key, first, last = _entry(data, start, stop)
            sides: tuple[set[str], set[str]] = (set(), set())
            for side, inner, outer in _messages(data, first, last, 1, 2):
                _, place, stop_at = _entry(data, inner, outer)
                sides[side - 1].update(_tensors(data, place, stop_at))
            graph.signatures[key] = sides
    return graph


def _tensors(data: Buffer, begin: int, end: int) -> Iterator[str]:
    """Yield the nodes of a TensorInfo: one, or those of the parts of a tensor that is not dense."""
    for number, start, stop in _messages(data, begin, end, 1, 4, 5):
        if number == 1:
            yield _node_of(_text(data, start, stop))
        elif number == 4:
            for part in (1, 2, 3):
                yield from map(_node_of, _texts(data, start, stop, part))
        else:
            for _, inner, outer in _messages(data, start, stop, 2):
                yield from _tensors(data, inner, outer)


def _read_graph_def(data: Buffer, begin: int, end: int, graph: _Graph) -> None:
    for number, start, stop in _messages(data, begin, end, 1, 2):
        if number == 1:
            name, node = _node(data, start, stop)
            graph.nodes[name] = node
            continue
        for _, first, last in _messages(data, start, stop, 1):
            name, nodes = "", []
            for part, inner, outer in _messages(data, first, last, 1, 3):
                if part == 1:
                    name = "".join(_texts(data, inner, outer, 1))
                else:
                    nodes.append(_node(data, inner, outer)[1])
            graph.functions[name] = nodes


def _node(data: Buffer, begin: int, end: int) -> tuple[str, _Node]:
    name, node = "", _Node()
    for number, start, stop in _messages(data, begin, end, 1, 2, 3, 5):
        if number == 1:
            name = _text(data, start, stop)
        elif number == 2:
            node.kind = _text(data, start, stop)
        elif number == 3:
            node.inputs.append(_node_of(_text(data, start, stop)))
        else:
            _, first, last = _entry(data, start, stop)
            node.calls += _functions(data, first, last)
    return name, node


def _functions(data: Buffer, begin: int, end: int) -> Iterator[str]:
    """Yield the names of the functions in an attribute: one, or a list."""
    for number, start, stop in _messages(data, begin, end, 1, 10):
        if number == 10:
            yield from _texts(data, start, stop, 1)
        else:
            for _, inner, outer in _messages(data, start, stop, 9):
                yield from _texts(data, inner, outer, 1)


def _node_of(tensor: str) -> str:
    """Return the node of a tensor `node:0`, or of an input that only has to run before: `^node`."""
    return tensor.removeprefix("^").partition(":")[0]
