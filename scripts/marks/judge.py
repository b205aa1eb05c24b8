"""Judges what `checks.cu` and `triggers.cu` wrote: python scripts/marks/judge.py FOLDER < their output; JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from nsysalign.marks import dump, layout
from nsysalign.marks.layout import name_hash
from nsysalign.marks.names import by_hash, of_file


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def written(path: Path) -> tuple[int, int]:
    """(marks, dropped) of a dump too large to be read as a whole with ease."""
    if path.stat().st_size < 400 << 20:
        d = dump.read(path)
        return d.written, d.dropped
    content = np.memmap(path, np.uint8, "r")
    length = int(np.frombuffer(content[20:24].tobytes(), "<u4")[0])
    at = 24 + length
    lines = np.frombuffer(content[at + layout.LINE : at + layout.TABLE].tobytes(), dump._SM_LINE)
    counts = np.frombuffer(content[at + layout.TABLE :][: 4 * layout.COUNTS].tobytes(), "<u4").astype(
        np.int64
    )
    body = content[at + layout.TABLE + 4 * layout.COUNTS + int(counts[0]) * layout.LINE :]
    assert not counts[17::2].any()
    marks = body.view(dump._CHUNK)["marks"]["id"]
    total = sum(int(np.count_nonzero(marks[i : i + 100_000])) for i in range(0, len(marks), 100_000))
    return total, int(lines["dropped"].sum())


def counters(d: dump.Dump) -> dict[str, list[int]]:
    """Name -> [warps, lanes] over all SMs."""
    here = Path(__file__).with_name("checks.cu")
    known = by_hash(of_file(str(here))) | dict(d.names)
    out: dict[str, list[int]] = {}
    for row in d.counters[d.counters["part"] == 0]:
        number = int(row["id"]) >> 2
        name = str(number - layout.TRIGGER) if number >= layout.TRIGGER else known.get(number, hex(number))
        total = out.setdefault(name, [0, 0])
        total[0] += int(row["warps"])
        total[1] += int(row["lanes"])
    return out


def spins(folder: Path) -> None:
    d = dump.read(folder / "spins.nsam")
    truth = np.fromfile(folder / "spins.truth", np.uint64).astype(np.int64).reshape(3, -1, 20, 2)
    grids = np.unique(d.warps["grid"])
    for number, grid in enumerate(grids):
        heads = np.flatnonzero(d.warps["grid"] == grid)
        warp = d.warps["x"].astype(np.int64) * 4 + d.warps["warp"]
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


def main() -> None:
    folder = Path(sys.argv[1])
    for line in sys.stdin:
        if not line.startswith("{"):
            continue
        said = json.loads(line)
        if "many" in said:
            path = folder / f"{said['many']}.nsam"
            there, dropped = written(path)
            say(many=said["many"], written=there, dropped=dropped, executed=said.get("executed"), at_least=said.get("at_least"),
                exact=there + dropped == said.get("executed", there + dropped))  # fmt: skip
            if said["many"] == "many-divergent":
                d = dump.read(path)
                lanes = sum(int(x).bit_count() for x in d.warps["lanes"][d.of[d.id & 3 == 0]])
                say(divergent_lanes=lanes, expected=said["lanes"], dropped=d.dropped)
        elif "paths" in said or "triggers" in said:
            what = "paths" if "paths" in said else "triggers"
            got = counters(dump.read(folder / f"{what}.nsam"))
            for name, (warps, lanes) in said[what].items():
                have = got.get(name, [0, 0])
                say(counter=f"{what} {name}", warps=have[0], lanes=have[1], expected=[warps, lanes],
                    exact=have[1] == lanes and (warps < 0 or have[0] == warps))  # fmt: skip
        elif "chase" in said:
            d = dump.read(folder / "chase.nsam")
            got = counters(d)
            rows = d.counters[(d.counters["id"] == name_hash("access") << 2)]
            main_rows, bins = rows[rows["part"] == 0], rows[rows["part"] > 0]
            histogram = {int(b): int(bins["lanes"][bins["part"] == b].sum()) for b in np.unique(bins["part"])}
            say(chase=said["chase"], counted=got, sum=int(main_rows["sum"].sum()), least=int((~main_rows["least"]).min()),
                most=int(main_rows["most"].max()), histogram=histogram)  # fmt: skip
    if (folder / "spins.nsam").exists() and (folder / "spins.truth").exists():
        spins(folder)
    for name in ("version", "long", "graph", "join"):
        if (folder / f"{name}.nsam").exists():
            d = dump.read(folder / f"{name}.nsam")
            say(file=name, written=d.written, dropped=d.dropped, refused=d.refused, damaged=d.damaged, names=sorted(d.names.values()),
                grids=np.unique(d.warps["grid"]).tolist()[:40], span_ns=int(d.time.max() - d.time.min()) if d.written else 0)  # fmt: skip


if __name__ == "__main__":
    main()
