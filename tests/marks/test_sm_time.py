"""The SM-time budget: it adds up exactly, and its parts are those of the simulated kernel."""

from __future__ import annotations

import numpy as np
import pytest

from nsysalign.addons.marks import dump, layout
from nsysalign.addons.marks.join import join
from nsysalign.addons.marks.layout import name_hash
from nsysalign.addons.marks.sm_time import inside
from tests.marks.simulated import Gpu, sm_time


def looked_into(gpu: Gpu, tmp_path, rows=None):
    marked = join(dump.read(gpu.write(tmp_path / "m.nsam")), gpu.table() if rows is None else rows)
    return marked, inside(marked)


def parts(found, kernel: int) -> dict[str, int]:
    table = found.sm_time[found.sm_time["kernel"] == kernel]
    return table.groupby("part")["ns"].sum().to_dict()


def nested(block, warp):
    return [
        ("load", 2_000 + 100 * warp),
        ("", 300),
        ("mma", [("inner", 500), ("", 1_000)]),
        ("!m", 0),
        ("store", 700 + 200 * (block % 3)),
    ]


@pytest.mark.parametrize("seed", range(4))
def test_it_adds_up_exactly_whatever_the_kernel(tmp_path, seed):
    gpu = Gpu(sms=5, slots=3, seed=seed, drift=15e-6, jumps=((500_000, 4_000),))
    random = np.random.default_rng(seed)
    for i in range(30):
        lengths = random.integers(30, 6_000, (40, 3))
        gpu.launch(
            i,
            int(random.integers(1, 40)),
            lambda b, w, n=lengths: [
                ("a", int(n[b % 40, w % 3])),
                ("", 77),
                ("b", [("c", 100), ("", 11)]),
            ],
            warps=3,
        )
    marked, found = looked_into(gpu, tmp_path)
    duration = marked.launches["end_ns"] - marked.launches["start_ns"]
    assert found.kernels["complete"].all()
    sums = found.sm_time.groupby("kernel")["ns"].sum()
    assert (sums == 5 * duration).all()
    assert (found.sm_time["ns"] > 0).all()


def test_ramp_tail_and_idle_sms_are_those_of_the_kernel(tmp_path):
    gpu = Gpu(sms=6, slots=1)
    gpu.launch(0, 4, nested)
    gpu.launch(1, 14, nested, ramp=3_000, tail=2_500)
    _, found = looked_into(gpu, tmp_path)
    for kernel in (0, 1):
        mine, true = parts(found, kernel), sm_time(gpu, kernel)
        for part in ("before", "after"):
            assert (
                abs(mine.get(part, 0) - true[part]) < 6 * 700
            )  # SMs x how well one launch or two are placed
        assert abs(mine.get("none", 0) - true["none"]) <= 4
    spans = found.sm_spans[found.sm_spans["kernel"] == 1]
    assert spans["blocks"].sum() == 14


def test_phases_share_an_sm_by_warps_and_the_innermost_range_counts(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(
        0, 1, lambda b, w: [("load", 3_200), ("mma", [("inner", 1_600), ("", 1_600)])], warps=1
    )
    _, found = looked_into(gpu, tmp_path)
    table = found.sm_time[found.sm_time["part"] == "phase"].set_index("phase")["ns"]
    assert abs(table[name_hash("load")] - 3_200) <= 64
    assert abs(table[name_hash("inner")] - 1_600) <= 64
    assert abs(table[name_hash("mma")] - 1_600) <= 64  # without what is inside "inner"
    phases = found.phases.set_index("phase")
    assert abs(phases.loc[name_hash("mma"), "total_ns"] - 3_200) <= 64  # a passage has it all
    assert phases["unclosed"].sum() == 0


def test_every_launch_has_the_time_of_its_own_phases(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    for number, ns in enumerate((3_200, 6_400, 1_600)):
        gpu.launch(number, 1, lambda b, w, n=ns: [("load", n)], warps=1)
    _, found = looked_into(gpu, tmp_path)
    table = found.sm_time[found.sm_time["part"] == "phase"]
    assert table["kernel"].tolist() == [0, 1, 2]
    assert found.phases[["kernel", "count"]].to_numpy().tolist() == [[0, 1], [1, 1], [2, 1]]
    assert (abs(table["ns"].to_numpy() - [3_200, 6_400, 1_600]) <= 64).all()


def test_an_sm_without_blocks_is_not_there_for_all_of_the_kernel(tmp_path):
    gpu = Gpu(sms=2, slots=1)
    gpu.launch(0, 1, lambda b, w: [("load", 3_200)], warps=1)
    marked, found = looked_into(gpu, tmp_path)
    duration = int((marked.launches["end_ns"] - marked.launches["start_ns"]).iloc[0])
    assert parts(found, 0)["none"] == duration


def test_marks_that_were_dropped_make_a_launch_incomplete_and_its_rest_unknown(tmp_path):
    gpu = Gpu(sms=4, slots=1)
    gpu.launch(0, 4, nested, room=4)
    gpu.launch(1, 4, nested)
    marked, found = looked_into(gpu, tmp_path)
    assert found.kernels["complete"].tolist() == [False, True]
    assert set(parts(found, 0)) <= {"phase", "unmarked", "unknown"}
    duration = marked.launches["end_ns"] - marked.launches["start_ns"]
    assert (found.sm_time.groupby("kernel")["ns"].sum() == 4 * duration).all()
    assert found.phases.loc[found.phases["kernel"] == 0, "unclosed"].sum() > 0


def stray(gpu: Gpu, of: int, time: int, number: int, lanes: int) -> None:
    head = gpu.chunks[of]["head"].copy()
    head["kind"], head["id"], head["time"], head["lanes"], head["clock"] = (
        layout.STRAY | layout.VERSION,
        number,
        time,
        lanes,
        gpu.cycles(time),
    )
    gpu.strays.append(head)


def test_lanes_that_part_within_a_tick_end_what_the_warp_began(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(0, 1, lambda b, w: [("", 640), ("outer", 10), ("", 6_400)], warps=1)
    gpu.names.add("m")
    chunk = gpu.chunks[0]
    chunk["marks"][1]["id"] = name_hash("m") << 2  # its first half ends the range, in the same tick
    stray(gpu, 0, int(chunk["marks"][0]["time"]), name_hash("outer") << 2 | layout.END, 0x0000FFFF)
    gpu.strays[0]["clock"] = int(chunk["marks"][0]["clock"]) + 20
    _, found = looked_into(gpu, tmp_path)
    assert found.phases[["count", "total_ns", "unclosed"]].to_numpy().tolist() == [[1, 0, 0]]


def test_a_warp_that_comes_apart_is_where_its_first_lane_is(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(0, 1, lambda b, w: [("", 6_400)], warps=1, ramp=640)
    begin = int(gpu.chunks[0]["head"]["time"])
    for lanes, at in (
        (0x0000FFFF, 640),
        (0xFFFF0000, 3_200),
    ):  # two halves, one after the other, in the same range
        stray(gpu, 0, begin + at, name_hash("half") << 2 | layout.BEGIN, lanes)
        stray(gpu, 0, begin + at + 1_280, name_hash("half") << 2 | layout.END, lanes)
    gpu.names.add("half")
    _, found = looked_into(gpu, tmp_path)
    assert found.phases[["count", "total_ns", "unclosed"]].to_numpy().tolist() == [[2, 2_560, 0]]
    assert abs(parts(found, 0)["phase"] - 1_280) <= 1  # of the first lane's half
    assert found.kernels["marks"].tolist() == [4]


def test_neighbouring_warps_that_come_apart_alike_are_told_apart(tmp_path):
    gpu = Gpu(sms=1, slots=1)
    gpu.launch(0, 1, lambda b, w: [("", 6_400)], warps=2, ramp=640)
    begin = int(gpu.chunks[0]["head"]["time"])
    for warp, name, first, last in ((0, "left", 640, 1_920), (1, "right", 1_280, 3_840)):
        stray(gpu, warp, begin + first, name_hash(name) << 2 | layout.BEGIN, 0xFFFF0000)
        stray(gpu, warp, begin + last, name_hash(name) << 2 | layout.END, 0xFFFF0000)
        gpu.names.add(name)
    _, found = looked_into(gpu, tmp_path)
    phases = found.phases.set_index("phase").loc[[name_hash("left"), name_hash("right")]]
    assert phases["total_ns"].tolist() == [1_280, 2_560] and phases["unclosed"].tolist() == [0, 0]


def test_ten_million_marks_take_seconds_and_a_gigabyte(tmp_path):
    import resource
    import time

    warps = 12_000  # a tenth of it here, where cores are shared
    chunks = np.zeros(warps * 2, dump._CHUNK)
    from tests.marks import simulated

    heads = chunks["head"]
    warp = np.repeat(np.arange(warps), 2)
    heads["kind"], heads["grid"], heads["lanes"], heads["threads"] = (
        layout.HEAD | layout.VERSION,
        5,
        0xFFFFFFFF,
        32,
    )
    heads["x"], heads["sm"] = warp, warp % 132
    start = 1_700_000_000_000_000_000
    begin = start + warp // 132 * 100_000
    later = np.tile([0, 1], warps)
    heads["previous"] = later
    heads["time"] = begin + later * 38_400
    steps = np.arange(60) * 640 + later[:, None] * 38_400
    chunks["marks"]["time"] = begin[:, None] + steps
    kind = np.tile([layout.BEGIN, layout.END], 30)
    chunks["marks"]["id"] = name_hash("step") << 2 | kind
    chunks["marks"]["id"][1::2, -2:] = [name_hash("end") << 2, layout.EXIT]
    fixed = bytearray(layout.TABLE)
    fixed[: layout.LINE] = layout.HEADER.pack(layout.MAGIC, layout.VERSION, 0, 0, 8_000, 400, 1024)
    path = tmp_path / "many.nsam"
    path.write_bytes(
        simulated.file(
            fixed,
            [],
            chunks,
            np.empty(0, dump.HEAD),
            {"pid": 77, "device": 0, "sms": 132, "names": ["step", "end"]},
        )
    )
    gpu = Gpu(sms=132)
    gpu.rows.append(
        (
            5_000_000_000,
            5_000_000_000 + int(chunks["marks"]["time"].max()) - start + 2_000,
            5,
            warps,
            32,
            "kernel",
        )
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    marked = join(dump.read(path), gpu.table())
    found = inside(marked)
    assert time.process_time() - began < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB
    assert found.kernels["complete"].all()
    assert found.phases.iloc[0]["count"] == warps * 59
