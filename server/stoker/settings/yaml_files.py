"""Reading files of YAML: nothing in them is lost silently, and nesting and aliases of aliases are bounded.

A reader gets one sentence if the file is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

from stoker.errors import InvalidSettings
from stoker.settings.files import MOST_LEVELS, MOST_NUMBER, TOO_DEEP, TOO_LARGE, settings_text

if TYPE_CHECKING:
    from collections.abc import MutableSequence
    from pathlib import Path

_MOST_VALUES: Final = 1_000_000


def describe_repeated_key(key: object, how: str = "", *, last_counts: bool = False) -> str:
    """Return the message about a key that occurs twice in a mapping."""
    return f"the key {key} occurs twice{how}" + ("; the last one counts" if last_counts else "")


class SettingsLoader(yaml.SafeLoader):
    """YAML without silent losses: PyYAML would keep only the last value of a duplicate key.

    All that is wrong is a `yaml.YAMLError`: also what is nested too deeply, stands for too many values by its
    aliases, or is no value of its type.

    Attributes:
        repeated: Takes a sentence about each duplicate key, whose last value then counts; None for an error.
    """

    repeated: MutableSequence[str] | None = None
    _level = 0

    def get_single_node(self) -> yaml.Node | None:
        """The whole content."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _measure(node, {}, set())
        return node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Return a node with its children."""
        if self._level >= MOST_LEVELS:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # PyYAML has no types
            raise yaml.constructor.ConstructorError(None, None, TOO_DEEP, mark)
        self._level += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """The value of a node."""
        try:
            value = super().construct_object(node, deep)
        except (ValueError, OverflowError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None
        if isinstance(value, int) and abs(value) >= MOST_NUMBER:
            raise yaml.constructor.ConstructorError(None, None, TOO_LARGE, node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The value of a mapping."""
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                if self.repeated is None:
                    problem = describe_repeated_key(key.value)
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                note = describe_repeated_key(key.value, last_counts=True)
                self.repeated.append(f"line {key.start_mark.line + 1}: {note}")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return super().construct_mapping(node, deep)


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]], above: set[int]) -> tuple[int, int]:
    """Count the values and levels of a node; raises ConstructorError if there are too many."""
    if id(node) in known:
        return known[id(node)]
    problem = ""
    values, levels = 1, 1
    if id(node) in above:
        problem = "it contains itself"
    elif not isinstance(node, yaml.ScalarNode):
        above.add(id(node))
        inner = (
            node.value
            if isinstance(node, yaml.SequenceNode)
            else [one for pair in node.value for one in pair]
        )
        sizes = [_measure(one, known, above) for one in inner]
        above.discard(id(node))
        values += sum(each for each, _ in sizes)
        levels += max((each for _, each in sizes), default=0)
        if values > _MOST_VALUES:
            problem = f"it stands for more than {_MOST_VALUES} values"
        elif levels > MOST_LEVELS:
            problem = TOO_DEEP
    if problem:
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    known[id(node)] = values, levels
    return values, levels


def read_yaml(
    file: Path, kind: str, holds: str, repeated: MutableSequence[str] | None = None
) -> dict[str, Any]:
    """Read a file that holds one mapping, or nothing.

    Args:
        kind: The operator's word for it, for messages.
        holds: The content that it must have, for messages.
        repeated: Takes a sentence about each duplicate key, whose last value counts, as for the tools that such
            files were written for; None for an error.
    """
    try:
        loader = SettingsLoader(settings_text(file))
        loader.repeated = None if repeated is None else []
        content = loader.get_single_data()
        if repeated is not None and loader.repeated:
            repeated += [f"{file}, {note}" for note in loader.repeated]
    except OSError as error:
        raise InvalidSettings(f"the {kind} {file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSettings(
            f"the {kind} {file} cannot be read: it is not UTF-8 ({error.reason})"
        ) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or error
        is_yaml = isinstance(error, yaml.constructor.ConstructorError)
        problem = "" if is_yaml else "this is not YAML: "
        raise InvalidSettings(f"{file}{line}: {problem}{' '.join(str(reason).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{file} must hold {holds}")
    return content
