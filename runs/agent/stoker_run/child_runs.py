"""Child runs, which a script begins within its run."""

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

from stoker_run.exceptions import UserErrorException
from stoker_run.json_files import read_json, replace_json
from stoker_run.records import Recorder, has_labels

if TYPE_CHECKING:
    from stoker_run.run import Run

_CHILDREN_AT_MOST = 100
_CHILD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,254}\Z")


class ChildRuns:
    """The children of a run, each in a folder of its own below that of the attempt."""

    id: str
    _recorder: Recorder

    def child_run(
        self, name: Optional[str] = None, run_id: Optional[str] = None, outputs: Any = None
    ) -> "Run":
        """Begin a child of this run, in the same process.

        Raises:
            UserErrorException: There is a child with this id.
        """
        if run_id is not None and not _CHILD_ID.match(run_id):
            raise UserErrorException(
                f"{run_id!r} cannot be the id of a child run: it begins with a letter or digit, and "
                "has letters, digits, _, . and - alone, at most 255"
            )
        folder = self._recorder.folder / "children"
        number = 0
        while True:
            child_id = run_id or f"{self.id}_{number}"
            place = folder / child_id
            try:
                place.mkdir(parents=True)
            except FileExistsError as error:
                if run_id:
                    raise UserErrorException(f"there is a child run {run_id}") from error
                number += 1
            else:
                break
        facts = {"id": child_id, "number": number + 1, "name": name, "parent": self.id}
        replace_json(place / "child.json", {**facts, "started_ms": int(time.time() * 1000)})
        child = self._child(place, facts)
        if name:
            child.display_name = name
        return child

    def create_children(
        self,
        count: Optional[int] = None,
        tag_key: Optional[str] = None,
        tag_values: Optional[Sequence[Any]] = None,
    ) -> "List[Run]":
        """Begin several children.

        Raises:
            UserErrorException: Neither or both of `count` and the tags are given, or there are more than 100.
        """
        if (count is None) == (tag_values is None) or (tag_values is not None and tag_key is None):
            raise UserErrorException("create_children takes either a count, or a tag_key and tag_values")
        wanted = len(tag_values) if tag_values is not None else count or 0
        if wanted > _CHILDREN_AT_MOST:
            raise UserErrorException(
                f"create_children makes at most {_CHILDREN_AT_MOST} at once, not {wanted}"
            )
        children = [self.child_run() for _ in range(wanted)]
        for child, value in zip(children, tag_values or ()):
            child.tag(str(tag_key), value)
        return children

    def get_children(
        self,
        recursive: bool = False,
        tags: Any = None,
        properties: Any = None,
        type: Optional[str] = None,  # noqa: A002  # Azure's name
        status: Optional[str] = None,
        **_others: Any,
    ) -> "Iterator[Run]":
        """The children that this attempt has begun, the last one first.

        Args:
            recursive: With their children.
            tags: A name, or values by name, that the child's tags must have.
            properties: The same of its properties.
            type: `azureml.scriptrun`.
        """
        found = []
        for place in (self._recorder.folder / "children").glob("*"):
            facts = read_json(place / "child.json")
            if isinstance(facts, dict):
                found.append((facts.get("started_ms", 0), facts.get("number", 0), place, facts))
        for _, _, place, facts in sorted(found, key=lambda one: one[:2], reverse=True):
            child = self._child(place, facts)
            fits = type in (None, child.type) and status in (None, child.status)
            if fits and has_labels(child.tags, tags) and has_labels(child.properties, properties):
                yield child
            if recursive:
                yield from child.get_children(True, tags, properties, type, status)

    def _child(self, folder: Path, facts: Dict[str, Any]) -> "Run":
        """Return the child whose files are in a folder."""
        raise NotImplementedError
