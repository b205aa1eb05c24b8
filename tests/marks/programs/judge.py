"""Judges what `checks.cu` wrote: python tests/marks/programs/judge.py FOLDER < its output; JSON
lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.layout import by_hash, name_hash, names_in


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def counters(d: dump.Dump) -> dict[str, list[int]]:
    """Name -> [warps, lanes] over all SMs."""
    source = Path(__file__).with_name("checks.cu").read_text()
    known = by_hash(names_in(source)) | dict(d.names)
    out: dict[str, list[int]] = {}
    for row in d.counters:
        number = int(row["id"]) >> 2
        total = out.setdefault(known.get(number, hex(number)), [0, 0])
        total[0] += int(row["warps"])
        total[1] += int(row["lanes"])
    return out


def spins(folder: Path) -> None:
    d = dump.read(folder / "spins.nsam")
    truth = np.fromfile(folder / "spins.truth", np.uint64).astype(np.int64).reshape(3, -1, 20, 2)
    warp = d.heads["x"].astype(np.int64) * 4 + d.heads["warp"]
    for number, grid in enumerate(np.unique(d.heads["grid"])):
        its = (d.heads["grid"][d.head_of] == grid) & (d.id >> 2 == name_hash("spin"))
        of, kind, time = warp[d.head_of[its]], d.id[its] & 3, d.time[its]
        order = np.lexsort((time, of))
        kind, time = kind[order], time[order]
        begin, end = (time[kind == k].reshape(-1, 20) for k in (layout.BEGIN, layout.END))
        outside, length = truth[number][..., 1] - truth[number][..., 0], end - begin
        say(
            spin_us=[1, 10, 100][number], ranges=int(length.size),
            median_ns=float(np.median(length)), outside_median_ns=float(np.median(outside)),
            too_long_ns=np.percentile(length - outside, [0, 50, 95, 99, 100]).tolist(),
        )  # fmt: skip


def many(folder: Path, said: dict) -> None:
    d = dump.read(folder / f"{said['many']}.nsam")
    exact = d.written + d.dropped == said["executed"]
    say(**said, written=d.written, dropped=d.dropped, exact=exact)


def divergent(folder: Path, said: dict) -> None:
    """Marks of both sides of a branch: each side's lanes under its own name, where there was room
    for all."""
    d = dump.read(folder / f"{said['divergent']}.nsam")
    lanes = np.array([int(x).bit_count() for x in d.heads["lanes"]])[d.head_of]
    of = {name: int(lanes[d.id == name_hash(name) << 2].sum()) for name in ("some", "others")}
    exact = d.written + d.dropped == said["marks"]
    exact &= d.dropped > 0 or all(of[name] == said[name] for name in of)
    say(**said, written=d.written, dropped=d.dropped, lanes_of=of, exact=bool(exact))


def overflow(folder: Path, said: dict) -> None:
    path, executed = folder / "overflow.nsam", said["overflow"]
    d, content = dump.read(path), path.read_bytes()
    begin = 24 + int.from_bytes(content[20:24], "little")  # what each SM counted that did not fit
    of_sms = np.frombuffer(content[begin + layout.LINE : begin + layout.TABLE], dump.SM_LINE)
    lanes = int(d.counters["lanes"].sum()) + int(of_sms["count_lanes"].sum())
    exact = d.written + d.dropped == executed["marks"] and lanes == executed["counts"]
    say(overflow=executed, lanes=lanes, damaged=d.damaged, exact=exact and not d.damaged)


def counted(folder: Path, what: str, expected: dict) -> None:
    """Lanes of counters; and of `paths` warps, of which there are more where lanes
    had come apart before (what is expected is a pair then).  A YIELD of the compiler's may part
    warps that were together (docs/marks.md)."""
    got = counters(dump.read(folder / f"{what}.nsam"))
    for name, number in expected.items():
        warps, lanes = got.get(name, [0, 0])
        least, wanted = number if isinstance(number, list) else (0, number)
        exact = lanes == wanted and (what == "together" or warps >= least)
        say(counter=f"{what} {name}", warps=warps, lanes=lanes, expected=number, exact=exact)


def chase(folder: Path, said: dict) -> None:
    got, truth = counters(dump.read(folder / "chase.nsam")), said["chase"]
    names = {"over_1000": "over 1,000 cycles", "over_2000": "over 2,000 cycles"}
    found = {key: got.get(name, [0, 0])[1] for key, name in names.items()}
    say(chase=truth, found=found, exact=truth == found)


def main() -> None:
    folder = Path(sys.argv[1])
    for said in (json.loads(line) for line in sys.stdin if line.startswith("{")):
        for judge in (many, divergent, overflow, chase):
            if judge.__name__ in said:
                judge(folder, said)
        for what in ("together", "paths"):
            if what in said:
                counted(folder, what, said[what])
    if (folder / "spins.nsam").exists() and (folder / "spins.truth").exists():
        spins(folder)
    for name in ("version", "long", "graph", "join"):
        if (folder / f"{name}.nsam").exists():
            d = dump.read(folder / f"{name}.nsam")
            say(file=name, written=d.written, dropped=d.dropped, refused=d.refused,
                damaged=d.damaged, names=sorted(d.names.values()),
                span_ns=int(np.ptp(d.time)) if d.written else 0)  # fmt: skip


if __name__ == "__main__":
    main()
