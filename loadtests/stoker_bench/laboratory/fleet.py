"""Simulates a fleet of servers: requests are routed to them, servers fail, and their number follows the load.

Each server has one GPU, the server's batching scheduler for each model, and the arbiter between them. Servers
share what they have learned of batch times.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.device.batch_sizes import ServiceTimes, filled
from stoker.device.batching import BatchPolicy
from stoker.device.device_sharing import Arbiter
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import propose, schedule
from stoker.gateway.rows.routing import CHOICES, Routing, State, route
from stoker.simulation.workload import Curve, Jitter, Requests
from stoker.simulation.world import NEVER_NS, Outcome

_FAR_NS: Final = 1 << 60
_SCALE_NS: Final = 100_000_000
"""How often the number of servers is adjusted."""
_UTILISATION: Final = 0.7
"""The target utilisation of servers if their number follows the load."""
_PATIENCE_NS: Final = 2_000_000_000


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet of servers.

    Attributes:
        curve: The batch times of each server.
        gpus: Number of servers, or their maximum.
        policy: The batching policy of each model.
        routing: The routing policy.
        choices: Number of randomly drawn servers that the router chooses from.
        state_ms: Maximum age of the router's view of servers; each router also knows what it has sent since.
        routers: Number of routers; each request goes to any of them.
        models: Number of models.
        copies: Number of servers for each model; 0 for all.
        lose: Number of servers that fail after half of the requests; their queued requests are rerouted.
        least: Initial and minimum number of servers if the number follows the load; None for a constant number.
        start_s: How long a server takes to start.
    """

    curve: Curve
    gpus: int
    policy: BatchPolicy
    routing: Routing = "end"
    choices: int = CHOICES
    state_ms: float = 0.0
    routers: int = 16
    models: int = 1
    copies: int = 0
    lose: int = 0
    least: int | None = None
    start_s: float = 0.2


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The outcome of all requests.

    Attributes:
        outcome: The outcome as for a single device.
        gpu_s: Server-seconds used, over all servers.
        rerouted_rows: Number of rows that were on servers that failed.
    """

    outcome: Outcome
    gpu_s: float
    rerouted_rows: int


class _Server:
    """One server; routers see its state as of the last call of `see`."""

    def __init__(self, fleet: Fleet, models: Sequence[int], times: ServiceTimes) -> None:
        self.queues = {model: RowQueue() for model in models}
        self.arrived: dict[int, list[int]] = {model: [] for model in models}
        self.arbiter = Arbiter(dict.fromkeys(map(str, models), 1.0))
        self.times = times
        self.there = self.busy = False
        self.waiting = 0
        self.free_ns = self.busy_ns = 0
        self.running = np.empty(0, np.int64)
        self.since_ns = 0
        self._curve = fleet.curve
        self.leased_rows = self._seen_rows = self._seen_free_ns = 0
        self.sent = [0] * fleet.routers

    def see(self) -> None:
        """Publish its state to the routers."""
        self.leased_rows = self._seen_rows = self.waiting
        self._seen_free_ns = self.free_ns
        self.sent = [0] * len(self.sent)

    def see_as(self, router: int) -> None:
        """Let `leased_rows` be what one router knows."""
        self.leased_rows = self._seen_rows + self.sent[router]

    def end_ns(self, now_ns: int, rows: int) -> int:
        """The expected time at which it would finish, given this many additional rows."""
        full, rest = divmod(self.leased_rows + rows, self._curve.max_batch_rows)
        spent_ns = full * self._curve.full_ns + (self._curve.batch_ns(rest) if rest else 0)
        return max(now_ns, self._seen_free_ns) + spent_ns


def place(fleet: Fleet) -> list[list[int]]:
    """Place models on servers: as many copies of each as requested, evenly distributed."""
    copies = fleet.copies or fleet.gpus
    placed: list[list[int]] = [[] for _ in range(fleet.gpus)]
    for number in range(fleet.models * copies):
        model = number // copies
        placed[number % fleet.gpus].append(model)
    return [sorted(set(models)) for models in placed]


class _Run:
    def __init__(self, fleet: Fleet, requests: Requests, seed: int) -> None:
        self.fleet, self.requests = fleet, requests
        times = ServiceTimes(fleet.policy.buckets)
        self.servers = [_Server(fleet, models, times) for models in place(fleet)]
        self.chance = random.Random(seed)  # noqa: S311  # used for routing only
        self.jitter = Jitter(np.random.default_rng(seed + 1))
        self.starts = requests.rows.cumsum() - requests.rows
        request = np.repeat(np.arange(len(requests.rows)), requests.rows)
        self.request = request
        self.at_ns = requests.at_ns[request]
        self.due_ns = self.at_ns + requests.target_ns[request]
        self.position = np.arange(len(request)) - self.starts[request]
        self.size = requests.rows[request]
        self.done_ns = np.full(len(request), NEVER_NS)
        self.ends: list[tuple[int, int]] = []
        self.batches = self.rerouted = 0
        self.gpu_ns = 0
        self.hosts: dict[int, list[int]] = {}

    def set_there(self, number: int, now_ns: int, *, there: bool) -> None:
        server = self.servers[number]
        if server.there != there:
            server.there = there
            if there:
                server.since_ns = now_ns
            else:
                self.gpu_ns += now_ns - server.since_ns
        self.hosts = {}

    def deal(self, model: int, rows: Sequence[int], now_ns: int) -> None:
        """Route a request, and start a batch if its server is idle."""
        hosts = self.hosts.get(model)
        if hosts is None:
            hosts = [
                number
                for number, server in enumerate(self.servers)
                if server.there and model in server.queues
            ]
            self.hosts[model] = hosts
        if not hosts:
            return
        count = min(self.fleet.choices, len(hosts))
        drawn = [hosts[self.chance.randrange(len(hosts))] for _ in range(count)]
        states: list[State] = [self.servers[number] for number in drawn]
        router = self.chance.randrange(self.fleet.routers)
        for number in drawn:
            if self.fleet.state_ms:
                self.servers[number].see_as(router)
            else:
                self.servers[number].see()
        number = drawn[route(self.fleet.routing, states, now_ns, len(rows))]
        server = self.servers[number]
        server.arrived[model] += rows
        server.waiting += len(rows)
        server.sent[router] += len(rows)
        if not server.busy:
            self.begin(number, now_ns)

    def begin(self, number: int, now_ns: int) -> None:
        """Start the next batch on an idle server, if there is one."""
        server, policy = self.servers[number], self.fleet.policy
        offers = {}
        for model, queue in server.queues.items():
            if server.arrived[model]:
                rows = np.array(server.arrived[model])
                server.arrived[model] = []
                queue.push(
                    0,
                    rows.astype(np.int32),
                    self.position[rows],
                    self.at_ns[rows],
                    np.full(len(rows), _FAR_NS),
                    target_ns=self.due_ns[rows],
                    size=self.size[rows],
                )
            if queue.rows:
                offered = propose(queue, now_ns, policy, server.times)
                if offered is None:
                    self._take(server, model, now_ns)
                else:
                    offers[str(model)] = offered
        chosen = server.arbiter.choose(now_ns, offers)
        server.running = self._take(server, int(chosen), now_ns) if chosen is not None else server.running[:0]
        server.busy = bool(len(server.running))
        if not server.busy or chosen is None:
            return
        elapsed_ns = round(self.fleet.curve.batch_ns(len(server.running)) * self.jitter.factor())
        server.arbiter.charge(chosen, elapsed_ns)
        server.times.learn(filled(len(server.running), policy.buckets), elapsed_ns)
        server.free_ns = now_ns + elapsed_ns
        server.busy_ns += elapsed_ns
        self.done_ns[server.running] = server.free_ns
        self.batches += 1
        heapq.heappush(self.ends, (server.free_ns, number))

    def _take(self, server: _Server, model: int, now_ns: int) -> np.ndarray:
        planned = schedule(server.queues[model], now_ns, self.fleet.policy, server.times)
        server.waiting -= sum(lot.rows for lot in (*planned.batch, *planned.expired))
        return np.concatenate([np.empty(0, np.int64), *(lot.numbers for lot in planned.batch)]).astype(
            np.int64
        )

    def lose(self, number: int, now_ns: int) -> None:
        """Let a server fail, and reroute its requests."""
        server = self.servers[number]
        self.set_there(number, now_ns, there=False)
        left = [*server.running.tolist()] if server.free_ns > now_ns else []
        self.done_ns[left] = NEVER_NS
        for model, queue in server.queues.items():
            left += server.arrived[model]
            for lot in queue.take_all():
                left += lot.numbers.tolist()
            server.arrived[model], server.queues[model] = [], RowQueue()
        server.waiting, server.busy, server.running = 0, False, server.running[:0]
        self.rerouted += len(left)
        for row in left:
            self.deal(int(self.requests.model[self.request[row]]), [row], now_ns)


def run_fleet(fleet: Fleet, requests: Requests, seed: int) -> FleetOutcome:
    """Simulate a fleet until all requests are done."""
    run = _Run(fleet, requests, seed)
    there = fleet.gpus if fleet.least is None else min(fleet.least, fleet.gpus)
    for number in range(there):
        run.set_there(number, 0, there=True)
    at_ns, models, rows = requests.at_ns.tolist(), requests.model.tolist(), requests.rows.tolist()
    starts = run.starts.tolist()
    ticks = _Ticks(run, at_ns[len(at_ns) // 2] if at_ns else 0)
    coming, now_ns, last_ns = 0, 0, (at_ns[-1] if at_ns else 0) + _PATIENCE_NS
    while coming < len(at_ns) or run.ends:
        arrives_ns = at_ns[coming] if coming < len(at_ns) else NEVER_NS
        ends_ns = run.ends[0][0] if run.ends else NEVER_NS
        now_ns = min(arrives_ns, ends_ns)
        if now_ns > last_ns:
            break
        ticks.until(now_ns)
        if ends_ns <= arrives_ns:
            _, number = heapq.heappop(run.ends)
            if run.servers[number].free_ns == ends_ns and run.servers[number].busy:
                run.begin(number, now_ns)
        else:
            run.deal(models[coming], range(starts[coming], starts[coming] + rows[coming]), now_ns)
            coming += 1
    for number in range(fleet.gpus):
        run.set_there(number, now_ns, there=False)
    last_rows = np.zeros(len(at_ns), np.int64)
    np.maximum.at(last_rows, run.request, run.done_ns)
    busy_ns = [sum(server.busy_ns for server in run.servers)]
    return FleetOutcome(
        Outcome(requests, last_rows, busy_ns, run.batches, now_ns), run.gpu_ns / 1e9, run.rerouted
    )


class _Ticks:
    """Timed events: servers publish their states, fail, start and stop."""

    def __init__(self, run: _Run, lose_ns: int) -> None:
        self._run = run
        self._lose_ns = lose_ns if run.fleet.lose else NEVER_NS
        self._see_ns = 0 if run.fleet.state_ms else NEVER_NS
        self._scale_ns = _SCALE_NS if run.fleet.least is not None else NEVER_NS
        self._starting: list[tuple[int, int]] = []
        self._busy_ns = 0

    def until(self, now_ns: int) -> None:
        """Run the events that are due."""
        run = self._run
        if now_ns >= self._see_ns:
            for server in run.servers:
                server.see()
            self._see_ns = now_ns + round(run.fleet.state_ms * 1e6)
        if now_ns >= self._lose_ns:
            self._lose_ns = NEVER_NS
            there = [number for number, server in enumerate(run.servers) if server.there]
            for number in there[: run.fleet.lose]:
                run.lose(number, now_ns)
        while self._starting and self._starting[0][0] <= now_ns:
            run.set_there(self._starting.pop(0)[1], now_ns, there=True)
        if now_ns >= self._scale_ns:
            self._scale_ns = now_ns + _SCALE_NS
            self._scale(now_ns)

    def _scale(self, now_ns: int) -> None:
        """Adapt the number of servers to the target utilisation, queued work included."""
        run, fleet = self._run, self._run.fleet
        there = [number for number, server in enumerate(run.servers) if server.there]
        busy_ns = sum(server.busy_ns for server in run.servers)
        waiting = sum(run.servers[number].waiting for number in there)
        used = (busy_ns - self._busy_ns + waiting / fleet.curve.peak_rows_per_s * 1e9) / _SCALE_NS
        self._busy_ns = busy_ns
        wanted = max(fleet.least or 1, min(fleet.gpus, -int(-used // _UTILISATION)))
        coming = [number for _, number in self._starting]
        missing = wanted - len(there) - len(coming)
        if missing > 0:
            away = [n for n, server in enumerate(run.servers) if not server.there and n not in coming]
            self._starting += [(now_ns + round(fleet.start_s * 1e9), number) for number in away[:missing]]
        elif missing < 0 and not coming:
            idle = [
                number for number in there if not run.servers[number].busy and not run.servers[number].waiting
            ]
            for number in idle[:-missing]:
                run.set_there(number, now_ns, there=False)
