"""Labels side by side: verdicts, the sentence, the screen, the page; hostile names, widths."""

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

from nsysalign.addons.ranks.compare import compare, number_ranks
from nsysalign.addons.ranks.page import conclusion, dumps, page, render, row, unrelated
from nsysalign.addons.ranks.records import SourceResult

BAD = "</script><img src=x onerror=alert(1)>\x1b[31m{{@@data@@"
#: Medians 10 us apart, and yet each rank is the slowest in two of four.
CHANGING = [100_000, 140_000, 100_000, 140_000], [130_000, 130_000, 130_000, 100_000]


@pytest.mark.parametrize(
    ("first", "second", "verdict", "slowest", "words", "advice"),
    [
        ([100_000] * 5, [150_000] * 5, "slowest", 1, "Rank 1 is slow: step: rank 1 is slowest in 5 of 5: 150 us there, 100 us on rank 0: kernel +50.0 us on average", "give the ranks equal work"),
        ([100_000] * 5, [101_900] * 5, "even", None, "No rank is slow: medians of 1 label within 2 %", ""),
        (*CHANGING, "unclear", None, "No rank is clearly slow", ""),
        ([100_000] * 2, [200_000] * 2, "unclear", None, "No rank is clearly slow", ""),
    ],
)  # fmt: skip
def test_without_collectives_the_medians_decide(first, second, verdict, slowest, words, advice):
    comparison = compare(results(measured(0, first), measured(1, second)))
    (label,) = comparison.labels
    assert (label.verdict, label.slowest) == (verdict, slowest)
    found = conclusion(comparison)
    assert found.text == words and found.advice.startswith(advice)
    assert bool(found.advice) == bool(advice)


def test_only_common_repetitions_are_paired():
    comparison = compare(results(measured(0, [100_000] * 5), measured(1, [200_000] * 3)))
    (label,) = comparison.labels
    assert label.repetitions == 3 and [r.count for r in label.ranks] == [5, 3]


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
    """Rank 0's breakdown has 850 us of waiting: as kernel time where NCCL runs on the interval's
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


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["report_rank0", "report_rank10", "report_rank2"], [0, 10, 2]),
        (["a_rank0", "b_rank0"], [0, 1]),  # the same rank twice is no numbering
        (["alpha", "beta", "gamma"], [0, 1, 2]),
        (["n1_g0", "n1_g1", "n10_g0", "n2_g0"], [0, 1, 3, 2]),
    ],
)
def test_numbers_from_names(names, numbers):
    ranks = [replace(measured(0, [1]), source=name) for name in names]
    found = {rank.source: number for number, rank in number_ranks(ranks).items()}
    assert found == dict(zip(names, numbers, strict=True))


def test_the_launcher_knows_best_and_devices_order_processes():
    ranks = [replace(measured(0, [1]), source=f"rank{n}", launcher_rank=5 - n) for n in range(3)]
    assert [rank.source for rank in number_ranks(ranks).values()] == ["rank2", "rank1", "rank0"]
    ranks = [replace(measured(0, [1]), source="run", pid=900 - d, device=d) for d in (1, 0, 2)]
    assert [rank.device for rank in number_ranks(ranks).values()] == [0, 1, 2]


def test_traces_with_nothing_in_common_are_no_ranks():
    one, other = measured(0, [1_000] * 3), measured(1, [2_000] * 3, label="other")
    words = "rank0, rank1 are no ranks of one job: no two of them measured the same label"
    assert unrelated(compare(results(one, other))).startswith(words)
    assert unrelated(compare(results(one, measured(1, [9_000] * 3)))) == ""
    assert unrelated(compare(results(one, replace(other, source="rank0")))) == ""  # one trace
    job = run(2, 10)
    ranks = [replace(summary(job, n), labels=()) for n in range(2)]
    assert unrelated(compare(results(*ranks))) == ""  # they meet


@pytest.fixture(scope="module")
def comparison():
    """Three ranks, the second late by host time, another label hostile, one trace broken."""
    job = run(3, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [summary(job, r, wrong=2_000_000 * r) for r in range(3)]
    late = times("step", ranks[1].labels[0].windows, kernel=300_000.0, host=850_000.0)
    ranks[1] = replace(ranks[1], labels=(late,))
    ranks.append(measured(3, [1_000, 2_000, 3_000], label=BAD))
    found = [replace(r, report=f"rank {n}#1/report.html") for n, r in enumerate(results(*ranks))]
    broken = SourceResult("rank9", BAD, failure=f"damaged {BAD}", next_step="export again")
    return compare([*found, broken])


@pytest.mark.parametrize("width", [80, 120])
def test_the_screen_fits_and_says_who_is_late_and_why(comparison, width):
    many = compare(results(*(measured(n, [100_000 + 10_000 * n] * 4) for n in range(12))))
    for each in (comparison, many):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        render(each, console, "out/ranks.html")
        said = console.file.getvalue()
        lines = said.splitlines()
        assert len(lines) <= 24 and "\x1b" not in said
        assert all(len(line) <= width or line.startswith("Compare: ") for line in lines)
        text = " ".join(said.split())
        if each is comparison:
            assert text.startswith("Rank 1 is slow: step: rank 2 waits 850 us of 1.19 ms (72 %)")
            words = "in collectives for rank 1, the last to arrive in 10 of 10: CPU +850 us"
            assert words in text and "together: 17.0 ms Change: see what rank 1's" in text
            assert "left out: rank9: damaged" in text
    assert row(many.labels[0]) == ["step", "4", "100.00", "0", "210.00", "11", ".", "", ""]
    assert row(comparison.labels[0])[-3:] == ["850.33", "2", "1"]


def test_the_document_reads_back_and_the_page_is_one_file_whose_data_cannot_end_it(comparison):
    again = json.loads(dumps(comparison))
    assert again["format"] == "nsysalign-ranks" and again["version"] == 4
    assert len(again["labels"]) == 2 and again["verdict"]["text"].startswith("Rank 1 is slow")
    whole = page(comparison)
    assert not re.search(r"""(src|href)=["']https?:""", whole)
    assert "onerror=alert(1)>" not in whole.replace("\\u003e", "")


@pytest.mark.browser
def test_in_a_browser(comparison, tmp_path):
    path = tmp_path / "ranks.html"
    path.write_text(page(comparison))
    driver = browsing.start()
    try:
        driver.get(path.as_uri())
        browsing.until(driver, "document.body.dataset.ready", "the page")
        link = driver.execute_script(
            "const a = document.querySelector('#ranks a'); return [a.textContent, a.href]"
        )
        assert link == ["rank 0", (tmp_path / "rank 0#1/report.html").as_uri()]
        rows = driver.execute_script(
            "return [...document.querySelectorAll('#table tbody tr')].map((r) => "
            "[...r.cells].map((c) => c.textContent))"
        )
        assert len(rows) == 2 and "in collectives for rank 1" in rows[0][-1]
        assert "onerror=alert(1)" in rows[1][0]
        browsing.quiet(driver)
    finally:
        driver.quit()
