"""The longest task of a page while it loads and is scrolled through, at the browser's CPU throttle 1, 2 and 4.

    python scripts/bench_page.py REPORT.html... [--tries 3]

Milliseconds of wall time and of CPU time; the latter does not depend on what else the machine does.  Needs Chromium with its
driver, and selenium.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import browsing  # noqa: E402
from selenium import webdriver  # noqa: E402

READY = "return document.body.dataset.ready || (!document.querySelector('#lanes') && document.readyState == 'complete')"
SCROLL = (
    "const done = arguments[0]; let y = 0; (function go() { y += 500; scrollTo(0, y);"
    " if (y < document.documentElement.scrollHeight) setTimeout(go, 40); else setTimeout(done, 200); })()"
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--tries", type=int, default=3)
    options = parser.parse_args()
    driver = _driver()
    try:
        for page in options.pages:
            print(f"{page}: {page.stat().st_size / 1e3:.0f} kB", flush=True)
            for rate in (1, 2, 4):
                tasks = [_longest(driver, page, rate) for _ in range(options.tries)]
                wall, cpu = ([task[k] for task in tasks] for k in (0, 1))
                print(
                    f"  throttle {rate}: wall {statistics.median(wall):.0f} (worst {max(wall):.0f}), "
                    f"cpu {statistics.median(cpu):.0f} (worst {max(cpu):.0f})",
                    flush=True,
                )
    finally:
        driver.quit()


def _driver() -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = browsing.CHROMIUM
    for flag in browsing.FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    options.add_experimental_option(
        "perfLoggingPrefs", {"traceCategories": "toplevel,devtools.timeline"}
    )
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(browsing.DRIVER))


def _longest(driver: webdriver.Chrome, page: Path, rate: int) -> tuple[float, float]:
    """(wall time, CPU time) of the longest tasks of the page's main thread, ms."""
    driver.get("about:blank")
    driver.get_log("performance")
    driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": rate})
    driver.get(page.absolute().as_uri())
    end = time.monotonic() + 60
    while time.monotonic() < end and not driver.execute_script(READY):
        time.sleep(0.05)
    time.sleep(0.4)
    driver.execute_async_script(SCROLL)
    driver.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})
    driver.get("about:blank")
    time.sleep(0.3)
    messages = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    events = [m["params"] for m in messages if m["method"] == "Tracing.dataCollected"]
    spans = [e for e in events if e.get("ph") == "X"]
    work: dict[tuple[int, int], int] = {}  # of each thread: the page's own does the layout
    for e in spans:
        if e["name"] in ("EvaluateScript", "ParseHTML", "Layout", "UpdateLayoutTree"):
            thread = (e["pid"], e["tid"])
            work[thread] = work.get(thread, 0) + e.get("dur", 0)
    own = max(work, key=lambda thread: work[thread])
    tasks = [e for e in spans if (e["pid"], e["tid"]) == own and e["name"].endswith("RunTask")]
    return max(e["dur"] for e in tasks) / 1e3, max(e.get("tdur", 0) for e in tasks) / 1e3


if __name__ == "__main__":
    main()
