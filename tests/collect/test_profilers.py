"""A program that profiles itself under nsys is told so; its own work is not touched."""

from __future__ import annotations

import pytest

TORCH = """
from torch.autograd.profiler import profile
for _ in range(3):
    with profile(ACTIVITIES) as p:
        print(type(p) is profile)
"""


@pytest.mark.parametrize(
    ("activities", "nsys", "notes"),
    [
        ("'ProfilerActivity.CUDA'", True, 1),
        ("'ProfilerActivity.CPU'", True, 0),
        ("'ProfilerActivity.CUDA'", False, 0),
    ],
)
def test_torch_profiler(probed, activities, nsys, notes):
    env = {"NVTX_INJECTION64_PATH": "/nonexistent"} if nsys else {}
    run = probed(TORCH.replace("ACTIVITIES", activities), env=env)
    assert (run.status, run.out, run.err) == (0, "began\nTrue\n" * 3, "")
    texts = [line["text"] for line in run.lines("note")]
    assert len(texts) == notes
    if notes:
        assert texts[0].startswith("torch.profiler began at script.py:4 inside the program")
        assert "void" in texts[0] and "DG_USE_NVIDIA_TOOLS=1" in texts[0] and "r610" in texts[0]
