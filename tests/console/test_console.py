"""The console in a real browser: what it shows, what it asks, and that everybody can use it."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.console.browsers import AXE
from tests.console.conftest import ADMIN_KEY, PHONE, WIDE, open_with
from tests.console.digits import segments, write_digits
from tests.live_server import LiveServer, environment_with
from tests.patience import PATIENCE_S, PROGRAM_S

from stoker.keys.keyring import Keyring

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

COUNTS = """
def init(): ...

def run(raw_data, state):
    state["n"] = state.get("n", 0) + 1
    return f"requests: {state['n']}"
"""
PLACES = ["Live", "Try it", "Models", "Requests"]


def visit(page: Page, place: str) -> None:
    page.get_by_role("link", name=place, exact=True).click()
    page.get_by_role("heading", level=2).first.wait_for()


def test_a_key_opens_it_and_stays_in_the_tab(page: Page, server: LiveServer) -> None:
    """A wrong one is refused in words; the right one is in no cookie and no store that outlives the tab."""
    open_with(page, "not-the-key-0000000000000000")
    page.get_by_text("A valid key is needed").wait_for()
    open_with(page, server.key)
    page.get_by_role("heading", name="CPU of processes").wait_for()
    assert page.evaluate("sessionStorage.getItem('stoker.key')") == server.key
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.get_by_role("heading", name="CPU of processes").wait_for()
    page.get_by_role("button", name="Sign out").click()
    page.get_by_label("Key").wait_for()
    assert page.evaluate("sessionStorage.length") == 0


def test_the_console_opens_in_any_browser_language(browser: Browser, server: LiveServer) -> None:
    """One that was started with LANG=C.UTF-8 can say "en-US@posix", which is no language tag."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{server.port}")
    context.add_init_script(
        "Object.defineProperty(navigator, 'language', {value: 'en-US@posix', configurable: true})"
    )
    tab = context.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.goto("/console")
    open_with(tab, server.key)
    tab.get_by_role("heading", name="CPU of processes").wait_for()
    context.close()
    assert faults == []


def test_live_figures_show_the_requests(opened: Page, server: LiveServer) -> None:
    """Requests of others appear by their status within seconds, and the processes are named."""
    assert server.score([0.0] * 784).status == 200
    legend = opened.get_by_role("listitem")
    legend.filter(has_text="200").first.wait_for()
    opened.get_by_role("rowheader", name="device process 1").wait_for()
    chart = opened.get_by_role("img", name="Requests per second, by status")
    assert "200" in (chart.get_attribute("aria-label") or "")


def test_a_page_that_is_opened_has_a_past(opened: Page, server: LiveServer) -> None:
    """Requests that were scored before it was opened are shown at once."""
    assert server.score([0.0] * 784).status == 200
    opened.get_by_role("listitem").filter(has_text="200").first.wait_for()
    opened.reload()
    opened.get_by_role("listitem").filter(has_text="200").first.wait_for()


def test_a_digit_that_is_drawn_is_classified(opened: Page) -> None:
    """Bars of all classes follow the pen, the best one is named, and the time of the request is laid out."""
    visit(opened, "Try it")
    canvas = opened.get_by_role("img", name="Draw a digit")
    box = canvas.bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + 140, box["y"] + 40)
    opened.mouse.down()
    opened.mouse.move(box["x"] + 140, box["y"] + 240, steps=5)
    opened.mouse.up()
    opened.get_by_text("The class is 1").wait_for()
    assert opened.locator(".scores tbody tr").count() == 10
    stages = opened.locator(".fall tbody th").all_inner_texts()
    assert stages == ["parse", "queue", "compute", "answer", "network and browser"]


def test_a_class_alone_gets_no_invented_scores(opened: Page) -> None:
    """A model that answers `[7]` has said nothing of how sure it is: no class is shown with 100 %."""
    classes = (
        "async (answer) => (await import('./files/sample.js')).scoresOf(answer, {outputs: [{labels: []}]})"
    )
    alone = opened.evaluate(classes, [7])
    assert (alone["label"], alone["classes"]) == ("7", [])
    scores = opened.evaluate(classes, [[0.25, 0.75]])
    assert [one["value"] for one in scores["classes"]] == [0.25, 0.75]


def test_the_sample_of_a_form_scores(opened: Page) -> None:
    """The sample of the form scores; a body that is no request is refused in words."""
    visit(opened, "Try it")
    opened.get_by_role("button", name="Send").click()
    opened.get_by_text("Status 200").wait_for()
    opened.get_by_label("Body, as JSON").fill("[")
    opened.get_by_role("button", name="Send").click()
    opened.get_by_text("Status 400").wait_for()


def test_a_sequence_goes_on_from_request_to_request(browser: Browser, tmp_path: Path) -> None:
    """The form begins one, goes on with it, and begins it anew behind its end; the code says so too."""
    script = tmp_path / "score.py"
    script.write_text(COUNTS)
    config = tmp_path / "stoker.yaml"
    config.write_text(f"models: [{{path: {script}, name: counts, sequence: {{}}}}]")
    with LiveServer(tmp_path, "--config", str(config), "--device", "cpu") as server:
        context = browser.new_context(base_url=f"http://127.0.0.1:{server.port}")
        page = context.new_page()
        page.goto("/console")
        open_with(page, server.key)
        visit(page, "Try it")
        begins, ends = page.get_by_label("begins here"), page.get_by_label("ends here")
        code = page.locator(".wide pre")
        assert "'Stoker-Sequence: console; start'" in code.inner_text()
        for number in (1, 2):
            page.get_by_role("button", name="Send").click()
            page.get_by_text(f"requests: {number}").wait_for()
            assert not begins.is_checked()
        ends.check()
        assert "'Stoker-Sequence: console; end'" in code.inner_text()
        page.get_by_role("button", name="Send").click()
        page.get_by_text("requests: 3").wait_for()
        assert (begins.is_checked(), ends.is_checked()) == (True, False)
        context.close()


@pytest.mark.parametrize(
    ("language", "says"),
    [("curl", "$STOKER_KEY"), ("Python", "urlopen"), ("tritonclient", 'InferInput("x", (1, 784), "FP32")')],
)
def test_the_same_request_is_code(opened: Page, server: LiveServer, language: str, says: str) -> None:
    """It names the model's path, and not the key."""
    visit(opened, "Try it")
    opened.get_by_label("Language").select_option(language)
    code = opened.locator(".wide pre").inner_text()
    assert says in code
    assert server.key not in code
    if language == "Python":
        compile(code, "snippet", "exec")


def test_the_pointer_shows_one_moment_in_all_charts(opened: Page, server: LiveServer) -> None:
    """Its time and the values of that time stand in each; arrow keys do the same, and Escape ends it."""
    for _ in range(3):
        assert server.score([0.0] * 784).status == 200
        opened.wait_for_timeout(1100)
    chart = opened.get_by_role("img", name="Latency")
    box = chart.bounding_box()
    assert box is not None
    opened.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.4 * box["height"])
    moments = opened.locator("h2 time")
    opened.wait_for_function("[...document.querySelectorAll('h2 time')].every((time) => time.textContent)")
    assert len(set(moments.all_inner_texts())) == 1
    assert moments.count() >= 4
    opened.mouse.move(1, 1)
    opened.wait_for_function("[...document.querySelectorAll('h2 time')].every((time) => !time.textContent)")
    chart.focus()
    opened.keyboard.press("ArrowLeft")
    opened.wait_for_function("[...document.querySelectorAll('h2 time')].every((time) => time.textContent)")
    opened.keyboard.press("Escape")
    opened.wait_for_function("[...document.querySelectorAll('h2 time')].every((time) => !time.textContent)")


def test_a_longer_range_has_longer_steps(opened: Page) -> None:
    """It is chosen like a radio button, and stays chosen while other places are visited."""
    with opened.expect_request(lambda request: "figures?step_s=20&since=0" in request.url):
        opened.get_by_role("radio", name="6 hours").check()
    visit(opened, "Models")
    with opened.expect_request(lambda request: "step_s=20" in request.url):
        opened.get_by_role("link", name="Live", exact=True).click()
    assert opened.get_by_role("radio", name="6 hours").is_checked()


def test_failures_have_hues_and_patterns_of_their_own(opened: Page) -> None:
    """Statuses of one digit share a colour and differ in their pattern; successes have none."""
    styles = opened.evaluate(
        "async () => (await import('./files/patterns.js')).statusStyles(['200', '400', '422', '500', '503'])"
    )
    assert styles["200"] == {"colour": "--c0", "pattern": ""}
    assert {styles[status]["colour"] for status in ("400", "422")} == {"--client-error"}
    assert {styles[status]["colour"] for status in ("500", "503")} == {"--server-error"}
    assert len({style["pattern"] for style in styles.values()}) == 5


def test_missing_data_takes_no_room(opened: Page) -> None:
    """There is no card for a missing GPU and no chart of zeros."""
    opened.get_by_role("heading", name="CPU of processes").wait_for()
    titles = opened.get_by_role("heading", level=2).all_inner_texts()
    assert not [title for title in titles if title.startswith("GPU")]
    within = "async (past) => (await import('./files/past.js')).within(past, 2).latency_ms.p50"
    assert opened.evaluate(within, {"time_ms": [1000, 2000, 3000], "latency_ms": {"p50": [1, None, 3]}}) == [
        None,
        3,
    ]


def test_the_theme_is_chosen_and_remembered(opened: Page) -> None:
    """It holds before anything is drawn after a reload; `auto` forgets it."""
    ground = "getComputedStyle(document.body).backgroundColor"
    opened.emulate_media(color_scheme="light")
    light = opened.evaluate(ground)
    opened.get_by_label("Theme").select_option("dark")
    dark = opened.evaluate(ground)
    assert dark != light
    opened.reload()
    assert opened.evaluate(ground) == dark
    opened.get_by_label("Theme").select_option("auto")
    assert (opened.evaluate(ground), opened.evaluate("localStorage.length")) == (light, 0)


def test_the_root_leads_a_browser_to_it(page: Page) -> None:
    """Probes get the word Healthy there, as before."""
    page.goto("/")
    page.get_by_label("Key").wait_for()
    assert page.url.endswith("/console/")


def test_a_link_signs_in_once(browser: Browser, tmp_path: Path) -> None:
    """A server on a terminal prints it; the address keeps no token, and a second browser is told what to do."""
    model = write_digits(tmp_path / "digits.onnx", segments())
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "stoker.cli", "serve", str(model), "--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--workspace", str(tmp_path / "workspace")],
        env=environment_with({}), cwd=tmp_path, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(slave)
    try:
        printed = b""
        while b"  ready " not in printed:
            printed += os.read(master, 1 << 16)
        (link,) = re.findall(r"http://\S+/console#token=\S+", printed.decode())
        context = browser.new_context()
        context.set_default_timeout(1000 * PATIENCE_S)
        tab = context.new_page()
        tab.goto(link)
        tab.get_by_role("heading", name="CPU of processes").wait_for()
        assert tab.url.endswith("/console/")
        key = Keyring(tmp_path / "workspace" / "keys", "digits").show().primary
        assert tab.evaluate("sessionStorage.getItem('stoker.key')") == key
        visit(tab, "Try it")
        tab.get_by_role("button", name="Send").click()
        tab.get_by_text("Status 200").wait_for()
        other = context.new_page()
        other.goto(link)
        other.get_by_role("alert").filter(has_text="has been used or has expired").wait_for()
        context.close()
    finally:
        process.terminate()
        process.wait(PROGRAM_S)
        os.close(master)


def test_requests_are_a_table_that_sorts_and_filters(opened: Page, server: LiveServer) -> None:
    """A row opens where its time went: a slow one's batch and second, and what a failure was told."""
    assert server.score([0.0] * 784).status == 200
    refused = server.score([0.0] * 3)
    visit(opened, "Requests")
    rows = opened.locator("tr.row")
    opened.get_by_label("Status").select_option("422")
    assert set(opened.locator("tr.row td:nth-child(3)").all_inner_texts()) == {"422"}
    rows.first.get_by_role("button").click()
    opened.get_by_text(f"Request {refused.header('x-request-id')}", exact=True).wait_for()
    assert opened.locator(".fall tbody th").all_inner_texts() == ["parse"]
    opened.get_by_label("Status").select_option("200")
    opened.get_by_role("button", name="ms", exact=True).click()
    assert opened.get_by_role("columnheader", name="ms").get_attribute("aria-sort") == "descending"
    times = [float(text) for text in opened.locator("tr.row td:nth-child(4)").all_inner_texts()]
    assert times == sorted(times, reverse=True)
    rows.first.get_by_role("button").focus()
    opened.keyboard.press("Enter")
    assert opened.locator(".fall tbody th").all_inner_texts()[:3] == ["parse", "queue", "compute"]
    batch = opened.locator("h3", has_text="Its batch").locator("+ dl")
    assert re.fullmatch("[0-9]+, of [0-9]+ requests?", batch.locator("dd").first.inner_text())
    assert "the device was free" in batch.inner_text()
    opened.get_by_label("At least, in ms").fill("1000000")
    opened.get_by_text("No request matches these filters.").wait_for()


def test_a_model_shows_its_traffic_and_whether_rows_share_batches(opened: Page) -> None:
    """With the reason for the verdict."""
    visit(opened, "Models")
    opened.get_by_text("100 % of traffic").wait_for()
    verdict = opened.locator("dt", has_text="Shared batches").locator("+ dd").inner_text()
    assert verdict.startswith("yes, read from the graph: no operator lets a row see another")


def test_a_pipeline_is_shown_without_devices_of_its_own(opened: Page) -> None:
    """It has no deployment: its models run."""

    def as_pipeline(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        version = found["models"][0]["versions"][0]
        for name in (
            "devices",
            "instances",
            "max_batch_rows",
            "max_delay_ms",
            "buckets",
            "precision",
            "origin",
        ):
            del version[name]
        version |= {"framework": "pipeline", "batching": None}
        route.fulfill(response=answer, json=found)

    opened.route("**/console/models", as_pipeline)
    opened.reload()
    visit(opened, "Models")
    opened.locator("dd", has_text="pipeline").wait_for()
    assert opened.locator("dt", has_text="Devices").count() == 0


def test_hundreds_of_models_are_searched_filtered_and_paged(opened: Page) -> None:
    """By name and state, twenty at a time, closed until one is opened; axe-core finds nothing wrong."""

    def as_many(route: Route) -> None:
        answer = route.fetch()
        found = answer.json()
        (model,) = found["models"]
        (version,) = model["versions"]
        states = {True: "AVAILABLE", False: "START"}
        found["models"] = [
            {**model, "name": f"customer-{number}", "versions": [{**version, "state": states[number < 30]}]}
            for number in range(500)
        ]
        found["memory"] = {"used_bytes": 3 << 29, "budget_bytes": 1 << 31, "on_gpus": True}
        route.fulfill(response=answer, json=found)

    opened.route("**/console/models", as_many)
    opened.reload()
    visit(opened, "Models")
    shown = opened.locator("details.model")
    status = opened.get_by_role("search").get_by_role("status")
    shown.nth(19).wait_for()
    assert (shown.count(), status.inner_text()) == (20, "1 to 20 of 500 models")
    memory = opened.get_by_label("GPU memory of models: 1.5 GiB of 2.0 GiB")
    assert memory.evaluate("bar => bar.value / bar.max") == 0.75
    assert found_by_axe(opened) == []
    opened.get_by_role("button", name="Next").click()
    opened.get_by_role("heading", name="customer-20", exact=True).wait_for()
    opened.get_by_label("State").select_option("AVAILABLE (30)")
    assert status.inner_text() == "1 to 20 of 30 models"
    opened.get_by_label("Name", exact=True).fill("CUSTOMER-2")
    assert (shown.count(), status.inner_text()) == (11, "11 of 500 models")
    assert not opened.get_by_text("Scoring path").first.is_visible()
    opened.get_by_role("heading", name="customer-29").click()
    opened.get_by_text("Scoring path").last.wait_for()


def test_versions_are_loaded_and_unloaded_with_the_admin_key(opened: Page, server: LiveServer) -> None:
    """Without it there is nothing to press; a wrong one changes nothing, and the page says why."""
    visit(opened, "Models")
    assert opened.get_by_role("button", name="Unload").count() == 0
    opened.on("dialog", lambda dialog: dialog.accept())
    key = opened.get_by_label("Admin key, for changes")
    key.fill("not-the-key-0000000000000000")
    opened.get_by_role("button", name="Unload version 1").click()
    opened.get_by_role("status").filter(has_text="needs the admin key").wait_for()
    key.fill(ADMIN_KEY)
    opened.get_by_role("button", name="Unload version 1").click()
    opened.get_by_text("Unload digits version 1: done.").wait_for()
    opened.get_by_role("button", name="Load version 1").click()
    opened.get_by_text("Load digits version 1: done.").wait_for(timeout=1000 * PROGRAM_S)
    opened.get_by_text("AVAILABLE").wait_for()


@pytest.mark.parametrize("size", [PHONE, WIDE], ids=["phone", "wide"])
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("place", PLACES)
def test_everybody_can_use_it(opened: Page, place: str, theme: Any, size: Any) -> None:
    """axe-core finds nothing, in any theme, and nothing is wider than the screen."""
    opened.set_viewport_size(size)
    opened.emulate_media(color_scheme=theme)
    visit(opened, place)
    if place == "Try it":
        opened.get_by_role("button", name="Draw a 1").click()
        opened.get_by_text("The class is 1").wait_for()
    assert found_by_axe(opened) == []
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_gate_can_be_used_by_everybody(page: Page) -> None:
    """So can the form for the key."""
    page.get_by_label("Key").wait_for()
    assert found_by_axe(page) == []


def found_by_axe(page: Page) -> list[str]:
    """Return the faults that axe-core finds, by its rules."""
    page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    found = page.evaluate("axe.run()")
    return [f"{one['id']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]]


def test_a_keyboard_is_enough(opened: Page) -> None:
    """The first stop skips the head, and places are reached by Tab and Enter."""
    opened.keyboard.press("Tab")
    assert opened.evaluate("document.activeElement.textContent") == "Skip to the content"
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.activeElement.id") == "main"
    opened.get_by_role("link", name="Live").focus()
    opened.keyboard.press("Tab")
    opened.keyboard.press("Enter")
    opened.get_by_label("Model and version").wait_for()
