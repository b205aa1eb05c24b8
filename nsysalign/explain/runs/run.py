"""A run as the rules about it see it."""

from __future__ import annotations

from typing import Any, TypeVar

from nsysalign.causes import CAUSES
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Advice, Finding
from nsysalign.explain.runs.pages import PageMigrations
from nsysalign.explain.verdict import collectives_ns
from nsysalign.model import OPERATION_KINDS, OURS
from nsysalign.parts import staging
from nsysalign.text import subject

Fact = TypeVar("Fact")


class Run:
    """All work of a process on a device, from its first to its last.

    `idle`: how long the GPU ran nothing, but for what the tool itself did; of that the CPU `touched`
    managed memory, and what else it did are `parts`.  `copying`: without pages that moved.
    `collectives_ns`: how long NCCL's kernels ran.
    """

    def __init__(self, facts: Facts, row: Any) -> None:
        """`row`: of `frames.INTERVALS`."""
        self.facts = facts
        self.row = row
        self.elapsed = row.elapsed_ns
        parts = facts.analysis.parts
        details = facts.analysis.details
        parts = parts[parts["interval"] == row.interval]
        ns_of_cause = dict(zip(parts["cause"], parts["ns"].tolist(), strict=True))
        self.parts = dict.fromkeys(CAUSES, 0) | ns_of_cause
        self.details = details[details["interval"] == row.interval]
        by_tool = self.details["detail"].str.startswith(OURS)
        # staging of pageable memory counts as copying in the parts, but the CPU does it while the GPU idles
        staged_ns = int(staging(self.details)["ns"].sum())
        moved = self.fact(PageMigrations) or PageMigrations(row.pid, row.device)  # none
        self.idle = self.elapsed - (self.ns(*OPERATION_KINDS) - staged_ns)
        self.idle -= int(self.details.loc[by_tool, "ns"].sum())
        self.touched = moved.touched_ns
        self.collectives_ns = collectives_ns(facts.analysis.kernels, row.label)
        self.copying = self.parts["memcpy"] - staged_ns - moved.alone_ns
        # from here on the parts are those of the idle time
        self.parts["host"] -= min(self.parts["host"], self.touched)
        self.parts["memcpy"] = staged_ns

    def facts_by(self, kind: type[Fact]) -> list[Fact]:
        """Return the facts of this kind about the run's process and device."""
        owner = (self.row.pid, self.row.device)
        facts = self.facts.analysis.of_runs_by(kind)
        return [fact for fact in facts if (fact.pid, fact.device) == owner]

    def fact(self, kind: type[Fact]) -> Fact | None:
        """Return the only fact of this kind, None for none."""
        return next(iter(self.facts_by(kind)), None)

    def ns(self, *causes: str) -> int:
        """Return how long (ns) these causes took together."""
        return sum(self.parts[cause] for cause in causes)

    def finding(
        self,
        title: str,
        *faster: str,
        loss_ns: float = 0,
        severity: str = "warning",
        **evidence: Any,
    ) -> Finding:
        """Return a finding about the run.

        title: what is found, which gets the run's name before it if there are several runs
        faster: how to make the program faster, then the code for it, as in `Advice`
        """
        name = self.row.label  # "run", or "run (GPU 1)" where there are several
        title = title if name == "run" else f"{subject(name)}: {title}"
        title = title[:1].upper() + title[1:]
        evidence = {"elapsed_ns": self.elapsed, **evidence}
        advice = Advice("", *faster)
        return Finding(
            severity, name, title, evidence, advice, loss_ns=int(loss_ns), interval=self.row.interval
        )  # fmt: skip
