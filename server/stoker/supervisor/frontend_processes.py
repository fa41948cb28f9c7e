"""The frontends of a server: started, watched, restarted, and told which models are served."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, assert_never

from stoker.control.frontend_messages import (
    SUPERVISOR_END,
    Ask,
    Attached,
    AttachFailed,
    Compared,
    FromFrontend,
    Listen,
    Listening,
    News,
    Outgrown,
    Refusal,
    Reply,
    Retire,
    Retired,
    Serve,
    Sleep,
    Slept,
    Started,
    Stopped,
    ToFrontend,
)
from stoker.deployment import Deployment
from stoker.metrics.memory import MetricMemory
from stoker.settings.server import ServerSettings
from stoker.supervisor.background import Supervision
from stoker.supervisor.catalogue import Catalogue
from stoker.supervisor.children import Child
from stoker.supervisor.frontend_process import FrontendChild, FrontendProcess
from stoker.supervisor.frontend_starts import FrontendStarts
from stoker.supervisor.mailboxes import Mailbox, Receiver, forward
from stoker.system.resources import ONE_BLAS_THREAD

logger = logging.getLogger(__name__)

_HUNG_LOOKS: Final = 30
_EXPENDABLE: Final = 300
"""More than for device processes: a frontend starts fast, while a model may load for minutes."""


class FrontendProcesses:
    """All frontends."""

    def __init__(
        self,
        settings: ServerSettings,
        catalogue: Catalogue,
        keys_dir: Path,
        sockets: Sequence[socket.socket],
        supervision: Supervision,
        on_started: Callable[[FrontendProcess], None],
        on_request: Callable[[FrontendChild, Ask], None],
        on_outgrown: Callable[[FrontendProcess, int, int], None],
        on_attach_failed: Callable[[FrontendProcess, int], None],
        *,
        quiet_start: bool = False,
    ) -> None:
        """Create it without processes.

        Args:
            sockets: Listening sockets, at least one for each frontend.
            on_outgrown: Called when answers of a replica do not fit their rows: with the frontend, the replica's
                generation, and the bytes that they need.
            on_attach_failed: Called when a frontend has no resources to be attached: with the frontend, and the
                replica's generation.
            quiet_start: Whether they accept connections only once `listen` is called, because another server
                accepts on the sockets until then.
        """
        # A predecessor may have had more frontends; connections may be waiting in each of its sockets.
        self.processes = _processes(min(settings.frontend_count, len(sockets)), sockets)
        self._starts = FrontendStarts(settings, catalogue, keys_dir, supervision.traces)
        self._metrics_fd, self._page = supervision.metrics_fd, supervision.page
        self._memory = MetricMemory(supervision.metrics_fd)
        self._background, self._changes = supervision.background, supervision.changes
        self._regions_fds = [] if settings.shared_memory == "off" else [supervision.regions_fd]
        self._quiet = quiet_start
        self._on_started = on_started
        self._on_request = on_request
        self._on_outgrown = on_outgrown
        self._on_attach_failed = on_attach_failed
        self._models: dict[int, Deployment] = {model.number: model for model in catalogue.served}

    @property
    def children(self) -> list[FrontendChild]:
        """The running processes."""
        return [process.child for process in self.processes if process.child is not None]

    async def start(self) -> None:
        """Start all of them."""
        for process in self.processes:
            await self._start(process)

    async def listen(self) -> None:
        """Let all of them accept connections, and return when they do."""
        if self._quiet:
            self._quiet = False
            for process in self.processes:
                if process.started:
                    self.send(process, Listen())
        await self._changes.until(lambda: all(process.listening for process in self.processes))

    def serve(self, model: Deployment) -> None:
        """Add a model; no request is routed to it before it is published."""
        self._models[model.number] = model
        for process in self._running():
            process.serving.add(model.number)
            self.send(process, Serve(model.share_of(process.page, len(self.processes))))

    def update(self, model: Deployment) -> None:
        """Record how a model is loaded now whose service the frontends have: later ones get it so."""
        self._models[model.number] = model

    async def sleep(self, model: Deployment) -> None:
        """Have requests to a model wait until it is loaded again; returns when its last requests are answered."""
        for process in self._running():
            process.leaving.add(model.number)
        self.tell(Sleep(model.number))
        await self._changes.until(
            lambda: not any(model.number in process.leaving for process in self._running())
        )

    async def retire(self, model: Deployment) -> None:
        """Retire a model that no route names any more; returns when its last requests are answered."""
        self._models.pop(model.number, None)
        self.tell(Retire(model.number))
        await self._changes.until(
            lambda: not any(model.number in process.serving for process in self._running())
        )

    def have(self, generations: set[int]) -> bool:
        """Whether all started frontends are attached to these replicas; others will be when they start."""
        return all(generations <= process.attached for process in self.processes if process.started)

    def send(self, process: FrontendProcess, message: ToFrontend, fds: Sequence[int] = ()) -> None:
        """Send a message to a frontend, if it runs; results of `Compare` come into `FrontendProcess.compared`."""
        if process.child is not None:
            process.child.send(message, fds)

    def tell(self, message: ToFrontend) -> None:
        """Send a message to all frontends."""
        for process in self._running():
            self.send(process, message)

    def reply(self, asker: FrontendChild, reply: Reply | Refusal) -> None:
        """Send a frontend the answer to its request; not to its successor, which has not asked."""
        if asker in self.children:
            asker.send(reply)

    def end_hung(self) -> None:
        """Kill frontends whose event loops have stopped turning; to be called once a second.

        It counts calls rather than time: if the whole server is suspended for a while, no frontend is killed for
        that.
        """
        for process in self._running():
            beats = self._memory.page(process.page).beats
            if not process.started or beats != process.beats:
                process.beats, process.still_looks = beats, 0
                continue
            process.still_looks += 1
            if process.still_looks == _HUNG_LOOKS and process.child is not None:
                logger.error("a frontend has done nothing for %d s, killing it; its stacks:", _HUNG_LOOKS)
                process.child.dump_stacks_and_kill()

    def close_sockets(self) -> None:
        """Close the listening sockets: while they are open, connections would be accepted that nobody serves."""
        for process in self.processes:
            for sock in (*process.sockets, *(process.mailbox or ())):
                sock.close()

    def _running(self) -> Iterable[FrontendProcess]:
        return (process for process in self.processes if process.child is not None)

    async def _start(self, process: FrontendProcess) -> None:
        child = await Child.start(
            "frontend",
            "stoker.gateway.frontend",
            SUPERVISOR_END,
            lambda child, message: self._on_message(process, child, message),
            lambda child: self._on_exit(process, child),
            defaults=ONE_BLAS_THREAD,
            expendable=_EXPENDABLE,
        )
        process.child = child
        process.still_looks = 0
        process.serving = set(self._models)
        fds = [
            self._metrics_fd,
            *self._regions_fds,
            *self._mailboxes(process),
            *(sock.fileno() for sock in process.sockets),
        ]
        listening = [each.sockets for each in self.processes]
        child.send(self._starts.message(process.page, listening, self._models.values()), fds)

    def _mailboxes(self, process: FrontendProcess) -> list[int]:
        """Where a frontend receives connections from others, then where it sends its own to each of all."""
        ways = [each.mailbox.door.fileno() for each in self.processes if each.mailbox is not None]
        return [] if process.mailbox is None else [process.mailbox.inbox.fileno(), *ways]

    def _forward_connections(self, ended: FrontendProcess) -> None:
        """Hand the connections in the mailbox of a frontend that has ended to the others: it may not be back soon."""
        if ended.mailbox is None:
            return
        receivers = [
            Receiver(process.mailbox, self._memory.page(process.page))
            for process in self.processes
            if process.listening and process.mailbox is not None
        ]
        forward(ended.mailbox, receivers, self._page.count_accept_failure)

    def _on_message(self, process: FrontendProcess, child: FrontendChild, message: FromFrontend) -> None:
        if isinstance(message, Ask):
            self._on_request(child, message)
        else:
            self._on_news(process, message)
        self._changes.notify()

    def _on_news(self, process: FrontendProcess, message: News) -> None:
        match message:
            case Started():
                process.started = True
                self._on_started(process)
                # Only now: a frontend that replaces another one may find connections waiting.
                if not self._quiet:
                    self.send(process, Listen())
            case Listening():
                process.listening = True
            case AttachFailed(generation):
                self._on_attach_failed(process, generation)
            case Attached(generation):
                process.attached.add(generation)
            case Retired(number):
                process.serving.discard(number)
            case Slept(number):
                process.leaving.discard(number)
            case Outgrown(generation, answer_bytes):
                self._on_outgrown(process, generation, answer_bytes)
            case Compared(ticket, comparison):
                process.compared[ticket] = comparison
            case Stopped(cut_off):
                if cut_off:
                    logger.warning("%d connections did not end in time and were cut off", cut_off)
            case _:
                assert_never(message)

    def _on_exit(self, process: FrontendProcess, child: FrontendChild) -> None:
        process.child = None
        process.started = process.listening = False
        process.attached.clear()
        process.serving.clear()
        process.leaving.clear()
        process.compared.clear()
        self._memory.page(process.page).clear_connections()
        self._forward_connections(process)
        self._changes.notify()
        if self._background.stopping:
            return
        self._page.count_restart("frontend")
        self._background.restart("a frontend", child, process.backoff, lambda: self._start(process))


def _processes(count: int, sockets: Sequence[socket.socket]) -> list[FrontendProcess]:
    processes = [FrontendProcess(page, list(sockets[page::count])) for page in range(count)]
    if count > 1:
        for process in processes:
            process.mailbox = Mailbox.new()
    return processes
