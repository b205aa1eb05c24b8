"""The insides of kernels in a real browser: a block that is opened shows its warps, and stays
open."""

import pytest
from browsing import quiet, until

import nsysalign
from nsysalign.show import html
from tests.marks.export import export
from tests.marks.simulated import Gpu

pytestmark = pytest.mark.browser

PRESS = """
const strip = document.querySelector("#inside-strip"), frame = strip.getBoundingClientRect();
const box = insides.boxes.find((box) => box.sm === 2);
strip.dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: frame.left + box.px + 1, clientY: frame.top + box.py + 1 }));
"""
COLOUR = """
const at = document.querySelector("#inside-block"), scale = window.devicePixelRatio || 1;
return [...at.getContext("2d").getImageData((54 + (at.clientWidth - 62) * arguments[0]) * scale, 24 * scale, 1, 1).data].slice(0, 3).join();
"""


def test_a_block_opens_into_its_warps_and_stays_open_when_the_window_changes(driver, tmp_path):
    gpu = Gpu(sms=4, slots=1)
    gpu.launch(1, 4, lambda block, warp: [("load", 3_000), ("store", 6_000)], name="moves")
    a = nsysalign.analyze(
        export(gpu, tmp_path / "trace.sqlite"), marks=[gpu.write(tmp_path / "marks-77-0.nsam")]
    )
    html.write(a, tmp_path / "page.html")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get((tmp_path / "page.html").as_uri())
    until(driver, "insides.boxes.length === 4", "the strip")
    assert driver.execute_script("return document.querySelector('#inside-block').hidden")
    driver.execute_script(PRESS)
    for _ in range(2):
        assert not driver.execute_script("return document.querySelector('#inside-block').hidden")
        driver.execute_script("dispatchEvent(new Event('resize'))")
    quiet(driver)
    colours = [driver.execute_script(COLOUR, share) for share in (0.15, 0.6)]
    assert colours == ["55,120,191", "224,138,30"], "load, then store"
