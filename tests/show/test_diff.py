"""A comparison on a page, in a terminal and as JSON."""

import io
from dataclasses import replace

import pytest
from browsing import quiet, until
from handmade import CASES, bad, build
from rich.console import Console

from nsysalign.compare import page as diff
from nsysalign.compare.label_changes import Predicted, compare


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


@pytest.mark.parametrize("width", [60, 80, 130, 200])
def test_it_fits_the_terminal(comparison, width):
    assert max(map(len, shown(comparison, width).splitlines())) <= width


def test_the_terminal_says_what_changed(comparison):
    text = shown(comparison, 80)
    assert "Of 4 labels in both: 2 faster, 2 same." in text
    row, because = text.split("verdict")[1].strip().splitlines()[:2]
    assert row.split() == ["t1", "12/12", "234.72", "103.85", "-55.8", "%", "▼", "faster"]
    assert because.strip() == "-55.8 to -55.8 %; CPU -131 us"


def test_the_document_is_in_nanoseconds(comparison):
    t1 = diff.document(comparison)["labels"][0]
    assert (t1["label"], t1["verdict"]) == ("t1", "faster")
    assert t1["total"]["change_ns"] == pytest.approx(t1["parts"]["host"]["change_ns"])


@pytest.fixture
def predicted(comparison):
    """t1 is predicted on both sides, t2 on one, the others on none."""
    t1, t2, *more = comparison.labels
    known = Predicted(191_000, 166_000, 216_000), Predicted(52_340, 46_240, 58_440)
    labels = replace(t1, unprofiled=known), replace(t2, unprofiled=(None, known[1])), *more
    return replace(comparison, labels=labels)


def test_times_without_nsys_stand_beside_the_measured_ones(predicted, comparison):
    assert "w/o nsys" not in shown(comparison, 80) + shown(comparison, 200)
    for width in (60, 80, 130, 200):
        text = shown(predicted, width)
        assert max(map(len, text.splitlines())) <= width
        if width != 60:
            assert "191 ±25 → 52.3 ±6.1" in text
        assert "none" not in text  # one side alone compares nothing
    found = diff.document(predicted)["labels"]
    assert found[0]["unprofiled"]["before"] == {
        "ns": 191_000,
        "lower_ns": 166_000,
        "upper_ns": 216_000,
    }
    assert found[1]["unprofiled"]["before"] is None and found[2]["unprofiled"] == {
        "before": None,
        "after": None,
    }


def test_causes_that_do_not_fit_are_counted_not_cut(predicted):
    t1, *more = predicted.labels
    host = t1.parts["host"]
    parts = {"host": host} | {
        cause: replace(host, change_ns=-20_000.0)
        for cause in ("api_launch", "launch_latency", "api")
    }
    text = shown(replace(predicted, labels=(replace(t1, parts=parts), *more)), 100)
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
    driver.execute_script(
        "[...document.querySelectorAll('#table button.link')].find(b => b.textContent == 't2').click()"
    )
    causes = "[...document.querySelectorAll('#causes tbody tr')].map(r => [...r.cells].map(c => c.textContent.trim()).join(' '))"
    rows = driver.execute_script(f"return {causes}")
    assert rows[0].startswith("total 57.19 40.92 -16.27") and rows[-1].startswith(
        "CPU 21.69 5.42 -16.27"
    )
    driver.find_element("id", "filter").send_keys("same")
    until(driver, f"{labels}.length == 2", "filtering")
    assert (
        "sha256-" in driver.page_source and len(driver.page_source) < 100_000
    )  # no plotting library
    quiet(driver)


@pytest.mark.browser
def test_hostile_names_are_only_text(driver, tmp_path):
    hostile = compare(twelve(1, bad), twelve(0.25, bad), names=(bad("old"), bad("new")))
    open_page(driver, hostile, tmp_path)
    driver.execute_script("document.querySelectorAll('#table button').forEach(b => b.click())")
    assert (
        driver.execute_script(
            "return document.querySelectorAll('img, iframe, a[href^=javascript]').length"
        )
        == 0
    )
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
