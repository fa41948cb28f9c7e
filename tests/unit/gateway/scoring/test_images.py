"""Images within a service: decoded at once or beside the loop, and what happens to their requests meanwhile."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import numpy as np
import pytest
from tests.puppets import Joined, PuppetRuntime, metric_memory, puppet_service
from tests.unit.gateway.scoring.test_service_staging import Answers

from stoker.errors import DeadlineExceeded, Overloaded, StokerError, UnsupportedEncoding
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.images import ImageScoring
from stoker.gateway.scoring.pixel_budget import PixelBudget
from stoker.metrics.memory import MetricMemory
from stoker.settings.image_input import ImageInput
from stoker.system.resources import trim_heap
from stoker.tensors import Signature, TensorSpec
from stoker.wire.script_requests import RequestHead

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

FOUR = Signature((TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (4,)),))
LARGE_SIDE = 300
"""An image of this side is decoded on a thread."""


class HandThread(Executor):
    """An executor whose work is done when the test says so."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, lambda: fn(*args, **kwargs)))
        return future

    def do_next(self) -> None:
        future, work = self.work.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except StokerError as error:
            future.set_exception(error)


class Scene:
    """A service of a model of four numbers, its device, and the thread that decodes."""

    def __init__(self, joined: Joined, memory: MetricMemory) -> None:
        self.joined, self.memory = joined, memory
        self.thread = HandThread()
        images = ImageScoring(
            ImageInput(2, 2, 1, scale=1.0),
            max_pixels=LARGE_SIDE**2,
            max_rows_bytes=1000,
            threads=self.thread,
            budget=PixelBudget(128 * LARGE_SIDE**2),
        )
        self.service = puppet_service(memory=memory, timeout_ms=60_000, max_body_bytes=1 << 20, images=images)
        self.service.attach(joined.exchange)

    def score(self, body: bytes, respond: Answers, content_type: str | None = "image/png") -> Call:
        """Score a body within a turn of the loop, as a door does."""
        head = (
            RequestHead("POST", "/score", "", [("content-type", content_type)], "") if content_type else None
        )

        async def arrive() -> Call:
            return self.service.score(body, None, respond, 0, head) if head else self._soon(body, respond)

        return self.joined.loop.run_until_complete(arrive())

    def _soon(self, body: bytes, respond: Answers) -> Call:
        return self.service.score_soon(body, None, respond)

    def decode_next(self) -> None:
        """Let the thread decode the request that has waited longest, and the loop hear of it."""
        self.thread.do_next()
        self.joined.settle()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    memory = metric_memory()
    # The puppets' clock and the calls' deadlines begin at the same moment.
    monkeypatch.setattr("time.monotonic_ns", lambda: 1_000_000_000)
    with Joined(PuppetRuntime(FOUR)) as joined:
        yield Scene(joined, memory)


def png(level: int, side: int = 2) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((side, side), level, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def answer_of(level: int) -> tuple[int, bytes]:
    return 200, json.dumps([[2.0 * level] * 4], separators=(",", ":")).encode()


def test_a_small_image_is_decoded_at_once(scene: Scene) -> None:
    """Decoding it on the loop is cheaper than a thread."""
    answers = Answers()
    scene.score(png(3), answers)
    assert scene.thread.work == []
    scene.joined.settle()
    assert answers.got == [answer_of(3)]


def test_a_large_image_is_decoded_on_a_thread(scene: Scene) -> None:
    """The event loop goes on meanwhile, and answers those who came later first."""
    large, small = Answers(), Answers()
    scene.score(png(5, LARGE_SIDE), large)
    scene.score(png(3), small)
    scene.joined.settle()
    assert (large.got, small.got) == ([], [answer_of(3)])
    scene.decode_next()
    assert large.got == [answer_of(5)]


def test_small_images_count_by_their_resized_size(scene: Scene) -> None:
    """A dozen images of one pixel are rows of millions of numbers: a second's work for a kilobyte of body."""
    thread = HandThread()
    images = ImageScoring(
        ImageInput(200, 200, 1), max_pixels=1 << 20, max_rows_bytes=100 << 20, threads=thread
    )
    images.attach(Signature((TensorSpec("x", "float32", (200, 200)),), FOUR.outputs))
    text = base64.b64encode(png(1, 1)).decode()

    async def read(count: int) -> list[Any]:
        taken: list[Any] = []
        body = json.dumps({"data": [text] * count}).encode()
        images.read(body, None, lambda: None, taken.append)
        return taken

    for count, at_once in ((1, True), (2, False)):
        taken = scene.joined.loop.run_until_complete(read(count))
        assert (len(taken), len(thread.work)) == (int(at_once), int(not at_once))
    thread.do_next()
    scene.joined.settle()
    assert images.idle


@pytest.mark.parametrize("padding", [0, 100_000])
def test_large_bodies_of_base64_go_the_same_way(scene: Scene, padding: int) -> None:
    """Base64 without a head beside it, as the fast path brings it, is decoded on the thread too."""
    text = base64.b64encode(png(7, LARGE_SIDE)).decode()
    answers = Answers()
    scene.score(json.dumps({"data": [text], "comment": "x" * padding}).encode(), answers, None)
    scene.joined.settle()
    assert (len(scene.thread.work), answers.got) == (1, [])
    scene.decode_next()
    assert answers.got == [answer_of(7)]


def test_numbers_beside_long_texts_are_numbers(scene: Scene) -> None:
    """A large body that might hold images, but holds rows, is scored as rows."""
    answers = Answers()
    body = json.dumps({"data": [[1, 2, 3, 4]], "comment": "x" * 100_000}).encode()
    scene.score(body, answers, None)
    scene.decode_next()
    assert answers.got == [(200, b"[[2.0,4.0,6.0,8.0]]")]


def test_damage_found_by_decoding_answers_400(scene: Scene) -> None:
    """The thread's error becomes the answer of its request, counted as malformed."""
    answers = Answers()
    scene.score(png(5, LARGE_SIDE)[:-40], answers)
    scene.decode_next()
    assert [status for status, _ in answers.got] == [400]
    assert scene.memory.totals().model(0).rejections()["malformed"] == 1


def test_request_of_a_gone_caller_is_not_decoded(scene: Scene) -> None:
    """A request whose caller has gone is not decoded, counts as given up, and leases no row."""
    answers = Answers()
    call = scene.score(png(5, LARGE_SIDE), answers)
    call.abandon()
    call.abandon()
    scene.decode_next()
    assert (answers.got, scene.joined.runtime.batches) == ([], [])
    assert scene.joined.exchange.leased_rows == 0
    assert scene.memory.totals().model(0).requests()[499] == 1


def test_a_deadline_that_passes_while_others_are_decoded(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose time is over when its turn comes gets 504 and costs no decoding."""
    answers = Answers()
    scene.score(png(5, LARGE_SIDE), answers)
    monkeypatch.setattr("time.monotonic_ns", lambda: 61_000_000_000)
    scene.decode_next()
    assert [status for status, _ in answers.got] == [504]


def test_request_that_waits_for_a_thread_past_its_deadline_gets_504(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose time passes while others keep the threads busy gets its 504 then, not when its turn comes."""
    late, gone, again = Answers(), Answers(), Answers()
    scene.score(png(5, LARGE_SIDE), late)
    scene.score(png(5, LARGE_SIDE), gone).abandon()
    scene.service.sweep(0)
    assert late.got == []
    monkeypatch.setattr("time.monotonic_ns", lambda: 61_000_000_000)
    for _ in range(2):
        scene.service.sweep(0)
    assert ([status for status, _ in late.got], gone.got) == ([504], [])
    scene.joined.settle()
    assert scene.service.idle
    for future, _ in scene.thread.work:
        assert future.cancelled()
    scene.thread.work.clear()
    monkeypatch.setattr("time.monotonic_ns", lambda: 1_000_000_000)
    scene.score(png(5, LARGE_SIDE), again)
    scene.decode_next()
    assert again.got == [answer_of(5)]


def test_a_thread_that_is_busy_is_not_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is being decoded when its time passes is answered too, once; its work counts until it ends."""
    answers = Answers()
    scene.score(png(5, LARGE_SIDE), answers)
    ((future, work),) = scene.thread.work
    future.set_running_or_notify_cancel()
    monkeypatch.setattr("time.monotonic_ns", lambda: 61_000_000_000)
    scene.service.sweep(0)
    assert [status for status, _ in answers.got] == [504]
    assert not scene.service.idle
    with pytest.raises(DeadlineExceeded):
        work()
    future.set_result([np.zeros((1, 4), np.float32)])
    scene.joined.settle()
    assert (len(answers.got), scene.joined.runtime.batches) == (1, [])
    assert scene.service.idle


def test_a_device_that_is_lost_meanwhile(scene: Scene) -> None:
    """A request whose image was being decoded when the device process died gets 503."""
    answers = Answers()
    scene.score(png(5, LARGE_SIDE), answers)
    scene.joined.exchange.close()
    scene.service.detach(scene.joined.exchange)
    scene.decode_next()
    assert [status for status, _ in answers.got] == [503]


def test_too_many_waiting_images_are_refused(scene: Scene) -> None:
    """No more than 128 images wait for the threads; further ones get 503, and later ones are taken again."""
    waiting, refused, later = Answers(), Answers(), Answers()
    body = png(1, LARGE_SIDE)
    for _ in range(128):
        scene.score(body, waiting)
    scene.score(body, refused)
    assert [status for status, _ in refused.got] == [503]
    scene.decode_next()
    scene.score(body, later)
    assert (waiting.got, later.got) == ([answer_of(1)], [])


def test_images_of_a_frontend_share_a_budget_in_pixels(scene: Scene) -> None:
    """A waiting image counts with its pixels; a long body not yet parsed counts as one image of the largest size."""
    thread, budget = HandThread(), PixelBudget(5_000_000)
    images = ImageScoring(
        ImageInput(2, 2, 1), max_pixels=2_000_000, max_rows_bytes=1000, threads=thread, budget=budget
    )
    images.attach(FOUR)
    taken: list[Any] = []
    short = png(1, 1000)
    texts = [base64.b64encode(short).decode()] * 4
    long = json.dumps({"data": texts, "comment": "x" * 100_000}).encode()

    async def read(*bodies: bytes) -> None:
        for body in bodies:
            images.read(body, None, lambda: None, taken.append)

    def refused() -> list[Any]:
        return [type(outcome) for outcome in taken if isinstance(outcome, Exception)]

    run = scene.joined.loop.run_until_complete
    run(read(long, short, short, short))
    assert (refused(), len(thread.work)) == ([], 4)
    run(read(short))
    assert (refused(), len(thread.work)) == ([Overloaded], 4)
    # The long one has four million pixels, and there is room for two.
    thread.do_next()
    scene.joined.settle()
    assert refused() == [Overloaded] * 2
    run(read(short, short, short))
    assert (len(refused()), len(thread.work)) == (3, 5)
    while thread.work:
        thread.do_next()
    scene.joined.settle()
    run(read(long))
    thread.do_next()
    scene.joined.settle()
    assert (len(refused()), len(taken), images.idle) == (3, 9, True)


@pytest.mark.parametrize(("side", "large"), [(LARGE_SIDE, False), (1100, True)])
def test_unneeded_memory_is_given_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, side: int, large: bool
) -> None:
    """Memory of large images goes back to the system, once, a second after the last one."""
    given_back: list[int] = []
    monkeypatch.setattr("stoker.gateway.scoring.images.trim_heap", lambda: given_back.append(1))
    thread = HandThread()
    images = ImageScoring(
        ImageInput(2, 2, 1), max_pixels=2_000_000, max_rows_bytes=1000, threads=thread, budget=PixelBudget(1)
    )
    images.attach(FOUR)

    async def read() -> None:
        images.read(png(1, side), None, lambda: None, lambda rows: None)

    def decode_one() -> None:
        scene.joined.loop.run_until_complete(read())
        images.sweep(0)
        thread.do_next()
        scene.joined.settle()

    decode_one()
    images.sweep(1_000_000_000)
    images.sweep(1_900_000_000)
    decode_one()
    for now_ns in (3_000_000_000, 3_900_000_000, 4_000_000_000, 9_000_000_000):
        assert thread.work == []
        images.sweep(now_ns)
        if now_ns == 4_000_000_000 and large:
            thread.do_next()
    assert given_back == [1] * large


def test_freed_memory_can_be_given_back() -> None:
    """The C library does so, or has no such call."""
    trim_heap()


def test_fault_of_the_decoder_answers_500(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """The log has the error and the request's id."""
    answers = Answers()
    call = scene.score(png(5, LARGE_SIDE), answers)
    future, _ = scene.thread.work.pop()
    future.set_exception(RuntimeError("a puppet's fault"))
    scene.joined.settle()
    assert [status for status, _ in answers.got] == [500]
    assert call.ids.request_id.decode() in caplog.text
    assert "a puppet's fault" in caplog.text


def test_media_for_models_of_numbers_are_refused_before_they_are_read(scene: Scene) -> None:
    """A model without an image input refuses images and forms by their type; one with it takes them."""
    plain = puppet_service("p", scene.memory, slot=1)
    plain.dialect.check_media(b"image/png")
    plain.attach(scene.joined.exchange)
    plain.dialect.check_media(b"application/json")
    for content_type in (b"image/png", b"multipart/form-data; boundary=X"):
        scene.service.dialect.check_media(content_type)
        with pytest.raises(
            UnsupportedEncoding, match="p takes JSON; images need a model that is served with"
        ):
            plain.dialect.check_media(content_type)
