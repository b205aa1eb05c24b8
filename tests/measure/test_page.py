"""The page and the terminal of a measurement: numbers that arrive, hostile names that stay text."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import browsing
import pytest
from rich.console import Console

from nsysalign.addons.measure import page as measure_html
from nsysalign.addons.measure import terminal as measure_terminal
from nsysalign.addons.measure.result import Block, Measure, Run
from nsysalign.show.html import assemble
from nsysalign.store.objects import to_json

HOSTILE = "</script><b>\x1b[31mbench.py\u202e:make"
FACTORS = {"latency": 1.05, "event": 1.02, "device": 0.7, "steady": 1.0, "graph": 0.75}


def made(targets=("bench.py:make",), batches=(1, 8, 64), processes=3, noise=0.01):
    """A measurement from numbers: 1 ms and 0.1 ms per item; B takes 10 % more."""
    r = random.Random(0)
    runs, blocks = [], []
    for t in range(len(targets)):
        for b in batches:
            for _ in range(processes):
                n, memory = len(runs), {"peak_reserved": (b or 1) << 28}
                run = Run(
                    n, t, b, "time", 3.0, outputs=float(b or 1), first_ns=10**9, memory=memory
                )
                runs.append(run)
                for mode, factor in FACTORS.items():
                    level = (1e6 + 1e5 * (b or 1)) * factor * (1 + 0.1 * t)
                    values = tuple(round(level * (1 + noise * r.gauss(0, 1))) for _ in range(120))
                    blocks.append(Block(n, mode, "warm", n * 10**9, n * 10**9 + 1, 1980.0, values))
    return Measure(
        targets=tuple(targets),
        options={"modes": list(FACTORS)},
        environment={"device": "GPU", "torch": "2", "cuda": "13"},
        runs=tuple(runs),
        blocks=tuple(blocks),
        search={"largest": 64, "failed_at": 128},
        notes=("a note",),
    )


def said(measure, width=80):
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        measure_terminal.render(measure, console)
    return capture.get()


def test_the_terminal_fits_eighty_columns_and_says_what_matters():
    text = said(made())
    table = [line for line in text.splitlines() if re.match(r" *(batch|1|8|64)  ", line)]
    assert len(table) == 4 and all(len(line) <= 80 for line in table)
    assert "best; largest that fits (128 does not)" in " ".join(text.split())
    assert "launch-bound: the GPU needs 770 us of 1.10 ms per call: a graph takes 825 us" in text
    assert "! a note" in text


@pytest.mark.parametrize("mode", ["device", "event", "graph"])
def test_one_mode_alone_is_shown(mode):
    m = replace(made(), blocks=tuple(b for b in made().blocks if b.mode == mode))
    assert f"batch 1: {mode}" in said(m)


def test_what_is_launch_bound_is_said_so_without_intervals_too():
    """A quick look at EfficientNet on an H200: 7.10 ms with calls queued, 0.94 ms of them on the
    GPU, one process."""
    levels = dict(zip(FACTORS, (7.23e6, 7.38e6, 0.944e6, 7.1e6, 0.72e6), strict=True))
    few = made(batches=(1,), processes=1)
    blocks = tuple(
        replace(b, ns=tuple(round(levels[b.mode] * (1 + 0.001 * k)) for k in range(8)))
        for b in few.blocks
    )
    text = said(replace(few, blocks=blocks))
    assert "launch-bound: the GPU needs 947 us of 7.12 ms per call: a graph takes 723 us" in text
    assert "hide that" not in text
    quiet = tuple(
        replace(b, ns=tuple(round(v * 0.14) for v in b.ns)) if b.mode == "steady" else b
        for b in blocks
    )
    assert "hide that" in said(replace(few, blocks=quiet))


def test_hostile_names_stay_text_everywhere():
    m = replace(made(targets=(HOSTILE,)), notes=(HOSTILE,))
    page = assemble(measure_html.PAGE, measure_html.payload(m))
    assert not any(text in page for text in ("</script><b>", "\x1b", "\u202e"))
    assert "\x1b" not in said(m)


def test_what_has_no_interval_says_why_and_never_guesses():
    """Not "± ?", no interval wider than its number, no number that JSON lacks; how processes differ
    is not known from one, however well its repetitions agree."""
    two = made(batches=(None,), processes=2)
    slow = (replace(b, ns=tuple(2 * v for v in b.ns)) if b.run else b for b in two.blocks)
    two, one = replace(two, blocks=tuple(slow)), made(batches=(None,), processes=1)
    assert two.points[0].latency_share > 0.25
    for m, count, cell in ((two, "2 processes", "2 proc."), (one, "1 process", "1 proc.")):
        head, text = measure_terminal.headline(m), said(m)
        assert head.startswith("One call takes 1.") and f" ({count}: no interval), " in head
        assert cell in text and "?" not in text and "±  " in text
    few = replace(one, blocks=tuple(replace(b, ns=b.ns[:3]) for b in one.blocks))
    data = json.loads(to_json(measure_html.payload(few)))
    assert data["points"][0]["latency_high_ns"] is None and data["modes"][0]["high_ns"] is None
    assert data["points"][0]["cells"][2] == "1 proc."


def test_the_headline_of_one_call_and_of_a_curve():
    headline = measure_terminal.headline
    assert headline(made(batches=(None,))).startswith("One call takes 1.15 ms ± 0.")
    curve = headline(made())
    assert curve.startswith("Batch 64: 8,6") and "per second ± 0." in curve
    assert "the best of those measured; one call takes 7.7" in curve
    assert curve.endswith("The largest that fits: 64.")
    many = made(batches=(64, 400, 512))
    assert re.match(r"Batch 400: .*within 5 % of the best \(512: ", headline(many))


@pytest.mark.parametrize(("processes", "cell"), [(3, "1."), (2, "≥1.")])
def test_a_percentile_with_too_few_samples_for_it_is_a_lower_bound(processes, cell):
    """Each process has 120 samples, and p99 needs 299."""
    m = made(batches=(None,), processes=processes)
    assert measure_terminal.row(m.points[0])[3].startswith(cell)


def test_b_against_a():
    m = made(targets=("a.py:make", "b.py:make"))
    assert "+10" in said(m) and "slower" in said(m)
    assert "one process each  unclear" in said(made(targets=m.targets, processes=1))
    assert {c[-1] for c in measure_html.payload(m)["changes"]} == {"slower"}
    for mode, blocks in (
        ("latency", m.blocks),
        ("device", tuple(b for b in m.blocks if b.mode == "device")),
    ):
        head = measure_terminal.headline(replace(m, blocks=blocks))
        assert head.startswith(f"B is slower than A at batch 1, 8, 64 ({mode} +")


@pytest.mark.browser
@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_draws_and_stays_in_its_width(tmp_path, width):
    page = tmp_path / "measure.html"
    m = made(targets=("a.py:make", HOSTILE))
    measure_html.write(replace(m, notes=(HOSTILE,), options={**m.options, "clocks": True}), page)
    driver = browsing.start()
    try:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        driver.get(page.as_uri())
        drawn = "document.querySelectorAll('#rate-plot circle').length === 6"
        browsing.until(driver, drawn, "the curve of both targets")
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        rows = driver.execute_script(
            "return [...document.querySelectorAll('#points tbody tr')].map(r => r.cells.length)"
        )
        assert rows == [11] * 6
        driver.execute_script(
            "const s = document.getElementById('mode-batch'); s.selectedIndex = 4; "
            "s.dispatchEvent(new Event('change'))"
        )
        for table, rows in (("mode-table", 5), ("ladder-table", 4)):  # steady is no clock
            assert len(driver.find_elements("css selector", f"#{table} tbody tr")) == rows
        assert not driver.find_elements("css selector", "main b b, header b")
        browsing.quiet(driver)
    finally:
        driver.quit()
