"""What is inside besides kernels?  Copies, memsets, synchronisations, waits behind other work,
graphs that are one row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import (
    ITEM_BYTES,
    SAY_SHARE,
    WARN_SHARE,
    Case,
    Facts,
    Interval,
    Label,
    each_label,
)
from nsysalign.explain.finding import Advice, Finding, Words
from nsysalign.explain.rules.launching import MANY_OPERATIONS
from nsysalign.model import CAUSES, LAUNCH_QUEUE

#: A copy next to kernels is reported from this share on: "does it contain the copy?" is what people
#: ask.
COPY_SAY_SHARE = 0.01
#: Copies that are slower than this are many small ones: pinned memory does not help them, and a
#: rate says nothing.
IN_PIECES_BYTES_PER_NS = 0.01
#: Pinned copies of at least this size show what the bus can do; PCIe 5 with 16 lanes.
BANDWIDTH_BYTES, BUS_BYTES_PER_NS = 1 << 20, 64.0
#: A synchronisation is mentioned from this share on, in what the program timed.
SYNC_SAY_SHARE = 0.002

_DIRECTION = {
    "H2D": "to the device",
    "D2H": "to the host",
    "D2D": "on the device",
    "P2P": "between devices",
}
#: How to measure the kernels without a copy, and what makes it faster.
_MEASURED = {
    "H2D": "Copy before the start event:   x = x.cuda(); torch.cuda.synchronize(); start.record()",
    "D2H": "Copy after the end event:   end.record(); y = y.cpu()",
}
_PINNED = {
    "H2D": "x = x.pin_memory().cuda(non_blocking=True)   loader = DataLoader(data, pin_memory=True)",
    "D2H": "out = torch.empty_like(x, device='cpu', pin_memory=True); out.copy_(x, non_blocking=True)",
}
_CLEAR = Advice(
    "Flush or clear before the start event:   flush.zero_(); start.record()",
    "Clear the memory before the start event.",
    of_ranges=False,
    faster=Words(
        "Skip the clearing where everything is overwritten anyway",
        "out = torch.empty_like(x)  # instead of torch.zeros_like(x)",
    ),
)
_CLEARS = "(zeroing, or an L2 flush that belongs before the start event)"
_ITEM = Advice(
    "Keep the result on the GPU until the end event:   end.record(); value = result.item()",
    "Synchronise after the end event only.",
    of_ranges=False,
    faster=Words(
        "Read results back once, not in every step",
        "total += loss.detach()  # in the loop;   total.item()  # once, after it",
    ),
)
_SYNC = Advice(
    "Synchronise after the end event only:   end.record(); torch.cuda.synchronize()",
    "Synchronise after the end event only.",
    of_ranges=False,
    faster=Words(
        "Wait only where something depends on it, and on the GPU rather than on the host",
        "stream.wait_event(event)  # instead of torch.cuda.synchronize()",
    ),
)
_FOLLOW = "Record both events on the stream of the work, and synchronise after the end event only."
_NODES = Advice(
    "Trace every node of the graph (slower):   nsysalign run --graph-trace node SCRIPT.py"
)


def copy(facts: Facts) -> Iterator[Finding]:
    """Copies inside the interval: their share, pageable or pinned, and their bandwidth; memsets,
    and fills as large as an L2 flush."""
    rows = facts.detail_rows("memcpy")
    best = _pinned_rates(rows)
    saved = _saved(facts, rows, best)
    copied, on_device = rows[rows["detail"] == "copy"], rows[rows["direction"] == "D2D"]
    size = facts.per_interval(copied, copied["bytes"].to_numpy())
    device_ns = facts.per_interval(on_device, on_device["ns"].to_numpy())
    for label in facts.labels:
        # the result of an .item() belongs to the synchronisation rule
        ns = np.where(size[label.numbers] > ITEM_BYTES, label.ns("memcpy"), 0)
        share = label.share(ns)
        said = np.where(device_ns[label.numbers] >= 0.5 * ns, SAY_SHARE, COPY_SAY_SHARE)
        much = np.where(label.kernel > 0, share >= said, share > WARN_SHARE)
        if case := label.case(much & (ns > 0)):
            warn = case.row.kernel and case.value(ns) > WARN_SHARE * case.row.elapsed
            yield _copy(case, "warning" if warn else "info", best, saved[label.numbers])
        yield from _clearing(label)


def _copy(case: Case, severity: str, best: Mapping[str, float], saved: np.ndarray) -> Finding:
    label, row = case.label, case.row
    kinds: dict[tuple[str, str], list] = {}
    for detail in row.details("memcpy"):
        kinds.setdefault((detail.direction, detail.memory), []).append(detail)
    (direction, memory), most = max(kinds.items(), key=lambda kind: sum(d.ns for d in kind[1]))
    ns = sum(detail.ns for detail in most)
    moved = sum(detail.bytes for detail in most if detail.detail == "copy")
    pieces = moved < IN_PIECES_BYTES_PER_NS * ns
    # a host timer sees only the part of a copy for which the host waited; staging is no transfer
    copied_ns = sum(detail.ns for detail in most if detail.detail == "copy")
    rate = None if row.kind == "host" or pieces else moved / max(copied_ns, 1)
    could = best.get(direction, 0.0) if memory == "pageable" else 0.0
    where = _DIRECTION.get(direction, direction)
    title = f"{label.who} is a copy {where}: {row.of(ns)}"
    if row.kernel:
        title = f"{label.who} contains the copy: {row.of(ns)} go into copying {where}"
    if rate is not None:
        title += f", {rate:,.0f} GB/s" if rate >= 100 else f", {rate:.3g} GB/s"
    title += f" with {memory} host memory." if memory in ("pageable", "pinned") else "."
    if pieces:
        faster = Words("Put what is copied in many small pieces together, and copy it once")
    elif direction not in _MEASURED:
        faster = Words("Write the result where it is needed", "torch.mm(a, b, out=out)")
    elif memory == "pageable":
        text = "Pinned memory copies faster and does not block the host"
        faster = Words(text, _PINNED[direction])
    else:
        code = "with torch.cuda.stream(copies): y = x.cuda(non_blocking=True)"
        faster = Words("Copy on a separate stream, while kernels run", code)
    return case.finding(
        severity,
        title,
        Advice(
            _MEASURED.get(direction, "") if row.kernel else "",
            "Copy before the start event or after the end event.",
            of_ranges=False,
            faster=faster,
        ),
        saved,
        copy_ns=ns,
        elapsed_ns=row.elapsed,
        copied_bytes=moved,
        achieved_GB_per_s=rate,
        pinned_in_this_trace_GB_per_s=could if rate is not None and could > rate else None,
        direction=direction,
        memory=memory,
        kernel_ns=row.kernel or None,
    )


def _saved(facts: Facts, rows: pd.DataFrame, best: Mapping[str, float]) -> np.ndarray:
    """What the advice would save, at most, per interval: of pageable copies what is longer than from
    pinned memory; of the rest, which pinned memory could do meanwhile, what kernels could hide, and
    for pageable copies, for which the host waits, the host's own time; all copies on the device."""
    ns, fast = rows["ns"].to_numpy(), from_pinned_ns(rows, best)
    pageable = (rows["memory"] == "pageable").to_numpy()
    host = rows["direction"].isin(["H2D", "D2H"]).to_numpy()
    slower, once_pinned, pinned, device = (
        facts.per_interval(rows, np.where(mask, value, 0.0))
        for mask, value in (
            (pageable, ns - fast),
            (pageable, fast),
            (~pageable & host, ns),
            (~host, ns),
        )
    )
    kernel = facts.column("kernel_only_upper_ns")
    own = facts.parts[:, CAUSES.index("host")]
    beside = kernel + np.where((once_pinned > 0) & (kernel > 0), own, 0)
    hidden = np.minimum(pinned + once_pinned, beside)
    device = np.where(kernel > 0, device, 0)  # else a copy is what it times
    return (slower + hidden + device).astype(np.int64)


def from_pinned_ns(rows: pd.DataFrame, best: Mapping[str, float] | None = None) -> np.ndarray:
    """How long each copy takes from pinned memory, at least: at this trace's best rate of its
    direction, else at the fastest that a bus does.  Staging is gone."""
    best = _pinned_rates(rows) if best is None else best
    rate = np.array([best.get(d, BUS_BYTES_PER_NS) for d in rows["direction"].tolist()])
    ns, copied = rows["ns"].to_numpy(), rows["detail"].to_numpy() != "staging"
    return np.minimum(ns, np.where(copied, rows["bytes"].to_numpy() / rate, 0))


def _pinned_rates(rows: pd.DataFrame) -> dict[str, float]:
    """Best bytes per nanosecond of pinned copies in this trace, per direction."""
    large = (rows["detail"] == "copy") & (rows["bytes"] >= BANDWIDTH_BYTES)
    pinned = rows[(rows["memory"] == "pinned") & large]
    rate = pinned["bytes"] / pinned["ns"].clip(lower=1)
    return {str(d): float(r) for d, r in rate.groupby(pinned["direction"]).max().items()}


def _clearing(label: Label) -> Iterator[Finding]:
    """A memset; `tensor.zero_()` is a kernel, looked for in rows with several operations."""
    spent = label.ns("memset")
    much = label.share(spent) >= SAY_SHARE
    if case := label.case(label.on_stream & (label.kernel > 0) & much):
        row, ns = case.row, case.value(spent)
        yield case.finding(
            "warning" if ns > WARN_SHARE * row.elapsed else "info",
            f"{label.who} contains a memset: {row.of(ns)} are spent clearing memory {_CLEARS}.",
            _CLEAR,
            spent,
            memset_ns=ns,
            elapsed_ns=row.elapsed,
            set_bytes=sum(detail.bytes for detail in row.details("memset")) or None,
            kernel_ns=row.kernel,
        )
    row = label.row
    several = 2 <= row.operations < MANY_OPERATIONS and row.kind != "host"
    if not several or row.ns("memset") >= SAY_SHARE * row.elapsed:
        return
    kernels = [segment for segment in row.segments if segment.cause == "kernel"]
    named = zip(kernels, row.words(kernels), strict=True)
    ns = sum(segment.ns for segment, name in named if "FillFunctor" in name)
    other = row.column("kernel_only_ns") - ns
    if WARN_SHARE * row.elapsed < ns < 0.98 * (ns + other):
        yield label.finding(
            "warning",
            f"{label.who} contains a fill: {row.of(ns)} are spent writing a constant {_CLEARS}.",
            _CLEAR,
            np.full(label.count, ns),
            row=row,
            fill_ns=ns,
            elapsed_ns=row.elapsed,
            other_kernels_ns=other,
        )


def sync(facts: Facts) -> Iterator[Finding]:
    """A synchronisation inside the interval: the queue runs empty, and the GPU idles until the host
    has caught up."""
    rows = facts.detail_rows("memcpy")
    small = (rows["direction"] == "D2H") & (rows["bytes"] > 0) & (rows["bytes"] <= ITEM_BYTES)
    small = rows[small]
    item = facts.per_interval(small, small["ns"].to_numpy()) > 0
    how = " (.item(), .cpu(), nonzero, an if on a tensor)" if facts.torch else ""
    for label in facts.labels:
        idle, copies = facts.synchronised[0][label.numbers], facts.pageable[label.numbers]
        say = np.where(label.kind == "nvtx", SAY_SHARE, SYNC_SAY_SHARE)
        waits = (idle > 0) & (label.share(idle) >= say)
        case = label.case(waits & ~(copies & ~item[label.numbers]))
        if case is None:
            continue
        row, lost = case.row, case.value(idle)
        calls = row.details("sync")
        name = str(calls[0].detail) if calls else "a synchronisation"
        what = f"a result is read back{how}" if item[row.number] else f"{name} waits"
        warn = not row.others_worked and lost > WARN_SHARE * row.elapsed
        yield case.finding(
            "warning" if warn else "info",
            f"{label.who} synchronises inside: {what}, and for {row.of(lost)} {row.idled} in that call "
            "and until the host had caught up.",
            _sync_advice(row, bool(item[row.number])),
            idle,
            idle_because_of_it_ns=lost,
            elapsed_ns=row.elapsed,
            inside_the_call_ns=row.ns("sync"),
            call=name,
            kernel_ns=row.kernel,
        )


def _sync_advice(row: Interval, item: bool) -> Advice:
    """An end event on another stream than the work would not wait for it without the
    synchronisation: the timer would read too little."""
    if row.kind == "event" and row.other_streams():
        return replace(_SYNC, measuring=_FOLLOW, anywhere=_FOLLOW)
    return _ITEM if item else _SYNC


@each_label
def graph_opaque(label: Label) -> Finding | None:
    """A CUDA graph traced as one row: what happens inside is not in the trace."""
    case = label.case(label.share(label.ns("graph")) > WARN_SHARE)
    if case is None:
        return None
    row = case.row
    return case.finding(
        "info",
        f"{label.who} runs a CUDA graph that is traced as one row: {row.of(row.ns('graph'))}, in which gaps and "
        "copies cannot be told from kernels.",
        _NODES,
        graph_ns=row.ns("graph"),
        elapsed_ns=row.elapsed,
        kernel_at_least_ns=row.column("kernel_only_ns"),
        kernel_at_most_ns=row.kernel,
    )


class _Wait(NamedTuple):
    """A reason for which issued work does not start, as `details` names it."""

    names: tuple[str, ...]
    text: str
    advice: Advice


_WAITS = (
    _Wait(
        ("dependency", "dependency-inferred", "default-stream-order", "host-function"),
        "waits for another stream: for {time} its work was issued but ordered behind {streams}",
        Advice(
            "Wait before the start event instead of after it:   torch.cuda.current_stream().wait_stream(other); start.record()",
            "Wait before the start event.",
            of_ranges=False,
            faster=Words("Issue what it waits for earlier, or give it other work meanwhile"),
        ),
    ),
    _Wait(
        ("contention",),
        "shares the GPU: for {time} its work was issued but could not start while {streams} kept the device busy",
        Advice(
            "Let the other streams finish first:   torch.cuda.synchronize(); start.record()",
            "Let the other streams finish first.",
            faster=Words(
                "Give one stream the GPU to itself while its work is urgent",
                "urgent = torch.cuda.Stream(priority=-1)",
            ),
        ),
    ),
    _Wait(
        ("full-queue",),
        "fills the launch queue: for {time} the host was blocked in a launch until the queue had room",
        Advice(
            "Time fewer launches at once, or capture them:   start.record(); graph.replay(); end.record()",
            "Measure fewer launches at once, or a CUDA graph.",
            of_ranges=False,
            faster=Words("The host is ahead and the GPU is the limit: only faster kernels help"),
        ),
    ),
    _Wait(
        ("earlier-work",),
        "waits for earlier work: for {time} it waited for what had been launched before the first reading",
        Advice(
            "Synchronise before the first reading as well:   torch.cuda.synchronize(); t0 = time.perf_counter()"
        ),
    ),
)


def queued(facts: Facts) -> Iterator[Finding]:
    """The interval's work is issued, but waits: behind work of another stream, for the device, for
    room in the launch queue, or (host timers) for what was launched before."""
    for wait in _WAITS:
        for label in facts.labels:
            ns = label.detail_ns("queued", wait.names)
            case = label.case(label.share(ns) >= SAY_SHARE)
            if case is None:
                continue
            row = case.row
            rows = row.details("queued", wait.names)
            waited, streams = sum(d.ns for d in rows), {d.stream for d in rows}
            one = rows[0].stream if len(streams) == 1 and rows[0].stream >= 0 else None
            behind = "other streams" if len(streams) > 1 else "other work" if one is None else f"stream {one}"  # fmt: skip
            full, earlier = wait.names == ("full-queue",), wait.names == ("earlier-work",)
            evidence = {
                "blocked_ns" if full else "waiting_ns": waited,
                "elapsed_ns": row.elapsed,
                "queue_holds_about": LAUNCH_QUEUE if full else None,
                "rival_stream" if wait.names == ("contention",) else "stream_waited_for": None if full or earlier else one,
                "kernel_ns": None if full else row.column("kernel_only_ns") if earlier else row.kernel,
                "the_wait": "inferred from the order of calls" if any(d.detail == "dependency-inferred" for d in rows) else None,
            }  # fmt: skip
            yield case.finding(
                "warning" if waited > WARN_SHARE * row.elapsed else "info",
                f"{label.who} {wait.text.format(time=row.of(waited), streams=behind)}.",
                wait.advice,
                None if full or earlier else ns,  # the GPU is busy meanwhile: nothing is lost
                **evidence,
            )
