"""The requests that frontends pass on to the supervisor: changes of what is served, and questions about it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, assert_never

from stoker.control.frontend_messages import (
    Ask,
    AskDefault,
    AskEvents,
    AskIndex,
    AskKeys,
    AskLoad,
    AskLogs,
    AskReload,
    AskShift,
    AskTraces,
    AskUnload,
    AskWake,
    Refusal,
    Reply,
)
from stoker.errors import NotSupported, RequestError, StokerError
from stoker.supervisor.background import Background
from stoker.supervisor.frontend_process import FrontendChild
from stoker.supervisor.frontend_processes import FrontendProcesses
from stoker.supervisor.live_settings import LiveSettings
from stoker.supervisor.rollout import Rollout

logger = logging.getLogger(__name__)


class FrontendRequests:
    """Answers requests of frontends; see `stoker.gateway.administration`."""

    def __init__(
        self,
        rollout: Rollout,
        frontends: FrontendProcesses,
        background: Background,
        reload: Callable[[], Awaitable[None]],
        live: LiveSettings,
        pipelines: Collection[str] = (),
        find_keys: Callable[[str], dict[str, str]] | None = None,
    ) -> None:
        """Create it with the objects that carry requests out.

        Args:
            reload: Replaces the server.
            find_keys: Returns the primary keys of all services for the token of the sign-in link; None without one.
        """
        self._live, self._pipelines, self._find_keys = live, pipelines, find_keys
        self._rollout = rollout
        self._frontends = frontends
        self._background = background
        self._reload = reload

    def answer(self, asker: FrontendChild, ask: Ask) -> None:
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
        if isinstance(ask, AskLoad | AskUnload | AskShift | AskDefault) and ask.model in self._pipelines:
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
            case AskLoad() | AskUnload() | AskWake() | AskShift() | AskDefault():
                await self._change(ask)
            case AskReload():
                await self._reload()
            case AskKeys():
                if self._find_keys is None:
                    raise NotSupported("This server has printed no link to sign in with.")
                return [{"name": name, "key": key} for name, key in self._find_keys(ask.token).items()]
            case _:
                assert_never(ask)
        return []

    async def _change(self, ask: AskLoad | AskUnload | AskWake | AskShift | AskDefault) -> None:
        """Change what is served of a model."""
        match ask:
            case AskLoad():
                await self._rollout.load(ask.model, ask.policy, ask.version, ask.adjustments)
            case AskWake():
                await self._rollout.wake(ask.model, ask.version, ask.timeout_s, ask.caller)
            case AskUnload():
                await self._rollout.unload(ask.model, ask.version)
            case AskShift():
                await self._rollout.shift(ask.model, ask.canary)
            case AskDefault():
                await self._rollout.set_default(ask.model, ask.version)

    def _refuse(self, asker: FrontendChild, ask: Ask, error: StokerError) -> None:
        refusal = Refusal(ask.ticket, error.status, error.code, str(error)[:2000], error.retry_after_s)
        self._frontends.reply(asker, refusal)
