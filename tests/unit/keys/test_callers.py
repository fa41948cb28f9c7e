"""Named keys: their models, their end, and changes during a server's life."""

import json
import logging
from pathlib import Path

import pytest
from tests.puppets import SecondsClock

from stoker.errors import InvalidSettings, NotReady, OutOfScope, Unauthorized
from stoker.keys.access import Access, name_caller
from stoker.keys.callers import DEFAULT, MOST_CALLERS, CallerBook
from stoker.keys.keyring import AdminKey, Keyring
from stoker.keys.tokens import TokenVerifier
from stoker.keys.verifier import KeyVerifier
from stoker.sequence_steps import SequenceStep

NOW_S = 1_800_000_000.0


def bearer(key: str) -> bytes:
    return b"Bearer " + key.encode()


@pytest.fixture
def keys_dir(tmp_path: Path) -> Path:
    keyring = Keyring(tmp_path / "keys", "mnist")
    keyring.ensure()
    keyring.ensure_signing_secret()
    return keyring.keys_dir


@pytest.fixture
def book(keys_dir: Path) -> CallerBook:
    return CallerBook(keys_dir)


def test_a_named_key_opens_every_model_at_once(keys_dir: Path, book: CallerBook) -> None:
    """Present verifiers know it and its caller with the next request; keys of services stay."""
    primary = Keyring(keys_dir, "mnist").show().primary
    verifier = KeyVerifier(keys_dir, "mnist", model="mnist")
    key = book.add("ads")
    for _ in range(2):
        holder = verifier.holder(bearer(key))
        assert holder is not None
        assert holder.name == "ads"
    assert verifier.holder(bearer(primary)) is DEFAULT
    assert verifier.holder(bearer(key + "x")) is None


def test_a_removed_key_is_refused_at_once(keys_dir: Path, book: CallerBook) -> None:
    """A verifier forgets a header with its key."""
    key, other = book.add("ads"), book.add("search")
    verifier = KeyVerifier(keys_dir, "mnist", model="mnist")
    assert verifier.verify(bearer(key))
    book.remove("ads")
    assert not verifier.verify(bearer(key))
    assert verifier.verify(bearer(other))


def test_a_scope_has_patterns(keys_dir: Path, book: CallerBook) -> None:
    """`customer-*` opens models that come later too; each name is matched as a whole, and by its case."""
    key = book.add("customer", terms={"models": frozenset({"customer-*", "mnist"})})

    def opens(model: str) -> bool:
        return KeyVerifier(keys_dir, "mnist", model=model).verify(bearer(key))

    assert all(map(opens, ("customer-1", "customer-", "mnist")))
    assert not any(map(opens, ("customer", "Customer-1", "a-customer-1", "mnist-2")))
    book.change("customer", {"models": frozenset({"*-eu-*"})})
    assert opens("shop-eu-2")
    assert not opens("customer-1")


def test_key_outside_its_scope_gets_a_reason(keys_dir: Path, book: CallerBook) -> None:
    """It is 403 for other models, with a code of its own, and 401 is for keys that nobody has."""
    key = book.add("ads", terms={"models": frozenset({"mnist"})})
    inside = Access(KeyVerifier(keys_dir, "mnist", model="mnist"))
    outside = Access(KeyVerifier(keys_dir, "mnist", model="other"))
    assert inside.check(bearer(key)).name == "ads"
    with pytest.raises(OutOfScope) as refused:
        outside.check(bearer(key))
    assert (refused.value.status, refused.value.code) == (403, "out_of_scope")
    with pytest.raises(Unauthorized):
        outside.check(bearer("a-key-that-nobody-has"))
    book.change("ads", {"models": None})
    assert outside.check(bearer(key)).name == "ads"


def test_remembered_key_names_its_caller(keys_dir: Path, book: CallerBook) -> None:
    """Without the key; it must be allowed to use the model now."""
    book.add("ads", terms={"models": frozenset({"mnist"})})
    access = Access(KeyVerifier(keys_dir, "mnist", model="mnist"))
    identity = book.find("ads").identity
    assert access.check(name_caller(identity)).name == "ads"
    assert access.check(name_caller("default")) is DEFAULT
    assert not Access(KeyVerifier(keys_dir, "mnist", model="other")).allows(name_caller(identity))
    assert not access.allows(b"stoker-caller " + b"0" * 32 + b" ads")
    book.remove("ads")
    book.add("ads")
    with pytest.raises(Unauthorized):
        access.check(name_caller(identity))


def test_name_of_a_removed_key_inherits_nothing(keys_dir: Path, book: CallerBook) -> None:
    """Tokens, stored requests and sequences name an identity, which another caller of the same name has not."""
    key = book.add("ads")
    keys = KeyVerifier(keys_dir, "mnist", model="mnist")
    tokens = TokenVerifier(keys_dir, "mnist", keys, clock_s=SecondsClock(NOW_S))
    token = bearer(tokens.fresh(bearer(key)).text)
    former = book.find("ads").identity
    assert tokens.holder(token) == book.find("ads")
    book.change("ads", {"weight": 2.0})
    assert tokens.holder(token) == book.find("ads")
    book.remove("ads")
    book.add("ads")
    assert book.find("ads").identity != former
    assert tokens.holder(token) is None
    assert keys.caller_with(former) is None
    step = SequenceStep(7, start=True)
    assert step.words(former) != step.words(book.find("ads").identity)


def test_only_the_log_says_that_a_key_has_expired(
    keys_dir: Path, book: CallerBook, caplog: pytest.LogCaptureFixture
) -> None:
    """It gets the answer of a wrong key; the log has one line, not one for each request."""
    clock = SecondsClock(NOW_S)
    key = book.add("ads", terms={"models": frozenset({"mnist"}), "expires_s": clock.now_s + 10})
    for model in ("mnist", "other"):
        access = Access(KeyVerifier(keys_dir, "mnist", model=model, clock_s=clock))
        clock.now_s = NOW_S
        assert access.allows(bearer(key)) is (model == "mnist")
        clock.now_s += 10
        for _ in range(2):
            with pytest.raises(Unauthorized) as refused:
                access.check(bearer(key))
            assert str(refused.value) == str(access.refusal(b"Bearer a-key-that-nobody-has"))
    assert [record.message for record in caplog.records] == [
        "the key of the caller ads has expired; it is refused from now on"
    ] * 2
    book.change("ads", {"expires_s": None})
    assert Access(KeyVerifier(keys_dir, "mnist", model="mnist", clock_s=clock)).allows(bearer(key))


def test_the_admin_key_is_no_model(keys_dir: Path, book: CallerBook) -> None:
    """A named key does not load models."""
    AdminKey(keys_dir).ensure()
    assert not KeyVerifier(keys_dir, ".admin").verify(bearer(book.add("ads")))


def test_nothing_keeps_a_key(keys_dir: Path, book: CallerBook) -> None:
    """The file is for the owner alone and has its hash."""
    key = book.add("ads")
    (path,) = (path for path in keys_dir.iterdir() if path.name == ".callers")
    assert path.stat().st_mode & 0o777 == 0o600
    assert key not in path.read_text()


def test_callers_have_distinct_small_numbers(book: CallerBook) -> None:
    """Each has a number of its own below 256, which is free for another one when it is removed."""
    for name in "abc":
        book.add(name)
    book.remove("b")
    book.add("d")
    assert {terms.name: terms.number for terms in book.callers()} == {"a": 1, "c": 3, "d": 2}


def test_there_are_no_more_callers_than_numbers(keys_dir: Path, book: CallerBook) -> None:
    """The one without a name counts."""
    import json

    stored = [
        {"name": f"c{number}", "number": number, "sha256": f"{number:064x}"}
        for number in range(1, MOST_CALLERS)
    ]
    (keys_dir / ".callers").write_text(json.dumps({"callers": stored}))
    with pytest.raises(InvalidSettings, match="remove one"):
        book.add("one-more")


@pytest.mark.parametrize("name", ["default", "", "a b", ".hidden"])
def test_a_caller_has_a_name(book: CallerBook, name: str) -> None:
    """Names are those of models; `default` is the caller with the keys of a service."""
    with pytest.raises(InvalidSettings):
        book.add(name)


def test_names_and_keys_belong_to_one_caller(book: CallerBook) -> None:
    """A second caller of a name or with a key is refused, and an unknown one cannot be changed."""
    key = book.add("ads")
    with pytest.raises(InvalidSettings, match="already"):
        book.add("ads")
    with pytest.raises(InvalidSettings, match="has this key"):
        book.add("search", key)
    with pytest.raises(InvalidSettings, match="there are: ads"):
        book.remove("search")


@pytest.mark.parametrize(
    ("name", "value"), [("number", 256), ("number", 0), ("rows_per_s", 0), ("burst_s", -1)]
)
def test_invalid_number_in_the_callers_file_is_refused(
    keys_dir: Path, book: CallerBook, name: str, value: float
) -> None:
    """A caller's number out of range, or a limit that lets nothing through, is an error."""
    book.add("ads", terms={"rows_per_s": 5.0, "device_ms_per_s": 7.0, "burst_s": 3.0})
    (terms,) = book.callers()
    assert (terms.rows_per_s, terms.device_ms_per_s, terms.burst_s) == (5, 7, 3)
    path = keys_dir / ".callers"
    stored = json.loads(path.read_bytes())
    stored["callers"][0][name] = value
    path.write_text(json.dumps(stored))
    with pytest.raises(InvalidSettings, match="cannot be read"):
        book.callers()


def test_a_damaged_file_closes_named_keys_alone(
    keys_dir: Path, book: CallerBook, caplog: pytest.LogCaptureFixture
) -> None:
    """The keys of the service go on; a mended file needs no restart."""
    key, path = book.add("ads"), keys_dir / ".callers"
    whole = path.read_bytes()
    path.write_bytes(b"{")
    verifier = KeyVerifier(keys_dir, "mnist", model="mnist")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert not verifier.verify(bearer(key))
    assert isinstance(Access(verifier).refusal(bearer(key)), NotReady)
    assert verifier.verify(bearer(Keyring(keys_dir, "mnist").show().primary))
    assert len(caplog.records) == 1
    path.write_bytes(whole)
    assert verifier.verify(bearer(key))


def test_token_belongs_to_the_caller_that_fetched_it(keys_dir: Path, book: CallerBook) -> None:
    """It opens what the caller's key opens, and nothing once the caller is removed."""
    clock = SecondsClock(NOW_S)
    keys = KeyVerifier(keys_dir, "mnist", model="mnist", clock_s=clock)
    tokens = TokenVerifier(keys_dir, "mnist", keys, clock_s=clock)
    access = Access(keys, tokens)
    token = bearer(tokens.fresh(bearer(book.add("ads"))).text)
    plain = bearer(tokens.fresh(bearer(Keyring(keys_dir, "mnist").show().primary)).text)
    for _ in range(2):
        assert access.check(token).name == "ads"
        assert access.check(plain) is DEFAULT
    book.change("ads", {"models": frozenset({"other"})})
    with pytest.raises(Unauthorized, match="not known any more, or not for this model"):
        access.check(token)
    book.remove("ads")
    assert not access.allows(token)
    assert access.check(plain) is DEFAULT
