"""A run as the rules about it see it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, TypeVar

from nsysalign.causes import CAUSES
from nsysalign.explain.clauses import Clause, Cut, ever_shorter
from nsysalign.explain.facts import Facts
from nsysalign.explain.finding import Advice, Finding
from nsysalign.explain.run_sentences import runs_beside
from nsysalign.explain.runs.gaps import IdleTime
from nsysalign.explain.runs.pages import PageMigrations
from nsysalign.explain.verdict import collectives_ns
from nsysalign.model import OPERATION_KINDS, OURS
from nsysalign.parts import staging
from nsysalign.text import plural, subject

Fact = TypeVar("Fact")
#: Beside the causes of idle time: launches of kernels that had not run before.
FIRST_LAUNCH = "first_launch"


class Run:
    """All work of a process on a device, from the start of its first operation to the end of its last.

    facts:          the analysis
    row:            its row of `frames.INTERVALS`
    details:        its rows of `frames.DETAILS`
    elapsed_ns:     how long it lasted
    idle_ns:        for how long of that the device ran nothing, without what the tool itself did
    warm_ns:        how long it lasted without what passed before kernels that had not run
    touched_ns:     of `idle_ns`, for how long the CPU touched managed memory
    copying_ns:     how long copies ran, without pages of managed memory that moved
    collectives_ns: how long NCCL's kernels ran
    """

    def __init__(self, facts: Facts, row: Any) -> None:
        self.facts = facts
        self.row = row
        parts = facts.analysis.parts
        parts = parts[parts["interval"] == row.interval]
        ns_of_cause = dict(zip(parts["cause"], parts["ns"].tolist(), strict=True))
        self._ns_of_cause = dict.fromkeys(CAUSES, 0) | ns_of_cause
        details = facts.analysis.details
        self.details = details[details["interval"] == row.interval]
        moved = self.fact(PageMigrations) or PageMigrations(row.pid, row.device)  # none moved
        idle_time = self.fact(IdleTime) or IdleTime(row.pid, row.device)  # nothing known

        # the parts count it as copying, but while the CPU stages pageable memory, the device runs nothing
        staged_ns = int(staging(self.details)["ns"].sum())
        by_tool = self.details["detail"].str.startswith(OURS)
        by_tool_ns = int(self.details.loc[by_tool, "ns"].sum())
        worked_ns = self.ns(*OPERATION_KINDS) - staged_ns
        self.elapsed_ns = row.elapsed_ns
        self.idle_ns = self.elapsed_ns - worked_ns - by_tool_ns
        self.warm_ns = self.elapsed_ns - idle_time.before_first.ns
        self.touched_ns = moved.touched_ns
        # of pages of managed memory that move, the parts count as copying only those beside which no kernel runs
        self.copying_ns = self.ns("memcpy") - staged_ns - moved.alone_ns
        self.collectives_ns = collectives_ns(facts.analysis.kernels, row.label)

        # idle time by cause: of "host" without the time in which the CPU touched managed memory, of which
        # `page_migrations` tells; of "memcpy" only the staging, as the device runs the rest; of "api_launch" without slow
        # launches of kernels that had not run: launching less does not save them
        untold_host_ns = max(self.ns("host") - self.touched_ns, 0)
        first_launch_ns = min(idle_time.slow_first_launches_ns, self.ns("api_launch"))
        idle_parts = {
            "host": untold_host_ns,
            "memcpy": staged_ns,
            "api_launch": self.ns("api_launch") - first_launch_ns,
            FIRST_LAUNCH: first_launch_ns,
        }
        self._idle_ns_of_cause = self._ns_of_cause | idle_parts

    def facts_by(self, kind: type[Fact]) -> list[Fact]:
        """Return the facts of this kind about the run's process and device."""
        owner = (self.row.pid, self.row.device)
        facts = self.facts.analysis.of_runs_by(kind)
        return [fact for fact in facts if (fact.pid, fact.device) == owner]

    def fact(self, kind: type[Fact]) -> Fact | None:
        """Return the only fact of this kind, None for none."""
        return next(iter(self.facts_by(kind)), None)

    def ns(self, *causes: str) -> int:
        """Return how much (ns) of the run these causes took together."""
        return sum(self._ns_of_cause[cause] for cause in causes)

    def idle_in(self, *causes: str) -> int:
        """Return how much (ns) of the idle time these causes took together: of "memcpy" the staging of pageable memory
        alone, of "host" what is left without the touching of managed memory, of "api_launch" without FIRST_LAUNCH."""
        return sum(self._idle_ns_of_cause[cause] for cause in causes)

    def finding(
        self,
        clauses: Sequence[Clause],
        *faster: str,
        behind: Sequence[Clause] = (),
        loss_ns: float = 0,
        severity: str = "warning",
        **evidence: Any,
    ) -> Finding:
        """Return a finding about the run.

        clauses: what is found, which gets the run's name before it if there are several runs
        faster: how to make the program faster, then the code for it, as in `Advice`
        behind: what is found, in the words that it has behind a sentence about set-up, if these are others
        """
        name = self.row.label  # "run", or "run (GPU 1)" where there are several
        if self.runs_beside:
            evidence["runs_beside"] = self.runs_beside
        alone = ever_shorter(*self._named(), *clauses)
        evidence = {"elapsed_ns": self.elapsed_ns, **evidence}
        return Finding(
            severity, name, alone[0], evidence, Advice("", *faster), loss_ns=int(loss_ns), interval=self.row.interval,
            shorter=alone, behind=ever_shorter(*(behind or clauses)),
        )  # fmt: skip

    @cached_property
    def runs_beside(self) -> int:
        """How many other GPUs work from its begin to its end, nearly."""
        return len(runs_beside(self.facts.analysis.runs, self.row.label))

    def _named(self) -> tuple[Clause, ...]:
        """Return the name of the run, "Run (GPU 1): ", later "GPU 1: ", and of how many others beside it; nothing where there is
        one run."""
        name = self.row.label
        if name == "run":
            return ()
        owner = name.removeprefix("run (").removesuffix(")")
        beside = f", beside {plural(self.runs_beside, 'other')}" if self.runs_beside else ""
        shorter = {Cut.CALLS_TIME: f"{owner}{beside}: ", Cut.FOURTH_CLAUSE: f"{owner}: "}
        return (Clause(f"{subject(name)}{beside}: ", shorter),)
