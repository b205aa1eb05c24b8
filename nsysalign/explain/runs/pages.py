"""Did pages of managed memory move because somebody touched them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nsysalign.explain.facts import WARN_SHARE
from nsysalign.explain.finding import Findings
from nsysalign.intervals import covered, disjoint
from nsysalign.model import KIND, MIGRATIONS, Trace, pid_of
from nsysalign.text import of, plural, quantity, span

if TYPE_CHECKING:
    from nsysalign.explain.runs.run import Run

_TO_DEVICE, _TO_HOST, _ = MIGRATIONS
#: Calls by which a program asks for pages ahead of their use.
_ASKED = ("cudaMemPrefetch", "cuMemPrefetch")


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


def page_migrations_of(trace: Trace) -> list[PageMigrations]:
    """Return which pages of managed memory moved, for each process and device on which some did.

    Kernels:         KKKKKKKKKKKKKKKKKKKK
    Pages to the GPU:   mm mm mmm           to the host:   m m mm

    The host touched a page if the page moved to the host after the device had run nothing and if
    the host had not asked for it meanwhile.  How long page faults take besides is not in a trace:
    between two pages a kernel may work.  Rows of pages that the program itself asked for (`asked`)
    look the same.
    """
    asking = [i for i, name in trace.names.items() if name.startswith(_ASKED)]
    asked = trace.calls[trace.calls["name_id"].isin(asking)]
    pages = trace.operations["copy_kind"].isin(MIGRATIONS)
    columns = ("copy_kind", "start_ns", "end_ns", "kind", "bytes")
    out = list[PageMigrations]()
    for (process, device), operations in trace.operations.groupby(["process", "device"]):
        moved = pages[operations.index].to_numpy()
        if not moved.any():
            continue
        copy, start, end, kind, size = (operations[c].to_numpy() for c in columns)
        until, since = np.maximum.accumulate(end)[:-1], start[1:]
        calls = asked.loc[asked["process"] == process, "start_ns"].to_numpy()
        alone = np.searchsorted(calls, until) == np.searchsorted(calls, since)
        to_host, kernels = copy == _TO_HOST, kind == KIND["kernel"]
        back = to_host[1:] & (since > until) & alone
        _, first, last = disjoint(start[moved], end[moved])
        ran = disjoint(start[kernels], end[kernels])[1:]
        moving = int((last - first).sum())
        out.append(
            PageMigrations(
                pid=int(pid_of(process)),
                device=int(device),
                touched_count=int(back.sum()),
                touched_ns=int((since - until)[back].sum()),
                asked=bool(len(calls)),
                to_device_count=int((copy == _TO_DEVICE).sum()),
                to_host_count=int(to_host.sum()),
                to_host_bytes=int(size[to_host].sum()),
                to_host_ns=int((end - start)[to_host].sum()),
                moving_ns=moving,
                alone_ns=moving - int((covered(*ran, last) - covered(*ran, first)).sum()),
            )
        )
    return out


def page_migrations(run: Run) -> Findings:
    """Yield findings on managed memory that moved when it was touched: kernels wait for its pages,
    and so does the CPU.
    """
    moved = run.fact(PageMigrations)
    if moved is None:
        return
    idle, lost = run.touched, moved.moving_ns
    if idle > WARN_SHARE * run.elapsed:
        # what the CPU does between two touches remains, and faults are not in the trace: no loss
        yield run.finding(
            f"for {of(idle, run.elapsed)} the GPU ran nothing while the CPU touched managed memory: its pages "
            f"came back from the GPU in {plural(moved.touched_count, 'migration')}, one after the other; "
            f"{quantity('bytes', moved.to_host_bytes)} moved to the host in {span(moved.to_host_ns)}.",
            "Fetch what the CPU reads before it does (cudaMemPrefetchAsync to cudaCpuDeviceId, or one copy), or do that work on the GPU",
            idle_before_migrations_ns=idle,
            migrations_to_the_host=moved.touched_count,
            bytes_to_the_host=moved.to_host_bytes,
            moving_to_the_host_ns=moved.to_host_ns,
        )
    if moved.asked or lost <= 0.1 * run.elapsed:
        return
    alone, count = moved.alone_ns, moved.to_device_count + moved.to_host_count
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
