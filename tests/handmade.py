"""A small Analysis made by hand, and one as large and as hostile as wanted."""

from __future__ import annotations

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.model import Analysis, TraceInfo
from nsysalign.split.groups import without_trace

HOSTILE = "</script><img src=x onerror=alert(1)>"

# label, kind, site, library, and per run the pieces of its window in order: (cause, ns, what)
#
#   t1:  |event|      host (no call)      |  launch  | kernel |event|
#        0     4000                  178490     206800   231570  234720
HOST, LAUNCH, RECORD = ("host", "python"), ("api_launch", "cudaLaunchKernel"), ("event", "record")
KERNEL = ("kernel", "gemm")


def _run(*pieces):
    """One run: ((cause, what), ns) in their order."""
    return [(cause, ns, what) for (cause, what), ns in pieces]


def _of_t1(host_ns):
    return _run((RECORD, 4000), (HOST, host_ns), (LAUNCH, 28310), (KERNEL, 24770), (RECORD, 3150))


T2 = _run(
    (HOST, 21690), (LAUNCH, 4040), (("launch_latency", "gemm"), 2140), (KERNEL, 24740), (RECORD, 4580)
)  # fmt: skip
REPLAY = _run((("api_launch", "cudaGraphLaunch"), 12000), (("graph", "graph"), 35200), (RECORD, 5000))  # fmt: skip
BENCH = _run((("memset", "memset"), 20000), (("kernel", "add"), 30000), (RECORD, 1300))
LONG_SITE = "a/very/long/path/to/the/file/that/replays_a_graph.py:120"
CASES = [
    ("t1", "event", "puzzle.py:14", False, [_of_t1(ns) for ns in (174490, 184490, 154490)]),
    ("t2", "event", "puzzle.py:17", False, [T2]),
    ("replay", "event", LONG_SITE, False, [REPLAY]),
    ("do_bench", "event", "triton/testing.py:131", True, [BENCH]),
]


def build(cases=CASES, *, findings=(), unaligned=(), name=str, timeline=True) -> Analysis:
    """An Analysis of `cases`: windows follow each other 1 ms apart; `name` wraps every foreign
    name."""
    intervals, parts, segments, labels, drawn, details = [], [], [], [], [], []
    clock, number = 10_000_000, 0
    for label, kind, site, library, runs in cases:
        rows = []
        for repetition, pieces in enumerate(runs):
            rows.append(
                _interval(
                    number, clock, pieces, name=f"{name(label)}#{repetition}", label=name(label),
                    kind=kind, site=name(site), end_site=name(site), library=library,
                    callers=(name("train.py:88"),) if number == 0 else (),
                    findings=tuple(f["rule"] for f in findings if f["label"] == name(label)),
                )
            )  # fmt: skip
            sums: dict[str, int] = {}
            at = clock
            for cause, ns, what in pieces:
                sums[cause] = sums.get(cause, 0) + ns
                ref = {"kernel": "kernel", "host": "", "event": "event"}.get(cause, "api")
                ref_id = 100 * number + len(segments) % 100
                segments.append((number, at, at + ns, cause, ref, ref_id, name(what)))
                if timeline and cause in ("api_launch", "kernel", "graph", "memset"):
                    drawn.append(_item(number, cause, at, ns, name(what)))
                at += ns
            if timeline:
                drawn += _records(number, clock, at, name)
            parts += [(number, c, ns, max(0, ns - 10), ns + 10) for c, ns in sums.items()]
            copied = (name("python"), 5, "H2D", "pageable", 4096, -1, "", float("nan"))
            if "host" in sums:
                details.append((number, "host", *copied))
            clock, number = at + 1_000_000, number + 1
        intervals += rows
        labels.append(_label(rows))
    intervals = _frame(intervals, frames.INTERVALS)
    parts, details = _table(parts, frames.PARTS), _table(details, frames.DETAILS)
    groups = without_trace(intervals, parts, details)
    return Analysis(
        trace=TraceInfo(
            "runs/puzzle-003/trace.sqlite", "2024.2.3", "3.11.1", (name("NVIDIA H200"),), "580.1",
            None, ("CUDA_EVENT",), (name("NVTX was lost"),),
        ),
        intervals=intervals.assign(group=groups.of_interval),
        parts=parts,
        segments=_table(segments, frames.SEGMENTS),
        details=details,
        **groups.tables,
        other_streams=_table([(0, 13, 500, False)] if cases else [], frames.OTHER_STREAMS),
        labels=_frame(labels, frames.LABELS),
        unaligned=_frame(list(unaligned), frames.UNALIGNED),
        findings=_findings(findings, intervals.assign(group=groups.of_interval)),
        timeline=_table(drawn, frames.TIMELINE),
        notes=(name("a note"),),
    )  # fmt: skip


#: The verdict of a label with a finding of this severity, and of one without a finding.
_VERDICTS = {"error": "wrong", "warning": "cpu_bound", "info": "gpu_bound"}


def _findings(given, intervals):
    """The findings, and one for each label that has none: its own, which says what it reads."""
    rows = []
    told = {finding["label"] for finding in given}
    of_labels = intervals.drop_duplicates("label").set_index("label")
    for finding in given:
        verdict = {"verdict": _VERDICTS[finding["severity"]], "words": "as found"}
        at = {}
        if finding["label"] in of_labels.index:
            row = of_labels.loc[finding["label"]]
            at = {"group": int(row["group"])}
            at |= {"interval": int(row["interval"])} if finding.get("interval", -1) < 0 else {}
        rows.append({**verdict, **finding, **at})
    for label, row in of_labels.iterrows():
        if label not in told:
            rows.append(
                {
                    "rule": "gpu-bound", "severity": "info", "label": label, "title": f"{label} reads.",
                    "evidence": {}, "site": row["site"], "interval": int(row["interval"]),
                    "verdict": "gpu_bound", "words": "90 % kernels", "group": int(row["group"]),
                }
            )  # fmt: skip
    return _frame(rows, frames.FINDINGS)


def _interval(number, start_ns, pieces, **more):
    def sum_of(*causes):
        return sum(ns for cause, ns, _ in pieces if not causes or cause in causes)

    return more | {
        "interval": number, "pid": 484, "tid": 484, "start_record": 2 * number, "device": 0,
        "end_record": 2 * number + 1, "start_stream": 7, "end_stream": 7, "elapsed_ns": sum_of(),
        "start_ns": start_ns, "end_ns": start_ns + sum_of(), "start_lower_ns": start_ns - 1500,
        "start_upper_ns": start_ns + 900, "error_ns": 800, "method": "bounds",
        "clock_residual_ns": 40 if number == 0 else None, "kernel_only_ns": sum_of("kernel"),
        "kernel_only_upper_ns": sum_of("kernel", "graph"), "operations": 1,
        "flags": ("profiler-disturbed",) if number == 1 else (),
    }  # fmt: skip


def _item(number, cause, start_ns, ns, what):
    """A launch call on its thread, or what it issued on its stream."""
    end_ns = start_ns + ns
    if cause == "api_launch":
        place, refs = ("host", "thread 484", "launch"), ("api", 900 + number, -1, {})
    else:
        detail = {"grid": (64, 1, 1), "block": (256, 1, 1), "bytes": 84_000_000}
        place, refs = ("stream", "stream 7", cause), (cause, number, 900 + number, detail)
    return (number, *place, what, start_ns, end_ns, *refs)


def _records(number, start, end, name):
    """Both events, a wait of stream 7 that a record of stream 13 releases 2 us after it began,
    a remainder, a range around it all."""
    rest = {"count": 12, "ns": 3_000, "longest_ns": 400}
    waited, waits = start + 5_000, name("waits for record")
    return [
        (number, *row)
        for row in (
            ("event", "stream 7", "record", name("start"), start, start, "event", 2 * number, -1, {"at_most_later_ns": 900}),
            ("event", "stream 7", "record", name("end"), end, end, "event", 2 * number + 1, -1, {}),
            ("event", "stream 13", "record", name("other"), waited, waited, "event", 7_000, -1, {}),
            ("event", "stream 7", "wait", waits, start + 3_000, waited, "api", 950, 7_000, {}),
            ("omitted", "", "", name("CUDA calls"), start, end, "api", -1, -1, rest),
            ("nvtx", "thread 484", "range", name("range"), start - 500, end + 500, "nvtx", 1, -1, {}),
        )
    ]  # fmt: skip


def _label(rows):
    elapsed = np.array([r["elapsed_ns"] for r in rows])
    middle = rows[int(np.argsort(elapsed, kind="stable")[(len(rows) - 1) // 2])]
    return {name: middle[name] for name in ("label", "kind", "site", "library")} | {
        "count": len(rows), "row": middle["name"], "row_interval": middle["interval"],
        "median_ns": float(np.median(elapsed)), "mean_ns": float(elapsed.mean()),
        "std_ns": float(elapsed.std(ddof=1)) if len(rows) > 1 else float("nan"),
        "min_ns": int(elapsed.min()), "max_ns": int(elapsed.max()),
        "p05_ns": float(np.percentile(elapsed, 5)), "p95_ns": float(np.percentile(elapsed, 95)),
    }  # fmt: skip


#: What a column holds that rows do not name: a new column needs no change here.
_ABSENT = {"int64": 0, "Int64": pd.NA, "float64": float("nan"), "str": "", "bool": False}


def _frame(rows, spec):
    if not rows:
        return frames.empty(spec)
    columns = {
        c.name: pd.Series([r.get(c.name, _ABSENT.get(c.dtype, ())) for r in rows], dtype=c.dtype)
        for c in spec.columns
    }
    return frames.check(pd.DataFrame(columns), spec)


def _table(rows, spec):
    return _frame([dict(zip(spec.names, row, strict=True)) for row in rows], spec)


FINDING = {
    "rule": "host-gap",
    "severity": "warning",
    "label": "t1",
    "title": "t1 measures the CPU, not the kernel: for 174 of 235 us the GPU waited for the launch",
    "evidence": {
        "idle_ns": 174490,
        "kernel_only_ns": 24770,
        "copies_inside": 0,
        "host_share": 0.743,
    },
    "advice": "Let the CPU run ahead before the start event:   torch.cuda._sleep(2_000_000); start.record()",
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
