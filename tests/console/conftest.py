"""A server with a classifier of digits, and a browser that looks at its console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.console.browsers import AXE, chromium
from tests.console.digits import segments, write_digits
from tests.live_server import LiveServer
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ADMIN_KEY = "admin-key-of-the-tests-0001"
PHONE, WIDE = {"width": 390, "height": 800}, {"width": 1600, "height": 900}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """It has one model, `digits`, with keys."""
    scratch = tmp_path_factory.mktemp("console")
    model = write_digits(scratch / "models" / "digits" / "1" / "model.onnx", segments())
    admin = {"STOKER_ADMIN_KEY": ADMIN_KEY}
    with LiveServer(scratch, model.parents[2], "--frontends", "2", "--device", "cpu", env=admin) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, without a window."""
    path = chromium()
    if not path:
        pytest.skip(
            "no Chromium runs here: install Debian's chromium, or what npm's @sparticuz/chromium needs"
        )
    if not AXE.is_file():
        pytest.skip("npm has not fetched axe-core: run make test-console where npm is")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, server: LiveServer) -> Iterator[Page]:
    """A tab of its own at the console, before a key was given; afterwards it must have reported no fault."""
    context = browser.new_context(viewport=WIDE, base_url=f"http://127.0.0.1:{server.port}")
    context.set_default_timeout(1000 * PATIENCE_S)
    tab = context.new_page()
    faults: list[str] = []
    elsewhere: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    # A key that is asked for begins with a refusal.
    tab.on(
        "console",
        lambda message: faults.append(message.text) if is_fault(message.type, message.text) else None,
    )
    tab.on("request", lambda sent: elsewhere.append(sent.url) if is_elsewhere(sent.url, server) else None)
    tab.goto("/console")
    yield tab
    context.close()
    assert (faults, elsewhere) == ([], [])


def is_fault(kind: str, text: str) -> bool:
    return kind in ("error", "warning") and not text.startswith("Failed to load resource")


def is_elsewhere(url: str, server: LiveServer) -> bool:
    return not url.startswith((f"http://127.0.0.1:{server.port}/", "data:", "blob:"))


@pytest.fixture
def opened(page: Page, server: LiveServer) -> Page:
    """The tab with a key."""
    open_with(page, server.key)
    page.get_by_role("link", name="Live").wait_for()
    return page


def open_with(page: Page, key: str) -> None:
    """Give the page a key."""
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Sign in").click()
