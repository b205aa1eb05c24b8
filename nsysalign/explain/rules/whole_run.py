"""What can be said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import GRAPH_LAUNCH, Facts
from nsysalign.explain.finding import About, Finding, Words
from nsysalign.explain.rules.contents import from_pinned_ns
from nsysalign.model import CAUSES, OPERATION_KINDS, OURS, WARP
from nsysalign.parts import parts_matrix

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
_MOST_NAMED = 3


def failed_calls(facts: Facts) -> Iterator[Finding]:
    """Launches, copies and synchronisations that returned an error: what they should have done did
    not happen."""
    failed = sorted(facts.whole.trace.failed_calls, key=lambda row: -row[2])
    if not failed:
        return
    named = [
        f"{call} {count:,} times with error {code}"
        + (f" (cudaError{ERRORS[code]})" if code in ERRORS else "")
        for call, code, count in failed[:_MOST_NAMED]
    ]
    total = sum(count for _, _, count in failed)
    more = ", …" if len(failed) > _MOST_NAMED else ""
    yield About("the run", "").finding(
        "error",
        f"{words.plural(total, 'CUDA call')} failed: {', '.join(named)}{more}.".replace(
            " 1 times", " once"
        ),
        "Check the status of every call; a failed launch does nothing, and its time is no kernel's:   "
        "cudaError_t error = cudaGetLastError();   compute-sanitizer ./PROGRAM",
        failed_calls=total,
        by_call={f"{call}, error {code}": count for call, code, count in failed[:_MOST_NAMED]},
    )


def no_gpu_work(facts: Facts) -> Iterator[Finding]:
    """CUDA calls and not a row of what they made the GPU do."""
    made = (facts.analysis.calibration or {}).get("calls_without_work")
    if not made:
        return
    calls, issuing = made["calls"], made["issuing"]
    about = About("the run", "")
    evidence = {
        "calls": calls,
        "calls_that_issue_work": issuing,
        "longest_calls": made["longest"],
    }
    if not issuing:
        yield about.finding(
            "warning",
            f"The trace holds {words.plural(calls, 'CUDA call')}, and none of them gives work to the GPU.",
            "Check that the program reached its GPU part, and that the process that does was recorded",
            **evidence,
        )
        return
    yield about.finding(
        "warning",
        f"The trace holds {words.plural(calls, 'CUDA call')}, {issuing:,} of which give work to the GPU, but no row of that work: "
        "the driver gave nsys none, or every such call failed.",
        "Usual reasons are WSL2, a virtual machine, a driver newer than this nsys, and counters that are reserved for "
        "administrators: update nsys, run it where the driver lets it trace (nsys status --environment), and check the status "
        "of every call",
        **evidence,
    )


#: What the host did while the device ran nothing, by causes: in words, and what to do about it.
_IDLE: tuple[tuple[tuple[str, ...], str, Words], ...] = (
    (("host",), "the host was in its own code and had not launched the next work", Words("Launch earlier: move that work to another thread, or do it while the GPU is busy")),
    (("api_launch", "launch_latency"), "the host was inside calls that launch work, or the launched work was on its way", Words("Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph", 'f = torch.compile(f, mode="reduce-overhead")')),
    (("sync",), "the host was inside a synchronisation", Words("Wait only where something depends on it, and on the GPU rather than on the host")),
    (("api",), "the host was inside CUDA calls that launch nothing", Words("Allocate and load once, before the part that counts")),
    (("memcpy",), "the host staged pageable memory for a copy", Words("Copy from pinned memory, which needs no staging")),
    (("unknown",), "the trace does not say why", Words("Record the whole program from its start; where it uses managed memory, record its page faults as well:   nsys profile -t cuda,nvtx --cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true")),
)  # fmt: skip


def _measured_itself(facts: Facts) -> bool:
    """Whether the program measured what it wanted to know, or its calls failed: then nothing is said
    of the run."""
    whole = facts.whole
    measured = (facts.analysis.intervals["method"] != "inferred")[facts.kind != "nvtx"].any()
    return bool(measured or whole.trace.failed_calls or not whole.unaligned.empty)


def whole_run(facts: Facts) -> Iterator[Finding]:
    """A run of which the program measured less than half, by ranges or not at all: the GPU was idle
    for much of the time between its first and its last work, or copied."""
    whole = facts.whole
    if _measured_itself(facts):
        return
    own = ~facts.analysis.intervals["library"].to_numpy(dtype=bool)
    runs = whole.runs.drop_duplicates(["pid", "device"])
    matrix = parts_matrix(whole)
    numbers = whole.intervals["interval"].to_numpy()
    details = whole.details
    for run in runs.itertuples(index=False):
        mine = np.flatnonzero(own & (facts.pid == run.pid) & (facts.device == run.device))
        if facts.once(mine, facts.elapsed[mine]) > thresholds.TYPICAL_SHARE * run.elapsed_ns:
            continue
        at = int(np.flatnonzero(numbers == run.interval)[0])
        parts = dict(zip(CAUSES, matrix[at].tolist(), strict=True))
        held = details[details["interval"] == run.interval]
        staging = int(held.loc[held["detail"] == "staging", "ns"].sum())
        working = sum(parts[c] for c in OPERATION_KINDS) - staging
        copying, parts["memcpy"] = parts["memcpy"] - staging, staging
        moved = _moved(facts, run)
        parts["host"] -= min(parts["host"], moved.get("touched_ns", 0))
        copying -= moved.get("alone_ns", 0)  # no copy of the program's
        about = About(str(run.label), "")
        who = "" if run.label == "run" else f"{about.who}: "
        lost, causes, text, remedy = max(
            (
                (sum(parts[c] for c in causes), causes, text, remedy)
                for causes, text, remedy in _IDLE
            ),
            key=lambda item: item[0],
        )
        if lost > thresholds.WARN_SHARE * run.elapsed_ns:
            calls = held[held["cause"].isin(causes) & (held["detail"] != "")]
            calls = calls.groupby("detail", sort=False)["ns"].sum()
            most = str(calls.idxmax()) if len(calls) and causes[0] in ("api", "sync") else None
            if most and causes[0] == "api":
                text = f"the host was inside CUDA calls that launch nothing, most of it in {most}"
            ours = held.loc[held["detail"].str.startswith(OURS), "ns"].sum()
            rest = run.elapsed_ns - working - int(ours)
            once = _one_launch(facts, run.interval) if causes[0] == "api_launch" else None
            if causes[0] == "api_launch" and held["detail"].str.contains(GRAPH_LAUNCH).any():
                remedy = _MORE_IN_GRAPHS
            if once is not None and once.call_ns > lost / 2:
                text = f"the host was inside one call, the {once.call} of {words.kernel(once.next)}"
                lost, remedy = once.call_ns, _FIRST
            found = about.finding(
                "warning",
                f"{who}between its first and its last work the GPU ran nothing for {words.of(rest, run.elapsed_ns)}; for "
                f"{words.span(lost)} of that {text}.",
                "",
                idle_ns=rest,
                elapsed_ns=run.elapsed_ns,
                **{"one_call_ns" if remedy is _FIRST else "idle_for_this_ns": lost},
                mostly_in=most,
            )
            yield replace(_begun(found), run=int(run.interval), loss_ns=int(lost), remedy=remedy)
        if copying > thresholds.WARN_SHARE * run.elapsed_ns:
            kernels = parts["kernel"] + parts["graph"]
            copies = held[(held["cause"] == "memcpy") & (held["detail"] == "copy")]
            staged = (copies["memory"] == "pageable").to_numpy()
            pageable = copies.loc[staged, "ns"].sum() > copying / 2
            faster = int((copies["ns"] - from_pinned_ns(copies))[staged].sum()) if pageable else 0
            # from pageable memory the host waits for each copy; from pinned it goes on meanwhile
            beside = parts["host"] if pageable else 0
            own = f", the host's own code before and between them {words.span(beside)}"
            most = " of" if staged.all() else ", most of the time of"
            found = about.finding(
                "warning",
                f"{who}copies{f'{most} pageable memory, for which the host waits,' if pageable else ''} take "
                f"{words.of(copying, run.elapsed_ns)} between the first and the last work of the GPU; its kernels "
                f"take {words.span(kernels)}{own if beside else ''}.",
                "",
                copying_ns=copying,
                elapsed_ns=run.elapsed_ns,
                kernels_ns=kernels,
                outside_CUDA_ns=beside or None,
            )
            yield replace(
                _begun(found),
                run=int(run.interval),
                loss_ns=int(min(copying, faster + kernels + beside)),
                remedy=Words(
                    "Copy less and once, from pinned memory, and on a stream of its own, while kernels run and the host goes on"
                    if pageable
                    else "Copy less and once, and on a stream of its own while kernels run"
                ),
            )


_MORE_IN_GRAPHS = Words(
    "Put more of the work into the CUDA graphs that are replayed here, several steps into one, and fuse what is launched beside them"
)
_FIRST = Words(
    "A kernel's first launch loads its code: launch it once before the part that counts, or load all when the program starts "
    "(CUDA_MODULE_LOADING=EAGER)"
)


def _one_launch(facts: Facts, interval: int) -> Any:
    """The idle stretch of a run in which one launch took longest, as a row of `frames.GAPS`; None
    for none."""
    gaps = facts.whole.gaps
    mine = gaps[(gaps["interval"] == interval) & gaps["call"].str.contains("Launch")]
    return None if mine.empty else next(mine.nlargest(1, "call_ns").itertuples(index=False))


def few_blocks(facts: Facts) -> Iterator[Finding]:
    """Kernels with so few blocks that half of the GPU or more has nothing to do."""
    for run, who, few in _small_launches(facts, "few_blocks"):
        size = few["multiprocessors"]
        found = About(str(run.label), "").finding(
            "warning",
            f"{who}for {words.of(few['few_blocks_ns'], run.elapsed_ns)} at least half of the GPU had nothing to do: "
            f"{_launched(few)}" + (f", and the GPU has {size:,} multiprocessors." if size else "."),
            "",
            few_blocks_ns=few["few_blocks_ns"],
            elapsed_ns=run.elapsed_ns,
            blocks=few["blocks"],
            threads_per_block=few["threads_per_block"],
            multiprocessors=size or None,
        )
        yield replace(
            _begun(found), run=int(run.interval), loss_ns=few["unused_ns"], remedy=_MORE_BLOCKS
        )


def few_threads(facts: Facts) -> Iterator[Finding]:
    """Kernels with blocks of less than a warp: the rest of each warp has nothing to do."""
    for run, who, few in _small_launches(facts, "few_threads"):
        found = About(str(run.label), "").finding(
            "warning",
            f"{who}for {words.of(few['few_threads_ns'], run.elapsed_ns)} nothing ran but blocks of fewer threads than a warp: "
            f"{_launched(few)}, and a warp has {WARP}.",
            "",
            few_threads_ns=few["few_threads_ns"],
            elapsed_ns=run.elapsed_ns,
            blocks=few["blocks"],
            threads_per_block=few["threads_per_block"],
            threads_of_a_warp=WARP,
        )
        yield replace(
            _begun(found), run=int(run.interval), loss_ns=few["unused_ns"], remedy=_WHOLE_WARPS
        )


def _small_launches(facts: Facts, what: str) -> Iterator[tuple[Any, str, Mapping[str, Any]]]:
    """(run, who ran it as titles begin, what `split.few_blocks` says) where that is much of it."""
    if _measured_itself(facts):
        return
    known = {(f["pid"], f["device"]): f for f in facts.analysis.calibration.get(what, ())}
    for run in facts.whole.runs.drop_duplicates(["pid", "device"]).itertuples(index=False):
        few = known.get((run.pid, run.device), {})
        least = max(thresholds.WARN_SHARE * run.elapsed_ns, thresholds.FEW_BLOCKS_NS)
        if few.get(f"{what}_ns", 0) > least:
            yield run, "" if run.label == "run" else f"{words.subject(run.label)}: ", few


def _launched(few: Mapping[str, Any]) -> str:
    return (
        f"{words.kernel(few['kernel'])} was launched with {words.plural(few['blocks'], 'block')} of "
        f"{words.plural(few['threads_per_block'], 'thread')}"
    )


_WHOLE_WARPS = Words(
    "Launch blocks of 128 threads or more, and fewer of them: a block takes a whole warp, whatever it uses of it"
)
_MORE_BLOCKS = Words(
    "Give each launch more blocks than the GPU has multiprocessors, of 128 threads or more, and each thread a share of the data; "
    "or run other work beside it, on other streams"
)


def page_migrations(facts: Facts) -> Iterator[Finding]:
    """Managed memory whose pages moved when they were touched: kernels wait for them, and so does
    the host."""
    runs = facts.whole.runs.drop_duplicates(["pid", "device"])
    for run in runs.itertuples(index=False):
        about = About(str(run.label), "")
        who = "" if run.label == "run" else f"{about.who}: "
        moved = _moved(facts, run)
        idle = moved.get("touched_ns", 0)
        if idle > thresholds.WARN_SHARE * run.elapsed_ns:
            found = about.finding(
                "warning",
                f"{who}for {words.of(idle, run.elapsed_ns)} the GPU ran nothing while the host touched managed memory: its pages "
                f"came back from the GPU in {words.plural(moved['touched_count'], 'migration')}, one after the other.",
                "",
                idle_before_migrations_ns=idle,
                elapsed_ns=run.elapsed_ns,
                migrations_to_the_host=moved["touched_count"],
            )
            yield replace(_begun(found), run=int(run.interval), loss_ns=idle, remedy=_BACK)
        lost = moved.get("moving_ns", 0)
        if lost <= thresholds.WARN_SHARE * run.elapsed_ns:
            continue
        inside = lost - moved["alone_ns"]
        count = moved["to_device_count"] + moved["to_host_count"]
        found = about.finding(
            "warning",
            f"{who}managed memory moved page by page when it was touched: {words.plural(count, 'migration')} to and from the "
            f"GPU. Pages moved for {words.span(inside)} while kernels ran, and for {words.span(moved['alone_ns'])} while none "
            "did; how long the page faults themselves took is not in the trace.",
            "",
            migrations=count,
            migrations_to_the_GPU=moved["to_device_count"],
            bytes_to_the_GPU=moved["to_device_bytes"],
            migrations_to_the_host=moved["to_host_count"],
            bytes_to_the_host=moved["to_host_bytes"],
            migrations_during_kernels_ns=inside,
            migrations_without_kernels_ns=moved["alone_ns"],
        )
        yield replace(_begun(found), run=int(run.interval), loss_ns=lost, remedy=_MANAGED)


_BACK = Words(
    "Fetch what the host reads before it does (cudaMemPrefetchAsync to cudaCpuDeviceId, or one copy), or do that work on the GPU"
)
_MANAGED = Words(
    "Move managed memory before it is touched (cudaMemPrefetchAsync), say how it is used (cudaMemAdvise), or copy explicitly from "
    "pinned memory:   cudaMemPrefetchAsync(pointer, bytes, device, stream);"
)


def _moved(facts: Facts, run: Any) -> Mapping[str, Any]:
    """What is known of the migrations of a run's process on its device; {} where there were
    none."""
    moved = (facts.analysis.calibration or {}).get("page_migrations", ())
    return next((m for m in moved if (m["pid"], m["device"]) == (run.pid, run.device)), {})


def _begun(finding: Finding) -> Finding:
    """With a capital letter at the title's beginning."""
    return replace(finding, title=finding.title[:1].upper() + finding.title[1:])
