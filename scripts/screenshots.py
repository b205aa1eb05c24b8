"""The README's two pictures, taken anew from the demo's report.  Needs Chromium with its driver,
and selenium.

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
#: The label whose timeline is the second picture.
SECOND = 'choose("h2d_t1", null, false);'


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
            if report.name == "measure.html":
                driver.set_window_size(WIDTH, 1000)
                driver.get(report.absolute().as_uri())
                browsing.until(
                    driver, "document.querySelectorAll('#rate-plot circle').length", "the curve"
                )
                find = "const b = document.querySelector('#curve').getBoundingClientRect(); return [b.bottom + scrollY, document.documentElement.clientWidth]"
                height, width = driver.execute_script(find)
                _write(
                    driver,
                    {"x": 0, "y": 0, "width": width, "height": height + 8, "scale": 1},
                    ROOT / "docs" / "measure.png",
                )
                return
            _shoot(driver, report, "", "#labels", ROOT / "docs" / "report.png", whole=True)
            _shoot(driver, report, SECOND, "#timeline", ROOT / "docs" / "timeline.png", whole=False)
        finally:
            driver.quit()


def _shoot(driver, report: Path, script: str, element: str, path: Path, *, whole: bool) -> None:
    """The page from its top to the end of `element`, or from the element's head to its plot's end,
    as PNG."""
    driver.set_window_size(WIDTH, 1000)
    driver.get(report.absolute().as_uri())
    browsing.until(
        driver,
        "document.body.dataset.ready && document.querySelector('#lanes').dataset.drawn",
        "drawing",
    )
    driver.execute_script(script)
    time.sleep(1.5)
    box = driver.execute_script(
        "const a = document.querySelector(arguments[0]).getBoundingClientRect(), b = document.querySelector('#lanes').getBoundingClientRect();"
        "return [a.top + scrollY, (arguments[1] ? a.bottom : b.bottom + 12) + scrollY, document.documentElement.clientWidth]",
        element,
        whole,
    )
    top = 0 if whole else box[0]
    clip = {"x": 0, "y": top, "width": box[2], "height": box[1] - top, "scale": 1}
    _write(driver, clip, path)


def _write(driver, clip: dict, path: Path) -> None:
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    path.write_bytes(base64.b64decode(shot["data"]))
    print(
        f"{path.relative_to(ROOT)}: {clip['width']:.0f} x {clip['height']:.0f}, {path.stat().st_size / 1e3:.0f} kB"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
