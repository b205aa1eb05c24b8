"""The page and the terminal of a measurement: numbers that arrive, hostile names that stay text."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path
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


def scaled(measure, **factors):
    """The same with samples times these, by mode or, as `run`, by number of the process and 1."""
    return replace(
        measure,
        blocks=tuple(
            replace(
                b,
                ns=tuple(
                    round(v * factors.get(b.mode, 1) * (b.run + 1 if "run" in factors else 1))
                    for v in b.ns
                ),
            )
            for b in measure.blocks
        ),
    )


def clocked():
    m = made(batches=(None,))
    profiled = Run(99, 0, None, "profile", gpu_ns={"warm": 740e3})
    return replace(m, runs=(*m.runs, profiled), options={**m.options, "clocks": True})


def of_mode(measure, *modes):
    return replace(measure, blocks=tuple(b for b in measure.blocks if b.mode in modes))


CALL, PAIR = made(batches=(None,)), ("a.py:make", "b.py:make")
#: Each with its verdict in `--brief`.
SCREENS = {
    "a call": (CALL, "stable"),
    "a call, noisy": (made(batches=(None,), noise=0.9), "noisy"),
    "a call in one process": (made(batches=(None,), processes=1), "no_interval"),
    "a call in two processes that differ by half": (
        scaled(made(batches=(None,), processes=2), run=1), "noisy",
    ),
    "launches limit it": (scaled(made(batches=(1,)), device=0.2, graph=0.2), "stable"),
    "launches come late on an idle GPU": (scaled(CALL, event=2, steady=0.71), "stable"),
    "one mode": (of_mode(CALL, "graph"), "stable"),
    "a search": (made(), "stable"),
    "a search whose advice is not the best": (made(batches=(64, 400, 512)), "stable"),
    "thirty batches": (made(batches=tuple(range(1, 30))), "stable"),
    "every clock": (clocked(), "stable"),
    "two functions": (made(targets=PAIR), "slower"),
    "two functions, one process each": (made(targets=PAIR, processes=1), "unclear"),
    "two functions by one mode": (of_mode(made(targets=PAIR), "device"), "slower"),
    "notes": (replace(CALL, notes=("word " * 90,) * 9), "stable"),
    "a hostile name": (replace(CALL, targets=(HOSTILE,), notes=(HOSTILE,)), "stable"),
}  # fmt: skip
KEPT = Path(__file__).with_name("screens.txt")


def screens(width: int = 80) -> dict[str, str]:
    out = {}
    for name, (measure, _) in SCREENS.items():
        console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
        screen.render(measure, console, "out/measure.html")
        lines = console.file.getvalue().splitlines()
        out[name] = "".join(line.rstrip() + "\n" for line in lines)
    return out


def text_of(drawn: dict[str, str]) -> str:
    return "".join(f"=== {name}\n{text}" for name, text in drawn.items())


def test_the_screens_are_the_reviewed_ones_and_fit():
    """`python -m tests.measure.test_page` writes them again: read the difference."""
    assert text_of(screens()) == KEPT.read_text("utf-8")
    for text in screens().values():
        lines = text.splitlines()
        assert len(lines) <= 24 and all(len(line) <= 80 for line in lines) and "\x1b" not in text


@pytest.mark.parametrize("name", SCREENS)
def test_the_verdict_of_brief_and_the_numbers_of_the_page(name):
    measure, verdict = SCREENS[name]
    assert screen.verdict(measure) == verdict
    page = assemble(screen.PAGE, screen.payload(measure))
    assert not any(text in page for text in ("</script><b>", "\x1b", "\u202e"))
    data = to_json(screen.payload(measure))
    assert json.loads(data)["points"] and "Infinity" not in data and "NaN" not in data


def test_outputs_are_those_of_processes_that_a_budget_ended():
    whole = made(batches=(64,))
    cut = replace(whole, runs=tuple(replace(r, failure="budget") for r in whole.runs))
    assert cut.points[0].rate == whole.points[0].rate > 64


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
    target = Target("fails", f"{CALLS}:fails_in_warm_up")
    options = Options((target,), clocks=True, backend=SIMULATED, output=tmp_path / "out")
    spec = session.Session(options).spec("profile", 0, (None,), ("device",), 1.0)
    gpu_ns, problem = session.profile(spec, None, tmp_path / "run", tmp_path)
    assert gpu_ns == {} and "under nsys the worker failed: ValueError" in problem


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


if __name__ == "__main__":
    KEPT.write_text(text_of(screens()), "utf-8")
