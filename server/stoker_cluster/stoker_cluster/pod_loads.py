"""The reports of pods about their load, and of routers about waiting requests, read over HTTP."""

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

_PATH: Final = "/metrics?only=load"
_MOST_BYTES: Final = 4096
_AT_ONCE: Final = 500
_WAITING_PATH: Final = "/metrics?scope=backend"
_WAITING: Final = 'haproxy_backend_current_sessions{proxy="servers"} '
_LOAD: Final = "stoker_load"
_OVERLOADED: Final = 'stoker_rejections_total{reason="overloaded"}'


class PodLoads:
    """The last reports of pods about their load.

    Args:
        timeout_s: Timeout of requests to pods; it grows with their number above 500.
        key_file: A file with a key of the service, if its metrics need one; read before each request.
    """

    def __init__(
        self, timeout_s: float, key_file: Path | None = None, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout_s = timeout_s
        self._key_file = key_file
        self._clock_s = clock_s
        self._known: dict[str, PodLoad] = {}
        self._session: aiohttp.ClientSession | None = None

    async def read(self, addresses: Mapping[str, str]) -> Mapping[str, PodLoad]:
        """Ask these pods for their load; for pods that do not answer, return the former report with its time.

        Args:
            addresses: HOST:PORT of each pod, by its name.
        """
        session = self._open()
        import aiohttp

        headers = {} if self._key_file is None else {"Authorization": f"Bearer {await self._key()}"}
        timeout = aiohttp.ClientTimeout(total=self._timeout_s * max(1.0, len(addresses) / _AT_ONCE))
        answers = await asyncio.gather(
            *(self._ask(session, address, headers, timeout) for address in addresses.values())
        )
        answered = {name: load for name, load in zip(addresses, answers, strict=True) if load is not None}
        self._known = {name: load for name, load in self._known.items() if name in addresses} | answered
        return dict(self._known)

    async def count_waiting(self, routers: Iterable[str]) -> int:
        """Ask routers without servers how many requests they hold; those that do not answer count as none.

        Args:
            routers: HOST:PORT of their metrics.
        """
        session = self._open()
        import aiohttp

        async def ask(address: str) -> int:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            try:
                async with session.get(
                    f"http://{address}{_WAITING_PATH}", allow_redirects=False, timeout=timeout
                ) as answer:
                    return parse_waiting(await answer.text())
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
                return 0

        return sum(await asyncio.gather(*map(ask, routers)))

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
                connector=aiohttp.TCPConnector(limit=0, use_dns_cache=False)
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
    """Return the load and the number of refused requests in a server's metrics; None if they are missing."""
    figures = dict(line.rsplit(" ", 1) for line in lines if " " in line)
    try:
        return float(figures[_LOAD]), int(figures[_OVERLOADED])
    except (KeyError, ValueError):
        return None


def parse_waiting(text: str) -> int:
    """Return how many requests a router has, in its metrics; 0 if they are missing."""
    found = (line.removeprefix(_WAITING) for line in text.splitlines() if line.startswith(_WAITING))
    return round(float(next(found, "0")))
