"""How far the predictions without nsys of ranks that meet in collectives are off.

    python scripts/score_ranks.py DIR [DIR...] [--without BASELINE_DIR...]

DIR: a run of all ranks (`nsysalign run --baseline -- torchrun ...`), or a folder of traces of single ranks.  Every one is compared
with every run without nsys of the same program: the `baseline` folders of the runs, and `--without`.  Medians of a rank's label;
also how far two runs without nsys differ, and the predictions of each rank by itself, which take the other ranks to be as they were.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsysalign.compare.side_by_side import measured
from nsysalign.predict.host_speed import RECORD_UNDER_NSYS, HostSpeed
from nsysalign.ranks import spread
from nsysalign.ranks.command import analyse, recovered
from nsysalign.ranks.compare import compare
from nsysalign.rundir import event_logs
from nsysalign.text import REPETITION
from nsysalign.trace.eventlog import read_event_logs

#: Hosts are called equally fast where the record calls of every rank took the same within these factors.
EQUAL = (1.1, 1.3)


def predicted(path: Path) -> pd.DataFrame:
    """One row per rank and label, us; `alone`: by the rank's own replay, where every repetition has one."""
    with spread.processes(1) as executor, tempfile.TemporaryDirectory() as folder:
        results = analyse(recovered([path], []), Path(folder), executor, debug=True)
    for result in results:
        if result.failure:
            sys.exit(f"{result.source}: {result.failure}")
    own = {
        (summary.pid, label): [
            c.alone_ns[0] - (c.end_ns - c.start_ns)
            for c in summary.couplings
            if c.label == label and not c.reason
        ]
        for result in results
        for summary in result.ranks
        for label in {c.label for c in summary.couplings}
    }
    comparison = compare(results)
    rows = []
    for label in comparison.labels:
        for row, rank in (
            (r, comparison.ranks[[x.number for x in comparison.ranks].index(r.rank)])
            for r in label.ranks
        ):
            u, alone = row.unprofiled, own.get((rank.pid, label.label), [])
            mine = row.times.median_ns + np.median(alone) if alone else np.nan
            ns = [np.nan if v is None else v for v in (u.predicted_ns, u.lower_ns, u.upper_ns)]
            rows.append(
                (
                    rank.device,
                    label.label,
                    row.times.median_ns,
                    row.wait_median_ns,
                    *ns,
                    mine,
                    u.reason,
                )
            )
    names = ["device", "label", "nsys", "waits", "predicted", "lower", "upper", "alone", "reason"]
    table = pd.DataFrame(rows, columns=names)
    table[names[2:8]] /= 1e3
    return table.set_index(["label", "device"])


def logged(folder: Path) -> pd.DataFrame:
    """Medians, us, by label and device: what was measured, and how long the calls took that record events."""
    logs = [
        log
        for path in sorted([folder, *folder.glob("**/")])
        if path == folder or path.name != "baseline"
        for log in event_logs(path)
    ]
    log = read_event_logs(logs)
    found = measured(log)
    found["records"] = HostSpeed(log).near(
        *(found[c].to_numpy() for c in ("process", "order", "last_ns"))
    )
    device = log.records.groupby("process")["device"].max().reindex(found["process"]).to_numpy()
    name = found["region"].str.replace(REPETITION, "", regex=True)
    name = name.where(name != "", found["site"]).to_numpy()
    return (found.groupby([name, device])[["elapsed_ns", "records"]].median() / 1e3).rename_axis(
        ["label", "device"]
    )


def line(name: str, error: pd.Series, inside: pd.Series | None = None) -> str:
    known = error.dropna()
    text = f"{name:34s} {len(known):4d}  median {100 * known.abs().median():5.1f} %  bias {100 * known.median():+5.1f} %  within 10 % {(known.abs() <= 0.1).sum():4d}"
    return text + (
        f"  inside the bar {int(inside[error.notna()].sum())}" if inside is not None else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--without", nargs="*", type=Path, default=[])
    parser.add_argument(
        "--labels", default=".", help="a regular expression for the labels that count"
    )
    asked = parser.parse_args()
    folders = [
        run / "baseline" for run in asked.runs if event_logs(run / "baseline")
    ] + asked.without
    plain = {str(folder): logged(folder) for folder in folders}
    rows = []
    for run in asked.runs:
        table, under = predicted(run), logged(run)
        for name, baseline in plain.items():
            slower = (under["records"] / baseline["records"] / RECORD_UNDER_NSYS).reindex(
                table.index
            )
            # the rank whose host changed more decides
            worst = np.exp(np.log(slower).abs()).groupby("label").transform("max")
            without = baseline["elapsed_ns"].reindex(table.index)
            rows.append(
                table.assign(
                    run=str(run), baseline=name, without=without, slower=slower, apart=worst
                )
            )
    found = pd.concat(rows).reset_index()
    found = found[found["label"].str.contains(asked.labels) & found["without"].notna()]
    found["error"] = found["predicted"] / found["without"] - 1
    found["inside"] = (found["lower"] <= found["without"]) & (found["without"] <= found["upper"])
    found["alone error"] = found["alone"] / found["without"] - 1
    found["bar"] = (found["upper"] - found["lower"]) / 2 / found["predicted"]
    medians = found.groupby(["label", "device"], sort=False)[
        ["nsys", "without", "predicted", "alone", "error", "alone error", "bar", "waits", "slower"]
    ].median()
    print(medians.round(3).to_string())
    for run, mine in found.groupby("run"):
        print(run)
        print(line("  together", mine["error"], mine["inside"]))
        print(line("  each rank by itself", mine["alone error"]))
    print(
        line("together", found["error"], found["inside"]),
        f" bar {100 * found['bar'].median():.0f} %",
    )
    print(line("each rank by itself", found["alone error"]))
    for most in EQUAL:
        mine = found[found["apart"] <= most]
        print(f"hosts equally fast within {most}, of all")
        print(
            line("  together", mine["error"], mine["inside"]),
            f" bar {100 * mine['bar'].median():.0f} %",
        )
        print(line("  each rank by itself", mine["alone error"]))
    for a, b in combinations(plain.values(), 2):
        differ = b["elapsed_ns"] / a["elapsed_ns"] - 1
        print(line("two runs without nsys", differ))
        for most in EQUAL:
            equal = (
                (b["records"] / a["records"])
                .between(1 / most, most)
                .groupby("label")
                .transform("all")
            )
            print(line(f"  hosts equally fast within {most}", differ[equal]))
    for reason, count in found.loc[found["predicted"].isna(), "reason"].value_counts().items():
        print(f"  no prediction for {count}: {reason}")


if __name__ == "__main__":
    main()
