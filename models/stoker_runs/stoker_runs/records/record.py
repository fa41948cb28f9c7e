"""The record of a run, `run.json`: its definition, time and files. It is written once and never changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.names import checked_name
from stoker_runs.records.definition import Definition

__all__ = [
    "INTERACTIVE",
    "SCRIPT",
    "SWEEP",
    "RunRecord",
    "checked_experiment",
    "experiment_of",
    "is_part",
    "new_run_id",
]

SCRIPT: Final = "script"
"""The kind of a run whose script an agent starts."""
INTERACTIVE: Final = "interactive"
"""The kind of a run that a program or notebook has begun for itself: its state is its owner's to say."""
SWEEP: Final = "sweep"
"""The kind of a run whose parts are runs of one script, with other parameters each."""

_ID: Final = re.compile(
    r"(?P<experiment>[A-Za-z0-9][A-Za-z0-9._-]{0,99})_[0-9]+_[0-9a-f]{8}(?P<part>(_[0-9]+)*)", re.ASCII
)
_RESERVED: Final = frozenset({"aux", "con", "nul", "prn", "latest", "all"})


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The immutable facts about a run.

    Attributes:
        id: `EXPERIMENT_UNIXTIME_8HEX`; a child of a sweep has `_N` behind that of its parent.
        experiment: Name of the experiment.
        created_ms: When it was submitted, in milliseconds since 1970.
        definition: What was asked.
        kind: `script`, `interactive` or `sweep`.
        snapshot: Digest of its files; empty where there are none.
        data: Digest of each data set, by the name of the input.
        parent: Id of the run that it is a part of; empty where it is none.
        properties: What is known of its origin, such as the commit; for good.
        tags: The labels with which it was submitted.
        sweep: What `stoker_runs.tuning.terms.Terms.to_json` gave; empty where it is no sweep.
    """

    id: str
    experiment: str
    created_ms: int
    definition: Definition
    kind: str = SCRIPT
    snapshot: str = ""
    data: Mapping[str, str] = field(default_factory=dict)
    parent: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    sweep: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `run.json`."""
        return {
            "id": self.id,
            "experiment": self.experiment,
            "created": self.created_ms,
            "kind": self.kind,
            "definition": self.definition.to_json(),
            "snapshot": self.snapshot,
            "data": dict(self.data),
            "parent": self.parent,
            "properties": dict(self.properties),
            "tags": dict(self.tags),
            "sweep": dict(self.sweep),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunRecord:
        """Inverse of `to_json`.

        Raises:
            ValueError: The content is not a run's record.
        """
        try:
            return cls(
                str(content["id"]),
                str(content["experiment"]),
                int(content["created"]),
                Definition.from_json(content["definition"]),
                str(content["kind"]),
                str(content["snapshot"]),
                dict(content["data"]),
                str(content["parent"]),
                dict(content["properties"]),
                dict(content["tags"]),
                # Records of before had none.
                dict(content.get("sweep", {})),
            )
        except (LookupError, TypeError, AttributeError) as problem:
            raise ValueError(f"this is no record of a run: {problem!r}") from problem


def checked_experiment(name: str) -> str:
    """Return the name if it is valid for an experiment: it is used as a folder name and as a prefix of ids.

    Raises:
        InvalidSettings: It is not; the message suggests a valid one.
    """
    if name.lower() in _RESERVED:
        raise InvalidSettings(f"{name!r} cannot be an experiment name: it is reserved; {name}-1 would do")
    return checked_name(name, "experiment")


def new_run_id(experiment: str, now_ms: int, token: str) -> str:
    """Return the id of a new run.

    Args:
        experiment: The experiment.
        now_ms: The time.
        token: Eight random hexadecimal digits.
    """
    return f"{experiment}_{now_ms // 1000}_{token}"


def is_part(run_id: str) -> bool:
    """Whether an id is that of a part of another run, as of a sweep."""
    found = _ID.fullmatch(run_id)
    return found is not None and bool(found["part"])


def experiment_of(run_id: str) -> str | None:
    """The experiment in a run's id; None if the text is not a complete id."""
    found = _ID.fullmatch(run_id)
    return None if found is None else found["experiment"]
