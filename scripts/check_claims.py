"""Is what findings say true?  Every number that a finding prints is computed again from the
segments of its intervals.

    scripts/check_claims.py FILE_OR_FOLDER ...      exports (.sqlite) with their event logs (events*.jsonl, NAME.events.jsonl),
                                                    also packed (.xz, .tar.xz), searched in folders

Nothing here is shared with the rules: this file knows what the names of the evidence mean, adds up
segments one by one, and asks the export itself (`work_again.py`). A number in a title must stand in the evidence; a number in the evidence
must come out again; a loss must be possible. The table at the end: files, findings, numbers
checked, false ones.  The exit status is 1 if there is a false one.
"""

from __future__ import annotations

import itertools
import lzma
import math
import re
import sqlite3
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nsysalign
from nsysalign.errors import NsysAlignError
from nsysalign.explain.case import spoken
from nsysalign.paths import without_paths

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from recordings import untar
from work_again import Work, open_for

WORK = ("kernel", "graph", "memcpy", "memset")
HOST = ("host", "api", "api_launch")
#: Bits of NVML's reasons that say that a clock was held down: power cap, hardware, heat,
#: power brake.
SLOWED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
#: A number that only an export or a log can say, and there is none.
NOT_GIVEN = object()
#: What clock samples say; what only the trace says.
CLOCKED = {
    "least_clock_mhz", "most_clock_mhz", "low_clock_mhz", "high_clock_mhz", "slowed_timings", "clocked_timings",
    "at_the_low_clock", "kernel_at_the_low_clock_ns", "kernel_at_the_high_clock_ns",
}  # fmt: skip
FROM_THE_TRACE = {
    "waits", "copies_back", "fewest_operations", "most_operations", "operations", "usual_operations", "without_work", "ended_later", "not_ordered", "working_stream",
    "working_stream_0", "working_stream_1", "working_stream_2", "replayed_launches", "replayed_launch_ns",
    "graph_launches", "copies_for_each", "copies_for_each_ns",
    "stream_waited_for", "copied_bytes", "other_copied_bytes", "achieved_GB_per_s", "pairs", "largest_kernel_share", "filling_share",
    "failed_calls", "migrations", "migrations_to_the_host", "bytes_to_the_host", "moving_to_the_host_ns",
    "migrations_during_kernels_ns", "migrations_without_kernels_ns", "moving_to_the_gpu_in_kernels_ns", "kernels_ran_ns",
}  # fmt: skip
RULES_OF_MARKS = ("tail", "mark-perturbed")
#: Calls by their names: what loads code, what also looks for what was loaded, what allocates.
LOAD = r"cu(da)?(LibraryLoad|ModuleLoad|Link)"
GIVES = re.compile(r"cu(da)?(Launch(?!HostFunc)|GraphLaunch|Memcpy|Memset)")
LOOK_UP = r"cu(da)?(Library(Load|Get)|Module(Load|Get)|Link|KernelSet)|cuGetProcAddress"
ALLOCATE = (
    r"cu(da)?(Malloc|Free|HostAlloc|HostRegister|HostUnregister"
    r"|Mem(Alloc|Free|Host|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess))"
)
TAKES_OR_GIVES = (
    r"cu(?:da)?(Free|MemFree|MemRelease|(Malloc|MemAlloc|MemCreate))(?!\w*(?:Async|Host))"
)
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}


class Segment(NamedTuple):
    start_ns: int
    end_ns: int
    cause: str
    ref_kind: str
    ref_id: int
    detail: str

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


class Checked(NamedTuple):
    """Numbers compared, those that were false (in words), names of numbers that nothing here can
    compute, and of those that only a trace or log could say that was not given or does not tell."""

    numbers: int
    false: list[str]
    unknown: list[str]
    silent: list[str]


class Evidence:
    """The segments, and what else belongs to the intervals of one analysis, as plain Python."""

    def __init__(
        self, analysis: nsysalign.Analysis, export: Path | None = None, logs: Iterable[Path] = ()
    ) -> None:
        self.export = export
        self.work = Work(export, logs) if export else None
        self.rows = {int(r["interval"]): r for r in analysis.intervals.to_dict("records")}
        self.segments: dict[int, list[Segment]] = defaultdict(list)
        columns = ["interval", "start_ns", "end_ns", "cause", "ref_kind", "ref_id", "detail"]
        # as lists: rows of a frame are slow where a column is categorical, and there are half a million
        rows = zip(*(analysis.segments[name].tolist() for name in columns), strict=True)
        for number, *rest in rows:
            self.segments[number].append(Segment(*rest))
        for pieces in self.segments.values():
            pieces.sort()
        self.labels: dict[str, list[int]] = defaultdict(list)
        for number, row in self.rows.items():
            if row["kind"] != "run":
                self.labels[row["label"]].append(number)
        self.others = analysis.other_streams.to_dict("records")
        in_host = analysis.details.loc[analysis.details["cause"] == "host", "detail"]
        self.names = {str(text) for text in in_host if text}
        self.kernels = analysis.kernels.to_dict("records")
        self.host_ranges = analysis.host_ranges.to_dict("records")
        copies = analysis.details[analysis.details["cause"] == "memcpy"]
        self.copy_rows = copies.to_dict("records")
        self.queued = analysis.details[analysis.details["cause"] == "queued"].to_dict("records")
        self.groups: dict[int, list[int]] = defaultdict(list)
        for number, row in self.rows.items():
            self.groups[int(row["group"])].append(number)
        self.typical = dict(zip(analysis.groups["group"], analysis.groups["typical"], strict=True))
        self.unplaced = analysis.unaligned[["label", "reason"]].itertuples(index=False, name=None)
        self.unplaced = [(label, reason.lower()) for label, reason in self.unplaced]
        self.kinds = dict(zip(analysis.groups["group"], analysis.groups["kind"], strict=True))
        self.clocks = analysis.gpu_clocks.to_dict("records")
        self._clocked: dict[tuple[str, int], dict[str, Any]] = {}
        self._clocks_of: dict[int, tuple[list[dict], np.ndarray, np.ndarray]] = {}
        self.without = {row["label"]: row for row in analysis.baseline.to_dict("records")}
        self.lengths = analysis.groups.groupby("label")["group"].agg(list).to_dict()
        first = analysis.groups[analysis.groups["role"] == "first"]["group"]
        self.first = {int(group) for group in first}
        self.read = {n for n in self.rows if n in self.segments}

    def clocks_of(self, device: int) -> tuple[list[dict], np.ndarray, np.ndarray]:
        """The samples of a device (-1: of all), and when each began and ended."""
        if device not in self._clocks_of:
            its = [c for c in self.clocks if device in (c["device"], -1)]
            starts, ends = (np.array([c[key] for c in its]) for key in ("start_ns", "end_ns"))
            self._clocks_of[device] = its, starts, ends
        return self._clocks_of[device]

    def marked(self, finding: Any) -> list[int]:
        return [
            n
            for n in self.labels.get(finding.label, [])
            if finding.rule in self.rows[n]["findings"]
        ]

    def total(self, number: int, *causes: str) -> int:
        return sum(s.ns for s in self.segments[number] if s.cause in causes)

    def gpu(self, number: int) -> int:
        """How long kernels and graphs ran; of a host timer also beside what the CPU did."""
        seen, row = self.total(number, "kernel", "graph"), self.rows[number]
        if row["kind"] != "host":
            return seen
        ran = row["kernel_only_upper_ns"] - row["kernel_outside_ns"]
        return max(seen, min(max(ran, 0), row["elapsed_ns"]))

    def steady(self, label: str) -> int:
        """What a label's intervals measured together, first calls apart unless there are no others."""
        its = [self.rows[n] for n in self.labels[label]]
        rest = [row for row in its if int(row["group"]) not in self.first] or its
        return sum(row["elapsed_ns"] for row in rest)

    def third(self, label: str, which: str) -> list[int]:
        """The intervals of a label, first calls apart, that began first, or last: a third of them; of 10 the first 4, or the
        last 3."""
        steady = [n for n in self.labels[label] if int(self.rows[n]["group"]) not in self.first]
        ordered = sorted(steady, key=lambda n: self.rows[n]["start_ns"])
        count = len(ordered) // 3
        first = len(ordered) - 2 * count - (len(ordered) % 3 == 2)
        return ordered[:first] if "first" in which else ordered[-count:]

    def ended_early(self, label: str) -> int:
        """How many of a label's later calls would be a fifth longer with a wait for what they launched."""
        its = [self.rows[n] for n in self.labels[label]]
        rest = [row for row in its if int(row["group"]) not in self.first] or its
        missing = [row["kernel_outside_ns"] - row["gpu_earlier_ns"] for row in rest]
        return sum(
            5 * ns >= row["elapsed_ns"] + ns and ns > 0
            for row, ns in zip(rest, missing, strict=True)
        )

    def slow(self, label: str) -> tuple[int, float, int, int]:
        """How many of a label's later calls lie in groups of over five times the usual length, their
        share of its time, the shortest and the longest of them."""
        steady = [g for g in self.lengths[label] if g not in self.first]
        its = {g: sorted(self.rows[k]["elapsed_ns"] for k in self.groups[g]) for g in steady}
        usual = max(its.values(), key=len)
        usual_ns = usual[(len(usual) - 1) // 2]
        slow = [ns for ns in its.values() if ns[(len(ns) - 1) // 2] >= 5 * usual_ns]
        share = sum(map(sum, slow)) / max(self.steady(label), 1)
        return sum(map(len, slow)), share, min(map(min, slow)), max(map(max, slow))

    def prepare(self, label: str, group: list[int]) -> list[int]:
        """A label's first calls and this group, where they are the earliest."""
        both = {
            *group,
            *(n for g in self.lengths[label] if g in self.first for n in self.groups[g]),
        }
        by_start = sorted(self.labels[label], key=lambda n: self.rows[n]["start_ns"])
        return sorted(both) if both == {*by_start[: len(both)]} else []

    def open_ns(self, label: str) -> tuple[int, int]:
        """For how long at least one of a label's later calls was open, and how many there are."""
        its = [self.rows[n] for n in self.labels[label]]
        rest = [row for row in its if int(row["group"]) not in self.first] or its
        return open_for((row["start_ns"], row["end_ns"]) for row in rest), len(rest)

    def at_a_time(self, label: str) -> tuple[float, float]:
        deep = self.steady(label) / max(self.open_ns(label)[0], 1)
        return deep - 1e-3, deep + 1e-3

    def for_it(self, number: int) -> Any:
        """For which share of an interval the GPU worked for it, on its stream and on those that it waits
        for."""
        if self.work is None or self.work.of_interval(self.rows[number]) is None:
            return NOT_GIVEN
        return self.work.worked(self.rows[number]) / max(self.rows[number]["elapsed_ns"], 1)

    def queued_by_reason(self, number: int) -> set[int]:
        """How long an interval waited for each kind of thing."""
        ordered = ("dependency", "dependency-inferred", "default-stream-order", "host-function")
        sums: Counter = Counter()
        for q in self.queued:
            if q["interval"] == number:
                sums["dependency" if q["detail"] in ordered else q["detail"]] += q["ns"]
        return set(sums.values())

    def called(self, number: int, names: str) -> int:
        """Time in calls (not in launches) of such names."""
        return sum(
            s.ns for s in self.segments[number] if s.cause == "api" and re.match(names, s.detail)
        )

    def staging(self, number: int) -> int:
        return sum(
            s.ns for s in self.segments[number] if s.cause == "memcpy" and "staging" in s.detail
        )

    def outside(self, number: int) -> tuple[list[int], int, int] | None:
        """Of one interval: the lengths of the pieces in which its thread was outside CUDA, cut where another
        thread gave work to the GPU, whatever ranges begin and end in them; how many cuts, and of how many
        threads.  None where only an export could say that."""
        row, at, cuts, tids = self.rows[number], [], 0, set()
        if row["kind"] == "host":
            if self.work is None:
                return None
            calls = self.work.processes[int(row["pid"])].calls
            at = [
                (c.start, c.tid)
                for c in calls
                if not c.depth and c.tid != row["tid"] and GIVES.match(c.name)
            ]
        pieces = []
        for is_outside, together in groupby(self.segments[number], lambda s: s.cause == "host"):
            if is_outside:
                parts = [*together]
                begin, end = parts[0].start_ns, parts[-1].end_ns
                inside = [t for t, _ in at if begin <= t < end]
                tids |= {tid for t, tid in at if begin <= t < end}
                cuts += len(inside)
                pieces += [b - a for a, b in pairwise([begin, *inside, end])]
        return pieces, cuts, len(tids)

    def stretches(self, number: int) -> Iterator[tuple[int, list[Segment]]]:
        """Idle stretches, each with the work that was done since the one before that held a
        synchronisation."""
        worked, idle = 0, []
        for s in [*self.segments[number], None]:
            if s is not None and s.cause not in WORK:
                idle.append(s)
                continue
            if idle:
                yield worked, idle
                worked = 0 if any(i.cause == "sync" for i in idle) else worked
                idle = []
            worked += s.ns if s is not None else 0

    def pauses(self, number: int) -> list[tuple[int, int]]:
        """(start, ns) of the times in which a run's device executed nothing."""
        out: list[tuple[int, int]] = []
        for s in self.segments[number]:
            if s.cause in WORK and not (s.cause == "memcpy" and "staging" in s.detail):
                continue
            if out and sum(out[-1]) == s.start_ns:
                out[-1] = (out[-1][0], out[-1][1] + s.ns)
            else:
                out.append((s.start_ns, s.ns))
        return out

    def touched(self, number: int) -> int:
        """The time in which a run's device had nothing to do before a page of managed memory moved
        to the host, where no prefetch was called in it, read from the export itself."""
        if self.export is None:
            return 0
        run, rows = self.rows[number], []
        process = f"(globalPid >> 24) & 16777215 = {run['pid']}"
        calls = process.replace("globalPid", "globalTid")
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            kept = {name for (name,) in db.execute("select name from sqlite_master")}
            for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
                if (name := f"CUPTI_ACTIVITY_KIND_{table}") in kept:
                    back = "copyKind = 12" if table == "MEMCPY" else "0"
                    rows += db.execute(f"select start, end, {back} from {name} where {process} and deviceId = {run['device']}")  # fmt: skip
            asked = [t for (t,) in db.execute("select start from CUPTI_ACTIVITY_KIND_RUNTIME where nameId in (select id from StringIds "
                                              f"where value like 'cu%MemPrefetch%') and {calls}")]  # fmt: skip
        idle, reach = 0, None
        for start, end, back in sorted(rows):
            if back and reach is not None and start > reach:
                idle += 0 if any(reach <= t < start for t in asked) else start - reach
            reach = end if reach is None else max(reach, end)
        return idle

    def gaps(self, number: int) -> list[tuple[int, int, Any, int, int, int]]:
        """Of the stretches in which a run's device executed nothing, read from the export itself:
        start, ns, what ended it (kind and name), how long that ran, of a round trip (a copy to the
        host before, one to the device behind it, of one thread that was mostly outside of calls) how
        long the thread was outside, and, if it ended in the first run of a kernel, how long the call
        that launched it was open, if over 0.1 ms; 0 for other stretches."""
        run, rows = self.rows[number], []
        process = f"(globalPid >> 24) & 16777215 = {run['pid']}"
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            kept = {name for (name,) in db.execute("select name from sqlite_master")}
            names = {"KERNEL": "demangledName, 0, 0", "MEMCPY": "copyKind, srcKind, dstKind"}
            for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
                if f"CUPTI_ACTIVITY_KIND_{table}" in kept:
                    what = names.get(table, "0, 0, 0")
                    rows += [(s, e, (table, *key), c) for s, e, *key, c in db.execute(
                        f"select start, end, {what}, correlationId from CUPTI_ACTIVITY_KIND_{table} where {process} and deviceId = {run['device']}")]  # fmt: skip
            calls = db.execute(f"select correlationId, globalTid, start, end from CUPTI_ACTIVITY_KIND_RUNTIME where {process.replace('globalPid', 'globalTid')}").fetchall()  # fmt: skip
        thread = {c: t for c, t, _, _ in calls}
        called = {c: (s, e) for c, _, s, e in calls}
        spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for _, of, s, e in calls:
            spans[of].append((s, e))
        out, reach, before, seen = [], None, None, set()
        for start, end, key, call in sorted(rows):
            if reach is not None and start > reach:
                of = thread.get(call)
                back = before[0][:2] == ("MEMCPY", 2) and key[:2] == ("MEMCPY", 1)
                back = back and start - reach >= 10_000 and of is not None and thread.get(before[1]) == of  # fmt: skip
                outside = 0
                if back:
                    cut = [(max(s, reach), min(e, start)) for s, e in spans[of] if s < start and e > reach]  # fmt: skip
                    outside = start - reach - open_for(cut)
                trip = outside if 2 * outside >= start - reach else 0
                at, until = called.get(call, (start, start))
                launched = min(until, start) - max(at, reach) if key[0] == "KERNEL" and key not in seen else 0  # fmt: skip
                out.append((reach, start - reach, key, end - start, trip, launched * (launched >= 100_000)))  # fmt: skip
            seen.add(key)
            reach, before = end if reach is None else max(reach, end), (key, call)
        return out

    def rounds(self, number: int) -> dict[str, int]:
        """Of the thread that launches most, between a run's first and last gap: how many rounds, each
        from behind a wait that follows a launch to behind the next, make the calls that most of them
        make; their usual length, and how long the device ran nothing in them; read from the export itself."""
        gaps, run = self.gaps(number), self.rows[number]
        low, high = gaps[0][0], gaps[-1][0] + gaps[-1][1]
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            calls = db.execute(
                "select r.start, r.end, r.globalTid, s.value from CUPTI_ACTIVITY_KIND_RUNTIME r join StringIds s on s.id = r.nameId "
                "where (r.globalTid >> 24) & 16777215 = ? and r.end > ? and r.start < ? order by r.start, r.end desc", (run["pid"], low, high)
            ).fetchall()  # fmt: skip
        launching = Counter(t for _, _, t, name in calls if "Launch" in name)
        thread, reach, spans, made, launched = launching.most_common(1)[0][0], 0, [], set(), False
        before, begin, last = False, None, 0
        for start, end, of, name in calls:
            if of != thread or start < reach:
                continue
            reach = end
            waits = "Synchronize" in name or (
                "Memcpy" in name and not re.search("Async|Prefetch", name)
            )
            if before and not waits and launched:
                spans.append((begin, last, frozenset(made)))
                begin, made, launched = last, set(), False
            made.add(name)
            launched |= "Launch" in name
            before, last = waits, end
        if before and launched:
            spans.append((begin, last, frozenset(made)))
        most = Counter(made for _, _, made in spans[1:]).most_common(1)[0][0]
        alike = [(s, e) for s, e, made in spans[1:] if made == most]
        lengths, inside, at = sorted(e - s for s, e in alike), 0, 0
        for start, ns, *_ in gaps:
            while at < len(alike) and alike[at][1] <= start:
                at += 1
            k = at
            while k < len(alike) and alike[k][0] < start + ns:
                inside += min(alike[k][1], start + ns) - max(alike[k][0], start)
                k += 1
        return {
            "rounds": len(alike),
            "round_ns": lengths[(len(lengths) - 1) // 2],
            "idle_in_rounds_ns": inside,
        }

    def in_range(self, number: int, name: str) -> int:
        """How much of these stretches lies in NVTX ranges of a name, read from the export itself."""
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            named = db.execute(
                "select start, end, coalesce(text, (select value from StringIds where id = textId)) from NVTX_EVENTS "
                "where end is not null and (globalTid >> 24) & 16777215 = ?", (int(self.rows[number]["pid"]),)
            ).fetchall()  # fmt: skip
        spans = [(s, e) for s, e, text in named if text and name in (text, without_paths(text))]
        inside = 0
        for start, ns, *_ in self.gaps(number):
            cut = [(max(s, start), min(e, start + ns)) for s, e in spans]
            inside += open_for([(s, e) for s, e in cut if e > s])
        return inside

    def small(
        self, number: int, most: int, *, narrow: bool, share: float = 2
    ) -> tuple[int, Counter]:
        """(time in which the kernels of a run's device had blocks for half of it at most, or
        (`narrow`) more, but none of a whole warp; how long such kernels ran, by name and shape as
        blocks and threads), read from the export itself."""
        run, enough, edges, shapes = self.rows[number], 1 << 40, [], Counter()
        where = f"where deviceId = {run['device']} and (globalPid >> 24) & 16777215 = {run['pid']}"
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            kept = {name for (name,) in db.execute("select name from sqlite_master")}
            names = dict(db.execute("select id, value from StringIds"))
            if narrow and "TARGET_INFO_GPU" in kept:  # the title does not say how many there are
                gpus = dict(db.execute("select cuDevice, smCount from TARGET_INFO_GPU"))
                most = next(iter(gpus.values())) if len(set(gpus.values())) == 1 else gpus.get(run["device"], 0)  # fmt: skip
            most = most or 2
            for table in ("KERNEL", "GRAPH_TRACE"):
                if f"CUPTI_ACTIVITY_KIND_{table}" not in kept:
                    continue
                size = "gridX * gridY * gridZ, blockX * blockY * blockZ, demangledName"
                size = size if table == "KERNEL" else "0, 0, 0"
                for start, end, blocks, threads, name in db.execute(
                    f"select start, end, {size} from CUPTI_ACTIVITY_KIND_{table} {where}"
                ):
                    text = names.get(name, "").lower()
                    waits = "spin_kernel" in text or re.search(r"nccl\w*kernel", text)
                    blocks = enough if waits or not blocks else blocks
                    wide = 0 if 0 < threads < 32 and blocks < enough else blocks
                    edges += [(start, blocks, wide), (end, -blocks, -wide)]
                    if (not wide) if narrow else share * blocks <= most:
                        shapes[name, blocks, threads] += end - start
        spent = running = wide = before = 0
        for time, change, more in sorted(edges):
            fits = (2 * running > most and not wide) if narrow else 0 < share * running <= most
            spent += (time - before) * fits
            running, wide, before = running + change, wide + more, time
        return spent, shapes

    def set_up(self, number: int) -> dict[str, Any]:
        """What calls took before the first and after the last work of a run's process, and how long
        its device worked, read from the export itself."""
        run = self.rows[number]
        process = f"(globalPid >> 24) & 16777215 = {run['pid']}"
        calls = process.replace("globalPid", "globalTid")
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            kept = {name for (name,) in db.execute("select name from sqlite_master")}
            work, made = [], list(db.execute(f"select start, end, nameId from CUPTI_ACTIVITY_KIND_RUNTIME where {calls}"))  # fmt: skip
            for table in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
                if (name := f"CUPTI_ACTIVITY_KIND_{table}") in kept:
                    work += db.execute(f"select start, end from {name} where {process}")
        first, last = min(s for s, _ in work), max(e for _, e in work)
        begin = min(first, *(s for s, _, _ in made))
        end = max(last, *(e for _, e, _ in made))
        out = {"whole_ns": end - begin, "gpu_works_ns": open_for(work)}
        out["first_call_to_first_work_ns"] = first - begin
        out["last_work_to_last_call_ns"], out["work_within_ns"] = end - last, last - first
        for key, low, high in (("before_first_work", begin, first), ("after_last_work", last, end)):
            cut = [(max(s, low), min(e, high), n) for s, e, n in made if s < high and e > low]
            by_name = defaultdict(list)
            for s, e, n in cut:
                by_name[n].append((s, e))
            out[f"{key}_ns"] = open_for([(s, e) for s, e, _ in cut])
            out[f"{key.partition('_')[0]}_call_ns"] = {open_for(of) for of in by_name.values()}
        return out

    def lost(self) -> dict[str, Any]:
        """Launches that succeeded and whose kernel is missing or earlier than they, and for how long
        ranges go on after the last call of their thread, read from the export itself."""
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            without = db.execute(
                "select count(*) from CUPTI_ACTIVITY_KIND_RUNTIME r join StringIds s on s.id = r.nameId where r.returnValue = 0 "
                "and (s.value like 'cudaLaunchKernel%' or s.value like 'cuLaunchKernel%') and not exists (select 1 from "
                "CUPTI_ACTIVITY_KIND_KERNEL k where k.correlationId = r.correlationId and k.start >= r.start)"
            ).fetchone()[0]
            after = set()
            if db.execute("select 1 from sqlite_master where name = 'NVTX_EVENTS'").fetchone():
                after = {ns for (ns,) in db.execute(
                    "select max(n.end) - c.last from NVTX_EVENTS n join (select globalTid, max(end) last from CUPTI_ACTIVITY_KIND_RUNTIME "
                    "group by 1) c on c.globalTid = n.globalTid group by n.globalTid")}  # fmt: skip
        return {"launches_without_kernel": without, "after_last_call_ns": after}

    # --- labels

    def idle(self, number: int) -> int:
        """How long the GPU had nothing to do, or the interval's stream."""
        if self.rows[number]["kind"] != "host":
            return self.total(number, *HOST, "sync", "profiler", "launch_latency")
        row = self.rows[number]
        return max(row["elapsed_ns"] - row["gpu_busy_ns"] - self.staging(number), 0)

    def shares(self, number: int) -> dict[str, Any]:
        """What a typical interval consists of, as words of its group name it: shares, or from what to
        what one must lie (of time that stands before an event without a name it is not known
        whether it is latency or waiting)."""
        whole = max(self.rows[number]["elapsed_ns"], 1)
        overhead = self.total(number, "launch_latency", "event")
        beyond = overhead - min(overhead, 5_000)
        launches, waits = self.total(number, "api_launch"), self.total(number, "queued")
        parts: dict[str, Any] = {
            "copies": self.total(number, "memcpy"), "memsets": self.total(number, "memset"),
            "CPU_outside_CUDA": self.total(number, "host", "profiler"), "other_CUDA_calls": self.total(number, "api"),
            "synchronising": self.total(number, "sync"), "event_and_launch_latency": overhead - beyond,
            "launching": (launches, launches + beyond), "waiting": (waits, waits + beyond),
        }  # fmt: skip
        collective = sum(s.ns for s in self.segments[number] if s.cause == "kernel" and "nccl" in s.detail.lower())  # fmt: skip
        parts["kernels"] = parts["a_CUDA_graph"] = (self.gpu(number) - 1.1 * collective, self.gpu(number))  # fmt: skip
        parts["launching_and_latency"] = parts["launching"]
        parts["NCCL's_kernels"] = (0.9 * collective, self.gpu(number))
        row = self.rows[number]
        parts |= {
            "worked": row["gpu_busy_ns"],
            "GPU_work": row["gpu_busy_ns"],
            "earlier_work": row["gpu_earlier_ns"],
        }
        return {
            name: tuple(ns / whole + d for ns, d in zip(part, (-1e-4, 1e-4), strict=True))
            if isinstance(part, tuple)
            else part / whole
            for name, part in parts.items()
        }

    def untold(self, finding: Any) -> list[int]:
        """The numbers of the intervals of groups that a sentence does not name: as many as it leaves over."""
        lead = int(self.rows[int(finding.interval)]["group"])
        counts = [
            int(n.replace(",", "")) for n in re.findall(r"([\d,]+) (?:x|of mostly) ", finding.title)
        ]
        untold = [g for g in self.lengths[finding.label] if g not in self.first and g != lead]
        for count in counts:
            untold.remove(next(g for g in untold if len(self.groups[g]) == count))
        return [k for g in untold for k in self.groups[g]]

    def launched_after(self, number: int) -> int:
        """After how long the first work of an interval's stream was launched."""
        after, launched = 0, 0
        for s in self.segments[number]:
            if s.cause in WORK:
                break
            launched = after if s.cause == "api_launch" else launched
            after += s.ns
        return launched

    def named_kernels(self, number: int) -> Counter:
        """How long kernels ran in an interval, by name: the segments' rows, named by the export."""
        out: Counter = Counter()
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            for s in self.segments[number]:
                if s.cause == "kernel":
                    (name,) = db.execute(
                        "select value from StringIds where id = (select demangledName from CUPTI_ACTIVITY_KIND_KERNEL where rowid = ?)",
                        (s.ref_id,),
                    ).fetchone()  # fmt: skip
                    out[name] += s.ns
        return out

    def clocked(self, finding: Any) -> dict[str, Any]:
        """What the samples of the clock say of a label's intervals that did the same work."""
        asked = (finding.label, int(finding.interval))
        if asked not in self._clocked:
            self._clocked[asked] = _clocks(self, finding)
        return self._clocked[asked]

    def kernels_of(self, numbers: list[int]) -> float:
        """The median of how long kernels ran in these intervals, on their stream."""
        its = sorted(self.total(k, "kernel") for k in numbers)
        return spread(its, 0.5)

    def fastest(self, finding: Any) -> float:
        """The same of the label that a sentence compares its own with."""
        names = [
            name for name in self.labels if spoken(name) in finding.title and name != finding.label
        ]
        name = max(names, key=lambda name: len(spoken(name)))
        steady = [g for g in self.lengths[name] if g not in self.first]
        whole_ns = self.kernels_of([k for g in steady for k in self.groups[g]])
        if "in_a_row" not in finding.evidence:
            return whole_ns
        first, *_ = self.groups[steady[0]]
        return whole_ns / max(sum(s.cause == "kernel" for s in self.segments[first]), 1)

    def from_trace(self, finding: Any, key: str, group: list[int]) -> Any:
        """A number that the export itself is asked for."""
        number = int(finding.interval)
        row = self.rows.get(number, {})
        if key in ("waits", "operations"):
            return self._usual(key, row, group)
        if key == "usual_operations":
            steady = [self.groups[g] for g in self.lengths[finding.label] if g not in self.first]
            usual = max(steady, key=len)
            return self._usual("operations", self.rows[usual[0]], usual)
        if key in ("fewest_operations", "most_operations"):
            counts = [self.work.of_interval(self.rows[k]) for k in self.labels[finding.label]]
            lengths = [len(work) for work in counts if work is not None]
            return (min(lengths), max(lengths)) if lengths else NOT_GIVEN
        if key == "copies_back":
            return self._copies_back(row)
        if key in ("without_work", "ended_later"):
            return self._steady_with(finding.label, key)
        if key == "not_ordered":
            return sum(
                any(ns >= 1_000 for ns in self.work.elsewhere(self.rows[k]).values()) for k in group
            )
        if key.startswith("working_stream"):
            sums: Counter = Counter()
            for k in group:
                sums.update(self.work.elsewhere(self.rows[k]))
            if key != "working_stream":
                return set(sums) or NOT_GIVEN
            return sums.most_common(1)[0][0] if sums else NOT_GIVEN
        if key in ("replayed_launches", "replayed_launch_ns"):
            captured = self.work.captured(GIVES) - {0}
            in_graphs = self.total(number, "graph")
            return (
                captured if key == "replayed_launches" else {int(in_graphs / n) for n in captured}
            )
        if key in ("graph_launches", "copies_for_each", "copies_for_each_ns"):
            return self._copies_for_graphs(row, key)
        if key == "stream_waited_for":
            return self.streams_that_ran(row)
        if key in ("copied_bytes", "other_copied_bytes", "achieved_GB_per_s"):
            return self._copied(number, group)[key]
        if key == "largest_kernel_share":
            whole = self.total(number, "kernel", "graph")
            return max(self.named_kernels(number).values()) / max(whole, 1)
        if key == "filling_share":
            filled = sum(self.total(k, "memset") for k in group)
            for k in group:
                names = self.named_kernels(k).items()
                filled += sum(ns for name, ns in names if "FillFunctor" in name)
            return filled / sum(self.rows[k]["elapsed_ns"] for k in group)
        if key == "pairs":
            return self._pairs(finding)
        return self._of_pages(row)[key] if key != "failed_calls" else self._failed()

    def _usual(self, key: str, row: dict[str, Any], group: list[int]) -> Any:
        """The median over a group of how many operations or waits lie between the records."""
        counts = []
        for k in group:
            its = self.rows[k]
            work = self.work.of_interval(its) if key == "operations" else self.work.waits(its)
            if work is None:
                return NOT_GIVEN
            counts.append(work if key == "waits" else len(work))
        usual = int(spread(counts, 0.5))
        if key == "operations" and not usual:  # none of its own: what ran on its stream
            return sum(1 for _ in self.work.on_stream(row)) or (0, 10**9)
        return usual

    def _copies_for_graphs(self, row: dict[str, Any], key: str) -> Any:
        """How many graphs an interval launches, and how many copies on the device come with each, and for how long."""
        work = self.work.of_interval(row)
        if work is None:
            return NOT_GIVEN
        graphs = sum("GraphLaunch" in call.name for call, _ in work)
        copies = [
            one
            for call, some in work
            for one in some
            if "GraphLaunch" not in call.name and one.table == "MEMCPY" and one.name[0] == 8
        ]
        if key == "graph_launches" or not graphs:
            return graphs
        return (sum(c.ns for c in copies) if key.endswith("_ns") else len(copies)) / graphs

    def _copies_back(self, row: dict[str, Any]) -> Any:
        work = self.work.of_interval(row)
        if work is None:
            return NOT_GIVEN
        sizes: dict[Any, list[int]] = defaultdict(list)
        for _, some in work:
            for one in some:
                if one.table == "MEMCPY" and one.name[0] == 2:
                    sizes[one.name].append(one.size)
        return sum(len(of) for of in sizes.values() if sum(of) <= 4_096 * len(of))

    def _steady_with(self, label: str, key: str) -> Any:
        """How many of a label's steady intervals issued nothing, or issued what for the most part ended
        after them."""
        its = [k for k in self.labels[label] if int(self.rows[k]["group"]) not in self.first]
        count = 0
        for row in (self.rows[k] for k in its or self.labels[label]):
            work = self.work.of_interval(row)
            if work is None:
                return NOT_GIVEN
            if key == "without_work":
                count += not work and not row["operations"]
                continue
            over = row["end_ns"] + row["error_ns"]
            ran = [(sum(o.ns for o in some), max(o.end for o in some)) for _, some in work]
            late = sum(ns for ns, end in ran if end > over)
            count += 2 * late > max(sum(ns for ns, _ in ran), 1)
        return count

    def streams_that_ran(self, row: dict[str, Any]) -> set[int]:
        """Streams on which anything ran while the interval waited."""
        out = set()
        for s in self.segments[int(row["interval"])]:
            if s.cause == "queued":
                for process in self.work.processes.values():
                    for (_, stream), some in process.by_stream.items():
                        if any(o.start < s.end_ns and o.end > s.start_ns for o in some):
                            out.add(stream)
        return out

    def _copied(self, number: int, group: list[int]) -> dict[str, Any]:
        """Bytes in an interval, and their speed, of the copies of one direction and memory that took most of the time
        on its group's stream, and bytes of those that took most of the rest."""
        of_group = Counter()
        for k in group:
            for name, (ns, _) in self._copies(k).items():
                of_group[name] += ns
        if not of_group:
            keys = ("copied_bytes", "other_copied_bytes", "achieved_GB_per_s")
            return dict.fromkeys(keys, NOT_GIVEN)
        (largest, _), *rest = of_group.most_common(2)
        its = self._copies(number)
        took, size = its[largest]
        return {
            "copied_bytes": size,
            "other_copied_bytes": its[rest[0][0]][1] if rest else NOT_GIVEN,
            "achieved_GB_per_s": size / took,
        }

    def _copies(self, number: int) -> dict[str, tuple[int, int]]:
        """(how long they took, bytes) of the copies of each direction and memory on an interval's stream."""
        out: dict[str, tuple[int, int]] = {}
        for one, inside in self.work.on_stream(self.rows[number]):
            if one.table == "MEMCPY":
                ns, size = out.get(one.name, (0, 0))
                out[one.name] = ns + inside, size + one.size
        return out

    def _pairs(self, finding: Any) -> set[int]:
        """How many pairs of a label have no place, by their reasons."""
        counts: Counter = Counter()
        for label, reason in self.unplaced:
            if label == finding.label:
                captured, again = (
                    "captured" in reason,
                    re.search("again|since|negative|contradicts", reason),
                )
                counts["captured" if captured else "again" if again else "other"] += 1
        return set(counts.values())

    def _failed(self) -> int:
        with closing(sqlite3.connect(f"{self.export.resolve().as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(
                "select count(*) from CUPTI_ACTIVITY_KIND_RUNTIME r join StringIds s on s.id = r.nameId where r.returnValue not in (0, 4, 600) "
                "and not (r.returnValue = 201 and s.value like '%Synchronize%')"
            ).fetchone()[0]  # fmt: skip

    def _of_pages(self, row: dict[str, Any]) -> dict[str, Any]:
        """What moved of a run's managed memory (copies of kinds 11, to the device, and 12, to the
        host), and whether kernels ran meanwhile."""
        process = self.work.processes[int(row["pid"])]
        its = [
            o
            for (device, _), some in process.by_stream.items()
            for o in some
            if device == row["device"]
        ]
        pages = [o for o in its if o.table == "MEMCPY" and o.name[0] in (11, 12, 13)]
        back = [o for o in pages if o.name[0] == 12]
        spans = [(o.start, o.end) for o in pages]
        kernels = [(o.start, o.end) for o in its if o.table == "KERNEL"]
        up = [(o.start, o.end) for o in pages if o.name[0] == 11]
        moving = open_for(spans)
        alone = open_for(spans + kernels) - open_for(kernels)
        return {
            "migrations": sum(o.name[0] in (11, 12) for o in pages),
            "migrations_to_the_host": len(back),
            "bytes_to_the_host": sum(o.size for o in back),
            "moving_to_the_host_ns": sum(o.ns for o in back),
            "migrations_during_kernels_ns": moving - alone,
            "migrations_without_kernels_ns": alone,
            "moving_to_the_gpu_in_kernels_ns": open_for(up)
            + open_for(kernels)
            - open_for(up + kernels),
            "kernels_ran_ns": open_for(kernels),
        }

    def synchronising(self, number: int) -> tuple[int, int]:
        """(idle because of synchronisations, what of it is the host's catching up)."""
        idle = own = 0
        for worked, pieces in self.stretches(number):
            if not any(p.cause == "sync" for p in pieces):
                continue
            first = next(k for k, p in enumerate(pieces) if p.cause == "sync")
            after = [p for p in pieces[first:] if p.cause != "sync"]
            follows = min(sum(p.ns for p in after), worked)
            idle += sum(p.ns for p in pieces if p.cause == "sync") + follows
            own += min(sum(p.ns for p in after if p.cause in HOST), follows)
        return idle, own

    def waiting(self, number: int) -> set[int]:
        """The time for which an interval waits for the host: with and without what follows from
        synchronisations."""
        own = self.total(number, "host", "api_launch") + max(
            0,
            self.total(number, "api")
            - self.called(number, LOOK_UP)
            - self.called(number, ALLOCATE),
        )
        _, caught_up = self.synchronising(number)
        out = set()
        for gap in (own, own - min(caught_up, own)):
            out |= {gap, min(self.total(number, "host"), gap)}
        return out


def _clocks(e: Evidence, finding: Any) -> dict[str, Any]:
    """What `CLOCKED` can be: of the intervals of the finding's group, and of all of its label that did
    the same kind of work."""
    lead = int(e.rows[int(finding.interval)]["group"])
    steady = [g for g in e.lengths[finding.label] if g not in e.first]
    alike = [g for g in steady if e.kinds[g] == e.kinds[lead]]
    out: dict[str, Any] = defaultdict(set)
    for groups in ([lead], alike, steady):
        for key, values in _clocks_of(e, sorted(k for g in groups for k in e.groups[g])).items():
            out[key] |= values
    return out


def _clocks_of(e: Evidence, numbers: list[int]) -> dict[str, set[float]]:
    """Of these intervals, as far as two samples lie around each: their clocks, how many were held
    down, and how long kernels took at either clock."""
    known = []
    for row in (e.rows[k] for k in numbers):
        kernels = row["kernel_only_upper_ns"]
        its, starts, ends = e.clocks_of(row["device"])
        before = np.flatnonzero(starts <= row["start_ns"])
        after = np.flatnonzero(ends >= row["end_ns"])
        if not (len(before) and len(after) and kernels):
            continue
        first, last = sorted((before[-1], after[0]))
        around = its[first : last + 1]
        gaps = [b["start_ns"] - a["end_ns"] for a, b in pairwise(around)]
        if max(gaps, default=0) > 250_000_000:
            continue
        inside = [
            c for c in around if c["start_ns"] < row["end_ns"] and c["end_ns"] >= row["start_ns"]
        ]
        bits = [max(c["reasons"], 0) for c in inside or around]
        held = any(b & SLOWED for b in bits) if inside else all(b & SLOWED for b in bits)
        mhz = sum((c["sm_min_mhz"] + c["sm_max_mhz"]) / 2 for c in around) / len(around)
        known.append((mhz, kernels, held))
    if not known:
        return {}
    limit = 0.97 * spread([mhz for mhz, _, _ in known], 0.95)
    low, high = [o for o in known if o[0] < limit], [o for o in known if o[0] >= limit]
    highest = max(c["sm_max_mhz"] for c in e.clocks)
    held = [mhz for mhz, _, h in known if h and mhz <= 0.9 * highest]
    out = {
        "slowed_timings": {len(held)}, "clocked_timings": {len(known)}, "at_the_low_clock": {len(low)},
        "median_mhz": {spread([mhz for mhz, _, _ in known], 0.5)},
    }  # fmt: skip
    if held:
        out["least_clock_mhz"] = {spread(held, 0.1), spread(held, 0.5)}
        out["most_clock_mhz"] = {spread(held, 0.5), spread(held, 0.9)}
    for name, its in (("low", low), ("high", high)):
        if its:
            out[f"{name}_clock_mhz"] = {spread([mhz for mhz, _, _ in its], 0.5)}
            out[f"kernel_at_the_{name}_clock_ns"] = {int(spread([ns for _, ns, _ in its], 0.5))}
    return out


def spread(values: list[int], share: float) -> float:
    """A quantile between neighbours."""
    values = sorted(values)
    at = share * (len(values) - 1)
    low = int(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (at - low) * (values[high] - values[low])


def again(e: Evidence, f: Any, key: str, value: Any) -> Any:
    """The number by this name, computed again: a number, a set of possible ones, a range (low,
    high), or None if it is not known here how."""
    n = int(f.interval)
    row = e.rows.get(n, {})
    elapsed = lambda numbers: [e.rows[k]["elapsed_ns"] for k in numbers]  # noqa: E731
    marked = e.marked(f)
    simple = {
        "elapsed_ns": lambda: row["end_ns"] - row["start_ns"],
        "typical_ns": lambda: row["elapsed_ns"],
        "typical_gpu_ns": lambda: e.gpu(n),
        "typical_gpu_share": lambda: e.gpu(n) / max(row["elapsed_ns"], 1),
        "typical_worked_ns": lambda: row["gpu_busy_ns"],
        "typical_worked_share": lambda: row["gpu_busy_ns"] / max(row["elapsed_ns"], 1),
        "typical_earlier_ns": lambda: row["gpu_earlier_ns"],
        "typical_outside_cuda_ns": lambda: e.total(n, "host"),
        "typical_calls_ns": lambda: e.total(n, "api"),
        "typical_in_calls_ns": lambda: e.total(n, "api", "api_launch"),
        "unexplained_ns": lambda: (0, row["elapsed_ns"]),
        "typical_launching_ns": lambda: e.total(n, "api_launch", "launch_latency"),
        "typical_copies_share": lambda: e.total(n, "memcpy", "memset") / max(row["elapsed_ns"], 1),
        "kernels_share": lambda: e.gpu(n) / max(row["elapsed_ns"], 1),
        "copies_share": lambda: e.total(n, "memcpy", "memset") / max(row["elapsed_ns"], 1),
        "launch_latency_and_events_share": lambda: e.total(n, "launch_latency", "event") / max(row["elapsed_ns"], 1),
        "launch_calls_share": lambda: e.total(n, "api_launch") / max(row["elapsed_ns"], 1),
        "CPU_share": lambda: e.total(n, "host", "api", "profiler") / max(row["elapsed_ns"], 1),
        "waiting_share": lambda: e.total(n, "queued") / max(row["elapsed_ns"], 1),
        "synchronising_share": lambda: e.total(n, "sync") / max(row["elapsed_ns"], 1),
        "waiting_ns": lambda: e.total(n, "queued"),
        "group_timings": lambda: len(marked),
        "group_share": lambda: sum(elapsed(marked)) / max(e.steady(f.label), 1),
        "steady_total_ns": lambda: e.steady(f.label),
        "one_by_one_ns": lambda: (
            e.total(n, "api_launch", "launch_latency"), e.total(n, "api_launch", "launch_latency", "host")
        ),
        "recording_ns": lambda: (
            0, 0.35 * max(row["elapsed_ns"] - e.total(n, *WORK), 0) + 1
        ),
        "prepare": lambda: sum(
            any(re.match(r"cu(da)?(GraphInst|LibraryLoad|ModuleLoad|Link)", s.detail) for s in e.segments[k])
            for k in marked
        ),
        "held_by_label_ns": lambda: sum(
            its["elapsed_ns"]
            for its in map(e.rows.__getitem__, e.labels[f.evidence["label_inside"]])
            if row["start_ns"] <= its["start_ns"] and its["end_ns"] <= row["end_ns"]
        ),
        "all_timings": lambda: len(e.labels[f.label]),
        "all_total_ns": lambda: sum(elapsed(e.labels[f.label])),
        "first_ones": lambda: len(e.prepare(f.label, marked)),
        "first_ones_share": lambda: (
            sum(elapsed(e.prepare(f.label, marked))) / max(sum(elapsed(e.labels[f.label])), 1)
        ),
        "first_ones_outside_share": lambda: (
            sum(e.total(k, "host") for k in e.prepare(f.label, marked))
            / max(sum(elapsed(e.prepare(f.label, marked))), 1)
        ),
        "first_ones_longest_ns": lambda: (0, max(elapsed(e.prepare(f.label, marked)))),
        "set_up_ns": lambda: row["elapsed_ns"] - e.gpu(n),
        "slow_timings": lambda: e.slow(f.label)[0],
        "slow_share": lambda: e.slow(f.label)[1],
        "least_slow_ns": lambda: e.slow(f.label)[2],
        "most_slow_ns": lambda: e.slow(f.label)[3],
        "empty_typical_ns": lambda: {e.rows[int(e.typical[g])]["elapsed_ns"] for g in e.lengths[f.label]},
        **dict.fromkeys(
            ("least_other_ns", "most_other_ns", "least_searching_ns", "most_searching_ns"),
            lambda: (min(elapsed(e.labels[f.label])), max(elapsed(e.labels[f.label]))),
        ),
        "ran_later_ns": lambda: row["kernel_outside_ns"],
        "launched_ns": lambda: row["kernel_only_upper_ns"],
        "ended_early": lambda: e.ended_early(f.label),
        "searching_timings": lambda: (len(marked), len(e.labels[f.label])),
        "searching_share": lambda: (sum(elapsed(marked)) / max(e.steady(f.label), 1), 1),
        "compiled_inside": lambda: (2, sum(
            row["start_ns"] <= its["start_ns"] and its["end_ns"] <= row["end_ns"]
            for its in e.rows.values()
        )),
        "longer_range_ns": lambda: (
            min(elapsed(e.labels[f.label])), max(r["max_ns"] for r in e.host_ranges if r["label"] == f.label)
        ),
        "longer_range_kernels_share": lambda: (0, max(e.gpu(k) / elapsed([k])[0] for k in e.labels[f.label])),
        "range_lasts_ns": lambda: {r["median_ns"] for r in e.host_ranges if r["label"] == f.label},
        "shared_out_ns": lambda: int(e.open_ns(f.label)[0] / e.open_ns(f.label)[1]),
        "timings_at_a_time": lambda: e.at_a_time(f.label),
        "gpu_elsewhere_share": lambda: e.for_it(n),
        "start_stream": lambda: row["start_stream"],
        "end_stream": lambda: row["end_stream"],
        "idle_ns": lambda: row["elapsed_ns"] - e.total(n, *WORK) + e.staging(n) - sum(
            s.ns for s in e.segments[n] if s.detail.startswith("nsysalign:")
        ),
    }  # fmt: skip
    if (found := of_label(e, f, key, value)) is not None:
        return found
    if key == "outside_CUDA_ns":
        return max(e.total(n, "host") - e.touched(n), 0)
    if key in simple:
        return simple[key]()
    if group := re.fullmatch(r"group_(\d+)_(timings|typical_ns|low_ns|high_ns)", key):
        its = sorted(elapsed(e.groups[int(group[1])]))
        median = its[(len(its) - 1) // 2]
        between = {"low_ns": (its[0], its[len(its) // 2]), "high_ns": (median, its[-1])}
        return len(its) if group[2] == "timings" else between.get(group[2], median)
    if key == "idle_before_migrations_ns":
        return e.touched(n)
    if key == "between_copies_ns" or (key == "count" and "between_copies_ns" in f.evidence):
        back = [ns for _, ns, _, _, trip, _ in e.gaps(n) if trip]
        return sum(back) if key.endswith("_ns") else len(back)
    if key == "between_copies_outside_ns":
        return sum(trip for _, _, _, _, trip, _ in e.gaps(n))
    if f.rule == "whole-run" and key in ("before_first_launches_ns", "loading_gaps_ns"):
        return (0, f.evidence["idle_ns"])
    if key == "load_calls_ns":
        return (0, e.work.loading(row)) if e.work else NOT_GIVEN
    if key == "longest_first_launch_ns":
        return (f.evidence["before_first_launches_ns"] // 2, f.evidence["before_first_launches_ns"])
    if f.rule == "whole-run" and key in ("kernels", "count", "calls"):
        return (1, 10**15)
    if key == "runs_beside":
        near = [r for r in e.rows.values() if r["kind"] == "run" and "stream" not in r["label"]]
        near = [r for r in near if abs(r["start_ns"] - row["start_ns"]) <= 0.1 * row["elapsed_ns"]]
        near = [
            r for r in near if abs(r["elapsed_ns"] - row["elapsed_ns"]) <= 0.1 * row["elapsed_ns"]
        ]
        return len({(r["pid"], r["device"]) for r in near}) - 1
    if key == "all_kernels":
        return sum(r["count"] for r in e.kernels if r["label"] == f.label and r["kind"] == "kernel")
    if f.rule == "whole-run" and key == "copies":
        its = [r for r in e.kernels if r["label"] == f.label and r["kind"] == "memcpy"]
        return sum(r["count"] for r in its if not r["kernel"].startswith("page "))
    if f.rule == "whole-run" and (copied := re.fullmatch(r"(\w2\w)_(bytes|GB_per_s)", key)):
        column = "bytes" if copied[2] == "bytes" else "bandwidth_gb_s"
        return {r[column] for r in e.copy_rows if (r["interval"], r["direction"]) == (n, copied[1])}
    if key in ("copies_to_the_GPU", "copies_in_a_round"):
        up = [r for r in e.kernels if r["label"] == f.label and r["kernel"].startswith("copy H2D")]
        count = sum(r["count"] for r in up)
        return count if key == "copies_to_the_GPU" else value if count % value == 0 else -1
    if key == "in_call_ns":
        return (0, f.evidence["before_first_launches_ns"])
    if key == "before_copies_ns":
        ended = [ns for _, ns, what, *_ in e.gaps(n) if what[0] == "MEMCPY" and what[1] < 11]
        told = [ns for k, ns in f.evidence.items() if re.fullmatch(r"pause_\d_ns", k)]
        return sum(ended) - sum(ns for ns in told if ns in ended)
    if key in ("rounds", "round_ns", "idle_in_rounds_ns"):
        return e.rounds(n)[key]
    if key in ("idle_in_range_ns", "in_set_up_ns"):
        return e.in_range(n, f.evidence["range"])
    if f.rule == "whole-run" and key in ("gaps", "gaps_ns", "gap_ns", "operation_ns"):
        rest = sorted(e.gaps(n), key=lambda gap: -gap[1])[3:]
        groups = defaultdict(list)
        for _, ns, what, ran, *_ in rest:
            groups[what if f.evidence.get("before") else ""].append((ns, ran))
        most = max(groups.values(), key=lambda group: sum(ns for ns, _ in group))
        lengths, runs = (sorted(column) for column in zip(*most, strict=True))
        middle = (len(most) - 1) // 2
        # with the three longest, if these are of the same kind, where no sentence tells of them
        its = next(what for what, group in groups.items() if group is most)
        whole = [ns for _, ns, what, *_ in e.gaps(n) if its == what]
        return {"gaps": {len(most), len(whole)}, "gaps_ns": {sum(lengths), sum(whole)}, "gap_ns": lengths[middle], "operation_ns": runs[middle]}[key]  # fmt: skip
    if f.rule == "ranges-without-work":
        every, without, with_work = (
            f.evidence[k] for k in ("ranges", "ranges_without_work", "ranges_with_work")
        )
        of_name = [r for r in e.host_ranges if r["label"] == f.label]
        right = every == without + with_work and (every, with_work) in {
            (r["count"], r["with_work"]) for r in of_name
        }
        return value if right else -1
    if key == "without_it_ns":
        return row["elapsed_ns"] - f.evidence["before_first_launches_ns"]
    if key == "otherwise_idle_ns":
        return f.evidence["idle_ns"] - f.evidence["pauses_ns"]
    if key.startswith("pause"):
        pauses = e.pauses(n)
        if key == "pauses":
            return sum(k.startswith("pause_") and k.endswith("_at_ns") for k in f.evidence)
        if key == "pauses_ns":
            return sum(v for k, v in f.evidence.items() if k.startswith("pause_") and "at" not in k)
        since = {start - row["start_ns"] for start, _ in pauses}
        return since if key.endswith("_at_ns") else {ns for _, ns in pauses}
    if f.rule == "lost-records":
        return e.lost()[key]
    if f.rule == "set-up":
        return e.set_up(n)[key]
    if f.rule == "few-blocks":
        narrow, share = "few_threads_ns" in f.evidence, 2 if "few_blocks_ns" in f.evidence else 1.5
        few, shapes = e.small(n, f.evidence.get("multiprocessors", 0), narrow=narrow, share=share)
        if key in ("few_blocks_ns", "fewer_blocks_ns", "few_threads_ns"):
            return few
        if key == "threads_of_a_warp":
            return 32
        if key == "kinds":
            return (2, len({name for name, _, _ in shapes}))
        if key == "longest_ns":
            return max(shapes.values())
        shape = (f.evidence["blocks"], f.evidence["threads_per_block"])
        return value if shape in {of[1:] for of in shapes} else -1
    if key == "operations":
        refs = {(s.ref_kind, s.ref_id) for s in e.segments[n] if s.cause in WORK}
        return (len(refs), 10**9)  # what ran entirely beside others has no segment
    if key == "copying_ns":
        return e.total(n, "memcpy") - e.staging(n)
    if key == "kernels_ns":
        return e.total(n, "kernel", "graph")
    if key in ("idle_for_this_ns", "idle_1_ns", "idle_2_ns", "idle_3_ns"):
        outside = max(e.total(n, "host") - e.touched(n), 0)
        every = {
            outside,
            *(e.total(n, cause) for cause in ("sync", "api", "unknown")),
            e.staging(n),
        }
        first = sum(launched for *_, launched in e.gaps(n)) if e.export else 0
        every |= {first, e.total(n, "api_launch", "launch_latency") - first}
        # of launched work that begins late, the calls do not count
        return {max(every), e.total(n, "launch_latency")} if key == "idle_for_this_ns" else every
    if key in ("kernels_followed_by_their_own_launch_call", "gaps_between_kernels"):
        return _blocking(e, n)[key]
    return None


def of_label(e: Evidence, f: Any, key: str, value: Any) -> Any:
    """The same for numbers of a label's finding that are not its parts: of what was issued, of names
    of kernels, of copies, clocks and the run without nsys."""
    n = int(f.interval)
    row = e.rows.get(n, {})
    group = e.groups.get(int(row.get("group", -1)), [])
    if key in ("low_ns", "high_ns"):
        return int(
            spread([e.rows[k]["elapsed_ns"] for k in group], 0.1 if key == "low_ns" else 0.9)
        )
    if key in ("kernels_low_ns", "kernels_high_ns"):
        return int(spread([e.total(k, "kernel") for k in group], 0.1 if "low" in key else 0.9))
    if key == "all_busy_share" and row["kind"] != "host":
        ran_ns = sum(e.total(k, "kernel", "graph", "memset") for k in group)
        return ran_ns / sum(e.rows[k]["elapsed_ns"] for k in group)
    if key == "threads":
        tids = {(e.rows[k]["pid"], e.rows[k]["tid"]) for k in e.labels[f.label]}
        return max(Counter(pid for pid, _ in tids).values())
    if key in ("first_third_ns", "last_third_ns"):
        return int(spread([e.rows[k]["elapsed_ns"] for k in e.third(f.label, key)], 0.5))
    if key in ("kernels_of_first_third_ns", "kernels_of_last_third_ns"):
        return int(spread([e.rows[k]["kernel_only_ns"] for k in e.third(f.label, key)], 0.5))
    if key == "distance":
        ordered = sorted(e.labels[f.label], key=lambda k: e.rows[k]["start_ns"])
        places = sorted(map(ordered.index, group))
        return math.gcd(*(b - a for a, b in itertools.pairwise(places)))
    if key == "forked":  # in the log alone
        return NOT_GIVEN
    if key == "switch_interval_ns":
        return 5_000_000
    if key == "handed_over":
        lengths = [s.end_ns - s.start_ns for s in e.segments[n] if s.cause == "host"]
        return sum(5_000_000 <= ns <= 5_500_000 for ns in lengths)
    if key in ("outside_in_ns", "off_cpu_ns"):
        ns_of_name: Counter[str] = Counter()
        for s in e.segments[n]:
            if s.cause == "host":
                ns_of_name[s.detail] += s.ns
        return set(ns_of_name.values())
    if key in (
        "long_pieces",
        "long_pieces_ns",
        "longest_piece_ns",
        "launched_by_others",
        "threads_that_launch",
    ):
        outside = e.outside(n)
        if outside is None:
            return NOT_GIVEN
        pieces, cuts, threads = outside
        long = [ns for ns in pieces if ns >= 1_000_000]
        return {
            "long_pieces": len(long), "long_pieces_ns": sum(long), "longest_piece_ns": max(pieces),
            "launched_by_others": cuts, "threads_that_launch": threads,
        }[key]  # fmt: skip
    if key in ("blocked_timings", "blocked_ns"):
        took = {g: e.rows[int(e.typical[g])]["elapsed_ns"] for g in e.lengths[f.label]}
        slow = max(took, key=took.__getitem__)
        return took[slow] if key == "blocked_ns" else len(e.groups[slow])
    if key == "outside_per_operation_ns":
        return int(e.total(n, "host") / f.evidence["operations"])
    if key == "loading_share":
        spent = sum(
            s.ns
            for k in group
            for s in e.segments[k]
            if s.cause == "api" and re.match(LOAD, s.detail)
        )
        return spent / max(sum(e.rows[k]["elapsed_ns"] for k in group), 1)
    if key in ("allocating_ns", "allocating_share", "allocating_turns"):
        calls = [s for s in e.segments[n] if s.cause == "api" and re.match(ALLOCATE, s.detail)]
        took_ns = sum(s.ns for s in calls)
        gives = [m[2] is None for s in calls if (m := re.match(TAKES_OR_GIVES, s.detail))]
        return {
            "allocating_ns": took_ns, "allocating_share": took_ns / row["elapsed_ns"],
            "allocating_turns": sum(a and not b for a, b in pairwise(gives)),
        }[key]  # fmt: skip
    if key == "allocating_timings":
        spent = {
            k: [s.ns for s in e.segments[k] if s.cause == "api" and re.match(ALLOCATE, s.detail)]
            for k in group
        }
        return sum(
            bool(its) and 100 * sum(its) >= e.rows[k]["elapsed_ns"] for k, its in spent.items()
        )
    if calls := re.fullmatch(r"(cu\w+)_calls", key):
        return len({s.ref_id for s in e.segments[n] if s.detail == calls[1]})
    if key in ("without_waits_least_ns", "without_waits_most_ns"):
        least, other = "least" in key, f.evidence["label_without_waits"]
        steady = [e.groups[g] for g in e.lengths[other] if g not in e.first]
        # the lower median of each group
        lengths = [sorted(e.rows[k]["elapsed_ns"] for k in its) for its in steady]
        return (min if least else max)(its[(len(its) - 1) // 2] for its in lengths)
    if key in ("difference_ns", "part_difference_ns"):
        typical = [int(e.typical[g]) for g in e.lengths[f.label]]
        parts = [
            (e.rows[k]["elapsed_ns"],)
            if key == "difference_ns"
            else (e.gpu(k), e.total(k, "memcpy"), e.total(k, "sync"), e.total(k, "queued"))
            for k in typical
        ]
        return {
            a - b for longer in parts for less in parts for a, b in zip(longer, less, strict=True)
        }
    if re.fullmatch(r"kernel_[12]_difference_ns", key):
        return (0, int(f.evidence["difference_ns"]))
    if re.fullmatch(r"(least|most)_(cause|gpu)_share", key):
        typical = [int(e.typical[g]) for g in e.lengths[f.label]]
        return {share for number in typical for share in e.shares(number).values()}
    if share := re.fullmatch(r"group_(\d+)_(.*)_share", key):
        return e.shares(int(e.typical[int(share[1])]))[share[2]]
    if stream := re.fullmatch(r"group_(\d+)_stream", key):
        typical = e.rows[int(e.typical[int(stream[1])])]
        return NOT_GIVEN if e.work is None else e.streams_that_ran(typical)
    if key == "typical_idle_ns":
        return e.idle(n)
    if key == "same_work_elsewhere_ns":
        return {
            e.rows[int(e.typical[g])]["elapsed_ns"]
            for name in e.lengths
            for g in e.lengths[name]
            if name != f.label
        }
    if key == "typical_latency_ns":
        return e.total(n, "launch_latency")
    if key == "typical_sync_ns":
        return e.total(n, "sync")
    if key == "staged_share":
        return sum(map(e.staging, group)) / max(sum(e.total(k, "memcpy") for k in group), 1)
    if key == "steady_timings":
        its = [k for k in e.labels[f.label] if int(e.rows[k]["group"]) not in e.first]
        return len(its or e.labels[f.label])
    if key in ("shortest_ns", "longest_ns") and f.rule != "few-blocks":
        lead = e.groups[int(e.rows[n]["group"])]
        return (min if key == "shortest_ns" else max)(e.rows[k]["elapsed_ns"] for k in lead)
    if key == "more_timings":
        return len(e.untold(f))
    if key == "more_total_ns":
        return sum(e.rows[k]["elapsed_ns"] for k in e.untold(f))
    if key == "launched_after_ns":
        return e.launched_after(n)
    if key in ("without_nsys_ns", "under_nsys_ns", "profiler_share"):
        both = e.without[f.label]
        without, under = both["baseline_ns"], both["profiled_ns"]
        return {"without_nsys_ns": int(without), "under_nsys_ns": int(under)}.get(
            key, 1 - without / under
        )
    if key.startswith(
        "kernel_at_the_"
    ):  # of a few timings between two samples the clock may be either
        possible = e.clocked(f)[key]
        return 0.998 * min(possible), 1.002 * max(possible)
    if key in CLOCKED:
        return e.clocked(f)[key]
    if key == "other_clock_mhz":  # that of any other group
        of_groups = (_clocks_of(e, sorted(numbers)) for numbers in e.groups.values())
        return {mhz for clocks in of_groups for mhz in clocks.get("median_mhz", ())}
    if key == "kernel_there_ns" and f.rule == "throttled":  # at that clock
        return {int(e.kernels_of(numbers)) for numbers in e.groups.values()}
    if key == "in_a_row":
        return round(e.fastest(f._replace(evidence={})) / max(e.fastest(f), 1))
    if key in ("kernel_here_ns", "kernel_there_ns", "slower_share"):
        here, there = e.kernels_of(group), e.fastest(f)
        return {"kernel_here_ns": int(here), "kernel_there_ns": int(there)}.get(
            key, here / there - 1
        )
    if key not in FROM_THE_TRACE:
        return None
    return NOT_GIVEN if e.work is None else e.from_trace(f, key, group)


def _blocking(e: Evidence, number: int) -> dict[str, int]:
    """Gaps between operations right after a kernel, and those that begin inside a launch call other
    than the next one's."""
    pieces, gaps, hits = e.segments[number], 0, 0
    for k, first in enumerate(pieces[1:], 1):
        if first.cause in WORK or pieces[k - 1].cause != "kernel":
            continue
        stretch = []
        for s in pieces[k:]:
            if s.cause in WORK:
                break
            stretch.append(s)
        if k + len(stretch) == len(pieces):
            continue
        gaps += 1
        if first.cause == "api_launch" and len({s.ref_id for s in stretch if s.cause == "api_launch"}) > 1:  # fmt: skip
            hits += 1
    return {"kernels_followed_by_their_own_launch_call": hits, "gaps_between_kernels": gaps}


def same(value: float, found: Any) -> bool:
    """Whether a printed number is what was computed: to a nanosecond, or to four digits where it is
    a ratio."""
    if isinstance(found, set):
        return any(same(value, one) for one in found)
    if isinstance(found, tuple):
        return found[0] <= value <= found[1]
    return abs(value - found) <= max(
        1.0 if isinstance(value, int) else 1e-4, 1e-3 * abs(found) * (not isinstance(value, int))
    )


_NUMBER = re.compile(
    r"(?<![\w.#])(\d[\d,]*(?:\.\d+)?)(?= (?:of (\d[\d,]*(?:\.\d+)?) )?(ns|us|ms|s|MHz|GB/s|kB|MB|GB|B|%|times)?\b|%|[^\w]|$)"
)


def printed(title: str, evidence: dict[str, Any]) -> list[str]:
    """Numbers of a title that its evidence does not hold."""
    flat = {**evidence, **{k: v for value in evidence.values() if isinstance(value, dict) for k, v in value.items()}}  # fmt: skip
    values = [(k, v) for k, v in flat.items() if isinstance(v, (int, float)) and not isinstance(v, bool)]  # fmt: skip
    words = " ".join(str(v) for v in evidence.values() if isinstance(v, (str, dict)))
    missing = []
    for match in _NUMBER.finditer(title):
        text, unit = match[1], match[3]
        if unit is None and (after := re.match(r" %", title[match.end() :])):
            unit = after[0].strip()
        number = float(text.replace(",", ""))
        step = 10.0 ** -(len(text.partition(".")[2]))
        if unit in UNITS:
            fits = [v / UNITS[unit] for k, v in values if k.endswith("_ns")]
        elif unit in BYTES:
            fits = [v / BYTES[unit] for k, v in values if "bytes" in k]
        elif unit == "%":
            fits = [100 * v for k, v in values if k.endswith("share")]
        else:
            fits = [v for k, v in values if not k.endswith("_ns")]
        if any(abs(number - v) <= 0.5001 * step + 1e-9 for v in fits):
            continue
        if len(text.replace(",", "").replace(".", "")) >= 3 and any(
            abs(number - v) <= 0.006 * abs(v) for v in fits
        ):
            continue  # three digits
        if text in words:
            continue
        missing.append(match[0] + (f" {unit}" if unit else ""))
    return missing


def possible_loss(e: Evidence, f: Any) -> bool:
    """Whether so much can go away: no more than its intervals take on the clock of their
    processes."""
    if f.loss_ns == 0:
        return True
    covered: Counter = Counter()
    reach: dict[Any, int] = {}
    spans = sorted((e.rows[k]["start_ns"], e.rows[k]["end_ns"], (e.rows[k]["pid"], e.rows[k]["device"])) for k in e.marked(f) or [int(f.interval)])  # fmt: skip
    for start, end, key in spans:
        begin = max(start, reach.get(key, start))
        covered[key] += max(end - begin, 0)
        reach[key] = max(reach.get(key, end), end)
    return 0 < f.loss_ns <= sum(covered.values()) + 2_000 * len(spans)


def check(
    analysis: nsysalign.Analysis, export: Path | None = None, logs: Iterable[Path] = ()
) -> Checked:
    """Every finding of an analysis that holds all segments; `export`: its trace (.sqlite); `logs`: its
    event logs.  What only they can say is not checked where they are not given."""
    e = Evidence(analysis, export, logs)
    numbers, false, unknown, silent = 0, [], [], []
    for f in analysis.findings.itertuples(index=False):
        who = f"{f.rule} ({f.label[:40]})"
        title = f.title
        for text in e.names:  # of what the CPU was in
            title = title.replace(f"({text})", "")
        title = re.sub(re.escape(f.label), "", title, flags=re.IGNORECASE).replace(
            re.sub(r"\S*/", "", f.label), ""
        )
        title = re.sub(r"(\d+) to (\d+) %", r"\1 % to \2 %", title)
        shares = [value for key, value in f.evidence.items() if key.endswith("share")]
        if any(0 < share < 0.01 for share in shares):
            title = title.replace("<1 %", "")
        if inside := f.evidence.get("label_inside"):  # lines of the same file
            title = title.replace(f"pass in {spoken(inside).partition(':')[2]},", "")
        if sibling := f.evidence.get("label_without_waits"):
            title = title.replace(f"{spoken(sibling).partition(':')[2]}, with nearly", "")
        for name in e.labels:  # as sentences name them: "file.py:21 › 12-18"
            title = title.replace(spoken(name), "").replace(name, "")
        for text in f.evidence.values():  # names hold digits that are no numbers
            title = title.replace(text, "") if isinstance(text, str) and re.search(r"[A-Za-z]\S*\d|\d\S*[A-Za-z]", text) else title  # fmt: skip
        if f.rule not in RULES_OF_MARKS:
            missing = printed(re.sub(r"\S+#\d+", "", title), f.evidence)
            false += [f"{who}: {text} is not in the evidence: {f.title}" for text in missing]
        if not possible_loss(e, f):
            false.append(f"{who}: a loss of {f.loss_ns} ns is more than its intervals take")
        numbers += bool(f.loss_ns)
        if int(f.interval) >= 0 and int(f.interval) not in e.read:
            continue  # too long to be read at once
        for key, value in f.evidence.items():
            if isinstance(value, (str, bool, dict)) or f.rule in RULES_OF_MARKS:
                continue
            found = again(e, f, key, value)
            if found is NOT_GIVEN:
                silent.append(f"{f.rule}: {key}")
                continue
            if found is None:
                unknown.append(f"{f.rule}: {key}")
                continue
            numbers += 1
            if not same(value, found):
                false.append(f"{who}: {key} is {value}, not {found}: {f.title}")
    return Checked(numbers, false, unknown, silent)


def unpacked(path: Path, folder: Path) -> tuple[Path, list[Path]] | None:
    """(export, event logs) of a file: as it is, or packed."""
    if path.name.endswith(".tar.xz"):
        untar(path, folder)
        traces = sorted(folder.rglob("*.sqlite"))
        return (traces[0], sorted(folder.rglob("events*.jsonl"))) if len(traces) == 1 else None
    stem = re.sub(r"\.sqlite(\.xz)?$", "", path.name)
    logs = [p for p in sorted(path.parent.glob("*.jsonl*")) if re.fullmatch(rf"(events-.*|{re.escape(stem)}\.events)\.jsonl(\.xz)?", p.name)]  # fmt: skip
    out = []
    for one in (path, *logs):
        target = folder / one.name.removesuffix(".xz") if one.suffix == ".xz" else one
        if one.suffix == ".xz":
            target.write_bytes(lzma.decompress(one.read_bytes()))
        out.append(target)
    return out[0], out[1:]


def main(arguments: list[str]) -> int:
    files = [
        one
        for given in map(Path, arguments)
        for one in (sorted(given.rglob("*")) if given.is_dir() else [given])
        if re.search(r"\.sqlite(\.xz)?$|\.tar\.xz$", one.name)
    ]
    read = found = numbers = 0
    false: list[str] = []
    unknown, silent = Counter(), Counter()
    for path in files:
        with tempfile.TemporaryDirectory() as scratch:
            given = unpacked(path, Path(scratch))
            if given is None:
                continue
            try:
                analysis = nsysalign.analyze(*given, all_segments=True)
            except NsysAlignError as error:
                print(f"{path}: {error}", file=sys.stderr)
                continue
            result = check(analysis, *given)
        read, found, numbers = read + 1, found + len(analysis.findings), numbers + result.numbers
        false += [f"{path}: {text}" for text in result.false]
        unknown.update(result.unknown)
        silent.update(result.silent)
    for text in false:
        print(text)
    for text, count in unknown.most_common():
        print(f"not computed: {text} ({count})")
    for text, count in silent.most_common():
        print(f"the recording does not tell: {text} ({count})")
    print("files | findings | numbers checked | false")
    print(f"{read} | {found} | {numbers} | {len(false)}")
    return 1 if false or unknown else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
