"""The modules of `stoker` that one row passes from socket to socket, measured on a running server.

A server with one frontend serves an ONNX file. Its frontend and its device process trace their Python code; the
modules that run while a plain JSON row is answered, from the bytes that the frontend reads to those that it writes,
are on the row's path.
"""

from __future__ import annotations

import json
import mmap
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

from tests.http.raw_http import rows_body, scoring
from tests.live_server import LiveServer, wait_until
from tests.tiny_models import write_doubler

__all__ = ["row_path"]

_TRACER: Final = """
import json, mmap, os, sys, threading

def install(folder):
    with open(os.path.join(folder, "window"), "r+b") as file:
        window = mmap.mmap(file.fileno(), 0)
    seen = {}

    def trace(frame, event, argument):
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("stoker.") or frame.f_code.co_name == "<module>":
            return None
        number = window[0]
        if number == 255 and seen:
            windows = {key: sorted(names) for key, names in seen.items()}
            seen.clear()
            path = os.path.join(folder, str(os.getpid()))
            with open(path + ".new", "w") as file:
                json.dump(windows, file)
            os.rename(path + ".new", path + ".json")
        elif 0 < number < 255:
            seen.setdefault(number, set()).add(name)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)

if "stoker.gateway.frontend" in sys.orig_argv or "stoker.device.process" in sys.orig_argv:
    install(os.environ["STOKER_TESTS_ROW_PATH"])
"""
"""Imported by each process of the server at its start; a byte of shared memory says which request is under way."""

_REQUESTS: Final = 60
_COUNTED: Final = 20
"""So many of the requests, the fastest, are counted: others may have been interrupted."""
_WARM_UP: Final = 20
_AFTER_S: Final = 0.002
"""A window is open for so much longer than its request, for what the device process does after it has answered."""
_PROCESSES: Final = 2


def row_path() -> list[str]:
    """Return the modules that run for nine of ten requests; timers, and remarks on slow ones, run for fewer."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(_TRACER, encoding="utf-8")
        (folder / "window").write_bytes(b"\0")
        (folder / "server").mkdir()
        model = write_doubler(folder / "doubler.onnx")
        env = {"PYTHONPATH": name, "STOKER_TESTS_ROW_PATH": name}
        with (folder / "window").open("r+b") as file, mmap.mmap(file.fileno(), 0) as window:
            server = LiveServer(folder / "server", model, "--frontends", "1", env=env)
            request = scoring("/score", server.key, rows_body([1, 2, 3, 4]))
            with server, server.connect() as connection:
                took_ns = {}
                for number in range(-_WARM_UP, _REQUESTS):
                    window[0] = max(0, number + 1)
                    begun_ns = time.monotonic_ns()
                    assert connection.ask(request).status == 200
                    took_ns[number + 1] = time.monotonic_ns() - begun_ns
                    time.sleep(_AFTER_S)
                    window[0] = 0
                    time.sleep(_AFTER_S)
                window[0] = 255

                def written() -> list[Path]:
                    connection.ask(request)
                    found = list(folder.glob("*.json"))
                    return found if len(found) == _PROCESSES else []

                files = wait_until(written, "the traces of the frontend and of the device process")
        runs: Counter[str] = Counter()
        counted = sorted(range(1, _REQUESTS + 1), key=took_ns.__getitem__)[:_COUNTED]
        for path in files:
            windows = json.loads(path.read_text(encoding="utf-8"))
            for number in counted:
                runs.update(windows.get(str(number), ()))
    return sorted(module for module, count in runs.items() if count > 0.9 * _COUNTED)
