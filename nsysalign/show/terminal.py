"""The answer in a terminal: header, one table row per label, what ran, findings, what could not be
placed, the report's path.

    label            n    time  w/o nsys  kernel  launch  latency    host   event
                            us        us      us      us       us      us      us
    t1 puzzle.py:14  6  234.72   198 ±25   24.77   28.31        .  174.50    7.15  !

Fits 80 columns and uses more where there are more. All foreign text passes `safe_text` and is added
as `Text`, never as rich markup.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsysalign.answer import Answer, Entry, Group, answer, of_devices
from nsysalign.model import Analysis
from nsysalign.show import baseline, label_table
from nsysalign.show.table import Column, draw, fitted, text
from nsysalign.text import duration, middle, percent, plural, safe_text, short_name, told_apart

#: Findings printed in full, and labels named if a finding is about several; the page has all.
MOST_FINDINGS, MOST_NAMED = 5, 4
#: Rows of runs if nothing was measured; kernels, gaps, ranges and budgets without nsys.
MOST_RUNS, MOST_KERNELS, MOST_GAPS, MOST_RANGES, MOST_BUDGETS = 12, 5, 3, 6, 6
MOST_LISTED = 40
#: Letters of a kernel's name in a line.
LONGEST = 40
MARKS = {"error": ("!", "bold red"), "warning": ("!", "bold yellow"), "info": ("i", "bold blue")}
#: The parts of a range's time on the host.
RANGE_PARTS = {
    "launch_ns": "launch",
    "copy_ns": "copy",
    "sync_ns": "sync",
    "other_ns": "other calls",
    "outside_ns": "outside",
}


def render(
    analysis: Analysis,
    console: Console,
    report_path: str | None = None,
    *,
    said: Answer | None = None,
    max_labels: int | None = 60,
    only: tuple[str, str] | None = None,
) -> None:
    """Print the analysis.  `said`: its answer, if the caller has it; `max_labels` bounds the table;
    what it leaves out is counted below it.

    `only`: a label and a rule, if one finding is to be printed and the others are to be counted.
    """
    said = said or answer(analysis)
    _header(said, console)
    console.print()
    console.print(Text(said.headline.text))  # the run as a whole
    if said.rows:
        console.print()
        label_table.render(said.rows[:max_labels], console)
        left_out = len(said.rows) - len(said.rows[:max_labels])
        if left_out:
            console.print(Text(f"  … {plural(left_out, 'more row')} in the report", "dim"))
    elif said.runs:
        console.print()
        label_table.render(said.runs[:MOST_RUNS], console)
    else:
        console.print(Text("  no interval was placed", "yellow"))
    room = console.width - 2
    if said.headline.untimed or not said.rows:
        _listed(kernel_lines(analysis, room), console)
        _listed(_gaps(analysis), console)
    _listed(_ranges(analysis, room), console)
    _baseline(analysis, console, max_labels)
    _findings(said, console, only)
    if said.unplaced:
        console.print()
        count = sum(unplaced.count for unplaced in said.unplaced)
        console.print(Text(f"{plural(count, 'interval')} could not be placed:", "yellow"))
    for unplaced in said.unplaced:
        names = ", ".join(middle(name, 30) for name in unplaced.names)
        hanging(console, f"  {unplaced.count:>5,}", f"{unplaced.reason}  ({names})", "")
    if said.notes and only is None:
        console.print()
        for note in said.notes:
            hanging(console, "note:", note, "dim")
    if report_path is not None:
        report_line(console, report_path)


def report_line(console: Console, path: str) -> None:
    """The last line: what to open next, as a link if the terminal supports links."""
    link = Path(path).absolute().as_uri() if console.is_terminal else ""
    console.print()
    line = Text("report: ", "bold") + Text(safe_text(path), f"link {link}" if link else "")
    console.print(line, soft_wrap=True)  # a path that is broken over lines cannot be copied


def hanging(console: Console, head: str, body: str, style: str) -> None:
    """`head` once, `body` wrapped beside it."""
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(head, style), Text(body))
    console.print(grid)


def _header(said: Answer, console: Console) -> None:
    trust = said.trust
    line = [trust.gpu or "no GPU named", f"nsys {trust.nsys}".strip(), trust.measured]
    if trust.placed_within_ns is not None:
        line.append(f"events placed within {duration(trust.placed_within_ns)}")
    if trust.clock:
        line.append(f"SM clock {trust.clock}")
    console.print(Text(", ".join(line), "bold"))


def _listed(lines: list[str], console: Console) -> None:
    if lines:
        console.print()
    for line in lines:
        console.print(Padding(Text(line.rstrip()), (0, 0, 0, 2)))


def kernels(analysis: Analysis, console: Console) -> None:
    """Print what ran in the run as a whole, the most expensive first."""
    lines = kernel_lines(analysis, console.width, most=MOST_LISTED)
    if not lines:
        console.print("no kernel ran")
        return
    console.print(Text("share     total     count     median  kernel, copy or graph", "dim"))
    for line in lines:
        console.print(Text(line.rstrip()), soft_wrap=True)


def kernel_lines(analysis: Analysis, width: int, most: int = MOST_KERNELS) -> list[str]:
    """The most expensive kernels of the longest run: share, total, count, median, name, and the
    idle time before them where `width` has room for it."""
    devices = of_devices(analysis)
    if devices.empty or analysis.kernels.empty:
        return []
    label = devices.sort_values("elapsed_ns")["label"].iloc[-1]
    rows = analysis.kernels[analysis.kernels["label"] == label]
    names = [safe_text(name) for name in rows["kernel"].head(most)]
    letters = max(10, min(LONGEST, width - 38))
    short = told_apart({name: middle(short_name(name), letters) for name in names}, letters)
    longest = max(map(len, short.values()))
    idle = width >= 38 + longest + len(", idle before 18.3 ms")
    lines = []
    for kernel in rows.head(most).itertuples(index=False):
        line = f"{percent(kernel.share):>5}  {duration(kernel.total_ns):>8}  {kernel.count:>8,} x "
        line += f"{duration(kernel.median_ns):>8}  {short[safe_text(kernel.kernel)]:{longest}}"
        line += f"  idle before {duration(kernel.idle_before_ns):>8}" if idle else ""
        lines.append(line)
    if len(rows) > most:
        lines.append(f"       … {len(rows) - most:,} more in the report")
    return lines


def _gaps(analysis: Analysis) -> list[str]:
    """The longest idle times of whole devices."""
    gaps = analysis.gaps[analysis.gaps["interval"].isin(of_devices(analysis)["interval"])]
    lines = []
    for gap in gaps.nlargest(MOST_GAPS, "ns").itertuples(index=False):
        did = safe_text(gap.call) or "the host was not in a CUDA call"
        if gap.call_ns:
            did = f"{duration(gap.call_ns)} of it in {safe_text(gap.call)}"
        before = middle(short_name(safe_text(gap.next)), LONGEST)
        lines.append(f"idle for {duration(gap.ns)} before {before}: {did}")
    return lines


def _ranges(analysis: Analysis, width: int) -> list[str]:
    """Ranges by their time on the host: that time, the GPU time of their work, and its parts where
    `width` has room for all of them."""
    table = analysis.host_ranges
    if table.empty:
        return []
    lines, parted = [], []
    for row in table.head(MOST_RANGES).itertuples(index=False):
        parts = sorted(((getattr(row, c), word) for c, word in RANGE_PARTS.items()), reverse=True)
        named = [f"{word} {percent(ns / max(row.host_ns, 1))}" for ns, word in parts[:2] if ns]
        gpu = f"GPU {duration(row.gpu_ns)}" if row.with_work else "nothing on the GPU"
        counted = f"{row.count:>7,} x {duration(row.median_ns):>8}"
        lines.append(f"{duration(row.host_ns):>8}  {counted}  {gpu:<18}  {safe_text(row.label)}")
        parted.append(f"{lines[-1]}  ({', '.join(named)})")
    if max(map(len, parted)) <= width:
        lines = parted
    if len(table) > MOST_RANGES:
        lines.append(f"          … {len(table) - MOST_RANGES:,} more in the report")
    return ["NVTX ranges by their time on the host, each with all inside it:", *lines]


def _baseline(analysis: Analysis, console: Console, most: int | None) -> None:
    """The run with nsys beside the one without it; nothing if there was none."""
    every = baseline.rows(analysis)
    if not every:
        return
    console.print()
    console.print(Text("With and without nsys (us)", "bold"))
    rows = every[:most]
    numbers = zip(*(row.cells for row in rows), strict=True)
    leaves = {"error": 3, "inflation": 2, "intervals": 1}
    columns = [text("label", [row.label for row in rows])]
    for head, cells in zip(baseline.HEADS[1:], numbers, strict=True):
        columns.append(Column(head, cells, leaves=leaves.get(head)))
    draw(fitted(columns, console.width)[0], console)
    if len(every) > len(rows):
        more = plural(len(every) - len(rows), "more label")
        console.print(Text(f"  … {more} in the report", "dim"))
    console.print(Text(baseline.MEANING, "dim"))
    for row in every:
        if row.remark:
            console.print(Text(f"  {row.label}: {row.remark}", "yellow"))
    inflated = sorted((r for r in every if r.budget), key=lambda row: -row.inflation)
    if inflated:
        console.print("Predicted budgets without nsys, of the interval in each row:")
    for row in inflated[:MOST_BUDGETS]:
        hanging(console, f"  {middle(row.label, 24)}", row.budget, "")
    if len(inflated) > MOST_BUDGETS:
        console.print(Text(f"  … and {len(inflated) - MOST_BUDGETS} more in the report", "dim"))


def _findings(said: Answer, console: Console, only: tuple[str, str] | None) -> None:
    """The first groups of findings, each by its first label; how many are left."""
    shown = [(group, group.entries[0]) for group in said.groups[:MOST_FINDINGS]]
    if only is not None:
        shown = [
            (Group(group.rule, group.severity, (entry,)), entry)
            for group in said.groups
            for entry in group.entries
            if (entry.finding.label, entry.finding.rule) == only
        ]
    hosts = {row.label: row.host for row in said.labels}
    for group, entry in shown:
        console.print()
        # once per label: what its host did is the same for all its findings
        _finding(said, group, entry, hosts.pop(entry.finding.label, ""), console)
    if any(entry.finding.to_confirm is not None for _, entry in shown):
        test = " To test one:" if said.next else ""
        line = f"Findings are read from one trace; none is confirmed unless it says so.{test}"
        console.print()
        console.print(Text(line, "dim"))
        if said.next:
            console.print(Text(f"      {said.next}", "cyan"), soft_wrap=True)  # to be copied
    entries = [e for group, first in shown for e in (first, *group.entries)]
    spoken = {(e.finding.label, e.finding.rule) for e in entries}
    left = [f for f in said.findings if (f.label, f.rule) not in spoken]
    serious = sum(finding.severity != "info" for finding in left)
    kinds = [(serious, "warning"), (len(left) - serious, "note")]
    counted = " and ".join(plural(count, kind) for count, kind in kinds if count)
    if counted:
        console.print()
        console.print(Text(f"… and {counted} more in the report", "dim"))


def _finding(said: Answer, group: Group, entry: Entry, host: str, console: Console) -> None:
    """Title, the line of code, what was lost, evidence, what the host did, both kinds of advice,
    the result of a second run."""
    finding = entry.finding
    mark, style = MARKS.get(finding.severity, MARKS["info"])
    line = said.source.get(finding.site)
    named = not finding.site or finding.site in finding.title or line is not None
    hanging(console, mark, finding.title + ("" if named else f"  ({finding.site})"), style)
    if line is not None:
        hanging(console, "  Code:    ", f"{finding.site}  {line}", "dim")
    if finding.loss_ns:
        where = plural(entry.count, f"{entry.cold} interval".strip())
        measured = f" of {duration(entry.total_ns)} in {where}" if entry.count else ""
        hanging(console, "  Loss:    ", f"at most {duration(finding.loss_ns)}{measured}", "dim")
    if also := [safe_text(e.finding.label) for e in group.entries[1:]]:
        more = ", …" if len(also) > MOST_NAMED else ""
        hanging(console, "  Also in: ", ", ".join(also[:MOST_NAMED]) + more, "dim")
    if finding.evidence:
        evidence = ", ".join(f"{what} {number}" for what, number in finding.evidence)
        hanging(console, "  Evidence:", evidence, "dim")
    if host:
        hanging(console, "  Host:    ", host, "dim")
    for head, sentence, code in finding.advice:
        hanging(console, " ", f"{head}: {sentence[:1].lower()}{sentence[1:]}", "")
        for line in code:
            console.print(Text(f"      {line}", "cyan"), soft_wrap=True)
    if finding.confirmation:
        verdict, _, result = finding.confirmation.partition(": ")
        hanging(console, f"  {verdict.capitalize()}:", result, "dim")
