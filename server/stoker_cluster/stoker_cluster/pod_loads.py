"""Asking pods what they do: all at once, by HTTP, over connections that are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from stoker.errors import InvalidSettings
from stoker.system.extras import how_to_install
from stoker_cluster.scaling import PodLoad

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

__all__ = ["PodLoads", "parse_load"]

_PATH: Final = "/metrics?only=load"
_MOST_BYTES: Final = 4096
_AT_ONCE: Final = 500
_LOAD: Final = "stoker_load"
_OVERLOADED: Final = 'stoker_rejections_total{reason="overloaded"}'


class PodLoads:
    """What pods have said last of their load.

    Args:
        timeout_s: How long pods may take to answer; of more than 500, longer as they are more.
        key_file: A file with a key of the service, for pods whose metrics need one; read at each look.
        clock_s: The time.
    """

    def __init__(
        self,
        timeout_s: float,
        key_file: Path | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = timeout_s
        self._key_file = key_file
        self._clock_s = clock_s
        self._known: dict[str, PodLoad] = {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self, addresses: Mapping[str, str]) -> Mapping[str, PodLoad]:
        """Ask these pods; of those that do not answer, what they have said before is returned, with its time.

        Args:
            addresses: HOST:PORT of each pod, by its name.
        """
        session = self._open()
        import aiohttp

        headers = {} if self._key_file is None else {"Authorization": f"Bearer {await self._key()}"}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s * max(1.0, len(addresses) / _AT_ONCE))
        said = await asyncio.gather(
            *(self._ask(session, address, headers, timeout) for address in addresses.values())
        )
        answered = {name: load for name, load in zip(addresses, said, strict=True) if load is not None}
        self._known = {name: load for name, load in self._known.items() if name in addresses} | answered
        return dict(self._known)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            try:
                import aiohttp
            except ImportError:
                raise InvalidSettings(
                    f"the package aiohttp is missing; {how_to_install('cluster')}"
                ) from None
            self._session = aiohttp.ClientSession(
                # As many connections as there are pods, each of them kept.
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False),
            )
        return self._session

    async def _key(self) -> str:
        assert self._key_file is not None, "asked only then"
        return (await asyncio.to_thread(self._key_file.read_text, encoding="utf-8")).strip()

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        address: str,
        headers: Mapping[str, Any],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  # the library's own, for one request
    ) -> PodLoad | None:
        import aiohttp

        try:
            async with session.get(
                f"http://{address}{_PATH}", headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                text = await answer.content.read(_MOST_BYTES)
                read_s = self._clock_s()
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        found = parse_load(text.decode(errors="replace").splitlines()) if answer.status == 200 else None
        return None if found is None else PodLoad(*found, read_s)


def parse_load(lines: Iterable[str]) -> tuple[float, int] | None:
    """Return the load and the refused requests that a server tells; None if it does not tell them."""
    told = dict(line.rsplit(" ", 1) for line in lines if " " in line)
    try:
        return float(told[_LOAD]), int(told[_OVERLOADED])
    except (KeyError, ValueError):
        return None
