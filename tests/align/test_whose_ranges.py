"""Ranges that the program did not name: the tool's own are no intervals, those of libraries are
marked."""

from __future__ import annotations

import pandas as pd
import pytest

from nsysalign.place import projected_ranges


@pytest.mark.parametrize(
    ("text", "library"),
    [
        ("cub::DeviceReduce::Sum", True),
        ("ncclAllReduce", True),
        ("cudnnConvolutionForward", True),
        ("cubes", False),
        ("forward", False),
        ("nsysalign:calibration", None),
    ],
)
def test_whose_ranges(text, library, monkeypatch):
    ranges = pd.DataFrame(
        {"text": [text], "row": 1, "process": 1, "thread": 1, "start_ns": 0, "end_ns": 100}
    )
    spans = pd.DataFrame({"range": [0], "lane": [0], "start": [10], "end": [20]})
    monkeypatch.setattr(projected_ranges, "_spans_of_ranges", lambda *_: spans)
    trace = type("Trace", (), {"ranges": ranges})
    windows, _ = projected_ranges.nvtx_windows(trace, None, pd.DataFrame({"stream": [7]}))
    assert windows["library"].tolist() == ([] if library is None else [library])
