"""The worker's loop on the simulated device, where every truth is known."""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from types import SimpleNamespace

import pytest

from nsysalign.addons.measure.clocks import NAMES, Cuda
from nsysalign.addons.measure.worker import Worker
from tests.measure import simulated

from .programs import calls

SPEC = {
    "path": [], "batches": [None], "l2": ["warm"], "role": "time", "seconds": 8.0,
    "warm_up_s": 10.0,
}  # fmt: skip


def run(make, gpu=None, *, modes=NAMES, **more):
    facts = []
    spec = {**SPEC, "modes": list(modes), **more}
    Worker(spec, facts.append, gpu or simulated.Device(seed=3)).run(make)
    return facts


def of(facts, mode, l2="warm"):
    blocks = (f for f in facts if f["type"] == "block" and (f["mode"], f["l2"]) == (mode, l2))
    return [ns for block in blocks for ns in block["ns"]]


def known(facts, name):
    return next(f[name] for f in facts if name in f)


def test_every_mode_measures_what_it_says():
    """A kernel of 50 us: launch 4, latency 6, record 3, record to record 1.3, kernel after record
    1.3, replay 7 us."""
    facts = run(calls.default)
    assert facts[-1]["type"] == "done"
    times = {mode: median(of(facts, mode)) / 1e3 for mode in NAMES}
    assert times["device"] == pytest.approx(50 + 1.3 + 1.3, abs=0.04)
    assert times["steady"] == pytest.approx(50 + 1.3, abs=0.1)
    assert times["event"] == pytest.approx(50 + 4 + 3 + 1.3, abs=0.1)
    assert times["latency"] == pytest.approx(50 + 4 + 6 + 2, abs=0.1)
    assert times["graph"] == pytest.approx(50 + 7 + 3 + 1.3, abs=0.1)
    assert known(facts, "floor_ns") / 1e3 == pytest.approx(2.6, abs=0.032)


def test_a_launch_bound_call_is_gpu_time_only_behind_the_delay():
    """100 launches of 4 us hide 100 kernels of 1 us; behind the delay each takes 1 + 1.3."""
    facts = run(calls.launch_bound)
    assert median(of(facts, "device")) / 1e3 == pytest.approx(100 * 2.3 + 1.3, abs=0.5)
    assert median(of(facts, "steady")) / 1e3 == pytest.approx(400, rel=0.01)


def test_what_waits_inside_has_no_device_mode_and_no_graph():
    facts = run(calls.waits)
    refused = known(facts, "refused")
    assert set(refused) == {"device", "graph"} and "not capturable" in refused["graph"]
    assert refused["device"].startswith("the call waits for the GPU")
    assert of(facts, "latency") and of(facts, "steady") and facts[-1]["type"] == "done"


@pytest.mark.parametrize("call", [calls.no_work, calls.on_the_host, calls.elsewhere])
@pytest.mark.parametrize("modes", [["latency"], ["steady", "graph"]])
def test_a_call_that_leaves_nothing_on_the_gpu_is_an_error_in_every_mode(call, modes):
    fact = run(call, modes=modes)[-1]
    assert (fact["type"], fact["kind"]) == ("failed", "wrong")
    assert "nothing had been enqueued" in fact["message"]


def falling(gpu):
    """20 % faster over the first three seconds."""
    began = gpu.host
    return lambda: gpu.launch(1e6 * (1 + 0.2 * max(0, 1 - (gpu.host - began) / 3e9)))


def slow_first(gpu):
    times = iter([2e9])
    return lambda: gpu.launch(next(times, 1e6))


@pytest.mark.parametrize(
    ("make", "first_s", "warm_s", "settled"),
    [
        (lambda gpu: lambda: gpu.launch(1e6), 0.001, (0.5, 0.8), True),
        (slow_first, 2, (2.5, 2.8), True),
        (falling, 0.0012, (2.5, 4), True),
        (lambda gpu: lambda: gpu.launch(1e8), 0.1, (1.0, 1.5), True),
        (lambda gpu: lambda: gpu.launch(3e9), 3, (10, 13), True),  # too long to tell
    ],
)
def test_warm_is_when_a_call_no_longer_changes(make, first_s, warm_s, settled):
    facts = run(lambda: make(simulated.device()), modes=["event"])
    assert known(facts, "first_ns") / 1e9 == pytest.approx(first_s, rel=0.05)
    assert warm_s[0] <= known(facts, "warm_ns") / 1e9 <= warm_s[1]
    assert (known(facts, "unsettled") == "") == settled


def test_what_never_settles_is_said_after_ten_seconds():
    facts = run(calls.drifting, modes=["event"])
    assert 10 <= known(facts, "warm_ns") / 1e9 < 10.1
    assert known(facts, "unsettled").startswith("a call took ")


def test_negative_event_times_end_it():
    class Wrong(simulated.Device):
        def elapsed_ns(self, start, end):
            return -5.0

    last = run(lambda: lambda: simulated.device().launch(5_000), Wrong(), modes=["event"])[-1]
    assert "confidential computing" in last["message"]


def test_the_worker_imports_nothing_but_numpy_and_the_standard_library():
    """Not even torch, until there is a device."""
    text = (
        "import sys\nbefore = set(sys.modules)\nimport nsysalign.addons.measure.worker\n"
        "names = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(n for n in names if n not in sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['nsysalign', 'numpy']"


@pytest.mark.gpu
def test_on_a_gpu_the_device_mode_is_the_spin():
    import torch

    facts = run(lambda: lambda: torch.cuda._sleep(400_000), Cuda(), modes=["device", "event"])
    assert facts[-1]["type"] == "done" and median(of(facts, "device")) <= median(of(facts, "event"))


def test_a_neighbours_memory_is_not_the_searchs(monkeypatch):
    """Half the GPU is somebody else's: the limit is a share of the other half."""
    asked = []
    properties = SimpleNamespace(name="GPU", L2_cache_size=0)
    gpu = SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda: (40 << 30, 80 << 30),
        set_per_process_memory_fraction=asked.append,
        get_device_properties=lambda n: properties,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=gpu))
    Cuda()
    assert asked == [] and Cuda(0.9).total == 80 << 30 and asked == [0.45]
