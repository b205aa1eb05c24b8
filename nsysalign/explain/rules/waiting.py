"""What does the stream wait for or do, besides kernels?  The CPU that launches, launch calls,
copies, memsets, synchronisations, work of other streams, graphs that are one row."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.facts import (
    ALLOCATION_CALLS,
    ITEM_BYTES,
    LOADING_CALLS,
    SAY_SHARE,
    WARN_SHARE,
    Facts,
    Interval,
    Label,
    Stretch,
)
from nsysalign.explain.finding import WITH_GRAPHS, Advice, Finding, Findings, Remark
from nsysalign.model import CAUSES, HIDDEN_BY_DELAY, LAUNCH_QUEUE, OPERATION_KINDS
from nsysalign.text import kernel_name, of, span

#: If the wait for the CPU is at least this share of the interval, the interval measures the CPU.
MOSTLY_SHARE = 0.5
#: One stretch with this much of the wait is "the" gap; one of at least this length is host work of
#: its own, not the cost of launching, and sampled stacks can show it.
ONE_GAP_SHARE, LONG_GAP_NS = 0.6, 1_000_000
#: At least this many operations in one interval are "many": launching them one by one has a cost.
MANY_OPERATIONS = 10
#: Operations that run for longer than this are not small.
SMALL_NS = 20_000
#: A delay kernel must outlast the CPU's enqueueing by this factor, at about this many cycles per
#: microsecond; these many are long enough for ordinary intervals (about 1 ms; measured).
DELAY_MARGIN, DELAY_CYCLES_PER_US, DELAY_CYCLES = 3, 1_800, 2_000_000
#: PCIe 5 with 16 lanes.
BUS_BYTES_PER_NS = 64.0

#: The CPU's calls that launch nothing, but have rules of their own.
_CALLS_APART = f"{LOADING_CALLS}|{ALLOCATION_CALLS}"
_COMPILE = 'f = torch.compile(f, mode="reduce-overhead")'


class _Way(NamedTuple):
    """A direction of copies: in words, how to measure kernels without one, and the code that copies
    from pinned memory."""

    words: str
    measured: str = ""
    pinned: str = ""


_WAYS = {
    "H2D": _Way(
        "to the device",
        "Copy before the start event:   x = x.cuda(); torch.cuda.synchronize(); start.record()",
        "x = x.pin_memory().cuda(non_blocking=True)   loader = DataLoader(data, pin_memory=True)",
    ),
    "D2H": _Way(
        "to the host",
        "Copy after the end event:   end.record(); y = y.cpu()",
        "out = torch.empty_like(x, device='cpu', pin_memory=True); out.copy_(x, non_blocking=True)",
    ),
    "D2D": _Way("on the device"),
    "P2P": _Way("between devices"),
}
_CLEAR = Advice(
    "Flush or clear before the start event:   flush.zero_(); start.record()",
    "Skip the clearing where everything is overwritten anyway",
    "out = torch.empty_like(x)  # instead of torch.zeros_like(x)",
)
_CLEARS = "(zeroing, or an L2 flush that belongs before the start event)"
_SYNC = Advice(
    "Synchronise after the end event only:   end.record(); torch.cuda.synchronize()",
    "Wait only where something depends on it, and on the GPU rather than on the CPU",
    "stream.wait_event(event)  # instead of torch.cuda.synchronize()",
)


class Part(NamedTuple):
    """A part of an interval that is said by itself."""

    causes: tuple[str, ...]
    text: str
    advice: Advice
    names: str = ""  # what rows of `details` of the one cause say (a regular expression)
    evidence: str = ""  # what its time is called, if not by its cause
    say: float = SAY_SHARE  # from this share on
    warn: float = WARN_SHARE
    lost: bool = False  # it would go away
    among: Callable[[Label], np.ndarray | bool] = lambda label: True  # intervals

    def find(self, label: Label) -> Findings:
        ns = label.ns(*self.causes, named=self.names)
        row = label.case((ns >= self.say * label.whole) & self.among(label))
        if row is None:
            return
        part, rows, advice = ns[row.at], row.details(self.causes[0], self.names), self.advice
        streams, calls = {d.stream for d in rows}, list(dict.fromkeys(d.detail for d in rows))
        one = rows[0].stream if len(streams) == 1 and rows[0].stream >= 0 else None
        others = "other streams" if len(streams) > 1 else "other work" if one is None else f"stream {one}"  # fmt: skip
        if self.names == _ORDERED and 2 * row.facts.other_ns[row.number] >= part:
            others += " (work that was launched in the interval itself)"
            advice = Advice()
        text = self.text.format(
            time=of(part, row.elapsed),
            streams=others,
            calls=" and ".join(calls[:2]) + (" and other such calls" if calls[2:] else ""),
            idle="" if row.kind == "host" else f", and {row.idled.rstrip(',')}",
        )
        yield row.finding(
            "warning" if part > self.warn * row.elapsed else "info",
            f"{label.who}{text}.",
            *advice,
            loss=ns if self.lost and advice is self.advice else None,
            **{self.evidence or f"{self.causes[0]}_ns": part},
            stream_waited_for=one if "{streams}" in self.text else None,
            the_wait="inferred from the order of calls" if "dependency-inferred" in calls else None,
        )


GRAPH = Part(
    ("graph",),
    " runs a CUDA graph that is traced as one row: {time}, in which gaps and copies cannot be told from kernels",
    Advice("Trace every node of the graph (slower):   nsysalign run --graph-trace node SCRIPT.py"),
    say=WARN_SHARE,
    warn=math.inf,
)
UNKNOWN = Part(
    ("unknown",),
    ": the trace does not say what {time} were (calls missing, or a wait whose end is not recorded)",
    Advice("Record the whole program from its start, including the CUDA API"),
)
LAUNCH_LATENCY = Part(
    ("launch_latency", "event"),
    " is too short for one pair of events: {time} are the pair's own cost and launch latency, although the CPU had run ahead",
    Advice(
        "Time several calls with one pair and divide:   start.record(); [f() for _ in range(20)]; end.record()",
        f"Give each launch more work: larger batches, fused operations{WITH_GRAPHS}",
        _COMPILE,
    ),
    evidence="pair_and_latency_ns",
    say=0.20,
    warn=math.inf,
    lost=True,
    among=lambda label: (
        (label.ns("host", "api", "api_launch", "sync") < 0.10 * label.whole)
        & (label.operations > 0)
        & (label.operations < MANY_OPERATIONS)
        & (label.kind == "event")
    ),
)
ALLOCATION = Part(
    ("api",),
    " allocates or frees memory inside: for {time} the CPU was in {calls}{idle}",
    Advice(
        "Allocate before the start event, or run once so that a caching allocator keeps it:   out = torch.empty_like(x); "
        "f(x, out=out); torch.cuda.synchronize(); start.record()",
        "Allocate once and reuse the memory",
        "out = torch.empty_like(x)  # once;   f(x, out=out)  # in the loop",
    ),
    names=ALLOCATION_CALLS,
    evidence="allocating_ns",
    say=0.01,
    lost=True,
    among=lambda label: label.ns("api", named=ALLOCATION_CALLS) >= 20_000,
)
_MEMSET = Part(
    ("memset",),
    f" contains a memset: {{time}} are spent clearing memory {_CLEARS}",
    _CLEAR,
    lost=True,
    among=lambda label: label.on_stream & (label.kernel > 0),
)
_ORDERED = r"^(dependency(-inferred)?|default-stream-order|host-function)$"
_WAITS = (
    Part(
        ("queued",),
        " waits for another stream: for {time} its work was issued but ordered behind {streams}",
        Advice(
            "Wait before the start event instead of after it:   torch.cuda.current_stream().wait_stream(other); start.record()",
            "Issue what it waits for earlier, or give it other work meanwhile",
        ),
        names=_ORDERED,
        lost=True,
    ),
    Part(
        ("queued",),
        " shares the GPU: for {time} its work was issued but could not start while {streams} kept the device busy",
        Advice(
            "Let the other streams finish first:   torch.cuda.synchronize(); start.record()",
            "Give one stream the GPU to itself while its work is urgent",
            "urgent = torch.cuda.Stream(priority=-1)",
        ),
        names="^contention$",
        lost=True,
    ),
    Part(
        ("queued",),
        " fills the launch queue: for {time} the CPU was blocked in a launch until the queue had room",
        Advice(
            "Time fewer launches at once, or capture them:   start.record(); graph.replay(); end.record()",
            "The CPU is ahead and the GPU is the limit: only faster kernels help",
        ),
        names="^full-queue$",
    ),
    Part(
        ("queued",),
        " waits for earlier work: for {time} it waited for what had been launched before the first reading",
        Advice(
            "Synchronise before the first reading as well:   torch.cuda.synchronize(); t0 = time.perf_counter()"
        ),
        names="^earlier-work$",
    ),
)


def queued(label: Label) -> Findings:
    """The interval's work is issued, but waits: behind work of another stream, for the device, for
    room in the launch queue, or (host timers) for what was launched before."""
    for wait in _WAITS:
        yield from wait.find(label)


def gpu_alone(row: Interval) -> str:
    """How to measure an interval's GPU time alone: a line of code that lets the CPU run ahead, or
    an alternative and the reason if a delay kernel cannot do that."""
    cycles = row.ns(*HIDDEN_BY_DELAY) / 1e3 * DELAY_CYCLES_PER_US * DELAY_MARGIN
    cycles = max(DELAY_CYCLES, math.ceil(cycles / 1e6) * 1_000_000)
    delay = f"torch.cuda._sleep({cycles:_}); start.record()"
    if row.operations >= LAUNCH_QUEUE and not row.facts.graphs[row.number]:
        return (
            f"Capture it once and time the replay (its {row.operations:,} operations do not fit in the launch queue, so a delay cannot "
            "hide them):   start.record(); graph.replay(); end.record()"
        )
    if row.ns("sync"):
        return (
            f"Move the synchronisation out of the interval, then let the CPU run ahead:   {delay}"
        )
    return f"Let the CPU run ahead before the start event, or time a CUDA graph:   {delay}"


def launch_blocking(label: Label) -> Findings:
    """CUDA_LAUNCH_BLOCKING=1: every launch call returns only when its kernel has ended.

    host    [ launch k -------------) host [ launch k+1 -------
    GPU             [kernel k )                   [kernel k+1
                               ^ the rest of launch k, then host, then launch k+1: two launch calls
                               in one gap
    """
    row = label.row
    if row.kind == "host" or row.operations < 2 or not row.ns("api_launch"):
        return
    gaps = [  # the last one before the end event launches nothing
        gap.pieces
        for gap in row.stretches
        if gap.before and gap.before.cause == "kernel" and gap.then
    ]
    blocked = [
        pieces
        for pieces in gaps
        if pieces[0].cause == "api_launch"
        and len({piece.ref for piece in pieces if piece.cause == "api_launch"}) > 1
    ]
    if len(gaps) >= 5 and len(blocked) >= 0.8 * len(gaps):
        yield row.finding(
            "warning",
            f"{label.who} seems to run with CUDA_LAUNCH_BLOCKING: after {len(blocked)} of {len(gaps)} kernels the CPU was still "
            "inside the call that had launched them.",
            "",  # there is nothing to measure differently
            "Run without it",
            "env -u CUDA_LAUNCH_BLOCKING python SCRIPT.py",
            loss=np.where(label.numbers == row.number, sum(rest.ns for rest, *_ in blocked), 0),
            kernels_followed_by_their_own_launch_call=len(blocked),
            gaps_between_kernels=len(gaps),
        )


def host_gap(facts: Facts) -> Findings:
    """The GPU waits, idle, for the CPU to issue the next operation."""
    if any(m.startswith("CUPTI_ACTIVITY_KIND_RUNTIME") for m in facts.analysis.trace.missing):
        yield Remark("host-gap was not checked: the trace has no CUDA API rows")
        return
    for label in facts.labels:
        host = label.ns("host", "api") - label.ns("api", named=_CALLS_APART)
        launch = label.ns("api_launch")
        # what follows from a synchronisation has a rule of its own
        gap = (host + launch - facts.synchronised.hosted[label.numbers]).clip(0)
        waits = label.on_stream & (label.operations > 0) & (host >= launch)
        if row := label.case(waits & (gap > WARN_SHARE * label.whole)):
            yield _gap(row, gap)


def _gap(row: Interval, gap: np.ndarray) -> Finding:
    """`gap`: ns of the label's intervals."""
    whole = gap[row.at]
    own = min(row.ns("host"), whole)
    alone = own > WARN_SHARE * row.elapsed  # the CPU's own code is blamed, not its calls
    waited = own if alone else whole
    stretches = row.stretches
    worst = max(stretches, key=lambda s: s.cpu_ns, default=Stretch(None, [], None, 0))
    longest, then = worst.cpu_ns, kernel_name(worst.then.text) if worst.then else ""
    in_it = sum(p.ns for p in worst.pieces if p.cause == "host") if alone else longest
    one = longest >= ONE_GAP_SHARE * sum(s.cpu_ns for s in stretches)
    one = one and in_it > ONE_GAP_SHARE * waited
    if not one:
        place = f"for the CPU, before and between {row.operations:,} operations"
    elif worst.before is None:
        place = "for the first launch" if row.kind == "nvtx" else "for the launch that came after the first event"  # fmt: skip
    elif then:
        place = "while the CPU was busy between two launches"
    else:
        place = "for the CPU to record the end event"
    if one and in_it < waited:
        place = "for the CPU, most of it " + place
    lead = "waits for the CPU"
    if waited >= MOSTLY_SHARE * row.elapsed:
        kernels = "kernel" if row.operations < MANY_OPERATIONS else "kernels"
        lead = f"measures the CPU, not the {kernels}"
    faster = (
        f"Launch less and earlier: move other work off this thread, fuse operations{WITH_GRAPHS}"
    )
    code = _COMPILE
    if longest < MOSTLY_SHARE * waited and waited > 2 * LONG_GAP_NS * row.operations:
        faster, code = "", ""  # not the cost of launching: nobody knows what it is
    elif longest >= max(MOSTLY_SHARE * waited, LONG_GAP_NS):
        # launching less does not help: that stretch has to go
        where = f"before it launches {then}" if then else "before it records the end event"
        faster = f"Look at what the CPU does {where}, {span(longest)} in one stretch: do it once, before the loop, or in another thread"
        code = "nsysalign run --sample-python SCRIPT.py  # names the functions"
    return row.finding(
        "info" if row.others_worked else "warning",
        f"{row.label.who} {lead}: for {of(waited, row.elapsed)} {row.idled} {place}.",
        gpu_alone(row),
        faster,
        code,
        loss=gap,
        waiting_ns=waited,
        operations=None if one else row.operations,
        it_waited_for=then,
    )


def _by_one_call(row: Interval) -> bool:
    """Whether one call is most of what an interval pays for launching: code that is loaded, a copy
    that blocks."""
    longest = max((s.ns for s in row.segments if s.cause == "api_launch"), default=0)
    return longest > ONE_GAP_SHARE * row.ns("api_launch", "launch_latency")


def many_kernels(label: Label) -> Findings:
    """Many short operations, launched one by one: launch calls and latencies cost more than the
    work."""
    cost = label.ns("api_launch", "launch_latency")
    many = label.on_stream & (label.operations >= MANY_OPERATIONS)
    row = label.case(many & (cost > WARN_SHARE * label.whole))
    if row is None or _by_one_call(row):  # that is for rule api-launch
        return
    launching = cost[row.at]
    ran = row.ns(*OPERATION_KINDS) - sum(d.ns for d in row.details("memcpy", "^staging$"))
    if ran <= launching or ran / row.operations <= SMALL_NS:  # else these are not small
        yield row.finding(
            "warning",
            f"{label.who} pays for {row.operations:,} launches: {of(launching, row.elapsed)} go into launching operations "
            f"that run for {span(ran / row.operations)} each on average.",
            gpu_alone(row),
            f"Fuse the small operations{WITH_GRAPHS}",
            _COMPILE,
            loss=cost,
            operations=row.operations,
            launching_ns=launching,
            running_each_ns=ran / row.operations,
        )


def api_launch(label: Label) -> Findings:
    """The launch call itself is what the GPU waits for (few operations; many have a rule of their
    own)."""
    host = label.ns("host", "api") - label.ns("api", named=_CALLS_APART)
    call = label.ns("api_launch")
    waits = label.on_stream & (label.operations > 0) & (call > host)
    row = label.case(waits & (call + host > WARN_SHARE * label.whole))
    if row is None or (row.operations >= MANY_OPERATIONS and not _by_one_call(row)):
        return
    by_name: Counter[str] = Counter()
    for detail in row.details("api_launch"):
        by_name[detail.detail] += detail.ns
    ((name, inside),) = by_name.most_common(1)
    calls = "its launch call" if row.operations == 1 else "launch calls"
    yield row.finding(
        "warning",
        f"{label.who} waits for {calls}: for {of(inside, row.elapsed)} {row.idled} while the CPU was inside {name or 'the call'}.",
        gpu_alone(row),
        f"Move what that call waits for out of the loop{WITH_GRAPHS}",
        _COMPILE,
        loss=call,
        inside_the_call_ns=inside,
        call=name,
    )


def copy(facts: Facts) -> Findings:
    """Copies inside the interval: their share, pageable or pinned, and their bandwidth; memsets,
    and fills as large as an L2 flush."""
    rows = facts.details[facts.details["cause"] == "memcpy"]
    copied = (rows["detail"] == "copy").to_numpy()
    # best bytes per nanosecond of pinned copies of 1 MiB and more, per direction
    pinned = rows[copied & (rows["memory"] == "pinned") & (rows["bytes"] >= (1 << 20))]
    rate = pinned["bytes"] / pinned["ns"].clip(lower=1)
    best = rate.groupby(pinned["direction"].astype(str)).max().to_dict()
    size = facts.per_interval(rows, np.where(copied, rows["bytes"], 0))
    device_ns = facts.per_interval(rows[rows["direction"] == "D2D"])
    saved = _saved(facts, rows, best)
    for label in facts.labels:
        # the result of an .item() belongs to the synchronisation rule
        ns = np.where(size[label.numbers] > ITEM_BYTES, label.ns("memcpy"), 0)
        least = np.where(device_ns[label.numbers] >= 0.5 * ns, SAY_SHARE, 0.01)
        beside = ns >= least * label.whole
        much = np.where(label.kernel > 0, beside, ns > WARN_SHARE * label.whole)
        if row := label.case(much & (ns > 0)):
            warn = row.kernel and ns[row.at] > WARN_SHARE * row.elapsed
            yield _copy(row, "warning" if warn else "info", best, saved[label.numbers])
        yield from _MEMSET.find(label)
        yield from _fill(label.row)


def _copy(row: Interval, severity: str, best: Mapping[str, float], saved: np.ndarray) -> Finding:
    kinds: dict[tuple[str, str], list] = {}
    for detail in row.details("memcpy"):
        kinds.setdefault((detail.direction, detail.memory), []).append(detail)
    (direction, memory), most = max(kinds.items(), key=lambda kind: sum(d.ns for d in kind[1]))
    copies, ns = [d for d in most if d.detail == "copy"], sum(d.ns for d in most)
    moved, rate = sum(d.bytes for d in copies), None
    pieces = moved < 0.01 * ns
    way, who = _WAYS.get(direction, _Way(direction)), row.label.who
    title = f"{who} is a copy {way.words}: {of(ns, row.elapsed)}"
    if row.kernel:
        title = f"{who} contains the copy: {of(ns, row.elapsed)} go into copying {way.words}"
    if row.kind != "host" and not pieces:
        # a host timer sees only the part of a copy for which the CPU waited; staging is no transfer
        rate = moved / max(sum(d.ns for d in copies), 1)
        title += f", {rate:,.0f} GB/s" if rate >= 100 else f", {rate:.3g} GB/s"
    could = best.get(direction, 0.0) if rate is not None and memory == "pageable" else 0.0
    title += f" with {memory} host memory." if memory in ("pageable", "pinned") else "."
    if pieces:
        text, code = "Put what is copied in many small pieces together, and copy it once", ""
    elif not way.measured:
        text, code = "Write the result where it is needed", "torch.mm(a, b, out=out)"
    elif memory == "pageable":
        text, code = "Pinned memory copies faster and does not block the CPU", way.pinned
    else:
        text = "Copy on a separate stream, while kernels run"
        code = "with torch.cuda.stream(copies): y = x.cuda(non_blocking=True)"
    return row.finding(
        severity,
        title,
        way.measured if row.kernel else "",
        text,
        code,
        loss=saved,
        copy_ns=ns,
        copied_bytes=moved,
        achieved_GB_per_s=rate,
        pinned_in_this_trace_GB_per_s=could if could > (rate or 0.0) else None,
        direction=direction,
        memory=memory,
    )


def _saved(facts: Facts, rows: pd.DataFrame, best: Mapping[str, float]) -> np.ndarray:
    """What the advice would save, at most, per interval: of pageable copies what is longer than from
    pinned memory (staging is gone; at this trace's best rate of the direction, else the fastest that
    a bus does); of the rest, which pinned memory could do meanwhile, what kernels could hide, and
    for pageable copies, for which the CPU waits, the CPU's own time; all copies on the device."""
    ns, pageable = rows["ns"].to_numpy(), (rows["memory"] == "pageable").to_numpy()
    rate = rows["direction"].astype(object).map(best).astype(float).fillna(BUS_BYTES_PER_NS)
    fast = np.where(rows["detail"] == "staging", 0, rows["bytes"] / rate)
    fast = np.where(pageable, np.minimum(ns, fast), ns)
    host = rows["direction"].isin(["H2D", "D2H"]).to_numpy() | pageable
    hideable = facts.per_interval(rows, np.where(host, fast, 0.0))
    staged = facts.per_interval(rows, np.where(pageable, fast, 0.0)) > 0
    kernel = facts.column("kernel_only_upper_ns")  # where none runs, a copy is what is timed
    beside = kernel + np.where(staged & (kernel > 0), facts.parts[:, CAUSES.index("host")], 0)
    device = np.where(kernel > 0, facts.per_interval(rows, np.where(host, 0.0, ns)), 0)
    slower = facts.per_interval(rows, ns - fast)
    return (slower + np.minimum(hideable, beside) + device).astype(np.int64)


def _fill(row: Interval) -> Findings:
    """`tensor.zero_()` is a kernel, looked for in rows with several operations."""
    several = 2 <= row.operations < MANY_OPERATIONS and row.kind != "host"
    if several and row.ns("memset") < SAY_SHARE * row.elapsed:
        ns = sum(s.ns for s in row.segments if s.cause == "kernel" and "FillFunctor" in s.text)
        if WARN_SHARE * row.elapsed < ns < 0.98 * row.column("kernel_only_ns"):
            yield row.finding(
                "warning",
                f"{row.label.who} contains a fill: {of(ns, row.elapsed)} are spent writing a constant {_CLEARS}.",
                *_CLEAR,
                loss=np.full(row.label.count, ns),
                fill_ns=ns,
            )


def sync(facts: Facts) -> Findings:
    """A synchronisation inside the interval: the queue runs empty, and the GPU idles until the CPU
    has caught up."""
    how = " (.item(), .cpu(), nonzero, an if on a tensor)" if facts.torch else ""
    for label in facts.labels:
        idle = facts.synchronised.idle[label.numbers]
        say = np.where(label.kind == "nvtx", SAY_SHARE, 0.002)
        row = label.case((idle > 0) & (idle >= say * label.whole))
        if row is None:
            continue
        lost, calls, back = idle[row.at], row.details("sync"), facts.synchronised.item[row.number]
        name = str(calls[0].detail) if calls else "a synchronisation"
        what = f"a result is read back{how}" if back else f"{name} waits"
        warn = not row.others_worked and lost > WARN_SHARE * row.elapsed
        advice = (
            Advice(
                "Keep the result on the GPU until the end event:   end.record(); value = result.item()",
                "Read results back once, not in every step",
                "total += loss.detach()  # in the loop;   total.item()  # once, after it",
            )
            if back
            else _SYNC
        )
        if row.kind == "event" and facts.other_ns[row.number]:
            # an end event on another stream than the work would not wait for it without the
            # synchronisation: the timer would read too little
            advice = _SYNC._replace(
                measuring="Record both events on the stream of the work, and synchronise after the end event only."
            )
        yield row.finding(
            "warning" if warn else "info",
            f"{label.who} synchronises inside: {what}, and for {of(lost, row.elapsed)} {row.idled} in that call "
            "and until the CPU had caught up.",
            *advice,
            loss=idle,
            idle_because_of_it_ns=lost,
            call=name,
        )
