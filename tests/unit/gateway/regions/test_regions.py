"""Shared memory of callers: regions, and that no byte outside of them is ever read or written."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.errors import BodyTooLarge, Forbidden, InvalidInput, MalformedBody, NotFound, RegionTaken
from stoker.gateway.regions.memory import file_of
from stoker.gateway.regions.regions import MAX_REGIONS, LimitedReader, Regions, is_local
from stoker.gateway.regions.table import FileLocation, RegionTable, Registration
from stoker.wire.oip_tensors import RegionSpan, span_of

Frontends = tuple[Regions, Regions]
Tables = tuple[RegionTable, RegionTable]


@pytest.fixture
def tables() -> Tables:
    """One table, as the supervisor gives it to two frontends."""
    fd = os.memfd_create("regions")
    return RegionTable(fd), RegionTable(os.dup(fd))


@pytest.fixture
def frontends(tables: Tables) -> Frontends:
    """Two frontends with one table."""
    ours, theirs = (Regions(table, needs_admin=False) for table in tables)
    return ours, theirs


@pytest.fixture
def memory() -> Iterator[Path]:
    """Shared memory of 64 bytes, which count from 0."""
    path = Path("/dev/shm", f"stoker-tests-{uuid.uuid4().hex}")
    path.write_bytes(bytes(range(64)))
    yield path
    path.unlink(missing_ok=True)


def registered(regions: Regions, memory: Path) -> None:
    """Register the 32 bytes in its middle."""
    regions.register("r", f"/{memory.name}", 16, 32)


def test_all_frontends_know_at_once(frontends: Frontends, memory: Path) -> None:
    """A frontend reads a region that another registered, until either unregisters it."""
    ours, theirs = frontends
    registered(ours, memory)
    assert bytes(theirs.read(RegionSpan("r", 2, 3))) == bytes([18, 19, 20])
    with pytest.raises(RegionTaken):
        registered(theirs, memory)
    theirs.unregister("r")
    with pytest.raises(InvalidInput, match="Unable to find"):
        ours.read(RegionSpan("r", 2, 3))
    assert ours.status(None) == []
    with pytest.raises(NotFound):
        ours.status("r")


def test_later_file_of_the_same_name_is_not_read(frontends: Frontends, memory: Path) -> None:
    """A frontend that opens a region later looks whether it is the file that was registered."""
    ours, theirs = frontends
    registered(ours, memory)
    content = memory.read_bytes()
    memory.rename(memory.with_suffix(".old"))
    memory.write_bytes(content)
    try:
        with pytest.raises(InvalidInput, match="Unable to find"):
            theirs.read(RegionSpan("r", 0, 1))
        assert ours.status(None) == []
    finally:
        memory.with_suffix(".old").unlink()


@pytest.mark.parametrize(("offset", "size"), [(31, 2), (33, 0), (1 << 62, 1 << 62), (0, 33)])
def test_no_part_is_outside(frontends: Frontends, memory: Path, offset: int, size: int) -> None:
    """Neither to read nor to write, though the file is longer."""
    regions, _ = frontends
    registered(regions, memory)
    span = RegionSpan("r", offset, size)
    for use in (regions.read, regions.check):
        with pytest.raises(InvalidInput, match="Invalid offset"):
            use(span)


def test_writing_changes_its_part_alone(frontends: Frontends, memory: Path) -> None:
    """The bytes around it stay."""
    regions, _ = frontends
    registered(regions, memory)
    span = RegionSpan("r", 30, 2)
    regions.write(span, memoryview(b"ab"), regions.check(span))
    before = bytes(range(64))
    assert memory.read_bytes() == before[:46] + b"ab" + before[48:]


@pytest.mark.parametrize("left_bytes", [0, 16, 40])
def test_a_file_cut_short_is_refused_and_stays_so(
    frontends: Frontends, memory: Path, left_bytes: int
) -> None:
    """It is neither read behind its end, which would kill a process that maps it, nor made longer again."""
    regions, _ = frontends
    registered(regions, memory)
    span = RegionSpan("r", 0, 32)
    before = regions.check(span)
    os.truncate(memory, left_bytes)
    with pytest.raises(InvalidInput, match="shorter"):
        regions.read(span)
    with pytest.raises(InvalidInput, match="shorter"):
        regions.write(span, memoryview(bytes(32)), before)
    assert memory.stat().st_size == left_bytes


def descriptors_of(memory: Path) -> int:
    """How many descriptors this process has of shared memory, be it removed or not."""
    links = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(str(link.readlink()).removesuffix(" (deleted)"))
    return links.count(str(memory))


@pytest.mark.parametrize("let_go", [lambda regions, memory: memory.unlink(), lambda regions, _: None])
def test_removed_memory_is_let_go(
    frontends: Frontends, memory: Path, let_go: Callable[[Regions, Path], None]
) -> None:
    """With the next look, with the descriptor: else the server would hold memory that nobody else can have."""
    ours, theirs = frontends
    registered(ours, memory)
    ours.read(RegionSpan("r", 0, 1))
    assert descriptors_of(memory) == 1
    let_go(ours, memory)
    gone = not memory.exists()
    theirs.remove_gone()
    ours.remove_gone()
    assert len(ours.status(None)) == (0 if gone else 1)
    assert descriptors_of(memory) == (0 if gone else 1)


def test_an_output_is_not_written_into_a_later_region(frontends: Frontends, memory: Path) -> None:
    """One that was let go while the request ran, and registered again under its name."""
    regions, _ = frontends
    registered(regions, memory)
    span = RegionSpan("r", 0, 4)
    before = regions.check(span)
    regions.unregister("r")
    registered(regions, memory)
    with pytest.raises(InvalidInput, match="Unable to find"):
        regions.write(span, memoryview(b"abcd"), before)
    assert memory.read_bytes() == bytes(range(64))


def test_unusable_shared_memory_file_is_refused(tables: Tables, frontends: Frontends, memory: Path) -> None:
    """Too large or empty regions, links, other files and too many regions are refused."""
    regions, _ = frontends
    link = memory.with_suffix(".link")
    link.symlink_to("/etc/hostname")
    try:
        for key in (
            f"/{link.name}",
            "/stoker-tests-none",
            "/..",
            "../etc/hostname",
            "/sem.x",
            "",
            "/a/b",
            "a\0b",
        ):
            with pytest.raises(InvalidInput, match="Unable to open"):
                regions.register("r", key, 0, 1)
    finally:
        link.unlink()
    with pytest.raises(InvalidInput, match="would end at byte 65"):
        regions.register("r", memory.name, 1, 64)
    for name, offset, size in (("", 0, 1), ("r" * 257, 0, 1), ("r", -1, 1), ("r", 0, 0)):
        with pytest.raises(MalformedBody):
            regions.register(name, memory.name, offset, size)
    assert file_of("/" + memory.name) == file_of(memory.name) == memory

    def fill(known: dict[str, object], number: int) -> None:
        known.update(
            {
                f"{index}": Registration(number, f"{index}", 1, FileLocation("é" * 127, 0, 0, 0))
                for index in range(MAX_REGIONS)
            }
        )

    tables[0].change(fill)  # type: ignore[arg-type]
    assert len(tables[0].registered) == MAX_REGIONS
    regions.remove_gone()
    assert regions.status(None) == []


def test_a_change_that_fails_changes_nothing(tables: Tables, frontends: Frontends, memory: Path) -> None:
    """And others can make theirs: the lock is free."""
    ours, theirs = frontends

    def fail(known: dict[str, object], _: int) -> None:
        known.clear()
        raise RegionTaken("no")

    registered(ours, memory)
    with pytest.raises(RegionTaken):
        tables[0].change(fail)  # type: ignore[arg-type]
    assert len(theirs.status(None)) == 1


def test_inputs_may_be_as_long_as_a_body(frontends: Frontends, memory: Path) -> None:
    """The limit counts the bytes read for all inputs together."""
    regions, _ = frontends
    registered(regions, memory)
    reader = LimitedReader(regions, 40)
    reader.read(RegionSpan("r", 0, 30))
    with pytest.raises(BodyTooLarge):
        reader.read(RegionSpan("r", 0, 11))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("fe80::1", False), ("", False), ("localhost", False),
    ],
)  # fmt: skip
def test_peer_is_local_by_its_address(
    tables: Tables, frontends: Frontends, address: str, local: bool
) -> None:
    """Peers on this machine are known by their address; `anywhere` admits all peers."""
    assert is_local(address) is local
    regions, _ = frontends
    assert regions.serves(address) is local
    if not local:
        with pytest.raises(Forbidden):
            regions.check_peer(address)
    assert Regions(tables[0], needs_admin=False, anywhere=True).serves(address)


@pytest.mark.parametrize(
    "parameters",
    [
        {"shared_memory_offset": 0},
        {"shared_memory_byte_size": 4},
        {"shared_memory_region": "r"},
        {"shared_memory_region": "r", "shared_memory_byte_size": -1},
        {"shared_memory_region": "r", "shared_memory_byte_size": True},
        {"shared_memory_region": "r", "shared_memory_byte_size": 4, "shared_memory_offset": 1.5},
        {"shared_memory_region": 5, "shared_memory_byte_size": 4},
        {"shared_memory_region": "r", "shared_memory_byte_size": 1 << 63},
    ],
)
def test_places_that_are_none(parameters: dict[str, object]) -> None:
    """Half a place, and numbers that are none, are refused."""
    with pytest.raises(MalformedBody):
        span_of(parameters)
