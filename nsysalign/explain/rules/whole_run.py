"""What can be said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import GRAPH_LAUNCH, TYPICAL_SHARE, WARN_SHARE, Facts, remembered
from nsysalign.explain.finding import Advice, Finding, Remark, Words, evidence
from nsysalign.explain.rules.contents import from_pinned_ns
from nsysalign.explain.rules.launching import SMALL_NS
from nsysalign.model import CAUSES, OPERATION_KINDS, OURS, WARP
from nsysalign.parts import parts_matrix
from nsysalign.split.runs import NOT_KNOWN
from nsysalign.text import quantity

#: Kernels of a few blocks that ran for no longer than this would not gain by more.
FEW_BLOCKS_NS = 20_000
_MOST_NAMED = 3
#: What calls return when the program ends and the driver is gone already: no error.
_SHUT_DOWN = 4
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
    remedy: Words | None


_IDLE = (
    _Idle(("host",), "the CPU was in its own code and had not launched the next work", None),
    _Idle(
        ("api_launch", "launch_latency"),
        "the CPU was inside calls that launch work, or the launched work was on its way",
        Words(
            "Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph",
            'f = torch.compile(f, mode="reduce-overhead")',
        ),
    ),
    _Idle(
        ("sync",),
        "the CPU was inside a synchronisation",
        Words(
            "Drop the synchronisation between launches: wait only where something depends on it, "
            "and on the GPU rather than on the CPU"
        ),
    ),
    _Idle(
        ("api",),
        "the CPU was inside CUDA calls that launch nothing",
        Words("Call it once, before the part that counts"),
    ),
    _Idle(
        ("memcpy",),
        "the CPU staged pageable memory for a copy",
        Words("Copy from pinned memory, which needs no staging"),
    ),
    _Idle(
        ("unknown",),
        "the trace does not say why",
        Words(
            "Record the whole program from its start; where it uses managed memory, record its page faults as well:   "
            "nsys profile -t cuda,nvtx --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true"
        ),
    ),
)
#: Which gap it is, from these shares of the idle time on: before first launches; a few pauses; on
#: results in between.
FIRST_SHARE, PAUSES_SHARE, BACK_SHARE = 0.6, 0.8, 0.8
#: A pause is named with others from this share of the longest on.
_PAUSE_SHARE = 0.1
#: A run that copied for less than this in all has nothing to gain.
LEAST_COPYING_NS = 20_000
#: Copies that are alike are named from so many on.
_OFTEN = 5
#: What a fault on a page costs besides moving it, at most.
FAULT_NS = 50_000
_PAUSES = Words(
    "If that is set-up, leave it out of what is recorded (cudaProfilerStart and cudaProfilerStop with "
    "nsys profile --capture-range=cudaProfilerApi) and look again; if it repeats, shorten it"
)
_RESULTS = Words(
    "Do that work on the GPU, or pipeline: work on the last result while the GPU computes the next"
)
_MORE_IN_GRAPHS = Words(
    "Put more of the work into the CUDA graphs that are replayed here, several steps into one, and fuse what is launched beside them"
)
_FIRST = Words(
    "Warm up before the part that counts; cache what is compiled, or load all code when the program starts "
    "(CUDA_MODULE_LOADING=EAGER)"
)
_PINNED = Words(
    "Copy less and once, from pinned memory, and on a stream of its own, while kernels run and the host goes on"
)
_ONCE = Words("Copy less and once, and on a stream of its own while kernels run")
_BACK = Words(
    "Fetch what the host reads before it does (cudaMemPrefetchAsync to cudaCpuDeviceId, or one copy), or do that work on the GPU"
)
_MANAGED = Words(
    "Move managed memory before it is touched (cudaMemPrefetchAsync), say how it is used (cudaMemAdvise), or copy explicitly from "
    "pinned memory:   cudaMemPrefetchAsync(pointer, bytes, device, stream);"
)
_WHOLE_WARPS = Words(
    "Launch blocks of 128 threads or more, and fewer of them: a block takes a whole warp, whatever it uses of it"
)
_MORE_BLOCKS = Words(
    "Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data; "
    "or run other work beside it, on other streams"
)
_STATUS = Advice(
    "Check the status of every call; a failed launch does nothing, and its time is no kernel's:   "
    "cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM"
)


@dataclass(frozen=True)
class Run:
    """All work of a process on a device, from its first to its last."""

    number: int
    label: str
    pid: int
    device: int
    elapsed: int
    start: int

    def finding(
        self,
        title: str,
        faster: Words | None,
        loss_ns: float,
        severity: str = "warning",
        **values: Any,
    ) -> Finding:
        """A finding about the run; one of several is named."""
        title = title if self.label == "run" else f"{words.subject(self.label)}: {title}"
        return Finding(
            severity,
            self.label,
            title[:1].upper() + title[1:],
            evidence(**values),
            Advice(faster=faster),
            loss_ns=int(loss_ns),
            interval=self.number,
        )


@remembered
def _runs(facts: Facts) -> list[Run]:
    """One of each process and device."""
    table = facts.whole.runs.drop_duplicates(["pid", "device"])
    columns = ("interval", "label", "pid", "device", "elapsed_ns", "start_ns")
    return [Run(*row) for row in zip(*(table[c].tolist() for c in columns), strict=True)]


def _known(facts: Facts, what: str, run: Run) -> Mapping[str, Any]:
    """What is known of a run beside its parts; {} for nothing."""
    rows = facts.analysis.calibration.get(what, ())
    return next((r for r in rows if (r["pid"], r["device"]) == (run.pid, run.device)), {})


def failed_calls(facts: Facts) -> Iterator[Finding]:
    """Launches, copies and synchronisations that returned an error: what they should have done did
    not happen."""
    failed = [row for row in facts.whole.trace.failed_calls if row[1] != _SHUT_DOWN]
    failed.sort(key=lambda row: -row[2])
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
        f"{words.plural(total, 'CUDA call')} failed: {', '.join(named)}{more}.",
        {"failed_calls": total, "by_call": by_call},
        _STATUS,
    )


def no_gpu_work(facts: Facts) -> Iterator[Remark]:
    """CUDA calls and not a row of what they made the GPU do."""
    made = facts.analysis.calibration.get("calls_without_work")
    if not made:
        return
    calls = f"the trace holds {words.plural(made['calls'], 'CUDA call')}"
    if made["issuing"]:
        yield Remark(
            f"{calls}, {made['issuing']:,} of which give work to the GPU, but no row of it: the driver gave nsys none, or "
            "every such call failed; usual reasons are WSL2, a virtual machine, a driver newer than this nsys, and counters that are "
            "reserved for administrators (nsys status --environment)"
        )
    else:
        yield Remark(
            f"{calls}, and none of them gives work to the GPU: check that the program reached its GPU part, and that the process "
            "that does was recorded"
        )


@remembered
def _measured_itself(facts: Facts) -> bool:
    """Whether the program measured what it wanted to know, or its calls failed: then nothing is said
    of the run."""
    measured = (facts.column("method") != "inferred") & (facts.column("kind") != "nvtx")
    whole = facts.whole
    return bool(measured.any() or whole.trace.failed_calls or not whole.unaligned.empty)


def whole_run(facts: Facts) -> Iterator[Finding]:
    """A run of which the program measured less than half, by ranges or not at all: the GPU was idle
    for much of the time between its first and its last work, or copied."""
    if _measured_itself(facts):
        return
    whole = facts.whole
    own = ~facts.column("library").astype(bool)
    matrix = dict(zip(whole.intervals["interval"].tolist(), parts_matrix(whole).tolist(), strict=True))  # fmt: skip
    for run in _runs(facts):
        inside = own & (facts.column("pid") == run.pid) & (facts.column("device") == run.device)
        inside = np.flatnonzero(inside)
        if facts.once(inside, facts.column("elapsed_ns")[inside]) > TYPICAL_SHARE * run.elapsed:
            continue
        parts = dict(zip(CAUSES, matrix[run.number], strict=True))
        details = whole.details[whole.details["interval"] == run.number]
        staging = int(details.loc[details["detail"] == "staging", "ns"].sum())
        working = sum(parts[c] for c in OPERATION_KINDS) - staging
        moved = _known(facts, "page_migrations", run)
        parts["host"] -= min(parts["host"], moved.get("touched_ns", 0))
        # pages that move are no copy of the program's
        copying = parts["memcpy"] - staging - moved.get("alone_ns", 0)
        parts["memcpy"] = staging
        ours = int(details.loc[details["detail"].str.startswith(OURS), "ns"].sum())
        ran_nothing = run.elapsed - working - ours
        named_ns = facts.once(inside, facts.column("kernel_only_ns")[inside])
        for finding in _idle(facts, run, parts, ran_nothing, details, moved.get("touched_ns", 0)):
            if named_ns > TYPICAL_SHARE * (parts["kernel"] + parts["graph"]) > 0:
                # the program named what counts: the rest is set-up
                finding = replace(finding, severity="info", loss_ns=0, advice=Advice())
            yield finding
        if copying > max(WARN_SHARE * run.elapsed, LEAST_COPYING_NS):
            yield _copying(facts, run, parts, copying, details)


def _idle(
    facts: Facts, run: Run, parts: Mapping[str, int], idle: int, details: Any, touched: int
) -> Iterator[Finding]:
    """The GPU ran nothing for `idle`: which gap that is.  `touched`: of that, the CPU touched managed
    memory, which has a rule of its own."""
    known, explained = _known(facts, "idle", run), idle - touched
    gaps = facts.whole.gaps
    gaps = gaps[gaps["interval"] == run.number].sort_values("ns", ascending=False, kind="stable")
    if touched:
        gaps = gaps[~gaps["next"].str.startswith("page migration")]
    longest = gaps[gaps["ns"] >= _PAUSE_SHARE * gaps["ns"].max()].head(3)
    of_gaps = _named(run, longest)
    cause = max(_IDLE, key=lambda idle: sum(parts[c] for c in idle.causes))
    lost, remedy = sum(parts[c] for c in cause.causes), cause.remedy
    numbers: dict[str, Any] = {}
    shown = False
    text = f"for {words.span(lost)} of that {cause.text}"
    first, back, pauses = (
        known.get("first_ns", 0),
        known.get("back_ns", 0),
        int(longest["ns"].sum()),
    )
    if explained > 0 and first >= FIRST_SHARE * explained:
        lost, remedy, kernels = first, _FIRST, known["first_kernels"]
        text = (
            f"for {words.span(lost)} of that code was compiled or loaded, or set up, before "
            f"{words.plural(kernels, 'kernel')} ran for the first time; the rest of the run takes {words.span(run.elapsed - lost)}"
        )
        numbers = {"before_first_launches_ns": lost, "without_it_ns": run.elapsed - lost}
        numbers["kernels"] = kernels
    elif explained > 0 and back >= BACK_SHARE * explained:
        lost, remedy = back, _RESULTS
        text = (
            f"for {words.span(lost)} of that the CPU worked on results, between a copy to the host and the "
            f"next one to the device ({words.times_over(known['back_count'])})"
        )
        numbers = {"between_copies_ns": lost, "count": known["back_count"]}
    elif explained > 0 and pauses >= PAUSES_SHARE * explained and cause.causes[0] != "unknown":
        waited = longest["call"].str.contains("Synchronize").any()
        lost, remedy = pauses, None if waited else _PAUSES
        what, them = "one pause", "it"
        if len(longest) > 1:
            what, them = f"{len(longest)} pauses", "them"
        text = (
            f"{words.span(lost)} of that is {what}: {of_gaps}; without {them} the GPU idles for "
            f"{words.span(idle - lost)}"
        )
        numbers = {"pauses_ns": lost, "otherwise_idle_ns": idle - lost, "pauses": len(longest)}
        shown = True
    else:
        numbers = {"idle_for_this_ns": lost}
        kind = cause.causes[0]
        calls = details[details["cause"].isin(cause.causes) & (details["detail"] != "")]
        calls = calls.groupby("detail", sort=False)["ns"].sum()
        if len(calls) and kind in ("api", "sync"):
            numbers["mostly_in"] = str(calls.idxmax())
            text += f", most of it in {numbers['mostly_in']}"
        if kind == "sync" and numbers.get("mostly_in") == known.get("sync_call"):
            text += f" (called {words.times_over(known['sync_count'])})"
            numbers["calls"] = known["sync_count"]
        if kind == "api_launch":
            small = (parts["kernel"] + parts["memset"]) / max(known.get("operations", 1), 1)
            if details["detail"].str.contains(GRAPH_LAUNCH).any():
                remedy = _MORE_IN_GRAPHS
            elif known and small > SMALL_NS:
                remedy = None
    if lost <= WARN_SHARE * run.elapsed:
        return
    where = ""
    if of_gaps and remedy is None and not shown:
        where, shown = f"; the longest: {of_gaps}", True
    if shown:
        for number, gap in enumerate(longest.itertuples(index=False), 1):
            numbers[f"pause_{number}_ns"] = int(gap.ns)
            numbers[f"pause_{number}_at_ns"] = max(int(gap.start_ns) - run.start, 0)
        numbers["before"] = ", ".join(longest["next"])
    yield run.finding(
        f"between its first and its last work the GPU ran nothing for {words.of(idle, run.elapsed)}; {text}{where}.",
        remedy,
        lost,
        idle_ns=idle,
        elapsed_ns=run.elapsed,
        **numbers,
    )


def _named(run: Run, gaps: Any) -> str:
    """ "0.70 s at 1.2 s before copy H2D pinned (the CPU outside of CUDA), ...": times since the run's
    first work."""
    texts = []
    for gap in gaps.itertuples(index=False):
        did = "no CUDA call took half of it" if gap.call else "the CPU outside of CUDA"
        if 2 * gap.call_ns >= gap.ns:
            did = f"the CPU in {gap.call}"
        if gap.call == NOT_KNOWN:
            did = NOT_KNOWN
        since = words.span(max(int(gap.start_ns) - run.start, 0))
        texts.append(
            f"{words.span(int(gap.ns))} at {since} before {words.kernel(gap.next)} ({did})"
        )
    return ", ".join(texts)


def _copying(
    facts: Facts, run: Run, parts: Mapping[str, int], copying: int, details: Any
) -> Finding:
    """The GPU copied for much of the run."""
    kernels = parts["kernel"] + parts["graph"]
    copies = details[(details["cause"] == "memcpy") & (details["detail"] == "copy")]
    staged = (copies["memory"] == "pageable").to_numpy()
    pageable = copies.loc[staged, "ns"].sum() > copying / 2
    faster = int((copies["ns"] - from_pinned_ns(copies))[staged].sum()) if pageable else 0
    # from pageable memory the host waits for each copy; from pinned it goes on meanwhile
    beside = parts["host"] if pageable else 0
    own = f", the host's own code before and between them {words.span(beside)}" if beside else ""
    what = "copies"
    if pageable:
        most = " of" if staged.all() else ", most of the time of"
        what += f"{most} pageable memory, for which the host waits,"
    again, repeats = _known(facts, "idle", run), ""
    if again.get("alike_count", 0) >= _OFTEN and again["alike_ns"] > TYPICAL_SHARE * copying:
        repeats = (
            f"; {quantity('bytes', again['alike_bytes'])} go {again['alike_way']} {words.times_over(again['alike_count'])}, "
            f"{words.span(again['alike_ns'])} together"
        )
    return run.finding(
        f"{what} take {words.of(copying, run.elapsed)} between the first and the last work of the GPU; its kernels "
        f"take {words.span(kernels)}{own}{repeats}.",
        _PINNED if pageable else _ONCE,
        # what is copied once instead of again and again is not copied
        min(copying, max(faster + kernels, again.get("again_ns", 0)) + beside),
        copying_ns=copying,
        elapsed_ns=run.elapsed,
        kernels_ns=kernels,
        outside_CUDA_ns=beside or None,
        alike_copies=again["alike_count"] if repeats else None,
        alike_copies_bytes=again["alike_bytes"] if repeats else None,
        alike_copies_ns=again["alike_ns"] if repeats else None,
    )


def few_blocks(facts: Facts) -> Iterator[Finding]:
    """Kernels with so few blocks that half of the GPU or more has nothing to do, or with blocks of
    less than a warp: the rest of each warp has nothing to do."""
    for run in _runs(facts) if not _measured_itself(facts) else ():
        least = max(WARN_SHARE * run.elapsed, FEW_BLOCKS_NS)
        few = _known(facts, "few_blocks", run)
        if few.get("few_blocks_ns", 0) > least:
            size = few["multiprocessors"]
            gpu = f", and the GPU has {size:,} multiprocessors" if size else ""
            yield run.finding(
                f"for {words.of(few['few_blocks_ns'], run.elapsed)} at least half of the GPU had nothing to do: {_launched(few)}{gpu}.",
                _MORE_BLOCKS,
                few["unused_ns"],
                few_blocks_ns=few["few_blocks_ns"],
                elapsed_ns=run.elapsed,
                blocks=few["blocks"],
                threads_per_block=few["threads_per_block"],
                multiprocessors=size or None,
            )
        few = _known(facts, "few_threads", run)
        if few.get("few_threads_ns", 0) > least:
            yield run.finding(
                f"for {words.of(few['few_threads_ns'], run.elapsed)} nothing ran but blocks of fewer threads than a warp: "
                f"{_launched(few)}, and a warp has {WARP}.",
                _WHOLE_WARPS,
                few["unused_ns"],
                few_threads_ns=few["few_threads_ns"],
                elapsed_ns=run.elapsed,
                blocks=few["blocks"],
                threads_per_block=few["threads_per_block"],
                threads_of_a_warp=WARP,
            )


def _launched(few: Mapping[str, Any]) -> str:
    return (
        f"{words.kernel(few['kernel'])} was launched with {words.plural(few['blocks'], 'block')} of "
        f"{words.plural(few['threads_per_block'], 'thread')}"
    )


def page_migrations(facts: Facts) -> Iterator[Finding]:
    """Managed memory whose pages moved when they were touched: kernels wait for them, and so does
    the host."""
    for run in _runs(facts):
        moved = _known(facts, "page_migrations", run)
        idle, lost = moved.get("touched_ns", 0), moved.get("moving_ns", 0)
        if idle > WARN_SHARE * run.elapsed:
            yield run.finding(
                f"for {words.of(idle, run.elapsed)} the GPU ran nothing while the host touched managed memory: its pages "
                f"came back from the GPU in {words.plural(moved['touched_count'], 'migration')}, one after the other.",
                _BACK,
                # what the CPU does between two touches remains
                min(idle, moved.get("to_host_ns", idle) + FAULT_NS * moved["touched_count"]),
                idle_before_migrations_ns=idle,
                elapsed_ns=run.elapsed,
                migrations_to_the_host=moved["touched_count"],
            )
        if moved.get("asked") or lost <= WARN_SHARE * run.elapsed:
            continue
        inside = lost - moved["alone_ns"]
        count = moved["to_device_count"] + moved["to_host_count"]
        yield run.finding(
            f"managed memory moved page by page when it was touched: {words.plural(count, 'migration')} to and from the "
            f"GPU. Pages moved for {words.span(inside)} while kernels ran, and for {words.span(moved['alone_ns'])} while none "
            "did; how long the page faults themselves took is not in the trace.",
            _MANAGED,
            lost,
            migrations=count,
            migrations_to_the_GPU=moved["to_device_count"],
            bytes_to_the_GPU=moved["to_device_bytes"],
            migrations_to_the_host=moved["to_host_count"],
            bytes_to_the_host=moved["to_host_bytes"],
            migrations_during_kernels_ns=inside,
            migrations_without_kernels_ns=moved["alone_ns"],
        )
