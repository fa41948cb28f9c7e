"""The labels of a run: its display name, description, tags and properties."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from stoker_runs.records.folder import RunFolder


class LabelsOfRun:
    """The labels of a run."""

    id: str
    folder: RunFolder

    @property
    def display_name(self) -> str:
        """The name that the script gave the run, else its id."""
        names = [line for line in self.folder.event_lines() if line.get("e") == "name"]
        names.sort(key=lambda line: line.get("t", 0))
        return str(names[-1].get("v")) if names else self.id

    @display_name.setter
    def display_name(self, name: str) -> None:
        self.folder.add_event("name", None, str(name), int(time.time() * 1000))

    @property
    def name(self) -> str:
        """The same as `display_name`."""
        return self.display_name

    @property
    def description(self) -> str:
        """The description, which is a tag too."""
        return self.tags.get("description", "")

    @description.setter
    def description(self, text: str) -> None:
        self.tag("description", text)

    @property
    def tags(self) -> dict[str, str]:
        """Its tags."""
        return self.folder.tags()

    @property
    def properties(self) -> dict[str, str]:
        """The origin of the run, and properties that the script added."""
        return self.folder.properties()

    def get_tags(self) -> dict[str, str]:
        """Return `tags`."""
        return self.tags

    def get_properties(self) -> dict[str, str]:
        """Return `properties`."""
        return self.properties

    def tag(self, key: str, value: Any = None) -> None:
        """Set a tag."""
        self.set_tags({key: "" if value is None else value})

    def set_tags(self, tags: Mapping[str, Any]) -> None:
        """Set several tags."""
        changes = {str(key): str(value) for key, value in tags.items()}
        self.folder.change_tags(changes, int(time.time() * 1000))

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags."""
        self.folder.change_tags(dict.fromkeys(tags), int(time.time() * 1000))

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties; one that is there stays as it is."""
        for key, value in properties.items():
            self.folder.add_event("property", str(key), str(value), int(time.time() * 1000))
