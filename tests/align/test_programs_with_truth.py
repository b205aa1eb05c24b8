"""C++ programs under plain nsys, without a log, against what cudaEventElapsedTime told them."""

from __future__ import annotations

import lzma

import numpy as np
import pytest
from recordings import DATA

from nsysalign.place.align import align
from nsysalign.trace.read import read_trace


@pytest.mark.parametrize(("name", "bar_ns"), [
    ("StreamPriorities", 30_000),       # starts and ends created apart, on two streams
    ("asyncAPI", 30_000),               # a start that nothing waits for
    ("cudaGraphsPerfScaling", 30_000),  # of three events the last two
    ("simpleMultiCopy", 30_000),        # events of the legacy default stream wait for blocking streams
    ("simpleStreams", 30_000),
    ("cdpAdvancedQuicksort", 3_000_000),  # kernels launched by kernels, which have no rows
])  # fmt: skip
def test_every_pair_is_found_and_lies_within_its_bar(name, bar_ns, tmp_path):
    path = tmp_path / "trace.sqlite"
    path.write_bytes(lzma.decompress((DATA / f"cpp/{name}.sqlite.xz").read_bytes()))
    lines = (DATA / f"cpp/{name}.truth.tsv").read_text().splitlines()
    truth = [float(line.split()[1]) * 1e6 for line in lines if line.startswith("0")]
    aligned = align(read_trace(path), None)
    unseen = [note for note in aligned.notes if "work that the GPU launches itself" in note]
    assert len(unseen) == name.startswith("cdp"), aligned.notes
    windows = aligned.windows
    windows = windows[windows["kind"] == "event"].sort_values("start_ns")
    assert len(windows) == len(truth)
    off = np.abs(windows["elapsed_ns"].to_numpy() - truth)
    assert (off <= 2 * windows["error_ns"].to_numpy() + 200).all()
    assert windows["error_ns"].max() <= bar_ns
