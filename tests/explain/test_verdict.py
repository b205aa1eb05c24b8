"""What the typical interval of a group spent its time on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nsysalign.answer import answer
from nsysalign.causes import CAUSES
from nsysalign.explain.verdict import sums_of, typical_of

from .drawing import analysis, diagnose, facts, interval, piece, repeat

QUEUED = piece("queued", 15, "contention", stream=9, operation="other")
UNNAMED = piece("event", 30, "")  # waited for something, before its end record


def test_what_other_intervals_waited_for_is_no_waiting_of_the_typical_one():
    """A trace names what four of nine intervals of one length waited for; the typical one launches instead."""
    launching = repeat(5, "x", ("launch_latency", 20), ("kernel", 4))
    waiting = repeat(4, "x", ("launch_latency", 5), QUEUED, ("kernel", 4))
    (row,) = answer(diagnose(analysis(launching, waiting))).labels
    # five wait 20 of 24 us for a launch, four 5
    assert row.words == "GPU idle 56 % in all"


def test_the_typical_interval_of_one_is_all_of_them():
    drawn = facts(analysis(interval("x", ("launch_latency", 4), QUEUED, UNNAMED, ("kernel", 4))))
    (group,) = drawn.labels[0].groups
    sums = sums_of(group, "event", drawn.intervals)
    parts = dict.fromkeys(CAUSES, 0)
    parts |= {"launch_latency": 4_000, "queued": 15_000, "event": 30_000, "kernel": 4_000}
    typical = typical_of(sums, parts, gpu_ns=4_000)
    assert typical == replace(sums, idle_in_all=sums.share(sums.idle))
    assert (sums.waiting, sums.unnamed_waiting) == (44_000, 29_000)


@pytest.mark.parametrize("kind", ["event", "host"])
def test_waiting_for_nccls_kernels_is_no_gpu_work(kind):
    """Of host timers they counted as both."""
    drawn = analysis(interval("x", ("host", 10), ("kernel", 80), ("sync", 5), kind=kind))
    is_kernel = drawn.ledger["cause"] == "kernel"
    names = drawn.ledger["what"].mask(is_kernel, "ncclDevKernel_AllReduce")
    read = facts(replace(drawn, ledger=drawn.ledger.assign(what=names)))
    (group,) = read.labels[0].groups
    sums = sums_of(group, kind, read.intervals)
    assert (sums.gpu, sums.collectives) == (0, 80_000)
