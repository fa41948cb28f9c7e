"""`/docs` in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.console.conftest import open_with

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from tests.live_server import LiveServer


def test_example_is_tried_with_the_key_of_the_tab(page: Page, server: LiveServer) -> None:
    """A wrong key is refused in words; the right one is used for the request, and nothing is asked elsewhere."""
    page.goto("/docs")
    open_with(page, "not-the-key-0000000000000000")
    page.get_by_text("A valid key is needed").wait_for()
    open_with(page, server.key)
    page.get_by_text("Score digits").first.click()
    page.get_by_role("button", name="Execute").click()
    answer = page.locator(".live-responses-table tbody .response-col_status").first
    answer.wait_for()
    assert answer.inner_text().split()[0] == "200"
