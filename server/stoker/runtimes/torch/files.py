"""Files of PyTorch, opened without running code that they name.

PyTorch unpickles parts of a program, evaluates its expressions as Python, and imports modules that its structures
name. So a file is searched for these first, and PyTorch unpickles tensors alone.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from stoker.errors import LoadFailed

_OLDEST: Final = (2, 10)
"""The first version of PyTorch whose `weights_only` runs no code (CVE-2026-24747)."""
_FORCE: Final = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_FORBID: Final = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_ZIP: Final = b"PK\x03\x04"
_MOST_LEVELS: Final = 3
_TENSOR_GLOBALS: Final = re.compile(
    r"collections (OrderedDict|Counter)|_codecs encode|(builtins|__builtin__) (set|bytearray|complex)"
    r"|torch\._utils _rebuild_\w+|torch\._tensor _rebuild_from_type_v2|torch\.serialization _get_layout"
    r"|torch\.nn\.parameter Parameter|torch\.storage (Untyped|Typed)Storage"
    r"|torch (\w+Storage|Size|Tensor|device|bool|half|float|double|short|int|long|per_\w+|b?q?u?(int|float|bits)\d\w*"
    r"|complex\d\w*)"
)
"""Modules and names that pickles of tensors need."""
_NAME: Final = re.compile(r"[!-~]+")
_TEXT_OPCODES: Final = frozenset("SVTUX\x8c\x8d")
_OPCODES: Final = {opcode.code: opcode for opcode in pickletools.opcodes}
_LENGTHS: Final = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_NODES: Final = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Call,
        ast.keyword,
        ast.Name,
        ast.Tuple,
    ),
    *(ast.Attribute, ast.Subscript, ast.Constant, ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_FUNCTION: Final = re.compile(r"[A-Z]\w*|max|min|abs|int|float|bool|round|floor|ceiling|sqrt|log")
_ATTRIBUTE: Final = re.compile(
    r"\w+\.(_?sym_\w+|floor|ceil|trunc|sqrt|inf|pi)|.*\.(size|stride|storage_offset)"
)
_ONE_LINE: Final = re.compile(r"[ !\"$-\[\]-~]*")
_QUOTES: Final = re.compile(r"[\"'\\\x00-\x1f]")
_PLAIN_TEXT: Final = re.compile(r"[\w.+\- /:]*")


def load_program(path: Path, *, allow_pickle: bool = False) -> Any:
    """Load a program of `torch.export.save`.

    Raises:
        LoadFailed: It holds more than a program, and `allow_pickle` is not set.
    """
    torch = _import_torch()
    if allow_pickle:
        return _load_program(torch, path)
    _check_names_no_code(path)
    try:
        with _weights_alone():
            return _load_program(torch, path)
    except pickle.UnpicklingError as error:
        raise LoadFailed(_refusal(path, str(error).partition("\n")[0])) from error


def load_weights(path: Path, device: Any) -> Any:
    """Read tensors, and dicts and lists of them, that `torch.save` has written.

    Raises:
        LoadFailed: The file holds other objects.
    """
    torch = _import_torch()
    _check_names_no_code(path)
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        raise LoadFailed(_refusal(path, str(error).partition("\n")[0])) from error


def find_code(path: Path) -> str:
    """Return the first part of a file that has PyTorch run code, in words; empty without one."""
    with path.open("rb") as file:
        return next(_find_code_in(file, path.name, 0), "")


def _import_torch() -> Any:
    """Return PyTorch; raise LoadFailed for versions that run code of files even with `weights_only`."""
    import torch

    numbers = [int(number) for number in re.findall(r"\d+", torch.__version__)[:2]]
    if tuple(numbers) < _OLDEST:
        raise LoadFailed(
            f"PyTorch {torch.__version__} runs code that files name even if it reads tensors alone "
            f"(CVE-2026-24747): install {'.'.join(map(str, _OLDEST))} or newer"
        )
    return torch


def _check_names_no_code(path: Path) -> None:
    """Refuse a file that names code; see `find_code`."""
    try:
        found = find_code(path)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise LoadFailed(f"{path} is damaged or cut short: {error}") from error
    if found:
        raise LoadFailed(_refusal(path, found))


def _refusal(path: Path, found: str) -> str:
    return (
        f"{path} holds pickled objects, which run code of their author when they are loaded, or expressions that do "
        f"({found}): save model.state_dict(), or the model by torch.export.save with inputs of tensors; or trust it "
        "with allow_pickle: true, in an archive of TorchServe by a handler that loads it"
    )


class _HiddenErrors(logging.Handler):
    """Collects the errors that `torch.export.load` logs before it raises another one, which names no cause."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect the error of a record."""
        if record.exc_info and record.exc_info[1] is not None:
            self.errors.append(record.exc_info[1])


def _load_program(torch: Any, path: Path) -> Any:
    """Load a program; raise the first cause of a failure."""
    hidden = _HiddenErrors()
    log = logging.getLogger("torch.export")
    log.addHandler(hidden)
    log.propagate, before = False, log.propagate
    try:
        return torch.export.load(path)
    except RuntimeError as error:
        raise (hidden.errors[-1] if hidden.errors else error) from None
    finally:
        log.removeHandler(hidden)
        log.propagate = before


@contextmanager
def _weights_alone() -> Iterator[None]:
    """Make `torch.load` unpickle tensors alone, also for its callers within PyTorch."""
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORBID)}
    os.environ[_FORCE] = "1"
    try:
        yield
    finally:
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _find_code_in(file: IO[bytes], name: str, level: int) -> Iterator[str]:
    """Yield descriptions of code in a file, or in a part of one."""
    begin = file.read(len(_ZIP))
    file.seek(0)
    if begin == _ZIP:
        yield from _find_code_in_archive(file, name, level)
    elif begin.lstrip()[:1] == b"{":
        yield from (f"{name} has {found}" for found in _find_expressions(file.read()))
    else:
        yield from (f"{name} names {found}" for found in _find_globals(file))


def _find_code_in_archive(file: IO[bytes], name: str, level: int) -> Iterator[str]:
    if level == _MOST_LEVELS:
        yield f"{name} is an archive within archives"
        return
    with zipfile.ZipFile(file) as archive:
        if archive.comment:
            # Another reader might find another table of contents in it.
            yield f"{name} has a comment"
        for info in archive.infolist():
            with archive.open(info) as part:
                yield from _find_code_in(part, info.filename, level + 1)


def _find_globals(file: IO[bytes]) -> Iterator[str]:
    """Yield the names that pickles load, without those of tensors. Pickles may follow each other.

    Arguments are skipped by their lengths alone, because Python's own reader stops at some that `pickle` accepts.
    Bytes of tensors end the search soon: they would have to be a valid pickle up to a printable name.
    """
    names: list[str] = []
    while code := file.read(1):
        opcode = _OPCODES.get(code.decode("latin-1"))
        if opcode is None:
            return
        if opcode.name in ("GLOBAL", "INST"):
            found = " ".join(file.readline().rstrip(b"\n").decode("latin-1") for _ in range(2))
            if all(map(_NAME.fullmatch, found.split(" "))) and not _TENSOR_GLOBALS.fullmatch(found):
                yield found.replace(" ", ".")
        elif opcode.name == "STACK_GLOBAL":
            if names:
                yield ".".join(names[-2:])
        else:
            argument = _read_argument(file, opcode)
            if opcode.code in _TEXT_OPCODES and _NAME.fullmatch(
                text := argument.decode("latin-1").strip("'\"")
            ):
                names = [*names[-1:], text]


def _read_argument(file: IO[bytes], opcode: pickletools.OpcodeInfo) -> bytes:
    if opcode.arg is None:
        return b""
    if opcode.arg.n == pickletools.UP_TO_NEWLINE:
        return file.readline().rstrip(b"\n")
    if opcode.arg.n >= 0:
        return file.read(opcode.arg.n)
    return file.read(int.from_bytes(file.read(_LENGTHS[opcode.arg.n]), "little"))


def _find_expressions(content: bytes) -> Iterator[str]:
    """Yield texts in the JSON of a program that PyTorch would evaluate or import, without arithmetic of sizes."""
    try:
        parts = [json.loads(content)]
    except (ValueError, RecursionError):
        # PyTorch uses the same reader, so it cannot read the text either.
        return
    while parts:
        part = parts.pop()
        parts += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        for name, value in part.items() if isinstance(part, dict) else ():
            check = _CHECKS.get(name) or (_is_plain_text if name.endswith(("name", "fqn")) else None)
            for text in value if isinstance(value, list) else [value]:
                if check is not None and isinstance(text, str) and not check(text):
                    yield f"{name} {text[:80]!r}"


def _is_arithmetic(expression: str) -> bool:
    """Whether an expression computes with numbers and sizes alone: it calls only functions of arithmetic."""
    if not _ONE_LINE.fullmatch(expression):
        # Libraries that evaluate it drop line ends, and so may see other code than Python's parser.
        return False
    try:
        nodes = list(ast.walk(ast.parse(expression.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    for node in nodes:
        if not isinstance(node, _NODES):
            return False
        if isinstance(node, ast.Attribute) and not _ATTRIBUTE.fullmatch(ast.unparse(node)):
            return False
        if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute | ast.Name):
            return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and not _FUNCTION.fullmatch(node.func.id)
        ):
            return False
        if isinstance(node, ast.Constant) and not _PLAIN_TEXT.fullmatch(str(node.value)):
            return False
    return True


def _is_plain_structure(structure: str) -> bool:
    """Whether a structure of inputs imports no module, and has no keys that could end a text in a guard."""
    try:
        parts = [json.loads(structure)]
    except (ValueError, RecursionError):
        return False
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            if "__enum__" in part or part.get("default_factory_module", "builtins") != "builtins":
                return False
            parts += part
            parts += (_parse(value) if name == "context" else value for name, value in part.items())
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str) and _QUOTES.search(part):
            return False
    return True


def _parse(context: Any) -> Any:
    """Return the content of a text of JSON, and other values, such as the name of a class, unchanged."""
    try:
        return json.loads(context) if isinstance(context, str) else context
    except (ValueError, RecursionError):
        return context


def _is_plain_text(text: str) -> bool:
    """Whether a name has no special characters for the source that PyTorch makes of a program."""
    return _PLAIN_TEXT.fullmatch(text) is not None


_CHECKS: Final = {
    "expr_str": _is_arithmetic,
    "guards_code": _is_arithmetic,
    "in_spec": _is_plain_structure,
    "out_spec": _is_plain_structure,
    "forward_arg_names": _is_plain_text,
}
"""Checks of texts that PyTorch evaluates, imports or writes into source, by their keys in the JSON of a program."""
