"""A small Analysis made by hand, and one as large and as hostile as wanted."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import Analysis, TraceInfo

HOSTILE = "</script><img src=x onerror=alert(1)>"

# label, kind, site, library, and per run the pieces of its window in order: (cause, ns, what)
#
#   t1:  |event|      host (no call)      |  launch  | kernel |event|
#        0     4000                  178490     206800   231570  234720
CASES = [
    (
        "t1",
        "event",
        "puzzle.py:14",
        False,
        [
            [
                ("event", 4000, "record"),
                ("host", 174490, "python"),
                ("api_launch", 28310, "cudaLaunchKernel"),
                ("kernel", 24770, "gemm"),
                ("event", 3150, "record"),
            ],
            [
                ("event", 4000, "record"),
                ("host", 184490, "python"),
                ("api_launch", 28310, "cudaLaunchKernel"),
                ("kernel", 24770, "gemm"),
                ("event", 3150, "record"),
            ],
            [
                ("event", 4000, "record"),
                ("host", 154490, "python"),
                ("api_launch", 28310, "cudaLaunchKernel"),
                ("kernel", 24770, "gemm"),
                ("event", 3150, "record"),
            ],
        ],
    ),
    (
        "t2",
        "event",
        "puzzle.py:17",
        False,
        [
            [
                ("host", 21690, "python"),
                ("api_launch", 4040, "cudaLaunchKernel"),
                ("launch_latency", 2140, "gemm"),
                ("kernel", 24740, "gemm"),
                ("event", 4580, "record"),
            ],
        ],
    ),
    (
        "replay",
        "event",
        "a/very/long/path/to/the/file/that/replays_a_graph.py:120",
        False,
        [
            [
                ("api_launch", 12000, "cudaGraphLaunch"),
                ("graph", 35200, "graph"),
                ("event", 5000, "record"),
            ],
        ],
    ),
    (
        "do_bench",
        "event",
        "triton/testing.py:131",
        True,
        [
            [("memset", 20000, "memset"), ("kernel", 30000, "add"), ("event", 1300, "record")],
        ],
    ),
]


def build(cases=CASES, *, findings=(), unaligned=(), name=str, timeline=True) -> Analysis:
    """An Analysis of `cases`: windows follow each other 1 ms apart; `name` wraps every foreign
    name."""
    intervals, parts, segments, labels, drawn, details = [], [], [], [], [], []
    clock, number = 10_000_000, 0
    for label, kind, site, library, runs in cases:
        rows = []
        for repetition, pieces in enumerate(runs):
            elapsed = sum(ns for _, ns, _ in pieces)
            row = {
                "interval": number,
                "name": f"{name(label)}#{repetition}",
                "label": name(label),
                "kind": kind,
                "pid": 484,
                "tid": 484,
                "start_record": 2 * number,
                "end_record": 2 * number + 1,
                "device": 0,
                "start_stream": 7,
                "end_stream": 7,
                "elapsed_ns": elapsed,
                "start_ns": clock,
                "end_ns": clock + elapsed,
                "start_lower_ns": clock - 1500,
                "start_upper_ns": clock + 900,
                "error_ns": 800,
                "method": "bounds",
                "clock_residual_ns": 40 if number == 0 else None,
                "kernel_only_ns": sum(ns for c, ns, _ in pieces if c == "kernel"),
                "kernel_only_upper_ns": sum(ns for c, ns, _ in pieces if c in ("kernel", "graph")),
                "kernel_outside_ns": 0,
                "idle_at_most_ns": pd.NA,
                "operations": 1,
                "site": name(site),
                "end_site": name(site),
                "callers": (name("train.py:88"),) if number == 0 else (),
                "library": library,
                "flags": ("profiler-disturbed",) if number == 1 else (),
                "findings": tuple(f["rule"] for f in findings if f["label"] == name(label)),
            }
            rows.append(row)
            sums: dict[str, int] = {}
            at = clock
            for cause, ns, what in pieces:
                sums[cause] = sums.get(cause, 0) + ns
                ref = {"kernel": "kernel", "host": "", "event": "event"}.get(cause, "api")
                segments.append(
                    (
                        number,
                        at,
                        at + ns,
                        cause,
                        ref,
                        100 * number + len(segments) % 100,
                        name(what),
                    )
                )
                if timeline and cause in ("api_launch", "kernel", "graph", "memset"):
                    drawn.append(_item(number, cause, at, ns, name(what)))
                at += ns
            if timeline:
                drawn += _records_and_clock(number, clock, at, name)
                drawn.append(
                    (
                        number,
                        "nvtx",
                        "thread 484",
                        "range",
                        name(label),
                        clock - 500,
                        at + 500,
                        "nvtx",
                        1,
                        -1,
                        {},
                    )
                )
            parts += [(number, c, ns, max(0, ns - 10), ns + 10) for c, ns in sums.items()]
            details.append((number, "host", name("python"), 5, "H2D", "pageable", 4096, -1, "", -1))
            clock, number = clock + elapsed + 1_000_000, number + 1
        intervals += rows
        labels.append(_label(rows))
    return Analysis(
        trace=TraceInfo(
            "runs/puzzle-003/trace.sqlite",
            "2024.2.3",
            "3.11.1",
            (name("NVIDIA H200"),),
            "580.1",
            None,
            ("CUDA_EVENT",),
            (name("NVTX was lost"),),
        ),
        intervals=frames.check(_frame(intervals, frames.INTERVALS), frames.INTERVALS),
        parts=_table(parts, frames.PARTS),
        segments=_table(segments, frames.SEGMENTS),
        details=_table([(*row, float("nan")) for row in details], frames.DETAILS),
        other_streams=_table([(0, 13, 500)] if cases else [], frames.OTHER_STREAMS),
        labels=_frame(labels, frames.LABELS),
        unaligned=_frame(list(unaligned), frames.UNALIGNED),
        findings=_frame(list(findings), frames.FINDINGS),
        timeline=_table(drawn, frames.TIMELINE),
        notes=(name("a note"),),
        calibration={"idle_latency_ns": np.float64(5500.5), "missing": float("nan")},
    )


def _item(number, cause, at, ns, what):
    if cause == "api_launch":
        return (
            number,
            "host",
            "thread 484",
            "launch",
            what,
            at,
            at + ns,
            "api",
            900 + number,
            -1,
            {},
        )
    detail = {"grid": (64, 1, 1), "block": (256, 1, 1), "bytes": 84_000_000}
    return (
        number,
        "stream",
        "stream 7",
        cause,
        what,
        at,
        at + ns,
        cause,
        number,
        900 + number,
        detail,
    )


def _records_and_clock(number, start, end, name):
    """Both events, a wait of stream 7 that a record of stream 13 releases 2 us after it began,
    clock samples, a remainder."""

    def row(kind, lane, what, text, a, b, ref, link, detail):
        return (
            number,
            kind,
            lane,
            what,
            name(text),
            a,
            b,
            "event" if what == "record" else "api",
            ref,
            link,
            detail,
        )

    return [
        row(
            "event",
            "stream 7",
            "record",
            "start",
            start,
            start,
            2 * number,
            -1,
            {"at_most_later_ns": 900},
        ),
        row("event", "stream 7", "record", "end", end, end, 2 * number + 1, -1, {}),
        row("event", "stream 13", "record", "other", start + 5_000, start + 5_000, 7_000, -1, {}),
        row(
            "event",
            "stream 7",
            "wait",
            "waits for record",
            start + 3_000,
            start + 5_000,
            950,
            7_000,
            {},
        ),
        row("clock", "SM", "sample", "", start, start, -1, -1, {"mhz": 1980}),
        row("clock", "SM", "sample", "", end, end, -1, -1, {"mhz": 1755}),
        row(
            "omitted",
            "",
            "",
            "CUDA calls",
            start,
            end,
            -1,
            -1,
            {"count": 12, "ns": 3_000, "longest_ns": 400},
        ),
    ]


def _label(rows):
    elapsed = np.array([r["elapsed_ns"] for r in rows])
    middle = rows[int(np.argsort(elapsed, kind="stable")[(len(rows) - 1) // 2])]
    return {
        "label": middle["label"],
        "kind": middle["kind"],
        "count": len(rows),
        "row": middle["name"],
        "row_interval": middle["interval"],
        "site": middle["site"],
        "median_ns": float(np.median(elapsed)),
        "mean_ns": float(elapsed.mean()),
        "std_ns": float(elapsed.std(ddof=1)) if len(rows) > 1 else float("nan"),
        "min_ns": int(elapsed.min()),
        "max_ns": int(elapsed.max()),
        "p05_ns": float(np.percentile(elapsed, 5)),
        "p95_ns": float(np.percentile(elapsed, 95)),
        "library": middle["library"],
    }


def _frame(rows, spec):
    if not rows:
        return frames.empty(spec)
    return frames.check(
        pd.DataFrame(
            {n: pd.Series([r[n] for r in rows], dtype=_dtype(spec, n)) for n in spec.names}
        ),
        spec,
    )


def _dtype(spec, name):
    return next(c.dtype for c in spec.columns if c.name == name)


def _table(rows, spec):
    return _frame([dict(zip(spec.names, row, strict=True)) for row in rows], spec)


FINDING = {
    "rule": "host-gap",
    "severity": "warning",
    "label": "t1",
    "title": "t1 measures the host, not the kernel: for 174 of 235 us the GPU waited for the launch",
    "evidence": {
        "idle_ns": 174490,
        "kernel_only_ns": 24770,
        "copies_inside": 0,
        "host_share": 0.743,
    },
    "advice": "Let the host run ahead before the start event:   torch.cuda._sleep(2_000_000); start.record()",
    "faster": "Launch less and earlier:   f = torch.compile(f)",
    "site": "puzzle.py:14",
    "loss_ns": 5 * 174490,
    "interval": 0,
}
UNALIGNED = [
    {"name": f"lost#{k}", "label": "lost", "reason": reason, "site": "x.py:1"}
    for k, reason in enumerate(["captured", "captured", "no start record"])
]


def bad(text: str) -> str:
    tags = "<!--<script><a href='javascript:alert(2)'>x</a>${7*7}%{y}@@data@@&lt;"
    return f"{text}{HOSTILE}\x1b[31m\u202e\u2028{tags}"
