"""Labels side by side, and the numbers that ranks get."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import measured, results

from nsysalign.addons.ranks.compare import compare, number_ranks
from nsysalign.addons.ranks.results import SourceResult


def only(*ranks):
    (label,) = compare(results(*ranks)).labels
    return label


def test_the_slowest_rank_is_named_with_its_share():
    label = only(
        measured(0, [100_000, 102_000, 101_000, 100_500]),
        measured(1, [130_000, 101_500, 131_000, 132_000]),
    )
    assert (label.verdict, label.slowest) == ("slowest", 1)
    assert label.spread_ns == 130_500 - 100_750
    assert [row.slowest_in for row in label.ranks] == [1, 3]


def test_differences_that_do_not_matter_are_none():
    label = only(measured(0, [100_000] * 5), measured(1, [101_900] * 5))
    assert (label.verdict, label.slowest) == ("even", None)


def test_a_changing_order_names_nobody():
    """Medians 10 us apart, and yet each rank is the slowest in two of four."""
    label = only(
        measured(0, [100_000, 140_000, 100_000, 140_000]),
        measured(1, [130_000, 130_000, 130_000, 100_000]),
    )
    assert label.verdict == "unclear" and label.slowest is None


def test_two_repetitions_name_nobody():
    label = only(measured(0, [100_000] * 2), measured(1, [200_000] * 2))
    assert (label.verdict, label.slowest) == ("unclear", None)


def test_a_label_of_one_rank():
    comparison = compare(results(measured(0, [1_000]), measured(1, [2_000], label="other")))
    assert [(label.label, label.verdict) for label in comparison.labels] == [
        ("step", "alone"),
        ("other", "alone"),
    ]


def test_only_common_repetitions_are_paired():
    label = only(measured(0, [100_000] * 5), measured(1, [200_000] * 3))
    assert label.repetitions == 3 and [row.count for row in label.ranks] == [5, 3]


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (["report_rank0", "report_rank10", "report_rank2"], [0, 10, 2]),
        (["node7.3", "node7.11"], [3, 11]),  # the one number that differs
        (["train-004", "train-005"], [4, 5]),
        (["a_rank0", "b_rank0"], [0, 1]),  # the same rank twice is no numbering
        (["alpha", "beta", "gamma"], [0, 1, 2]),
        (["n1_g0", "n1_g1", "n2_g0", "n2_g1"], [0, 1, 2, 3]),  # two numbers differ: in order
    ],
)
def test_numbers_from_names(names, numbers):
    ranks = [replace(measured(0, [1]), source=name) for name in names]
    assert {rank.source: number for number, rank in number_ranks(ranks)} == dict(
        zip(names, numbers, strict=True)
    )


def test_the_launcher_knows_best():
    ranks = [replace(measured(0, [1]), source=f"host{n}", launcher_rank=5 - n) for n in range(3)]
    assert [(number, rank.source) for number, rank in number_ranks(ranks)] == [
        (3, "host2"),
        (4, "host1"),
        (5, "host0"),
    ]


def test_processes_of_one_trace_are_ordered_by_device():
    ranks = [replace(measured(0, [1]), source="run", pid=900 - d, device=d) for d in (1, 0, 2)]
    assert [rank.device for _, rank in number_ranks(ranks)] == [0, 1, 2]


def test_copies_of_a_trace_are_named():
    rank = measured(0, [5_000, 6_000])
    comparison = compare(results(replace(rank, source="rank0"), replace(rank, source="rank3")))
    assert any("rank 0 and rank 3 are copies" in note for note in comparison.notes)


def test_a_failure_keeps_its_reason():
    broken = SourceResult(
        "rank1", "rank1.sqlite", failure="damaged SQLite file", next_step="export again"
    )
    comparison = compare([*results(measured(0, [1_000])), broken])
    assert comparison.failures == (broken,) and [r.rank for r in comparison.ranks] == [0]
