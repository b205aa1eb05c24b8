"""`Facts`: what every rule asks of an analysis, asked here one by one.

label  #  interval            the analysis holds the intervals 0 to 5; without the run and with others taken out
a      0  0   10 host 20 kernel        their numbers are no longer their positions
b      0  1   30 kernel
a      1  2   20 host 20 kernel
a      2  3   40 sync 20 kernel
b      1  4   10 host 30 kernel
a      3  5   5 api  20 kernel
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.explain import facts as module
from nsysalign.explain.facts import Case, rows_of
from nsysalign.model import OTHERS_WORKED

from .drawing import analysis, interval
from .drawing import facts as facts_of


def drawn():
    return analysis(
        interval("a", ("host", 10), ("kernel", 20)),
        interval("b", ("kernel", 30), flags=(OTHERS_WORKED,), other={13: 4, 14: 5}),
        interval("a", ("host", 20), ("kernel", 20), kind="host", issued=15, outside=3),
        interval("a", ("sync", 40), ("kernel", 20), pid=2),
        interval("b", ("host", 10), ("kernel", 30), other={13: 1}),
        interval("a", ("api", 5, "cuModuleLoadData"), ("kernel", 20)),
    )


@pytest.fixture
def facts():
    return facts_of(drawn())


def mask(facts, *positions):
    return np.isin(np.arange(facts.count), positions)


def test_parts_of_an_unknown_cause_are_not_counted():
    table = drawn()
    odd = pd.DataFrame([(0, "new", 9, 9, 9), (77, "host", 9, 9, 9)], columns=frames.PARTS.names)
    told = facts_of(replace(table, parts=pd.concat([odd, table.parts], ignore_index=True)))
    assert told._parts.tolist() == facts_of(table)._parts.tolist()


def test_columns(facts):
    assert facts.is_host.tolist() == [False, False, True, False, False, False]
    assert facts.is_event.tolist() == facts.on_stream.tolist() == (~facts.is_host).tolist()
    assert facts.label.tolist() == [0, 1, 0, 0, 1, 0] and facts.label_count.tolist() == [4, 2]
    assert facts.kernel_only.tolist() == [20_000, 30_000, 15_000, 20_000, 30_000, 20_000]
    assert facts.kernel_outside.tolist() == [0, 0, 3_000, 0, 0, 0]
    assert facts.others_worked.tolist() == [False, True, False, False, False, False]
    assert facts.share(facts.part("kernel")).round(3).tolist() == [0.667, 1, 0.5, 0.333, 0.75, 0.8]
    assert facts.work.tolist() == facts.part("kernel").tolist()
    assert facts.loading.tolist() == [0, 0, 0, 0, 0, 5_000] and not facts.allocating.any()


def test_calls_that_allocate_are_told_apart_from_calls_that_load():
    told = facts_of(
        analysis(
            interval("x", ("api", 7, "cudaMalloc"), ("kernel", 20)),
            interval("x", ("api", 5, "cuModuleLoadData"), ("kernel", 20)),
        )
    )
    assert told.allocating.tolist() == [7_000, 0] and told.loading.tolist() == [0, 5_000]


def test_the_most_common_work_of_a_label_is_the_kind_with_most_intervals():
    table = drawn()
    rows = [("a", 1, (3,)), ("a", 3, (0, 2, 5))]
    kinds = pd.DataFrame(rows, columns=["label", "count", "intervals"])
    told = facts_of(replace(table, variants=kinds))
    assert told.most_common_work("a").tolist() == [0, 2, 5] and not len(told.most_common_work("b"))


def test_an_interval_of_no_time_has_no_share():
    empty = facts_of(analysis(interval("x", ("host", 0))))
    assert empty.share(empty.part("host")).tolist() == [0]


def test_what_is_remembered_is_made_once(facts):
    made = []
    for _ in range(2):
        assert facts.remember("key", lambda f: made.append(f) or "answer") == "answer"
    assert made == [facts]


# --- cases
# -----------------------------------------------------------------------------------------------------


def test_a_case_shows_the_labels_row_if_it_has_the_property(facts):
    """Elapsed of a: 30, 40, 60, 25: its row is #0 (the lower of the two in the middle)."""
    (case,) = facts.cases(mask(facts, 0, 2, 5), at_least=0.5)
    assert (case.label, case.row, case.name, case.site) == ("a", 0, "a#0", "bench.py:7")
    assert case.positions.tolist() == [0, 2, 5] and case.frequency == "3 of 4"
    (case,) = facts.cases(mask(facts, 0, 5), at_least=0.5)
    assert case.row == 0, "and not the shorter one"


def test_else_the_lower_median_of_those_that_have_it(facts):
    (case,) = facts.cases(mask(facts, 2, 3), at_least=0.5)
    assert (case.row, case.name) == (2, "a#1")
    (case,) = facts.cases(mask(facts, 2, 3, 5), at_least=0.5)
    assert case.row == 2, "25, 40 and 60 us: the one in the middle"


def test_how_many_of_a_label_it_takes(facts):
    half = mask(facts, 2, 3, 4)  # two of four, one of two
    assert [c.label for c in facts.cases(half, at_least=0.5)] == ["a", "b"], "in label order"
    assert [c.label for c in facts.cases(half, at_least=0.51)] == []
    assert [c.label for c in facts.cases(mask(facts, 4), at_least=0)] == ["b"], "one at least"
    assert list(facts.cases(mask(facts), at_least=0)) == []


def test_how_often_is_said_where_it_is_not_always():
    assert Case("a", "", np.arange(3), row=0, name="a#0", count=3).frequency is None
    assert Case("a", "", np.arange(3), row=0, name="a#0", count=4).frequency == "3 of 4"


def test_repetitions_are_in_time_process_by_process(facts):
    assert facts.repetitions(0).tolist() == [0, 2, 5, 3], "the other process last"
    assert facts.repetitions(1).tolist() == [1, 4]


# --- details
# ---------------------------------------------------------------------------------------------------


def test_details_of_a_cause(facts):
    assert facts.detail_rows("host")["interval"].tolist() == [0, 2, 4]
    assert facts.detail_rows("api", "^cuModule")["interval"].tolist() == [5]
    assert facts.detail_rows("api", names=("cuModuleLoadData",))["interval"].tolist() == [5]
    for none in (("api", "Alloc"), ("api", "", ("cuModule",)), ("memset",)):
        assert facts.detail_rows(*none).empty
    assert facts.detail_ns(facts.detail_rows("host")).tolist() == [10_000, 0, 20_000, 0, 10_000, 0]


def test_rows_of_one_interval_longest_first():
    told = facts_of(analysis(
        interval("x", ("host", 1, "p")),
        interval("x", ("host", 2, "q"), ("sync", 9), ("host", 5, "r")),
        interval("x", ("host", 3, "s")),
    ))  # fmt: skip
    assert rows_of(told.analysis.details, 1)["ns"].tolist() == [9_000, 5_000, 2_000]
    assert rows_of(told.detail_rows("host"), 1)["detail"].tolist() == ["r", "q"]
    assert rows_of(told.analysis.details, 9).empty


# --- segments
# --------------------------------------------------------------------------------------------------


def long():
    return analysis(
        interval("x", ("host", 1), ("api_launch", 2), ("kernel", 3), ("host", 4), ("kernel", 5)),
        interval("x", ("sync", 6), ("kernel", 7)),
        interval("x", ("kernel", 8), ("event", 9)),
    )


def test_idle_stretches_are_numbered():
    """
    interval 0   host launch | kernel | host | kernel       0 0 - 1 -
    interval 1   sync | kernel                              2 -
    interval 2   kernel | event                             - 3
    """
    told = facts_of(long())
    assert told.segments_of(np.array([0, 1, 2])).run.tolist() == [0, 0, -1, 1, -1, 2, -1, -1, 3]


def test_an_idle_stretch_ends_with_its_interval():
    told = facts_of(
        analysis(
            interval("x", ("kernel", 1), ("event", 1)), interval("x", ("host", 1), ("kernel", 1))
        )
    )
    assert told.segments_of(np.array([0, 1])).run.tolist() == [-1, 0, 1, -1]


def test_many_segments_come_in_lots(monkeypatch):
    """Operations of a: 1 each; a lot is full with 4 of these and their idle stretches."""
    told = facts_of(drawn())
    monkeypatch.setattr(module, "_OPERATIONS_AT_ONCE", 4)

    def lots(positions):
        return [
            np.unique(lot.interval).tolist() for lot in told.lots(np.array(positions, np.int64))
        ]

    assert lots(range(6)) == [[0], [1, 2], [3, 4], [5]]
    assert lots([3]) == [[3]] and lots([]) == []


def test_segments_of_each_interval():
    told = facts_of(long())
    each = list(told.segments_of(np.arange(3)).each())
    assert [(s.ns // 1_000).tolist() for s in each] == [[1, 2, 3, 4, 5], [6, 7], [8, 9]]
    assert each[1].words(np.array([1, 0])).tolist() == ["kernel", "cudaDeviceSynchronize"]
    assert each[0].of_cause("host").tolist() == [True, False, False, True, False]
