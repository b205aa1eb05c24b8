"""What can be said of a run as a whole: calls that failed, and where its time went if the program
measured little of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nsysalign.explain import words
from nsysalign.explain.facts import GRAPH_LAUNCH, TYPICAL_SHARE, WARN_SHARE, Facts, remembered
from nsysalign.explain.finding import Advice, Finding, Remark, Words, evidence
from nsysalign.explain.rules.contents import from_pinned_ns
from nsysalign.model import CAUSES, OPERATION_KINDS, OURS, WARP
from nsysalign.parts import parts_matrix

#: Kernels of a few blocks that ran for no longer than this would not gain by more.
FEW_BLOCKS_NS = 20_000
_MOST_NAMED = 3
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
    """What the host did while the device ran nothing: its causes, in words, and what to do."""

    causes: tuple[str, ...]
    text: str
    remedy: Words


_IDLE = (
    _Idle(
        ("host",),
        "the host was in its own code and had not launched the next work",
        Words("Launch earlier: move that work to another thread, or do it while the GPU is busy"),
    ),
    _Idle(
        ("api_launch", "launch_latency"),
        "the host was inside calls that launch work, or the launched work was on its way",
        Words(
            "Launch less: fuse the small operations, give each more work, or replay them as a CUDA graph",
            'f = torch.compile(f, mode="reduce-overhead")',
        ),
    ),
    _Idle(
        ("sync",),
        "the host was inside a synchronisation",
        Words("Wait only where something depends on it, and on the GPU rather than on the host"),
    ),
    _Idle(
        ("api",),
        "the host was inside CUDA calls that launch nothing",
        Words("Allocate and load once, before the part that counts"),
    ),
    _Idle(
        ("memcpy",),
        "the host staged pageable memory for a copy",
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
_MORE_IN_GRAPHS = Words(
    "Put more of the work into the CUDA graphs that are replayed here, several steps into one, and fuse what is launched beside them"
)
_FIRST = Words(
    "A kernel's first launch loads its code: launch it once before the part that counts, or load all when the program starts "
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

    def finding(
        self, title: str, faster: Words, loss_ns: float, severity: str = "warning", **values: Any
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
    columns = ("interval", "label", "pid", "device", "elapsed_ns")
    return [Run(*row) for row in zip(*(table[c].tolist() for c in columns), strict=True)]


def _known(facts: Facts, what: str, run: Run) -> Mapping[str, Any]:
    """What is known of a run beside its parts; {} for nothing."""
    rows = facts.analysis.calibration.get(what, ())
    return next((r for r in rows if (r["pid"], r["device"]) == (run.pid, run.device)), {})


def failed_calls(facts: Facts) -> Iterator[Finding]:
    """Launches, copies and synchronisations that returned an error: what they should have done did
    not happen."""
    failed = sorted(facts.whole.trace.failed_calls, key=lambda row: -row[2])
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
        idle = max(_IDLE, key=lambda idle: sum(parts[c] for c in idle.causes))
        lost = sum(parts[c] for c in idle.causes)
        if lost > WARN_SHARE * run.elapsed:
            ours = int(details.loc[details["detail"].str.startswith(OURS), "ns"].sum())
            yield _idle(facts, run, idle, lost, run.elapsed - working - ours, details)
        if copying > WARN_SHARE * run.elapsed:
            yield _copying(run, parts, copying, details)


def _idle(facts: Facts, run: Run, idle: _Idle, lost: int, rest: int, details: Any) -> Finding:
    """The GPU ran nothing for `rest`, for `lost` of it for one reason."""
    text, remedy, kind = idle.text, idle.remedy, idle.causes[0]
    calls = details[details["cause"].isin(idle.causes) & (details["detail"] != "")]
    calls = calls.groupby("detail", sort=False)["ns"].sum()
    most = str(calls.idxmax()) if len(calls) and kind in ("api", "sync") else None
    if most and kind == "api":
        text += f", most of it in {most}"
    one_call = False
    if kind == "api_launch":
        if details["detail"].str.contains(GRAPH_LAUNCH).any():
            remedy = _MORE_IN_GRAPHS
        gaps = facts.whole.gaps
        launches = gaps[(gaps["interval"] == run.number) & gaps["call"].str.contains("Launch")]
        for gap in launches.nlargest(1, "call_ns").itertuples(index=False):
            if gap.call_ns > lost / 2:
                one_call, lost, remedy = True, gap.call_ns, _FIRST
                text = f"the host was inside one call, the {gap.call} of {words.kernel(gap.next)}"
    return run.finding(
        f"between its first and its last work the GPU ran nothing for {words.of(rest, run.elapsed)}; for "
        f"{words.span(lost)} of that {text}.",
        remedy,
        lost,
        idle_ns=rest,
        elapsed_ns=run.elapsed,
        **{"one_call_ns" if one_call else "idle_for_this_ns": lost},
        mostly_in=most,
    )


def _copying(run: Run, parts: Mapping[str, int], copying: int, details: Any) -> Finding:
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
    return run.finding(
        f"{what} take {words.of(copying, run.elapsed)} between the first and the last work of the GPU; its kernels "
        f"take {words.span(kernels)}{own}.",
        _PINNED if pageable else _ONCE,
        min(copying, faster + kernels + beside),
        copying_ns=copying,
        elapsed_ns=run.elapsed,
        kernels_ns=kernels,
        outside_CUDA_ns=beside or None,
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
                idle,
                idle_before_migrations_ns=idle,
                elapsed_ns=run.elapsed,
                migrations_to_the_host=moved["touched_count"],
            )
        if lost <= WARN_SHARE * run.elapsed:
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
