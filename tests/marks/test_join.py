"""Marks on the trace's clock: the true place is known, the analysis sees dumps and kernel rows
only."""

from __future__ import annotations

import numpy as np
import pytest

from nsysalign.addons.marks import dump
from nsysalign.addons.marks.join import join
from tests.marks.simulated import Gpu


def launched(gpu: Gpu, count: int = 40, **options):
    for i in range(count):
        gpu.launch(
            100 + i,
            (1, 3, 9, 20)[i % 4],
            lambda b, w: [("load", 900 + 50 * b), ("", 40)],
            **options,
        )
    return gpu


def joined(gpu: Gpu, tmp_path, rows=None):
    return join(dump.read(gpu.write(tmp_path / "m.nsam")), gpu.table() if rows is None else rows)


def errors(gpu: Gpu, marked) -> np.ndarray:
    first = marked.launches["first"].to_numpy()
    return first + marked.shift - np.array([gpu.trace_time(t + gpu.tick / 2) for t in first])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drift", [0.0, 3e-6, -21e-6])
def test_every_launch_is_joined_and_lies_within_its_bar(tmp_path, seed, drift):
    gpu = launched(Gpu(seed=seed, drift=drift))
    marked = joined(gpu, tmp_path)
    assert (marked.launches["row"] == np.arange(40)).all()
    error = marked.launches["error_ns"].to_numpy()
    assert (np.abs(errors(gpu, marked)) <= error).all()
    assert error.max() < 700  # ramp and tail of the simulated kernels are 1.1 us together


def test_a_correction_of_the_clock_begins_a_new_piece(tmp_path):
    gpu = launched(Gpu(jumps=((400_000, 5_000), (900_000, -3_000))), 80)
    marked = joined(gpu, tmp_path)
    assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()
    assert (
        marked.launches["error_ns"] < 700
    ).sum() >= 78  # all but those in which it was corrected


def test_launches_without_a_row_are_placed_by_the_others(tmp_path):
    gpu = launched(Gpu())
    rows = gpu.table()
    kept = rows[rows["row"] % 2 == 0].reset_index(drop=True)
    marked = joined(gpu, tmp_path, kept)
    alone = marked.launches["row"] < 0
    assert alone.sum() == 20
    assert (np.abs(errors(gpu, marked))[alone] <= marked.launches["error_ns"][alone]).all()


def test_replays_of_one_grid_id_are_told_apart_by_their_order(tmp_path):
    gpu = Gpu()
    for _ in range(5):
        gpu.launch(7, 3, lambda b, w: [("load", 900)])
    marked = joined(gpu, tmp_path)
    assert marked.launches["replay"].tolist() == [0, 1, 2, 3, 4]
    assert (marked.launches["row"] == np.arange(5)).all()
    hidden = joined(
        gpu, tmp_path, gpu.table().iloc[:3]
    )  # two of them have no row: which is which cannot be told
    assert (hidden.launches["row"] < 0).all()
    assert "none of its 5 launches has a kernel row" in " ".join(hidden.notes)


def test_a_dump_of_another_run_is_not_joined(tmp_path):
    gpu = Gpu()
    for i in range(4):
        gpu.launch(100 + i, 3, lambda b, w: [("load", 90_000)])
    rows = gpu.table()
    rows["end_ns"] = rows["start_ns"] + 5_000
    marked = joined(gpu, tmp_path, rows)
    assert (marked.launches["row"] < 0).all()
    assert "is this dump of another run?" in " ".join(marked.notes)


def test_a_timer_that_ticks_in_microseconds_is_said_and_widens_the_bars(tmp_path):
    gpu = launched(Gpu(tick=1024), 40)
    marked = joined(gpu, tmp_path)
    assert marked.tick_ns == 1024
    assert "ticks in 1,024 ns" in " ".join(marked.notes)
    assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()


def test_another_process_and_another_device_are_not_mixed_up(tmp_path):
    gpu = launched(Gpu(), 8)
    mine = gpu.table()
    other = mine.assign(
        device=1,
        start_ns=mine["start_ns"] + 77_000_000,
        end_ns=mine["end_ns"] + 77_000_000,
        row=mine["row"] + 100,
    )
    stranger = mine.assign(pid=78, row=mine["row"] + 200)
    import pandas as pd

    rows = pd.concat([other, stranger, mine], ignore_index=True).sort_values(
        "start_ns", ignore_index=True
    )
    assert (joined(gpu, tmp_path, rows).launches["row"] == np.arange(8)).all()


def test_order_of_the_records_in_a_dump_changes_nothing(tmp_path):
    tables = []
    for _ in range(2):  # the same GPU, its chunks written in another order
        gpu = launched(Gpu(seed=3), 12)
        gpu.random = np.random.default_rng(len(tables))
        tables.append(joined(gpu, tmp_path).launches)
    assert tables[0].equals(tables[1])


def test_a_second_of_kernel_and_a_single_launch(tmp_path):
    gpu = Gpu(drift=20e-6)
    gpu.launch(1, 1, lambda b, w: [("long", 5_000_000_000)])  # longer than 32 bits of ns
    marked = joined(gpu, tmp_path)
    assert (np.abs(errors(gpu, marked)) <= marked.launches["error_ns"]).all()
    end = marked.relative(np.zeros(1, int), marked.launches["last"].to_numpy())
    assert (
        0
        < end[0]
        <= (marked.launches["end_ns"] - marked.launches["start_ns"])[0]
        + marked.launches["error_ns"][0]
    )
