"""Launches of newer kinds: dependent launches that overlap, clusters of blocks, two GPUs.  The
truth is known."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest

from nsysalign.addons.marks import dump
from nsysalign.addons.marks.join import join
from nsysalign.addons.marks.sm_time import inside
from tests.marks.simulated import Gpu
from tests.marks.test_join import errors, joined, launched


def chained(count: int = 24, early: int = 6_000, **gpu) -> Gpu:
    """Kernels of one stream, each launched so that its blocks come while the one before still
    works, as programmatic dependent launches do."""
    made = Gpu(slots=4, **gpu)
    for i in range(count):
        made.launch(100 + i, 6, lambda b, w: [("prologue", 2_000), ("work", 9_000 + 100 * b)])
        made.now = made.truth[-1]["end"] - early
    return made


def adds_up(marked) -> None:
    parts = inside(marked).sm_time.groupby("kernel")["ns"].sum()
    table = marked.launches
    whole = marked.dump.sms * (table["end_ns"] - table["start_ns"]).to_numpy()
    assert parts.to_numpy().tolist() == whole.tolist()


def test_dependent_launches_that_overlap_are_joined_and_add_up(tmp_path):
    gpu = chained()
    rows = gpu.table()
    assert (
        rows["start_ns"].to_numpy()[1:] < rows["end_ns"].to_numpy()[:-1]
    ).all()  # they do overlap
    marked = joined(gpu, tmp_path)
    assert (marked.launches["row"] == np.arange(24)).all() and not marked.notes
    assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()
    adds_up(marked)


def test_rows_that_end_where_a_dependent_launch_begins_are_joined_and_move_no_other_kernel(
    tmp_path,
):
    """As nsys writes them: no two kernels of a stream overlap, the earlier one ends 1 ns before the
    later one begins."""
    gpu = chained()
    rows = gpu.table()
    ends = rows["end_ns"].to_numpy().copy()
    cut = np.append(rows["start_ns"].to_numpy()[1:] <= ends[:-1], False)
    rows.loc[cut, "end_ns"] = rows["start_ns"].to_numpy()[1:][cut[:-1]] - 1
    marked = joined(gpu, tmp_path, rows)
    assert cut.sum() == 23 and (marked.launches["row"] >= 0).all()
    assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()
    # 400: the simulated time from a kernel's last mark to its end
    short = ends[cut] - marked.launches["end_ns"].to_numpy()[cut]
    assert (np.abs(short - 400) <= marked.launches["error_ns"].to_numpy()[cut] + 32).all()
    assert [n for n in marked.notes if "23 launches" in n and "dependent launch began" in n]
    adds_up(marked)


def test_blocks_of_a_cluster_come_together_and_are_blocks(tmp_path):
    """Pairs of blocks begin at one time on two SMs of their own; an odd SM has none: that is
    `none`, and the rest adds up."""
    gpu = Gpu(sms=5, slots=1)
    free = {0: 0, 1: 0}  # cluster's place -> when it is free
    begin = gpu.now
    made, blocks, last = [], {}, begin
    for cluster in range(6):
        place = min(free, key=free.get)
        at = begin + 700 + free[place]
        for rank in range(2):
            block, sm = 2 * cluster + rank, 2 * place + rank
            ends = [
                gpu._warp(5, block, w, 2, sm, at, [("load", 3_000 + 500 * rank)], made, None)
                for w in range(2)
            ]
            blocks.setdefault(sm, []).append((at, max(ends)))
        ended = max(b[-1][1] for b in (blocks[2 * place], blocks[2 * place + 1]))
        free[place] = ended - begin - 700 + 200
        last = max(last, ended)
    gpu.rows.append((gpu.trace_time(begin), gpu.trace_time(last + 400), 5, 12, 64, "clustered"))
    marked = joined(gpu, tmp_path)
    found = inside(marked)
    assert marked.launches["row"].tolist() == [0] and found.kernels["complete"].tolist() == [True]
    adds_up(marked)
    parts = found.sm_time.groupby("part")["ns"].sum()
    duration = int((marked.launches["end_ns"] - marked.launches["start_ns"])[0])
    assert parts["none"] == duration and parts["between"] == pytest.approx(sum(
        b[0] - a[1] for of_sm in blocks.values() for a, b in pairwise(of_sm)
    ), abs=12 * 64)  # fmt: skip


def two_gpus(tmp_path, lost: int = 0):
    """Both count their grids from the same number; their timers have nothing to do with each other.
    (gpus, dumps, rows)."""
    gpus = [Gpu(seed=1), Gpu(seed=2, start=1_650_000_000_000_000_000, drift=-9e-6)]
    dumps, tables = [], []
    for device, gpu in enumerate(gpus):
        launched(gpu, 20)
        dumps.append(dump.read(gpu.write(tmp_path / f"{device}.nsam", device=device)))
        rows = gpu.table().assign(device=device)
        tables.append(rows.assign(row=rows["row"] + 100 * device))
    tables[0] = tables[0].iloc[lost:]
    rows = pd.concat(tables, ignore_index=True).sort_values("start_ns", ignore_index=True)
    return gpus, dumps, rows


def test_two_gpus_have_clocks_and_kernels_of_their_own(tmp_path):
    gpus, dumps, rows = two_gpus(tmp_path)
    for device, (gpu, read) in enumerate(zip(gpus, dumps, strict=True)):
        marked = join(read, rows)
        assert (marked.launches["device"] == device).all()
        assert (rows.set_index("row").loc[marked.launches["row"], "device"] == device).all()
        assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()
        adds_up(marked)


def test_a_row_that_was_lost_is_not_found_on_the_other_gpu(tmp_path):
    """The first 10 kernels of GPU 0 have no row; GPU 1 has rows with their numbers."""
    gpus, dumps, rows = two_gpus(tmp_path, lost=10)
    marked = join(dumps[0], rows)
    table = marked.launches
    assert (table["row"] < 0).tolist() == [True] * 10 + [False] * 10
    assert (rows.set_index("row").loc[table["row"][table["row"] >= 0], "device"] == 0).all()
    assert (np.abs(errors(gpus[0], marked)) <= table["error_ns"]).all()


def test_a_gpu_that_the_trace_numbers_otherwise_is_found_if_it_is_the_only_one(tmp_path):
    gpu = launched(Gpu(), 8)
    marked = join(dump.read(gpu.write(tmp_path / "m.nsam", device=0)), gpu.table().assign(device=3))
    assert (marked.launches["row"] == np.arange(8)).all()
