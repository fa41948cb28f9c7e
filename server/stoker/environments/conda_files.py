"""Environment files of conda: `name`, `channels`, and `dependencies` with or without a list for pip."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

import yaml
from packaging.specifiers import SpecifierSet

from stoker.environments.conda_specs import parse_conda_spec
from stoker.environments.package_names import not_applicable, on_pypi
from stoker.environments.pip_files import PipLines, read_text
from stoker.environments.specification import Entry, Place, Specification
from stoker.errors import EnvironmentUnusable
from stoker.settings.names import did_you_mean
from stoker.settings.yaml_files import SettingsLoader

_SECTIONS: Final = ("name", "channels", "dependencies", "prefix", "variables", "platforms")
_VARIABLES_NOTE: Final = "variables of conda are not set: set them where stoker serve is started"


def read_conda_file(path: Path) -> Specification:
    """Read an environment file of conda.

    Channels are ignored: packages come from PyPI, or from the indexes in the options of the pip list.
    """
    path = path.absolute()
    reader = _CondaReader(path)
    for key, value in _sections(path):
        place = Place(path, key.start_mark.line + 1)
        match key.value:
            case "dependencies":
                reader.add_dependencies(value)
            case "variables":
                reader.pip.entries.append(Entry("variables", place, note=_VARIABLES_NOTE))
            case name if name not in _SECTIONS:
                hint = did_you_mean(name, _SECTIONS, f"known are: {', '.join(_SECTIONS)}")
                raise EnvironmentUnusable(f"{place}: a conda file has no section {name!r}; {hint}")
    pip = reader.pip
    return Specification(
        path, tuple(pip.entries), reader.python, tuple(dict.fromkeys(pip.options)), tuple(pip.files)
    )


def _sections(path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
    try:
        root = yaml.compose(read_text(path), SettingsLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = error.problem or error.context or "it cannot be parsed"
        raise EnvironmentUnusable(
            f"{Place(path, mark.line + 1 if mark else 1)}: this is not YAML: {reason}"
        ) from error
    except yaml.YAMLError as error:
        raise EnvironmentUnusable(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1 if root else 1
        raise EnvironmentUnusable(
            f"{Place(path, line)}: a conda file begins with sections such as dependencies:, this one does not"
        )
    if "dependencies" not in [key.value for key, _ in root.value]:
        near = [key for key, _ in root.value if difflib.get_close_matches(str(key.value), ["dependencies"])]
        line = near[0].start_mark.line + 1 if near else 1
        raise EnvironmentUnusable(f"{Place(path, line)}: the section dependencies: is missing")
    return list(root.value)


class _CondaReader:
    def __init__(self, path: Path) -> None:
        self.pip = PipLines()
        self.python = SpecifierSet()
        self._path = path

    def add_dependencies(self, node: yaml.Node) -> None:
        for item in self._items(node, "dependencies"):
            place = self._place(item)
            if isinstance(item, yaml.ScalarNode):
                self._add_conda(item.value, place)
            elif isinstance(item, yaml.MappingNode) and [key.value for key, _ in item.value] == ["pip"]:
                for line in self._items(item.value[0][1], "pip"):
                    if not isinstance(line, yaml.ScalarNode):
                        raise EnvironmentUnusable(
                            f"{self._place(line)}: an entry of the pip list must be one text, such as numpy>=2"
                        )
                    self.pip.add(line.value, self._place(line))
            else:
                raise EnvironmentUnusable(
                    f"{place}: a dependency must be one text, such as numpy=1.19, or a list under pip:"
                )

    def _items(self, node: yaml.Node, section: str) -> list[yaml.Node]:
        """The non-empty entries of a list, which may be missing."""
        if isinstance(node, yaml.ScalarNode) and not node.value:
            return []
        if not isinstance(node, yaml.SequenceNode):
            raise EnvironmentUnusable(
                f"{self._place(node)}: {section}: must be a list, each entry after a dash"
            )
        return [item for item in node.value if not isinstance(item, yaml.ScalarNode) or item.value]

    def _place(self, node: yaml.Node) -> Place:
        return Place(self._path, node.start_mark.line + 1)

    def _add_conda(self, text: str, place: Place) -> None:
        if "://" in text:
            self.pip.entries.append(
                Entry(text, place, note="a package file of conda, which pip cannot install")
            )
            return
        try:
            spec = parse_conda_spec(text)
        except ValueError as error:
            raise EnvironmentUnusable(f"{place}: {error}") from None
        if spec.name.lower() == "python":
            self.python = spec.specifier
            return
        reason = not_applicable(spec.name)
        if reason:
            self.pip.entries.append(Entry(text, place, note=reason))
            return
        name = on_pypi(spec.name)
        note = "" if name == spec.name else f"called {name} on PyPI"
        notes = "; ".join(filter(None, (note, spec.note)))
        self.pip.require(f"{name}{spec.specifier}", place, note=notes, written=text)
