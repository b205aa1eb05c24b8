"""The page and the terminal: hostile names, links that lead somewhere, widths, words."""

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
from nsysalign.addons.ranks.page import conclusion, dumps, page, render
from nsysalign.addons.ranks.results import SourceResult

BAD = "</script><img src=x onerror=alert(1)>\x1b[31m{{@@data@@"


def late_job():
    return run(3, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)


@pytest.fixture(scope="module")
def comparison():
    """Three ranks, the second late by host time, another label hostile, one trace broken."""
    job = late_job()
    ranks = [summary(job, r, wrong=2_000_000 * r) for r in range(3)]
    late = times("step", ranks[1].labels[0].windows, kernel=300_000.0, host=850_000.0)
    ranks[1] = replace(ranks[1], labels=(late,))
    ranks.append(measured(3, [1_000, 2_000, 3_000], label=BAD))
    found = results(*ranks)
    found = [replace(r, report=f"rank {n}#1/report.html") for n, r in enumerate(found)]
    broken = SourceResult("rank9", BAD, failure=f"damaged {BAD}", next_step="export again")
    return compare([*found, broken])


def text(comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(comparison, console, "out/ranks.html")
    return console.file.getvalue()


def test_the_terminal_says_who_is_late_and_why(comparison):
    said = " ".join(text(comparison, 100).split())
    assert said.startswith("Rank 1 is slow: step: rank 2 waits 850 us of 1.19 ms (72 %)"), said
    words = "in collectives for rank 1, the last to arrive in 10 of 10: host +850 us on average"
    assert words in said and "together: 17.0 ms Change: see what rank 1's process" in said
    assert "left out: rank9: damaged" in said and "\x1b" not in said


@pytest.mark.parametrize("width", [80, 120])
def test_rows_fit_however_many_ranks(comparison, width):
    many = compare(results(*(measured(n, [100_000 + 10_000 * n] * 4) for n in range(12))))
    for each in (comparison, many):
        lines = text(each, width).splitlines()
        head = next(n for n, line in enumerate(lines) if line.startswith("label "))
        assert max(map(len, lines[head : head + 3])) <= width
        last = lines[head + 1].split()
    assert last == ["step", "4", "100.00", "0", "210.00", "11", "."]


@pytest.mark.parametrize(
    ("parts", "advice"),
    [
        ({"kernel": 300_000.0, "host": 850_000.0}, "see what rank 1's process does there"),
        ({"kernel": 300_000.0, "api_launch": 850_000.0}, "see what keeps rank 1's calls"),
        # its own kernels: NCCL waits nowhere
        ({"kernel": 1_150_000.0}, "give the ranks equal work"),
        ({"kernel": 300_000.0, "unknown": 100.0}, "see rank 1's own report"),
    ],
)
def test_what_comes_first_is_who_is_slow_why_and_what_to_do(parts, advice):
    """Rank 0's budget has 850 us of waiting: as kernel time where NCCL runs on the interval's
    stream."""
    waiting = {"kernel": 1_150_000.0}
    if "unknown" in parts:
        waiting = {"kernel": 300_000.0, "queued": 850_000.0}
    job = run(2, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [
        replace(rank, labels=(times("step", rank.labels[0].windows, **own),))
        for rank, own in zip((summary(job, 0), summary(job, 1)), (waiting, parts), strict=True)
    ]
    found = conclusion(compare(results(*ranks)))
    assert found.text.startswith("Rank 1 is slow: step: rank 0 waits 8"), found
    assert "in collectives for rank 1" in found.text and "together: 8.5" in found.text
    assert found.advice.startswith(advice), found


SLOW = (
    "Rank 1 is slow: step: rank 1 is slowest in 5 of 5: 150 us there, 100 us on rank 0: kernel "
    "+50.0 us on average"
)


@pytest.mark.parametrize(
    ("first", "second", "label", "words", "advice"),
    [
        ([100_000] * 5, [150_000] * 5, "step", SLOW, "give the ranks equal work"),
        (
            [100_000] * 5,
            [101_000] * 5,
            "step",
            "No rank is slow: medians of 1 label within 2 %",
            "",
        ),
        (
            [100_000, 140_000, 100_000, 140_000],
            [130_000, 130_000, 130_000, 100_000],
            "step",
            "No rank is clearly slow",
            "",
        ),
        ([1_000], [2_000], "other", "Nothing to compare: no label was measured by two ranks", ""),
    ],
)
def test_without_collectives(first, second, label, words, advice):
    found = conclusion(compare(results(measured(0, first), measured(1, second, label=label))))
    assert (
        found.text == words
        and found.advice.startswith(advice)
        and bool(found.advice) == (bool(advice))
    )


def test_the_document_reads_back_and_the_page_is_one_file_whose_data_cannot_end_it(comparison):
    again = json.loads(dumps(comparison))
    assert again["format"] == "nsysalign-ranks" and again["version"] == 3
    assert len(again["labels"]) == 2 and again["verdict"]["text"].startswith("Rank 1 is slow")
    whole = page(comparison)
    assert not re.search(r"""(src|href)=["']https?:""", whole)
    assert "onerror=alert(1)>" not in whole.replace("\\u003e", "")


@pytest.mark.browser
def test_in_a_browser(comparison, tmp_path):
    path = tmp_path / "ranks.html"
    path.write_text(page(comparison))
    driver = browsing.start()

    def cells(table: str) -> list[list[str]]:
        script = (
            f"return [...document.querySelectorAll('#{table} tbody tr')].map((r) => "
            "[...r.cells].map((c) => c.textContent))"
        )
        return driver.execute_script(script)

    try:
        driver.get(path.as_uri())
        browsing.until(driver, "document.body.dataset.ready", "the page")
        link = driver.execute_script(
            "const a = document.querySelector('#ranks a'); return [a.textContent, a.href]"
        )
        assert link == ["rank 0", (tmp_path / "rank 0#1/report.html").as_uri()]
        rows = cells("table")
        assert len(rows) == 2 and "in collectives for rank 1" in rows[0][-1]
        assert "onerror=alert(1)" in rows[1][0]
        browsing.quiet(driver)
    finally:
        driver.quit()
