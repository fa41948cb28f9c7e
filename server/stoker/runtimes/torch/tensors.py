"""Arrays as tensors of PyTorch, and the results of a model as named arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stoker.errors import LoadFailed
from stoker.tensors import NUMERIC_DTYPES, import_dtype


def named_outputs(torch: Any, result: Any, names: Sequence[str] | None) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a result by name: keys of dictionaries and attributes, `output`, or `output_0` and so on.

    Numbers become tensors without axes, and None is left out.

    Args:
        names: The names of the tensors in order; None for those in the result.

    Raises:
        LoadFailed: The result holds other values, or two with one name.
    """
    leaves = list(_leaves(torch, result))
    named = [(_name_of(path, len(leaves)), leaf) for path, leaf in leaves if leaf is not None]
    if names is not None:
        if len(names) != len(named):
            raise LoadFailed(
                f"the model gives {len(named)} outputs, and its configuration declares {len(names)}"
            )
        named = [(name, leaf) for name, (_, leaf) in zip(names, named, strict=True)]
    used = set()
    for name, leaf in named:
        if name in used:
            raise LoadFailed(
                f"the model gives two outputs that are named {name!r}: name them apart in a wrapper"
            )
        used.add(name)
        if isinstance(leaf, torch.Tensor):
            yield name, leaf
        elif isinstance(leaf, int | float):
            yield name, torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
        else:
            raise LoadFailed(
                f"the model gives a {type(leaf).__name__} as {name!r}: let it return tensors, or numbers, in dicts, "
                "tuples, lists or dataclasses"
            )


def _leaves(torch: Any, result: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the tensors and other values of a result, each with its path."""
    tree = torch.utils._pytree  # noqa: SLF001  # torch.export names results by it
    for path, leaf in tree.tree_flatten_with_path(result)[0]:
        if dataclasses.is_dataclass(leaf):
            fields = {field.name: getattr(leaf, field.name) for field in dataclasses.fields(leaf)}
            yield from (((*path, *rest), value) for rest, value in _leaves(torch, fields))
        else:
            yield path, leaf


def _name_of(path: Sequence[Any], count: int) -> str:
    if not path:
        return "output"
    words = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in path]
    name = "_".join(words)
    return (f"output_{name}" if count > 1 else "output") if words[0].isdecimal() else name


def to_tensor(torch: Any, array: np.ndarray) -> Any:
    """Return an array as a tensor of the CPU."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    # PyTorch warns of read-only memory, such as rows of requests.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_numpy(torch: Any, name: str, tensor: Any) -> np.ndarray:
    """Return a tensor as an array; raise LoadFailed for sparse tensors and for types that are not served."""
    try:
        tensor = tensor.detach().cpu().contiguous()
        if tensor.dtype == torch.bfloat16:
            import_dtype("bfloat16")
            raw: np.ndarray = tensor.view(torch.uint16).numpy()
            return raw.view("bfloat16")
        # `force` computes a pending negation, such as that of the imaginary part of a conjugate.
        array: np.ndarray = tensor.numpy(force=True)
    except (RuntimeError, TypeError) as error:
        if tensor.layout == torch.strided and dtype_name(tensor.dtype) in NUMERIC_DTYPES:
            raise
        kind = f"{str(tensor.layout).removeprefix('torch.')} tensor of {dtype_name(tensor.dtype)}"
        raise LoadFailed(f"{name!r} is a {kind}: let the model return dense tensors of numbers") from error
    return array


def dtype_name(dtype: Any) -> str:
    """Return the name of a dtype in numpy."""
    return str(dtype).removeprefix("torch.")
