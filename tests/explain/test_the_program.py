"""What findings say depends on the program and on the kind of interval; what was guessed is warned
about by nobody."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.explain import words
from nsysalign.model import OTHERS_WORKED

from .drawing import analysis, diagnose, found, interval, piece, repeat

GAP = (("event", 4), ("host", 160), ("api_launch", 30), ("kernel", 25), ("event", 5))


def of_program(kernel: str, *drawn):
    """rule -> finding, in a trace of one kernel's name."""
    made = analysis(*drawn)
    ran = pd.DataFrame([("x", kernel, "kernel", 1, 1, 1, 0.1, 0)], columns=frames.KERNELS.names)
    result = diagnose(replace(made, kernels=frames.check(ran, frames.KERNELS)))
    return {f.rule: f for f in result.findings.itertuples(index=False)}


def test_torch_code_is_for_torch_programs():
    events = repeat(6, "x", *GAP)
    assert (
        "start.record()" in of_program("void at::native::add<4>(float*)", events)["host-gap"].advice
    )
    said = of_program("sm80_xmma_gemm", events)["host-gap"].advice
    assert "torch" not in said and "record" not in said and said.endswith(".")


@pytest.mark.parametrize(
    ("rule", "drawn"),
    [
        ("host-gap", (("host", 160), ("api_launch", 30), ("kernel", 25))),
        ("api-launch", (("api_launch", 160), ("kernel", 25))),
        ("many-tiny-kernels", [p for _ in range(12) for p in (("api_launch", 25), ("kernel", 2))]),
        ("whole-run", (("kernel", 25), ("api_launch", 160), ("kernel", 25))),
    ],
)
def test_programs_that_replay_graphs_are_not_told_to(rule, drawn):
    """An Inductor program in mode reduce-overhead: its launches are cudaGraphLaunch."""
    graphs = [
        piece("api_launch", p[1], "cudaGraphLaunch_v10000") if p[0] == "api_launch" else p
        for p in drawn
    ]
    for pieces, told in ((drawn, True), (graphs, False)):
        kind = "run" if rule == "whole-run" else "event"
        made = repeat(1 if kind == "run" else 6, "x", *pieces, kind=kind)
        for kernel in ("void at::native::add<4>(float*)", "sm80_xmma_gemm"):
            found = of_program(kernel, made)[rule]
            advice = f"{found.advice} {found.faster}"
            wanted = ("time a CUDA graph", "replay the", "reduce-overhead")
            assert any(text in advice for text in wanted) == told
            assert ("replayed here" in advice) != told


def test_ranges_have_no_start_event():
    ranges = repeat(6, "layer", *GAP, kind="nvtx")
    said = of_program("void at::native::add<4>(float*)", ranges)["host-gap"].advice
    assert "start.record" not in said and "_sleep" not in said


def test_results_are_read_back_without_item_outside_of_torch():
    read = [
        ("kernel", 50),
        piece("memcpy", 2, direction="D2H", memory="pageable", bytes=4),
        ("sync", 30),
        ("host", 40),
        ("kernel", 50),
    ]
    with_item = of_program("at::native::x", repeat(6, "x", *read))["sync-inside"]
    without = of_program("saxpy", repeat(6, "x", *read))["sync-inside"]
    assert ".item()" in with_item.title and ".item()" in with_item.advice
    assert ".item()" not in without.title and ".item()" not in without.advice


@pytest.mark.parametrize("rule", ["host-gap", "sync-inside"])
def test_the_gpu_is_not_idle_while_others_use_it(rule):
    drawn = (
        GAP if rule == "host-gap" else (("kernel", 50), ("sync", 300), ("host", 40), ("kernel", 50))
    )
    alone, beside = (
        found(repeat(6, "x", *drawn, flags=flags))["x", rule] for flags in ((), (OTHERS_WORKED,))
    )
    assert alone.severity == "warning" and "other streams worked during most" not in alone.title
    assert beside.severity == "info" and "other streams worked during most" in beside.title


def test_one_call_is_not_many_launches():
    """Twelve kernels: 300 us in one blocked launch, 1 us in each of the others."""
    launches = [p for n in range(12) for p in (("api_launch", 300 if n == 5 else 1), ("kernel", 2))]
    even = [p for _ in range(12) for p in (("api_launch", 25), ("kernel", 2))]
    assert ("x", "many-tiny-kernels") in found(repeat(6, "x", *even))
    one = found(repeat(6, "x", *launches))
    assert ("x", "many-tiny-kernels") not in one
    assert "cudaLaunchKernel" in one["x", "api-launch"].title


def test_a_spread_is_where_it_is():
    """Kernels are equal, the events' own time differs."""
    drawn = [
        interval("x", ("kernel", 50), ("event", us))
        for us in (10, 14, 20, 26, 30, 36, 40, 46, 50, 56)
    ]
    title = found(drawn)["x", "high-variance"].title
    assert "in event" in title and "in kernel" not in title


def test_a_timer_that_never_synchronises_times_no_synchronisation():
    loop = repeat(6, "x", ("queued", 100), ("api_launch", 30), kind="host", issued=50, outside=5)
    assert "synchronisation" not in found(loop)["x", "host-timer"].title.split("together")[0]


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("/work/train.py:12-14", "train.py:12-14"),
        ("step (/a/b/c.py:7)", "step (c.py:7)"),
        ("/model/attention/MatMul", "/model/attention/MatMul"),
        ("/layers.0/mlp/Gemm + /layers.0/mlp/Relu", "/layers.0/mlp/Gemm + /layers.0/mlp/Relu"),
    ],
)
def test_names_of_layers_are_no_paths(label, said):
    assert words.subject(label) == said
