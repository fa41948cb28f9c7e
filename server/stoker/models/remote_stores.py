"""Object stores and other machines, by fsspec: their kinds, and lists of their files.

fsspec and its packages for each kind of store are imported where they are used. Credentials are those that each
store's own programs use, or options; no message has them.

See decision 59.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import PurePosixPath
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from stoker.errors import OperatorError
from stoker.system.extras import how_to_install, is_installed

_CONTACT_S: Final = 20.0
"""The time for the first answer of a store: packages of several stores try again for minutes."""
_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 15.0
_S3_TRIES: Final = 2
_Answer = TypeVar("_Answer")
_TALKATIVE: Final = ("aiobotocore", "botocore", "gcsfs", "adlfs", "azure", "asyncssh")
"""Packages that log each request; their errors have the faults."""
_SECRETS: Final = re.compile(r"(\w://)(?:[^\s/'\"]*@)?([^\s?'\"]*)(?:\?[^\s'\"]*)?")


class _Store(Struct, frozen=True):
    """A kind of store.

    Attributes:
        protocol: The name of the store in fsspec.
        module: The package that fsspec needs for it.
        credentials: The places from which its packages read credentials.
    """

    protocol: str
    module: str
    extra: str
    credentials: str


_S3: Final = _Store("s3", "s3fs", "s3", "AWS_ACCESS_KEY_ID, AWS_PROFILE or the machine's role")
_GOOGLE: Final = _Store("gcs", "gcsfs", "gcs", "GOOGLE_APPLICATION_CREDENTIALS or the machine's account")
_AZURE: Final = _Store(
    "abfs", "adlfs", "blob", "AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_ACCOUNT_NAME or az login"
)
SFTP: Final = _Store("ssh", "sshfs", "sftp", "the keys and known_hosts in ~/.ssh")
_WEB: Final = _Store("http", "aiohttp", "https", "the address itself")
FILE: Final = _Store("file", "fsspec", "https", "none")
_STORES: Final[Mapping[str, _Store]] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "sftp": SFTP,
    "ssh": SFTP,
    "http": _WEB,
    "https": _WEB,
    "file": FILE,
}


def shown_address(address: str) -> str:
    """Return an address without a password, token or query."""
    parts = urlsplit(address)
    host = (
        parts.netloc.rpartition("@")[2] if parts.scheme in ("http", "https", "sftp", "ssh") else parts.netloc
    )
    return f"{parts.scheme}://{host}{parts.path}"


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a store.

    Attributes:
        key: Its path in fsspec's file system.
        mark: Changes with the content: the store's ETag, else its time; empty if the store has neither.
        size_bytes: Its size; None if the store does not say it.
    """

    key: str
    mark: str
    size_bytes: int | None


class Listing(msgspec.Struct, frozen=True):
    """The files at an address; in `mirror.json`, the files that were fetched.

    Attributes:
        is_file: Whether the address is that of a single file.
        files: The files by their names below the address.
        digests: The SHA-256 of each file that was fetched.
    """

    is_file: bool
    files: dict[str, RemoteFile]
    digests: dict[str, str] = {}


def store_of(address: str) -> _Store:
    """Return the kind of the store at an address."""
    return _STORES[address.partition(":")[0].lower()]


def check_installed(address: str) -> None:
    """Raise OperatorError if the packages for the store at an address are not installed."""
    store = store_of(address)
    if not (is_installed("fsspec") and is_installed(store.module)):
        raise OperatorError(
            f"{shown_address(address)} is read by the extra {store.extra}, which is not installed; "
            f"{how_to_install(store.extra)}"
        )


def open_store(address: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path in it.

    Raises:
        OperatorError: The packages for this kind of store are not installed.
    """
    check_installed(address)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    import fsspec  # type: ignore[import-untyped]

    rest = address.partition("://")[2]
    protocol = store_of(address).protocol
    url = address if protocol == "http" else f"{protocol}://{rest}"
    # Earlier listings would hide new files.
    arguments: dict[str, Any] = {"skip_instance_cache": True}
    if store_of(address) is not SFTP:
        arguments["use_listings_cache"] = False
    arguments |= {**_limits_of(store_of(address)), **(options or {})}
    system, path = fsspec.core.url_to_fs(url, **arguments)
    if protocol == "s3":
        system.retries = _S3_TRIES
    return system, str(path).rstrip("/")


def _limits_of(store: _Store) -> dict[str, Any]:
    """Return the timeouts of fsspec's file system of a store, in the store's own options."""
    if store is _S3:
        # fsspec itself tries again.
        client = {"connect_timeout": _CONNECT_S, "read_timeout": _SILENCE_S, "retries": {"max_attempts": 0}}
        return {"config_kwargs": client}
    if store is _AZURE:
        return {"connection_timeout": int(_CONNECT_S), "read_timeout": int(_SILENCE_S)}
    if store is SFTP:
        # As SSH does: by default the package trusts any host.
        waits = {
            "connect_timeout": _CONNECT_S,
            "login_timeout": _CONNECT_S,
            "keepalive_interval": _SILENCE_S / 3,
        }
        return {"known_hosts": (), **waits}
    if store is FILE:
        return {}
    import aiohttp

    # By default a transfer of any speed has five minutes, and proxies are ignored.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENCE_S)
    if store is _GOOGLE:
        return {"requests_timeout": limits}
    return {"client_kwargs": {"trust_env": True, "timeout": limits}}


def first_answer(shown: str, look: Callable[[], _Answer]) -> _Answer:
    """Return the answer of a store to its first request.

    Raises:
        OperatorError: The store does not answer in time.
    """
    answer: Future[_Answer] = Future()

    def answered() -> None:
        try:
            answer.set_result(look())
        except BaseException as error:  # noqa: BLE001  # raised by the thread that waits
            answer.set_exception(error)

    # A daemon thread ends with this process even while it waits.
    threading.Thread(target=answered, name="stoker-store", daemon=True).start()
    try:
        return answer.result(_CONTACT_S)
    except TimeoutError:
        if answer.done():
            raise
        raise OperatorError(
            f"{shown} cannot be reached: it does not answer within {_CONTACT_S:g} s"
        ) from None


def list_files(system: Any, root: str, shown: str, facts: Mapping[str, Any] | None = None) -> Listing:
    """List the files of an address.

    Args:
        facts: The facts of the address if they were just read.

    Raises:
        OperatorError: A name leads out of the folder.
        FileNotFoundError: Most stores raise it if there is nothing.
    """
    if facts is None:
        system.invalidate_cache()
        facts = system.info(root)
    if facts["type"] == "file":
        name = PurePosixPath(urlsplit(root).path).name
        if name in ("", ".."):
            name = "file"
        return Listing(True, {name: _remote_file(root, facts)})
    found = system.find(root, detail=True)
    files = {}
    for key, details in found.items():
        name = str(key)[len(root) :].lstrip("/") if str(key).startswith(root) else str(key)
        if details["type"] != "file" or not name or name.endswith("/"):
            continue
        if any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise OperatorError(f"{shown} has a file {name!r}, whose name leads out of the folder; remove it")
        files[name] = _remote_file(str(key), details)
    return Listing(False, files)


def _remote_file(key: str, facts: Mapping[str, Any]) -> RemoteFile:
    size = facts.get("size")
    by_name = {str(name).lower().replace("_", "").replace("-", ""): value for name, value in facts.items()}
    names = ("etag", "generation", "md5hash", "mtime", "lastmodified", "updated", "modified", "created")
    mark = next((str(by_name[name]) for name in names if by_name.get(name)), "")
    return RemoteFile(key, f"{size} {mark}" if mark else "", None if size is None else int(size))


def _message_of(error: BaseException) -> str:
    """Return an error of a store's packages without passwords and queries of addresses."""
    return _SECRETS.sub(r"\1\2", " ".join(str(error).split()))[:300] or type(error).__name__


@contextlib.contextmanager
def store_errors(address: str) -> Iterator[None]:
    """Raise errors of a store's packages as an OperatorError."""
    shown = shown_address(address)
    try:
        yield
    except OperatorError:
        raise
    except FileNotFoundError as error:
        # fsspec also raises this if a server of the web refuses a request, or does not answer.
        reason = "" if error.__cause__ is None else f": {_message_of(error.__cause__)}"
        raise OperatorError(f"there is nothing at {shown}{reason}") from error
    except Exception as error:
        raise OperatorError(
            f"{shown} cannot be reached: {_message_of(error)} (credentials: {store_of(address).credentials})"
        ) from error


def list_sizes(address: str, options: Mapping[str, Any] | None = None) -> dict[str, int | None]:
    """Return the sizes in bytes of the files below an address by their names; empty if there is nothing.

    Raises:
        OperatorError: The store cannot be read.
    """
    with store_errors(address):
        shown = shown_address(address)

        def look() -> tuple[Any, str, Mapping[str, Any]]:
            system, root = open_store(address, options)
            return system, root, system.info(root)

        try:
            system, root, facts = first_answer(shown, look)
            files = list_files(system, root, shown, facts).files
        except FileNotFoundError:
            return {}
        return {name: file.size_bytes for name, file in files.items()}
