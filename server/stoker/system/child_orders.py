"""Work in a process of its own: its order is JSON in the argument, its answer the last line that it prints.

The process keeps a framework's memory, threads, log lines and crashes away from the caller.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from stoker.errors import LoadFailed, LoadTimeout, OperatorError
from stoker.system.resources import MemoryKills


def order_child(
    module: str, order: Mapping[str, Any], limit_s: float, name: str, participle: str
) -> dict[str, Any]:
    """Run `python -m module` with an order; return its answer.

    Args:
        limit_s: The process is ended after so many seconds.
        name: The object of the work, for messages.
        participle: The work, for messages: `name was not PARTICIPLE`.

    Raises:
        LoadTimeout: The time is up.
        LoadFailed: The process reports an error, or ends without an answer.
    """
    command = [sys.executable, "-P", "-m", module, json.dumps(order)]
    kills = MemoryKills()
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
            timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LoadTimeout(
            f"{name} was not {participle} within {limit_s:g} s, so its process was ended; if it only needs longer, "
            "raise load_timeout_s"
        ) from None
    last_line = (child.stdout.strip().splitlines() or [""])[-1]
    try:
        answer: dict[str, Any] = json.loads(last_line)
    except ValueError as error:
        reason = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        how = kills.describe(child.returncode)
        raise LoadFailed(f"{name} was not {participle}: its process {how}: {reason}") from error
    if "error" in answer:
        raise LoadFailed(answer["error"])
    return answer


def answer_order(work: Callable[[dict[str, Any]], dict[str, Any]], problem: str) -> int:
    """Carry out the order in the first argument of this process, and print the answer.

    Args:
        problem: Begins the message of an error that is none of the operator's.
    """
    try:
        answer = work(json.loads(sys.argv[1]))
    except OperatorError as error:
        answer = {"error": str(error)}
    except Exception as error:  # noqa: BLE001  # frameworks raise any exception
        answer = {"error": f"{problem}: {error!r}"}
    # Models may print while they load; the answer is the last line.
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    return 0
