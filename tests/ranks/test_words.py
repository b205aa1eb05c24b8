"""A comparison of ranks in words: reviewed screens, the document; hostile names."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from explain.drawing import analysis, interval
from made import measured, results, summary, times
from rich.console import Console
from simulator.ranks import run

from nsysalign import frames
from nsysalign.addons.ranks.compare import compare, number_ranks, summaries
from nsysalign.addons.ranks.records import SourceResult
from nsysalign.addons.ranks.words import conclusion, dumps, render, verdict
from nsysalign.trace.nccl import Shared

BAD = "</script><img src=x onerror=alert(1)>\x1b[31m{{@@data@@"
KEPT = Path(__file__).with_name("screens.txt")
LATE = run(2, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)


def two(first, second):
    """Ranks without collectives."""
    return compare(results(measured(0, first), measured(1, second)))


def waiting(waits, **slow):
    """Rank 0 waits for rank 1 in collectives: what their breakdowns say of it."""
    ranks = [
        replace(rank, labels=(times("step", rank.labels[0].windows, **own),))
        for rank, own in zip((summary(LATE, 0), summary(LATE, 1)), (waits, slow), strict=True)
    ]
    return compare(results(*ranks))


def with_labels(rank, count):
    one = measured(rank, [100_000 * (rank + 1)] * 3)
    labels = [replace(one.labels[0], label=f"label {n}") for n in range(count)]
    return replace(one, labels=tuple(labels))


def everything():
    """Three ranks, the second late by host time, another label hostile, one trace broken."""
    job = run(3, 10, think=lambda r, s: 900_000 if r == 1 else 50_000)
    ranks = [summary(job, r, wrong=2_000_000 * r) for r in range(3)]
    late = times("step", ranks[1].labels[0].windows, kernel=300_000.0, host=850_000.0)
    ranks[1] = replace(ranks[1], labels=(late,))
    ranks.append(measured(3, [1_000, 2_000, 3_000], label=BAD))
    found = [replace(r, report=f"rank {n}#1/report.html") for n, r in enumerate(results(*ranks))]
    broken = SourceResult("rank9", BAD, failure=f"damaged {BAD}", next_step="export again")
    return compare([*found, broken])


KERNELS = {"kernel": 1_150_000.0}  # 850 us of waiting, where NCCL runs on the interval's stream
COMPARISONS = {
    "one rank is slow": two([100_000] * 5, [150_000] * 5),
    "medians within 2 percent": two([100_000] * 5, [101_900] * 5),
    "medians 10 us apart, and each is the slowest in two of four": two(
        [100_000, 140_000, 100_000, 140_000], [130_000, 130_000, 130_000, 100_000]
    ),
    "two repetitions": two([100_000] * 2, [200_000] * 2),
    "only common repetitions are paired": two([100_000] * 5, [200_000] * 3),
    "twelve ranks": compare(results(*(measured(n, [100_000 + 10_000 * n] * 4) for n in range(12)))),
    "waits, the slow one's CPU": waiting(KERNELS, kernel=300_000.0, host=850_000.0),
    "waits, the slow one's calls": waiting(KERNELS, kernel=300_000.0, api_launch=850_000.0),
    "waits, the slow one's kernels": waiting(KERNELS, kernel=1_150_000.0),
    "waits, for no known reason": waiting(
        {"kernel": 300_000.0, "queued": 850_000.0}, kernel=300_000.0, unknown=100.0
    ),
    "nothing in common": compare(results(measured(0, [1_000] * 3), measured(1, [2_000] * 3, "b"))),
    "many labels, many failures": compare(
        [
            *results(*(with_labels(n, 12) for n in range(2))),
            *(SourceResult(f"bad{n}", "x", failure="damaged") for n in range(6)),
        ]
    ),
    "everything": everything(),
}


def screen(name: str, width: int, full: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(COMPARISONS[name], console, "out", full=full)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def screens(width: int) -> str:
    out = []
    for name, comparison in COMPARISONS.items():
        lines = screen(name, width)
        assert len(lines) <= 24 and not any("\x1b" in line for line in lines)
        assert all(len(line) <= width for line in lines)
        out += [f"=== {name}", *lines, *(f"{x.label!r}: {verdict(x)!r}" for x in comparison.labels)]
    return "\n".join(out) + "\n"


def test_the_screens_are_the_reviewed_ones_and_fit():
    """`python tests/ranks/test_words.py` writes them again: read the difference."""
    assert screens(80) == KEPT.read_text("utf-8")
    screens(120)
    whole = screen("many labels, many failures", 120, full=True)
    assert sum(line.startswith("label ") and "is slowest" in line for line in whole) == 12
    assert sum(line.startswith("left out: bad") for line in whole) == 6


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


def test_the_document_reads_back():
    comparison = COMPARISONS["everything"]
    again = json.loads(dumps(comparison))
    assert again["format"] == "nsysalign-ranks" and again["version"] == 5
    assert (again["verdict"]["text"], again["verdict"]["advice"]) == conclusion(comparison)


def test_first_calls_and_kinds_of_work_of_each_rank():
    """A first call of rank 1 alone, ten times as long; and one kernel or two in turn, of which the two are
    slower on rank 1."""

    def rank(pid, first_us, two_us):
        alone = [interval("step", ("kernel", 50), pid=pid) for _ in range(12)]
        pairs = [interval("step", ("kernel", two_us), ("kernel", 60), pid=pid) for _ in range(12)]
        turns = [drawn for both in zip(alone, pairs, strict=True) for drawn in both]
        if first_us:
            turns[0] = interval("step", ("host", first_us), ("kernel", 50), pid=pid)
        analysed = analysis(turns)
        shared = Shared(frames.empty(frames.COLLECTIVES), None, None)
        return replace(summaries(analysed, shared, f"rank{pid}")[0], session_start_ns=0)

    compared = compare(results(rank(0, 0, 60), rank(1, 9_000, 90)))
    told = {label.label: label for label in compared.labels}
    assert len(told) == 2 and all(name.startswith("step (") for name in told)
    (even,) = (label for label in compared.labels if label.verdict == "even")
    (slow,) = (label for label in compared.labels if label.verdict == "slowest")
    assert even.repetitions == 11 and [row.mean_ns for row in even.ranks] == [50_000, 50_000]
    assert slow.slow == 1 and [row.median_ns for row in slow.ranks] == [120_000, 150_000]


if __name__ == "__main__":
    KEPT.write_text(screens(80), "utf-8")
