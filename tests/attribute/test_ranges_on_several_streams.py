"""One NVTX range is one row over its streams.  Drawn by hand, in microseconds.

H    [step  s2-6(7)  s8-12(13)                s40-44(7)         70]
7                 #10----20                          #46---60
13                        #15----30
14   (another thread)          #25-----------36
"""

from __future__ import annotations

from cases.drawing import MAIN, OTHER, L, analysed, kernel
from simulator import check
from simulator.world import NON_BLOCKING, Range, World


def test_a_range_is_busy_when_any_of_its_streams_is(tmp_path):
    """From 10 to 60: 10-30 and 46-60 kernels of its streams; 30-40 the host, 40-44 its call, 44-46
    the way.  What another thread has running beside it is none of its work."""
    world = World(streams=dict.fromkeys((7, 13, 14), NON_BLOCKING), latency={"kernel": L * 1000})
    kernel(world, (2, 6), (10, 20))
    kernel(world, (8, 12), (15, 30), 13)
    kernel(world, (40, 44), (46, 60))
    kernel(world, (3, 5), (25, 36), 14, thread=OTHER)
    world.ranges += [Range("step", 0, 70, MAIN), Range("other", 1, 9, OTHER)]
    analysis = analysed(world, tmp_path, logs=False)
    assert analysis.labels["label"].tolist() == ["step", "other"]
    step, other = analysis.measured.itertuples()
    assert (step.end_stream, step.gpu_busy_ns, step.operations) == (-1, 34_000, 3)
    assert check.parts(analysis, step.interval) == {
        "kernel": 34_000, "host": 10_000, "api_launch": 4_000, "launch_latency": 2_000,
    }  # fmt: skip
    assert "other-streams-ran" in step.flags, "6 of 16 us in which it was idle"
    assert (other.end_stream, other.elapsed_ns) == (14, 11_000)
