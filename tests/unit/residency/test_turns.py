"""Loads begin in turns of their callers, and slow ones let others begin."""

from __future__ import annotations

from stoker.residency.turns import Load, LoadTurns, choose_before


class Loads:
    """Loads by model, and the models whose loads have begun, in order."""

    def __init__(self) -> None:
        self.turns = LoadTurns()
        self.begun: list[str] = []
        self.loads: dict[str, Load] = {}

    def request(self, model: str, *callers: str) -> None:
        load = self.loads[model] = Load(model, set(callers), lambda: self.begun.append(model))
        self.turns.request(load)

    def end(self, model: str) -> None:
        self.turns.end(self.loads[model])

    def step_aside(self, model: str) -> None:
        self.turns.step_aside(self.loads[model])

    def join(self, model: str, caller: str) -> None:
        self.loads[model].callers.add(caller)


def test_callers_take_turns() -> None:
    """One who requests many loads delays another caller by one of them; loads of a caller keep their order."""
    loads = Loads()
    for number in range(4):
        loads.request(f"a{number}", "a")
    loads.request("b0", "b")
    loads.request("b1", "b")
    assert loads.begun == ["a0"]
    for model in ("a0", "b0", "a1", "b1", "a2"):
        loads.end(model)
    assert loads.begun == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_load_has_the_earliest_turn_of_its_waiting_callers() -> None:
    """A model far back in one caller's queue loads in the turn of another caller that requests it too."""
    loads = Loads()
    for number in range(4):
        loads.request(f"a{number}", "a")
    loads.join("a3", "b")
    loads.end("a0")
    assert loads.begun == ["a0", "a3"]


def test_slow_loads_leave_places_to_others() -> None:
    """Other loads begin beside them one at a time, and one caller's slow loads never take all places."""
    loads = Loads()
    for number in range(5):
        loads.request(f"a{number}", "a")
    loads.request("b", "b")
    loads.request("c", "c")
    for model in ("a0", "b", "c", "a1", "a2"):
        assert loads.turns.is_taken
        loads.step_aside(model)
    assert not any(load.is_alone for model, load in loads.loads.items() if model in loads.begun)
    assert loads.begun == ["a0", "b", "c", "a1", "a2"], "a has three slow loads"
    assert not loads.turns.is_taken
    loads.request("d", "d")
    assert loads.begun[-1] == "d"
    loads.step_aside("d")
    loads.request("e", "e")
    assert loads.begun[-1] == "d", "all places are taken"
    loads.end("a0")
    assert loads.begun[-1] == "e"
    loads.end("e")
    assert loads.begun[-1] == "a3"


def test_loads_of_a_model_take_one_place() -> None:
    """Its versions do not begin beside a slow one of them; one that is given up waits no more."""
    turns, begun = LoadTurns(), list[str]()
    first, second, third = (
        Load(model, {"a"}, lambda name=name: begun.append(name))  # type: ignore[misc]  # bound now
        for name, model in (("first", "m"), ("second", "m"), ("third", "n"))
    )
    for load in (first, second, third):
        turns.request(load)
    turns.step_aside(first)
    assert begun == ["first", "third"]
    turns.end(second)
    turns.end(first)
    turns.end(third)
    assert begun == ["first", "third"]


def test_loads_before_a_new_one_are_those_of_the_turns_before() -> None:
    """A caller without loads waits for one of each other caller, not for all of one."""
    pending = [("a", 1.0), ("a", 2.0), ("a", 3.0), ("b", 4.0)]
    assert choose_before(pending, "c") == [1.0, 4.0]
    assert choose_before(pending, "b") == [1.0, 2.0, 4.0]
    assert choose_before(pending, "a") == [1.0, 2.0, 3.0, 4.0]
