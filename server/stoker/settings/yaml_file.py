"""YAML files with settings in them: reading without silent losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from stoker.errors import InvalidSettings

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_yaml"]


class _Loader(yaml.SafeLoader):
    """YAML without silent losses: of a key that stands twice, PyYAML would keep the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value} stands there twice", key.start_mark
                )
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return super().construct_mapping(node, deep)


def read_yaml(file: Path, kind: str, holds: str) -> dict[str, Any]:
    """Read a file that holds one mapping, or nothing.

    Args:
        file: The file.
        kind: What the operator calls it, for messages.
        holds: What it must hold, for messages.

    Raises:
        InvalidSettings: It cannot be read, or holds something else.
    """
    try:
        # Editors on Windows begin files with a byte-order mark.
        content = yaml.load(file.read_text(encoding="utf-8-sig"), _Loader)  # noqa: S506  # a SafeLoader
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
        raise InvalidSettings(f"{file}{line}: this is not YAML: {reason}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise InvalidSettings(f"{file} must hold {holds}")
    return content
