"""What frontends ask of their supervisor for their callers: the index, loading, unloading, a new server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, assert_never

from stoker.control.asks import (
    Ask,
    AskEvents,
    AskIndex,
    AskLoad,
    AskReload,
    AskShift,
    AskUnload,
    Refusal,
    Reply,
)
from stoker.errors import StokerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from stoker.supervisor.background import Background
    from stoker.supervisor.frontend_processes import FrontendChild, FrontendProcesses
    from stoker.supervisor.rollout import Rollout

__all__ = ["Requests"]

logger = logging.getLogger(__name__)


class Requests:
    """Answers what frontends ask; see `stoker.gateway.administration`."""

    def __init__(
        self,
        rollout: Rollout,
        frontends: FrontendProcesses,
        background: Background,
        reload: Callable[[], Awaitable[None]],
    ) -> None:
        """Answer with what these do; `reload` replaces the server."""
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
            logger.exception("what a frontend has asked failed: %s", ask)
            self._refuse(asker, ask, StokerError("An unexpected internal error occurred."))
        else:
            self._frontends.reply(asker, Reply(ask.ticket, tuple(entries)))

    async def _perform(self, ask: Ask) -> Sequence[Mapping[str, Any]]:
        match ask:
            case AskIndex():
                return await self._rollout.index(ready=ask.ready)
            case AskEvents():
                return self._rollout.events.listed(ask.model)
            case AskLoad():
                await self._rollout.load(ask.model, ask.policy, ask.version)
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
