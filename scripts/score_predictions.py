"""How far predictions without nsys are off, on runs with a run without nsys beside them.

    python scripts/score_predictions.py RUN_DIR [RUN_DIR...]          of `nsysalign run --baseline`
    python scripts/score_predictions.py tests/data/unprofiled_micro   or the stem of a recording: .sqlite.xz, .events.jsonl.xz, ...

Arguments whose names differ in a number at the end only (bench-1, bench-2) are runs of one program on one machine: every run under
nsys is compared with every run without it, and the runs without nsys with each other, which says how far any prediction must be
off.  Labels are counted by how fast the host was in both runs, as their record calls tell (`host_slowdown`): within 10 % of each
other, or not; nothing is left out.  With several runs, the fastest one under nsys is also compared with the fastest one without it,
label by label: there the host ran at full speed in both, if it ever did.

With `--turns` the runs are those of `bench_turns.py`: the host was equally fast in both, whatever the record calls say, and no
label is left out because it was slow.  The halves of such a run (every other turn) say how exactly it tells what nsys adds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import re
import sys
import tempfile
from itertools import combinations
from pathlib import Path
from unittest import mock

import bench_baseline
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nsysalign import engine
from nsysalign.compare.side_by_side import measured
from nsysalign.model import OPERATION_KINDS, EventLog
from nsysalign.predict.host_speed import HostSpeed
from nsysalign.rundir import event_logs
from nsysalign.text import REPETITION
from nsysalign.trace.eventlog import read_event_logs

EQUAL = 1.1
#: Share of an interval in which the GPU is at work: below the first, the host decides; above the second, the GPU does.
BY_HOST, BY_GPU = 0.3, 0.7


def files_of(path: Path, folder: Path) -> tuple[Path, list[Path], list[Path]]:
    """(export, event logs, logs of the run without nsys)."""
    if path.is_dir():
        return path / "trace.sqlite", event_logs(path), event_logs(path / "baseline")
    out = {}
    for suffix in ("sqlite", "events.jsonl", "baseline.jsonl"):
        out[suffix] = folder / f"{path.name}.{suffix}"
        out[suffix].write_bytes(lzma.decompress(Path(f"{path}.{suffix}.xz").read_bytes()))
    return out["sqlite"], [out["events.jsonl"]], [out["baseline.jsonl"]]


def compared(sqlite: Path, events: list[Path], baseline: list[Path]) -> pd.DataFrame:
    """One row per label that was measured in both runs."""
    a = engine.analyze(sqlite, events=events, baseline=baseline)
    parts = a.unprofiled_parts.assign(working=a.unprofiled_parts["cause"].isin(OPERATION_KINDS))
    budgets = parts.groupby("interval")["ns"].sum()
    share = (
        parts[parts["working"]].groupby("interval")["ns"].sum().reindex(budgets.index, fill_value=0)
        / budgets
    )
    label = a.intervals.set_index("interval")["label"].reindex(share.index)
    table = a.baseline[(a.baseline["profiled_ns"] > 0) & (a.baseline["baseline_ns"] > 0)].copy()
    table["gpu_share"] = share.groupby(label.to_numpy()).median().reindex(table["label"]).to_numpy()
    return table


def by_label(log: EventLog) -> pd.DataFrame:
    """Medians of a run without nsys: ns measured, ns of its record calls."""
    found = measured(log)
    found["records"] = HostSpeed(log).near(
        *(found[c].to_numpy() for c in ("process", "order", "last_ns"))
    )
    name = found["region"].str.replace(REPETITION, "", regex=True)
    name = name.where(name != "", found["site"] + "-" + found["end_site"])
    return found.groupby(name.to_numpy())[["elapsed_ns", "records"]].median()


def without_nsys(one: EventLog, two: EventLog) -> pd.DataFrame:
    """How far two runs without nsys differ, label by label: as they are, and what is left when the host's share of the time is
    taken to be all of it and as much longer as the record calls."""
    both = by_label(one).merge(
        by_label(two), left_index=True, right_index=True, suffixes=("", "_2")
    )
    speed = both["records"] / both["records_2"]
    ratio = both["elapsed_ns"] / both["elapsed_ns_2"]
    return pd.DataFrame({"difference": ratio - 1, "speed": speed, "left": ratio / speed - 1})


def kind_of(table: pd.DataFrame) -> pd.Series:
    """In which class a row counts."""
    speed = table["host_slowdown"]
    equal = (speed <= EQUAL) & (speed >= 1 / EQUAL)
    known = np.where(
        speed.isna(), "speed unknown", np.where(equal, "equally fast host", "another speed")
    )
    return pd.Series(np.where(table["error"].isna(), "no prediction", known), index=table.index)


def line(rows: pd.DataFrame) -> pd.Series:
    """What is said of some labels."""
    error, bar = rows["error"], rows["predicted_upper_ns"] - rows["predicted_lower_ns"]
    inside = (rows["predicted_lower_ns"] <= rows["baseline_ns"]) & (
        rows["baseline_ns"] <= rows["predicted_upper_ns"]
    )
    return pd.Series(
        {
            "labels": len(rows),
            "median %": round(100 * error.abs().median(), 1),
            "bias %": round(100 * error.median(), 1),
            "within 10 %": int((error.abs() <= 0.1).sum()),
            "inside the bar": int(inside.sum()),
            "bar +- %": round(50 * (bar / rows["predicted_ns"]).median(), 0),
        }
    )


def show(rows: pd.DataFrame) -> None:
    """By class; then those on an equally fast host by what decides their time."""
    rows = rows.assign(kind=kind_of(rows))
    print(rows.groupby("kind").apply(line, include_groups=False).to_string())
    said = rows.loc[rows["kind"] == "no prediction", "remark"].str.extract(
        r"no prediction: ([^;]*)"
    )[0]
    for reason, count in said.str.replace(r"[\d.,]+", "N", regex=True).value_counts().items():
        print(f"  no prediction for {count}: {reason}")
    equal = rows[rows["kind"] == "equally fast host"]
    if len(equal):
        share = equal["gpu_share"]
        decides = np.where(share < BY_HOST, "the host", np.where(share > BY_GPU, "the GPU", "both"))
        print("\non an equally fast host, by what decides the time")
        print(equal.groupby(decides).apply(line).to_string())


def halves(sqlite: Path, events: list[Path], baseline: list[Path]) -> pd.Series:
    """Per label of a run in turns: how far the lengthening in its odd turns is from that in its even ones."""
    sides = []
    for logs in (events, baseline):
        found = measured(read_event_logs(logs))
        found["region"] = found["region"].str.replace(REPETITION, "", regex=True)
        turn = found.groupby("region").cumcount() // bench_baseline.IN_TURN
        sides.append(found.groupby(["region", turn % 2])["elapsed_ns"].median().unstack())
    longer = (sides[0] / sides[1]).dropna()
    return longer[0] / longer[1] - 1


def show_turns(rows: pd.DataFrame, apart: pd.Series) -> None:
    """All labels of runs in turns, by program."""
    known = rows[rows["error"].notna()]
    print(known.groupby("program").apply(line, include_groups=False).to_string())
    print(
        f"\nhow many times longer nsys makes a label, odd turns against even ones: median {100 * apart.abs().median():.1f} %, "
        f"{(apart.abs() <= 0.1).sum()} of {len(apart)} within 10 %"
    )


def fastest(rows: pd.DataFrame) -> pd.Series:
    """Per label of a program: error of the prediction from the run under nsys that took least, against the run without nsys that
    took least."""
    under = rows.loc[rows.groupby("label")["profiled_ns"].idxmin()].set_index("label")
    return under["predicted_ns"] / rows.groupby("label")["baseline_ns"].min() - 1


def alike(rows: pd.DataFrame) -> str:
    """Markdown, one line per label: the pair of runs whose hosts were most alike by the record calls, from the host's labels to
    the GPU's: us under nsys, without, predicted, and the error."""
    known = rows[rows["host_slowdown"].notna() & rows["error"].notna()].copy()
    known["apart"] = np.log(known["host_slowdown"]).abs()
    pairs = known.loc[known.groupby("label")["apart"].idxmin()].sort_values("gpu_share")
    lines = []
    for row in pairs.itertuples(index=False):
        times = (row.profiled_ns, row.baseline_ns, row.predicted_ns)
        cells = [f"{ns / 1e3:,.0f}" if ns >= 1e5 else f"{ns / 1e3:.1f}" for ns in times]
        host = "" if row.apart <= np.log(EQUAL) else " (host)"
        lines.append(f"| {row.label} | {' | '.join(cells)} | {100 * row.error:+.0f} %{host} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables; `--json` has every label."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", nargs="+", type=Path)
    parser.add_argument(
        "--labels", default=".", help="a regular expression for the labels that count"
    )
    parser.add_argument("--turns", action="store_true", help="the runs are those of bench_turns.py")
    parser.add_argument(
        "--table", action="store_true", help="a table of all labels as well, in Markdown"
    )
    parser.add_argument("--json", type=Path, help="write the errors of every label here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if arguments.turns:
            stack.enter_context(
                mock.patch("nsysalign.predict.unprofiled._slow_host", lambda *_: "")
            )
        programs: dict[str, dict[str, tuple]] = {}
        for path in arguments.programs:
            try:
                files = files_of(path, Path(folder))
                programs.setdefault(re.sub(r"-\d+$", "", str(path)), {})[path.name] = files
            except OSError as error:  # one broken run must not hide the others
                print(f"{path}: {error}", file=sys.stderr)
        rows, plain, apart = [], [], []
        for program, runs in programs.items():
            for under, (sqlite, events, _) in runs.items():
                for without, (_, _, baseline) in runs.items():
                    table = compared(sqlite, events, baseline)
                    rows.append(table.assign(program=program, under=under, without=without))
            apart += [halves(*files) for files in runs.values() if arguments.turns]
            logs = [read_event_logs(baseline) for _, _, baseline in runs.values()]
            plain += [without_nsys(one, two) for one, two in combinations(logs, 2)]
    if not rows:
        sys.exit("nothing to score")
    found = pd.concat(rows, ignore_index=True)
    found = found[found["label"].str.contains(arguments.labels)].reset_index(drop=True)
    if arguments.turns:
        show_turns(found, pd.concat(apart))
    else:
        show(found)
    several = found.groupby("program")["under"].transform("nunique") > 1
    best = [fastest(own) for _, own in found[several & found["error"].notna()].groupby("program")]
    if best:
        error = pd.concat(best)
        print(
            f"\nthe fastest run under nsys against the fastest without: {len(error)} labels, median {100 * error.abs().median():.1f} %, "
            f"bias {100 * error.median():+.1f} %, {(error.abs() <= 0.1).sum()} within 10 %"
        )
    if plain:
        differ = pd.concat(plain)
        differ = differ[differ.index.str.contains(arguments.labels)]
        equal = differ[differ["speed"].between(1 / EQUAL, EQUAL)]
        print("\ntwo runs without nsys, median difference")
        for name, values in (
            ("as they are", differ["difference"]), ("at equal length of the record calls", differ["left"]),
            ("where these were within 10 %", equal["difference"]),
        ):  # fmt: skip
            print(
                f"  {name:36s} {100 * values.abs().median():5.1f} %  {(values.abs() <= 0.1).sum()} of {len(values)} within 10 %"
            )
    if arguments.table:
        print("\n" + alike(found))
    if arguments.json:
        arguments.json.write_text(json.dumps(found.to_dict("records"), indent=1, default=str))


if __name__ == "__main__":
    main()
