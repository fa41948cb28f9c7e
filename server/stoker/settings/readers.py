"""Reading and checking values of options, variables, and files of Stoker and of Azure (decision 49).

A *reader* takes a value and returns the one to use, or raises ValueError with words that follow the setting's name:
"must be ...". Values are texts where they come from the command line or the environment, and also numbers, lists and
mappings where they come from YAML or JSON. `read_value` and `unknown_setting` make the error for the operator: every
message says where the value is from, which setting has it, what is allowed, and what was given.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final, Literal

from stoker.errors import InvalidSettings
from stoker.settings.choices import NON_FINITE, NonFinite
from stoker.settings.names import did_you_mean, parse_reference

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
DEVICE_SEPARATOR: Final = "+"
"""Separates the GPUs that one process sees; a comma separates the devices of replicas."""
_WHOLE_GPUS: Final = ("cuda:", "GPU-")
_DEVICE: Final = re.compile(r"auto|cpu|cuda:[0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)
_MAX_BATCH_ROWS: Final = 65536


def setting(default: Any, read: Callable[[Any], Any], text: str, metavar: str = "N") -> Any:
    """Declare a field that can be set."""
    return dataclasses.field(default=default, metadata={"read": read, "help": text, "metavar": metavar})


def settings_of(kind: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of a class that can be set, by name."""
    return {field.name: field for field in dataclasses.fields(kind) if field.metadata}


def read_settings(
    kind: type, values: Mapping[str, Any], source: str, also: Sequence[str] = ()
) -> dict[str, Any]:
    """Read the values of settings of a class; see `read_values`."""
    readers = {name: field.metadata["read"] for name, field in settings_of(kind).items()}
    return read_values(readers, values, source, also)


def read_values(
    readers: Mapping[str, Callable[[Any], Any]],
    values: Mapping[str, Any],
    source: str,
    also: Sequence[str] = (),
) -> dict[str, Any]:
    """Read values by their names.

    Args:
        source: Where the values are from, for messages.
        also: Further names that are known where the values come from, for messages.
    """
    result = {}
    for name, value in values.items():
        if name not in readers:
            raise unknown_setting(name, (*readers, *also), source)
        result[name] = read_value(name, value, readers[name], source)
    return result


def read_value(
    name: str, value: Any, read: Callable[[Any], Any], source: str, *, is_secret: bool = False
) -> Any:
    """Read one value.

    Args:
        source: Where the value is from, for messages.
    """
    try:
        return read(value)
    except ValueError as error:
        shown = "" if is_secret else f", got {value!r}"
        raise InvalidSettings(f"{source}: {name} {error}{shown}") from None


def unknown_setting(name: object, known: Collection[str], source: str) -> InvalidSettings:
    """Return the error for a name that is not a setting."""
    hint = did_you_mean(name, known, f"known are: {', '.join(known)}")
    return InvalidSettings(f"{source}: there is no setting {name!r}; {hint}")


def check_keys(value: Mapping[Any, Any], known: Sequence[str], where: str = "") -> None:
    """Check the keys of a setting that is a mapping.

    Raises:
        ValueError: Another key is there. The message follows the setting's name.
    """
    for key in value:
        if key not in known:
            hint = did_you_mean(key, known, f"it has {', '.join(known)}")
            raise ValueError(f"has {where}no {key!r}; {hint}")


def read_members(
    value: Mapping[Any, Any], readers: Mapping[str, Callable[[Any], Any]], where: str = ""
) -> dict[str, Any]:
    """Read the members of a setting that is a mapping, each by its reader.

    Raises:
        ValueError: A key is unknown, or a value malformed. The message follows the setting's name.
    """
    check_keys(value, tuple(readers), where)
    members = {}
    for name, given in value.items():
        try:
            members[name] = readers[name](given)
        except ValueError as error:
            raise ValueError(f"has {where}a value of {name} that {error}") from None
    return members


def optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a reader for which null says, as YAML has it, that there is no value."""
    return lambda value: None if value is None else read(value)


def number_of(kind: Callable[[str], Any], low: float, high: float) -> Callable[[Any], Any]:
    """Return a reader of numbers from `low` to `high`, as numbers or texts; `kind` is `int` or `float`."""

    def read(value: Any) -> Any:
        """Read a value as the function around says."""
        if isinstance(value, bool):
            raise ValueError("must be a number")
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError("must be a whole number" if kind is int else "must be a number") from None
        if not low <= number <= high or (kind is int and number != float(value)):
            whole = "a whole number " if kind is int else ""
            raise ValueError(f"must be {whole}between {low:.10g} and {high:.10g}")
        return number

    return read


def read_flag(value: Any) -> bool:
    """Read true or false; words for them are not taken."""
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def read_switch(value: Any) -> bool:
    """Read true or false, or a word for them."""
    if isinstance(value, bool):
        return value
    word = str(value).lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError("must be true or false")
    return word in ("true", "1", "yes")


def read_text(value: Any) -> str:
    """Read a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text")
    return value


def text_of(pattern: re.Pattern[str], rule: str) -> Callable[[Any], str]:
    """Return a reader of texts that match a pattern; `rule` is the message for others."""

    def read(value: Any) -> str:
        """Read a value as the function around says."""
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(rule)
        return value

    return read


def choice_of(*words: str) -> Callable[[Any], str]:
    """Return a reader of one of these words."""

    def read(value: Any) -> str:
        """Read a value as the function around says."""
        if value not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return str(value)

    return read


def listed_texts(value: Any, rule: str) -> list[str]:
    """Split a text at its commas, or check a list of texts; both are returned without spaces around the texts.

    Raises:
        ValueError: It is of another type; the message is `rule`.
    """
    texts = value.split(",") if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise ValueError(rule)
    return [text.strip() for text in texts]


def as_text(value: object) -> str:
    """Return a value as it would be typed: `true` for True."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_audit(value: Any) -> float:
    """Read the share of batches that are audited: `off`, or a number up to 1; YAML reads a bare `off` as false."""
    if value is False or str(value).lower() == "off":
        return 0.0
    rate: float = number_of(float, 0, 1)(value)
    return rate


read_endpoint: Final = text_of(
    re.compile(r"https?://[^\s/?#]+[^\s?#]*"), "must be an address such as http://127.0.0.1:4318"
)
"""Reads a URL of HTTP."""


def read_path(value: Any) -> Path:
    """Read a path; `~` is the home folder."""
    try:
        return Path(read_text(str(value) if isinstance(value, Path) else value)).expanduser()
    except RuntimeError:
        raise ValueError("names a home folder that does not exist") from None


def read_device(value: Any) -> str:
    """Read a device: `auto`, `cpu`, `cuda:N`, or the UUID of a GPU or MIG device; several GPUs joined by `+`."""
    names = value.split(DEVICE_SEPARATOR) if isinstance(value, str) else []
    if not names or not all(map(_DEVICE.fullmatch, names)):
        raise ValueError(
            "must be auto, cpu or cuda:N (for instance cuda:0), or the UUID of a GPU (GPU-…) or of a MIG device "
            "(MIG-…); GPUs that one process is to see are joined by +: cuda:0+cuda:1"
        )
    if len(names) > 1 and not all(name.startswith(_WHOLE_GPUS) for name in names):
        raise ValueError(
            f"joins by + what is no whole GPU: {value}; a process sees several GPUs, or one other device"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"names a GPU twice: {value}")
    return str(value)


def read_device_batches(value: Any) -> int | None:
    """Read how many batches compute on a device at once; None for `auto`."""
    count = _read_auto_or_count(value, 8)
    return None if count == "auto" else count


def read_memory_mb(value: Any) -> int | Literal["auto"]:
    """Read how much memory of each device models may use in MiB, or `auto`."""
    return _read_auto_or_count(value, 1 << 24)


def _read_auto_or_count(value: Any, most: int) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    try:
        count: int = number_of(int, 1, most)(value)
    except ValueError:
        raise ValueError(f"must be auto, or a whole number between 1 and {most}") from None
    return count


def read_devices(value: Any) -> tuple[str, ...]:
    """Read one device, or several."""
    rule = "must name a device, or several with commas between them"
    names = listed_texts(value, rule)
    if not all(names):
        raise ValueError(rule)
    devices = tuple(map(read_device, names))
    if not devices:
        raise ValueError("must name at least one device")
    if len(set(devices)) < len(devices):
        raise ValueError("names a device twice; use replicas for several device processes on one device")
    if "auto" in devices and len(devices) > 1:
        raise ValueError("cannot have auto beside other devices")
    return devices


def read_references(value: Any) -> tuple[str, ...]:
    """Read registered models as NAME[:VERSION]: one, or a list of them."""
    references = [value] if isinstance(value, str) else value
    if not isinstance(references, list | tuple) or not references:
        raise ValueError("must name registered models, as a list of NAME or NAME:VERSION")
    for reference in references:
        try:
            parse_reference(str(reference))
        except InvalidSettings as error:
            raise ValueError(f"must name registered models ({error})") from None
    return tuple(map(str, references))


def read_variables(value: Any) -> dict[str, str]:
    """Read environment variables by name; numbers and booleans become texts, as in a shell."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of names to values")
    for name, content in value.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            raise ValueError(f"must have names of letters, digits and '_', not {name!r}")
        if not isinstance(content, str | int | float) or "\0" in str(content):
            raise ValueError(f"must have texts as values, not {type(content).__name__} for {name}")
    return {name: as_text(content) for name, content in value.items()}


def read_sizes(value: Any) -> tuple[int, ...]:
    """Read batch sizes in rows, one or a list; they are returned ascending, each once."""
    sizes = [value] if isinstance(value, int) else value
    if (
        not isinstance(sizes, list | tuple)
        or not sizes
        or not all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
        or not 1 <= min(sizes) <= max(sizes) <= _MAX_BATCH_ROWS
    ):
        raise ValueError(f"must be a list of whole numbers between 1 and {_MAX_BATCH_ROWS}")
    return tuple(sorted(set(sizes)))


def read_names(value: Any) -> tuple[str, ...]:
    """Read one name, or several."""
    rule = "must be a name, or several with commas between them"
    names = listed_texts(value, rule)
    if not names:
        raise ValueError(rule)
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("must be names, each of them once")
    return tuple(names)


def read_non_finite(value: Any) -> NonFinite:
    """Read how NaN and infinities are written in JSON; YAML reads a bare `null` as None."""
    word = "null" if value is None else value
    if word not in NON_FINITE:
        raise ValueError(f"must be {' or '.join(NON_FINITE)}")
    return word


def read_numbers(value: Any) -> dict[str, float]:
    """Read numbers by the names of inputs."""
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError("must be a mapping of names of inputs to numbers")
    for name, number in value.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(f"must have numbers as values, not {number!r} for {name}")
    return dict(value)


def read_hosts(value: Any) -> tuple[str, ...]:
    """Read hosts as requests have them in `Host`, without a port; `*.NAME` and `*` stand for several."""
    hosts = tuple(name.lower() for name in read_names(value)) if value else ()
    for host in hosts:
        if re.fullmatch(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", host) is None:
            raise ValueError("must be names of hosts such as score.example.com, *.example.com or *")
    return hosts


def read_callback_hosts(value: Any) -> tuple[str, ...]:
    """Read hosts as `read_hosts` does, and networks such as 10.0.0.0/8 or 127.0.0.1."""
    names, networks = [], []
    for one in read_names(value) if value else ():
        try:
            networks.append(str(ip_network(one)))
        except ValueError:
            names.append(one)
    return (*read_hosts(names), *networks)


def read_origins(value: Any) -> tuple[str, ...]:
    """Read origins of browsers, or `*`."""
    origins = tuple(filter(None, listed_texts(value, "must be origins with commas between them, or *")))
    for origin in origins:
        if not origin.isascii() or not origin.isprintable() or " " in origin or origin.endswith("/"):
            raise ValueError(f"must hold origins such as https://example.com, not {origin!r}")
    return origins
