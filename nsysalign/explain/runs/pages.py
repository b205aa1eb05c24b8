"""Did pages of managed memory move because somebody touched them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.explain.clauses import Clause, Cut
from nsysalign.explain.facts import WARN_SHARE
from nsysalign.explain.finding import Findings
from nsysalign.intervals import covered, disjoint
from nsysalign.model import KIND, MIGRATIONS, Trace, pid_of
from nsysalign.text import of, plural, quantity, span

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

_TO_DEVICE, _TO_HOST, _ = MIGRATIONS
#: From this share of the run on, it is said that pages moved.
_MOVING_SHARE = 0.1
#: Calls by which a program asks for pages ahead of their use.
_ASKED = ("cudaMemPrefetch", "cuMemPrefetch")


#: Calls that allocate managed memory; the driver's one lies in the runtime's.
_ALLOCATED = ("cudaMallocManaged", "cuMemAllocManaged")


_TOUCH_LESS = (
    "Do on the GPU what the CPU does there; where it only reads, fetch that before, at once (cudaMemPrefetchAsync to "
    "cudaCpuDeviceId)"
)
_PREFETCH_UP = (
    ". Behind the CPU's last touch prefetch to the GPU what kernels read (cudaMemPrefetchAsync)"
)


class ManagedAllocations(NamedTuple):
    """How many calls of a trace allocated managed memory."""

    count: int


def managed_allocations_of(trace: Trace) -> Iterator[ManagedAllocations]:
    """Yield one record if a call of the trace allocated managed memory."""
    allocating = [name_id for name_id, name in trace.names.items() if name.startswith(_ALLOCATED)]
    if count := int((trace.calls["name_id"].isin(allocating) & trace.outermost).sum()):
        yield ManagedAllocations(count)


class PageMigrations(NamedTuple):
    """Pages of a process that moved to and from a device."""

    pid: int
    device: int
    touched_count: int = 0  # how often the device had run nothing before one moved to the host
    touched_ns: int = 0  # for how long; the host asked for none in that time
    asked: bool = False  # the program itself asked for pages ahead of their use
    to_device_count: int = 0
    to_host_count: int = 0
    to_host_bytes: int = 0
    to_host_ns: int = 0
    moving_ns: int = 0  # pages moved, a union
    alone_ns: int = 0  # of that no kernel ran
    to_device_in_kernels_ns: int = 0  # pages moved to the device while kernels ran
    kernels_ns: int = 0  # kernels ran


def page_migrations_of(trace: Trace) -> list[PageMigrations]:
    """Return which pages of managed memory moved: a record for each process and device on which some did.

    Kernels:         KKKKKKKKKKKKKKKKKKKK
    Pages to the GPU:   mm mm mmm           to the host:   m m mm

    How long page faults take besides is not in a trace: between two pages a kernel may work.
    """
    if not trace.operations["copy_kind"].isin(MIGRATIONS).any():
        return []
    asking = [name_id for name_id, name in trace.names.items() if name.startswith(_ASKED)]
    asked = trace.calls[trace.calls["name_id"].isin(asking)]
    out = list[PageMigrations]()
    for (process, device), operations in trace.operations.groupby(["process", "device"]):
        if operations["copy_kind"].isin(MIGRATIONS).any():
            out.append(_migrations_of_device(process, device, operations, asked))
    return out


def _migrations_of_device(
    process: int, device: int, operations: pd.DataFrame, asked: pd.DataFrame
) -> PageMigrations:
    """Return which pages moved to and from one device.

    operations: those of the process on the device, sorted by start
    asked: the calls of all processes that ask for pages ahead of their use, sorted by start
    """
    start = operations["start_ns"].to_numpy()
    end = operations["end_ns"].to_numpy()
    size = operations["bytes"].to_numpy()
    copy_kind = operations["copy_kind"].to_numpy()
    is_kernel = operations["kind"].to_numpy() == KIND["kernel"]
    to_host = copy_kind == _TO_HOST
    moves = np.isin(copy_kind, MIGRATIONS)
    asked_at = asked.loc[asked["process"] == process, "start_ns"].to_numpy()
    idle_ns = _idle_before_touch(start, end, to_host, asked_at)
    _, kernels_start, kernels_end = disjoint(start[is_kernel], end[is_kernel])

    def moving(chosen: np.ndarray) -> tuple[int, int]:
        """Return for how long (ns) at least one of these operations runs, and at least one kernel beside it."""
        _, low, high = disjoint(start[chosen], end[chosen])
        beside = covered(kernels_start, kernels_end, high) - covered(
            kernels_start, kernels_end, low
        )
        return int((high - low).sum()), int(beside.sum())

    moving_ns, beside_kernels_ns = moving(moves)
    return PageMigrations(
        pid=int(pid_of(process)),
        device=int(device),
        touched_count=int((idle_ns > 0).sum()),
        touched_ns=int(idle_ns.sum()),
        asked=bool(len(asked_at)),
        to_device_count=int((copy_kind == _TO_DEVICE).sum()),
        to_host_count=int(to_host.sum()),
        to_host_bytes=int(size[to_host].sum()),
        to_host_ns=int((end - start)[to_host].sum()),
        moving_ns=moving_ns,
        alone_ns=moving_ns - beside_kernels_ns,
        to_device_in_kernels_ns=moving(copy_kind == _TO_DEVICE)[1],
        kernels_ns=int((kernels_end - kernels_start).sum()),
    )


def _idle_before_touch(
    start: np.ndarray, end: np.ndarray, to_host: np.ndarray, asked_at: np.ndarray
) -> np.ndarray:
    """Return, per operation of a device, how long (ns) the device had run nothing before it, if the operation
    moves a page that the host touched; 0 for all others.

    The host touched a page if the page moves to the host after idle time in which the host asked for no
    pages.  Pages for which the program had asked before that look the same, and count as touched.

    start, end: the operations, sorted by start (ns)
    to_host: per operation, whether it moves a page to the host
    asked_at: when calls began that ask for pages, rising (ns)
    """
    idle_ns = np.zeros(len(start), np.int64)
    all_ended = np.maximum.accumulate(end)[:-1]  # what ran before each operation but the first
    begins = start[1:]
    # no call that asks began in between
    asked_for_none = np.searchsorted(asked_at, all_ended) == np.searchsorted(asked_at, begins)
    touched = to_host[1:] & (begins > all_ended) & asked_for_none
    idle_ns[1:] = np.where(touched, begins - all_ended, 0)
    return idle_ns


def page_migrations(run: Run) -> Findings:
    """Yield up to two findings on a run whose managed memory moved when it was touched.

    The first says for how long the GPU ran nothing while the CPU touched memory that was on it; the second, for how long
    pages moved, for which kernels wait that touch them.
    """
    moved = run.fact(PageMigrations)
    if moved is None:
        return
    idle_ns = run.touched_ns
    if idle_ns > WARN_SHARE * run.elapsed_ns:
        # The loss is an upper bound: what the CPU itself does between two touches takes its time all the same, unless
        # the GPU does that work.
        moved_up = moved.to_device_in_kernels_ns > WARN_SHARE * moved.kernels_ns
        up_ns = of(moved.to_device_in_kernels_ns, moved.kernels_ns) if moved_up else ""
        yield run.finding(
            (
                Clause(
                    f"for {of(idle_ns, run.elapsed_ns)} the GPU ran nothing while the CPU touched managed memory"
                ),
                Clause(
                    f"; its pages moved to the host for {span(moved.to_host_ns)}",
                    {Cut.SECOND_CLAUSE: ""},
                ),
                Clause(
                    f" ({quantity('bytes', moved.to_host_bytes)} in {plural(moved.to_host_count, 'migration')})",
                    {Cut.WORDS: ""},
                ),
                Clause(
                    f", to the GPU for {up_ns} in which kernels ran" if moved_up else "",
                    {Cut.THIRD_CLAUSE: ""},
                ),
            ),
            _TOUCH_LESS + _PREFETCH_UP * moved_up,
            loss_ns=idle_ns,
            idle_before_migrations_ns=idle_ns,
            migrations_to_the_host=moved.to_host_count,
            bytes_to_the_host=moved.to_host_bytes,
            moving_to_the_host_ns=moved.to_host_ns,
            moving_to_the_gpu_in_kernels_ns=moved.to_device_in_kernels_ns if moved_up else None,
            kernels_ran_ns=moved.kernels_ns if moved_up else None,
        )
    # pages for which the program asked ahead of their use did not move page by page when they were touched
    if moved.asked or moved.moving_ns <= _MOVING_SHARE * run.elapsed_ns:
        return
    count = moved.to_device_count + moved.to_host_count
    beside_kernels_ns = moved.moving_ns - moved.alone_ns
    yield run.finding(
        (
            Clause("managed memory moved page by page when it was touched"),
            Clause(f": {plural(count, 'migration')}", {Cut.DETAIL: ""}),
            Clause(" to and from the GPU", {Cut.WORDS: ""}),
            Clause(
                f". Pages moved for {span(beside_kernels_ns)} while kernels ran, and for {span(moved.alone_ns)} while none did",
                {Cut.SECOND_CLAUSE: ""},
            ),
            Clause(
                "; how long the page faults themselves took is not in the trace", {Cut.REMARK: ""}
            ),
        ),
        "Move managed memory before it is touched (cudaMemPrefetchAsync), say how it is used (cudaMemAdvise), or copy explicitly from "
        "pinned memory:   cudaMemPrefetchAsync(pointer, bytes, device, stream);",
        loss_ns=moved.moving_ns
        + idle_ns,  # with the first finding's: who moves memory ahead saves both
        migrations=count,
        migrations_during_kernels_ns=beside_kernels_ns,
        migrations_without_kernels_ns=moved.alone_ns,
    )
