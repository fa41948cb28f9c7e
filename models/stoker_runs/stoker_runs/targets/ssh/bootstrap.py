"""The first words to a machine: a line of Python that has the agent's zip there, and begins its porter."""

from __future__ import annotations

import shlex

__all__ = ["BEGINS", "command", "first_line"]

BEGINS = b"stoker_run:"
"""How each line of the first talk begins: what login scripts print does not."""

# No quote, no newline and no variable: the login shell may be any.
_COMMAND = '-c "import sys;exec(sys.stdin.buffer.readline())"'

_SOURCE = """
import hashlib, json, os, shutil, sys
def say(**said):
    sys.stdout.buffer.write({begins!r} + json.dumps(said).encode("ascii") + b"\\n")
    sys.stdout.buffer.flush()
def begin():
    if sys.version_info < (3, 6):
        say(old=sys.version.split()[0])
        return
    folder = os.path.abspath(os.path.expanduser({folder!r}))
    place = os.path.join(folder, "agents", {digest!r} + ".zip")
    try:
        if not os.path.isdir(folder):
            os.makedirs(folder)
            os.chmod(folder, 0o700)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if not os.path.isfile(place):
            say(wants={size})
            data = sys.stdin.buffer.read({size})
            if hashlib.sha256(data).hexdigest() != {digest!r}:
                return
            beside = "{{}}.{{}}".format(place, os.getpid())
            with open(beside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, place)
        unpacked = place[:-4]
        if not os.path.isdir(unpacked):
            import zipfile
            beside = "{{}}.{{}}".format(unpacked, os.getpid())
            with zipfile.ZipFile(place) as archive:
                archive.extractall(beside)
            try:
                os.rename(beside, unpacked)
            except OSError:
                shutil.rmtree(beside)
                if not os.path.isdir(unpacked):
                    raise
    except OSError as error:
        say(errno=error.errno, error=error.strerror, path=error.filename or place)
        return
    sys.path.insert(0, unpacked)
    from stoker_run.porter import serve
    say(folder=folder, python=sys.version.split()[0], interpreter=sys.executable, path=os.environ.get("PATH", ""))
    serve(folder)
begin()
"""


def command(*python: str) -> str:
    """The command line that takes the first line.

    Args:
        python: The interpreter there, or the words of a command that runs one.
    """
    return f"{shlex.join(python)} {_COMMAND}"


def first_line(folder: str, digest: str, size: int) -> bytes:
    """The line.

    Args:
        folder: Where everything of runs is there; `~` is the home of who logs in.
        digest: SHA-256 of the zip.
        size: Its length in bytes.
    """
    source = _SOURCE.format(begins=BEGINS, folder=folder, digest=digest, size=size)
    # Texts of any language, in characters that every encoding has.
    return f"exec({source!a})\n".encode("ascii")
