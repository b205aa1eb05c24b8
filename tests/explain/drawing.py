"""Analyses drawn by hand: an interval is a list of pieces in microseconds, and everything else
follows from them.

interval("t1", ("host", 160), ("api_launch", 30), ("kernel", 25), ("event", 5))
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from nsysalign import frames
from nsysalign.causes import CAUSES
from nsysalign.explain import findings
from nsysalign.explain.facts import Facts
from nsysalign.model import Analysis, TraceInfo
from nsysalign.split.groups import without_trace
from nsysalign.split.labels import label_table
from nsysalign.split.pieces import REF, Segments

WORK = ("kernel", "graph", "memcpy", "memset")
_NUMBER = re.compile(r"\d[\d.,]*\d|\d")
#: Causes whose pieces become rows of `details`, and what they are called when the drawing does not
#: say.
NAMES = {
    "host": "", "api": "cudaGetDevice", "api_launch": "cudaLaunchKernel", "sync": "cudaDeviceSynchronize", "memcpy": "copy",
    "memset": "", "queued": "contention",
}  # fmt: skip


def piece(cause: str, us: float, what: str | None = None, **more: Any) -> dict[str, Any]:
    """One stretch.  more: stream, direction, memory, bytes, ref."""
    return {
        "cause": cause,
        "ns": round(us * 1000),
        "what": NAMES.get(cause, cause) if what is None else what,
        **more,
    }


def interval(label: str, *pieces: Any, **more: Any) -> dict[str, Any]:
    """One interval.  more: kind, start (us), stream, start_stream, pid, other {stream: us}, elsewhere (us),
    outside (us), issued (us), earlier (us), operations, flags, error (us)."""
    return {
        "label": label,
        "pieces": [p if isinstance(p, dict) else piece(*p) for p in pieces],
        **more,
    }


def repeat(count: int, *args: Any, **more: Any) -> list[dict[str, Any]]:
    """The same interval so many times."""
    return [interval(*args, **more) for _ in range(count)]


def analysis(
    *drawn: Any, unaligned: list[tuple[str, str]] | None = None, missing: tuple[str, ...] = ()
) -> Analysis:
    """Intervals (or lists of them), one after the other, 1 ms apart unless they say where they
    start."""
    flat = [i for d in drawn for i in (d if isinstance(d, list) else [d])]
    rows, parts, segments, details, others = [], [], [], [], []
    clock, counts, ref = 0, {}, 0
    for number, i in enumerate(flat):
        elapsed = sum(p["ns"] for p in i["pieces"])
        start = round(i["start"] * 1000) if "start" in i else clock
        clock = max(clock, start + elapsed) + 1_000_000
        label, kind = i["label"], i.get("kind", "event")
        k = counts[label] = counts.get(label, -1) + 1
        at = start
        for p in i["pieces"]:
            ref += 1
            p = {"ref": ref, **p}
            kind_of_ref = p["cause"] if p["cause"] in WORK else "api"
            text = p["what"] or p["cause"]
            segments.append((number, at, at + p["ns"], p["cause"], kind_of_ref, p["ref"], text))
            at += p["ns"]
            if p["cause"] in NAMES or p["cause"] == "profiler":
                details.append(
                    (number, p["cause"], p["what"], p["ns"], p.get("direction", ""), p.get("memory", ""), p.get("bytes", 0), p.get("stream", -1), p.get("operation", ""), float("nan"))
                )  # fmt: skip
        total = {c: sum(p["ns"] for p in i["pieces"] if p["cause"] == c) for c in CAUSES}
        parts += [(number, c, ns, ns, ns) for c, ns in total.items()]
        others += [
            (number, s, round(us * 1000), i.get("ordered", False))
            for s, us in i.get("other", {}).items()
        ]
        stream = -1 if kind == "host" else i.get("stream", 7)
        kernel = round(i["issued"] * 1000) if "issued" in i else total["kernel"]
        rows.append({
            "interval": number, "name": f"{label}#{k}", "label": label, "kind": kind, "pid": i.get("pid", 1), "tid": i.get("tid", 1),
            "start_record": 2 * number, "end_record": 2 * number + 1, "device": 0, "start_stream": i.get("start_stream", stream),
            "end_stream": stream, "elapsed_ns": elapsed, "start_ns": start, "end_ns": start + elapsed, "start_lower_ns": start,
            "start_upper_ns": start, "error_ns": round(i.get("error", 0) * 1000), "method": i.get("method", "bounds"), "clock_residual_ns": pd.NA,
            "kernel_only_ns": kernel, "kernel_only_upper_ns": kernel + total["graph"],
            "kernel_outside_ns": round(i.get("outside", 0) * 1000),
            "gpu_busy_ns": _busy(i, total, kernel), "gpu_earlier_ns": round(i.get("earlier", 0) * 1000),
            "idle_at_most_ns": pd.NA,
            "operations": i.get("operations", sum(p["cause"] in WORK for p in i["pieces"])), "site": "bench.py:7",
            "end_site": "bench.py:9", "callers": (), "library": False, "flags": i.get("flags", ()), "findings": (), "group": -1,
        })  # fmt: skip
    lost = [(f"{label}#0", label, reason, "bench.py:9") for label, reason in unaligned or []]
    intervals = _table(rows, frames.INTERVALS)
    parts, details = _table(parts, frames.PARTS), _table(details, frames.DETAILS)
    # whole copies lie in what is drawn
    details = details.assign(bandwidth_gb_s=details["bytes"] / details["ns"].clip(lower=1))
    groups = without_trace(intervals, parts, details)
    beside = [round(1_000 * flat[n].get("elsewhere", 0)) for n in groups.groups["typical"]]
    groups = groups._replace(groups=groups.groups.assign(elsewhere_ns=np.array(beside, np.int64)))
    intervals = intervals.assign(group=groups.of_interval)
    return Analysis(
        trace=TraceInfo(
            "t.sqlite", "2024.2", "3.11", ("NVIDIA H200",), None, None, missing=missing
        ),
        intervals=intervals,
        parts=parts,
        segments=_table(segments, frames.SEGMENTS),
        details=details,
        **groups.tables,
        other_streams=_table(others, frames.OTHER_STREAMS),
        labels=label_table(intervals[intervals["kind"] != "run"]),
        unaligned=_table(lost, frames.UNALIGNED),
        findings=frames.empty(frames.FINDINGS),
        timeline=frames.empty(frames.TIMELINE),
    )


def _busy(i: dict[str, Any], total: dict[str, int], kernel: int) -> int:
    """How long anything ran in an interval: of a host timer also what it did not wait for, and earlier work."""
    parts = sum(total[cause] for cause in WORK)
    if i.get("kind") != "host":
        return parts
    ran = kernel - round(i.get("outside", 0) * 1000) + parts - total["kernel"]
    earlier = round(i.get("earlier", 0) * 1000) or total["queued"]
    return min(max(ran, parts) + earlier, sum(total.values()))


def _table(rows: list[Any], spec: frames.Spec) -> pd.DataFrame:
    if not rows:
        return frames.empty(spec)
    return frames.check(pd.DataFrame(rows, columns=spec.names), spec)


def issued_table(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    """`frames.ISSUED` of (group, kind, name, count, bytes, blocks) and, where it matters, how long these ran (ns)."""
    return _table([(*row, 0)[:7] for row in rows], frames.ISSUED)


def segments_of(drawn: Analysis, numbers: np.ndarray) -> Segments:
    """The drawn segments of some intervals."""
    rows = drawn.segments[drawn.segments["interval"].isin(numbers)]
    texts = rows["detail"].to_numpy(dtype=object)
    return Segments(
        interval=rows["interval"].to_numpy(),
        start=rows["start_ns"].to_numpy(),
        ns=(rows["end_ns"] - rows["start_ns"]).to_numpy(),
        cause=np.array([CAUSES.index(c) for c in rows["cause"]], np.int8),
        ref_kind=np.array([REF[kind] for kind in rows["ref_kind"]], np.int8),
        ref_id=rows["ref_id"].to_numpy(),
        words=lambda at: texts[at],
    )


def facts(drawn: Analysis) -> Facts:
    return Facts(drawn, partial(segments_of, drawn))


def diagnose(drawn: Analysis) -> Analysis:
    said = findings.diagnose(drawn, partial(segments_of, drawn))
    intervals = drawn.intervals.assign(findings=said.of_intervals)
    notes = tuple(dict.fromkeys([*drawn.notes, *said.notes]))
    for finding in said.findings.itertuples(index=False):
        _is_ever_shorter(finding)
    return replace(drawn, findings=said.findings, intervals=intervals, notes=notes)


def _is_ever_shorter(finding: Any) -> None:
    """What is left of a sentence where a screen has little room is no longer, and says no number that it does not say in
    full."""
    assert not finding.shorter or finding.shorter[0] == finding.title
    for texts in (finding.shorter, finding.behind):
        sizes = [len(text) for text in texts]
        # the call that sets up is back where the cause behind it has no room
        assert sizes[:-1] == sorted(sizes[:-1], reverse=True), texts
        for text in texts:
            assert {*_NUMBER.findall(text)} <= {*_NUMBER.findall(finding.title)}, text
            assert not text.endswith(("….", "..", "; .")), text


def found(*drawn: Any, **more: Any) -> dict[tuple[str, str], Any]:
    """(label, rule) -> finding, of a drawn analysis."""
    result = diagnose(analysis(*drawn, **more))
    return {(f.label, f.rule): f for f in result.findings.itertuples(index=False)}


def severities(*drawn: Any, **more: Any) -> dict[str, str]:
    """rule -> severity, of a drawing with one label."""
    return {rule: f.severity for (_, rule), f in found(*drawn, **more).items()}
