"""What nsys is taken to have added, and how long launches take on an idle device: tables by hand,
in nanoseconds."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd

from nsysalign.model import CALL, KIND
from nsysalign.predict.replay import Costs, overhead, waiting
from nsysalign.split.gaps import launch_latency

COSTS = Costs(launch_share=0.5, attributes_share=0.4, memory_share=0.6, graph_share=0.75, other_share=0.25, inside_most_ns=1_000, wait_ns=70, after_share=0.1, after_from_ns=200,
              after_most_ns=90, call_after_ns=10)  # fmt: skip
PAGEABLE, PINNED, DEVICE = 0, 1, 2
NAMES = ("anything", "cudaLaunchKernelExC_v11060", "cuKernelGetName", "cudaLaunchKernel_v7000")
ANYTHING, WITH_ATTRIBUTES, NAME_OF_KERNEL, LAUNCH = range(len(NAMES))


def trace(calls, operations=()):
    """`calls`: (kind, start, end[, thread, outermost]); `operations`: (kind, start, end, call[,
    from, to])."""
    rows = [
        (
            CALL[c[0]],
            c[1],
            c[2],
            *(c[3:] or (1,))[:1],
            n - c[4] if len(c) > 4 else 0,
            c[5] if len(c) > 5 else 0,
        )
        for n, c in enumerate(calls)
    ]
    columns = ["kind", "start_ns", "end_ns", "thread", "nested", "name_id"]
    table = pd.DataFrame(rows, columns=columns, dtype="int64")
    work = [(KIND[o[0]], o[1], o[2], o[3], *(o[4:] or (-1, -1)), 0) for o in operations]
    names = ["kind", "start_ns", "end_ns", "call", "src_kind", "dst_kind", "device"]
    return SimpleNamespace(
        calls=table,
        operations=pd.DataFrame(work, columns=names, dtype="int64"),
        names=dict(enumerate(NAMES)),
        outermost=table["nested"].to_numpy() == 0,
    )


def inside(*calls):
    return estimated(calls, "inside")


def after(*calls):
    return estimated(calls, "after")


def estimated(calls, what):
    """The numbers of all calls, made thread by thread."""
    made, out = trace(calls), pd.Series(0, range(len(calls)))
    for rows in made.calls.groupby("thread").indices.values():
        out[rows] = getattr(overhead(made, rows, waiting(made), COSTS), what)
    return out.tolist()


def test_a_share_of_the_call_up_to_a_limit():
    assert inside(("launch", 0, 100), ("other", 200, 300), ("launch", 1_000, 3_000), ("launch", 4_000, 8_000)) == [
        50, 25, 1_000, 1_000,
    ]  # fmt: skip
    others = [("graph_launch", 0, 100), ("memset", 200, 300), ("record", 400, 500)]
    assert inside(*others) == [75, 60, 25]
    # less of a launch with attributes; of a call that waits its return, half of it at most
    launches = [("launch", 0, 100, 1, 0, WITH_ATTRIBUTES), ("launch", 200, 300, 1, 1, LAUNCH)]
    assert inside(*launches) == [40, 50]
    waits = ("sync_device", 0, 1_000), ("sync_event", 2_000, 2_100), ("sync_stream", 3_000, 3_140)
    assert inside(*waits) == [70, 50, 70]


def test_cupti_itself_asks_for_the_names_of_kernels():
    """All of such a call before a launch, and the time between the two; one by the program is like
    any other.

    thread 1   [ask 0-10]  [launch 15-115]    [ask 400-410]       [other 500-600]
    thread 2             [ask 12-14]
    """
    calls = [
        ("other", 0, 10, 1, 0, NAME_OF_KERNEL), ("other", 12, 14, 2, 1, NAME_OF_KERNEL), ("launch", 15, 115, 1, 2, LAUNCH),
        ("other", 400, 410, 1, 3, NAME_OF_KERNEL), ("other", 500, 600),
    ]  # fmt: skip
    assert inside(*calls) == [10, 0, 50, 2, 25]
    assert after(*calls) == [5, 0, 18, 10, 0]


def test_after_a_call_a_share_of_the_pause_that_follows():
    """Pauses of 300, 5, 2,000 and 0: 10 and a tenth of what is beyond 200, 90 at most, and no more
    than there is."""
    times = (0, 100), (400, 500), (505, 600), (2_600, 2_700), (2_700, 2_800)
    assert after(*(("launch", *both) for both in times)) == [20, 5, 90, 0, 0], (
        "after the last one nobody knows of a pause"
    )


def test_which_calls_wait():
    """Synchronisations; copies that return when they are done, and those of pageable memory on
    either side."""
    calls = [(kind, 100 * n, 100 * n + 50) for n, kind in enumerate(
        ("launch", "sync_device", "memcpy", "memcpy", "memcpy", "memcpy", "memset", "query_event"))]  # fmt: skip
    operations = [
        ("kernel", 5, 40, 0),
        ("memcpy", 210, 250, 2, PINNED, DEVICE),  # over when its call returns
        ("memcpy", 310, 351, 3, PINNED, DEVICE),
        ("memcpy", 410, 470, 4, PAGEABLE, DEVICE),
        ("memcpy", 510, 570, 5, DEVICE, PAGEABLE),
        ("memcpy", 520, 530, -1, PAGEABLE, DEVICE),  # nobody knows whose
        ("memset", 610, 620, 6),
    ]
    waits = waiting(trace(calls, operations))
    assert waits.nonzero()[0].tolist() == [1, 2, 4, 5]


# --- how long launches take
# ------------------------------------------------------------------------------------


def launches(*rows):
    """(start and end of the call, start and end of the work) each; kernels."""
    calls = [("launch", *row[:2]) for row in rows]
    return trace(
        calls, sorted((("kernel", *row[2:4], n) for n, row in enumerate(rows)), key=lambda o: o[1])
    )


IDLE = [
    (1_000 * n, 1_000 * n + 40, 1_000 * n + 40 + latency, 1_000 * n + 200)
    for n, latency in enumerate((10, 20, 30, 40, 90))
]


def test_the_median_of_launches_on_an_idle_device():
    busy = (2_100, 2_140, 2_240, 2_300)  # begun while the third one ran: it waited
    for rows in (IDLE, sorted([*IDLE, busy])):
        usual = dict(zip(KIND, launch_latency(launches(*rows)).tolist(), strict=True))
        assert usual == dict.fromkeys(KIND, 5_000) | {"kernel": 30}
    as_it_ends = (2_200, 2_240, 2_241, 2_300)  # begun the moment the third one ended: it did not
    assert launch_latency(launches(*sorted([*IDLE, as_it_ends])))[KIND["kernel"]] == 25


def test_a_long_operation_keeps_the_device_busy_for_all_that_follow():
    """The first runs until 3,500: the next three calls find the device at work."""
    rows = [
        (*IDLE[0][:3], 3_500),
        *IDLE[1:],
        *(
            (5_000 + 1_000 * n, 5_040 + 1_000 * n, 5_100 + 1_000 * n, 5_200 + 1_000 * n)
            for n in range(4)
        ),
    ]
    assert launch_latency(launches(*rows))[KIND["kernel"]] == 60, "10, 90 and four times 60"
