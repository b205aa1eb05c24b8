"""The second kind of advice: what makes the program faster; a rule's own advice is about measuring the GPU alone.  A delay
before the start event isolates the GPU's time but makes nothing faster; a CUDA graph may do both.  Rules about the measurement
itself (a wrong stream, too few repetitions) have no such advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nsysalign.diagnose import thresholds, words
from nsysalign.diagnose.finding import Finding

_COMPILE = 'f = torch.compile(f, mode="reduce-overhead")'


class Words(NamedTuple):
    """A sentence for any program, and the line of torch code that shows it ('' for none)."""

    sentence: str
    code: str = ""


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


def faster(finding: Finding, torch: bool) -> str:
    """What would make the program faster, '' if the finding is about the measurement only.  Code follows three spaces."""
    said = _of(finding) or FASTER.get(finding.rule)
    if said is None:
        return ""
    return f"{said.sentence}:   {said.code}" if said.code and torch else f"{said.sentence}."


def _of(finding: Finding) -> Words | None:
    """For rules with several remedies."""
    if (
        finding.rule == "event-floor"
        and "host_ns" in finding.evidence
        and "CUDA_calls_ns" in finding.evidence
    ):
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
    """Where one stretch of host work is most of the wait, launching less does not help: that stretch has to go."""
    seen = finding.evidence
    waited = sum(
        int(seen.get(name, 0)) for name in ("outside_CUDA_ns", "launch_calls_ns", "other_CUDA_calls_ns")
    )
    longest, then = int(seen.get("longest_gap_ns", 0)), seen.get("it_waited_for", "")
    if longest < max(thresholds.ONE_GAP_SHARE * waited, thresholds.LONG_GAP_NS):
        return None
    where = f"before it launches {then}" if then else "before it records the end event"
    return Words(
        f"Look at what the host does {where}, {words.span(longest)} in one stretch: do it once, before the loop, or in another thread",
        "nsysalign run --sample-python SCRIPT.py  # names the functions",
    )


def _of_copy(finding: Finding) -> Words | None:
    direction, memory = finding.evidence.get("direction"), finding.evidence.get("memory")
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
