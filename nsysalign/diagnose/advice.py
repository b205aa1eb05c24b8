"""What to change, in the words of the program that ran: torch code helps nobody whose program is C++ or TensorRT, and a
range has no start event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import pandas as pd

from nsysalign.diagnose.finding import Finding
from nsysalign.model import Analysis

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)
#: A program's line in an advice: it follows three blanks behind a colon.
_CODE = re.compile(r":   .*", re.DOTALL)

#: Per rule, what helps whatever the program is written in: of ranges, and of events that no torch code recorded.
_ANYWHERE = {
    "host-gap": "Issue the work earlier, in fewer and larger operations, or replay it as a CUDA graph.",
    "many-tiny-kernels": "Replay the work as a CUDA graph, or fuse the small kernels.",
    "api-launch": "Look at that call: what it waits for can be done before, or once; a CUDA graph needs one call for all.",
    "launch-latency": "Measure several calls together and divide.",
    "event-floor": "Measure many calls together and divide.",
    "allocation-inside": "Allocate once before, and use the memory again.",
    "module-load": "Run the code once before the part that counts; CUDA_MODULE_LOADING=EAGER loads it at the start.",
    "copy-inside": "Copy outside of it, from and to pinned memory, so that copies run beside kernels.",
    "memset-inside": "Clear the memory outside of it, or in the kernel that writes it first.",
    "sync-inside": "Synchronise after it, not inside; keep results on the GPU until all work is issued.",
    "queued-dependency": "Issue what it waits for earlier, or wait before it begins.",
    "queued-contention": "Let the other streams finish first to measure it alone.",
    "full-queue": "Issue fewer launches at once, or replay them as a CUDA graph.",
    "wrong-stream": "Record both events on the stream that does the work.",
    "different-streams": "Record both events on the stream that does the work, or let the end's stream wait for the other.",
    "recorded-again": "Use a fresh pair of events for each measurement.",
    "captured": "Record around the launch of the graph.",
    "too-few-samples": "Repeat it.",
    "warm-up": "Leave the first runs out.",
    "high-variance": "Take more repetitions and report median and spread.",
    "two-modes": "Report both, or find what differs: clocks, cache, inputs.",
    "cold-l2": "Decide which one you want, and make it so in all runs.",
    "clock-changed": "Compare runs at one clock only.",
}  # fmt: skip


class Speaker:
    """Chooses the words of an analysis's findings."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._labels = analysis.labels.set_index("label")["kind"].to_dict()

    @cached_property
    def torch(self) -> bool:
        """Whether the program is torch's: its events were logged, or its kernels or ranges are there.  What cannot be told
        (an analysis of older days names no kernels) is taken for torch, as the rules do."""
        a = self._analysis
        if a.calibration.get("collected_with") or a.kernels.empty:
            return True
        names = pd.unique(pd.concat([a.kernels["kernel"], a.labels["label"]]).astype(str))
        return any(_TORCH.search(name) for name in names.tolist())

    def words(self, finding: Finding) -> str:
        """The advice of a finding, without torch code where that is no help."""
        kind = self._labels.get(finding.label, "event")
        if kind == "host" or (kind == "event" and self.torch):
            return finding.advice
        return _ANYWHERE.get(finding.rule, _CODE.sub(".", finding.advice))


def spoken(analysis: Analysis, found: Sequence[Finding]) -> list[Finding]:
    """Findings with the advice that suits the program and the kind of interval."""
    speaker = Speaker(analysis)
    return [replace(f, advice=speaker.words(f)) for f in found]
