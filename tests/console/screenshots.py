"""`make screenshots`: the pictures of the console in the documentation, of a server with callers."""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.console.browsers import chromium
from tests.console.digits import MNIST, learned, segments, write_digits
from tests.http.raw_http import scoring
from tests.live_server import LiveServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

IMAGES: Final = Path(__file__).parents[2] / "server" / "docs" / "images"
LOADED_S: Final = 75
MOST_BYTES: Final = 150_000
# Strokes of a 7, as people draw it.
SEVEN: Final = ((70, 60), (205, 60), (125, 235))


def call(server: LiveServer, ended: threading.Event, seed: int) -> None:
    """Be a caller: a few rows at a time, sometimes a mistake."""
    chance = random.Random(seed)
    with server.connect() as connection:
        while not ended.wait(0.05 * chance.random()):
            rows = [[round(chance.random(), 2) for _ in range(784)]] * chance.choice([1, 1, 2, 4, 8])
            body = json.dumps({"data": rows if chance.random() > 0.05 else "nonsense"}).encode()
            connection.ask(scoring("/api/v1/service/digits/score", server.key, body))


def draw_seven(page: Page) -> None:
    box = page.get_by_role("img", name="Draw a digit").bounding_box()
    assert box is not None
    places = [(box["x"] + x, box["y"] + y) for x, y in SEVEN]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=8)
    page.mouse.up()
    page.get_by_text("The class is 7").wait_for()


def take(browser: Browser, server: LiveServer) -> None:
    """Take all pictures."""
    IMAGES.mkdir(exist_ok=True)
    for name, link, theme, act in (
        ("console-live", "Live", "light", lambda page: page.wait_for_timeout(3000)),
        ("console-try", "Try it", "dark", draw_seven),
    ):
        page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=theme)
        page.goto(f"http://127.0.0.1:{server.port}/console")
        page.get_by_label("Key").fill(server.key)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name=link, exact=True).click()
        act(page)
        path = IMAGES / f"{name}.png"
        page.screenshot(path=path)
        page.close()
        assert path.stat().st_size <= MOST_BYTES, f"{path} has {path.stat().st_size} bytes"
        sys.stdout.write(f"{path}\n")


def main() -> None:
    """Start a server, let callers come for a while, and take the pictures."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    if not path:
        sys.exit("no Chromium runs here: install Debian's chromium")
    parameters = learned() if MNIST.is_dir() else segments()
    with tempfile.TemporaryDirectory() as folder:
        model = write_digits(Path(folder) / "models" / "digits" / "1" / "model.onnx", parameters)
        with (
            LiveServer(Path(folder), model.parents[2], "--frontends", "2") as server,
            sync_playwright() as playwright,
        ):
            ended = threading.Event()
            callers = [threading.Thread(target=call, args=(server, ended, seed)) for seed in range(3)]
            for caller in callers:
                caller.start()
            time.sleep(LOADED_S)
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            take(browser, server)
            browser.close()
            ended.set()
            for caller in callers:
                caller.join()


if __name__ == "__main__":
    main()
