"""The page and the terminal of a measurement: numbers that arrive, hostile names that stay text."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import browsing
import pandas as pd
import pytest
from rich.console import Console

from nsysalign.addons.measure import screen, session
from nsysalign.addons.measure.command import Options, Target
from nsysalign.addons.measure.result import Block, Measure, Run
from nsysalign.show.html import assemble
from nsysalign.store.objects import to_json

from .conftest import CALLS, SIMULATED

HOSTILE = "</script><b>\x1b[31mbench.py\u202e:make"
FACTORS = {"latency": 1.05, "event": 1.02, "device": 0.7, "steady": 1.0, "graph": 0.75}


def made(targets=("bench.py:make",), batches=(1, 8, 64), processes=3, noise=0.01):
    """A measurement from numbers: 1 ms and 0.1 ms per item; B takes 10 % more."""
    r = random.Random(0)
    runs, blocks = [], []
    for t in range(len(targets)):
        for b in batches:
            for _ in range(processes):
                n, memory = len(runs), (b or 1) << 28
                more = {"outputs": float(b or 1), "first_ns": 10**9, "peak_bytes": memory}
                runs.append(Run(n, t, b, "time", **more))
                for mode, factor in FACTORS.items():
                    level = (1e6 + 1e5 * (b or 1)) * factor * (1 + 0.1 * t)
                    for _ in range(8):
                        ns = tuple(round(level * (1 + noise * r.gauss(0, 1))) for _ in range(15))
                        blocks.append(Block(n, mode, "warm", n * 10**9, n * 10**9 + 1, 1980.0, ns))
    return Measure(
        targets=tuple(targets),
        options={"modes": list(FACTORS)},
        environment={"device": "GPU", "torch": "2", "cuda": "13"},
        runs=tuple(runs),
        blocks=tuple(blocks),
        search={"largest": 64, "failed_at": 128},
        notes=("a note",),
    )


def clocked(**gpu_ns):
    m = made(batches=(None,))
    profiled = Run(99, 0, None, "profile", gpu_ns={"warm": 740e3} | gpu_ns)
    return replace(m, runs=(*m.runs, profiled), options={**m.options, "clocks": True})


def said(measure, width=80):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        screen.render(measure, console, "out/measure.html")
    return capture.get()


@pytest.mark.parametrize(
    "measure",
    [
        made(),
        made(batches=tuple(range(1, 30))),
        clocked(),
        made(targets=("a.py:make", "b.py:make")),
        replace(made(batches=(None,)), notes=("word " * 90,) * 9),
    ],
)
def test_the_first_screen_is_a_sentence_and_fits(measure):
    lines = said(measure).splitlines()
    assert len(lines) <= 24 and all(len(line) <= 80 for line in lines)
    assert " ".join(" ".join(lines).split()).startswith(screen.headline(measure))
    assert lines[-1] == "report: out/measure.html"


def test_what_is_launch_bound_is_said_so_without_intervals_too():
    """A quick look at EfficientNet on an H200: 7.10 ms with calls queued, 0.94 ms of them on the
    GPU, one process."""
    levels = dict(zip(FACTORS, (7.23e6, 7.38e6, 0.944e6, 7.1e6, 0.72e6), strict=True))
    few = made(batches=(1,), processes=1)
    blocks = tuple(replace(b, ns=(round(levels[b.mode]),) * 8) for b in few.blocks)
    text = " ".join(said(replace(few, blocks=blocks)).split())
    assert "Launch-bound: the GPU needs 944 us of 7.10 ms per call: a graph takes 720 us." in text
    quiet = tuple(
        replace(b, ns=tuple(round(v * 0.14) for v in b.ns)) if b.mode == "steady" else b
        for b in blocks
    )
    assert "hide that" in said(replace(few, blocks=quiet))


def test_hostile_names_stay_text_everywhere():
    m = replace(made(targets=(HOSTILE,)), notes=(HOSTILE,))
    page = assemble(screen.PAGE, screen.payload(m))
    assert not any(text in page for text in ("</script><b>", "\x1b", "\u202e"))
    assert "\x1b" not in said(m)


@pytest.mark.parametrize(("processes", "words"), [(1, "1 process"), (2, "2 processes")])
def test_what_has_no_interval_says_why_and_never_guesses(processes, words):
    """Not "± ?", no number that JSON lacks; how processes differ is not known from one, and hardly
    from two that differ by half."""
    m = made(batches=(None,), processes=processes)
    m = replace(
        m, blocks=tuple(replace(b, ns=tuple(v * (b.run + 1) for v in b.ns)) for b in m.blocks)
    )
    head, text = screen.headline(m), said(m)
    assert f" ({words}: no interval), " in head
    assert f"{processes} proc." in text and "?" not in text
    data = json.loads(to_json(screen.payload(m)))
    assert processes == 2 or data["points"][0]["latency_high_ns"] is None
    assert data["points"][0]["cells"][2] == f"{processes} proc."


def test_the_headline_of_one_call_and_of_a_curve():
    assert screen.headline(made(batches=(None,))).startswith("One call takes 1.15 ms ± 0.")
    curve = screen.headline(made())
    assert curve.startswith("Batch 64: 8,6") and "per second ± 0." in curve
    assert "the best of those measured; one call takes 7.7" in curve
    assert curve.endswith("The largest that fits: 64 (128 does not).")
    many = screen.headline(made(batches=(64, 400, 512)))
    assert re.match(r"Batch 400: .*within 5 % of the best \(512: ", many)


@pytest.mark.parametrize(("processes", "cell"), [(3, "1."), (2, "≥1.")])
def test_a_percentile_with_too_few_samples_for_it_is_a_lower_bound(processes, cell):
    """Each process has 120 samples, and p99 needs 299."""
    assert screen.row(made(batches=(None,), processes=processes).points[0])[3].startswith(cell)


def test_b_against_a():
    m = made(targets=("a.py:make", "b.py:make"))
    assert "+10" in said(m) and "slower" in said(m)
    assert "one process each  unclear" in said(made(targets=m.targets, processes=1))
    assert {c[-1] for c in screen.payload(m)["changes"]} == {"slower"}
    device = replace(m, blocks=tuple(b for b in m.blocks if b.mode == "device"))
    for mode, each in (("latency", m), ("device", device)):
        head = screen.headline(each)
        assert head.startswith(f"B is slower than A at batch 1, 8, 64 ({mode} +")


@pytest.mark.parametrize(
    ("measure", "verdict"),
    [
        (made(batches=(None,)), "stable"),
        (made(batches=(None,), noise=0.9), "noisy"),
        (made(batches=(None,), processes=1), "no_interval"),
        (made(targets=("a.py:make", "b.py:make")), "slower"),
    ],
)
def test_the_verdict_of_brief_says_how_certain_it_is(measure, verdict):
    assert screen.verdict(measure) == verdict


def test_every_way_of_timing_says_what_it_is():
    m = clocked()
    rows = screen.way_rows(m, m.points[0])
    words = "its kernels and copies alone, by nsys"
    assert rows[-1] == ["sum", "740.00", "-", "-", "-", words]
    assert rows[0][0] == "latency" and "what one caller waits" in rows[0][-1]
    assert "cold L2" in said(m) and "cold L2" not in said(made())
    wrong = clocked(warm=900e3)
    words = "warm L2: the kernels that nsys saw take 900 us, longer than the call"
    assert screen.reading(wrong, wrong.points[0])[-1].startswith(words)


def test_what_nsys_says_is_the_median_of_the_work_in_its_region():
    """Three intervals of a region, of 80, 90 and 100 ns of kernels and copies; waiting is none."""
    rows = [
        (n, cause, ns)
        for n in range(3)
        for cause, ns in (("kernel", 40), ("host", 20), ("memcpy", 40 + 10 * n))
    ]
    analysis = SimpleNamespace(
        intervals=pd.DataFrame({"interval": range(3), "label": ["warm"] * 3}),
        parts=pd.DataFrame(rows, columns=["interval", "cause", "ns"]),
    )
    assert session.gpu_time(analysis) == {"warm": 90.0}


@pytest.mark.nsys
def test_a_worker_that_fails_under_nsys_is_the_profiles_problem(tmp_path):
    options = Options(
        (Target("fails", f"{CALLS}:fails_in_warm_up"),), clocks=True, backend=SIMULATED
    )
    job = session.Job(0, 0, (None,), "profile", ("device",), 1.0, 60.0)
    found = session.profile(job, options, tmp_path / "run", tmp_path)
    assert found[0] == {} and "under nsys the worker failed: ValueError" in found[1]


@pytest.mark.browser
def test_the_page_draws_and_stays_in_the_width_of_a_phone(tmp_path):
    page = tmp_path / "measure.html"
    m = made(targets=("a.py:make", HOSTILE))
    screen.write_page(replace(m, notes=(HOSTILE,), options={**m.options, "clocks": True}), page)
    driver = browsing.start()
    try:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.get(page.as_uri())
        drawn = "document.querySelectorAll('#rate-plot circle').length === 6"
        browsing.until(driver, drawn, "the curve of both targets")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
        rows = driver.execute_script(
            "return [...document.querySelectorAll('#points tbody tr')].map(r => r.cells.length)"
        )
        assert rows == [11] * 6
        driver.execute_script(
            "const s = document.getElementById('mode-batch'); s.selectedIndex = 4; "
            "s.dispatchEvent(new Event('change'))"
        )
        assert len(driver.find_elements("css selector", "#mode-table tbody tr")) == 5
        assert not driver.find_elements("css selector", "main b b, header b")
        browsing.quiet(driver)
    finally:
        driver.quit()
