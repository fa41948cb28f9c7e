"""`stoker router`: one address in front of several servers, by HAProxy."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoker_cluster.endpoints import ServerSource
    from stoker_cluster.router_settings import RouterSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    from stoker.settings.loading import add_setting_options
    from stoker_cluster.router_settings import RouterSettings

    parser.epilog = (
        "FILE is looked at every second. Other servers and weights count at once; for everything else a new HAProxy "
        "takes the sockets over, and the old one ends when its last request is answered."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the same settings as YAML; options win over it"
    )
    add_setting_options(parser.add_argument_group("settings", "also in FILE"), RouterSettings)


def run(args: argparse.Namespace) -> int:
    """Route until SIGTERM or Ctrl-C."""
    from stoker.system.logs import configure_logging

    configure_logging("router")
    asyncio.run(_route(args))
    return 0


async def _route(args: argparse.Namespace) -> None:
    from stoker_cluster.haproxy import find_haproxy
    from stoker_cluster.options import settings_from
    from stoker_cluster.router import Router
    from stoker_cluster.router_settings import RouterSettings

    def read() -> RouterSettings:
        return RouterSettings(**settings_from(RouterSettings, vars(args), args.config))

    router = Router(find_haproxy(read().haproxy), read, _source_of)
    stop, give_up = asyncio.Event(), asyncio.Event()

    def heard() -> None:
        # A second signal ends it at once.
        (give_up if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, heard)
    await router.run(stop, give_up)


def _source_of(settings: RouterSettings) -> ServerSource:
    from stoker_cluster.endpoints import EndpointSlices, NamedServers
    from stoker_cluster.slice_reader import PodSliceReader

    if settings.service is not None:
        return EndpointSlices(PodSliceReader.of_this_pod(), settings.service, settings.versions)
    return NamedServers(settings.servers or {})
