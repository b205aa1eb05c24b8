"""What measure.sh measured, beside what is aimed at: python scripts/device/figures.py OUT

A line for each aim: `met`, `NOT met` or `not measured`, the step, and the numbers.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from nsysalign.errors import NsysAlignError
from nsysalign.measure.failures import MEMORY
from nsysalign.measure.result import Measure, load

Aim = tuple[str, str, str, bool | None]
#: Steps whose time is limited by --budget, or by what is aimed at, s.
BUDGETS = {"same": 85, "memory": 30, "three": 45, "curve": 240, "proof": 40}


def read(path: Path) -> dict[str, Any]:
    """A JSON file, {} where there is none."""
    return json.loads(path.read_text()) if path.exists() else {}


def measured(out: Path) -> dict[str, Measure]:
    """The measurements that are there, by their step."""
    found = {}
    for name in ("beside", "memory", "same", "transfer", "quick", "three", "curve", "proof"):
        try:
            found[name] = load(out / name)
        except NsysAlignError:
            continue
    return found


def tools(out: Path) -> Iterator[Aim]:
    """Twelve calls by others' tools and ours."""
    found = read(out / "compare.json")
    times, truth = found.get("times_us", {}), found.get("truth_us", {})
    off = {
        n: times[n]["device warm"] - times[n]["empty kernel"] - t
        for n, t in truth.items()
        if "device warm" in times.get(n, {})
    }
    told = ", ".join(f"{n} {us:+.2f} us" for n, us in off.items())
    good = all(abs(us) <= 0.3 + 0.001 * truth[n] for n, us in off.items())
    yield (
        "tools",
        "`device` of the spins, less what a pair reads around an empty kernel, within 0.3 us + 0.1 %",
        told,
        good if off else None,
    )
    yield (
        "tools",
        "`device`, cold, within 1 % or 0.3 us of cuda-bench over 10 us; in cycles where the SMs' clocks differ",
        *_against(found),
    )


def _against(found: dict[str, Any]) -> tuple[str, bool | None]:
    """What is told of cuda-bench, and whether it holds.  A call that differed was measured again in turns, with both clocks."""
    told, wrong = [], False
    for name, values in found.get("times_us", {}).items():
        ours, theirs = values.get("device cold"), values.get("nvbench median")
        if ours is None or theirs is None or theirs <= 10:
            continue
        turns = [p for p in found.get("again", {}).get(name, []) if all(p.values())]
        us = median([p["ours"] - p["nvbench"] for p in turns] or [ours - theirs])
        said, off = f"{name} {us:+.2f} us ({100 * us / theirs:+.1f} %)", us
        if clocks := [(p["ours MHz"], p["nvbench MHz"]) for p in turns if "ours MHz" in p]:
            cycles = median(
                p["ours"] * p["ours MHz"] / (p["nvbench"] * p["nvbench MHz"]) - 1 for p in turns
            )
            said += " in turns at {:.0f} and {:.0f} MHz: {:+.1f} % in cycles".format(
                *map(median, zip(*clocks, strict=True)), 100 * cycles
            )
            off = cycles * theirs
        told.append(said)
        wrong |= abs(off) > max(0.3, 0.01 * theirs)
    failed = found.get("nvbench failed", "")
    return ", ".join(told) + failed, not wrong and not failed if told else None


def article(out: Path) -> Iterator[Aim]:
    found = {n: x for n, x in read(out / "article.json").items() if "holds" in x}
    told = ", ".join(
        f"{n} {x['difference']:+.2f} us ({x['low']:+.2f} to {x['high']:+.2f}, of {x['article']:.1f})"
        for n, x in found.items()
    )
    good = all(x["holds"] is not False for x in found.values())
    count = sum(x["holds"] is True for x in found.values())
    yield (
        "article",
        f"`event` is the article's loop within 1 % or 1 us ({count} of {len(found)} certainly)",
        told,
        good if found else None,
    )


def same(found: dict[str, Measure]) -> Iterator[Aim]:
    """A against A."""
    told, differ = [], 0
    if "same" in found:
        measure = found["same"]
        for _, batch, mode, l2 in [k for k in measure.estimates if k[0] == 0]:
            difference = measure.difference(batch, mode, l2)
            if difference is not None:
                differ += difference.verdict != "unclear"
                told.append(f"{batch}/{mode} {100 * difference.ratio:+.2f} % {difference.verdict}")
    yield (
        "same",
        f"A against A: at most 1 of 20 told apart ({differ} of {len(told)})",
        ", ".join(told),
        differ <= len(told) / 20 if told else None,
    )


def times(out: Path) -> Iterator[Aim]:
    """How long the steps took, the command's start and its files included."""
    path = out / "steps.txt"
    lines = re.findall(
        r"^(\w+): status (\d+), (\d+) s", path.read_text() if path.exists() else "", re.MULTILINE
    )
    for name, status, seconds in lines:
        if name in BUDGETS or name == "quick":
            most = 12 if name == "quick" else 1.1 * BUDGETS[name]
            yield (
                name,
                f"at most {most:.0f} s",
                f"{seconds} s, status {status}",
                int(seconds) <= most,
            )
    failed = [f"{name} ({status})" for name, status, _ in lines if status != "0"]
    yield (
        "steps",
        "every step ended well",
        ", ".join(failed) or "all",
        not failed if lines else None,
    )


def memory(out: Path, found: dict[str, Measure]) -> Iterator[Aim]:
    """The searches for the largest batch."""
    for name in ("memory", "beside", "curve"):
        if name in found:
            search = found[name].search
            lost = sum(r.failure in MEMORY for r in found[name].runs)
            told = f"largest {search.get('largest')}, exact {search.get('exact')}, {search.get('limited') or 'not limited'}, {len(search.get('trials', ()))} trials, {lost} failures by memory"
            yield (
                name,
                "the largest batch is found with at most 3 failures by memory",
                told,
                bool(search.get("exact")) and lost <= 3,
            )
    path = out / "neighbour.txt"
    said = path.read_text() if path.exists() else ""
    used = re.findall(r"^(\d+) MiB$", said, re.MULTILINE)
    yield "neighbour", "it is as it was, and the memory afterwards as before", f"MiB used before and after: {used}", (
        "as it was" in said and len(used) == 2 and abs(int(used[0]) - int(used[1])) <= 16 if said else None
    )  # fmt: skip


def proof(found: dict[str, Measure]) -> Iterator[Aim]:
    profiles = [(name, p) for name, m in found.items() for p in m.profiles if not p.problem]
    told = ", ".join(
        f"{name} {p.batch}: {100 * p.error:+.0f} % (host {p.host_ratio:.2f})"
        for name, p in profiles
    )
    count = sum(p.proven for _, p in profiles)
    yield (
        "profiles",
        f"the profile predicts within 10 % on 80 % of labels ({count} of {len(profiles)})",
        told,
        count >= 0.8 * len(profiles) if profiles else None,
    )


def answers(out: Path, found: dict[str, Measure]) -> Iterator[Aim]:
    """What the documentation shows."""
    if "curve" in found:
        curve = found["curve"]
        rows = [
            f"{p.batch}: {p.rate:,.0f}/s ({'; '.join(p.marks)})" for p in curve.points if p.marks
        ]
        yield (
            "curve",
            "best batch",
            "; ".join(rows) + f"; {curve.environment.get('device')}",
            bool(curve.search.get("largest")),
        )
    for name, m in found.items():
        libraries = {r.clean.get("libraries") for r in m.runs if r.clean}
        dirty = sorted({str(x) for r in m.runs for x in r.clean.get("found", ())})
        yield (
            name,
            "timed processes have no probe, no injection",
            f"{len(m.runs)} processes, {libraries} libraries, {dirty}",
            not dirty,
        )
    mistakes = read(out / "mistakes.json")
    yield "mistakes", "the article's mistakes", json.dumps(mistakes), bool(mistakes) or None


def main() -> None:
    out = Path(sys.argv[1])
    found = measured(out)
    for step, what, numbers, met in (
        *tools(out), *article(out), *same(found), *times(out), *memory(out, found), *proof(found), *answers(out, found),
    ):  # fmt: skip
        print(
            f"{'not measured' if met is None else 'met' if met else 'NOT met':12s} {step}: {what}: {numbers}"
        )


if __name__ == "__main__":
    main()
