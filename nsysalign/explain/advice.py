"""Advice that suits the program that ran (torch code is useless for a program in C++ or TensorRT,
and a range has no start event).

There are two kinds of advice: how to measure the GPU alone, or right, and what makes the program
faster.  A delay before the start event isolates the GPU's time but makes nothing faster; a CUDA
graph may do both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from nsysalign.explain import thresholds, words
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Finding, Words
from nsysalign.model import Analysis

#: Kernels and ranges that only torch's own code makes.
_TORCH = re.compile(
    r"\bat::|at_cuda_detail|\bc10::|^aten::|triton_(poi|red|per|tem)_|autograd::|^FSDP::|DistributedDataParallel"
)
#: A line of code in an advice: it follows a colon and three spaces.
_CODE = re.compile(r":   .*", re.DOTALL)

#: Per rule, how to measure correctly in any language: for ranges, and for events that no torch code
#: recorded.
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
    "high-variance": "Report the median and the spread, or find what differs: clocks, caches, inputs.",
    "cold-l2": "Decide which one you want, and make it so in all runs.",
    "clock-changed": "Compare intervals at one clock only.",
}  # fmt: skip
#: Rules whose advice on measuring is about events: a range has none.
NOT_OF_RANGES = {
    "host-gap", "many-tiny-kernels", "api-launch", "launch-latency", "event-floor", "allocation-inside", "copy-inside",
    "memset-inside", "sync-inside", "queued-dependency", "full-queue",
}  # fmt: skip
_COMPILE = 'f = torch.compile(f, mode="reduce-overhead")'


#: By rule.  Rules whose remedy depends on what they found are in `_of`.
FASTER: Mapping[str, Words] = {
    "host-gap": Words("Launch less and earlier: fuse operations, replay them as a CUDA graph, move other work off this thread", _COMPILE),
    "many-tiny-kernels": Words("Fuse the small operations, or replay them as a CUDA graph", _COMPILE),
    "api-launch": Words("Move what that call waits for out of the loop, or replay the work as a CUDA graph, one call for all", _COMPILE),
    "launch-latency": Words("Give each launch more work: larger batches, fused operations", _COMPILE),
    "allocation-inside": Words("Allocate once and reuse the memory", "out = torch.empty_like(x)  # once;   f(x, out=out)  # in the loop"),
    "module-load": Words("Load the code when the program starts, not when the first result is needed", "CUDA_MODULE_LOADING=EAGER python SCRIPT.py"),
    "memset-inside": Words("Skip the clearing where everything is overwritten anyway", "out = torch.empty_like(x)  # instead of torch.zeros_like(x)"),
    "queued-dependency": Words("Issue what it waits for earlier, or give it other work meanwhile"),
    "queued-contention": Words("Give one stream the GPU to itself while its work is urgent", "urgent = torch.cuda.Stream(priority=-1)"),
    "launch-blocking": Words("Run without it", "env -u CUDA_LAUNCH_BLOCKING python SCRIPT.py"),
    "full-queue": Words("The host is ahead and the GPU is the limit: only faster kernels help"),
}  # fmt: skip


#: The same where CUDA graphs are replayed in the interval already.
_IN_GRAPHS: Mapping[str, Words] = {
    "host-gap": Words("Put more of the work into the CUDA graph that is replayed here, launch the rest earlier, and move other work off this thread"),
    "many-tiny-kernels": Words("Put the small operations beside the CUDA graph that is replayed here into it, or fuse them"),
    "api-launch": Words("Put more work into the CUDA graph that is replayed here, so that it is launched less often"),
    "launch-latency": Words("Give each launch more work: larger batches, several steps in one CUDA graph"),
}  # fmt: skip

#: In an interval that synchronises, which no graph can capture.
_BEYOND_GRAPHS: Mapping[str, Words] = {
    "host-gap": Words("Launch less and earlier: fuse operations, move the synchronisation and other work out of this code", "f = torch.compile(f)"),
    "many-tiny-kernels": Words("Fuse the small operations", "f = torch.compile(f)"),
}  # fmt: skip


def _of(finding: Finding) -> Words | None:
    """For rules with several remedies."""
    if finding.rule == "event-floor" and "host_and_calls_ns" in finding.evidence:
        return Words(
            "Do that work in another thread or process, while the GPU is busy",
            "loader = DataLoader(data, num_workers=4)",
        )
    if finding.rule == "host-gap":
        return _of_gap(finding)
    if finding.rule == "sync-inside":
        if ".item()" in finding.advice:
            code = "total += loss.detach()  # in the loop;   total.item()  # once, after it"
            return Words("Read results back once, not in every step", code)
        return Words(
            "Wait only where something depends on it, and on the GPU rather than on the host",
            "stream.wait_event(event)  # instead of torch.cuda.synchronize()",
        )
    if finding.rule == "copy-inside":
        return _of_copy(finding)
    return None


def _of_gap(finding: Finding) -> Words | None:
    """Where one stretch of host work is most of the wait, launching less does not help: that
    stretch has to go."""
    seen = finding.evidence
    waited = sum(
        int(seen.get(name, 0))
        for name in ("outside_CUDA_ns", "launch_calls_ns", "other_CUDA_calls_ns")
    )
    longest, then = int(seen.get("longest_gap_ns", 0)), seen.get("it_waited_for", "")
    if longest < max(thresholds.ONE_GAP_SHARE * waited, thresholds.LONG_GAP_NS):
        return None
    where = f"before it launches {then}" if then else "before it records the end event"
    return Words(
        f"Look at what the host does {where}, {words.span(longest)} in one stretch: do it once, before the loop, or in another thread",
        "nsysalign run --sample-python SCRIPT.py  # names the functions",
    )


def in_pieces(copied_bytes: int, ns: int) -> bool:
    """Whether copies took this long because they are many and small: pinned memory does not help
    them, and a rate says nothing."""
    return copied_bytes < thresholds.IN_PIECES_BYTES_PER_NS * ns


def _of_copy(finding: Finding) -> Words | None:
    direction, memory = finding.evidence.get("direction"), finding.evidence.get("memory")
    if in_pieces(finding.evidence["copied_bytes"], finding.evidence["copy_ns"]):
        return Words("Put what is copied in many small pieces together, and copy it once")
    if direction not in ("H2D", "D2H"):
        return Words("Write the result where it is needed", "torch.mm(a, b, out=out)")
    if memory == "pageable":
        code = {
            "H2D": "x = x.pin_memory().cuda(non_blocking=True)   loader = DataLoader(data, pin_memory=True)",
            "D2H": "out = torch.empty_like(x, device='cpu', pin_memory=True); out.copy_(x, non_blocking=True)",
        }
        return Words("Pinned memory copies faster and does not block the host", code[direction])
    code = "with torch.cuda.stream(copies): y = x.cuda(non_blocking=True)"
    return Words("Copy on a separate stream, while kernels run", code)


def is_torch(analysis: Analysis) -> bool:
    """Whether the program is torch's: its events were logged, or its kernels or ranges are there.
    If that cannot be determined (a trace without kernels), torch is assumed, as in the rules."""
    if analysis.calibration.get("collected_with") or analysis.kernels.empty:
        return True
    names = pd.unique(pd.concat([analysis.kernels["kernel"], analysis.labels["label"]]).astype(str))
    return any(_TORCH.search(name) for name in names.tolist())


def advised(facts: Facts, found: Sequence[Finding]) -> list[Finding]:
    """Findings with both kinds of advice, as they suit the program and the kind of interval."""
    analysis = facts.whole
    torch, kinds = is_torch(analysis), analysis.labels.set_index("label")["kind"].to_dict()
    out = []
    for f in found:
        shown = facts.shows(f.interval, f.intervals)
        graphs = shown >= 0 and bool(facts.graphs[shown])
        advice = _measuring(f, kinds.get(f.label, "event"), torch)
        if graphs:
            advice = advice.replace(", or time a CUDA graph", "")
        waits = shown >= 0 and facts.part("sync")[shown] > 0
        better = _IN_GRAPHS if graphs else _BEYOND_GRAPHS if waits else {}
        out.append(replace(f, advice=advice, faster=faster(f, torch, better)))
    return out


def _measuring(finding: Finding, kind: str, torch: bool) -> str:
    """How to measure right, without torch code if that would not help."""
    if kind == "host" or (kind == "event" and torch):
        return finding.advice
    if kind == "nvtx" and finding.rule in NOT_OF_RANGES:
        return ""
    return _ANYWHERE.get(finding.rule, _CODE.sub(".", finding.advice))


def faster(finding: Finding, torch: bool, better: Mapping[str, Words] | None = None) -> str:
    """What would make the program faster, '' if the finding is about the measurement only.  Code
    follows three spaces.  `better`: by rule, what suits the interval better than what FASTER says.
    """
    said = finding.remedy or _of(finding) or (better or {}).get(finding.rule)
    said = said or FASTER.get(finding.rule)
    if said is None:
        return ""
    return f"{said.sentence}:   {said.code}" if said.code and torch else f"{said.sentence}."
