"""A comparison on a page, in a terminal and as JSON."""

import io
from dataclasses import replace

import pytest
from browsing import quiet, until
from handmade import CASES, bad, build
from rich.console import Console

from nsysalign.compare import page as diff
from nsysalign.compare.label_changes import compare


def twelve(factor, name=str):
    cases = []
    for label, kind, site, library, runs in CASES:
        pieces = [
            (cause, int(ns * (factor if cause == "host" else 1)), what)
            for cause, ns, what in runs[0]
        ]
        cases.append((label, kind, site, library, [pieces] * 12))
    return build(cases, name=name)


@pytest.fixture
def comparison():
    return compare(twelve(1), twelve(0.25), names=("old", "new"))


def shown(comparison, width):
    stream = io.StringIO()
    diff.render(
        comparison, Console(file=stream, width=width, color_system=None, legacy_windows=False)
    )
    return stream.getvalue()


def test_the_document_is_in_nanoseconds_and_the_terminal_has_room(comparison):
    for width in (60, 80, 130, 200):
        assert max(map(len, shown(comparison, width).splitlines())) <= width
    t1 = diff.document(comparison)["labels"][0]
    assert (t1["label"], t1["verdict"]) == ("t1", "faster")
    assert t1["total"]["change_ns"] == pytest.approx(t1["parts"]["host"]["change_ns"])


def test_causes_that_do_not_fit_are_counted_not_cut(comparison):
    t1, *more = comparison.labels
    host = t1.parts["host"]
    parts = {"host": host} | {
        cause: replace(host, change_ns=-20_000.0)
        for cause in ("api_launch", "launch_latency", "api")
    }
    text = shown(replace(comparison, labels=(replace(t1, parts=parts), *more)), 100)
    assert (
        "-55.8 to -55.8 %; CPU -131 us, launch call -20.0 us, launch latency -20.0 us, … 1 more"
        in text
    )


@pytest.mark.browser
def test_the_page_sorts_and_explains(driver, comparison, tmp_path):
    open_page(driver, comparison, tmp_path)
    labels = "[...document.querySelectorAll('#table tbody th button')].map(b => b.textContent)"
    assert driver.execute_script(f"return {labels}")[:2] == ["t1", "t2"]
    driver.execute_script("document.querySelector('[data-key=before]').click()")
    assert driver.execute_script(f"return {labels}") == ["t1", "t2", "replay", "do_bench"]
    driver.execute_script("document.querySelector('[data-key=before]').click()")
    assert driver.execute_script(f"return {labels}")[0] == "do_bench"
    links = "[...document.querySelectorAll('#table button.link')]"
    driver.execute_script(f"{links}.find(b => b.textContent == 't2').click()")
    cells = "[...r.cells].map(c => c.textContent.trim()).join(' ')"
    causes = f"[...document.querySelectorAll('#causes tbody tr')].map(r => {cells})"
    first, *_, last = driver.execute_script(f"return {causes}")
    assert first.startswith("total 57.19 40.92 -16.27") and last.startswith("CPU 21.69 5.42 -16.27")
    driver.find_element("id", "filter").send_keys("same")
    until(driver, f"{labels}.length == 2", "filtering")
    assert "sha256-" in driver.page_source and len(driver.page_source) < 100_000
    quiet(driver)


@pytest.mark.browser
def test_hostile_names_are_only_text(driver, tmp_path):
    hostile = compare(twelve(1, bad), twelve(0.25, bad), names=(bad("old"), bad("new")))
    open_page(driver, hostile, tmp_path)
    driver.execute_script("document.querySelectorAll('#table button').forEach(b => b.click())")
    made = "document.querySelectorAll('img, iframe, a[href^=javascript]')"
    assert driver.execute_script(f"return {made}.length") == 0
    assert driver.execute_script("return document.scripts.length") == 2
    assert "</script><img src=x onerror=alert(1)>" in driver.find_element("id", "table").text
    quiet(driver)
    text = shown(hostile, 200)
    assert "\x1b" not in text and "\u202e" not in text


@pytest.mark.browser
def test_nothing_in_common_is_a_page_too(driver, tmp_path):
    open_page(driver, compare(twelve(1), build([])), tmp_path)
    assert "nothing can be compared" in driver.find_element("id", "summary").text
    assert "t1" in driver.find_element("id", "only").text
    quiet(driver)


def open_page(driver, comparison, tmp_path):
    diff.write_page(comparison, tmp_path / "diff.html")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get((tmp_path / "diff.html").as_uri())
    until(driver, "document.body.dataset.ready", "getting ready")
