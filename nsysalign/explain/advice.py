"""What to change: a table of cause, what, framework and conditions.

A row fits where all that it asks for holds; the first row that fits is the advice, and where none
fits there is none.  A fix is a sentence and its whole code.  Two kinds: how to measure right, which
makes nothing faster, and what makes the program faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from nsysalign.causes import HIDDEN_BY_DELAY
from nsysalign.explain.case import LONG_PIECE_NS, VERY_MANY, Case, shown_groups
from nsysalign.explain.facts import of_others
from nsysalign.explain.finding import Advice
from nsysalign.explain.preparing import (
    CODE,
    CONVOLUTIONS,
    GRAPH,
    compiled,
    loading_share,
    times_compiled,
)
from nsysalign.explain.sentences import copies_pageable
from nsysalign.explain.validity import converts_to, largest_kernel
from nsysalign.explain.verdict import LATE_SHARE, NCCL
from nsysalign.label import SLOW, Group, Issued
from nsysalign.model import LAUNCH_QUEUE, NO_THREAD, OTHER_THREAD
from nsysalign.text import duration, kernel_name

#: A delay kernel must outlast the CPU's enqueueing by this factor, at about this many cycles per
#: microsecond; these many are long enough for ordinary intervals (about 1 ms; measured).
DELAY_MARGIN, DELAY_CYCLES_PER_US, DELAY_CYCLES = 3, 1_800, 2_000_000
#: Work whose enqueueing takes longer than this is not delayed, but captured or left as it is.
LONGEST_DELAYED_NS = 5_000_000
#: From this many operations on, launching them one by one has a cost that fusing saves.
MANY_OPERATIONS = 10
#: So many results are read back after the end event instead of inside.
_FEW_READ = 4
#: Conversions are worth advice from this share of the kernel time on.
_MUCH = 0.3
#: Loading code earlier is worth advice from this share of the time on.
_MUCH_LOADING = 0.2
_NEARLY_ALL = 0.9
#: The CPU is late, and can be ahead, where it costs at least this share.
_LATE = 0.1

_SYNC = "torch.cuda.synchronize()"
#: torch warns at each call that waits for the GPU, with its line.
_NAMES_LINES = 'torch.cuda.set_sync_debug_mode("warn")'
#: The same call of other libraries.
_SYNCS = {"torch": _SYNC, "cupy": "cp.cuda.Device().synchronize()", "numba": "cuda.synchronize()"}
_PIN = "x = x.pin_memory()  # once;   x.cuda(non_blocking=True)  # in the loop"
#: In what is timed once libraries call it to set CUDA up: there is nothing to free yet.
_SETS_UP = "cudaFree"
#: A launch call and a synchronisation take about so long together, recorded.
_LEAST_TIMED_NS = 20_000
#: Names of what fetches the next batch.
_LOADING = re.compile(
    r"data_?(time|load|wait)|load(er|ing)?_?time|(fetch|batch)_?wait", re.IGNORECASE
)
_FETCHES = re.compile(
    r"\b(data_?load\w*|load_?batch|next_?batch|fetch_?(data|batch\w*)|data)\b", re.IGNORECASE
)
#: Products of 32-bit floats that run on the CUDA cores, by the names that cuBLAS gives them.
_FP32_PRODUCT = re.compile(r"f32f32_f32f32_f32|_simt_sgemm|\bsgemm|_sgemm_")
#: GPUs older than Ampere, by their names.
_BEFORE_AMPERE = re.compile(r"\b(V100S?|T4G?|P\d+|K\d+\w?|M\d0|GTX|TITAN|Quadro|RTX 20\d0)\b")
#: Of an optimizer's step, one tensor at a time or by lists: x += a * y / z is what Adam does last.
_OPTIMIZER = re.compile(r"addcdiv|multi_tensor_apply.*PointwiseOp", re.DOTALL)
#: torch's kernel of one step of `GRUCell` or `LSTMCell`.
_CELL = re.compile(r"\b(gru|lstm)_cell_forward\b")
#: JAX takes longer than this from one operation to the next where Python calls each.
_LEAST_DISPATCH_NS = 8_000
#: CuPy's elementwise arithmetic, which cupy.fuse makes one kernel of; not its copies, sums, sorts and indexing.
_OF_CUPY = re.compile(
    r"^cupy_(add|subtract|multiply|true_divide|divide|floor_divide|remainder|power|negative|absolute|sqrt|square|exp\w*|log\w*|"
    r"a?(sin|cos|tan)h?|arc\w+|tanh|maximum|minimum|where|clip|sign|reciprocal|(less|greater)\w*|(not_)?equal|logical_\w+|"
    r"bitwise_\w+|floor|ceil|rint)__"
)
#: Kernels of cuDNN's recurrent networks.
_RECURRENT = re.compile(r"RNN|LSTM|GRU", re.IGNORECASE)
#: Kernels of cuFFT's, by their names.
_CUFFT = re.compile(r"\b(vector|regular|prime|bluestein|multi_bluestein)_fft|\bcufft")
_ALLOCATES = ("Malloc", "HostAlloc", "MemAlloc", "MemCreate", "HostRegister", "Free")
#: Calls that take memory of the GPU from the driver, and that give it back.
_TAKES = re.compile(r"^cu(da)?(Malloc|MemAlloc(?!Host)|MemCreate)(?!Host)")
_GIVES_BACK = re.compile(r"^cu(da)?(Free|MemFree|MemRelease)(?!Host)")


@dataclass(frozen=True)
class Row:
    """rules: for which findings.  fits: what else must hold.  sentence, code: of the fix; `{…}` are
    filled by `values`."""

    rules: tuple[str, ...]
    fits: Callable[[Case], bool]
    sentence: str
    code: str
    values: Callable[[Case], dict[str, str]] = lambda case: {}


def advice(rule: str, case: Case) -> Advice:
    """The fixes for a finding of this rule about the case's group, as far as there are any."""
    measuring, faster = (_first(table, rule, case) for table in (MEASURING, FASTER))
    text = f"{measuring[0]}:   {measuring[1]}" if measuring else ""
    return Advice(text, *(faster or ()))


def _first(table: tuple[Row, ...], rule: str, case: Case) -> tuple[str, str] | None:
    for row in table:
        if rule in row.rules and row.fits(case):
            values = row.values(case)
            return row.sentence.format(**values), row.code.format(**values)
    return None


# --- conditions ---


def _torch_events(case: Case) -> bool:
    return case.facts.torch and case.label.kind == "event"


def _torch(case: Case) -> bool:
    return case.facts.torch and case.facts.python


def _of(library: str) -> Callable[[Case], bool]:
    """A program of another library than torch."""
    return lambda case: case.facts.library == library and case.facts.python


def _costs(case: Case) -> bool:
    """What an event pair itself costs is a fifth of what it measured, or more; the program records both ends itself,
    not a library that it calls in one line."""
    row = case.facts.intervals.iloc[case.group.typical]
    costs_ns = case.ns("event", "launch_latency")
    return row["site"] != row["end_site"] and costs_ns >= LATE_SHARE * case.group.typical_ns


def _short_on_host(case: Case) -> bool:
    """A host timer of few operations that together run for less time than one launch and one synchronisation take."""
    is_single = 0 < case.operations < MANY_OPERATIONS and case.group.role == ""
    return case.on_host and is_single and case.kernels_ns < _LEAST_TIMED_NS and not case.own_code


def _enqueue_ns(case: Case) -> int:
    """How long the CPU takes to issue a typical interval, as far as the stream waited for it."""
    return case.ns(*HIDDEN_BY_DELAY)


def _late_ns(case: Case) -> int:
    return case.ns("host", "api", "api_launch")


def _can_run_ahead(case: Case) -> bool:
    """The CPU can enqueue all of it behind a delay: nothing in it waits for the GPU, and it fits in
    the launch queue."""
    work = case.group.work
    return (
        _torch_events(case)
        and not work.waits
        and not _pageable_copies_in(case)
        and (case.group.role != SLOW or _short_delay(case))
        and work.operations < LAUNCH_QUEUE
        and _late_ns(case) >= _LATE * case.group.typical_ns
        and _enqueue_ns(case) < LONGEST_DELAYED_NS
        and not case.others
        and case.thread_count == 1
        and not _begins_at_end(case)
    )


def _begins_at_end(case: Case) -> bool:
    """A timing of its group begins with the record that ends another one: a delay before that record would be part of
    the other timing."""
    timings = case.facts.intervals.iloc[case.group.intervals]
    beside = case.facts.intervals[case.facts.intervals["pid"].isin(timings["pid"])]
    return bool(timings["start_record"].isin(beside["end_record"]).any())


def _short_delay(case: Case) -> bool:
    """What makes it slow is the CPU in pieces that are too short to be sampled, and has no name: running ahead hides
    it."""
    named = any(entry.what for entry in case.group.of_cause("host")[:1])
    is_host = 2 * case.ns("host") >= case.group.typical_ns
    return is_host and not named and case.longest_piece_ns < LONG_PIECE_NS


def _pageable_copies_in(case: Case) -> int:
    """How many copies of pageable memory to the GPU it makes: torch waits for each of them."""
    return sum(copy.count for copy in _pageable_copies(case) if "H2D" in copy.name)


def _pageable_copies(case: Case) -> list[Issued]:
    return [copy for copy in case.group.work.of_kind("memcpy") if "pageable" in copy.name]


def _waits_itself(case: Case) -> bool:
    """The program waits oftener than it copies pageable memory, which no copy does without a wait."""
    copies = sum(copy.count for copy in _pageable_copies(case))
    return case.group.work.waits > copies or not case.group.work.waits


def _compiles(case: Case) -> bool:
    """torch.compile could fuse and capture it: a torch program of many operations, one kind of work,
    nothing that waits inside but copies of pageable memory to the GPU, not a graph already, and no kernels of
    CuPy's or numba's."""
    kinds = {group.work.name for group in case.label.steady if group.count > 1}
    kinds.add(case.group.work.name)
    return (
        _torch(case)
        and case.group.role != SLOW
        and case.operations >= MANY_OPERATIONS
        and case.small
        and len(kinds) == 1
        and case.group.work.waits <= _pageable_copies_in(case)
        and not case.graphs
        and not case.of_library
        and not any(of_others(kernel.name) for kernel in case.group.work.of_kind("kernel"))
    )


def _runs_cells(case: Case) -> bool:
    """Its recurrent network is a loop over torch's cells: a kernel of the cell's for each step."""
    kernels = case.group.work.of_kind("kernel")
    cells = sum(kernel.count for kernel in kernels if _CELL.search(kernel.name))
    return _torch(case) and cells >= MANY_OPERATIONS and not case.graphs


def _cell(case: Case) -> dict[str, str]:
    kernels = case.group.work.of_kind("kernel")
    cells = [(k.count, match[1].upper()) for k in kernels if (match := _CELL.search(k.name))]
    count, name = max(cells)
    return {"cell": name, "count": f"{count:,}"}


def _launches_and_waits(case: Case) -> bool:
    """It launches many small operations and waits between them, which a CUDA graph cannot hold; the launches are what
    takes the time."""
    return (
        _torch(case)
        and case.group.role != SLOW
        and case.operations >= MANY_OPERATIONS
        and case.small
        and case.group.work.waits > _pageable_copies_in(case)
        and not case.own_code
        and not case.graphs
        and not case.of_library
    )


def _waits(case: Case) -> dict[str, str]:
    waits = case.group.work.waits
    return {"waits": "its wait" if waits == 1 else f"its {waits:,} waits"}


def _recompiles(case: Case) -> bool:
    """Code is compiled in more timings than the first one, and the next, for which torch.compile makes it fit for
    other shapes."""
    by_first_ones = case.first_ones > 2 and compiled(case.group)
    return by_first_ones or times_compiled(case.label, case.group) > 2


def _recurrent(case: Case) -> bool:
    """cuDNN's recurrent networks: each step needs the one before."""
    return any(_RECURRENT.search(kernel.name) for kernel in case.group.work.of_kind("kernel"))


def _library(case: Case) -> dict[str, str]:
    kernel = case.of_library
    assert kernel is not None
    return {"kernel": kernel_name(kernel.name), "count": f"{kernel.count:,}"}


def _converts(case: Case) -> bool:
    """Much of its kernel time goes into converting to a 16-bit type, in which weights can be kept."""
    name, share = largest_kernel(case)
    return converts_to(name) in ("float16", "bfloat16") and share >= _MUCH


def _type(case: Case) -> dict[str, str]:
    return {"type": converts_to(largest_kernel(case)[0])}


def _in_fp32(group: Group) -> bool:
    """Most of its kernel time goes into a matrix product of 32-bit floats outside the tensor cores, by its name."""
    kernels = group.of_cause("kernel")  # the longest first
    largest = bool(kernels) and 2 * kernels[0].ns >= group.ns("kernel", "graph")
    name = kernels[0].what if largest else ""
    return bool(_FP32_PRODUCT.search(name)) and not CONVOLUTIONS.search(name)


def _fp32_timings(case: Case) -> str:
    """How long those of several kinds of timings take that are products in float32: of such kinds that have a row the
    longest; '' for none."""
    times_ns = [g.typical_ns for g in shown_groups(case.label) if _in_fp32(g)]
    return duration(max(times_ns)) if times_ns else ""


def _without_tf32(case: Case) -> bool:
    """A GPU of the trace has no tensor cores for 32-bit floats: older than Ampere, by its name."""
    return any(_BEFORE_AMPERE.search(name) for name in case.facts.analysis.trace.devices)


def _updates_parameters(case: Case) -> bool:
    """Nearly all that it launches are the kernels of an optimizer that is not fused: Adam's single steps, or lists of
    tensors."""
    kernels = case.group.work.of_kind("kernel")
    divides = any(_OPTIMIZER.search(k.name) for k in kernels)
    fused = any("FusedAdam" in k.name or "FusedSgd" in k.name for k in kernels)
    alike = sum(k.count for k in kernels if "elementwise" in k.name or "multi_tensor" in k.name)
    return divides and alike >= _NEARLY_ALL * case.operations and not fused and _torch(case)


def _wrapped(case: Case) -> bool:
    """Most kernels are of one instruction of XLA's each: what runs operation by operation."""
    kernels = case.group.work.of_kind("kernel")
    single = sum(k.count for k in kernels if k.name.startswith("wrapped_"))
    # what runs under jit is launched by XLA itself, without Python between two kernels
    one_by_one = case.ns("host") >= _LEAST_DISPATCH_NS * case.operations
    return _of("jax")(case) and 2 * single >= case.operations >= MANY_OPERATIONS and one_by_one


def _starts_programs(case: Case) -> bool:
    """It starts very many programs of XLA's one after the other: each pass of a loop in Python starts its own."""
    return _of("jax")(case) and case.programs >= VERY_MANY and case.small and not case.compiler


def _programs(case: Case) -> dict[str, str]:
    return {"count": f"{case.programs:,}"}


def _elementwise(case: Case) -> bool:
    """Small operations of CuPy's, one after the other."""
    kernels = [k for k in case.group.work.of_kind("kernel") if _OF_CUPY.match(k.name)]
    are_most = 2 * sum(kernel.count for kernel in kernels) >= case.operations >= MANY_OPERATIONS
    return _of("cupy")(case) and are_most and case.small and len(kernels) > 1


def _copied_both_ways(case: Case) -> bool:
    """Numba copies an array that a kernel is called with there and back."""
    copies = {copy.name for copy in case.group.work.of_kind("memcpy")}
    there_and_back = all(
        any(way in name and "pageable" in name for name in copies) for way in ("H2D", "D2H")
    )
    return _of("numba")(case) and there_and_back


def _frees(case: Case) -> bool:
    """Memory is given back to the driver and taken again, time and again."""
    calls = [entry.what for entry in case.group.of_cause("api")]
    both_ways = all(any(map(way.search, calls)) for way in (_TAKES, _GIVES_BACK))
    return case.group.count > 1 and both_ways


def _managed(case: Case) -> bool:
    """The run allocates managed memory: its pages may be what a kernel waits for."""
    return case.facts.analysis.known.managed_allocations > 0


def _rate(case: Case) -> dict[str, str]:
    entries = case.group.of_cause("memcpy")
    rate = case.facts.pinned_rate(entries[0].direction) if entries else 0
    return {"rate": f" (pinned copies of this run reach {rate:.3g} GB/s)" if rate else ""}


def _fetches(case: Case) -> bool:
    """Most of what the CPU does has the name of what fetches data."""
    entries = case.group.of_cause("host")
    has_name = bool(entries) and 2 * entries[0].ns >= case.group.ns("host")
    return _torch(case) and has_name and bool(_FETCHES.search(entries[0].what))


def _search(case: Case) -> dict[str, str]:
    names = [kernel.name for kernel in case.group.work.of_kind("kernel")]
    if any(map(CONVOLUTIONS.search, names)):
        return {"code": "torch.backends.cudnn.benchmark = False"}
    return {"code": "configs=[triton.Config(...)]  # in triton.autotune: the best one alone"}


def _transforms(case: Case) -> bool:
    """Whether its kernels are cuFFT's."""
    return any(_CUFFT.search(kernel.name) for kernel in case.group.work.of_kind("kernel"))


def _made_at_run_time(case: Case) -> bool:
    """Code that it loads is made while the program runs, so that no start of it can load that: CuPy's, Numba's, XLA's,
    torch.compile's, or what is linked there."""
    links = any("Link" in entry.what for entry in case.group.of_cause("api"))
    return case.facts.library in ("cupy", "numba", "jax") or links or compiled(case.group)


def _loaded(case: Case) -> dict[str, str]:
    return {"count": f"{case.loads_in:,}", "timings": f"{case.label.count:,}"}


def _long_stretch(case: Case) -> bool:
    # what compiles is known by its name
    return case.facts.python and case.in_one_piece and not case.compiler


def _issues_collectives(case: Case) -> bool:
    """All kernels that it issued are NCCL's, on a stream that torch does not show its user."""
    kernels = case.group.work.of_kind("kernel")
    return bool(kernels) and all(NCCL.search(kernel.name) for kernel in kernels)


def _reads_back(case: Case) -> bool:
    return case.copies_back > 0 and _torch(case)


def _launches_too(case: Case) -> dict[str, str]:
    """What is left to do where the waits are gone."""
    text = " Then fuse the small operations, or replay them as a CUDA graph: timings that hardly wait leave the GPU idle, too."
    return {"launches": text if case.launches_without_waits else ""}


def _pageable(direction: str) -> Callable[[Case], bool]:
    def fits(case: Case) -> bool:
        entries = case.group.of_cause("memcpy")
        return (
            _torch(case)
            and bool(entries)
            and entries[0].memory == "pageable"
            and entries[0].direction == direction
        )

    return fits


def _copies_at_one_end(direction: str) -> Callable[[Case], bool]:
    """Nearly all copying of the typical interval lies before its first kernel (H2D) or behind its last one (D2H)."""

    def fits(case: Case) -> bool:
        entries = case.group.of_cause("memcpy")
        pieces = case.facts.segments(case.group)
        kernels = [number for number, piece in enumerate(pieces) if piece.cause == "kernel"]
        if not kernels:
            return False
        outside = pieces[: kernels[0]] if direction == "H2D" else pieces[kernels[-1] :]
        copied_ns = sum(piece.ns for piece in outside if piece.cause == "memcpy")
        if copied_ns < _NEARLY_ALL * case.ns("memcpy"):
            return False
        return (
            _torch_events(case)
            and bool(entries)
            and entries[0].direction == direction
            and case.kernels_ns > 0
        )

    return fits


def _waits_for(what: str) -> Callable[[Case], bool]:
    def fits(case: Case) -> bool:
        entries = case.group.of_cause("queued")
        return bool(entries) and what in entries[0].why and _torch(case)

    return fits


def _interpreter_is_held(case: Case) -> bool:
    """Another thread holds Python's interpreter: the timing one waits again and again, not once for the other's
    result."""
    again = case.off_cpu == OTHER_THREAD and not case.in_one_piece
    return case.facts.python and again


def _collects_garbage(case: Case) -> bool:
    entries = case.group.of_cause("host")
    return bool(entries) and "garbage" in entries[0].what


def _allocates(case: Case) -> bool:
    entries = case.group.of_cause("api")
    if case.allocations:
        return True
    if not entries or (case.group.count == 1 and entries[0].what == _SETS_UP):
        return False
    return any(call in entries[0].what for call in _ALLOCATES)


def _allocates_pinned(case: Case) -> bool:
    entries = case.group.of_cause("api")
    return bool(entries) and "HostAlloc" in entries[0].what and _torch(case)


def _delay(case: Case) -> dict[str, str]:
    cycles = _enqueue_ns(case) / 1e3 * DELAY_CYCLES_PER_US * DELAY_MARGIN
    return {"cycles": f"{max(DELAY_CYCLES, math.ceil(cycles / 1e6) * 1_000_000):_}"}


def _stretch(case: Case) -> dict[str, str]:
    ns, stretches = case.longest_piece_ns, case.stretches
    longest = next(
        (s for s in stretches if any(p.cause == "host" and p.ns == ns for p in s.pieces)), None
    )
    then = "before the end event"
    if longest and longest.then:
        then = f"before it launches {kernel_name(longest.then.text)}"
    return {"where": then if not case.on_host else "there", "time": duration(ns)}


def of_label_inside(case: Case, place: str, source: str) -> Advice | None:
    """What to do where most of a timing passes in another one (`place`, with its lines of code) that gives
    the GPU no work; None if they do not say what that is."""
    if not _torch(case) or not _LOADING.search(source):
        return None
    text = f"Give the loader more workers, or each of them less to do: the GPU waits for data in {place}"
    return Advice(
        "", text, "DataLoader(..., num_workers=2 * N, pin_memory=True, persistent_workers=True)"
    )


def of_first_pass(case: Case) -> Advice | None:
    """What to do where the first pass of a loop takes far longer each time, in one piece of the CPU's; None where
    that is not one."""
    if not _torch(case) or not case.in_one_piece:
        return None
    text = "Start once what the first pass of each loop starts anew, such as the workers of a DataLoader"
    return Advice("", text, "DataLoader(..., num_workers=N, persistent_workers=True)")


_ALWAYS: Callable[[Case], bool] = lambda case: True  # noqa: E731

MEASURING: tuple[Row, ...] = (
    Row(
        ("wrong-stream",),
        lambda case: _torch_events(case) and _issues_collectives(case),
        "Wait for the collective before the end event: work.wait() orders the stream behind it",
        "work = dist.all_reduce(x, async_op=True); ...; work.wait(); end.record()",
    ),
    Row(
        ("wrong-stream",),
        _torch_events,
        "Record the end event behind the work",
        "torch.cuda.current_stream().wait_stream(side); end.record()",
    ),
    Row(
        ("different-streams",),
        _torch_events,
        "Record both events on the stream that does the work",
        "start.record(stream); ...; end.record(stream)",
    ),
    Row(
        ("enqueue-only",),
        lambda case: _torch(case) and case.group.count == 1 and bool(case.prepares),
        "Run it once before, and synchronise before both readings of the clock",
        f"f(x); {_SYNC}; t0 = time.perf_counter(); f(x); {_SYNC}; t1 = time.perf_counter()",
    ),
    Row(
        ("enqueue-only",),
        lambda case: case.facts.library in _SYNCS and case.facts.python,
        "Synchronise before both readings of the clock",
        "{sync}; t = time.perf_counter()  # at both ends",
        lambda case: {"sync": _SYNCS[case.facts.library]},
    ),
    Row(
        ("enqueue-only",),
        _of("jax"),
        "Wait for the result before the second reading of the clock",
        "jax.block_until_ready(f(x)); t1 = time.perf_counter()",
    ),
    Row(
        ("nothing-inside",),
        _torch,
        "Look at what is timed: called like this it launches nothing, such as a step without gradients",
        "",
    ),
    Row(
        ("sync-inside",),
        lambda case: (
            _torch_events(case) and 0 < case.copies_back <= _FEW_READ and not case.group.work.waits
        ),
        "Take the read-back out of what is timed",
        "end.record(); value = result.item()",
    ),
    Row(
        ("sync-inside",),
        lambda case: (
            _torch_events(case) and not case.others and not case.copies_back and _waits_itself(case)
        ),
        "Synchronise after the end event only",
        f"end.record(); {_SYNC}",
    ),
    Row(
        ("fill-inside",),
        _torch_events,
        "If it flushes the L2 cache, or clears what need not be cleared each time, do that before the start event",
        "flush.zero_(); start.record()",
    ),
    Row(
        ("copy-inside",),
        _copies_at_one_end("H2D"),
        "Copy before the start event",
        f"x = x.cuda(); {_SYNC}; start.record()",
    ),
    Row(
        ("copy-inside",),
        _copies_at_one_end("D2H"),
        "Copy after the end event",
        "end.record(); y = y.cpu()",
    ),
    Row(
        ("queued",),
        _waits_for("earlier"),
        "Synchronise before the first reading as well",
        f"{_SYNC}; t0 = time.perf_counter()",
    ),
    Row(
        ("queued",),
        lambda case: _waits_for("full-queue")(case) and case.on_host,
        "Synchronise before both readings of the clock",
        f"{_SYNC}; t = time.perf_counter()  # at both ends",
    ),
    Row(
        ("queued",),
        lambda case: _waits_for("contention")(case) and _torch_events(case),
        "Let the other streams finish first",
        f"{_SYNC}; start.record()",
    ),
    Row(
        ("queued",),
        lambda case: _waits_for("dependency")(case) and _torch_events(case) and not case.on_purpose,
        "Wait before the start event instead of after it",
        "torch.cuda.current_stream().wait_stream(other); start.record()",
    ),
    Row(
        ("allocation-inside",),
        lambda case: _torch_events(case) and _allocates(case) and not _frees(case),
        "Allocate before the start event, or run it once so that the caching allocator keeps the memory",
        f"out = torch.empty_like(x); {_SYNC}; start.record(); f(x, out=out)",
    ),
    Row(
        ("host-gap", "api-launch", "launch-latency", "many-tiny-kernels", "other-calls"),
        _can_run_ahead,
        "Let the CPU run ahead: keep the GPU busy before the start event",
        "torch.cuda._sleep({cycles}); start.record()",
        _delay,
    ),
    Row(
        ("event-floor", "launch-latency", "mixed"),
        lambda case: _torch_events(case) and 0 < case.operations < MANY_OPERATIONS and _costs(case),
        "Time several calls with one pair and divide",
        "start.record(); [f() for _ in range(20)]; end.record()",
    ),
    Row(
        ("host-gap", "api-launch", "launch-latency", "mixed", "host-timer"),
        lambda case: _short_on_host(case) and case.facts.library in _SYNCS,
        "Time many calls at once and divide: one is shorter than what timing it costs",
        "[f() for _ in range(100)]; {sync}  # between the two readings",
        lambda case: {"sync": _SYNCS[case.facts.library]},
    ),
    Row(
        ("module-load",),
        lambda case: _torch(case) and case.first_ones > 0,
        "Leave the first calls out of what is timed",
        "[f(x) for _ in range({count})]; torch.cuda.synchronize()  # once, before",
        lambda case: {"count": str(max(case.first_ones + 1, 3))},
    ),
    Row(
        ("module-load",),
        lambda case: _torch_events(case) and not case.loads_in,
        "Run the code once before timing it",
        f"f(x); {_SYNC}; start.record()",
    ),
    Row(
        ("graph-opaque",),
        _ALWAYS,
        "Trace every node of the graph, which is slower",
        "nsysalign run --graph-trace node SCRIPT.py",
    ),
)

FASTER: tuple[Row, ...] = (
    Row(
        ("gpu-bound",),
        lambda case: _torch(case) and _in_fp32(case.group) and not _without_tf32(case),
        "Its matrix products run in float32, not on the tensor cores: allow TF32, if that is exact enough",
        'torch.set_float32_matmul_precision("high")  # once, before',
    ),
    Row(
        ("several-kinds",),
        lambda case: _torch(case) and bool(_fp32_timings(case)),
        "Those of {time} are matrix products in float32, not on the tensor cores: allow TF32, if that is exact enough",
        'torch.set_float32_matmul_precision("high")  # once, before',
        lambda case: {"time": _fp32_timings(case)},
    ),
    Row(
        ("gpu-bound",),
        lambda case: _torch(case) and _converts(case),
        "Convert once what does not change between the calls, such as weights that are not trained, not in each of them",
        "model = model.to(torch.{type})  # once, before the loop, and no autocast in it",
        _type,
    ),
    Row(
        ("gpu-bound",),
        lambda case: copies_pageable(case) and _pageable("H2D")(case),
        "Pin what is copied to the GPU, once{rate}: it copies faster and does not block the CPU",
        _PIN,
        _rate,
    ),
    Row(
        ("gpu-bound",),
        copies_pageable,
        "Copy from and to pinned memory{rate}, which is faster",
        "",
        _rate,
    ),
    Row(
        ("host-gap",),
        _collects_garbage,
        "Collect garbage between the timings or steps, not inside them",
        "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() where a pause does not matter",
    ),
    Row(
        ("host-gap", "sync-inside", "many-tiny-kernels"),
        lambda case: case.searches and _torch(case),
        "Let nothing search in what is timed: fix the algorithm or the configuration, or pad to few shapes and run each once before",
        "{code}",
        _search,
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: _torch(case) and _recompiles(case),
        "torch.compile compiles again and again, as for a number or a shape that changes: let it say why",
        "TORCH_LOGS=recompiles python SCRIPT.py",
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: _of("jax")(case) and _recompiles(case) and case.compiles_the_same,
        "XLA compiles the same work again and again: jit it once, outside the loop, and pass what changes as an argument",
        "step = jax.jit(f)  # once, before;   step(x, dt)  # in the loop",
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: _of("jax")(case) and _recompiles(case) and case.compiles_shapes,
        "XLA compiles for each new shape and static argument: pad to few shapes, and run each once before what is timed",
        "[f(pad(x, n)) for n in lengths]  # once, before",
    ),
    Row(
        (
            "host-gap",
            "api-launch",
            "many-tiny-kernels",
            "other-calls",
            "sync-inside",
            "mixed",
            "several-kinds",
        ),
        lambda case: case.memory_kinds is not None and _torch(case),
        "Keep the memory: the timings that give it back to the driver or take it again are longer",
        "torch.cuda.empty_cache()  # not in the loop",
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: case.facts.python and case.loads_the_same and _transforms(case),
        "Code is loaded again in {count} of {timings} timings: keep to fewer different sizes, or let the cache of plans hold them all",
        "cp.fft.config.get_plan_cache().set_size(n)  # CuPy's, for n sizes",
        _loaded,
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: case.facts.python and case.loads_unchanged,
        "Make each kernel once, before the loop, and pass what changes as an argument, not in its source: code is loaded in "
        "{count} of these timings for the same kernels with as many blocks",
        "",
        lambda case: {"count": f"{case.prepares[CODE]:,}"},
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: case.facts.python and case.loads_the_same,
        "Code is loaded again in {count} of {timings} timings: keep to fewer different sizes, or to a larger cache",
        "",
        _loaded,
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: case.facts.python and case.loads_again > 0,
        "Keep to few shapes, and run each once before what is timed: each that is new has kernels and plans of its own",
        "[f(pad(x, n)) for n in lengths]  # once, before",
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls", "module-load"),
        lambda case: case.facts.python and case.first_of_size[0] > 0,
        "Keep to few sizes, and run each once before what is timed: the first timing of each size prepares its kernels",
        "[f(pad(x, n)) for n in lengths]  # once, before",
    ),
    Row(
        ("host-gap", "api-launch", "launch-latency", "many-tiny-kernels"),
        lambda case: _torch(case) and case.group.count > 1 and GRAPH in case.prepares,
        "A CUDA graph is recorded anew: record it once and replay it; where shapes change, pad to few, and run each before what is timed",
        "[f(pad(x, n)) for n in lengths for _ in range(3)]  # once, before",
    ),
    Row(
        ("host-gap",),
        _fetches,
        "The GPU waits for data: let worker processes prepare the next batch meanwhile, more of them where there are some",
        "DataLoader(..., num_workers=2 * N, pin_memory=True, persistent_workers=True)",
    ),
    Row(
        ("host-gap", "api-launch", "many-tiny-kernels", "other-calls"),
        lambda case: case.facts.python and case.thread_count > 1,
        "Launch from one thread, or use processes: only one thread runs Python at a time",
        "torch.multiprocessing.spawn(worker, nprocs={count})  # instead of threads",
        lambda case: {"count": str(case.thread_count)},
    ),
    Row(
        ("host-gap", "many-tiny-kernels"),
        _interpreter_is_held,
        "Move what another thread of the program computes in Python into a process of its own",
        "multiprocessing.Process(target=work).start()  # instead of threading.Thread",
    ),
    Row(
        ("host-gap", "many-tiny-kernels"),
        lambda case: case.facts.python and case.off_cpu == NO_THREAD,
        "Find what the thread waits for outside of CUDA: a lock, a file, the next batch, another process",
        "nsysalign run --sample-python SCRIPT.py",
    ),
    Row(
        ("host-gap",),
        lambda case: _long_stretch(case) and case.is_held_up_anywhere,
        "Find what holds the CPU up for {time} in one piece, before different operations in different timings: it computes, or "
        "waits for another thread (which holds Python's interpreter)",
        "nsysalign run --sample-python SCRIPT.py",
        _stretch,
    ),
    Row(
        ("host-gap",),
        lambda case: _long_stretch(case) and not case.is_held_up_anywhere,
        "Find the function that the CPU is in {where}, for {time} in one piece",
        "nsysalign run --sample-python SCRIPT.py",
        _stretch,
    ),
    Row(
        ("host-gap", "many-tiny-kernels"),
        lambda case: case.facts.python and case.in_long_pieces and not case.compiler,
        "Find what the CPU does in {pieces} pieces of a millisecond and more: it computes, or waits for another thread (which "
        "holds Python's interpreter) or process",
        "nsysalign run --sample-python SCRIPT.py",
        lambda case: {"pieces": f"{case.long_piece_count:,}"},
    ),
    Row(
        ("sync-inside",),
        lambda case: _reads_back(case) and 0 < case.group.work.waits <= _FEW_READ,
        "Keep the value on the GPU; where it decides the sizes of what follows, pass the number in or keep sizes fixed (torch.where, not x[mask]). To find the line",
        _NAMES_LINES,
    ),
    Row(
        ("sync-inside",),
        lambda case: _reads_back(case) and case.group.work.waits > _FEW_READ,
        "Decide on the GPU instead of reading back (no .item(), `if` of a tensor, nonzero() or x[mask]), or read all of it back once.{launches} To find the lines",
        _NAMES_LINES,
        _launches_too,
    ),
    Row(
        ("sync-inside",),
        _reads_back,
        "Keep the value on the GPU: no .item(), float() or tensor as a number inside; read it back once",
        "total += loss.detach()  # in the loop;   total.item()  # once, after it",
    ),
    Row(
        ("sync-inside",),
        lambda case: _torch(case) and not case.copies_back and _waits_itself(case),
        "Wait only where something depends on it, and on the GPU rather than on the CPU",
        "stream.wait_event(event)  # instead of torch.cuda.synchronize()",
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        lambda case: _torch(case) and case.of_library is not None and not _recurrent(case),
        "Compiled code launches them itself, as a library's does, one after the other ({kernel} {count} times), out of torch.compile's "
        "reach: take a routine that does the whole batch at once, if there is one",
        "",
        _library,
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _updates_parameters,
        "Let the optimizer update all parameters in few kernels",
        "torch.optim.AdamW(model.parameters(), fused=True)  # as Adam, SGD and Adagrad",
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _wrapped,
        "Compile the whole function: its operations are launched one by one",
        "f = jax.jit(f)",
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _starts_programs,
        "It starts {count} compiled programs one after the other: compile the loop around them as a whole, or compute all its passes at once",
        "f = jax.jit(jax.vmap(f))  # instead of the loop;   jax.lax.scan(step, x, xs)  # where a pass needs the one before",
        _programs,
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _elementwise,
        "Fuse the elementwise operations into one kernel",
        "@cupy.fuse()  # above the function that computes them",
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        lambda case: _runs_cells(case) and case.small,
        "{cell}Cell runs {count} times, one step after the other: where nothing else depends on a step, let cuDNN run the whole "
        "sequence, which launches less",
        "y, h = torch.nn.{cell}(inputs, hidden, batch_first=True)(x)  # instead of the loop",
        _cell,
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        lambda case: _compiles(case) and case.group.work.waits > 0,
        "Fuse the small operations, or replay them as a CUDA graph, and copy to the GPU outside of that",
        'f = torch.compile(f, mode="reduce-overhead"); f(x.cuda())',
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _compiles,
        "Fuse the small operations, or replay them as a CUDA graph",
        'f = torch.compile(f, mode="reduce-overhead")',
    ),
    Row(
        ("host-gap", "many-tiny-kernels", "api-launch", "launch-latency"),
        _launches_and_waits,
        "Launch less: give each operation more to do (larger batches), or fuse the small ones. A CUDA graph cannot hold "
        "{waits} for the GPU. To find the lines",
        _NAMES_LINES,
        _waits,
    ),
    Row(
        ("allocation-inside", "other-calls", "host-gap"),
        _allocates_pinned,
        "Allocate pinned memory once, before the loop, and copy from it",
        _PIN,
    ),
    Row(
        ("allocation-inside",),
        lambda case: _allocates(case) and _frees(case) and _torch(case),
        "Keep the memory: it is given back to the driver and taken again, as by empty_cache() in a loop, or where memory runs short",
        "torch.cuda.empty_cache()  # not in the loop",
    ),
    Row(
        ("allocation-inside",),
        lambda case: _allocates(case) and _of("cupy")(case),
        "Keep CuPy's memory pool: no free_all_blocks() in the loop, no other allocator, and enough free memory",
        "cp.cuda.set_allocator(cp.get_default_memory_pool().malloc)",
    ),
    Row(
        ("allocation-inside",),
        lambda case: _allocates(case) and _of("numba")(case),
        "Allocate once, before the loop, and reuse the memory",
        "out = cuda.device_array_like(x)  # once;   kernel[grid, block](x, out)  # in the loop",
    ),
    Row(
        ("allocation-inside",),
        lambda case: _allocates(case) and _torch(case),
        "Allocate once and reuse the memory",
        "out = torch.empty_like(x)  # once;   f(x, out=out)  # in the loop",
    ),
    Row(
        ("api-launch", "many-tiny-kernels", "host-gap"),
        lambda case: _torch(case) and case.held_by_copy,
        "Pin the memory once, before the loop: the call then does not wait for the copy",
        _PIN,
    ),
    Row(
        ("copy-inside",),
        _pageable("H2D"),
        "Pin the memory once, before the loop{rate}: it copies faster and does not block the CPU",
        _PIN,
        _rate,
    ),
    Row(
        ("copy-inside",),
        _pageable("D2H"),
        "Copy to pinned memory{rate}, which is faster; allocate it once",
        "out = torch.empty_like(x, device='cpu', pin_memory=True); out.copy_(x)",
        _rate,
    ),
    Row(
        ("copy-inside", "sync-inside", "many-tiny-kernels", "api-launch", "host-gap"),
        _copied_both_ways,
        "Move arrays that stay the same once, before the loop: one of NumPy's that a kernel is called with is copied there and back each time",
        "d = cuda.to_device(a)  # once;   kernel[grid, block](d)  # in the loop",
    ),
    Row(
        ("sync-inside",),
        lambda case: _of("cupy")(case) and case.copies_back > 0,
        "Keep the value on the GPU: no float(), .get() or .item() inside; read it back once",
        "total += x.sum()  # in the loop;   float(total)  # once, after it",
    ),
    Row(
        ("sync-inside",),
        lambda case: _of("jax")(case) and case.copies_back > 0,
        "Keep the value on the GPU: no float(), bool() or print() inside; read all of them back once. A lax.while_loop reads "
        "its condition back in each round: a fori_loop of a known number does not",
        "losses.append(loss)  # in the loop;   jax.device_get(losses)  # once, after it",
    ),
    Row(
        ("slower-kernel",),
        lambda case: _managed(case) and _of("numba")(case),
        "Copy to the GPU explicitly, before the kernel needs it, instead of letting it fetch managed memory page by page",
        "d = cuda.to_device(a)  # instead of cuda.managed_array",
    ),
    Row(
        ("slower-kernel",),
        lambda case: _managed(case) and _of("cupy")(case),
        "Move managed memory to the GPU before the kernel touches it, or do not use it",
        "cp.cuda.runtime.memPrefetchAsync(x.data.ptr, x.nbytes, device, stream)",
    ),
    Row(
        ("slower-kernel",),
        lambda case: _managed(case),
        "Move managed memory to the GPU before the kernel touches it (cudaMemPrefetchAsync), or copy explicitly",
        "",
    ),
    Row(
        ("launch-blocking",),
        _ALWAYS,
        "Run without it",
        "env -u CUDA_LAUNCH_BLOCKING python SCRIPT.py",
    ),
    Row(
        ("module-load",),
        lambda case: (
            case.facts.python
            and GRAPH not in case.prepares
            and loading_share(case.group) >= _MUCH_LOADING
            and not case.loads_in
            and not _made_at_run_time(case)
        ),
        "Load the code when the program starts, as far as it is not compiled later, not when the first result is needed",
        "CUDA_MODULE_LOADING=EAGER python SCRIPT.py",
    ),
)

#: What to do about pairs without a result, by rule.
WITHOUT_RESULT = {
    "no-result": Advice(
        "Wait for the end event first, and use a fresh pair for each measurement:   end.synchronize(); ms = start.elapsed_time(end)"
    ),
    "captured-events": Advice(
        "Record around the replay:   start.record(); graph.replay(); end.record()"
    ),
}
#: What to do about clocks: the lower one of two can be held.
AT_ONE_CLOCK = "Compare intervals at one clock only, or lock it where you may:   sudo nvidia-smi --lock-gpu-clocks={mhz:.0f}"
