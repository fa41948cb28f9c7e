"""What an operator's configuration of another server declares of a model's tensors."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Declaration", "DeclaredTensor"]


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One input or output as callers see it.

    Attributes:
        name: Its name.
        dtype: Name of the numpy dtype, or `string`.
        shape: Its sizes, with the batch axis if the model has one; -1 for those that may change.
        model_shape: The sizes that the model has it in, if they are others.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    model_shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Declaration:
    """The tensors of a model.

    Attributes:
        source: Where that is said, for messages.
        inputs: The inputs; empty if nothing is said of them.
        outputs: Those outputs that callers get; empty for all.
        batched: Whether the first axes are one batch axis: False if they are none, None if that is not said.
    """

    source: str
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    batched: bool | None = None
