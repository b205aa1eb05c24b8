"""The pictures in docs, taken anew from the demo's report.  Needs Chromium with its driver, and
selenium.

python scripts/screenshots.py [REPORT.html]      writes docs/report.png and docs/timeline.png
python scripts/screenshots.py measure.html       the page of a measurement, down to its curve: writes docs/measure.png
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import browsing  # noqa: E402

WIDTH = 1400
READY = "document.body.dataset.ready && document.querySelector('#lanes').dataset.drawn"
CURVE = "document.querySelectorAll('#rate-plot circle').length"
#: Picture: when the page is ready, what is done then, the elements at its top ('': the page's) and
#: at its bottom.
REPORT = {
    "report.png": (READY, "", "", "#labels"),
    "timeline.png": (READY, 'choose("h2d_t1", null, false);', "#timeline", "#lanes"),
}
MEASURE = {"measure.png": (CURVE, "", "", "#curve")}
BOX = """
const box = (selector) => document.querySelector(selector).getBoundingClientRect();
const top = arguments[0] ? box(arguments[0]).top + scrollY : 0;
return [top, box(arguments[1]).bottom + scrollY, document.documentElement.clientWidth];
"""


def main(report: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if report is None:
            from nsysalign.cli import cli

            cli(["demo", "-q", "-o", f"{folder}/demo"], standalone_mode=False)
            report = Path(folder, "demo", "report.html")
        driver = browsing.start()
        # a picture beyond the window has none, and without it the page is laid out anew
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        try:
            pictures = MEASURE if report.name == "measure.html" else REPORT
            for name, (ready, script, top, bottom) in pictures.items():
                driver.set_window_size(WIDTH, 1000)
                driver.get(report.absolute().as_uri())
                browsing.until(driver, ready, "drawing")
                driver.execute_script(script)
                time.sleep(1.5)
                y, end, width = driver.execute_script(BOX, top, bottom)
                clip = {"x": 0, "y": y, "width": width, "height": end + 8 - y, "scale": 1}
                how = {"captureBeyondViewport": True, "clip": clip}
                shot = driver.execute_cdp_cmd("Page.captureScreenshot", how)
                (ROOT / "docs" / name).write_bytes(base64.b64decode(shot["data"]))
                print(f"docs/{name}: {width:.0f} x {clip['height']:.0f}")
        finally:
            driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
