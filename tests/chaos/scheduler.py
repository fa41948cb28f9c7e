"""A seeded scheduler of faults: an episode is what follows from its seed, but for the time that things take.

Not hypothesis's state machines: they look for a failing example by running examples again, and expect a failure to
come back. Here one example takes a minute and hangs on races, so a failure may stay away; nothing would be shrunk,
and every attempt would cost another minute. What is wanted of a seed is the same faults in the same order.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos import answers_later, endings, processes, reloads, rude, shortages, versions
from tests.chaos.callers import Callers, Surroundings
from tests.chaos.ledger import GONE, Allowance, Ledger, Outcome, Verdict
from tests.chaos.questions import HTTP_PROTOCOLS, ON_DEMAND
from tests.chaos.scene import ACTIONS, ENDINGS, Action, Scene
from tests.chaos.server import RECOVERY_S, ChaosServer, Usage
from tests.live_server import wait_until

__all__ = ["BrokenPromise", "Episode", "Plan", "plan", "tour"]

_MODULES_WITH_ACTIONS: Final = (answers_later, processes, versions, shortages, reloads, rude, endings)
_CALM_ANSWERS: Final = 5
"""How many right answers each protocol gets before the next round."""
_MOST_TOGETHER: Final = 3
_WARM_PART: Final = 3
"""After one part of so many of the rounds its processes have touched what memory they use, and should not grow."""
_FORESEEN: Final = re.compile("the script was told to raise|MemoryError|can't start new thread")
"""Expected last lines of tracebacks: errors that rude callers provoke in a script, and those of a memory limit."""


class BrokenPromise(AssertionError):
    """Something that no action may cost has happened."""


@dataclass(frozen=True)
class Plan:
    """The events of an episode, in this order.

    Attributes:
        rounds: The actions of each round.
        ending: How the server ends.
        seed: What follows from it: this, and each choice within an action.
    """

    seed: int
    rounds: tuple[tuple[Action, ...], ...]
    ending: Action

    def __str__(self) -> str:
        return "; ".join([*map(_names, self.rounds), self.ending.name])


def _names(together: Iterable[Action]) -> str:
    return " + ".join(one.name for one in together)


def plan(seed: int, rounds: int) -> Plan:
    """Throw the dice for an episode; every action has its turn before one comes again."""
    random = Random(seed)
    deck: list[str] = []
    chosen = []
    for _ in range(rounds):
        count = random.choice((1, 1, 1, 2, 2, _MOST_TOGETHER))
        if len(deck) < count:
            deck = random.sample(sorted(ACTIONS), k=len(ACTIONS))
        together = {ACTIONS[name].group: ACTIONS[name] for name in (deck.pop() for _ in range(count))}
        chosen.append(tuple(together.values()))
    return Plan(seed, tuple(chosen), ENDINGS[random.choice(sorted(ENDINGS))])


def tour(seed: int) -> Plan:
    """Every action once, up to three at a time, then SIGTERM."""
    groups = Counter(one.group for one in ACTIONS.values())
    left = Random(seed).sample(sorted(ACTIONS), k=len(ACTIONS))
    # Those that have to be apart come first, or they would be left alone at the end.
    left.sort(key=lambda name: -groups[ACTIONS[name].group])
    rounds: list[tuple[Action, ...]] = []
    while left:
        together: dict[str, Action] = {}
        for name in left:
            if len(together) < _MOST_TOGETHER:
                together.setdefault(ACTIONS[name].group, ACTIONS[name])
        rounds.append(tuple(together.values()))
        left = [name for name in left if ACTIONS[name] not in together.values()]
    return Plan(seed, tuple(rounds), ENDINGS["sigterm under load"])


@dataclass
class Episode:
    """One server from its start to its end, and its successor's first answers.

    Attributes:
        plan: What is done.
        scratch: An empty folder.
        longest_hold_s: How long a fault lasts, at most.
        say: Told of each round as it ends.
        ledger: What became of every request.
        struck: How often each action has struck.
        usage: What its processes use, by kind, after a third of the rounds and after all.
    """

    plan: Plan
    scratch: Path
    longest_hold_s: float = 5.0
    say: Callable[[str], None] = lambda _: None
    ledger: Ledger = field(default_factory=Ledger)
    struck: Counter[str] = field(default_factory=Counter)
    usage: list[dict[str, Usage]] = field(default_factory=list)

    def run(self) -> None:
        """Run it; raises BrokenPromise, or whatever else has failed.

        Raises:
            BrokenPromise: A request was lost or wrong, or refused though nothing allowed it.
            AssertionError: The server did not come back, or an action found what may not be.
        """
        on_demand = self.plan.seed % 3 == 1
        packs = self.plan.seed % 2 == 0 and not on_demand
        self._server = server = ChaosServer(self.scratch, packs=packs, on_demand=on_demand)
        around = Surroundings(
            server.port, server.grpc_port, server.label_means, lambda: server.down, server.on_demand
        )
        try:
            server.start()
            with Callers(self.ledger, around, self.plan.seed):
                self._calm()
                random = Random(f"rounds of {self.plan.seed}")
                for number, together in enumerate(self.plan.rounds):
                    if number == len(self.plan.rounds) // _WARM_PART:
                        self._measure()
                    self._round(random, together)
                self._measure()
                self._round(random, (self.plan.ending,))
            self._judge()
            self._check_that_nothing_is_left()
        finally:
            server.kill()

    def _measure(self) -> None:
        """Note what the processes use; where models come and go, that they did."""
        if not self._server.on_demand:
            self.usage.append(self._server.usage())
            return
        # A new server in the place of the old one counts from zero.
        wait_until(
            lambda: self._server.metric_total("stoker_evictions_total") > 0, "models on demand are unloaded"
        )

    def _round(self, random: Random, together: tuple[Action, ...]) -> None:
        began_s = time.monotonic()
        hold_s = random.uniform(0.2, self.longest_hold_s)
        scene = Scene(self._server, random, hold_s, len(together) == 1, self.ledger)
        if self._server.on_demand:
            # Their loads need the processes that the faults hold up.
            for verdict in (Verdict.REFUSED, Verdict.LATE):
                self.ledger.allow(Allowance("models on demand", verdict, _is_held_up))
        with ExitStack() as faults:
            for one in together:
                self.struck[one.name] += 1
                faults.enter_context(one.strike(scene.named(one.name)))
                time.sleep(random.uniform(0.0, 0.3))
            time.sleep(hold_s)
        scene.end_errands()
        self._server.wait_until_whole()
        self.ledger.end_allowances(time.monotonic())
        self._calm()
        names = _names(together)
        counts = ", ".join(f"{self.ledger.count(verdict)} {verdict}" for verdict in Verdict)
        self.say(f"{names}: {time.monotonic() - began_s:.1f} s; {counts}")

    def _calm(self) -> None:
        """Wait until callers of every protocol have had right answers; then judge what came before."""
        before = dict(self.ledger.counts)
        protocols = [one for one in HTTP_PROTOCOLS if self._server.on_demand or one != ON_DEMAND]
        for protocol in (*protocols, "grpc"):
            right = (protocol, Verdict.RIGHT)
            wanted = before.get(right, 0) + _CALM_ANSWERS

            def answered(wanted: int = wanted, right: tuple[str, Verdict] = right) -> bool:
                return self.ledger.counts[right] >= wanted

            wait_until(answered, f"callers of {protocol} have right answers", timeout_s=RECOVERY_S)
        self._judge()

    def _judge(self) -> None:
        if broken := self.ledger.broken():
            lines = [f"{len(broken)} requests that nothing allows:", *map(_described, broken[:10])]
            raise BrokenPromise("\n".join(lines))

    def _check_that_nothing_is_left(self) -> None:
        """When all callers have gone, no row is held; the logs have no fault but those that were provoked."""
        for gauge in ("stoker_rows_in_flight", "stoker_queue_rows"):
            wait_until(lambda gauge=gauge: self._server.metric_total(gauge) == 0, f"{gauge} is 0")
        unforeseen = [line for line in self._server.faults_in_logs() if not _FORESEEN.search(line)]
        assert not unforeseen, f"faults in the logs: {unforeseen[:10]}"


def _is_held_up(outcome: Outcome) -> bool:
    """Whether a request got no answer as its model could not be loaded in time."""
    return outcome.protocol == ON_DEMAND and (outcome.verdict is Verdict.LATE or outcome.detail in GONE)


def _described(outcome: Outcome) -> str:
    place = "first" if outcome.first else "later"
    return (
        f"  {outcome.verdict} ({outcome.protocol}, port {outcome.port}, {place} of its connection, "
        f"{outcome.sent_s:.3f} to {outcome.ended_s:.3f}): {outcome.detail}"
    )
