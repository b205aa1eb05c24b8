"""What can be said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nsysalign.explain.facts import GRAPH_LAUNCH, TYPICAL_SHARE, WARN_SHARE, Facts, Run
from nsysalign.explain.finding import IN_GRAPHS, NO_WORK, Advice, Finding, Findings, Remark
from nsysalign.explain.rules.waiting import BUS_BYTES_PER_NS, SMALL_NS
from nsysalign.intervals import disjoint
from nsysalign.model import OTHER_STREAMS, WARP, Trace, pid_of
from nsysalign.split.runs import NOT_KNOWN
from nsysalign.text import kernel_name, of, plural, quantity, span, times_over

#: Set-up comes first where CUDA calls before the first and after the last GPU work take this share
#: of the time from the first call on, and the GPU works for less than that share.
SET_UP_SHARE = 0.5
#: Of the idle time: what a first launch or code that is loaded explains; pauses, and results in
#: between.
FIRST_SHARE, PAUSES_SHARE = 0.5, 0.8
#: Shorter pauses, and first launches that held up less, are none.
LEAST_NS = 100_000
_MOST_NAMED, _MANY_GAPS = 3, 10  # more pauses of one kind are counted instead of named
_OF_A_STREAM = re.compile(r" \(stream \d+\)$")
#: Names of CUDA's error codes (driver_types.h), without `cudaError`.
ERRORS = {
    1: "InvalidValue", 2: "MemoryAllocation", 3: "InitializationError", 9: "InvalidConfiguration", 35: "InsufficientDriver",
    98: "InvalidDeviceFunction", 100: "NoDevice", 101: "InvalidDevice", 200: "InvalidKernelImage", 201: "DeviceUninitialized",
    209: "NoKernelImageForDevice", 218: "InvalidPtx", 222: "UnsupportedPtxVersion", 400: "InvalidResourceHandle", 401: "IllegalState",
    500: "SymbolNotFound", 700: "IllegalAddress", 701: "LaunchOutOfResources", 702: "LaunchTimeout", 710: "Assert",
    715: "IllegalInstruction", 716: "MisalignedAddress", 717: "InvalidAddressSpace", 718: "InvalidPc", 719: "LaunchFailure",
    720: "CooperativeLaunchTooLarge", 800: "NotPermitted", 801: "NotSupported", 802: "SystemNotReady", 803: "SystemDriverMismatch",
    900: "StreamCaptureUnsupported", 901: "StreamCaptureInvalidated", 999: "Unknown",
}  # fmt: skip


class _Idle(NamedTuple):
    """What the CPU did while the device ran nothing: its causes, in words, and what to do, where
    that is known, with its code."""

    causes: tuple[str, ...]
    text: str
    faster: tuple[str, ...] = ()


_IDLE = (
    _Idle(("host",), "the CPU was in its own code and had not launched the next work"),
    _Idle(
        ("api_launch", "launch_latency"),
        "the CPU was inside calls that launch work, or the launched work was on its way",
        (
            "Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph",
            'f = torch.compile(f, mode="reduce-overhead")',
        ),
    ),
    _Idle(
        ("sync",),
        "the CPU was inside a synchronisation",
        (
            "Drop the synchronisation between launches: wait only where something depends on it, "
            "and on the GPU rather than on the CPU",
        ),
    ),
    _Idle(
        ("api",),
        "the CPU was inside CUDA calls that launch nothing",
        ("Call it once, before the part that counts",),
    ),
    _Idle(
        ("memcpy",),
        "the CPU staged pageable memory for a copy",
        ("Copy from pinned memory, which needs no staging",),
    ),
    _Idle(
        ("unknown",),
        "the trace does not say why",
        (
            "Record the whole program from its start; where it uses managed memory, record its page faults as well (nsys profile: "
            "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true)",
        ),
    ),
)
_FIRST = (
    "Warm up before the part that counts; cache what is compiled, or load all code when the program starts "
    "(CUDA_MODULE_LOADING=EAGER)"
)
_MORE_BLOCKS = (
    "Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data; "
    "or run other work beside it, on other streams"
)
_MORE_THREADS = "Launch blocks of 128 threads or more, and fewer of them: a block takes a whole warp, whatever it uses of it"
_PIPELINE = (
    "Let the GPU compute one part while the CPU prepares the next or works on the last (a pipeline of two streams "
    "and pinned buffers), or do what the CPU does there on the GPU"
)


def failed_calls(facts: Facts) -> Findings:
    """Launches, copies and synchronisations that returned an error: what they should have done did
    not happen."""
    failed = sorted(facts.failed_calls, key=lambda row: -row[2])
    if not failed:
        return
    named = [
        f"{call} {times_over(count)} with error {code}"
        + (f" (cudaError{ERRORS[code]})" if code in ERRORS else "")
        for call, code, count in failed[:_MOST_NAMED]
    ]
    total = sum(count for _, _, count in failed)
    more = ", …" if len(failed) > _MOST_NAMED else ""
    by_call = {f"{call}, error {code}": count for call, code, count in failed[:_MOST_NAMED]}
    yield Finding(
        "error",
        "the run",
        f"{plural(total, 'CUDA call')} failed: {', '.join(named)}{more}.",
        {"failed_calls": total, "by_call": by_call},
        Advice(
            "Check the status of every call; a failed launch does nothing, and its time is no kernel's:   "
            "cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM"
        ),
    )


def lost_records(facts: Facts) -> Findings:
    """The trace is not whole: what it says of the GPU is less than what happened."""
    known, lost = facts.analysis.known.lost, dict[str, dict[str, int]]()
    if without := sum(row.get("without_kernel", 0) for row in known):
        launches = "1 kernel launch has" if without == 1 else f"{without:,} kernel launches have"
        text = f"{launches} no kernel that begins later in this trace: records were lost, or time stamps of the GPU are wrong."
        lost[text] = {"launches_without_kernel": without}
    for row in known:
        if after := row.get("after_last_call_ns"):
            text = f"Ranges that call CUDA ({row['range']}) go on for {span(after)} after the last CUDA call of their thread in this trace: records were lost."
            lost[text] = {"after_last_call_ns": after}
    for text, evidence in lost.items():
        title = f"{text} What is said of the GPU counts only what is there."
        advice = Advice("Record again, a shorter part, and synchronise before the program ends")
        yield Finding("error", "the run", title, evidence, advice)


def no_gpu_work(facts: Facts) -> Findings:
    """CUDA calls and not a row of what they made the GPU do."""
    if made := facts.analysis.known.calls_without_work:
        calls = f"{NO_WORK}{plural(made['calls'], 'CUDA call')}"
        if made["call_ns"] >= SET_UP_SHARE * made["whole_ns"]:
            spent = of(made["call_ns"], made["whole_ns"])
            calls += f" ({made['call']}, called {times_over(made['call_count'])}, takes {spent})"
        text = (
            f"{calls}, and none of them gives work to the GPU: check that the program reached its GPU part, and that the process "
            "that does was recorded"
        )
        if made["issuing"]:
            text = f"{calls}, {made['issuing']:,} of which give work to the GPU, but no row of it"
            if not facts.failed_calls and facts.analysis.trace.recorder == "nsys":
                text += (
                    ": the driver gave nsys none; usual reasons are WSL2, a virtual machine, a driver newer than this nsys, and "
                    "counters that are reserved for administrators (nsys status --environment)"
                )
            elif not facts.failed_calls:
                text += (
                    f": {facts.analysis.trace.by.title} got none from CUPTI; usual reasons are another profiler at the same time, and "
                    "counters that are reserved for administrators"
                )
        yield Remark(text)


def before_and_after(trace: Trace) -> Iterator[dict[str, Any]]:
    """What a process did in CUDA before its GPU's first work and after its last, for each that calls
    CUDA, with the first of its devices (`Known.set_up`).

    calls    [cudaMalloc: sets CUDA up      ] [memcpy]  [launch]            [cudaFree]
    GPU                                         CC         KKKKK
             |------------ before ------------|            last|-- after --|

    `whole_ns`: from the first call to the last call or work, `until_ns` to the first work, `since_ns` from the last.  `before_ns`, `after_ns`: how long calls
    were open in these times; `..._call`: the one that took most of it, `..._call_ns`;
    `busy_ns`: how long the device worked.
    """

    def open_ns(spans: Any) -> int:  # threads call at once
        _, start, stop = disjoint(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())
        return int((stop - start).sum())

    calls = trace.calls[["start_ns", "end_ns", "name_id", "process"]]
    calls = calls[trace.outermost]
    work = trace.operations[["process", "device", "start_ns", "end_ns"]]
    for process, ran in work.groupby("process"):
        own = calls[calls["process"] == process]
        if own.empty:
            continue
        first, last = int(ran["start_ns"].min()), int(ran["end_ns"].max())
        begin = min(int(own["start_ns"].min()), first)
        end = max(int(own["end_ns"].max()), last)
        row = {"pid": int(pid_of(process)), "device": int(ran["device"].min())}
        row |= {"whole_ns": end - begin, "busy_ns": open_ns(ran)}
        row |= {"until_ns": first - begin, "since_ns": end - last}
        for name, low, high in (("before", begin, first), ("after", last, end)):
            some = own[(own["start_ns"] < high) & (own["end_ns"] > low)]
            some = some.assign(**{c: some[c].clip(low, high) for c in ("start_ns", "end_ns")})
            ns = (some["end_ns"] - some["start_ns"]).groupby(some["name_id"]).sum()
            most = int(ns.idxmax()) if len(ns) else -1
            row[f"{name}_ns"] = open_ns(some)
            row[f"{name}_call"] = trace.names.get(most, "CUDA calls")
            row[f"{name}_call_ns"] = open_ns(some[some["name_id"] == most])
        yield row


def set_up(run: Run) -> Findings:
    """CUDA calls before the GPU's first work, and after its last, are what the process did; where
    they are not, what the CPU did outside of them may be as it should be."""
    known = run.known("set_up")
    whole, busy = known.get("whole_ns", 0), known.get("busy_ns", 0)
    if not known or busy >= 0.05 * whole:
        return
    least, before, after = SET_UP_SHARE * whole, known["before_ns"], known["after_ns"]
    until, since = known["until_ns"], known["since_ns"]
    worked = f"the GPU works for {span(busy)}."
    evidence = {"before_first_work_ns": before, "gpu_works_ns": busy}
    if before + after >= least:
        then = ""
        evidence["before_call_ns"] = known["before_call_ns"]
        if after >= 0.1 * whole:
            then = f", {span(after)} after its last ({known['after_call']} {span(known['after_call_ns'])})"
            evidence |= {"after_last_work_ns": after, "after_call_ns": known["after_call_ns"]}
        title = (
            f"{of(before, whole)} pass in CUDA calls before the GPU's first work "
            f"({known['before_call']} {span(known['before_call_ns'])}){then}: set-up; {worked}"
        )
    elif until + since < least or busy >= 0.02 * whole:
        return
    elif until >= least:  # what creates a context need not be a recorded call
        title = (
            f"{of(until, whole)} pass between the process's first CUDA call and the GPU's "
            f"first work, {span(before)} of them in CUDA calls; {worked}"
        )
        evidence["first_call_to_first_work_ns"] = until
    else:
        within = whole - until - since
        title = (
            f"{span(whole)} pass from the process's first CUDA call to its last, and all its work on the GPU lies "
            f"within {span(within)}: {span(until)} before it, {span(since)} after it."
        )
        evidence = {"first_call_to_first_work_ns": until, "last_work_to_last_call_ns": since}
        evidence["work_within_ns"] = within
    yield run.finding(title, whole_ns=whole, **evidence)


def whole_run(run: Run) -> Findings:
    """A run of which the program measured less than half, by ranges or not at all: the GPU was idle
    for much of the time between its first and its last work, or copied."""
    facts = run.facts
    # a stream that ran nothing while others did, or one of several of a range, is not the GPU
    others = [not OTHER_STREAMS.isdisjoint(flags) for flags in facts.column("flags")]
    own = ~(np.array(others, bool) & (facts.column("kernel_only_upper_ns") == 0))
    own &= ~np.array([bool(_OF_A_STREAM.search(n)) for n in facts.column("label")], bool)
    own &= (facts.column("pid") == run.row.pid) & (facts.column("device") == run.row.device)
    inside = np.flatnonzero(own & ~facts.column("library").astype(bool))
    measured_ns = facts.once(inside, facts.column("elapsed_ns")[inside])
    if measured_ns > TYPICAL_SHARE * run.elapsed:
        return
    # where the program named what counts, the rest is set-up; pairs read from the trace that cover
    # next to nothing are not all that counts
    named = (facts.column("kind")[inside] == "nvtx").any() or measured_ns > 0.02 * run.elapsed
    named_ns = facts.once(inside, facts.column("kernel_only_ns")[inside])
    kernels = run.ns("kernel", "graph")
    yield from _idle(run, set_up=named and named_ns > TYPICAL_SHARE * kernels > 0)
    if run.copying > max(WARN_SHARE * run.elapsed, 20_000):
        yield _copying(run, kernels)


def _idle(run: Run, set_up: bool) -> Findings:
    """The GPU ran nothing: which gap that is.  That the CPU touched managed memory has a rule of its
    own."""
    known, idle, explained = run.known("idle"), run.idle, run.idle - run.touched
    table = run.facts.analysis.gaps
    table = table[table["interval"] == run.row.interval]
    gaps = sorted(table.itertuples(index=False), key=lambda gap: -gap.ns)
    gaps = [gap for gap in gaps if not run.touched or gap.next != "page migration D2H"]
    longest = [gap for gap in gaps[:3] if gap.ns >= 0.1 * gaps[0].ns]
    # one that is half of it and more is said before what many have in common
    one_pause = bool(gaps) and gaps[0].ns >= max(0.5 * idle, LEAST_NS)
    one_pause = one_pause and gaps[0].call != NOT_KNOWN
    if one_pause and sum(gap.ns for gap in longest) < PAUSES_SHARE * explained:
        longest = longest[:1]
    pauses, of_gaps = sum(gap.ns for gap in longest), ", ".join(_gap(run, gap) for gap in longest)
    cause = max(_IDLE, key=lambda each: run.ns(*each.causes))
    several = pauses >= max(PAUSES_SHARE * explained, LEAST_NS)
    first, back, loading = (known.get(f"{what}_ns", 0) for what in ("first", "back", "loading"))
    faster: tuple[str, ...] = ()
    named = False  # the longest gaps
    if explained > 0 and first >= max(FIRST_SHARE * explained, LEAST_NS):
        lost, faster, rest = first, (_FIRST,), run.elapsed - first
        text = (
            f"for {span(lost)} of that it waited for {plural(known['first_kernels'], 'kernel')} to run for the first time "
            f"(when code is compiled, loaded or set up); the rest of the run takes {span(rest)}"
        )
        evidence = {"before_first_launches_ns": lost, "without_it_ns": rest}
        evidence["kernels"] = known["first_kernels"]
    elif explained > 0 and loading >= FIRST_SHARE * explained:
        lost, faster, count = loading, (_FIRST,), known["loading_count"]
        text = (
            f"{span(lost)} of that lie in {plural(count, 'gap')} in which code was linked or loaded "
            f"({times_over(known['loads'])})"
        )
        evidence = {"loading_gaps_ns": lost, "count": count, "calls": known["loads"]}
    elif explained > 0 and back >= PAUSES_SHARE * explained and not one_pause:
        lost, count = back, known["back_count"]
        # a GPU that hardly works has nothing to overlap
        faster = (_PIPELINE,) if idle < 0.9 * run.elapsed else ()
        text = f"{span(lost)} of that lie between a copy to the host and the next one to the device ({times_over(count)})"
        evidence = {"between_copies_ns": lost, "count": count}
    elif one_pause or (several and cause.causes != ("unknown",)):
        lost, named, count = pauses, True, len(longest)
        what, them = ("one pause", "it") if count == 1 else (f"{count} pauses", "them")
        text = f"{span(lost)} of that is {what}: {of_gaps}; without {them} the GPU idles for {span(idle - lost)}"
        evidence = {"pauses_ns": lost, "otherwise_idle_ns": idle - lost, "pauses": count}
    else:
        lost = run.ns(*cause.causes)
        text, evidence, faster = _by_cause(run, cause, known)
        many = known.get("long_gaps", 0)
        if of_gaps and not faster and many >= _MANY_GAPS:
            text += f"; {many:,} gaps of {span(known['long_gap_ns'])} or more take {span(known['long_gaps_ns'])} in all"
            evidence |= {"gaps": many} | {f"{c}_ns": known[f"long_{c}_ns"] for c in ("gap", "gaps")}
        elif of_gaps and not faster:
            text, named = f"{text}; the longest: {of_gaps}", True
    if lost <= WARN_SHARE * run.elapsed:
        if idle < TYPICAL_SHARE * run.elapsed:
            return
        # nothing stands out: what it consists of
        named, faster, lost = False, (), 0
        text, evidence = _several(run, known)
    for number, gap in enumerate(longest if named else (), 1):
        evidence[f"pause_{number}_ns"] = int(gap.ns)
        evidence[f"pause_{number}_at_ns"] = max(int(gap.start_ns) - run.row.start_ns, 0)
    yield run.finding(
        f"between its first and its last work the GPU ran nothing for {of(idle, run.elapsed)}; {text}.",
        *(() if set_up else faster),
        loss_ns=0 if set_up else lost,
        severity="info" if set_up or 3 * idle < run.elapsed else "warning",
        idle_ns=idle,
        **evidence,
    )


def _several(run: Run, known: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The three largest parts of the idle time, with their numbers."""
    sums = sorted(((run.ns(*each.causes), each.text) for each in _IDLE), key=lambda row: -row[0])
    sums = sums[:_MOST_NAMED]
    texts = [f"for {span(ns)} {text}" for ns, text in sums if ns]
    evidence = {f"idle_{number}_ns": ns for number, (ns, _) in enumerate(sums, 1)}
    if (called := known.get("sync_count", 0)) >= _MANY_GAPS:
        texts.append(f"{known['sync_call']} was called {times_over(called)}")
        evidence["calls"] = called
    return "; ".join(texts), evidence


def _by_cause(
    run: Run, cause: _Idle, known: Mapping[str, Any]
) -> tuple[str, dict[str, Any], tuple[str, ...]]:
    """What most of the idle time has in common, in words, with its numbers, and what to do."""
    lost, details, faster = run.ns(*cause.causes), run.details, cause.faster
    text, evidence = f"for {span(lost)} of that {cause.text}", {"idle_for_this_ns": lost}
    calls = details[details["cause"].isin(cause.causes) & (details["detail"] != "")]
    calls = calls.groupby("detail", sort=False)["ns"].sum()
    if len(calls) and cause.causes[0] in ("api", "sync"):
        most = str(calls.idxmax())
        text += f", most of it in {most}"
        if cause.causes == ("sync",) and most == known.get("sync_call"):
            text += f" (called {times_over(known['sync_count'])})"
            evidence["calls"] = known["sync_count"]
    if cause.causes[0] == "api_launch":
        small = run.ns("kernel", "memset") / max(known.get("operations", 1), 1)
        if details["detail"].str.contains(GRAPH_LAUNCH).any():
            faster = (IN_GRAPHS,)
        elif known and small > SMALL_NS:
            faster = ()
    return text, evidence, faster


def _gap(run: Run, gap: Any) -> str:
    """ "0.70 s at 1.2 s before copy H2D pinned (the CPU outside of CUDA)": time since the run's first
    work."""
    called = gap.call and gap.call_ns > 0.02 * gap.ns
    did = "no CUDA call took half of it" if called else "the CPU outside of CUDA"
    if 2 * gap.call_ns >= gap.ns:
        did = f"the CPU in {gap.call}"
    if gap.call == NOT_KNOWN:
        did = NOT_KNOWN
    since = span(max(int(gap.start_ns) - run.row.start_ns, 0))
    return f"{span(int(gap.ns))} at {since} before {kernel_name(gap.next)} ({did})"


def _copying(run: Run, kernels: int) -> Finding:
    """The GPU copied for much of the run."""
    copies = run.details[(run.details["cause"] == "memcpy") & (run.details["detail"] == "copy")]
    staged = copies[copies["memory"] == "pageable"]
    what, own, beside, slower = "copies", "", 0, 0
    faster = "Copy less, and on a stream of its own while kernels run"
    if staged["ns"].sum() > run.copying / 2:
        slower, beside = (staged["ns"] - staged["bytes"] / BUS_BYTES_PER_NS), run.parts["host"]
        slower = int(slower.clip(lower=0).sum())
        what = "copies, most of the time of pageable memory,"
        what = "copies of pageable memory" if len(staged) == len(copies) else what
        faster = "Copy less, from pinned memory, and on a stream of its own, while kernels run and the CPU goes on"
    if beside:
        own = f", the CPU's own code before and between them {span(beside)}"
    return run.finding(
        f"{what} take {of(run.copying, run.elapsed)} between the first and the last work of the GPU; its kernels "
        f"take {span(kernels)}{own}.",
        faster,
        loss_ns=min(run.copying, slower + kernels + beside),
        severity="info" if run.copying < kernels else "warning",
        copying_ns=run.copying,
        kernels_ns=kernels,
        outside_CUDA_ns=beside or None,
    )


def few_blocks(run: Run) -> Findings:
    """Kernels with so few blocks that half of the GPU or more has nothing to do, or with blocks of
    less than a warp: the rest of each warp has nothing to do."""
    half = run.known("few_blocks").get("few_blocks_ns", 0) > WARN_SHARE * run.elapsed
    for what, share, faster in (
        ("few_blocks", WARN_SHARE, _MORE_BLOCKS),
        ("fewer_blocks", 1 if half else TYPICAL_SHARE, _MORE_BLOCKS),
        ("few_threads", WARN_SHARE, _MORE_THREADS),
    ):
        few = run.known(what)
        ns = few.get(f"{what}_ns", 0)
        if ns <= share * run.elapsed:
            continue
        ran = run.facts.analysis.kernels
        ran = ran[(ran["label"] == run.row.label) & (ran["kernel"] == few["kernel"])]
        if 0 < ran["total_ns"].sum() <= SMALL_NS * ran["count"].sum():
            continue  # its launch takes longer than it: more blocks gain nothing
        size, blocks, threads = (few[c] for c in ("multiprocessors", "blocks", "threads_per_block"))
        evidence = {f"{what}_ns": ns, "blocks": blocks, "threads_per_block": threads}
        name = kernel_name(few["kernel"])
        if few.get("kinds", 1) > 1:  # it has only a part of the time
            name += f" (of {few['kinds']} such kernels the one that runs longest: {span(few['longest_ns'])})"
            evidence |= {c: few[c] for c in ("kinds", "longest_ns")}
        launched = (
            f"{name} was launched with {plural(blocks, 'block')} of {plural(threads, 'thread')}"
        )
        if what == "few_threads":
            title = f"nothing ran but blocks of fewer threads than a warp: {launched}, and a warp has {WARP}"
            evidence["threads_of_a_warp"] = WARP
        else:
            part = "half" if what == "few_blocks" else "a third"
            title = f"at least {part} of the GPU had nothing to do: {launched}"
            title += f", and the GPU has {size:,} multiprocessors" if size else ""
            evidence["multiprocessors"] = size or None
        title = f"for {of(ns, run.elapsed)} {title}."
        yield run.finding(title, faster, loss_ns=few["unused_ns"], **evidence)


def page_migrations(run: Run) -> Findings:
    """Managed memory whose pages moved when they were touched: kernels wait for them, and so does
    the CPU."""
    moved = run.known("page_migrations")
    idle, lost = run.touched, moved.get("moving_ns", 0)
    if idle > WARN_SHARE * run.elapsed:
        # what the CPU does between two touches remains, and faults are not in the trace: no loss
        yield run.finding(
            f"for {of(idle, run.elapsed)} the GPU ran nothing while the CPU touched managed memory: its pages "
            f"came back from the GPU in {plural(moved['touched_count'], 'migration')}, one after the other; "
            f"{quantity('bytes', moved['to_host_bytes'])} moved to the host in {span(moved['to_host_ns'])}.",
            "Fetch what the CPU reads before it does (cudaMemPrefetchAsync to cudaCpuDeviceId, or one copy), or do that work on the GPU",
            idle_before_migrations_ns=idle,
            migrations_to_the_host=moved["touched_count"],
            bytes_to_the_host=moved["to_host_bytes"],
            moving_to_the_host_ns=moved["to_host_ns"],
        )
    if moved.get("asked") or lost <= 0.1 * run.elapsed:
        return
    alone, count = moved["alone_ns"], moved["to_device_count"] + moved["to_host_count"]
    yield run.finding(
        f"managed memory moved page by page when it was touched: {plural(count, 'migration')} to and from the "
        f"GPU. Pages moved for {span(lost - alone)} while kernels ran, and for {span(alone)} while none "
        "did; how long the page faults themselves took is not in the trace.",
        "Move managed memory before it is touched (cudaMemPrefetchAsync), say how it is used (cudaMemAdvise), or copy explicitly from "
        "pinned memory:   cudaMemPrefetchAsync(pointer, bytes, device, stream);",
        loss_ns=lost,
        migrations=count,
        migrations_during_kernels_ns=lost - alone,
        migrations_without_kernels_ns=alone,
    )
