"""Advice that suits the program that ran: torch code is useless for a program in C++ or TensorRT, and a range has no start
event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import pandas as pd

from nsysalign.diagnose.faster import faster
from nsysalign.diagnose.finding import Finding
from nsysalign.model import Analysis

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)
#: A line of code in an advice: it follows a colon and three spaces.
_CODE = re.compile(r":   .*", re.DOTALL)

#: Per rule, how to measure correctly in any language: for ranges, and for events that no torch code recorded.
_ANYWHERE = {
    "host-gap": "Queue a long kernel before the start event, so that the host runs ahead, or time a CUDA graph.",
    "many-tiny-kernels": "Queue a long kernel before the start event, so that the host runs ahead, or time a CUDA graph.",
    "api-launch": "Queue a long kernel before the start event, so that the host runs ahead, or time a CUDA graph.",
    "launch-latency": "Measure several calls together and divide.",
    "event-floor": "Measure many calls together and divide.",
    "allocation-inside": "Allocate before the start event.",
    "module-load": "Run the code once before the part that counts.",
    "copy-inside": "Copy before the start event or after the end event.",
    "memset-inside": "Clear the memory before the start event.",
    "sync-inside": "Synchronise after the end event only.",
    "queued-dependency": "Wait before the start event.",
    "queued-contention": "Let the other streams finish first.",
    "full-queue": "Measure fewer launches at once, or a CUDA graph.",
    "wrong-stream": "Record both events on the stream that does the work.",
    "different-streams": "Record both events on the stream that does the work, or let the end's stream wait for the other.",
    "recorded-again": "Use a fresh pair of events for each measurement.",
    "captured": "Record around the launch of the graph.",
    "too-few-samples": "Repeat it.",
    "warm-up": "Leave the first intervals out.",
    "high-variance": "Take more repetitions, and report median and spread.",
    "two-modes": "Report both, or find what differs: clocks, cache, inputs.",
    "cold-l2": "Decide which one you want, and make it so in all runs.",
    "clock-changed": "Compare intervals at one clock only.",
}  # fmt: skip
#: Rules whose advice on measuring is about events: a range has none.
NOT_OF_RANGES = {
    "host-gap", "many-tiny-kernels", "api-launch", "launch-latency", "event-floor", "allocation-inside", "copy-inside",
    "memset-inside", "sync-inside", "queued-dependency", "full-queue",
}  # fmt: skip


class Speaker:
    """Chooses the wording of an analysis's advice."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._labels = analysis.labels.set_index("label")["kind"].to_dict()

    @cached_property
    def torch(self) -> bool:
        """Whether the program is torch's: its events were logged, or its kernels or ranges are there.  If that cannot be
        determined (old analyses name no kernels), torch is assumed, as in the rules."""
        a = self._analysis
        if a.calibration.get("collected_with") or a.kernels.empty:
            return True
        names = pd.unique(pd.concat([a.kernels["kernel"], a.labels["label"]]).astype(str))
        return any(_TORCH.search(name) for name in names.tolist())

    def words(self, finding: Finding) -> str:
        """The advice of a finding, without torch code if that would not help."""
        kind = self._labels.get(finding.label, "event")
        if kind == "host" or (kind == "event" and self.torch):
            return finding.advice
        if kind == "nvtx" and finding.rule in NOT_OF_RANGES:
            return ""
        return _ANYWHERE.get(finding.rule, _CODE.sub(".", finding.advice))

    def faster(self, finding: Finding) -> str:
        """What would make the program faster, with torch code if it is a torch program."""
        return faster(finding, self.torch)


def spoken(analysis: Analysis, found: Sequence[Finding]) -> list[Finding]:
    """Findings with both kinds of advice, as they suit the program and the kind of interval."""
    speaker = Speaker(analysis)
    return [replace(f, advice=speaker.words(f), faster=speaker.faster(f)) for f in found]
