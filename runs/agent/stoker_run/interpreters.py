"""The Python interpreters of a machine, their installers, and their packages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

_NAMED = re.compile(r"python3(\.[0-9]+)?$")
_PROBE = "import json, sys; print(json.dumps([sys.executable] + list(sys.version_info[:3])))"
_PATHS = "import json, sys; print(json.dumps([sys.version.split()[0], sys.path]))"


def find_pythons() -> Dict[str, Any]:
    """The machine's Pythons from 3.6 up, one of each version, this one first; and how uv is called, or None."""
    seen: Dict[str, List[Any]] = {}
    tried = set()
    for path in _candidates():
        if os.path.realpath(path) in tried:
            continue
        tried.add(os.path.realpath(path))
        answer = _probed(path)
        if answer is not None and answer[1] == 3 and answer[2] >= 6:
            seen.setdefault(f"{answer[1]}.{answer[2]}", answer)
    return {"pythons": list(seen.values()), "uv": _uv()}


def installed_packages(python: str) -> Dict[str, Any]:
    """The version of an interpreter and the names of its packages' folders; its `error` where it cannot be run."""
    version, paths = sys.version.split()[0], sys.path
    if python != sys.executable:
        try:
            printed = subprocess.check_output(
                [python, "-c", _PATHS], stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, timeout=60
            )
            version, paths = json.loads(printed.decode("utf-8"))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            output = getattr(error, "output", None) or b""
            last = output.decode("utf-8", "replace").strip().rpartition("\n")[2]
            return {"error": last or str(error)}
    # In thousands of entries, texts take half the time of paths.
    entries = (entry for path in filter(os.path.isdir, paths) for entry in sorted(os.listdir(path)))  # noqa: PTH208
    end = ".dist-info"
    return {"version": version, "names": [name[: -len(end)] for name in entries if name.endswith(end)]}


def _candidates() -> Iterator[str]:
    yield sys.executable
    folders = [
        *map(Path, os.get_exec_path()),
        Path("/usr/local/bin"),
        Path("/usr/bin"),
        Path.home() / ".local/bin",
    ]
    folders += sorted((Path.home() / ".local/share/uv/python").glob("*/bin"))
    for folder in folders:
        for path in sorted(folder.glob("python3*")):
            if _NAMED.match(path.name):
                yield str(path)


def _probed(path: str) -> Optional[List[Any]]:
    try:
        output = subprocess.check_output(
            [path, "-I", "-S", "-c", _PROBE], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30
        )
        answer = json.loads(output.decode("utf-8"))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return answer if isinstance(answer, list) else None


def _uv() -> Optional[str]:
    folders = [*map(Path, os.get_exec_path()), Path(sys.executable).parent]
    folders += [Path.home() / ".local/bin", Path.home() / ".cargo/bin"]
    found = (folder / "uv" for folder in folders)
    return next((str(path) for path in found if _runs(str(path))), None)


def _runs(program: str) -> bool:
    """Whether a program can be run: one of another machine may lie in a container."""
    try:
        return subprocess.call([program, "--version"], stdout=subprocess.DEVNULL, timeout=30) == 0
    except (OSError, subprocess.SubprocessError):
        return False
