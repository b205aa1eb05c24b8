"""Does a kernel take far longer in one place than the same kernel in another place of the run?

    line 32    axpy, 131,072 blocks    39.6 ms
    line 34    axpy, 131,072 blocks     126 us        the kernel is not slow: it waited in line 32

A timing that is nearly all one kernel is no proof that the kernel computes for so long: pages of
managed memory move while it waits for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from nsysalign.explain.verdict import NCCL
from nsysalign.label import Group, Issued
from nsysalign.model import Evidence

#: A kernel takes far longer if it takes at least so many times as long.
FAR = 10
#: No GPU holds so many blocks at a time: such a grid is not made to fit the GPU, but to fit the work.
#: Of a smaller one the same grid may do any amount of work.
_LARGE_GRID = 1 << 13
#: Most of a group's kernel time.
_MOST = 0.5
#: What takes as long as it is asked to, or as others let it.
_WAITS = re.compile(rf"spin_kernel|{NCCL.pattern}")


class Elsewhere(NamedTuple):
    """A kernel of one group that is far quicker in another one.

    kernel: its name
    count: how often the typical interval launches it
    ns: how long a launch of it takes here, on average
    elsewhere_ns: how long it takes in the group with most timings of those where it is far quicker
    label: the label of that group
    """

    kernel: str
    count: int
    ns: int
    elsewhere_ns: int
    label: str

    @property
    def factor(self) -> float:
        """How many times as long it takes here."""
        return self.ns / max(self.elsewhere_ns, 1)

    @property
    def excess_ns(self) -> int:
        """How much longer the typical interval takes than with the kernel as quick as there."""
        return self.count * (self.ns - self.elsewhere_ns)


def quicker_elsewhere(evidence: Evidence) -> Mapping[int, Elsewhere]:
    """Return, by the number of a group, the kernel that takes most of its kernel time, if the same kernel is quicker by
    FAR in another group: of the same name with as many blocks.

    How long the kernels of a group take is known of its typical interval: it is quicker there only if no tenth of the
    group's timings is longer than the typical one by half of what the kernel takes here.  Nothing is said of grids that
    fit a GPU, unless the run allocated managed memory.
    """
    groups = [group for label in evidence.grouped for group in label.groups]
    # (name, blocks) -> for each group that runs it (how long a launch takes, the group)
    launches: dict[tuple[str, int], list[tuple[int, Group]]] = {}
    for group in groups:
        for kernel in group.work.of_kind("kernel"):
            if (blocks := _blocks(kernel)) and kernel.ns:
                launch = (kernel.ns // kernel.count, group)
                launches.setdefault((kernel.name, blocks), []).append(launch)
    out = {}
    for group in groups:
        kernels = group.work.of_kind("kernel")
        longest = max(kernels, key=lambda kernel: kernel.ns, default=None)
        if longest is None or longest.ns < _MOST * sum(kernel.ns for kernel in kernels):
            continue
        blocks = _blocks(longest)
        large_enough = blocks >= _LARGE_GRID or evidence.known.managed_allocations > 0
        if not blocks or not large_enough or _WAITS.search(longest.name):
            continue
        here_ns = longest.ns // longest.count
        known = launches.get((longest.name, blocks), [])
        far_quicker = [
            (ns, quick)
            for ns, quick in known
            if here_ns >= FAR * ns and 2 * (quick.high_ns - quick.typical_ns) < here_ns - ns
        ]
        if far_quicker:
            elsewhere_ns, quick = max(far_quicker, key=lambda launch: launch[1].count)
            out[group.number] = Elsewhere(
                longest.name, longest.count, here_ns, elsewhere_ns, quick.label
            )
    return out


def _blocks(kernel: Issued) -> int:
    """Return how many blocks each launch of a kernel has; 0 where that is not known, or launches differ."""
    known = kernel.blocks > 0 and kernel.blocks % kernel.count == 0
    return kernel.blocks // kernel.count if known else 0
