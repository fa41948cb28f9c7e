"""Results of programs, TorchScript and modules: each is served with the model's own values, or refused in words."""

import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tests.torch.conftest import load, torch

from stoker.errors import LoadFailed
from stoker.runtimes.base import Runtime
from stoker.runtimes.packed import PackedRuntime

nn = torch.nn
ROWS = torch.export.Dim("rows", min=1, max=256)
STEPS = torch.export.Dim("steps", min=1, max=64)
Forward = Callable[..., Any]


class Calling(nn.Module):
    """A module whose forward is a function of one tensor."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


class Scored(NamedTuple):
    """A result whose names PyTorch does not write into a program."""

    scores: Any
    label: Any


torch.utils._pytree._register_namedtuple(Scored, serialized_type_name="shop.Scored")


@dataclasses.dataclass
class Found:
    """A result with an attribute that may be missing."""

    scores: Any
    mask: Any = None


torch.utils._pytree.register_dataclass(Found, serialized_type_name="shop.Found")


def gated(x: Any) -> Any:
    return torch.stack([x[:, :2], x[:, 2:]])


ROW = (-1, 4)
SERVED: dict[str, tuple[Forward, dict[str, tuple[int, ...]]]] = {
    "scalar beside rows": (lambda x: {"y": x * 2, "loss": x.square().mean()}, {"y": ROW, "loss": ()}),
    "scalar": (lambda x: x.sum(), {"output": ()}),
    "batch as a whole": (lambda x: (x * 2, x.mean(0)), {"output_0": ROW, "output_1": (4,)}),
    "constant": (lambda x: (x * 2, torch.ones(2, 3)), {"output_0": ROW, "output_1": (2, 3)}),
    "rows second": (lambda x: (x * 2, gated(x)), {"output_0": ROW, "output_1": (2, -1, 2)}),
    "multiple of rows": (lambda x: {"halves": x.reshape(-1, 2)}, {"halves": (-1, 2)}),
    "numbers": (
        lambda x: {"y": x, "int": 3, "float": 1.5, "bool": True, "rows": x.shape[0]},
        {"y": ROW, "int": (), "float": (), "bool": (), "rows": ()},
    ),
    "none": (lambda x: (x * 2, None, x), {"output_0": ROW, "output_2": ROW}),
    "nested": (
        lambda x: {"a": [x, (x + 1, {"b": x * 3})], "c": x.argmax(1)},
        {"a_0": ROW, "a_1_0": ROW, "a_1_1_b": ROW, "c": (-1,)},
    ),
    "types": (
        lambda x: {"bool": x > 0, "int8": x.to(torch.int8), "half": x.half(), "double": x.double()},
        {"bool": ROW, "int8": ROW, "half": ROW, "double": ROW},
    ),
    "input itself": (lambda x: (x, x[:, :2]), {"output_0": ROW, "output_1": (-1, 2)}),
    "input is changed": (lambda x: x.add_(1), {"output": ROW}),
    "negated memory": (
        lambda x: torch.view_as_complex(x.view(-1, 2, 2)).conj().imag,
        {"output": (-1, 2)},
    ),
    "sizes of values": (lambda x: torch.nonzero(x > 0), {"output": (-1, 2)}),
    "expanded": (lambda x: x[:, :1].expand(-1, 3), {"output": (-1, 3)}),
    "no columns": (lambda x: (x, x[:, :0]), {"output_0": ROW, "output_1": (-1, 0)}),
}
"""Functions of rows of four numbers, and the shapes that it is to declare; -1 for what is free."""
TRACEABLE = SERVED.keys() - {"numbers", "none", "nested"}


def answer(runtime: Runtime, x: np.ndarray) -> dict[str, np.ndarray]:
    """The outputs of a model, of its rows or as a request of its own."""
    if isinstance(runtime, PackedRuntime):
        return dict(runtime.run_tensors({"x": x.copy()}))
    given = [np.array(array) for array in runtime.run([x.copy()])]
    return dict(zip([str(spec.name) for spec in runtime.signature.outputs], given, strict=True))


def declared_shapes(runtime: Runtime) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's outputs in its metadata."""
    signature = runtime.signature
    if signature.tensors is not None:
        return {info.name: info.shape for info in signature.tensors.outputs}
    return {str(spec.name): (-1, *spec.shape) for spec in signature.outputs}


def assert_answers_as(runtime: Runtime, function: Forward, x: np.ndarray) -> None:
    """Values, shapes and types are the model's own, and the metadata fits them."""
    expected = [
        torch.as_tensor(leaf).numpy(force=True)
        for leaf in torch.utils._pytree.tree_leaves(function(torch.from_numpy(x.copy())))
        if leaf is not None
    ]
    given = answer(runtime, x)
    shapes = declared_shapes(runtime)
    assert given.keys() == shapes.keys()
    for (name, array), values in zip(given.items(), expected, strict=True):
        # A Python float is float64 here.
        np.testing.assert_allclose(array, values, rtol=1e-5, atol=1e-6, strict=array.dtype != np.float64)
        fits = [declared in (-1, size) for declared, size in zip(shapes[name], array.shape, strict=True)]
        assert all(fits), f"{name}: {shapes[name]} is declared, {array.shape} given"


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal((count, 4)).astype(np.float32)


def save(function: Forward, path: Path, form: str) -> Path:
    """Save a model as a program with free rows, as one of two rows, or as TorchScript."""
    example = torch.arange(8.0).reshape(2, 4) - 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "torchscript":
            torch.jit.trace(Calling(function), example, strict=False).save(str(path))
        else:
            free = ({0: ROWS},) if form == "free" else None
            torch.export.save(torch.export.export(Calling(function), (example,), dynamic_shapes=free), path)
    return path


@pytest.mark.parametrize("case", SERVED)
def test_outputs_of_a_program_with_free_rows_are_its_own(case: str, tmp_path: Path) -> None:
    """Each kind of result has the program's values for any number of rows, and metadata with -1 for free sizes."""
    function, shapes = SERVED[case]
    runtime = load(save(function, tmp_path / "net.pt2", "free"))
    assert declared_shapes(runtime) == shapes
    for count in (1, 2, 5):
        assert_answers_as(runtime, function, rows(count))


@pytest.mark.parametrize("case", SERVED)
def test_outputs_of_a_program_of_one_size_are_its_own(case: str, tmp_path: Path) -> None:
    """A program that takes two rows has the same results; only sizes that depend on values are free."""
    function, _ = SERVED[case]
    runtime = load(save(function, tmp_path / "net.pt2", "fixed"))
    assert_answers_as(runtime, function, rows(2))
    free = [name for name, shape in declared_shapes(runtime).items() if -1 in shape]
    assert free == (["output"] if case == "sizes of values" else [])


@pytest.mark.parametrize("case", sorted(TRACEABLE))
def test_outputs_of_torchscript_are_its_own(case: str, tmp_path: Path) -> None:
    """TorchScript does not describe outputs, so untested sizes are free."""
    function, _ = SERVED[case]
    runtime = load(save(function, tmp_path / "net.pt", "torchscript"))
    assert_answers_as(runtime, function, rows(2))


def test_program_with_two_free_axes_declares_both(tmp_path: Path) -> None:
    """Sizes of an output that depend on either axis are free."""
    module = Calling(lambda x: {"all": x * 2, "most": x.amax(0, keepdim=True)})
    program = torch.export.export(module, (torch.zeros(2, 5, 4),), dynamic_shapes=({0: ROWS, 1: STEPS},))
    torch.export.save(program, tmp_path / "net.pt2")
    runtime = load(tmp_path / "net.pt2")
    assert isinstance(runtime, PackedRuntime)
    assert declared_shapes(runtime) == {"all": (-1, -1, 4), "most": (1, -1, 4)}
    for shape in [(3, 2, 4), (1, 5, 4)]:
        given = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        answer = runtime.run_tensors({"x": given})
        np.testing.assert_array_equal(answer["all"], given * 2)
        np.testing.assert_array_equal(answer["most"], given.max(0, keepdims=True))


def module_file(folder: Path, returned: str) -> dict[str, Any]:
    """A file of weights and its class, whose forward returns an expression of `x`."""
    name = f"made_{abs(hash(returned))}"
    code = f"""
import dataclasses, torch

@dataclasses.dataclass
class Plain:
    scores: object
    inner: object = None

class Thing:
    pass

class Net(torch.nn.Module):
    def forward(self, x):
        return {returned}
"""
    (folder / f"{name}.py").write_text(code)
    torch.save({}, folder / "net.pt")
    np.savez(folder / "sample_input.npz", x=rows(2))
    return {"model_class": f"{name}:Net"}


def test_dataclass_of_a_module_is_served_by_its_fields(tmp_path: Path) -> None:
    """An unregistered dataclass is a structure like any other, also inside another one."""
    settings = module_file(tmp_path, "Plain(x * 2, Plain(x + 1))")
    runtime = load(tmp_path / "net.pt", **settings)
    given = answer(runtime, rows(3))
    assert list(given) == ["scores", "inner_scores"]
    np.testing.assert_allclose(given["scores"], rows(3) * 2)
    np.testing.assert_allclose(given["inner_scores"], rows(3) + 1)


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        ("torch.complex(x, x)", "gives complex64 as 'output'; numbers are served"),
        ("{'y': x, 'kind': 'cat'}", "gives a str as 'kind': let it return tensors"),
        ("(x, Thing())", "gives a Thing as 'output_1': let it return tensors"),
        ("{'a_b': x, 'a': {'b': x}}", "gives two outputs that are named 'a_b'"),
        ("None", "gives no tensor: let its forward return"),
        ("x.to_sparse()", "'output' is a sparse_coo tensor of float32: let the model return dense"),
        ("x.to(torch.float8_e4m3fn)", "'output' is a strided tensor of float8_e4m3fn: let the model return"),
    ],
)
def test_outputs_that_cannot_be_served_are_refused_at_the_load(
    tmp_path: Path, returned: str, cause: str
) -> None:
    """The sentence names the output and says what to do."""
    with pytest.raises(LoadFailed, match=cause):
        load(tmp_path / "net.pt", **module_file(tmp_path, returned))


@pytest.mark.parametrize("kind", [Scored, Found])
def test_program_with_a_type_of_a_package_is_refused_by_name(tmp_path: Path, kind: Any) -> None:
    """The package of a result's type is not imported; the message has the type and the remedy."""
    path = save(lambda x: kind(x * 2, x.argmax(1)), tmp_path / "net.pt2", "free")
    serialized = {Scored: "shop.Scored", Found: "shop.Found"}[kind]
    forgotten = torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(serialized)
    try:
        with pytest.raises(
            LoadFailed, match=rf"gives a {serialized}, .*: export a wrapper module"
        ) as failure:
            load(path)
    finally:
        torch.utils._pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[serialized] = forgotten
    assert str(path) in str(failure.value)
