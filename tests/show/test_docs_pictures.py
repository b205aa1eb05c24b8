"""The pictures in docs are those of today's page."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import screenshots  # noqa: E402

pytestmark = pytest.mark.browser
#: Of 255: another machine's fonts make about 2, a section that is gone or new over 10.
ALIKE = 6


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return screenshots.demo_report(tmp_path_factory.mktemp("docs"))


@pytest.mark.parametrize("name", screenshots.REPORT)
def test_the_page_looks_like_its_picture(driver, report, name):
    driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
    kept, shot = (ROOT / "docs" / name).read_bytes(), screenshots.REPORT[name]
    today = screenshots.taken(driver, report, shot)
    size, of_today, difference = screenshots.compared(driver, kept, today)
    again = f"docs/{name} is of another page: python scripts/screenshots.py"
    assert size == pytest.approx(of_today, rel=0.04), again
    assert difference < ALIKE, again
    # by a style: taking a picture resizes the window for a moment, and the page draws again
    hidden = "#sum, .bar, .plot { visibility: hidden }"
    style = f"Object.assign(document.createElement('style'), {{ textContent: '{hidden}' }})"
    other = screenshots.taken(driver, report, shot, f"document.head.append({style});")
    assert screenshots.compared(driver, today, other)[2] > ALIKE
