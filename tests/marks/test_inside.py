"""The SM-time budget: it adds up exactly, and its parts are those of the simulated kernel."""

from __future__ import annotations

import numpy as np
import pytest

from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.inside import inside, join
from nsysalign.addons.marks.layout import name_hash
from tests.marks.simulated import Gpu


def looked_into(gpu: Gpu, tmp_path):
    """(durations, what is inside): it adds up."""
    marked = join(dump.read(gpu.write(tmp_path / "m.nsam")), gpu.table())
    found, table = inside(marked), marked.launches
    duration = (table["end_ns"] - table["start_ns"]).to_numpy()
    assert (found.sm_time.groupby("kernel")["ns"].sum() == gpu.sms * duration).all()
    assert (found.sm_time["ns"] > 0).all()
    return duration, found


def parts(found, kernel: int = 0) -> dict[str, int]:
    table = found.sm_time[found.sm_time["kernel"] == kernel]
    return table.groupby("part")["ns"].sum().to_dict()


def phases(found) -> list[list[int]]:
    return found.phases[["count", "total_ns", "unclosed"]].to_numpy().tolist()


@pytest.mark.parametrize("seed", range(3))
def test_it_adds_up_exactly_whatever_the_kernel(tmp_path, seed):
    gpu = Gpu(sms=5, slots=3, seed=seed, drift=15e-6, jumps=((500_000, 4_000),))
    random = np.random.default_rng(seed)
    for i in range(30):
        n = random.integers(30, 6_000, (40, 3)).tolist()
        gpu.launch(
            i, int(random.integers(1, 40)),
            lambda b, w, n=n: [("a", n[b % 40][w % 3]), ("", 77), ("b", [("c", 100), ("", 11)])],
            warps=3,
        )  # fmt: skip
    _, found = looked_into(gpu, tmp_path)
    assert found.kernels["complete"].all() and not found.phases["unclosed"].any()


def uneven(block, warp):
    return [("load", 2_000 + 100 * warp), ("", 300), ("store", 700 + 200 * (block % 3))]


def test_ramp_tail_and_idle_sms_are_those_of_the_kernel(tmp_path):
    gpu = Gpu(sms=6, slots=1)
    gpu.launch(0, 4, uneven)
    gpu.launch(1, 14, uneven, ramp=3_000, tail=2_500)
    duration, found = looked_into(gpu, tmp_path)
    for kernel, truth in enumerate(gpu.truth):
        have, blocks = parts(found, kernel), truth["blocks"].values()
        before = sum(min(a for a, _ in on_sm) - truth["begin"] for on_sm in blocks)
        after = sum(truth["end"] - max(b for _, b in on_sm) for on_sm in blocks)
        # SMs x how well one launch or two are placed
        assert abs(have["before"] - before) < 6 * 700 and abs(have["after"] - after) < 6 * 700
        assert have.get("none", 0) == (6 - len(blocks)) * duration[kernel]
    assert found.sm_spans.groupby("kernel")["blocks"].sum().tolist() == [4, 14]


def test_phases_share_an_sm_by_warps_and_the_innermost_range_counts(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    for number, ns in enumerate((3_200, 6_400)):
        work = [("load", ns), ("mma", [("inner", 1_600), ("", 1_600)])]
        gpu.launch(number, 1, lambda b, w, work=work: work, warps=1)
    _, found = looked_into(gpu, tmp_path)
    table = found.sm_time[found.sm_time["part"] == "phase"].set_index(["kernel", "phase"])["ns"]
    passages = found.phases.set_index(["kernel", "phase"])["total_ns"]
    for kernel, load in enumerate((3_200, 6_400)):
        # "mma": without what is inside "inner", but a passage has it all
        for name, shared, whole in (("load", load, load), ("inner", 1_600, 1_600), ("mma", 1_600, 3_200)):  # fmt: skip
            assert abs(table[kernel, name_hash(name)] - shared) <= 64
            assert abs(passages[kernel, name_hash(name)] - whole) <= 64


def half(begin: int, first: int, last: int, name: str, lanes: int):
    """Marks of lanes that came apart from their warp, around a range."""
    number = name_hash(name) << 2
    return [(begin + first, number | 1, lanes), (begin + last, number | 2, lanes)]


def apart(warps: int = 1) -> Gpu:
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(0, 1, lambda b, w: [("", 6_400)], warps=warps, ramp=640)
    return gpu


def test_lanes_that_part_within_a_tick_end_what_the_warp_began(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(0, 1, lambda b, w: [("", 640), ("outer", 10), ("", 6_400)], warps=1)
    chunk = gpu.chunks[0]
    chunk["marks"][1]["id"] = name_hash("m") << 2  # its first half ends the range, in the same tick
    gpu.stray(0, int(chunk["marks"][0]["time"]), name_hash("outer") << 2 | layout.END, 0xFFFF)
    gpu.strays[0]["clock"] = int(chunk["marks"][0]["clock"]) + 20
    assert phases(looked_into(gpu, tmp_path)[1]) == [[1, 0, 0]]


def test_a_warp_that_comes_apart_is_where_its_first_lane_is(tmp_path):
    gpu = apart()
    begin = int(gpu.chunks[0]["head"]["time"])
    # two halves, one after the other, in the same range
    for mark in half(begin, 640, 1_920, "r", 0xFFFF) + half(begin, 3_200, 4_480, "r", 0xFFFF0000):
        gpu.stray(0, *mark)
    _, found = looked_into(gpu, tmp_path)
    assert phases(found) == [[1, 1_280, 0]] and found.kernels["marks"].tolist() == [4]
    assert abs(parts(found)["phase"] - 1_280) <= 1  # of the first lane's half
