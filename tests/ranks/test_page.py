"""The page and the terminal: hostile names, links that lead somewhere, widths."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import browsing
import pytest
from made import measured, results, summary, times
from rich.console import Console
from simulator.ranks import run

from nsysalign.addons.ranks.compare import compare
from nsysalign.addons.ranks.page import conclusion, document, dumps, page, render

BAD = "</script><img src=x onerror=alert(1)>\x1b[31m{{@@data@@"


@pytest.fixture(scope="module")
def comparison():
    """Three ranks, the second late by host time, the third label hostile, one trace broken."""
    job = run(3, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [summary(job, r, wrong=2_000_000 * r) for r in range(3)]
    late = times("step", ranks[1].labels[0].windows, kernel=300_000.0, host=850_000.0)
    ranks[1] = replace(ranks[1], labels=(late,))
    ranks.append(measured(3, [1_000, 2_000, 3_000], label=BAD))
    found = results(*ranks)
    found = [replace(r, report=f"rank {n}#1/report.html") for n, r in enumerate(found)]
    from nsysalign.addons.ranks.results import SourceResult

    return compare(
        [*found, SourceResult("rank9", BAD, failure=f"damaged {BAD}", next_step="export again")]
    )


def text(comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(comparison, console, "out/ranks.html")
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


@pytest.mark.parametrize(
    ("parts", "advice"),
    [
        ({"kernel": 300_000.0, "host": 850_000.0}, "see what rank 1's process does there"),
        ({"kernel": 300_000.0, "api_launch": 850_000.0}, "see what keeps rank 1's calls"),
        (
            {"kernel": 1_150_000.0},
            "give the ranks equal work",
        ),  # its own kernels: NCCL waits nowhere
        ({"kernel": 300_000.0, "unknown": 100.0}, "see rank 1's own report"),
    ],
)
def test_what_comes_first_is_who_is_slow_why_and_what_to_do(parts, advice):
    """Rank 0's budget has 850 us of waiting: as kernel time where NCCL runs on the interval's
    stream."""
    job = run(2, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [summary(job, r) for r in range(2)]
    waiting = {"kernel": 1_150_000.0}
    if "unknown" in parts:
        waiting = {"kernel": 300_000.0, "queued": 850_000.0}
    ranks = [
        replace(rank, labels=(times("step", rank.labels[0].windows, **own),))
        for rank, own in zip(ranks, (waiting, parts), strict=True)
    ]
    found = conclusion(compare(results(*ranks)))
    assert found.text.startswith("Rank 1 is slow: rank 0 waits 8"), found
    assert "of step in collectives for it" in found.text and "together: 8.5" in found.text
    assert found.advice.startswith(advice), found


def test_nobody_is_slow():
    """Even, with a changing order, and with nothing in common."""
    even = compare(results(measured(0, [100_000] * 5), measured(1, [101_000] * 5)))
    assert conclusion(even) == ("No rank is slow: medians of 1 label within 2 %", "")
    times = [100_000, 140_000, 100_000, 140_000], [130_000, 130_000, 130_000, 100_000]
    changing = compare(results(*(measured(n, own) for n, own in enumerate(times))))
    assert conclusion(changing).text == "No rank is clearly slow"
    alone = compare(results(measured(0, [1_000]), measured(1, [2_000], label="other")))
    assert conclusion(alone).text == "Nothing to compare: no label was measured by two ranks"


def test_a_rank_that_is_slow_without_collectives():
    slow = compare(results(measured(0, [100_000] * 5), measured(1, [150_000] * 5)))
    text, advice = conclusion(slow)
    assert text == (
        "Rank 1 is slow: step takes 150 us there, 100 us on rank 0; kernel +50.0 us on average"
    )
    assert advice.startswith("give the ranks equal work")


def test_the_document_holds_no_nan_and_reads_back(comparison):
    again = json.loads(dumps(comparison))
    assert again["format"] == "nsysalign-ranks" and again["version"] == 2
    assert len(again["labels"]) == len(document(comparison)["labels"]) == 2


def test_the_page_is_one_file_and_its_data_cannot_end_it(comparison):
    text = page(comparison)
    assert not re.search(r"""(src|href)=["']https?:""", text)
    assert "onerror=alert(1)>" not in text.replace("\\u003e", "")


@pytest.mark.browser
def test_in_a_browser(comparison, tmp_path):
    path = tmp_path / "ranks.html"
    path.write_text(page(comparison))
    driver = browsing.start()
    try:
        driver.get(path.as_uri())
        browsing.until(driver, "document.body.dataset.ready", "the page")
        links = driver.execute_script(
            "return [...document.querySelectorAll('#rank-table a')].map((a) => [a.textContent, "
            "a.href])"
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
            "return [...document.querySelectorAll('#axis li')].map((r) => "
            "[r.querySelectorAll('.window').length,"
            " r.querySelectorAll('.met').length, r.querySelectorAll('.waits').length])"
        )
        assert drawn == [
            [1, 1, 1],
            [1, 1, 0],
            [1, 1, 1],
            [0, 0, 0],
        ]  # three ranks, the second waits for nobody; the axis
        waits = driver.execute_script(
            "return [...document.querySelectorAll('#wait-table tbody tr')].map((r) => "
            "[...r.cells].map((c) => c.textContent))"
        )
        assert [row[2] == "." for row in waits] == [False, True, False, True]
        driver.execute_script(
            "const f = document.getElementById('filter'); f.value = 'nothing'; f.dispatchEvent(new "
            "Event('input'))"
        )
        assert (
            driver.execute_script("return document.getElementById('shown').textContent")
            == "0 of 2 labels"
        )
        browsing.quiet(driver)
    finally:
        driver.quit()
