"""What can be said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from nsysalign.explain.facts import GRAPH_LAUNCH, TYPICAL_SHARE, WARN_SHARE, Facts
from nsysalign.explain.finding import IN_GRAPHS, NO_ADVICE, NO_WORK, Advice, Finding, Remark
from nsysalign.explain.rules.waiting import SMALL_NS, from_pinned_ns
from nsysalign.model import CAUSES, OPERATION_KINDS, OTHER_STREAMS, OURS, WARP, Analysis
from nsysalign.parts import parts_matrix
from nsysalign.split.runs import NOT_KNOWN
from nsysalign.text import kernel_name, of, percent, plural, quantity, span, subject, times_over

#: Which gap it is, from these shares of the idle time on: before first launches; a few pauses; on
#: results in between.
FIRST_SHARE, PAUSES_SHARE, BACK_SHARE = 0.5, 0.8, 0.8
#: First launches that held up less than this loaded nothing; shorter idle times are no pauses.
LEAST_LOADING_NS = LEAST_PAUSE_NS = 100_000
#: From this share of the run on its idle time comes first: else what it computes or copies does.
MOSTLY_IDLE = 1 / 3
#: Set-up comes first where CUDA calls before the first and after the last GPU work take this share
#: of the time from the first call on, and the GPU works for less than that share.
SET_UP_SHARE, LITTLE_WORK_SHARE, WORTH_NAMING = 0.5, 0.05, 0.1
#: Where the time is no time of calls, from less than this share on.
HARDLY_ANY_SHARE = 0.02
#: A pause is named with others from this share of the longest on.
_PAUSE_SHARE = 0.1
#: A run that copied for less than this in all has nothing to gain.
LEAST_COPYING_NS = 20_000
#: Copies that are alike are named from so many on.
_OFTEN = 5
#: From these shares of the run on, its kernels, or its copies between host and device, are what it
#: does.
KERNELS_SHARE, COPIES_SHARE = 0.8, 0.5
_MOST_NAMED = 3
#: So many pauses of one kind are counted instead of named.
_MANY_GAPS = 10
#: Pages of managed memory that move for this share of the run are worth saying.
_MOVING_SHARE = 0.1
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
    """What the CPU did while the device ran nothing: its causes, in words, and what to do (None: what
    helps is not known)."""

    causes: tuple[str, ...]
    text: str
    remedy: Advice


_IDLE = (
    _Idle(("host",), "the CPU was in its own code and had not launched the next work", NO_ADVICE),
    _Idle(
        ("api_launch", "launch_latency"),
        "the CPU was inside calls that launch work, or the launched work was on its way",
        Advice(
            "",
            "Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph",
            'f = torch.compile(f, mode="reduce-overhead")',
        ),
    ),
    _Idle(
        ("sync",),
        "the CPU was inside a synchronisation",
        Advice(
            faster="Drop the synchronisation between launches: wait only where something depends on it, "
            "and on the GPU rather than on the CPU"
        ),
    ),
    _Idle(
        ("api",),
        "the CPU was inside CUDA calls that launch nothing",
        Advice(faster="Call it once, before the part that counts"),
    ),
    _Idle(
        ("memcpy",),
        "the CPU staged pageable memory for a copy",
        Advice(faster="Copy from pinned memory, which needs no staging"),
    ),
    _Idle(
        ("unknown",),
        "the trace does not say why",
        Advice(
            faster="Record the whole program from its start; where it uses managed memory, record its page faults as well:   "
            "nsys profile -t cuda,nvtx --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true"
        ),
    ),
)
_RESULTS = Advice(
    faster="Let the GPU compute one part while the CPU prepares the next or works on the last (a pipeline of two streams "
    "and pinned buffers), or do what the CPU does there on the GPU"
)
_FIRST = Advice(
    faster="Warm up before the part that counts; cache what is compiled, or load all code when the program starts "
    "(CUDA_MODULE_LOADING=EAGER)"
)
_PINNED = Advice(
    faster="Copy less, from pinned memory, and on a stream of its own, while kernels run and the CPU goes on"
)
_LESS = Advice(faster="Copy less, and on a stream of its own while kernels run")
_BACK = Advice(
    faster="Fetch what the CPU reads before it does (cudaMemPrefetchAsync to cudaCpuDeviceId, or one copy), or do that work on the GPU"
)
_MANAGED = Advice(
    faster="Move managed memory before it is touched (cudaMemPrefetchAsync), say how it is used (cudaMemAdvise), or copy explicitly from "
    "pinned memory:   cudaMemPrefetchAsync(pointer, bytes, device, stream);"
)
_WHOLE_WARPS = Advice(
    faster="Launch blocks of 128 threads or more, and fewer of them: a block takes a whole warp, whatever it uses of it"
)
_MORE_BLOCKS = Advice(
    faster="Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data; "
    "or run other work beside it, on other streams"
)
_STATUS = Advice(
    "Check the status of every call; a failed launch does nothing, and its time is no kernel's:   "
    "cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM"
)
_RECORD_AGAIN = Advice("Record again, a shorter part, and synchronise before the program ends")


class Run(NamedTuple):
    """All work of a process on a device, from its first to its last."""

    interval: int
    label: str
    pid: int
    device: int
    elapsed_ns: int
    start_ns: int

    @classmethod
    def all_of(cls, facts: Facts) -> list[Run]:
        table = facts.whole.runs.drop_duplicates(["pid", "device"])  # streams come behind
        rows = table[list(cls._fields)].itertuples(index=False, name=None)
        return [cls(*row) for row in rows]

    def known(self, facts: Facts, what: str) -> Mapping[str, Any]:
        """What is known of a run beside its parts; {} for nothing."""
        rows = getattr(facts.analysis.known, what)
        return next((r for r in rows if (r["pid"], r["device"]) == (self.pid, self.device)), {})

    def finding(self, title: str, advice: Advice, loss_ns: float, **evidence: Any) -> Finding:
        """A finding about the run; one of several is named."""
        title = title if self.label == "run" else f"{subject(self.label)}: {title}"
        return Finding(
            "warning",
            self.label,
            title[:1].upper() + title[1:],
            {"elapsed_ns": self.elapsed_ns, **evidence},
            advice,
            loss_ns=int(loss_ns),
            interval=self.interval,
        )


def failed_calls(facts: Facts) -> Iterator[Finding]:
    """Launches, copies and synchronisations that returned an error: what they should have done did
    not happen."""
    failed = sorted(facts.failed_calls, key=lambda row: -row[2])
    if not failed:
        return
    named = [
        f"{call} {f'{count:,} times' if count > 1 else 'once'} with error {code}"
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
        _STATUS,
    )


def lost_records(facts: Facts) -> Iterator[Finding]:
    """The trace is not whole: what it says of the GPU is less than what happened."""
    known = facts.analysis.known.lost
    launches = [row for row in known if "without_kernel" in row]
    if launches:
        without = sum(row["without_kernel"] for row in launches)
        yield Finding(
            "error",
            "the run",
            f"{'1 kernel launch has' if without == 1 else f'{without:,} kernel launches have'} no kernel that begins "
            "later in this trace: "
            "records were lost, or time stamps of the GPU are wrong. What is said of the GPU counts only what is there.",
            {"launches_without_kernel": without},
            _RECORD_AGAIN,
        )
    for row in known:
        if after := row.get("after_last_call_ns"):
            yield Finding(
                "error",
                "the run",
                f"Ranges that call CUDA ({row['range']}) go on for {span(after)} after the last CUDA call of their thread "
                "in this trace: records were lost. What is said of the GPU counts only what is there.",
                {"after_last_call_ns": after},
                _RECORD_AGAIN,
            )


def no_gpu_work(facts: Facts) -> Iterator[Remark]:
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
            if not facts.failed_calls:
                text += (
                    ": the driver gave nsys none; usual reasons are WSL2, a virtual machine, a driver newer than this nsys, and "
                    "counters that are reserved for administrators (nsys status --environment)"
                )
        yield Remark(text)


def set_up(facts: Facts) -> Iterator[Finding]:
    """CUDA calls before the GPU's first work, and after its last, are what the process did."""
    for run in Run.all_of(facts) if not facts.measured_itself else ():
        known = run.known(facts, "set_up")
        if not known or known["busy_ns"] >= LITTLE_WORK_SHARE * known["whole_ns"]:
            continue
        least = SET_UP_SHARE * known["whole_ns"]
        if known["before_ns"] + known["after_ns"] < least:
            outside = known["until_ns"] + known["since_ns"]
            if known["busy_ns"] >= HARDLY_ANY_SHARE * known["whole_ns"] or outside < least:
                continue  # what the CPU did outside of CUDA calls may be as it should be
            numbers = {
                "first_call_to_first_work_ns": known["until_ns"],
                "whole_ns": known["whole_ns"],
            }
            if known["until_ns"] >= least:  # what creates a context need not be a recorded call
                title = (
                    f"{of(known['until_ns'], known['whole_ns'])} pass between the process's first CUDA call and the GPU's "
                    f"first work, {span(known['before_ns'])} of them in CUDA calls; the GPU works for {span(known['busy_ns'])}."
                )
                numbers["before_first_work_ns"] = known["before_ns"]
                numbers["gpu_works_ns"] = known["busy_ns"]
            else:
                within_ns = known["whole_ns"] - outside
                title = (
                    f"{span(known['whole_ns'])} pass from the process's first CUDA call to its last, and all its work on the GPU lies "
                    f"within {span(within_ns)}: {span(known['until_ns'])} before it, {span(known['since_ns'])} after it."
                )
                numbers["last_work_to_last_call_ns"] = known["since_ns"]
                numbers["work_within_ns"] = within_ns
            yield run.finding(title, NO_ADVICE, 0, **numbers)
            continue
        after = ""
        if known["after_ns"] >= WORTH_NAMING * known["whole_ns"]:
            after = f", {span(known['after_ns'])} after its last ({known['after_call']} {span(known['after_call_ns'])})"
        yield run.finding(
            f"{of(known['before_ns'], known['whole_ns'])} pass in CUDA calls before the GPU's first work "
            f"({known['before_call']} {span(known['before_call_ns'])}){after}: set-up; the GPU works for {span(known['busy_ns'])}.",
            NO_ADVICE,
            0,
            before_first_work_ns=known["before_ns"],
            before_call_ns=known["before_call_ns"],
            after_last_work_ns=known["after_ns"] if after else None,
            after_call_ns=known["after_call_ns"] if after else None,
            whole_ns=known["whole_ns"],
            gpu_works_ns=known["busy_ns"],
        )


def whole_run(facts: Facts) -> Iterator[Finding]:
    """A run of which the program measured less than half, by ranges or not at all: the GPU was idle
    for much of the time between its first and its last work, or copied."""
    if facts.measured_itself:
        return
    whole = facts.whole
    # a stream that ran nothing while others did, or one of several of a range, is not the GPU
    own = ~facts.column("library").astype(bool)
    others = np.array([not OTHER_STREAMS.isdisjoint(f) for f in facts.column("flags")], bool)
    own &= ~(others & (facts.column("kernel_only_upper_ns") == 0))
    own &= np.array([not _OF_A_STREAM.search(name) for name in facts.column("label")], bool)
    matrix = parts_matrix(whole)
    for run in Run.all_of(facts):
        inside = own & (facts.column("pid") == run.pid) & (facts.column("device") == run.device)
        inside = np.flatnonzero(inside)
        measured_ns = facts.once(inside, facts.column("elapsed_ns")[inside])
        if measured_ns > TYPICAL_SHARE * run.elapsed_ns:
            continue
        # pairs read from the trace that cover next to nothing are not all that counts
        named = (
            facts.column("kind")[inside] == "nvtx"
        ).any() or measured_ns > 0.02 * run.elapsed_ns
        row = matrix[(whole.intervals["interval"] == run.interval).to_numpy()][0]
        parts = dict(zip(CAUSES, row.tolist(), strict=True))
        details = whole.details[whole.details["interval"] == run.interval]
        staging = int(details.loc[details["detail"] == "staging", "ns"].sum())
        working = sum(parts[c] for c in OPERATION_KINDS) - staging
        moved = run.known(facts, "page_migrations")
        touched = moved.get("touched_ns", 0)
        parts["host"] -= min(parts["host"], touched)
        # pages that move are no copy of the program's
        copying = parts["memcpy"] - staging - moved.get("alone_ns", 0)
        parts["memcpy"] = staging
        ours = int(details.loc[details["detail"].str.startswith(OURS), "ns"].sum())
        if found := _idle(facts, run, parts, run.elapsed_ns - working - ours, details, touched):
            named_ns = facts.once(inside, facts.column("kernel_only_ns")[inside])
            if named and named_ns > TYPICAL_SHARE * (parts["kernel"] + parts["graph"]) > 0:
                # the program named what counts: the rest is set-up
                found = replace(found, severity="info", loss_ns=0, advice=NO_ADVICE)
            elif found.evidence["idle_ns"] < MOSTLY_IDLE * run.elapsed_ns:
                found = replace(found, severity="info")
            yield found
        if copying > max(WARN_SHARE * run.elapsed_ns, LEAST_COPYING_NS):
            found = _copying(facts, run, parts, copying, details)
            less = copying < parts["kernel"] + parts["graph"]
            yield replace(found, severity="info") if less else found


def _idle(
    facts: Facts, run: Run, parts: Mapping[str, int], idle: int, details: Any, touched: int
) -> Finding | None:
    """The GPU ran nothing for `idle`: which gap that is.  `touched`: of that, the CPU touched managed
    memory, which has a rule of its own."""
    known, explained = run.known(facts, "idle"), idle - touched
    gaps = facts.whole.gaps
    gaps = gaps[gaps["interval"] == run.interval].sort_values("ns", ascending=False, kind="stable")
    if touched:
        gaps = gaps[gaps["next"] != "page migration D2H"]
    longest = gaps[gaps["ns"] >= _PAUSE_SHARE * gaps["ns"].max()].head(3)
    # one that is half of it and more is said before what many have in common
    one_pause = len(gaps) > 0 and gaps["ns"].max() >= max(0.5 * idle, LEAST_PAUSE_NS)
    one_pause = one_pause and gaps["call"].iloc[0] != NOT_KNOWN
    if one_pause and longest["ns"].sum() < PAUSES_SHARE * explained:
        longest = longest.head(1)
    of_gaps = ", ".join(_gap(run, gap) for gap in longest.itertuples(index=False))
    pauses, first, back = (
        int(longest["ns"].sum()), known.get("first_ns", 0), known.get("back_ns", 0)
    )  # fmt: skip
    cause = max(_IDLE, key=lambda each: sum(parts[c] for c in each.causes))
    lost, remedy = sum(parts[c] for c in cause.causes), cause.remedy
    evidence: dict[str, Any] = {}
    named = False
    if explained > 0 and first >= max(FIRST_SHARE * explained, LEAST_LOADING_NS):
        lost, remedy, rest = first, _FIRST, run.elapsed_ns - first
        text = (
            f"for {span(lost)} of that it waited for {plural(known['first_kernels'], 'kernel')} to run for the first time "
            f"(when code is compiled, loaded or set up); the rest of the run takes {span(rest)}"
        )
        evidence = {"before_first_launches_ns": lost, "without_it_ns": rest}
        evidence["kernels"] = known["first_kernels"]
    elif explained > 0 and known.get("loading_ns", 0) >= FIRST_SHARE * explained:
        lost, remedy = known["loading_ns"], _FIRST
        text = (
            f"{span(lost)} of that lie in {plural(known['loading_count'], 'gap')} in which code was linked or loaded "
            f"({times_over(known['loads'])})"
        )
        evidence = {"loading_gaps_ns": lost, "count": known["loading_count"]}
        evidence["calls"] = known["loads"]
    elif explained > 0 and back >= BACK_SHARE * explained and not one_pause:
        # a GPU that hardly works has nothing to overlap
        lost, remedy = back, _RESULTS if idle < 0.9 * run.elapsed_ns else NO_ADVICE
        text = (
            f"{span(lost)} of that lie between a copy to the host and the next one to the device "
            f"({times_over(known['back_count'])})"
        )
        evidence = {"between_copies_ns": lost, "count": known["back_count"]}
    elif one_pause or (
        pauses >= max(PAUSES_SHARE * explained, LEAST_PAUSE_NS) and cause.causes[0] != "unknown"
    ):
        lost, remedy, named = pauses, NO_ADVICE, True
        what, them = (
            ("one pause", "it") if len(longest) == 1 else (f"{len(longest)} pauses", "them")
        )
        text = (
            f"{span(lost)} of that is {what}: {of_gaps}; without {them} the GPU idles for "
            f"{span(idle - lost)}"
        )
        evidence = {"pauses_ns": lost, "otherwise_idle_ns": idle - lost, "pauses": len(longest)}
    else:
        text, evidence, remedy = _by_cause(cause, lost, known, parts, details)
        many = known.get("long_gaps", 0)
        if of_gaps and not remedy.faster and many >= _MANY_GAPS:
            text += f"; {many:,} gaps of {span(known['long_gap_ns'])} or more take {span(known['long_gaps_ns'])} in all"
            evidence |= {"gaps": many} | {f"{c}_ns": known[f"long_{c}_ns"] for c in ("gap", "gaps")}
        elif of_gaps and not remedy.faster:
            text, named = f"{text}; the longest: {of_gaps}", True
    if lost <= WARN_SHARE * run.elapsed_ns:
        if idle < TYPICAL_SHARE * run.elapsed_ns:
            return None
        # nothing stands out: what it consists of
        named, remedy, lost = False, NO_ADVICE, 0
        text, evidence = _several(known, parts)
    for number, gap in enumerate(longest.itertuples(index=False) if named else (), 1):
        evidence[f"pause_{number}_ns"] = int(gap.ns)
        evidence[f"pause_{number}_at_ns"] = max(int(gap.start_ns) - run.start_ns, 0)
    return run.finding(
        f"between its first and its last work the GPU ran nothing for {of(idle, run.elapsed_ns)}; {text}.",
        remedy,
        lost,
        idle_ns=idle,
        **evidence,
    )


def _several(known: Mapping[str, Any], parts: Mapping[str, int]) -> tuple[str, dict[str, Any]]:
    """The three largest parts of the idle time, with their numbers."""
    sums = sorted(
        ((sum(parts[c] for c in each.causes), each) for each in _IDLE), key=lambda row: -row[0]
    )
    texts = [f"for {span(ns)} {each.text}" for ns, each in sums[:_MOST_NAMED] if ns]
    called = known.get("sync_count", 0)
    if called >= _MANY_GAPS:
        texts.append(f"{known['sync_call']} was called {times_over(called)}")
    evidence = {f"idle_{n}_ns": ns for n, (ns, _) in enumerate(sums[:_MOST_NAMED], 1)}
    return "; ".join(texts), evidence | ({"calls": called} if called >= _MANY_GAPS else {})


def _by_cause(
    cause: _Idle, lost: int, known: Mapping[str, Any], parts: Mapping[str, int], details: Any
) -> tuple[str, dict[str, Any], Advice]:
    """What most of the idle time has in common, in words, with its numbers, and what to do."""
    text, evidence = f"for {span(lost)} of that {cause.text}", {"idle_for_this_ns": lost}
    calls = details[details["cause"].isin(cause.causes) & (details["detail"] != "")]
    calls = calls.groupby("detail", sort=False)["ns"].sum()
    if len(calls) and cause.causes[0] in ("api", "sync"):
        most = str(calls.idxmax())
        text += f", most of it in {most}"
        if cause.causes == ("sync",) and most == known.get("sync_call"):
            text += f" (called {times_over(known['sync_count'])})"
            evidence["calls"] = known["sync_count"]
    if cause.causes[0] != "api_launch":
        return text, evidence, cause.remedy
    small = (parts["kernel"] + parts["memset"]) / max(known.get("operations", 1), 1)
    if details["detail"].str.contains(GRAPH_LAUNCH).any():
        return text, evidence, Advice("", IN_GRAPHS)
    return text, evidence, NO_ADVICE if known and small > SMALL_NS else cause.remedy


def _gap(run: Run, gap: Any) -> str:
    """ "0.70 s at 1.2 s before copy H2D pinned (the CPU outside of CUDA)": time since the run's first
    work."""
    called = gap.call and gap.call_ns > 0.02 * gap.ns
    did = "no CUDA call took half of it" if called else "the CPU outside of CUDA"
    if 2 * gap.call_ns >= gap.ns:
        did = f"the CPU in {gap.call}"
    if gap.call == NOT_KNOWN:
        did = NOT_KNOWN
    since = span(max(int(gap.start_ns) - run.start_ns, 0))
    return f"{span(int(gap.ns))} at {since} before {kernel_name(gap.next)} ({did})"


def _copying(
    facts: Facts, run: Run, parts: Mapping[str, int], copying: int, details: Any
) -> Finding:
    """The GPU copied for much of the run."""
    kernels = parts["kernel"] + parts["graph"]
    copies = details[(details["cause"] == "memcpy") & (details["detail"] == "copy")]
    staged = (copies["memory"] == "pageable").to_numpy()
    what, beside, faster, own = "copies", 0, 0, ""
    if copies.loc[staged, "ns"].sum() > copying / 2:
        faster, beside = (
            int((copies["ns"] - from_pinned_ns(copies, {}))[staged].sum()),
            parts["host"],
        )
        most = " of" if staged.all() else ", most of the time of"
        what += f"{most} pageable memory{'' if staged.all() else ','}"
    if beside:
        own = f", the CPU's own code before and between them {span(beside)}"
    evidence: dict[str, Any] = {"outside_CUDA_ns": beside or None}
    again, repeats = run.known(facts, "idle"), ""
    if again.get("alike_count", 0) >= _OFTEN and again["alike_ns"] > TYPICAL_SHARE * copying:
        repeats = (
            f"; {again['alike_count']:,} copies of {quantity('bytes', again['alike_bytes'])} {again['alike_way']} take "
            f"{span(again['alike_ns'])} of it"
        )
        evidence |= {f"alike_copies{unit}": again[f"alike{unit or '_count'}"] for unit in ("", "_bytes", "_ns")}  # fmt: skip
    return run.finding(
        f"{what} take {of(copying, run.elapsed_ns)} between the first and the last work of the GPU; its kernels "
        f"take {span(kernels)}{own}{repeats}.",
        _PINNED if what != "copies" else _LESS,
        min(copying, faster + kernels + beside),
        copying_ns=copying,
        kernels_ns=kernels,
        **evidence,
    )


def few_blocks(facts: Facts) -> Iterator[Finding]:
    """Kernels with so few blocks that half of the GPU or more has nothing to do, or with blocks of
    less than a warp: the rest of each warp has nothing to do."""
    for run in Run.all_of(facts) if not facts.measured_itself else ():
        half = run.known(facts, "few_blocks").get("few_blocks_ns", 0) > WARN_SHARE * run.elapsed_ns
        for what, faster in (
            ("few_blocks", _MORE_BLOCKS), ("fewer_blocks", _MORE_BLOCKS), ("few_threads", _WHOLE_WARPS)
        ):  # fmt: skip
            few = run.known(facts, what)
            ns = few.get(f"{what}_ns", 0)
            least = TYPICAL_SHARE if what == "fewer_blocks" else WARN_SHARE
            if ns <= least * run.elapsed_ns or (what == "fewer_blocks" and half):
                continue
            ran = facts.whole.kernels
            ran = ran[(ran["label"] == run.label) & (ran["kernel"] == few["kernel"])]
            if 0 < ran["total_ns"].sum() <= SMALL_NS * ran["count"].sum():
                continue  # its launch takes longer than it: more blocks gain nothing
            size, part_of = few["multiprocessors"], of(ns, run.elapsed_ns)
            name = kernel_name(few["kernel"])
            if few.get("kinds", 1) > 1:  # it has only a part of the time
                name += f" (of {few['kinds']} such kernels the one that runs longest: {span(few['longest_ns'])})"
            launched = (
                f"{name} was launched with {plural(few['blocks'], 'block')} of "
                f"{plural(few['threads_per_block'], 'thread')}"
            )
            evidence = {f"{what}_ns": ns, "blocks": few["blocks"]}
            evidence |= {c: few[c] for c in ("kinds", "longest_ns") if few.get("kinds", 1) > 1}
            evidence["threads_per_block"] = few["threads_per_block"]
            if what != "few_threads":
                gpu = f", and the GPU has {size:,} multiprocessors" if size else ""
                part = "half" if what == "few_blocks" else "a third"
                title = (
                    f"for {part_of} at least {part} of the GPU had nothing to do: {launched}{gpu}."
                )
                evidence["multiprocessors"] = size or None
            else:
                title = f"for {part_of} nothing ran but blocks of fewer threads than a warp: {launched}, and a warp has {WARP}."
                evidence["threads_of_a_warp"] = WARP
            yield run.finding(title, faster, few["unused_ns"], **evidence)


def page_migrations(facts: Facts) -> Iterator[Finding]:
    """Managed memory whose pages moved when they were touched: kernels wait for them, and so does
    the CPU."""
    for run in Run.all_of(facts) if not facts.measured_itself else ():
        moved = run.known(facts, "page_migrations")
        idle, lost = moved.get("touched_ns", 0), moved.get("moving_ns", 0)
        if idle > WARN_SHARE * run.elapsed_ns:
            yield run.finding(
                f"for {of(idle, run.elapsed_ns)} the GPU ran nothing while the CPU touched managed memory: its pages "
                f"came back from the GPU in {plural(moved['touched_count'], 'migration')}, one after the other; "
                f"{quantity('bytes', moved['to_host_bytes'])} moved to the host in {span(moved['to_host_ns'])}.",
                _BACK,
                0,  # what the CPU does between two touches remains, and faults are not in the trace
                idle_before_migrations_ns=idle,
                migrations_to_the_host=moved["touched_count"],
                bytes_to_the_host=moved["to_host_bytes"],
                moving_to_the_host_ns=moved["to_host_ns"],
            )
        if moved.get("asked") or lost <= _MOVING_SHARE * run.elapsed_ns:
            continue
        inside = lost - moved["alone_ns"]
        count = moved["to_device_count"] + moved["to_host_count"]
        yield run.finding(
            f"managed memory moved page by page when it was touched: {plural(count, 'migration')} to and from the "
            f"GPU. Pages moved for {span(inside)} while kernels ran, and for {span(moved['alone_ns'])} while none "
            "did; how long the page faults themselves took is not in the trace.",
            _MANAGED,
            lost,
            migrations=count,
            migrations_during_kernels_ns=inside,
            migrations_without_kernels_ns=moved["alone_ns"],
        )


def run_sentence(analysis: Analysis, number: int, parts: Mapping[str, int]) -> str:
    """ "GPU-bound: fit_lines is 81 % of its kernels' time." or "Copying: H2D 921 of 969 ms at 27 GB/s.";
    '' where the GPU was not busy with either.  `number`: the run's interval."""
    run = analysis.intervals[analysis.intervals["interval"] == number].iloc[0]
    elapsed = max(int(run["elapsed_ns"]), 1)
    if parts["kernel"] + parts["graph"] >= KERNELS_SHARE * elapsed:
        ran = analysis.kernels[analysis.kernels["label"] == run["label"]]
        ran = ran[ran["kind"] == "kernel"]
        if not len(ran):
            return "GPU-bound."
        most = ran.loc[ran["total_ns"].idxmax()]
        share = percent(most["total_ns"] / max(ran["total_ns"].sum(), 1))
        return f"GPU-bound: {kernel_name(most['kernel'])} is {share} of its kernels' time."
    details = analysis.details
    copies = details[(details["interval"] == number) & (details["cause"] == "memcpy")]
    copies = copies[(copies["detail"] == "copy") & copies["direction"].isin(["H2D", "D2H"])]
    ns = copies.groupby("direction")["ns"].sum()
    if not len(ns) or ns.max() < COPIES_SHARE * elapsed:
        return ""
    way = copies[copies["direction"] == ns.idxmax()]
    known = way[way["bandwidth_gb_s"] > 0]
    rate = known["bytes"].sum() / max((known["bytes"] / known["bandwidth_gb_s"]).sum(), 1)
    speed = f" at {rate:,.3g} GB/s" if rate > 0 else ""
    return f"Copying: {ns.idxmax()} {of(int(ns.max()), elapsed)}{speed}."
