"""What to change: a table of the finding's rule, the conditions of its case, and what to do then.

The first row of which all conditions hold is the advice; where none fits there is none.  A fix is a sentence and its
whole code.  Two tables: how to measure right, which makes nothing faster, and what makes the program faster.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from nsysalign.causes import HIDDEN_BY_DELAY
from nsysalign.explain.case import LONG_PIECE_NS, VERY_MANY, Case, shown_groups
from nsysalign.explain.facts import of_numba, of_others
from nsysalign.explain.finding import Advice
from nsysalign.explain.preparing import (
    CODE,
    CONVOLUTIONS,
    GRAPH,
    compiled,
    compiler_of,
    loading_share,
    times_compiled,
)
from nsysalign.explain.sentences import ADDS_DUPLICATES, collects_garbage, copies_pageable
from nsysalign.explain.validity import converts_to, largest_kernel, list_share
from nsysalign.explain.verdict import CAT, CODE_WITHOUT_CAT, LATE_SHARE, NCCL, WITHOUT_CAT
from nsysalign.label import GIVES_BACK, SLOW, TAKES, Group, Issued
from nsysalign.model import LAUNCH_QUEUE, NO_THREAD, OTHER_THREAD
from nsysalign.text import duration, kernel_name, percent

#: A delay kernel must outlast the CPU's enqueueing by this factor, at about this many cycles per
#: microsecond; these many are long enough for ordinary intervals (about 1 ms; measured).
DELAY_MARGIN, DELAY_CYCLES_PER_US, DELAY_CYCLES = 3, 1_800, 2_000_000
#: Work whose enqueueing takes longer than this is not delayed, but captured or left as it is.
LONGEST_DELAYED_NS = 5_000_000
#: From this many operations on, launching them one by one has a cost that fusing saves.
MANY_OPERATIONS = 10
#: So many results are read back after the end event instead of inside.
_FEW_READ = 4
#: Loading code earlier is worth advice from this share of the time on.
_MUCH_LOADING = 0.2
_NEARLY_ALL = 0.9
#: Of several kinds of timings one is worth advice of its own from this share of their time on.
_MUCH_OF_LABEL = 0.25
#: The CPU is late, and can be ahead, where it costs at least this share.
_LATE = 0.1
#: A launch call and a synchronisation take about so long together, recorded.
_LEAST_TIMED_NS = 20_000

#: How two fixes end of which the first one does what the second one does, too.
BEFORE_BOTH, BEFORE_FIRST = "before both readings of the clock", "before the first reading as well"
#: How each library waits for the GPU.
_SYNC = "torch.cuda.synchronize()"
_SYNCS = {"torch": _SYNC, "cupy": "cp.cuda.Device().synchronize()", "numba": "cuda.synchronize()"}
#: torch warns at each call that waits for the GPU, with its line.
_NAMES_LINES = 'torch.cuda.set_sync_debug_mode("warn")'
_PIN = "x = x.pin_memory()  # once;   x.cuda(non_blocking=True)  # in the loop"
_RUN_EACH = "[f(pad(x, n)) for n in lengths]  # once, before"
_TF32 = 'torch.set_float32_matmul_precision("high")  # once, before'
_IN_TURN = (
    "{in_turn} small elementwise kernels, on tensors of different sizes one after the other: where none depends on the one before, "
    "treat the list of tensors at once"
)
_FOREACH = "torch._foreach_lerp_(averages, values, 0.01)  # or _mul_, _add_, ..."
_KEEP = "torch.cuda.empty_cache()  # not in the loop"
_PLANS = "cp.fft.config.get_plan_cache().set_size(n)  # CuPy's, for n lengths"
_PERSISTENT = "DataLoader(..., num_workers=N, persistent_workers=True)"
_SAMPLE = "nsysalign run --sample-python SCRIPT.py"

#: In what is timed once libraries call it to set CUDA up: there is nothing to free yet.
_SETS_UP = "cudaFree"
#: Products of 32-bit floats that run on the CUDA cores, by the names that cuBLAS gives them.
_FP32_PRODUCT = re.compile(r"f32f32_f32f32_f32|_simt_sgemm|\bsgemm|_sgemm_")
#: GPUs older than Ampere, by their names.
_BEFORE_AMPERE = re.compile(r"\b(V100S?|T4G?|P\d+|K\d+\w?|M\d0|GTX|TITAN|Quadro|RTX 20\d0)\b")
#: Of an optimizer's step, one tensor at a time or by lists: x += a * y / z is what Adam does last.
_OPTIMIZER = re.compile(r"addcdiv|multi_tensor_apply.*PointwiseOp", re.DOTALL)
_FUSED = re.compile(r"Fused(Adam|Sgd)")
#: torch's kernels of one elementwise operation on one tensor; so many sorts of them are done to each tensor of a list.
_ONE_TENSOR, _FEW_SORTS = re.compile(r"\bat::native::\w*elementwise_kernel\w*<"), 4
#: torch's kernels of an embedding's gradient that is as large as its table.
_DENSE_EMBEDDING = re.compile(
    r"\b(compute_grad_weight|sum_and_scatter|embedding_backward_\w*kernel)\b"
)
#: torch's kernel of one step of `GRUCell` or `LSTMCell`; kernels of cuDNN's recurrent networks; cuFFT's.
_CELL = re.compile(r"\b(gru|lstm)_cell_forward\b")
_RECURRENT = re.compile(r"RNN|LSTM|GRU", re.IGNORECASE)
_CUFFT = re.compile(r"\b(vector|regular|prime|bluestein|multi_bluestein)_fft|\bcufft")
#: cuDNN's attention.
_CUDNN_ATTENTION = re.compile(r"\bcudnn_generated_\w*sdpa")
#: CuPy's elementwise arithmetic, which cupy.fuse makes one kernel of; not its copies, sums, sorts and indexing.
_OF_CUPY = re.compile(
    r"^cupy_(add|subtract|multiply|true_divide|divide|floor_divide|remainder|power|negative|absolute|sqrt|square|exp\w*|log\w*|"
    r"a?(sin|cos|tan)h?|arc\w+|tanh|maximum|minimum|where|clip|sign|reciprocal|(less|greater)\w*|(not_)?equal|logical_\w+|"
    r"bitwise_\w+|floor|ceil|rint)__"
)
_ALLOCATES = ("Malloc", "HostAlloc", "MemAlloc", "MemCreate", "HostRegister", "Free")


class Row(NamedTuple):
    """rules: for which findings.  when: the CONDITIONS that all hold, or do not ("not ...").  sentence, code: of the fix,
    in which VALUES fill `{...}`."""

    rules: str
    when: str
    sentence: str
    code: str = ""


def advice(rule: str, case: Case) -> Advice:
    """The fixes for a finding of this rule about the case's group, as far as there are any."""
    measuring, faster = (_first(table, rule, case) for table in (MEASURING, FASTER))
    return Advice(":   ".join(measuring), *faster)


def _first(table: tuple[Row, ...], rule: str, case: Case) -> tuple[str, ...]:
    for row in table:
        if rule in row.rules.split() and all(_holds(c, case) for c in row.when.split(", ")):
            values = _Values(case)
            return row.sentence.format_map(values), row.code.format_map(values)
    return ()


def _holds(condition: str, case: Case) -> bool:
    name = condition.removeprefix("not ")
    return CONDITIONS[name](case) == (name == condition)


class _Values(dict[str, str]):
    """What is filled in, of a case."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def __missing__(self, name: str) -> str:
        return VALUES[name](self._case)


# --- conditions ---


def _kernels(case: Case) -> tuple[Issued, ...]:
    return case.group.work.of_kind("kernel")


def _runs(case: Case, name: re.Pattern[str]) -> bool:
    return any(name.search(kernel.name) for kernel in _kernels(case))


def _largest(case: Case, cause: str) -> str:
    """What takes most of a cause's time; '' for nothing that is named."""
    entries = case.group.of_cause(cause)
    return entries[0].what if entries else ""


def _pair_costs_much(case: Case) -> bool:
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


def _can_run_ahead(case: Case) -> bool:
    """The CPU can enqueue all of it behind a delay: nothing in it waits for the GPU, and it fits in
    the launch queue."""
    work = case.group.work
    return (
        not work.waits
        and not _pageable_copies_in(case)
        and (case.group.role != SLOW or _short_delay(case))
        and work.operations < LAUNCH_QUEUE
        and case.ns("host", "api", "api_launch") >= _LATE * case.group.typical_ns
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
    is_host = 2 * case.ns("host") >= case.group.typical_ns
    return is_host and not _largest(case, "host") and case.longest_piece_ns < LONG_PIECE_NS


def _pageable_copies(case: Case) -> list[Issued]:
    return [copy for copy in case.group.work.of_kind("memcpy") if "pageable" in copy.name]


def _pageable_copies_in(case: Case) -> int:
    """How many copies of pageable memory to the GPU it makes: torch waits for each of them."""
    return sum(copy.count for copy in _pageable_copies(case) if "H2D" in copy.name)


def _waits(case: Case) -> int:
    """How often the timing that is shown waits between its launches: of a host timer, whose last wait is behind these, no
    oftener than its own pieces say."""
    waits = case.group.work.waits
    pieces = case.facts.segments(case.group) if case.on_host and waits else []
    shown = {piece.ref for piece in pieces if piece.cause == "sync"}
    return min(waits, len(shown) - 1) if shown else waits


def _waits_itself(case: Case) -> bool:
    """The program waits oftener than it copies pageable memory, which no copy does without a wait."""
    copies = sum(copy.count for copy in _pageable_copies(case))
    return case.group.work.waits > copies or not case.group.work.waits


def _many_small(case: Case) -> bool:
    """It launches many small operations, which no graph does for it."""
    is_small = case.operations >= MANY_OPERATIONS and case.small
    return is_small and case.group.role != SLOW and not case.graphs


def _compiles(case: Case) -> bool:
    """torch.compile could fuse and capture it: many small operations of one shape, half of the label's timings and more, with
    nothing that waits inside but copies of pageable memory to the GPU, and no kernels of CuPy's or numba's."""
    is_usual = 2 * case.group.count >= sum(group.count for group in case.label.steady)
    is_torch = not any(of_others(k.name) for k in _kernels(case)) and not case.of_library
    waits = _waits(case) > _pageable_copies_in(case)
    return _many_small(case) and is_usual and case.has_one_shape and not waits and is_torch


def _by_numba(case: Case) -> bool:
    """Most of its operations are kernels of Numba's, which are launched from Python."""
    launched = sum(k.count for k in _kernels(case) if of_numba(k.name))
    return 2 * launched >= case.operations >= VERY_MANY


def _cells(case: Case) -> list[tuple[int, str]]:
    """(how often, name) of torch's cells of recurrent networks whose kernels it launches."""
    return [(k.count, m[1].upper()) for k in _kernels(case) if (m := _CELL.search(k.name))]


def _recompiles(case: Case) -> bool:
    """Code is compiled in more timings than the first one, and the next, for which torch.compile makes it fit for
    other shapes."""
    by_first_ones = case.first_ones > 2 and compiled(case.group)
    return by_first_ones or times_compiled(case.label, case.group) > 2


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


def _passes_often(case: Case) -> bool:
    """An optimizer that is not fused passes over all parameters several times, which is most of its kernel time."""
    return list_share(case) > 0 and _runs(case, _OPTIMIZER) and not _runs(case, _FUSED)


def _updates_parameters(case: Case) -> bool:
    """Nearly all that it launches are the kernels of an optimizer that is not fused: Adam's single steps, or lists of
    tensors."""
    kernels = _kernels(case)
    fused = _runs(case, _FUSED)
    alike = sum(k.count for k in kernels if "elementwise" in k.name or "multi_tensor" in k.name)
    return _runs(case, _OPTIMIZER) and alike >= _NEARLY_ALL * case.operations and not fused


def _tensors_in_turn(group: Group) -> bool:
    """Most of its time the GPU waits while few elementwise kernels are launched very often, one after the other, on tensors
    of different sizes: an average or a norm of each parameter of a model.

    mul mul add   mul mul add   mul mul add  ...
    """
    kernels = group.work.of_kind("kernel")
    are_all = sum(kernel.count for kernel in kernels) == group.work.operations >= VERY_MANY
    is_elementwise = all(_ONE_TENSOR.search(kernel.name) for kernel in kernels)
    sizes_differ = any(k.blocks > 0 and k.blocks % k.count for k in kernels)
    is_late = 2 * group.ns("kernel") < group.total_ns
    return are_all and is_elementwise and len(kernels) <= _FEW_SORTS and sizes_differ and is_late


def _kind_in_turn(case: Case) -> Group | None:
    """The kind of timings that does so: its own, or of those that have a row and take a good part of the label's time the
    one that takes longest; None for none."""
    least_ns = _MUCH_OF_LABEL * case.label.steady_ns
    kinds = [g for g in shown_groups(case.label) if g.total_ns >= least_ns and _tensors_in_turn(g)]
    longest = max(kinds, key=lambda group: group.total_ns, default=None)
    return case.group if _tensors_in_turn(case.group) else longest


def _elementwise(case: Case) -> bool:
    """Small operations of CuPy's, one after the other."""
    kernels = [k for k in _kernels(case) if _OF_CUPY.match(k.name)]
    are_most = 2 * sum(kernel.count for kernel in kernels) >= case.operations >= MANY_OPERATIONS
    return are_most and case.small and len(kernels) > 1


def _copied_both_ways(case: Case) -> bool:
    """As many copies of pageable memory, of as many bytes, go there and back: arrays that it is called with, or weights."""
    copies = _pageable_copies(case)
    to_gpu, to_host = ([c for c in copies if way in c.name] for way in ("H2D", "D2H"))
    totals = [(sum(c.count for c in way), sum(c.size for c in way)) for way in (to_gpu, to_host)]
    return bool(to_gpu) and totals[0] == totals[1]


def _copies_by_torch(case: Case) -> bool:
    """Most time in calls that copy goes into those of the runtime, which torch calls: Numba's copies of the arrays that a
    kernel is called with are the driver's, and no line of the program's makes them.  So it is where no such call is known,
    unless all kernels are Numba's or CuPy's."""
    causes = ("api_launch", "api", "sync")
    calls = [e for cause in causes for e in case.group.of_cause(cause) if "Memcpy" in e.what]
    if calls and not max(calls, key=lambda entry: entry.ns).what.startswith("cudaMemcpy"):
        return False
    kernels = _kernels(case)
    return not kernels or not all(of_others(kernel.name) for kernel in kernels)


def _gives_back(case: Case) -> bool:
    """Memory is given back to the driver and taken again, time and again.  What most timings give back they
    take again, too, perhaps so quickly that it takes no part of them that is named."""
    if any(map(GIVES_BACK.match, case.allocations)):
        return True
    calls = [entry.what for entry in case.group.of_cause("api")]
    return case.group.count > 1 and all(any(map(way.match, calls)) for way in (TAKES, GIVES_BACK))


def _allocates_most(case: Case) -> bool:
    """Most of the time in CUDA calls that do not launch goes into allocating and freeing."""
    return 2 * case.allocating_ns >= case.ns("api")


def _plans_anew(case: Case) -> bool:
    """cuFFT's kernels run, and code is loaded in most timings, or again in timings that are not the first ones: for plans."""
    loads_often = 2 * case.loads_in >= case.label.count or case.loads_the_same
    return _runs(case, _CUFFT) and (loads_often or case.loads_again > 0)


def _loads_late(case: Case) -> bool:
    """Loading code takes a part of its time that matters, and a start of the program could load that: it is not made while
    the program runs, as CuPy's, Numba's, XLA's and torch.compile's is, and what is linked there."""
    links = any("Link" in entry.what for entry in case.group.of_cause("api"))
    made = case.facts.library in ("cupy", "numba", "jax") or links or compiled(case.group)
    loads = loading_share(case.group) >= _MUCH_LOADING and GRAPH not in case.prepares
    return loads and not case.loads_in and not made


def _issues_collectives(case: Case) -> bool:
    """All kernels that it issued are NCCL's, on a stream that torch does not show its user."""
    kernels = _kernels(case)
    return bool(kernels) and all(NCCL.search(kernel.name) for kernel in kernels)


def _pageable(case: Case, direction: str) -> bool:
    entries = case.group.of_cause("memcpy")
    first = entries[0] if entries else None
    return first is not None and (first.memory, first.direction) == ("pageable", direction)


def _copies_at_one_end(case: Case, direction: str) -> bool:
    """Nearly all copying of the typical interval lies before its first kernel (H2D) or behind its last one (D2H)."""
    entries = case.group.of_cause("memcpy")
    pieces = case.facts.segments(case.group)
    kernels = [number for number, piece in enumerate(pieces) if piece.cause == "kernel"]
    if not kernels or not entries or entries[0].direction != direction:
        return False
    outside = pieces[: kernels[0]] if direction == "H2D" else pieces[kernels[-1] :]
    copied_ns = sum(piece.ns for piece in outside if piece.cause == "memcpy")
    return copied_ns >= _NEARLY_ALL * case.ns("memcpy") and case.kernels_ns > 0


def _waits_for(case: Case, held_up: str) -> bool:
    entries = case.group.of_cause("queued")
    return bool(entries) and held_up in entries[0].why


def _allocates(case: Case) -> bool:
    call = _largest(case, "api")
    if case.allocations:
        return True
    sets_up = case.group.count == 1 and call == _SETS_UP
    return not sets_up and any(name in call for name in _ALLOCATES)


#: Name -> whether it is so of a case.
CONDITIONS: dict[str, Callable[[Case], bool]] = {
    "always": lambda case: True,
    "works in others": lambda case: case.group.empty < case.group.count,
    # the program
    "python": lambda case: case.facts.python,
    "torch": lambda case: case.facts.torch and case.facts.python,
    "torch events": lambda case: case.facts.torch and case.label.kind == "event",
    "CuPy": lambda case: case.facts.library == "cupy" and case.facts.python,
    "Numba": lambda case: case.facts.library == "numba" and case.facts.python,
    "JAX": lambda case: case.facts.library == "jax" and case.facts.python,
    "managed memory": lambda case: case.facts.analysis.known.managed_allocations > 0,
    "GPU with TF32": lambda case: (
        not any(_BEFORE_AMPERE.search(name) for name in case.facts.analysis.trace.devices)
    ),
    # the timing
    "by the host": lambda case: case.on_host,
    "short on the host": _short_on_host,
    "can synchronise": lambda case: case.facts.library in _SYNCS,
    "can run ahead": _can_run_ahead,
    "pair costs much": lambda case: 0 < case.operations < MANY_OPERATIONS and _pair_costs_much(case),
    "waits on purpose": lambda case: case.on_purpose,
    # what it launches
    "collectives": _issues_collectives,
    "float32 products": lambda case: _in_fp32(case.group),
    "a kind of float32 products": lambda case: bool(_fp32_timings(case)),
    "copies much": lambda case: case.copying_share > 0,
    "adds duplicates": lambda case: bool(ADDS_DUPLICATES.search(largest_kernel(case)[0])),
    "concatenates": lambda case: bool(CAT.search(largest_kernel(case)[0])),
    "other streams": lambda case: bool(case.others),
    "many small": _many_small,
    "compiles": _compiles,
    "very many": lambda case: case.operations >= VERY_MANY,
    "by Numba": _by_numba,
    "only Numba's kernels": lambda case: (
        bool(_kernels(case)) and all(of_numba(kernel.name) for kernel in _kernels(case))
    ),
    "launches first": lambda case: case.launches_first,
    "library's loop": lambda case: case.of_library is not None,
    "recurrent": lambda case: _runs(case, _RECURRENT),
    "cells": lambda case: (
        sum(n for n, _ in _cells(case)) >= MANY_OPERATIONS and case.small and not case.graphs
    ),
    "optimizer": _updates_parameters,
    "passes often": _passes_often,
    "dense embedding": lambda case: _runs(case, _DENSE_EMBEDDING),
    "tensors in turn": lambda case: _tensors_in_turn(case.group),
    "a kind of tensors in turn": lambda case: _kind_in_turn(case) is not None,
    "loop inside": lambda case: (
        case.operations >= VERY_MANY * max(case.programs, 1) and case.small and not case.compiler
    ),
    "starts programs": lambda case: (
        case.programs >= VERY_MANY and case.small and not case.compiler
    ),
    "elementwise": _elementwise,
    "plans anew": _plans_anew,
    # what it copies, and waits for
    "waits": lambda case: case.group.work.waits > 0,
    "more waits than copies in": lambda case: _waits(case) > _pageable_copies_in(case),
    "waits itself": _waits_itself,
    "reads back": lambda case: case.copies_back > 0,
    "few read": lambda case: case.copies_back <= _FEW_READ,
    "waits often": lambda case: case.waits_often,
    "more than a few waits": lambda case: case.group.work.waits > _FEW_READ,
    "copies for graphs": lambda case: case.copies_for_graphs > 0,
    "copies pageable": copies_pageable,
    "copies by torch": _copies_by_torch,
    "pageable in": lambda case: _pageable(case, "H2D"),
    "pageable out": lambda case: _pageable(case, "D2H"),
    "pageable both ways": _copied_both_ways,
    "copies in first": lambda case: _copies_at_one_end(case, "H2D"),
    "copies out last": lambda case: _copies_at_one_end(case, "D2H"),
    "held by a copy": lambda case: case.held_by_copy,
    "behind earlier work": lambda case: _waits_for(case, "earlier"),
    "behind a full queue": lambda case: _waits_for(case, "full-queue"),
    "beside other work": lambda case: _waits_for(case, "contention"),
    "behind another stream": lambda case: _waits_for(case, "dependency"),
    # what the CPU does
    "own code": lambda case: case.own_code,
    "collects garbage": lambda case: "garbage" in _largest(case, "host"),
    "collects some garbage": lambda case: collects_garbage(case.group),
    "threads": lambda case: case.thread_count > 1,
    "another thread runs": lambda case: case.off_cpu == OTHER_THREAD,
    "sleeps": lambda case: case.off_cpu == NO_THREAD,
    "one long piece": lambda case: case.in_one_piece,
    "forks": lambda case: case.forks > 0,
    "held up anywhere": lambda case: case.is_held_up_anywhere,
    "long pieces": lambda case: case.in_long_pieces,
    "loads behind": lambda case: bool(case.loads_behind),
    "loads behind pieces": lambda case: case.loads_behind_pieces > 0,
    "copies behind pieces": lambda case: case.copies_behind_pieces,
    "cuDNN's attention": lambda case: _runs(case, _CUDNN_ATTENTION),
    # what it prepares, and allocates
    "first ones": lambda case: case.first_ones > 0,
    "searches": lambda case: case.searches,
    "tunes": lambda case: not _runs(case, CONVOLUTIONS),
    "compiler": lambda case: bool(case.compiler),
    "recompiles": _recompiles,
    "late one": lambda case: case.late_one > 0,
    "compiled": lambda case: bool(compiler_of(case.group)),
    "compiles twice": lambda case: times_compiled(case.label, case.group) == 2,
    "compiles the same": lambda case: case.compiles_the_same,
    "compiles shapes": lambda case: case.compiles_shapes,
    "loads never warm": lambda case: case.loads_in > 0,
    "loads unchanged": lambda case: case.loads_unchanged,
    "new sizes": lambda case: case.loads_again > 0 or case.first_of_size.timings > 0,
    "loads late": _loads_late,
    "records a graph": lambda case: case.group.count > 1 and GRAPH in case.prepares,
    "kinds that give back": lambda case: case.memory_kinds is not None,
    "allocates": _allocates,
    "allocates most": _allocates_most,
    "allocates pinned": lambda case: "HostAlloc" in _largest(case, "api"),
    "gives back": _gives_back,
}  # fmt: skip


def _cycles(case: Case) -> str:
    cycles = _enqueue_ns(case) / 1e3 * DELAY_CYCLES_PER_US * DELAY_MARGIN
    return f"{max(DELAY_CYCLES, math.ceil(cycles / 1e6) * 1_000_000):_}"


def _rate(case: Case) -> str:
    rate = case.facts.pinned_rate(case.group.of_cause("memcpy")[0].direction)
    return f" (pinned copies of this run reach {rate:.3g} GB/s)" if rate else ""


def _convert(case: Case) -> str:
    """The code that converts once, where the largest kernel converts to a type in which weights can be kept."""
    dtype = converts_to(largest_kernel(case)[0])
    code = f"model = model.to(torch.{dtype})  # once, before the loop, and no autocast in it"
    return code if dtype in ("float16", "bfloat16") else ""


def _planning(case: Case) -> str:
    """In how many timings plans are made: of the label, where they are not only in its group."""
    count, of_count = case.loads_in, case.label.count
    if not count:
        count, of_count = case.loads_again, case.group.count
    return f"{count:,} of {of_count:,}"


def _where(case: Case) -> str:
    """Where the longest piece of the CPU's is."""
    if case.on_host:
        return "there"
    longest = ("host", case.longest_piece_ns)
    holding = (s for s in case.stretches if any((p.cause, p.ns) == longest for p in s.pieces))
    stretch = next(holding, None)
    if stretch is None or stretch.then is None:
        return "before the end event"
    return f"before it launches {kernel_name(stretch.then.text)}"


#: What is filled into a fix, by name.
VALUES: dict[str, Callable[[Case], str]] = {
    "sync": lambda case: _SYNCS[case.facts.library],
    "cycles": _cycles,
    "warm": lambda case: str(max(case.first_ones + 1, 3)),
    "time": _fp32_timings,
    "time_in_turn": lambda case: duration(kind.typical_ns) if (kind := _kind_in_turn(case)) else "",
    "in_turn": lambda case: f"{kind.work.operations:,}" if (kind := _kind_in_turn(case)) else "",
    "copying": lambda case: percent(case.copying_share),
    "convert": _convert,
    "rate": _rate,
    "planning": _planning,
    "plans": lambda case: (  # torch keeps 4,096 plans
        _RUN_EACH if case.facts.torch and not case.loads_the_same else _PLANS
    ),
    "these": lambda case: f"{case.prepares[CODE]:,}",
    "threads": lambda case: str(case.thread_count),
    "where": _where,
    "longest": lambda case: duration(case.longest_piece_ns),
    "late_one": lambda case: f"{case.late_one:,}",
    "pieces": lambda case: f"{case.long_piece_count:,}",
    "loads_behind": lambda case: case.loads_behind,
    "loads": lambda case: f"{case.loads_behind_pieces:,}",
    "each": lambda case: duration(case.ns("host") / case.operations),
    "kernel": lambda case: kernel_name(case.of_library.name) if case.of_library else "",
    "often": lambda case: f"{case.of_library.count:,}" if case.of_library else "",
    "programs": lambda case: f"{case.programs:,}",
    "cell": lambda case: max(_cells(case))[1],
    "steps": lambda case: f"{max(_cells(case))[0]:,}",
    "operations": lambda case: f"{case.operations:,}",
    "less": lambda case: "read nothing back (no .item(), no tensor passed as a number)" if 2 * case.copies_back >= case.group.work.waits else "wait less often",
    "waits": lambda case: "its wait" if _waits(case) == 1 else f"its {_waits(case):,} waits",
}  # fmt: skip


# --- the tables ---

#: Python's garbage collection is needed once, not in the loop.
_NO_COLLECTION = "gc.collect(); gc.freeze(); gc.disable()  # once, before the loop"
#: The CPU is late; launching is; code is prepared.
_CPU = "host-gap many-tiny-kernels"
_LAUNCHES = f"{_CPU} api-launch launch-latency"
_PREPARES = f"{_CPU} api-launch other-calls module-load"
_SEARCHES = f"{_CPU} api-launch other-calls sync-inside queued mixed several-kinds gpu-bound"

MEASURING: tuple[Row, ...] = (
    Row("wrong-stream", "torch events, collectives",
        "Wait for the collective before the end event: work.wait() orders the stream behind it",
        "work = dist.all_reduce(x, async_op=True); ...; work.wait(); end.record()"),
    Row("wrong-stream", "torch events",
        "Record the end event behind the work",
        "torch.cuda.current_stream().wait_stream(side); end.record()"),
    Row("different-streams", "torch events",
        "Record both events on the stream that does the work",
        "start.record(stream); ...; end.record(stream)"),
    Row("enqueue-only", "python, can synchronise",
        f"Synchronise {BEFORE_BOTH}",
        "{sync}; t = time.perf_counter()  # at both ends"),
    Row("enqueue-only", "JAX",
        "Wait for the result before the second reading of the clock",
        "jax.block_until_ready(f(x)); t1 = time.perf_counter()"),
    Row("enqueue-only", "python",
        f"Wait for the GPU {BEFORE_BOTH}"),
    Row("nothing-inside", "torch, works in others",
        "Let each call compute: keep no results, and give each timing inputs of its own",
        "xs = [x.clone() for _ in range(n)]  # one for each timing"),
    Row("nothing-inside", "works in others",
        "Let each call compute: keep no results, and give each timing inputs of its own"),
    Row("nothing-inside", "torch",
        "Look at what is timed: called like this it launches nothing, such as a step without gradients"),
    Row("sync-inside", "torch events, reads back, few read, not waits",
        "Take the read-back out of what is timed",
        "end.record(); value = result.item()"),
    Row("sync-inside", "torch events, not other streams, not reads back, waits itself",
        "Synchronise after the end event only",
        f"end.record(); {_SYNC}"),
    Row("fill-inside", "torch events",
        "If it flushes the L2 cache, or clears what need not be cleared each time, do that before the start event",
        "flush.zero_(); start.record()"),
    Row("copy-inside", "torch events, copies in first",
        "Copy before the start event",
        f"x = x.cuda(); {_SYNC}; start.record()"),
    Row("copy-inside", "torch events, copies out last",
        "Copy after the end event",
        "end.record(); y = y.cpu()"),
    Row("queued", "python, behind earlier work, can synchronise",
        f"Synchronise {BEFORE_FIRST}",
        "{sync}; t0 = time.perf_counter()"),
    Row("queued", "python, behind earlier work",
        f"Wait for the GPU {BEFORE_FIRST}"),
    Row("queued", "python, behind a full queue, by the host, can synchronise",
        f"Synchronise {BEFORE_BOTH}",
        "{sync}; t = time.perf_counter()  # at both ends"),
    Row("queued", "torch events, python, beside other work",
        "Let the other streams finish first",
        f"{_SYNC}; start.record()"),
    Row("queued", "torch events, python, behind another stream, not waits on purpose",
        "Wait before the start event instead of after it",
        "torch.cuda.current_stream().wait_stream(other); start.record()"),
    Row("allocation-inside", "torch events, allocates, not gives back",
        "Allocate before the start event, or run it once so that the caching allocator keeps the memory",
        "out = torch.empty_like(x); start.record(); f(x, out=out)"),
    Row(f"{_LAUNCHES} other-calls", "torch events, can run ahead",
        "Let the CPU run ahead: keep the GPU busy before the start event",
        "torch.cuda._sleep({cycles}); start.record()"),
    Row("event-floor launch-latency mixed", "torch events, pair costs much",
        "Time several calls with one pair and divide",
        "start.record(); [f() for _ in range(20)]; end.record()"),
    Row("host-gap api-launch launch-latency mixed host-timer", "short on the host, can synchronise",
        "Time many calls at once and divide: one is shorter than what timing it costs",
        "[f() for _ in range(100)]; {sync}  # between the two readings"),
    Row("module-load", "torch, first ones",
        "Leave the first calls out of what is timed",
        "[f(x) for _ in range({warm})]; torch.cuda.synchronize()  # once, before"),
    Row("module-load", "torch events, not loads never warm",
        "Run the code once before timing it",
        f"f(x); {_SYNC}; start.record()"),
    Row("graph-opaque", "always",
        "Trace every node of the graph, which is slower",
        "nsysalign run --graph-trace node SCRIPT.py"),
)  # fmt: skip

FASTER: tuple[Row, ...] = (
    Row(_SEARCHES, "torch, searches, tunes",
        "Each new key searches anew: take what changes often, such as a length, out of the key, or round it up to few values, and "
        "keep the results",
        "@triton.autotune(configs=[...], key=[...], cache_results=True)"),
    Row(_SEARCHES, "torch, searches",
        "Let nothing search in what is timed: fix the algorithm, or pad to few shapes and run each once before",
        "torch.backends.cudnn.benchmark = False"),
    Row("gpu-bound", "torch, float32 products, GPU with TF32",
        "Its matrix products run in float32, not on the tensor cores: allow TF32, if that is exact enough",
        _TF32),
    Row("several-kinds", "torch, a kind of float32 products",
        "Those of {time} are matrix products in float32, not on the tensor cores: allow TF32, if that is exact enough",
        _TF32),
    Row("gpu-bound", "torch, passes often, dense embedding",
        "The optimizer passes over all parameters several times, and an embedding's gradient is as large as its table: where a step "
        "looks up few of its rows, make the gradient sparse; else fuse the optimizer (fused=True)",
        "torch.nn.Embedding(n, d, sparse=True)  # with torch.optim.SparseAdam"),
    Row("gpu-bound", "torch, passes often",
        "The optimizer passes over all parameters several times: fused, it does once",
        "torch.optim.AdamW(model.parameters(), fused=True)  # as Adam, SGD and Adagrad"),
    Row("gpu-bound mixed", "torch, copies much, concatenates",
        f"torch.cat copies for {{copying}} of its kernel time: {WITHOUT_CAT}",
        CODE_WITHOUT_CAT),
    Row("gpu-bound mixed", "torch, copies much",
        "{copying} of its kernel time copies or converts: do so once, before, with what does not change between the calls "
        "(x.contiguous(), .to(dtype), autocast's casts of weights that are not trained)",
        "{convert}"),
    Row("gpu-bound", "torch, adds duplicates",
        "Let additions by an index be atomic: index_add_, and index_select or an embedding instead of x[i], with deterministic algorithms off",
        "torch.use_deterministic_algorithms(False);   y = x.index_select(0, i)  # instead of x[i]"),
    Row("gpu-bound", "copies for graphs",
        "Let the graph work on the data where it lies: write what changes into the memory that it was captured with, instead of copying "
        "all of it for each launch"),
    Row("gpu-bound", "copies pageable",
        "Copy from and to pinned memory{rate}, which is faster"),
    Row("host-gap", "collects garbage",
        "Do not collect garbage in the loop: take gc.collect() out of it where it is there, and keep Python from collecting by itself",
        _NO_COLLECTION),
    Row(_PREPARES, "torch, recompiles",
        "torch.compile compiles again and again, as for a number or a shape that changes: let it say why",
        "TORCH_LOGS=recompiles python SCRIPT.py"),
    Row(_PREPARES, "torch, late one, compiled",
        "torch.compile compiles in timing {late_one}, as for a shape that is new there: pad it, or leave it out (drop_last=True). Let it "
        "say why",
        "TORCH_LOGS=recompiles python SCRIPT.py"),
    Row(_PREPARES, "JAX, compiles twice",
        "XLA compiles again in a later call: does the type, the shape or a static argument of what it is called with change, such as a "
        "Python number that an array replaces? Let JAX say why (or call it within jax.log_compiles())",
        "JAX_EXPLAIN_CACHE_MISSES=1 python SCRIPT.py"),
    Row(_PREPARES, "JAX, recompiles, compiles the same",
        "XLA compiles the same work again and again: jit it once, outside the loop, and pass what changes as an argument",
        "step = jax.jit(f)  # once, before;   step(x, dt)  # in the loop"),
    Row(_PREPARES, "JAX, recompiles, compiles shapes",
        "XLA compiles for each new shape and static argument: pad to few shapes, and run each once before what is timed",
        _RUN_EACH),
    Row(f"{_PREPARES} allocation-inside", "python, plans anew",
        "Code is loaded in {planning} timings, as cuFFT does for a new plan: pad to few lengths, or keep all plans",
        "{plans}"),
    Row(f"{_CPU} api-launch other-calls sync-inside mixed several-kinds", "torch, kinds that give back",
        "Keep the memory: the timings that give it back to the driver or take it again are longer",
        _KEEP),
    Row(_PREPARES, "python, loads unchanged",
        "Make each kernel once, before the loop, and pass what changes as an argument, not in its source: code is loaded in "
        "{these} of these timings for the same kernels with as many blocks"),
    Row(_PREPARES, "python, new sizes",
        "Keep to few shapes, and run each once before what is timed: each that is new has kernels and plans of its own",
        _RUN_EACH),
    Row(_LAUNCHES, "torch, records a graph",
        "A CUDA graph is recorded anew: record it once and replay it; where shapes change, pad to few, and run each before what is timed",
        "[f(pad(x, n)) for n in lengths for _ in range(3)]  # once, before"),
    Row(f"{_CPU} api-launch other-calls", "python, threads",
        "Launch from one thread, or use processes: only one thread runs Python at a time",
        "torch.multiprocessing.spawn(worker, nprocs={threads})  # instead of threads"),
    Row("host-gap", "torch, forks",
        "Start the processes once that each of these timings starts anew: the workers of a DataLoader, if they are that",
        _PERSISTENT),
    Row(_CPU, "python, another thread runs, one long piece",
        "Another thread of the process runs for {longest} while this one does not: it may hold Python's interpreter, or compute what "
        "this one waits for. Do its work in a process of its own, or between the steps",
        "multiprocessing.Process(target=work).start()  # instead of threading.Thread"),
    Row(_CPU, "python, another thread runs",
        "Move what another thread of the program computes in Python into a process of its own",
        "multiprocessing.Process(target=work).start()  # instead of threading.Thread"),
    Row(_CPU, "python, sleeps",
        "Find what the thread waits for outside of CUDA: a lock, a file, the next batch, another process",
        _SAMPLE),
    Row("host-gap", "python, one long piece, late one, loads behind",
        "Keep to few shapes (pad, or leave the odd one out): for {longest} in one piece, before {loads_behind}, a library builds or chooses "
        "a kernel, as for a new shape"),
    Row("host-gap", "python, one long piece, not compiler, loads behind",
        "Keep to few shapes, and run each once before: for {longest} in one piece, before {loads_behind}, a library builds or chooses "
        "a kernel, as for a new shape",
        _RUN_EACH),
    Row("host-gap", "python, one long piece, not compiler, held up anywhere",
        "Find what holds the CPU up for {longest} in one piece, before different operations in different timings: it computes, "
        "or waits for another thread (which holds Python's interpreter)",
        _SAMPLE),
    Row("host-gap", "python, one long piece, not compiler",
        "Find the function that the CPU is in {where}, for {longest} in one piece",
        _SAMPLE),
    Row(_CPU, "torch, long pieces, loads behind pieces, cuDNN's attention",
        "cuDNN's attention builds a kernel for each new length (code is loaded behind {loads} pieces): keep lengths fixed (a static KV cache, which "
        "graphs can replay), or take another attention",
        'model.generate(..., cache_implementation="static")  # or:;   torch.backends.cuda.enable_cudnn_sdp(False)'),
    Row(_CPU, "python, long pieces, not compiler, loads behind pieces",
        "Keep to few shapes, and run each once before: {loads} long pieces lie before code is loaded, where a library builds or chooses a "
        "kernel, as for a new shape",
        _RUN_EACH),
    Row(_CPU, "torch, long pieces, not compiler, copies behind pieces",
        "The CPU works longest right before copies to the GPU: make on the GPU what is copied there, or in other processes, such as a "
        "DataLoader's workers",
        "x = torch.randn(shape, device='cuda')  # not torch.randn(shape).cuda()"),
    Row(_CPU, "python, long pieces, not compiler",
        "Find what the CPU does in {pieces} pieces of a millisecond and more: it computes, or waits for another thread (which "
        "holds Python's interpreter) or process",
        _SAMPLE),
    Row(_LAUNCHES, "torch, library's loop, not recurrent",
        "Compiled code launches them itself, as a library's does, one after the other ({kernel} {often} times), out of torch.compile's "
        "reach: take a routine that does the whole batch at once, if there is one"),
    Row(_LAUNCHES, "torch, optimizer",
        "Let the optimizer update all parameters in few kernels",
        "torch.optim.AdamW(model.parameters(), fused=True)  # as Adam, SGD and Adagrad"),
    Row(_LAUNCHES, "JAX, starts programs",
        "It starts {programs} compiled programs one after the other: compile the loop around them as a whole, or compute all its passes at once",
        "f = jax.jit(jax.vmap(f))  # or jax.lax.scan(step, x, xs), pass by pass"),
    Row(_LAUNCHES, "JAX, loop inside",
        "A loop inside a compiled program launches its {operations} operations one after the other: let each pass do more (unroll it, or "
        "take more at once)",
        "jax.lax.scan(step, x, xs, unroll=8)"),
    Row(f"{_LAUNCHES} sync-inside", "CuPy, elementwise, launches first",
        "Fuse the elementwise operations into one kernel",
        "@cupy.fuse()  # above the function that computes them"),
    Row(_LAUNCHES, "torch, cells",
        "{cell}Cell runs {steps} times, one step after the other: where nothing else depends on a step, let cuDNN run the whole "
        "sequence, which launches less",
        "y, h = torch.nn.{cell}(inputs, hidden)(x)  # x: (steps, batch, inputs)"),
    Row(_LAUNCHES, "torch, tensors in turn", f"It launches {_IN_TURN}", _FOREACH),
    Row(_LAUNCHES, "torch, compiles, waits",
        "Fuse the small operations, or replay them as a CUDA graph, and copy to the GPU outside of that",
        'f = torch.compile(f, mode="reduce-overhead"); f(x.cuda())'),
    Row(_LAUNCHES, "torch, compiles",
        "Fuse the small operations, or replay them as a CUDA graph",
        'f = torch.compile(f, mode="reduce-overhead")'),
    Row(_LAUNCHES, "python, by Numba, many small",
        "Let each kernel do more, such as the loop around it: the CPU takes {each} for each launch, more where arrays of other "
        "libraries are converted each time",
        "d = cuda.as_cuda_array(x)  # once;   kernel[grid, block](d)  # in the loop"),
    Row(f"{_LAUNCHES} sync-inside", "torch, many small, not library's loop, more waits than copies in, waits often, launches first, not own code",
        "Launch less (larger batches), {less}; a CUDA graph cannot hold {waits}. Find them",
        _NAMES_LINES),
    Row(_LAUNCHES, "torch, a kind of tensors in turn", f"Those of {{time_in_turn}} launch {_IN_TURN}", _FOREACH),
    Row(_LAUNCHES, "python, many small, very many, not own code",
        "Launch less: give each operation more to do (larger batches), or fuse the small ones"),
    Row("sync-inside", "torch, reads back, more than a few waits",
        "Decide on the GPU instead of reading back (no .item(), `if` of a tensor, nonzero() or x[mask]), or read all of it back once. To find the lines",
        _NAMES_LINES),
    Row("sync-inside", "torch, reads back",
        "Keep the value on the GPU; where it decides the sizes of what follows, pass the number in or keep sizes fixed (torch.where, not x[mask]). To find the line",
        _NAMES_LINES),
    Row("sync-inside", "torch, not reads back, waits itself",
        "Wait only where something depends on it, and on the GPU rather than on the CPU",
        "stream.wait_event(event)  # instead of torch.cuda.synchronize()"),
    Row("allocation-inside other-calls host-gap", "torch, allocates pinned",
        "Allocate pinned memory once, before the loop, and copy from it",
        _PIN),
    Row("allocation-inside", "torch, allocates, gives back, allocates most",
        "Keep the memory: it is given back to the driver and taken again, as by empty_cache() in a loop, or where memory runs short",
        _KEEP),
    Row("allocation-inside", "torch, allocates, not gives back",
        "Allocate once and reuse the memory",
        "out = torch.empty_like(x)  # once;   f(x, out=out)  # in the loop"),
    Row(f"{_CPU} api-launch", "torch, copies by torch, held by a copy",
        "Pin the memory once, before the loop: the call then does not wait for the copy",
        _PIN),
    Row("copy-inside", "torch, copies by torch, pageable both ways",
        "As many bytes come back as are copied to the GPU. What does not change there, such as weights, need not come back: leave it on the GPU, "
        "or copy it each time from pinned memory",
        "host = [p.data.pin_memory() for p in m.parameters()]  # once;   "
        "for p, h in zip(m.parameters(), host): p.data = h  # instead of m.cpu()"),
    Row("copy-inside", "torch, copies by torch, pageable in",
        "Pin the memory once, before the loop{rate}: it copies faster and does not block the CPU",
        _PIN),
    Row("copy-inside", "torch, copies by torch, pageable out",
        "Copy to pinned memory{rate}, which is faster; allocate it once",
        "out = torch.empty_like(x, device='cpu', pin_memory=True); out.copy_(x)"),
    Row(f"{_CPU} copy-inside sync-inside api-launch", "python, only Numba's kernels, pageable both ways",
        "Keep the arrays on the GPU: one of NumPy's that a kernel is called with is copied there and back each time",
        "d = cuda.to_device(a)  # once;   kernel[grid, block](d)  # in the loop"),
    Row("sync-inside", "CuPy, reads back",
        "Keep the value on the GPU: no float(), .get() or .item() inside; read it back once",
        "total += x.sum()  # in the loop;   float(total)  # once, after it"),
    Row("slower-kernel", "managed memory, Numba",
        "Copy to the GPU explicitly, before the kernel needs it, instead of letting it fetch managed memory page by page",
        "d = cuda.to_device(a)  # instead of cuda.managed_array"),
    Row("slower-kernel", "managed memory",
        "Move managed memory to the GPU before the kernel touches it (cudaMemPrefetchAsync), or copy explicitly"),
    Row("launch-blocking", "always", "Run without it", "env -u CUDA_LAUNCH_BLOCKING python SCRIPT.py"),
    Row("host-gap", "collects some garbage",
        "Keep Python from collecting garbage in it, which is a part of its time",
        _NO_COLLECTION),
    Row("module-load", "python, loads late",
        "Load the code when the program starts, as far as it is not compiled later, not when the first result is needed",
        "CUDA_MODULE_LOADING=EAGER python SCRIPT.py"),
)  # fmt: skip


def of_first_pass(case: Case) -> Advice | None:
    """What to do where the first pass of a loop takes far longer each time, in one piece of the CPU's; None where
    that is not one."""
    if not _holds("torch", case) or not case.in_one_piece:
        return None
    text = "Start once what the first pass of each loop starts anew, such as the workers of a DataLoader"
    return Advice("", text, _PERSISTENT)


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
