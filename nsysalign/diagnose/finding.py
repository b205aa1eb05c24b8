"""What a rule returns: findings, and remarks that it could not check; and advice that suits the
program that ran (torch code is useless for a program in C++ or TensorRT, and a range has no start
event).

There are two kinds of advice: how to measure the GPU alone, or right, and what makes the program
faster.  A delay before the start event isolates the GPU's time but makes nothing faster; a CUDA
graph may do both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from nsysalign.diagnose import thresholds, words
from nsysalign.model import Analysis

if TYPE_CHECKING:
    from nsysalign.diagnose.facts import Facts


SEVERITIES = ("error", "warning", "info")


class Words(NamedTuple):
    """A sentence for any program, and the line of torch code that shows it ('' for none)."""

    sentence: str
    code: str = ""


@dataclass(frozen=True)
class Finding:
    """One diagnosis of one label.  The evidence holds every number that the title states, and few
    others; its keys end in their unit: `_ns`, `bytes`, `share`."""

    severity: str
    label: str
    title: str
    evidence: Mapping[str, Any]
    advice: str  # how to measure the GPU's time alone, or how to measure right
    site: str
    intervals: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # positions in analysis.intervals
    interval: int = (
        -1
    )  # position of the one that is quoted; -1: chosen for rules that quote no single one
    loss: np.ndarray | None = None  # per interval in `intervals`: what would go away, ns
    loss_ns: int = 0  # the same over the run, in which no time counts twice
    about_row: bool = True  # the typical interval; False: the label's repetitions as a set
    run: int = -1  # number of the run's interval that it is about, -1: it is about measured ones
    remedy: Words | None = None  # what makes the program faster, if the rule says it itself
    faster: str = ""  # what makes the program faster; `advice` is about measuring (see `FASTER`)
    rule: str = ""  # its name in the registry, which fills it in


@dataclass(frozen=True)
class About:
    """What findings are about: a label, its call site, and the positions of its intervals that show
    it."""

    label: str
    site: str
    positions: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    #: Default: whether they are about the typical interval (the label's row).
    of_row: ClassVar[bool] = True

    @property
    def quoted(self) -> int:
        """The interval whose numbers they state, -1 for none in particular."""
        return -1

    @property
    def who(self) -> str:
        """The label as titles name it."""
        return words.subject(self.label)

    def finding(
        self,
        severity: str,
        title: str,
        advice: str,
        loss: np.ndarray | None = None,
        *,
        positions: np.ndarray | None = None,
        interval: int | None = None,
        about_row: bool | None = None,
        **values: Any,
    ) -> Finding:
        """A finding about the label.  `loss`: ns of every interval of the analysis; `values`: its
        evidence; `positions`: its intervals if they differ from the label's."""
        mine = self.positions if positions is None else positions
        quoted = self.quoted if interval is None else interval
        typical = self.of_row if about_row is None else about_row
        lost = None if loss is None else np.maximum(loss[mine], 0)
        return Finding(severity, self.label, title, evidence(**values), advice, self.site, mine, quoted, lost, about_row=typical)  # fmt: skip


@dataclass(frozen=True)
class CouldNotLook:
    """A rule could not check; that is different from not finding anything."""

    reason: str


class Rule(NamedTuple):
    """An entry of the registry.  `find` reads only what Facts holds, that is, the Analysis."""

    name: str
    find: Callable[[Facts], Iterable[Finding | CouldNotLook]]


def evidence(**values: Any) -> dict[str, Any]:
    """Evidence as plain Python values (JSON), without None and empty values."""
    out = {}
    for key, value in values.items():
        if value is None or (isinstance(value, (str, list, dict)) and not value):
            continue
        if isinstance(value, np.integer):
            value = int(value)
        elif isinstance(value, (float, np.floating)):
            value = round(float(value)) if key.endswith("_ns") else round(float(value), 4)
        out[key] = value
    return out


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


def faster(finding: Finding, torch: bool) -> str:
    """What would make the program faster, '' if the finding is about the measurement only.  Code
    follows three spaces."""
    said = finding.remedy or _of(finding) or FASTER.get(finding.rule)
    if said is None:
        return ""
    return f"{said.sentence}:   {said.code}" if said.code and torch else f"{said.sentence}."


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


class Speaker:
    """Chooses the wording of an analysis's advice."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis
        self._labels = analysis.labels.set_index("label")["kind"].to_dict()

    @cached_property
    def torch(self) -> bool:
        """Whether the program is torch's: its events were logged, or its kernels or ranges are
        there.  If that cannot be determined (old analyses name no kernels), torch is assumed, as in
        the rules."""
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
