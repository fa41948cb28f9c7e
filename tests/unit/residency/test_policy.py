"""The choice of models that leave memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.residency.policy import ModelUse, choose_evicted

MB = 1_000_000
NOW_S = 1000.0


def use(name: str, **changes: object) -> ModelUse:
    """A model of 100 MB that loads in a second, with one request in ten seconds."""
    return replace(ModelUse(name, 100 * MB, 1.0, 900.0, 0.1), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [{"requests_per_s": 0.01}, {"load_s": 0.5}, {"bytes": 200 * MB}, {"last_used_s": 800.0}],
)
def test_the_cheaper_model_leaves(changes: dict[str, object]) -> None:
    """Fewer requests, a shorter load, more bytes, and of equal ones a longer rest."""
    assert choose_evicted([use("a"), use("b", **changes), use("c")], 100 * MB, NOW_S) == ["b"]


@pytest.mark.parametrize("changes", [{"always_loaded": True}, {"leased": True}, {"resident_until_s": 1001.0}])
def test_a_held_model_stays(changes: dict[str, object]) -> None:
    """None is worth less, and yet it stays; without another one there is no room now."""
    held = use("held", requests_per_s=0.0, **changes)
    assert choose_evicted([held, use("other")], 100 * MB, NOW_S) == ["other"]
    assert choose_evicted([held, use("other")], 101 * MB, NOW_S) is None


def test_residence_ends() -> None:
    """From its end on the model may leave."""
    assert choose_evicted([use("a", resident_until_s=NOW_S)], 1, NOW_S) == ["a"]


def test_a_model_that_is_not_needed_stays() -> None:
    """Where the large one suffices, the small one stays, which costs less for each of its bytes."""
    small, large = use("small", bytes=10 * MB, requests_per_s=0.001), use("large", bytes=300 * MB)
    assert choose_evicted([small, large], 200 * MB, NOW_S) == ["large"]
    assert choose_evicted([small, large], 0, NOW_S) == []


def test_an_eviction_is_explained() -> None:
    """A log line gets the figures that decided."""
    assert use("a").explain(NOW_S) == ("unused for 100 s, 0.1 requests/s expected, loads in 1 s, 100 MB")


@given(
    st.lists(
        st.builds(
            ModelUse,
            name=st.just(""),
            bytes=st.integers(0, 500),
            load_s=st.floats(0, 100),
            last_used_s=st.floats(0, 2000),
            requests_per_s=st.floats(0, 1e6),
            resident_until_s=st.floats(0, 2000),
            always_loaded=st.booleans(),
            leased=st.booleans(),
        ),
        max_size=6,
    ).map(lambda models: [replace(model, name=str(number)) for number, model in enumerate(models)]),
    st.integers(0, 3000),
)
def test_just_enough_leaves(models: list[ModelUse], needed_bytes: int) -> None:
    """No held model, enough bytes, and none of those that leave could stay; None only where all are too few."""
    movable = {
        model.name: model.bytes
        for model in models
        if not model.always_loaded and not model.leased and model.resident_until_s <= NOW_S
    }
    evicted = choose_evicted(models, needed_bytes, NOW_S)
    if evicted is None:
        assert sum(movable.values()) < needed_bytes
        return
    freed_bytes = sum(movable[name] for name in evicted)
    assert freed_bytes >= needed_bytes
    assert all(freed_bytes - movable[name] < needed_bytes for name in evicted)
