"""What scripts/device/marks.sh measured, beside what is aimed at: python scripts/marks/figures.py OUT

A line for each aim: `met`, `NOT met` or `not measured`, the numbers, and the step whose output they are from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsysalign.marks import layout

#: Cycles in a nanosecond of an H100 or H200 that is busy with this alone (NVML says 1,980 MHz all along).
GHZ = 1.98


def lines(out: Path, step: str) -> list[dict[str, Any]]:
    """The JSON lines that a step printed."""
    path = out / f"{step}.txt"
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return [line for line in found if isinstance(line, dict)]


def aim(step: str, what: str, numbers: str, met: bool | None) -> None:
    """One line of the answer."""
    print(
        f"{'not measured' if met is None else 'met' if met else 'NOT met':12s} {step}: {what}: {numbers}"
    )


def cost(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    """ns of one mark, one warp on each scheduler; and of a recorder that stores and fences in the same kernel."""
    rows = {
        (r["cost"], r["armed"], r["threads"]): r["cycles"]
        for r in lines(out, "cost")
        if "cost" in r
    }
    mark, fence = rows.get(("mark", 1, 128)), rows.get(("fence and store", 1, 128))
    told = ", ".join(
        f"{n} {rows[n, a, 128] / GHZ:.1f}{'' if a else ' (null)'}"
        for n, a, t in rows
        if t == 128 and n != "nothing"
    )
    straight = [
        r["cycles"] / GHZ for r in lines(out, "cost") if "straight" in r and r["threads"] == 128
    ]
    told += "; not in a loop, in a chunk with room: " + ", ".join(f"{ns:.1f}" for ns in straight)
    yield "a mark costs 25 ns at most", f"ns: {told}", None if mark is None else mark / GHZ <= 25
    yield (
        "less than a fence and a store",
        f"{mark} against {fence} cycles",
        None if None in (mark, fence) else mark < fence,
    )


def work(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    """How much longer the kernels of `work` are with marks, and how long their units are without."""
    key = ("work", "threads", "blocks")
    off: dict[tuple[Any, ...], list[float]] = {}
    units: dict[str, list[float]] = {}
    for row in lines(out, "work-off"):
        if "work" in row:
            off.setdefault(tuple(row[k] for k in key), []).append(row["min"])
            units.setdefault(row["work"], []).append(row["unit_us"])
    for name, armed, most in (
        ("mark per unit", 1, 0.02), ("8 marks per unit", 1, 0.05), ("8 counters per unit", 1, 0.005),
        ("mark per unit", 0, 0.005), ("8 marks per unit", 0, 0.005), ("8 counters per unit", 0, 0.005),
    ):  # fmt: skip
        longer = [
            (
                f"{row['blocks']}x{row['threads']}",
                row["min"] / min(off[tuple(row[k] for k in key)]) - 1,
            )
            for row in lines(out, "work")
            if row.get("work") == name
            and row["armed"] == armed
            and tuple(row[k] for k in key) in off
        ]
        told = ", ".join(f"{shape} {100 * more:+.1f} %" for shape, more in longer)
        if longer:
            told += f" (a unit: {min(units[name]):.2f} to {max(units[name]):.2f} us)"
        what = f"{name}, {'with a buffer' if armed else 'null pointer'}: {100 * most:g} % longer at most"
        yield what, told, max(more for _, more in longer) <= most if longer else None


def exact(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    rows = lines(out, "exact")
    wrong = [r for r in rows if r.get("exact") is False]
    told = f"{sum('exact' in r for r in rows)} comparisons" + "".join(
        f"; {json.dumps(r)}" for r in wrong
    )
    yield (
        "written + dropped = executed; lanes, counters, latencies as counted by hand",
        told,
        not wrong if rows else None,
    )
    spins = [r for r in rows if "spin_us" in r]
    told = ", ".join(f"{r['spin_us']} us {r['too_long_ns']}" for r in spins)
    good = all(r["too_long_ns"][1] <= 32 + r["spin_us"] for r in spins)
    yield (
        "the median range within 32 ns + 0.1 % (least, median, 95, 99 %, most, ns too long)",
        told,
        good if spins else None,
    )
    files = {r["file"]: r for r in rows if "file" in r}
    version, long = files.get("version"), files.get("long")
    yield (
        "another version writes nothing and is told",
        str(version),
        version and (version["written"], version["refused"]) == (0, layout.VERSION),
    )
    yield (
        "a kernel over 4.3 s",
        str(long and long["span_ns"]),
        long and long["span_ns"] > 4_400_000_000,
    )


def joined(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    rows = lines(out, "joined")
    whole = next((r for r in rows if "adds_up" in r), None)
    edges = next((r for r in rows if "last_block_ns" in r), None)
    kept = [r for r in rows if "kept_from_the_fit" in r]
    yield "every launch is joined, SM time adds up, no mark outside of its kernel", json.dumps(whole), whole and (
        whole["adds_up"] and whole["joined"] == whole["launches"] and not whole["outside_marks"]
    )  # fmt: skip
    yield "ramp and tail within 1 us (least, median, 99 %, most)", json.dumps(edges), edges and (
        max(abs(ns) for name in ("first_block_ns", "last_block_ns") for ns in edges[name]) <= 1_000
    )  # fmt: skip
    outside = sum(r["launches_outside"] for r in kept)
    met = outside <= 0.01 * sum(r["kept_from_the_fit"] for r in kept) if kept else None
    yield "bars hold for 99 % where the kernel's own row is not known", json.dumps(kept), met


def launches(out: Path) -> Iterator[tuple[str, str, bool | None]]:
    rows = [r for r in lines(out, "launches") if "launches" in r]
    good = all(
        (r["found"], r["complete"], r["warps"], r["dropped"]) == (r["expected"], r["expected"], r["warps_expected"], 0)
        and r.get("adds_up", True) and not r.get("outside_marks") and r.get("joined", r["expected"]) == r["expected"]
        for r in rows
    )  # fmt: skip
    yield "dependent launches, clusters, every GPU", json.dumps(rows), good if rows else None


def others(out: Path) -> Iterator[tuple[str, str, str, bool | None]]:
    """Steps that there is one of."""
    path = out / "sanitizer.txt"
    said = path.read_text(errors="replace") if path.exists() else ""
    summary = next((line for line in said.splitlines() if "ERROR SUMMARY" in line), "")
    yield (
        "sanitizer",
        "no access out of bounds",
        summary,
        "SUMMARY: 0 errors" in summary if summary else None,
    )
    triton = next((r for r in lines(out, "triton") if "exact" in r), None)
    yield (
        "triton",
        "exact in a Triton matmul, and its cost",
        json.dumps(triton),
        triton and triton["exact"] and triton["correct"],
    )
    kernels = {r["kernel"]: r for r in lines(out, "proton") if "kernel" in r}
    ours, proton = kernels.get("ours"), kernels.get("proton")
    told = json.dumps({n: r["median_us"] for n, r in kernels.items()}) + "".join(
        r["proton"] for r in lines(out, "proton") if "proton" in r
    )
    yield (
        "proton",
        "no more than Proton in the same kernel",
        told,
        ours["median_us"] <= proton["median_us"] if ours and proton else None,
    )
    counted = {k: v for r in lines(out, "ncu") for k, v in r.items()}
    values = counted.get("ncu")
    counts = (
        [int(float(str(v).replace(",", ""))) for v in values.values() if str(v)[:1].isdigit()]
        if isinstance(values, dict)
        else []
    )
    met = counted["marks"] in counts and counted["marks"] == counted["by_hand"] if counts else None
    yield "ncu", "a counter equals ncu's and the count by hand", json.dumps(counted), met


def main() -> None:
    out = Path(sys.argv[1])
    for judge in (cost, work, exact, joined, launches):
        for what, numbers, met in judge(out):
            aim(judge.__name__, what, numbers, met)
    for step, what, numbers, met in others(out):
        aim(step, what, numbers, met)


if __name__ == "__main__":
    main()
