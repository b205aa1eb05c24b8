"""Kernels that leave at least half of the GPU without work.  Everything in microseconds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.explain.runs.blocks import small_launches
from nsysalign.model import KIND, Gpu
from nsysalign.trace.info import gpus as gpus_of
from nsysalign.trace.sqlite import opened

NAMES = {0: "add", 1: "mul", 2: "ncclDevKernel_AllReduce", 3: "spin_kernel"}


def ran(*rows: tuple) -> SimpleNamespace:
    """A trace of these: (start, end, blocks, threads, name), no blocks for a CUDA graph."""
    columns = ["start_ns", "end_ns", "blocks", "threads", "name_id"]
    table = pd.DataFrame(rows, columns=columns, dtype="int64")
    kind = np.where(table["blocks"] < 0, KIND["graph"], KIND["kernel"])
    shape = np.ones((len(table), 6), np.int64)
    shape[:, 0], shape[:, 3] = table["blocks"], table["threads"]
    table = table.assign(kind=kind, process=7 << 24, device=0, row=np.arange(len(table))[::-1])
    table = table.assign(context=1, stream=7, call=-1)
    shapes, streams = (lambda rows: shape[::-1][rows]), frames.empty(frames.STREAMS)
    return SimpleNamespace(operations=table, names=NAMES, shapes=shapes, streams=streams)


def lacking(lack: str, rows) -> list[tuple[int, int]]:
    known = small_launches(ran(*rows), {0: Gpu(10, 0, 0)})
    return [(few.ns, few.unused_ns) for few in known if few.lack == lack]


@pytest.mark.parametrize(("rows", "few", "unused"), [
    ([(0, 10, 1, 32, 0)], 10, 9),
    ([(0, 10, 5, 32, 0)], 10, 5),                       # half of it
    ([(0, 10, 6, 32, 0)], 0, 0),
    ([(0, 10, 0, 0, 0)], 0, 0),                         # the trace does not say
    ([(0, 10, 1, 32, 2), (20, 30, 1, 1, 3)], 0, 0),     # a collective; torch.cuda._sleep
    ([(0, 10, 2, 32, 0), (4, 8, 4, 32, 0)], 6, 4),      # beside each other: 2, 6 and 2 blocks
    ([(0, 10, 2, 32, 0), (4, 8, -1, 0, 0)], 6, 4),      # beside a graph
])  # fmt: skip
def test_time_with_too_few_blocks(rows, few, unused):
    found = lacking("few_blocks", rows)
    assert found == ([(few, unused)] if few else [])


@pytest.mark.parametrize(("rows", "few", "unused"), [
    ([(0, 320, 6, 1, 0)], 320, 310),                     # one thread of 32
    ([(0, 320, 6, 31, 0)], 320, 10),
    ([(0, 320, 6, 32, 0)], 0, 0),
    ([(0, 320, 5, 1, 0)], 0, 0),                         # few blocks: said by another rule
    ([(0, 320, 6, 1, 2)], 0, 0),                         # a collective
    ([(0, 320, 6, 1, 0), (32, 64, 6, 64, 1)], 288, 279), # beside a wider one
    ([(0, 320, 6, 1, 0), (32, 64, -1, 0, 0)], 288, 279), # beside a graph
    ([(0, 320, 6, 1, 0), (0, 320, 2, 16, 1)], 320, 272), # 38 of 256 threads
])  # fmt: skip
def test_time_with_blocks_of_less_than_a_warp(rows, few, unused):
    found = lacking("few_threads", rows)
    assert found == ([(few, unused)] if few else [])


@pytest.mark.parametrize(("gpus", "wanted"), [
    ([(0, 132), (1, 24)], [132, 24]),
    ([(0, 132), (0, 132)], [132, 132]),  # some exports say 0 of every GPU
    ([(0, 132), (0, 24)], [0, 0]),
    ([(0, None), (1, -5)], [0, 0]),
])  # fmt: skip
def test_multiprocessors_of_each_device(tmp_path, gpus, wanted):
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as db:
        db.execute("create table TARGET_INFO_GPU (cuDevice, smCount)")
        db.executemany("insert into TARGET_INFO_GPU values (?, ?)", gpus)
        db.commit()
    with opened(tmp_path / "t.sqlite") as source:
        sizes = gpus_of(source)
    assert [sizes[n].multiprocessors for n in (0, 1)] == wanted
