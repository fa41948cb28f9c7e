"""Pipelines as operators write them: their steps, the tensors between the steps, and the graph that these form."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.errors import InvalidSettings

VERSION: Final = 1
"""The only version of each pipeline."""


@dataclass(frozen=True, slots=True)
class Step:
    """One model in a pipeline.

    Attributes:
        name: Its name in messages; unique within its pipeline.
        version: The model's version; None for the label's version, or the default one.
        label: A label of the version, if no number is given.
        inputs: By the names of the model's inputs the tensors of the pipeline that it takes; None where all of them
            have the names of the inputs.
        outputs: By the names of the model's outputs what the pipeline calls them, for those that it uses; None for
            all outputs by their own names.
    """

    name: str
    model: str
    version: int | None = None
    label: str | None = None
    inputs: Mapping[str, str] | None = None
    outputs: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Models in sequence, which callers see as one model.

    Attributes:
        name: Its name, of the same kind as those of models.
        steps: Its steps, in the order in which they were written.
        inputs: The tensors that callers send, in order; None for those that no step produces.
        outputs: The tensors that callers receive, in order; None for those that no step uses.
        timeout_ms: A request that is not answered by then gets 504; None for the server's.
        optional: Whether the server starts even if the pipeline is unusable, as those of a model repository may be.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None
    timeout_ms: int | None = None
    description: str | None = None
    optional: bool = False

    @property
    def is_explicit(self) -> bool:
        """Whether all tensors are named, so that nothing of the models has to be known to follow them."""
        return all(step.inputs is not None and step.outputs is not None for step in self.steps)

    def wrong(self, problem: str) -> InvalidSettings:
        """Return the error for a problem that an operator can mend in it."""
        return InvalidSettings(f"the pipeline {self.name}: {problem}")


def named_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Give steps that have no names that of their model, with their place behind it where several have that model."""
    often = Counter(step.model for step in steps if not step.name)
    return tuple(
        step
        if step.name
        else dataclasses.replace(step, name=step.model if often[step.model] == 1 else f"{step.model}-{place}")
        for place, step in enumerate(steps, 1)
    )
