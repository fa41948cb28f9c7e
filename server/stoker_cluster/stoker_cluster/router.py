"""The process `stoker router`: runs HAProxy, and keeps its servers, weights and settings up to date (decision 70)."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from stoker.errors import OperatorError
from stoker.system.resources import usable_cores
from stoker_cluster.endpoints import Server, ServerSource
from stoker_cluster.haproxy import HAProxy
from stoker_cluster.haproxy_servers import SHOW_STATES, commands, states_in
from stoker_cluster.router_settings import RouterSettings
from stoker_cluster.routing import configuration
from stoker_cluster.traffic_shares import effective_weights

_LOGGER: Final = logging.getLogger(__name__)
_SPARE_DESCRIPTORS: Final = 100
_END_LOOK_S: Final = 0.05


class Router:
    """A router.

    Once a second the wanted servers are compared with those of HAProxy, and the difference is applied.
    No state is kept, so it does not matter what was lost or restarted in between.
    """

    def __init__(
        self,
        program: str,
        read_settings: Callable[[], RouterSettings],
        source_of: Callable[[RouterSettings], ServerSource],
        look_s: float = 1.0,
    ) -> None:
        """Prepare a router; nothing is started.

        Args:
            read_settings: Returns the present settings; raises OperatorError if they are invalid.
            source_of: Returns the source of servers for settings.
            look_s: The interval at which both are read.
        """
        self._program = program
        self._look_s = look_s
        self._read_settings = read_settings
        self._source_of = source_of
        self._settings = read_settings()
        self._weights = _weights(self._settings)
        self._source = source_of(self._settings)
        self._servers: Mapping[str, frozenset[Server]] = {}
        self._newest: HAProxy | None = None
        self._all: list[HAProxy] = []
        self._troubles: dict[str, str] = {}

    async def run(self, stop: asyncio.Event, give_up: asyncio.Event) -> None:
        """Route until `stop` is set, then serve on for the grace, and return when the last request is answered.

        Args:
            stop: Set to end after a drain.
            give_up: Set to end at once.
        """
        try:
            self._newest = await self._start(None)
            await self._update()
            _LOGGER.info(
                "routing http://%s:%d to %d servers",
                self._settings.host,
                self._settings.port,
                sum(map(len, self._servers.values())),
            )
            while not await _set_within(stop, self._look_s):
                await self._follow_settings()
                await self._update()
            await self._drain(give_up)
        finally:
            for process in self._all:
                await process.end()
                process.clean_up()

    async def _drain(self, give_up: asyncio.Event) -> None:
        """Serve for the grace period, then until the last request is answered.

        Servers may still change meanwhile.
        """
        assert self._newest is not None, "it was started"
        await self._newest.set_draining()
        clock = asyncio.get_running_loop().time
        end_s = clock() + self._settings.drain_grace_s
        while (left_s := end_s - clock()) > 0:
            if await _set_within(give_up, min(left_s, self._look_s)):
                return
            await self._update()
        for process in self._all:
            with suppress(OSError):
                await process.refuse()
        end_s = clock() + self._settings.hold_s + self._settings.timeout_ms / 1000
        while clock() < end_s and not give_up.is_set() and await self._has_requests():
            await _set_within(give_up, self._look_s)
            await self._follow_servers()
        for process in self._all:
            process.stop()
        while not give_up.is_set() and any(process.running for process in self._all):
            await _set_within(give_up, _END_LOOK_S)

    async def _has_requests(self) -> bool:
        """Return whether requests are left; stop idle processes.

        Requests that wait in a stopping HAProxy would never learn of new servers.
        """
        busy = [await self._stop_if_idle(process) for process in self._all if process.answers]
        return not all(busy)

    async def _stop_if_idle(self, process: HAProxy) -> bool:
        try:
            idle = await process.is_idle()
        except OSError:
            idle = not process.running
        if idle:
            process.stop()
        return idle

    async def _update(self) -> None:
        """Make sure that a HAProxy accepts connections, and update the servers of all running ones."""
        for process in [process for process in self._all if not process.running]:
            self._all.remove(process)
            process.clean_up()
        if self._newest is None or not self._newest.running:
            _LOGGER.error("HAProxy has ended; another one is started")
            # An older process still holds the listening sockets, although it accepts no connections.
            elder = next((process for process in self._all if process.answers), None)
            self._newest = await self._start(elder)
        for process in self._all:
            if process is not self._newest and process.answers:
                await self._stop_if_idle(process)
        await self._follow_servers()

    async def _follow_servers(self) -> None:
        try:
            self._servers = await self._source.find_servers()
            self._log_trouble("servers", "")
        except OSError as error:
            self._log_trouble("servers", f"the servers of before stay: {error}")
        for process in [process for process in self._all if process.answers]:
            try:
                await self._update_servers(process)
            except OSError as error:
                if process.running:
                    self._log_trouble("control", f"HAProxy is asked again in a second: {error}")

    async def _update_servers(self, process: HAProxy) -> None:
        states = states_in(await process.ask(SHOW_STATES))
        limit = self._settings.max_concurrent_requests
        for command in commands(states, self._servers, limit):
            await process.ask(command)

    async def _follow_settings(self) -> None:
        """Apply changed settings: weights and servers at once, others by a new HAProxy that replaces the old one."""
        try:
            settings = self._read_settings()
            if settings == self._settings:
                return
            await self._take_over(settings, _weights(settings))
            self._log_trouble("settings", "")
            _LOGGER.info("the settings have changed")
        except (OperatorError, OSError) as error:
            self._log_trouble("settings", f"the settings of before stay: {error}")

    async def _take_over(self, settings: RouterSettings, weights: Mapping[str, int]) -> None:
        assert self._newest is not None, "it was started"
        before = self._settings, self._weights, self._source
        files = self._newest.files
        same = configuration(_bounded(settings), files) == configuration(_bounded(before[0]), files)
        self._settings, self._weights, self._source = settings, weights, self._source_of(settings)
        try:
            if not same:
                old, self._newest = self._newest, await self._start(self._newest)
                with suppress(OSError):
                    await old.hand_over()
            elif weights != before[1]:
                await self._newest.set_weights(weights)
        except (OperatorError, OSError):
            self._settings, self._weights, self._source = before
            raise

    async def _start(self, old: HAProxy | None) -> HAProxy:
        process = HAProxy(self._program)
        try:
            await process.start(configuration(_bounded(self._settings), process.files), self._weights, old)
        except OperatorError:
            process.clean_up()
            raise
        self._all.append(process)
        return process

    def _log_trouble(self, topic: str, trouble: str) -> None:
        """Log a problem when it begins or changes."""
        if trouble and self._troubles.get(topic) != trouble:
            _LOGGER.warning("%s", trouble)
        self._troubles[topic] = trouble


def _weights(settings: RouterSettings) -> Mapping[str, int]:
    return {} if settings.traffic is None else effective_weights(settings.traffic, settings.default_version)


def _bounded(settings: RouterSettings) -> RouterSettings:
    """Return the settings with threads and connections limited to what this machine allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Two for each request: the caller's and the server's.
    connections = settings.max_connections
    if most != resource.RLIM_INFINITY:
        connections = max(1, min(connections, (most - _SPARE_DESCRIPTORS) // 2))
    threads = settings.threads or usable_cores()
    return dataclasses.replace(settings, max_connections=connections, threads=min(threads, 64))


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
