"""The pictures in docs, taken anew from the demo's report.  Needs Chromium with its driver, and
selenium.

python scripts/screenshots.py [REPORT.html]      writes docs/report.png and docs/timeline.png
python scripts/screenshots.py measure.html       the page of a measurement, down to its curve: writes docs/measure.png

`tests/show/test_docs_pictures.py` takes them again and compares: a page that no longer looks like its
picture fails there.
"""

from __future__ import annotations

import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import browsing  # noqa: E402

WIDTH = 1400
READY = "document.body.dataset.ready && document.querySelector('#lanes').dataset.drawn"
CURVE = "document.querySelectorAll('#rate-plot circle').length"


class Shot(NamedTuple):
    """What a picture shows: when the page is ready, what is done then, the elements at its top ('':
    the page's) and at its bottom."""

    ready: str
    script: str
    top: str
    bottom: str


REPORT = {
    "report.png": Shot(READY, "", "", "#labels"),
    "timeline.png": Shot(READY, 'choose("h2d_t1", null, false);', "#timeline", "#run-strip"),
}
MEASURE = {"measure.png": Shot(CURVE, "", "", "#curve")}
BOX = """
const box = (selector) => document.querySelector(selector).getBoundingClientRect();
const top = arguments[0] ? box(arguments[0]).top + scrollY : 0;
return [top, box(arguments[1]).bottom + scrollY, document.documentElement.clientWidth];
"""
#: Both pictures at a width of 140 pixels: letters are gone there, what stands where is not.
COMPARED = """
const [first, second, done] = arguments, WIDE = 140;
const read = async (data) => {
  const image = new Image();
  image.src = "data:image/png;base64," + data;
  await image.decode();
  const canvas = document.createElement("canvas"), pen = canvas.getContext("2d");
  [canvas.width, canvas.height] = [WIDE, Math.round(image.height * WIDE / image.width)];
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return { size: [image.width, image.height],
    pixels: pen.getImageData(0, 0, canvas.width, canvas.height).data };
};
Promise.all([read(first), read(second)]).then(([p, q]) => {
  const count = Math.min(p.pixels.length, q.pixels.length);
  let sum = 0;
  for (let i = 0; i < count; i += 1) sum += Math.abs(p.pixels[i] - q.pixels[i]);
  done([p.size, q.size, sum / count]);
});
"""


def taken(driver: Any, report: Path, shot: Shot, also: str = "") -> bytes:
    """The picture of a page as PNG; `also`: a script that is run before it is taken."""
    driver.set_window_size(WIDTH, 1000)
    driver.get("about:blank")
    driver.get(report.absolute().as_uri())
    browsing.until(driver, shot.ready, "drawing")
    driver.execute_script(shot.script + also)
    time.sleep(1.5)
    y, end, width = driver.execute_script(BOX, shot.top, shot.bottom)
    clip = {"x": 0, "y": y, "width": width, "height": end + 8 - y, "scale": 1}
    how = {"captureBeyondViewport": True, "clip": clip}
    return base64.b64decode(driver.execute_cdp_cmd("Page.captureScreenshot", how)["data"])


def compared(
    driver: Any, first: bytes, second: bytes
) -> tuple[tuple[int, int], tuple[int, int], float]:
    """(width and height of the first, of the second, mean difference of their colours at a tenth of
    their size, 0 to 255)."""
    driver.get("about:blank")
    texts = [base64.b64encode(picture).decode() for picture in (first, second)]
    one, two, difference = driver.execute_async_script(COMPARED, *texts)
    return tuple(one), tuple(two), difference


def demo_report(folder: Path) -> Path:
    """The page of the demo, made in a new folder."""
    from nsysalign.cli import cli

    cli(["demo", "-q", "-o", str(folder / "demo")], standalone_mode=False)
    return folder / "demo" / "report.html"


def main(report: Path | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = report or demo_report(Path(folder))
        driver = browsing.start()
        # a picture beyond the window has none, and without it the page is laid out anew
        driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        try:
            pictures = MEASURE if report.name == "measure.html" else REPORT
            for name, shot in pictures.items():
                (ROOT / "docs" / name).write_bytes(taken(driver, report, shot))
                print(f"docs/{name}")
        finally:
            driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
