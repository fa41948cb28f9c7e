"""Rules of single operators of TensorFlow, without TensorFlow: they follow rows, and do not guess."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from stoker.isolation.tensorflow.computing_rules import COMPUTING
from stoker.isolation.tensorflow.layout_rules import LAYOUTS, MAKING
from stoker.isolation.tensorflow.operator_call import apply_rule
from stoker.isolation.tensorflow.product_rules import PRODUCTS
from stoker.isolation.tensorflow.row_states import Listed, Mixed, Plain, Rows, Size, State, Unknown
from stoker.isolation.tensorflow.sizes import compute, shape_of

RULES = {**COMPUTING, **LAYOUTS, **MAKING, **PRODUCTS}
ROWS, SECOND, PLAIN, VARIES = Rows(0), Rows(1), Plain(), Plain(None, varies=True)
B = None
"""The size of the batch, which graphs leave free."""


@dataclass
class Shape:
    """A shape like TensorFlow's; `sizes` is None for an unknown rank."""

    sizes: tuple[int | None, ...] | None

    @property
    def rank(self) -> int | None:
        return None if self.sizes is None else len(self.sizes)

    def as_list(self) -> list[int | None]:
        return list(self.sizes or ())

    def is_fully_defined(self) -> bool:
        return self.sizes is not None and None not in self.sizes

    def num_elements(self) -> int | None:
        return math.prod(self.as_list()) if self.is_fully_defined() else None  # type: ignore[arg-type]


@dataclass
class Type:
    is_integer: bool = True


@dataclass
class Tensor:
    shape: Shape
    dtype: Type = field(default_factory=Type)


class Op:
    """An operator of a graph."""

    name = "op"

    def __init__(self, kind: str, inputs: list[Any], outputs: list[Any], attributes: dict[str, Any]) -> None:
        self.type = kind
        self.inputs = [Tensor(Shape(sizes)) for sizes in inputs]
        self.outputs = [Tensor(Shape(sizes)) for sizes in outputs]
        self.get_attr = attributes.__getitem__


def follow(
    kind: str, inputs: list[Any], states: list[State], output: Any = None, count: int = 1, **attributes: Any
) -> Any:
    """Return the result of an operator's rule for these states of its inputs."""
    return apply_rule(RULES[kind], Op(kind, inputs, [output] * count, attributes), states)


SLICE = {f"{name}_mask": 0 for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
PRODUCT = {"adj_x": False, "adj_y": False}

NOT_GUESSED: list[tuple[str, list[Any], list[State], Any, dict[str, Any]]] = [
    # Tensors of unknown rank, and rows at several places.
    ("AddV2", [None, (3, 4)], [ROWS, PLAIN], (3, 4), {}),
    ("AddV2", [(B, 4), (B, 4)], [ROWS, SECOND], (B, 4), {}),
    ("AddV2", [(B, 4), (B, 4)], [ROWS, PLAIN], (B, 4), {}),
    ("Select", [(B,), (B, 4), (B, 4)], [ROWS, ROWS, ROWS], (B, 4), {}),
    # Rows in a parameter that has to be the same for all.
    ("Conv2D", [(1, 8, 8, 2), (B, 3, 2, 2)], [PLAIN, ROWS], None, {}),
    ("Conv2DBackpropInput", [(4,), (3, 3, 2, 2), (B, 8, 8, 2)], [PLAIN, VARIES, ROWS], None, {}),
    ("BiasAdd", [None, (4,)], [ROWS, PLAIN], None, {}),
    ("BiasAdd", [(3, B), (B,)], [SECOND, PLAIN], None, {"data_format": b"NHWC"}),
    ("BiasAdd", [(3, B, 8), (B,)], [SECOND, PLAIN], None, {"data_format": b"NCHW"}),
    ("FusedBatchNorm", [(1, 8, 8, 2), (B,)], [PLAIN, ROWS], None, {}),
    # Unknown axes.
    ("Sum", [(B, 4), (1,)], [ROWS, PLAIN], None, {}),
    ("Sum", [(B, 4), (1,)], [ROWS, Plain.of((Size.FIXED,))], None, {}),
    ("Cumsum", [(B, 4), ()], [ROWS, PLAIN], None, {}),
    ("Softmax", [None], [ROWS], None, {}),
    ("L2Loss", [(3, B)], [SECOND], None, {}),
    ("QuantizeV2", [(B, 4), (), ()], [ROWS, PLAIN, PLAIN], None, {"axis": 0}),
    ("Unique", [(3, B)], [SECOND], None, {}),
    # Shapes that cut rows, or may cut them.
    ("Reshape", [(4, 4), (B,)], [PLAIN, ROWS], None, {}),
    ("Reshape", [(B, 4), (2,)], [ROWS, Plain.of((2, Size.ROWS))], None, {}),
    ("Reshape", [(B, 4), (2,)], [ROWS, Plain.of((3, -1))], None, {}),
    ("Reshape", [(B, 4), (2,)], [ROWS, Plain.of((-1, Size.FIXED))], None, {}),
    ("Reshape", [(B, 4), (2,)], [ROWS, Plain.of((-1, 3))], None, {}),
    ("Transpose", [(B, 4), (2,)], [ROWS, PLAIN], None, {}),
    ("ExpandDims", [(B, 4), ()], [ROWS, PLAIN], None, {}),
    ("Squeeze", [(B, 1)], [ROWS], None, {"squeeze_dims": []}),
    ("Squeeze", [(B, 1)], [ROWS], None, {"squeeze_dims": [-2]}),
    ("StridedSlice", [None, (1,), (1,), (1,)], [ROWS, PLAIN, PLAIN, PLAIN], None, SLICE),
    ("StridedSlice", [(B, 4), (1,), (1,), (1,)], [ROWS, VARIES, PLAIN, PLAIN], None, SLICE),
    ("StridedSlice", [(B, 4), (1,), (1,), (1,)], [ROWS, PLAIN, PLAIN, PLAIN], None, SLICE),
    ("Slice", [(B, 4), (2,), (2,)], [ROWS, PLAIN, PLAIN], None, {}),
    ("Slice", [(B, 4), (2,), (2,)], [ROWS, Plain.of((1, 0)), Plain.of((-1, -1))], None, {}),
    ("Pad", [(B, 4), (2, 2)], [ROWS, Plain.of(((1, 0), (0, 0)))], None, {}),
    ("ConcatV2", [(B, 4), (B, 4), ()], [ROWS, ROWS, PLAIN], (B, 8), {}),
    ("ConcatV2", [(B, 4), (B, 4), ()], [ROWS, ROWS, Plain.of(-2)], (B, 4), {}),
    ("ConcatV2", [(B, 4), (B, 4), ()], [ROWS, PLAIN, Plain.of(1)], (B, 8), {}),
    ("Pack", [(B, 4), (B, 4)], [ROWS, SECOND], (2, B, 4), {"axis": 0}),
    ("Unpack", [(B, 4)], [ROWS], None, {"axis": -2}),
    ("Split", [(), (B, 4)], [PLAIN, ROWS], (B, 2), {}),
    ("Split", [(), (B, 4)], [Plain.of(0), ROWS], (B, 4), {}),
    ("SplitV", [(B, 4), (2,), ()], [ROWS, VARIES, Plain.of(1)], (B, 2), {}),
    ("Fill", [(1,), ()], [Plain.of((Size.ROWS, Size.ROWS)), PLAIN], None, {}),
    ("Tile", [(B, 4), (2,)], [ROWS, PLAIN], (B, 4), {}),
    ("Tile", [(B, 4), (2,)], [ROWS, Plain.of((2, 1))], (B, 4), {}),
    ("Tile", [(2, 4), (2,)], [PLAIN, Plain.of((Size.ROWS, 1))], (B, 4), {}),
    # Lists with unknown items.
    ("TensorListFromTensor", [(B, 4), (1,)], [ROWS, PLAIN], None, {}),
    ("EmptyTensorList", [(1,), ()], [PLAIN, VARIES], None, {}),
    ("TensorListSetItem", [(), (), (B,)], [Listed(), VARIES, ROWS], None, {}),
    ("TensorListSetItem", [(), (), (B,)], [Listed(), PLAIN, Mixed("m")], None, {}),
    ("TensorListGetItem", [(), (), (1,)], [Listed(), PLAIN, PLAIN], None, {}),
    ("TensorListStack", [(), (1,)], [Listed(), PLAIN], None, {}),
    # Products that may mix rows.
    ("BatchMatMul", [None, (4, 4)], [ROWS, PLAIN], None, PRODUCT),
    ("BatchMatMul", [(3, B, 4), (B, 4, 4)], [SECOND, ROWS], (3, B, 4), PRODUCT),
    ("BatchMatMul", [(B, 3, 4), (B, 4, 4)], [ROWS, VARIES], (B, 3, 4), PRODUCT),
    ("Einsum", [(B, 4), (4, 4)], [ROWS, PLAIN], (B, 4), {"equation": b"ab,bc"}),
    ("Einsum", [None, (4, 4)], [ROWS, PLAIN], (B, 4), {"equation": b"ab,bc->ac"}),
    ("Einsum", [(B, 4, 4), (4, 4)], [ROWS, PLAIN], (B, 4), {"equation": b"ab,bc->ac"}),
    ("Einsum", [(B, 4), (B, 4)], [ROWS, ROWS], (B, 4, B, 4), {"equation": b"ab,cd->abcd"}),
    ("Einsum", [(B, 4), (3, 4)], [ROWS, PLAIN], (B, 4), {"equation": b"ab,ab->ab"}),
    ("GatherV2", [(9, 4), (B,), ()], [PLAIN, ROWS, PLAIN], None, {"batch_dims": 0}),
    ("GatherV2", [(9, 4), (B,), ()], [VARIES, ROWS, Plain.of(0)], None, {"batch_dims": 0}),
    ("GatherV2", [(B, 4), (B,), ()], [ROWS, ROWS, Plain.of(1)], None, {"batch_dims": 0}),
    ("GatherV2", [(B, 4), (2,), ()], [ROWS, VARIES, Plain.of(1)], None, {"batch_dims": 0}),
    ("GatherV2", [(B, 4), (2,), ()], [ROWS, PLAIN, Plain.of(0)], None, {"batch_dims": 0}),
    ("ResourceGather", [(), (B,)], [PLAIN, ROWS], None, {"batch_dims": 1}),
    ("GatherNd", [(B, 4), (2, 1)], [ROWS, PLAIN], None, {}),
    ("GatherNd", [(9, 4), (3, B)], [PLAIN, SECOND], None, {}),
    ("LookupTableFindV2", [(), (B,), (1,)], [PLAIN, ROWS, PLAIN], None, {}),
    ("OneHot", [(B,), (), (), ()], [ROWS, VARIES, PLAIN, PLAIN], None, {"axis": -1}),
]


@pytest.mark.parametrize(("kind", "inputs", "states", "output", "attributes"), NOT_GUESSED)
def test_where_rows_go_is_not_guessed(
    kind: str, inputs: list[Any], states: list[State], output: Any, attributes: dict[str, Any]
) -> None:
    """A call that a rule cannot follow is unknown, with the operator's name; it is never apart."""
    found = follow(kind, inputs, states, output, **attributes)
    for state in found if isinstance(found, list) else [found]:
        assert state == Unknown(f"{kind} 'op'")


@pytest.mark.parametrize(
    ("kind", "inputs", "states", "output", "attributes", "expected"),
    [
        ("L2Loss", [(B, 4)], [ROWS], None, {}, Mixed("L2Loss 'op'")),
        ("QuantizeV2", [(B, 4), (), ()], [ROWS, PLAIN, PLAIN], None, {"axis": -1}, [ROWS, PLAIN, PLAIN]),
        (
            "QuantizeAndDequantizeV2", [(B, 4), (), ()], [ROWS, PLAIN, PLAIN], None,
            {"axis": -1, "range_given": True}, ROWS,
        ),
        (
            "QuantizeAndDequantizeV2", [(B, 4), (), ()], [ROWS, PLAIN, PLAIN], None,
            {"axis": -1, "range_given": False}, Mixed("QuantizeAndDequantizeV2 'op'"),
        ),
        # The shape is unknown, but the graph has the sizes of its result.
        ("Reshape", [(B, 4), (3,)], [ROWS, PLAIN], (B, 2, 2), {}, ROWS),
        ("Reshape", [(B, B, 4), (2,)], [ROWS, Plain.of((-1, 4))], None, {}, Rows(0, exact=False)),
        (
            "StridedSlice", [(B, 4), (2,), (2,), (2,)], [ROWS, PLAIN, PLAIN, PLAIN], None,
            {**SLICE, "new_axis_mask": 1, "ellipsis_mask": 2}, SECOND,
        ),
        (
            "StridedSlice", [(2, 3, B), (2,), (2,), (2,)],
            [Rows(2), Plain.of((0, 0)), PLAIN, Plain.of((1, 1))], None,
            {**SLICE, "ellipsis_mask": 1, "end_mask": 2}, Rows(2),
        ),
        ("Einsum", [(B, 4), (4, 4)], [ROWS, PLAIN], (B, 4), {"equation": b"...b,bc->...c"}, ROWS),
        ("GatherV2", [(B, 9, 4), (2, 2), ()], [ROWS, PLAIN, Plain.of(1)], None, {"batch_dims": 0}, ROWS),
        ("GatherV2", [(9, B), (2, 2), ()], [SECOND, PLAIN, Plain.of(0)], None, {"batch_dims": 0}, Rows(2)),
        ("OneHot", [(B,), (), (), ()], [ROWS, PLAIN, PLAIN, PLAIN], None, {"axis": 0}, SECOND),
        ("TensorListStack", [(), (1,)], [Listed(ROWS), PLAIN], None, {}, SECOND),
    ],
)  # fmt: skip
def test_rows_are_followed_where_they_go(
    kind: str, inputs: list[Any], states: list[State], output: Any, attributes: dict[str, Any], expected: Any
) -> None:
    """The result has the axis of the rows, or is mixed."""
    assert follow(kind, inputs, states, output, **attributes) == expected


def test_features_of_a_free_size_belong_to_no_row() -> None:
    """Their size is that of the longest example; a feature of a known size belongs to its own example."""

    @dataclass
    class Feature:
        sizes: list[int]
        unknown_rank: bool = False

        @property
        def dim(self) -> list[Any]:
            return [type("Dim", (), {"size": size}) for size in self.sizes]

    shapes = [Feature([2]), Feature([-1]), Feature([], unknown_rank=True)]
    attributes = {"num_sparse": 0, "dense_shapes": shapes}
    states: list[State] = [ROWS, PLAIN]
    unknown = Unknown("ParseExampleV2 'op'")
    assert follow("ParseExampleV2", [(B,), ()], states, count=3, **attributes) == [ROWS, unknown, unknown]
    assert follow("ParseExampleV2", [(B, 2), ()], states, count=3, **attributes) == [unknown] * 3


STRIDES = {"ellipsis_mask": 0, "new_axis_mask": 0, "shrink_axis_mask": 0, "begin_mask": 0, "end_mask": 0}
SIZES = (Size.ROWS, 4, Size.FIXED)


@pytest.mark.parametrize(
    ("kind", "values", "attributes", "expected"),
    [
        ("AddV2", (2, 3), {}, 5),
        ("Sub", (2, 3), {}, -1),
        ("Mul", (2, 3), {}, 6),
        ("Mul", (1, Size.ROWS), {}, Size.ROWS),
        ("Mul", (2, Size.ROWS), {}, Size.VARYING),
        ("Mul", (2, Size.FIXED), {}, Size.FIXED),
        ("AddV2", (2, Size.ROWS), {}, None),
        ("Mul", ((2,), (3,)), {}, None),
        ("Prod", ((2, 3), (0,)), {"keep_dims": False}, 6),
        ("Prod", ((2, 3), (0,)), {"keep_dims": True}, None),
        ("Prod", (7, ()), {"keep_dims": False}, 7),
        ("GatherV2", (SIZES, 0, 0), {"batch_dims": 0}, Size.ROWS),
        ("GatherV2", (SIZES, (2, 1), 0), {"batch_dims": 0}, (Size.FIXED, 4)),
        ("GatherV2", (SIZES, 3, 0), {"batch_dims": 0}, None),
        ("GatherV2", (SIZES, (1, 3), 0), {"batch_dims": 0}, None),
        ("GatherV2", (SIZES, 0, 1), {"batch_dims": 0}, None),
        ("StridedSlice", (SIZES, (1,), (3,), (1,)), STRIDES, (4, Size.FIXED)),
        ("StridedSlice", (SIZES, (1,), (3,), (1,)), {**STRIDES, "begin_mask": 1}, SIZES),
        ("StridedSlice", (SIZES, (1,), (2,), (1,)), {**STRIDES, "shrink_axis_mask": 1}, 4),
        ("StridedSlice", (SIZES, (3,), (4,), (1,)), {**STRIDES, "shrink_axis_mask": 1}, None),
        ("StridedSlice", (SIZES, (Size.FIXED,), (3,), (1,)), STRIDES, None),
        ("StridedSlice", (SIZES, (1,), (3,), (1,)), {**STRIDES, "ellipsis_mask": 1}, None),
        ("StridedSlice", (7, (1,), (3,), (1,)), STRIDES, None),
        ("ConcatV2", ((1,), SIZES, 0), {}, (1, *SIZES)),
        ("ConcatV2", ((1,), SIZES, 1), {}, None),
        ("Pack", (1, Size.ROWS), {"axis": 0}, (1, Size.ROWS)),
        ("Pack", (1, 2), {"axis": 1}, None),
        ("ExpandDims", (7, 0), {}, (7,)),
        ("ExpandDims", (7, 1), {}, None),
        ("Cast", (7,), {}, 7),
        ("Floor", (7,), {}, None),
    ],
)
def test_sizes_are_computed_with_the_number_of_rows_as_a_symbol(
    kind: str, values: tuple[Any, ...], attributes: dict[str, Any], expected: Any
) -> None:
    """An integer that cannot be computed is unknown; it varies with the number of rows if an operand does."""
    states = [Plain.of(value) for value in values]
    found = compute(Op(kind, [()] * len(values), [()], attributes), states)
    varies = any(state.varies for state in states)
    assert found == (Plain(None, varies) if expected is None else Plain.of(expected))


@pytest.mark.parametrize(
    ("kind", "sizes", "state", "expected"),
    [
        ("Rank", (B, 4), ROWS, Plain.of(2)),
        ("Size", (B, 4), ROWS, Plain.of(Size.VARYING)),
        ("Size", (B,), ROWS, Plain.of(Size.ROWS)),
        ("Size", (3, 4), Mixed("m"), Plain.of(12)),
        ("Size", None, ROWS, Plain(None, varies=True)),
        ("Size", (B, 4), Mixed("m"), Unknown("Size 'op'")),
        ("Size", (B, 4), Unknown("first"), Unknown("first")),
    ],
)
def test_sizes_of_tensors_are_known_unless_rows_decide_them(
    kind: str, sizes: Any, state: State, expected: State
) -> None:
    """The size of an unknown tensor may depend on contents of rows; the first such operator is named."""
    assert shape_of(Op(kind, [sizes], [()], {}), [state]) == expected
