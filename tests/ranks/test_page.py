"""The page and the terminal: hostile names, links that lead somewhere, widths."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import browsing
import pytest
from made import measured, results, summary
from rich.console import Console
from simulator.ranks import run

from nsysalign.ranks import page as rank_diff
from nsysalign.ranks.compare import compare
from nsysalign.ranks.page import document

BAD = "</script><img src=x onerror=alert(1)>\x1b[31m{{@@data@@"


@pytest.fixture(scope="module")
def comparison():
    """Three ranks, the second late by host time, the third label hostile, one trace broken."""
    job = run(3, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [summary(job, r, wrong=2_000_000 * r) for r in range(3)]
    late = replace(ranks[1].labels[0], parts_mean_ns={"kernel": 300_000.0, "host": 850_000.0})
    ranks[1] = replace(ranks[1], labels=(late,))
    ranks.append(measured(3, [1_000, 2_000, 3_000], label=BAD))
    found = results(*ranks)
    found = [replace(r, report=f"rank {n}#1/report.html") for n, r in enumerate(found)]
    from nsysalign.ranks.results import SourceResult

    return compare(
        [*found, SourceResult("rank9", BAD, failure=f"damaged {BAD}", next_step="export again")]
    )


def text(comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    rank_diff.render(comparison, console, "out/ranks.html")
    return console.file.getvalue()


def test_the_terminal_says_who_is_late_and_why(comparison):
    said = " ".join(text(comparison, 100).split())
    assert (
        "in collectives for rank 1, the last to arrive in 10 of 10: host +850 us on average" in said
    )
    assert "rank 0 for rank 1: 8.5" in said
    assert "left out: rank9: damaged" in said and "\x1b" not in said


@pytest.mark.parametrize("width", [80, 120, 40])
def test_lines_fit(comparison, width):
    assert max(map(len, text(comparison, width).splitlines()[2:8])) <= max(width, 75)


def test_more_ranks_than_fit_are_fastest_and_slowest():
    ranks = compare(results(*(measured(n, [100_000 + 10_000 * n] * 4) for n in range(12))))
    lines = text(ranks, 80).splitlines()
    row = next(line for line in lines if line.startswith("step"))
    assert row.split() == ["step", "4", "100.00", "0", "210.00", "11", "110.00", "."]


def test_the_document_holds_no_nan_and_reads_back(comparison):
    from nsysalign.ranks.page import dumps

    again = json.loads(dumps(comparison))
    assert again["format"] == "nsysalign-ranks" and again["version"] == 1
    assert len(again["labels"]) == len(document(comparison)["labels"]) == 2


def test_the_page_is_one_file_and_its_data_cannot_end_it(comparison):
    page = rank_diff.page(comparison)
    assert not re.search(r"""(src|href)=["']https?:""", page)
    assert "onerror=alert(1)>" not in page.replace("\\u003e", "")


@pytest.mark.browser
def test_in_a_browser(comparison, tmp_path):
    path = tmp_path / "ranks.html"
    rank_diff.write_page(comparison, path)
    driver = browsing.start()
    try:
        driver.get(path.as_uri())
        browsing.until(driver, "document.body.dataset.ready", "the page")
        links = driver.execute_script(
            "return [...document.querySelectorAll('#rank-table a')].map((a) => [a.textContent, a.href])"
        )
        assert links[0] == ["rank 0", (tmp_path / "rank 0#1/report.html").as_uri()]
        rows = driver.execute_script("return document.querySelectorAll('#table tbody tr').length")
        assert rows == 2
        driver.execute_script("document.querySelectorAll('#table tbody button')[1].click()")
        assert "onerror=alert(1)" in driver.execute_script(
            "return document.getElementById('label-head').textContent"
        )
        driver.execute_script("document.querySelectorAll('#table tbody button')[0].click()")
        budgets = driver.execute_script(
            "return document.querySelectorAll('#label-ranks .bar').length"
        )
        assert budgets == 3
        drawn = driver.execute_script(
            "return [...document.querySelectorAll('#axis li')].map((r) => [r.querySelectorAll('.window').length,"
            " r.querySelectorAll('.met').length, r.querySelectorAll('.waits').length])"
        )
        assert drawn == [
            [1, 1, 1],
            [1, 1, 0],
            [1, 1, 1],
            [0, 0, 0],
        ]  # three ranks, the second waits for nobody; the axis
        waits = driver.execute_script(
            "return [...document.querySelectorAll('#wait-table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
        )
        assert [row[2] == "." for row in waits] == [False, True, False, True]
        driver.execute_script(
            "const f = document.getElementById('filter'); f.value = 'nothing'; f.dispatchEvent(new Event('input'))"
        )
        assert (
            driver.execute_script("return document.getElementById('shown').textContent")
            == "0 of 2 labels"
        )
        browsing.quiet(driver)
    finally:
        driver.quit()
