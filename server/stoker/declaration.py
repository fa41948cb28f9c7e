"""The tensors of a model as declared by an operator's configuration for another server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Declaration", "DeclaredTensor"]


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """One input or output as callers see it.

    Attributes:
        name: Its name.
        dtype: Name of the numpy dtype, or `string`.
        shape: Its shape, including the batch axis if the model has one; -1 for free sizes.
        model_shape: Its shape in the model, if different.
        labels: What the values of a row of an output are called, for classification; empty if nothing is.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    model_shape: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Declaration:
    """The tensors of a model.

    Attributes:
        source: Where it is declared, for messages.
        inputs: The inputs; empty if not declared.
        outputs: The outputs that callers get; empty for all.
        batched: Whether the first axes are one batch axis; None if not declared.
    """

    source: str
    inputs: tuple[DeclaredTensor, ...] = ()
    outputs: tuple[DeclaredTensor, ...] = ()
    batched: bool | None = None
