"""Requests that frontends pass on to their supervisor: index, loading, unloading, settings, reload."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, assert_never

from stoker.control.asks import (
    Ask,
    AskEvents,
    AskIndex,
    AskLoad,
    AskLogs,
    AskReload,
    AskShift,
    AskTraces,
    AskUnload,
    Refusal,
    Reply,
)
from stoker.errors import RequestError, StokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from stoker.supervisor.background import Background
    from stoker.supervisor.frontend_process import FrontendChild
    from stoker.supervisor.frontend_processes import FrontendProcesses
    from stoker.supervisor.live_settings import LiveSettings
    from stoker.supervisor.rollout import Rollout

__all__ = ["Requests"]

logger = logging.getLogger(__name__)


class Requests:
    """Answers requests of frontends; see `stoker.gateway.administration`."""

    def __init__(
        self,
        rollout: Rollout,
        frontends: FrontendProcesses,
        background: Background,
        reload: Callable[[], Awaitable[None]],
        live: LiveSettings,
        pipelines: Collection[str] = (),
    ) -> None:
        """Create it with the objects that carry requests out; `reload` replaces the server."""
        self._live, self._pipelines = live, pipelines
        self._rollout = rollout
        self._frontends = frontends
        self._background = background
        self._reload = reload

    def take(self, asker: FrontendChild, ask: Ask) -> None:
        """Start a task that answers a request."""
        self._background.spawn(self._answer(asker, ask))

    async def _answer(self, asker: FrontendChild, ask: Ask) -> None:
        try:
            entries = await self._perform(ask)
        except StokerError as error:
            self._refuse(asker, ask, error)
        except Exception:
            logger.exception("a request of a frontend failed: %s", ask)
            self._refuse(asker, ask, StokerError("An unexpected internal error occurred."))
        else:
            self._frontends.reply(asker, Reply(ask.ticket, tuple(entries)))

    async def _perform(self, ask: Ask) -> Sequence[Mapping[str, Any]]:
        if isinstance(ask, AskLoad | AskUnload | AskShift) and ask.model in self._pipelines:
            raise RequestError(
                f"'{ask.model}' is a pipeline, which follows its models; load and unload these by their names"
            )
        match ask:
            case AskIndex():
                return await self._rollout.index(ready=ask.ready)
            case AskEvents():
                return self._rollout.events.listed(ask.model)
            case AskTraces():
                return [self._live.traced(ask.model, ask.changes)]
            case AskLogs():
                return [self._live.logged(ask.changes)]
            case AskLoad():
                await self._rollout.load(ask.model, ask.policy, ask.version, ask.adjustments)
            case AskUnload():
                await self._rollout.unload(ask.model, ask.version)
            case AskShift():
                await self._rollout.shift(ask.model, ask.canary)
            case AskReload():
                await self._reload()
            case _:
                assert_never(ask)
        return []

    def _refuse(self, asker: FrontendChild, ask: Ask, error: StokerError) -> None:
        refusal = Refusal(ask.ticket, error.status, error.code, str(error)[:2000], error.retry_after_s)
        self._frontends.reply(asker, refusal)
