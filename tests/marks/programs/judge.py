"""Judges what `checks.cu` and `triggers.cu` wrote: python tests/marks/programs/judge.py FOLDER <
their output; JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.layout import by_hash, name_hash, names_in


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def written(path: Path) -> tuple[int, int]:
    """(marks, dropped) of a dump."""
    d = dump.read(path)
    return d.written, d.dropped


def lines_of_sms(path: Path) -> np.ndarray:
    """What each SM counted of that which did not fit (dump.SM_LINE), read without the dump's
    reader."""
    content = np.memmap(path, dtype=np.uint8, mode="r")
    at = 24 + int(np.frombuffer(content[20:24].tobytes(), "<u4")[0])
    return content[at + layout.LINE : at + layout.TABLE].view(dump.SM_LINE)


def counters(d: dump.Dump) -> dict[str, list[int]]:
    """Name -> [warps, lanes] over all SMs."""
    source = Path(__file__).with_name("checks.cu").read_text()
    known = by_hash(names_in(source)) | dict(d.names)
    out: dict[str, list[int]] = {}
    for row in d.counters[d.counters["part"] == 0]:
        number = int(row["id"]) >> 2
        name = (
            str(number - layout.TRIGGER)
            if number >= layout.TRIGGER
            else known.get(number, hex(number))
        )
        total = out.setdefault(name, [0, 0])
        total[0] += int(row["warps"])
        total[1] += int(row["lanes"])
    return out


def spins(folder: Path) -> None:
    d = dump.read(folder / "spins.nsam")
    truth = np.fromfile(folder / "spins.truth", np.uint64).astype(np.int64).reshape(3, -1, 20, 2)
    grids = np.unique(d.heads["grid"])
    for number, grid in enumerate(grids):
        heads = np.flatnonzero(d.heads["grid"] == grid)
        warp = d.heads["x"].astype(np.int64) * 4 + d.heads["warp"]
        mine = np.isin(d.of, heads) & (d.id >> 2 == name_hash("spin"))
        of, kind, time = warp[d.of[mine]], d.id[mine] & 3, d.time[mine]
        order = np.lexsort((time, of))
        of, kind, time = of[order], kind[order], time[order]
        begin, end = (time[kind == k].reshape(-1, 20) for k in (layout.BEGIN, layout.END))
        outside = truth[number]
        length = end - begin
        say(
            spin_us=[1, 10, 100][number], ranges=int(length.size), median_ns=float(np.median(length)),
            outside_median_ns=float(np.median(outside[..., 1] - outside[..., 0])),
            too_long_ns=np.percentile(length - (outside[..., 1] - outside[..., 0]), [0, 50, 95, 99, 100]).tolist(),
        )  # fmt: skip


def counted(name: str, have: list[int], expected: int | list[int]) -> None:
    """Lanes of a counter; and warps, of which there are more where lanes had come apart before
    (`expected` is a pair then)."""
    least, lanes = expected if isinstance(expected, list) else (0, expected)
    say(
        counter=name,
        warps=have[0],
        lanes=have[1],
        expected=expected,
        exact=have[1] == lanes and have[0] >= least,
    )


def divergent(path: Path, said: dict[str, int]) -> None:
    """Marks of both sides of a branch: each side's lanes under its own name, where there was room
    for all."""
    d = dump.read(path)
    lanes = np.array([int(x).bit_count() for x in d.heads["lanes"]])[d.of]
    of = {name: int(lanes[d.id == name_hash(name) << 2].sum()) for name in ("some", "others")}
    exact = d.written + d.dropped == said["marks"] and (
        d.dropped > 0 or all(of[n] == said[n] for n in of)
    )
    say(divergent=said["divergent"], written=d.written, dropped=d.dropped, executed=said["marks"], lanes=of,
        expected={n: said[n] for n in of}, exact=bool(exact))  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if "many" in said:
            path = folder / f"{said['many']}.nsam"
            there, dropped = written(path)
            say(
                many=said["many"],
                written=there,
                dropped=dropped,
                executed=said["executed"],
                exact=there + dropped == said["executed"],
            )
        elif "divergent" in said:
            divergent(folder / f"{said['divergent']}.nsam", said)
        elif "overflow" in said:
            path, executed = folder / "overflow.nsam", said["overflow"]
            d, lines = dump.read(path), lines_of_sms(path)
            lanes = int(d.counters["lanes"].sum()) + int(lines["count_lanes"].sum())
            say(overflow=executed, written=d.written, dropped=d.dropped, counted_lanes=lanes, damaged=d.damaged,
                exact=d.written + d.dropped == executed["marks"] and lanes == executed["counts"] and not d.damaged)  # fmt: skip
        elif "together" in said:
            got = counters(dump.read(folder / "together.nsam"))
            for name, expected in said["together"].items():
                warps, lanes = got.get(name, [0, 0])
                # warps: for information.  A YIELD of the compiler's may part them (docs/marks.md)
                say(
                    counter=f"together {name}",
                    warps=warps,
                    lanes=lanes,
                    expected=expected,
                    exact=lanes == expected[1],
                )
        elif "paths" in said or "triggers" in said:
            what = "paths" if "paths" in said else "triggers"
            got = counters(dump.read(folder / f"{what}.nsam"))
            for name, expected in said[what].items():
                counted(f"{what} {name}", got.get(name, [0, 0]), expected)
        elif "chase" in said:
            d = dump.read(folder / "chase.nsam")
            got = counters(d)
            rows = d.counters[(d.counters["id"] == name_hash("access") << 2)]
            main_rows, bins = rows[rows["part"] == 0], rows[rows["part"] > 0]
            histogram = {
                int(b): int(bins["lanes"][bins["part"] == b].sum()) for b in np.unique(bins["part"])
            }
            truth, total = said["chase"], int(main_rows["sum"].sum())
            lanes = {
                n: got.get(c, [0, 0])[1]
                for n, c in (
                    ("over_1000", "over 1,000 cycles"),
                    ("over_2000", "over 2,000 cycles"),
                    ("lanes", "access"),
                )
            }
            say(chase=truth, counted=got, sum=total, least=int((~main_rows["least"]).min()), most=int(main_rows["most"].max()),
                histogram=histogram, exact=truth == lanes | {"sum": total} and sum(histogram.values()) == truth["lanes"])  # fmt: skip
    if (folder / "spins.nsam").exists() and (folder / "spins.truth").exists():
        spins(folder)
    for name in ("version", "long", "graph", "join"):
        if (folder / f"{name}.nsam").exists():
            d = dump.read(folder / f"{name}.nsam")
            say(file=name, written=d.written, dropped=d.dropped, refused=d.refused, damaged=d.damaged, names=sorted(d.names.values()),
                grids=np.unique(d.heads["grid"]).tolist()[:40], span_ns=int(d.time.max() - d.time.min()) if d.written else 0)  # fmt: skip


if __name__ == "__main__":
    main()
