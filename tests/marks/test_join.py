"""Marks on the trace's clock: the true place is known, the analysis sees dumps and kernel rows
only."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from nsysalign.addons.marks import dump
from nsysalign.addons.marks.inside import inside, join
from tests.marks.simulated import Gpu


def launched(gpu: Gpu, count: int = 40):
    for i in range(count):
        gpu.launch(100 + i, (1, 3, 9, 20)[i % 4], lambda b, w: [("load", 900 + 50 * b), ("", 40)])
    return gpu


def joined(gpu: Gpu, tmp_path, rows=None, device: int = 0):
    """A dump on the rows' clock: nothing lies outside its bar, and SM time adds up."""
    read = dump.read(gpu.write(tmp_path / f"{device}.nsam", device=device))
    marked = join(read, gpu.table() if rows is None else rows)
    table = marked.launches
    first = np.full(len(table), np.iinfo(np.int64).max)
    np.minimum.at(first, read.launch, read.heads["time"].astype(np.int64))
    times = np.array([gpu.trace_time(t + gpu.tick / 2) for t in first])
    placed = table["error_ns"] >= 0
    assert (np.abs(first + table["shift"] - times) <= table["error_ns"])[placed].all()
    parts = inside(marked).sm_time.groupby("kernel")["ns"].sum()
    assert (parts == gpu.sms * (table["end_ns"] - table["start_ns"])).all()
    return marked


@pytest.mark.parametrize("drift", [0.0, 3e-6, -21e-6])
def test_every_launch_is_joined_and_lies_within_its_bar(tmp_path, drift):
    table = joined(launched(Gpu(drift=drift)), tmp_path).launches
    assert (table["row"] == np.arange(40)).all()
    assert table["error_ns"].max() < 700  # ramp and tail of the kernels are 1.1 us together


def test_launches_without_a_row_keep_the_gpus_time(tmp_path):
    gpu = launched(Gpu())
    marked = joined(gpu, tmp_path, gpu.table().iloc[::2].reset_index(drop=True))
    alone = marked.launches[marked.launches["row"] < 0]
    assert len(alone) == 20 and (alone["error_ns"] == -1).all()
    assert (alone["start_ns"] > gpu.start).all()
    assert "20 of its 40 launches have no kernel row" in " ".join(marked.notes)


def test_what_was_launched_twice_under_one_grid_id_is_left_out(tmp_path):
    gpu = launched(Gpu(), 4)
    for _ in range(5):
        gpu.launch(7, 3, lambda b, w: [("load", 900)])
    marked = joined(gpu, tmp_path)
    assert marked.launches["grid_id"].tolist() == [100, 101, 102, 103]
    assert "1 kernel ran several times under one grid id" in " ".join(marked.dump.notes())


def test_a_dump_of_another_run_is_not_joined(tmp_path):
    gpu = Gpu()
    for i in range(4):
        gpu.launch(100 + i, 3, lambda b, w: [("load", 90_000)])
    rows = gpu.table().assign(end_ns=lambda t: t["start_ns"] + 5_000)
    marked = joined(gpu, tmp_path, rows)
    assert (marked.launches["row"] < 0).all()
    assert "is this dump of another run?" in " ".join(marked.notes)


def test_a_timer_that_ticks_in_microseconds_is_said_and_widens_the_bars(tmp_path):
    marked = joined(launched(Gpu(tick=1024)), tmp_path)
    assert "ticks in 1,024 ns" in " ".join(marked.notes)


def test_dependent_launches_that_overlap_are_joined(tmp_path):
    """Each launched so that its blocks come while the one before still works.  A row that nsys ends
    where the next one begins (nsys 2024.2) contradicts the marks: it is not joined."""
    gpu = Gpu(slots=4)
    for i in range(24):
        gpu.launch(100 + i, 6, lambda b, w: [("prologue", 2_000), ("work", 9_000 + 100 * b)])
        gpu.now = gpu.truth[-1]["end"] - 6_000
    rows = gpu.table()
    assert (rows["start_ns"].to_numpy()[1:] < rows["end_ns"].to_numpy()[:-1]).all()
    assert (joined(gpu, tmp_path).launches["row"] == np.arange(24)).all()
    rows.loc[:22, "end_ns"] = rows["start_ns"].to_numpy()[1:] - 1
    marked = joined(gpu, tmp_path, rows)
    assert (marked.launches["row"] >= 0).sum() == 1 and "23 launches" in marked.notes[0]


@pytest.mark.parametrize("lost", [0, 10])
def test_two_gpus_have_clocks_and_kernels_of_their_own(tmp_path, lost):
    """Both count their grids from the same number; their timers have nothing to do with each other.
    A row of one GPU that was lost is not found on the other, nor in another process."""
    other = Gpu(seed=2, start=1_650_000_000_000_000_000, drift=-9e-6)
    gpus = [launched(Gpu(), 20), launched(other, 20)]
    tables = [g.table().assign(device=d) for d, g in enumerate(gpus)]
    tables[1]["row"] += 100
    tables[0] = tables[0].iloc[lost:]
    tables.append(gpus[0].table().assign(pid=78, row=lambda t: t["row"] + 200))
    rows = pd.concat(tables).sort_values("start_ns", ignore_index=True)
    for device, gpu in enumerate(gpus):
        row = joined(gpu, tmp_path, rows, device).launches["row"]
        missing = lost if device == 0 else 0
        assert (row < 0).tolist() == [True] * missing + [False] * (20 - missing)
        assert (rows.set_index("row").loc[row[row >= 0], "device"] == device).all()


def test_a_gpu_that_the_trace_numbers_otherwise_is_found_if_it_is_the_only_one(tmp_path):
    gpu = launched(Gpu(), 8)
    table = joined(gpu, tmp_path, gpu.table().assign(device=3)).launches
    assert (table["row"] == np.arange(8)).all()
