"""A fix that fits the framework where launching is what takes the time: each drawing is of a program whose first screen
had none."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from nsysalign import frames
from nsysalign.answer import answer
from nsysalign.explain import advice
from nsysalign.model import Known
from nsysalign.split.groups import WorkOfIntervals

from .drawing import analysis, diagnose, interval, issued_table, piece, repeat


def told(drawn, issued, *, torch="2.11", kernels=()):
    """The answer of a drawing whose groups issued these operations: (group, kind, name, count).

    kernels: of the label x, by which the library is known
    """
    rows = [(group, kind, name, count, 0, -1) for group, kind, name, count in issued]
    for kernel in kernels:
        row = dict.fromkeys(frames.KERNELS.names, 0)
        row |= {"label": "x", "kind": "kernel", "kernel": kernel}
        drawn = replace(drawn, kernels=frames.check(pd.DataFrame([row]), frames.KERNELS))
    drawn = replace(drawn, issued=issued_table(rows), known=Known(torch=torch, python="3.12"))
    return answer(diagnose(drawn))


def codes(said):
    return [fix.code for fix in said.fixes if fix.purpose == "make it faster"]


#: One timing that launches 200 small kernels.
LAUNCHES = [p for _ in range(200) for p in (("host", 12), ("api_launch", 6), ("kernel", 3))]


@pytest.mark.parametrize(("count", "advised"), [(720, True), (6, False)])
def test_a_loop_that_starts_programs_of_xla(count, advised):
    """jax#20326: 4,562 compiled programs in 742 ms of a loop; the same as one program takes 573 us."""
    drawn = []
    for n in range(4):
        at_us = 200_000 * n
        drawn.append(interval("x", *LAUNCHES, kind="host", start=at_us, operations=200))
        drawn += [
            interval("XlaModule:#hlo_module=jit_f#", ("kernel", 1), kind="nvtx", start=at_us + k)
            for k in range(count // 4)
        ]
    names = [(0, "kernel", "loop_multiply_fusion", 200)]
    said = told(analysis(drawn), names, torch="", kernels=["wrapped_add"])
    assert any("jax.vmap" in code for code in codes(said)) == advised
    assert ("180 compiled programs" in said.fixes[0].sentence if said.fixes else False) == advised


def test_what_the_program_times_comes_before_pairs_of_a_library():
    """jax#20326: six rows of XLA's stood between the two ways that the program compares."""
    drawn = [
        *repeat(8, "x", *LAUNCHES, kind="host", operations=200),
        *repeat(8, "records of thread 9", ("host", 9_000), ("kernel", 3), method="inferred"),
        *repeat(8, "y", ("host", 30), ("kernel", 3), kind="host"),
    ]
    own_first = [row.label for row in answer(diagnose(analysis(drawn))).labels]
    assert own_first == ["x", "y", "records of thread 9"]
    alone = [row.label for row in answer(diagnose(analysis(drawn[8:16]))).labels]
    assert alone == ["records of thread 9"]


CELL = "void at::native::(anonymous namespace)::kernel::gru_cell_forward<float, float, int, 1>"


@pytest.mark.parametrize(
    ("kernel", "count", "code"),
    [
        (CELL, 50, "torch.nn.GRU(inputs, hidden)(x)  # x: (steps, batch, inputs)"),
        (CELL, 2, "reduce-overhead"),
        ("add", 50, "reduce-overhead"),
    ],
)
def test_a_loop_over_cells(kernel, count, code):
    """SEDLM#1: 250 steps of GRUCell launch 4,255 operations, nn.GRU 519."""
    issued = [(0, "kernel", kernel, count), (0, "kernel", "at::native::add", 200 - count)]
    said = told(analysis(repeat(12, "x", *LAUNCHES)), issued)
    assert any(code in text for text in codes(said))


@pytest.mark.parametrize(
    ("again", "prepares_us", "advised"),
    [
        (12, 900, True),
        (2, 900, False),  # a sweep: of most sizes it is not known how long they take later
        (12, 20, False),  # a first pass may be slow for many reasons
        (0, 900, False),
    ],
)
def test_the_first_timing_of_each_size(again, prepares_us, advised):
    """crossfit#18: 56 batches of new lengths take 44 ms each, later ones of the same lengths 2.5 ms."""
    set_up = piece("api", prepares_us, "cuKernelSetAttribute")
    more = {"kind": "host", "operations": 36, "issued": 1_000}
    drawn = repeat(12, "x", ("host", 40_000), set_up, ("sync", 900), **more)
    drawn += repeat(30, "x", ("host", 1_200), ("sync", 900), **more)
    sizes = [*range(1, 13), *(1 + k % 12 if k < again else 50 + k for k in range(30))]
    drawn = replace(
        analysis(drawn), of_runs=(WorkOfIntervals(np.array(sizes), np.zeros(len(sizes))),)
    )
    said = told(drawn, [])
    assert ("12 timings are the first of their size" in said.labels[0].sentence) == advised
    assert any("pad(x, n)" in code for code in codes(said)) == advised


def loops(first_us, later_us, epochs=4, *, end="run.py:41"):
    """Epochs of ten passes each: a label for each epoch, for its first pass, and for the later ones.

    first_us, later_us: how long a first and a later pass take
    """
    drawn, sites, at = [], [], 0
    for _ in range(epochs):
        whole_us = first_us + 9 * (later_us + 100)
        drawn.append(
            interval("run.py:37-49", ("host", whole_us), ("kernel", 5), kind="host", start=at)
        )
        drawn.append(
            interval("run.py:37-41", ("host", first_us - 5), ("kernel", 5), kind="host", start=at)
        )
        sites += [("run.py:37", "run.py:49"), ("run.py:37", "run.py:41")]
        for k in range(9):
            begin = at + first_us + k * (later_us + 100)
            drawn.append(
                interval(
                    "run.py:48-41", ("host", later_us - 5), ("kernel", 5), kind="host", start=begin
                )
            )
            sites.append(("run.py:48", end))
        at += whole_us + 1_000
    drawn = analysis(drawn)
    begins, ends = zip(*sites, strict=True)
    return replace(drawn, intervals=drawn.intervals.assign(site=begins, end_site=ends))


@pytest.mark.parametrize(
    ("first_us", "end", "told_of"),
    [(400_000, "run.py:41", True), (3_000, "run.py:41", False), (400_000, "run.py:44", False)],
)
def test_the_first_pass_of_each_loop(first_us, end, told_of):
    """lerobot#324: the first batch of each epoch waits 0.4 s for workers that are started anew, the others 0.5 ms."""
    drawn = loops(first_us, 500, end=end)
    said = told(drawn, [(0, "kernel", "at::native::add", 60)])
    (row,) = [row for row in said.labels if row.label == "run.py:37-49"]
    text = "48-41, which ends at the same line, takes 500 us"
    assert (text in row.sentence) == told_of
    assert any("persistent_workers" in code for code in codes(said)) == told_of


@pytest.mark.parametrize("kernel_us", [3, 9])
def test_the_same_lines_are_quicker_elsewhere(kernel_us):
    """gqcnn#45: a step of 1.1 ms takes 13.2 ms in most of 200 timings, and 1.4 ms in some, while a thread computes."""
    more = {"kind": "host", "operations": 40}
    quick = [p for _ in range(40) for p in (("host", 25), ("kernel", kernel_us))]
    slow = [p for _ in range(40) for p in (("host", 300), ("kernel", 3))]
    at, drawn = 0, repeat(20, "run.py:36 (run.py:25-30)", *quick, **more)
    begin = 1_000_000
    for k in range(30):
        at = begin + 13_000 * k
        step = [("host", 30), ("kernel", 3)] * 40 if k % 3 == 0 else slow
        drawn.append(interval("run.py:48 (run.py:25-30)", *step, start=at, **more))
    whole = interval("run.py:43-49", ("host", 13_000 * 30), kind="host", start=begin)
    drawn = analysis([*drawn, {**whole, "operations": 1_200}])
    issued = [(n, "kernel", "at::native::add", 40) for n in drawn.groups["group"]]
    said = told(drawn, issued)
    sentences = {row.label: row.sentence for row in said.labels}
    text = "48 › 25-30 (20 x 12.1 ms); line 36 does the same in 1.12 ms."
    assert (text in sentences["run.py:43-49"]) == (kernel_us == 3)
    assert ("Line 36" in sentences["run.py:48 (run.py:25-30)"]) == (kernel_us == 3)


def test_every_condition_and_value_of_the_table_is_known_and_used():
    rows = [*advice.MEASURING, *advice.FASTER]
    asked = {name.removeprefix("not ") for row in rows for name in row.when.split(", ")}
    assert asked == set(advice.CONDITIONS)
    filled = {name for row in rows for name in re.findall(r"{(\w+)}", row.sentence + row.code)}
    assert filled == set(advice.VALUES)
    fixes = [(row.sentence, row.code) for row in advice.FASTER]
    assert len(fixes) == len(set(fixes))


@pytest.mark.parametrize(
    ("kernel", "code"),
    [("cupy_add__float32", "cp.cuda.Device().synchronize()"), ("dgemm", ""), ("at::add", "torch.")],
)
def test_how_to_wait_is_said_in_the_words_of_the_library(kernel, code):
    """cupy#2226: torch.cuda.synchronize() for products of CuPy's, which run kernels of cuBLAS alone."""
    drawn = repeat(8, "x", ("host", 50), kind="host", issued=900, outside=900, operations=9)
    drawn = analysis(drawn)
    drawn = replace(drawn, groups=drawn.groups.assign(late=drawn.groups["count"]))
    (fix,) = told(drawn, [(0, "kernel", kernel, 9)], kernels=[kernel]).fixes
    assert fix.purpose == "measure it right" and fix.code.startswith(code)
    assert bool(fix.code) == bool(code)
