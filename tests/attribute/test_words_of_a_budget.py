"""Segments and details as users read them: what each stretch was, in words, with nsys's own row.
In microseconds."""

from __future__ import annotations

import pandas as pd
import pytest
from cases.drawing import (
    MAIN,
    OTHER,
    ZERO,
    analysed,
    events,
    kernel,
    ordinary_launches,
)
from simulator.world import (
    BLOCKING,
    D2H,
    LEGACY,
    NON_BLOCKING,
    Overhead,
    Range,
    World,
)


def world() -> World:
    return World(streams={7: LEGACY, 13: NON_BLOCKING, 14: BLOCKING})


def segments(analysis) -> list[tuple]:
    rows = analysis.segments[analysis.segments["interval"] == 0]
    columns = ("start_ns", "end_ns", "cause", "ref_kind", "detail")
    return [
        ((a - ZERO) / 1000, (b - ZERO) / 1000, *rest)
        for a, b, *rest in zip(*(rows[c] for c in columns), strict=True)
    ]


def details(analysis) -> pd.DataFrame:
    return analysis.details[analysis.details["interval"] == 0]


def test_every_kind_of_stretch(tmp_path):
    """
    H   outer[-20 ... inner[6.5-9] (nsys 9.2-9.7) s10-14 c16---------120 o122 y126 s132 r152            200]
    7     |6                                 #65-80  copy #90-95                   #138-150  |160
    13   #0------------60 |63  wait
    """
    w = world()
    ordinary_launches(w)
    kernel(w, (-8, -5), (0, 60), 13)
    r = w.record(63, -4, -2, 13)
    w.ranges += [
        Range("outer", -20, 200, MAIN),
        Range("inner", 6.5, 9, MAIN),
        Range("another's", 0, 200, OTHER),
    ]
    w.overheads += [Overhead(9.2, 9.7, MAIN), Overhead(130.5, 131, OTHER)]
    w.wait(r, 3, 5, 7)
    kernel(w, (10, 14), (65, 80))
    w.copy(90, 95, w.call("memcpy", 16, 120), pageable=True)
    w.call("other", 122, 124)
    w.sync(126, 130)
    kernel(w, (132, 136), (138, 150))
    events(w, 6, (152, 154), 160)
    analysis = analysed(w, tmp_path)
    assert segments(analysis) == [
        (6, 6.5, "host", "nvtx", "outer"),
        (6.5, 9, "host", "nvtx", "inner"),
        (9, 9.2, "host", "nvtx", "outer"),
        (9.2, 9.7, "profiler", "overhead", "CUPTI buffer flush"),
        (9.7, 10, "host", "nvtx", "outer"),
        (10, 14, "api_launch", "api", "cudaLaunchKernel"),
        (14, 63, "queued", "kernel", "waits for kernel (stream 13)"),
        (63, 65, "launch_latency", "kernel", "on the way: kernel"),
        (65, 80, "kernel", "kernel", "kernel"),
        (80, 90, "memcpy", "memcpy", "staging of copy H2D pageable"),
        (90, 95, "memcpy", "memcpy", "copy H2D pageable"),
        (95, 120, "memcpy", "memcpy", "staging of copy H2D pageable"),
        (120, 122, "host", "nvtx", "outer"),
        (122, 124, "api", "api", "cudaMalloc"),
        (124, 126, "host", "nvtx", "outer"),
        (126, 130, "sync", "api", "cudaDeviceSynchronize"),
        (130, 132, "host", "nvtx", "outer"),
        (132, 136, "api_launch", "api", "cudaLaunchKernel"),
        (136, 138, "launch_latency", "kernel", "on the way: kernel"),
        (138, 150, "kernel", "kernel", "kernel"),
        (150, 152, "host", "nvtx", "outer"),
        (152, 154, "event", "api", "cudaEventRecordWithFlags"),
        (154, 160, "event", "event", "event record"),
    ]
    rows = details(analysis)
    found = {
        (d.cause, d.detail): (d.ns / 1000, d.direction, d.memory, d.bytes, d.stream)
        for d in rows.itertuples()
    }
    assert found == {
        ("api", "cudaMalloc"): (2, "", "", 0, -1),
        ("api_launch", "cudaLaunchKernel"): (8, "", "", 0, -1),
        ("event", "cudaEventRecordWithFlags"): (2, "", "", 0, -1),
        ("host", "inner"): (2.5, "", "", 0, -1),
        ("memcpy", "copy"): (5, "H2D", "pageable", 4096, -1),
        ("memcpy", "staging"): (35, "H2D", "pageable", 0, -1),
        ("profiler", "CUPTI buffer flush"): (0.5, "", "", 0, -1),
        ("queued", "dependency"): (49, "", "", 0, 13),
        ("sync", "cudaDeviceSynchronize"): (4, "", "", 0, -1),
    }
    (copy,) = rows[rows["detail"] == "copy"].itertuples()
    assert copy.bandwidth_gb_s == pytest.approx(4096 / 5_000)


@pytest.mark.parametrize(
    ("start", "end", "named"),
    [
        (-20, 200, set()),  # a whole benchmark
        (7, 200, {"range"}),  # begins inside
        (-20, 100, {"range"}),  # ends inside
    ],
)
def test_a_range_around_an_interval_is_not_what_the_cpu_did_in_it(tmp_path, start, end, named):
    """A benchmark's "flush 4 MB" was "mostly" what the CPU did between two records; it was one of two such ranges."""
    w = world()
    kernel(w, (80, 84), (90, 100))
    w.ranges.append(Range("range", start, end, MAIN))
    events(w, 6, (152, 154), 160)
    rows = details(analysed(w, tmp_path))
    assert set(rows.loc[rows["cause"] == "host", "detail"]) == named


def test_what_another_stream_is_to_it(tmp_path):
    """
    7     |6          #65-80     memset #85-86 (no call)       #100-110 |160
    13   #0---------60                  10-14 s  90-94 s
    """
    w = world()
    ordinary_launches(w)
    kernel(w, (-8, -5), (0, 60), 13)
    kernel(w, (10, 14), (65, 80))
    w.op("memset", 85, 86, None, bytes=64)
    kernel(w, (90, 94), (100, 110))
    events(w, 6, (152, 154), 160)
    analysis = analysed(w, tmp_path)
    told = {(s[2], s[4]) for s in segments(analysis)}
    assert ("queued", "contends with kernel (stream 13)") in told
    assert ("unknown", "no API row for memset") in told and ("memset", "memset") in told
    rows = details(analysis).set_index("detail")
    assert rows.loc["contention", ["ns", "stream"]].tolist() == [44_000, 13]
    assert rows.loc["no-api-row", ["ns", "stream", "bytes"]].tolist() == [5_000, -1, 0]
    memset = rows[rows["cause"] == "memset"].iloc[0]
    assert (memset["bytes"], memset["bandwidth_gb_s"]) == (64, 0.064)


def test_copies_by_direction_and_memory(tmp_path):
    """Two pinned copies to the device in pieces of 4 and 6, one to the host, one on the device; a
    memset."""
    w = world()
    for k, more in enumerate((dict(pageable=False, nbytes=4_000), dict(pageable=False, nbytes=6_000),
                              dict(pageable=False, kind=D2H, nbytes=500), dict(pageable=False, kind=8, nbytes=70))):  # fmt: skip
        w.copy(
            20 + 20 * k, 24 + 20 * k + 2 * (k == 1), w.call("memcpy", 3 + 2 * k, 4 + 2 * k), **more
        )
    w.op("memset", 110, 112, w.call("memset", 12, 13), bytes=90)
    events(w, 6, (16, 18), 120)
    rows = details(analysed(w, tmp_path))
    moved = rows[rows["cause"].isin(["memcpy", "memset"])]
    found = {
        (d.direction, d.memory): (d.ns, d.bytes, round(d.bandwidth_gb_s, 4))
        for d in moved.itertuples()
    }
    assert found == {
        ("H2D", "pinned"): (10_000, 10_000, 1.0), ("D2H", "pinned"): (4_000, 500, 0.125), ("D2D", "device"): (4_000, 70, 0.0175),
        ("", ""): (2_000, 90, 0.045),
    }  # fmt: skip


def test_a_copy_that_the_window_cuts_moved_all_its_bytes_in_all_its_time(tmp_path):
    """
    7   copy #0--|6--------20          6 of 20 us before the window: 14 inside; 40,000 bytes in 20 us
    """
    w = world()
    w.copy(0, 20, w.call("memcpy", -10, -8), pageable=False, nbytes=40_000)
    kernel(w, (5, 7), (22, 30))
    events(w, 6, (8, 10), 40)
    row = details(analysed(w, tmp_path)).query("cause == 'memcpy'").iloc[0]
    assert (row["ns"], row["bytes"], row["bandwidth_gb_s"]) == (14_000, 40_000, 2.0)


#: ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND of an export by nsys 2024.2.
KINDS = {
    1: "HTOD",
    2: "DTOH",
    8: "DTOD",
    9: "HTOH",
    10: "PTOP",
    11: "UVM_HTOD",
    12: "UVM_DTOH",
    13: "UVM_DTOD",
}
MEMORIES = {
    0: "PAGEABLE",
    1: "PINNED",
    2: "DEVICE",
    3: "ARRAY",
    4: "MANAGED",
    5: "DEVICE_STATIC",
    6: "MANAGED_STATIC",
}
