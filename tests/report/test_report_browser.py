"""The page in a real browser, from file://: it runs, it is quiet, and foreign text stays text."""

import shutil
import time

import pytest

from nsysalign.report import html

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
]


@pytest.fixture(scope="module")
def driver():
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


def until(driver, script, what, seconds=15):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := driver.execute_script("return " + script):
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen in {seconds} s: {driver.get_log('browser')}")


def open_page(driver, analysis, tmp_path):
    driver.get_log("browser")
    driver.get_log("performance")
    path = tmp_path / "report.html"
    html.write(analysis, path)
    driver.get(path.as_uri())
    until(
        driver,
        "document.body.dataset.ready && document.querySelector('#lanes').dataset.drawn",
        "the first drawing",
    )
    return driver


def quiet(driver):
    """No console error, no dialog, no request but for the page itself."""
    from selenium.common.exceptions import NoAlertPresentException

    assert [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")] == []
    with pytest.raises(NoAlertPresentException):
        driver.switch_to.alert  # noqa: B018
    requests = [
        e["message"] for e in driver.get_log("performance") if '"Network.requestWillBeSent"' in e["message"]
    ]
    assert [r for r in requests if '"url":"http' in r] == []


def column(driver):
    return driver.execute_script(
        "return [...document.querySelectorAll('#budgets tbody tr')].map(r => r.dataset.label)"
    )


def test_the_table_sorts_and_filters(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    assert column(driver) == ["t1", "t2", "replay", "do_bench"]
    driver.execute_script("document.querySelector('[data-key=kernel]').focus()")
    driver.execute_script("document.querySelector('[data-key=kernel]').click()")
    assert column(driver) == ["do_bench", "t1", "t2", "replay"]
    assert driver.execute_script("return document.activeElement.dataset.key") == "kernel"
    assert driver.execute_script("return document.activeElement.parentNode.ariaSort") == "descending"
    driver.execute_script("document.activeElement.click()")
    assert column(driver) == ["replay", "t2", "t1", "do_bench"]
    driver.find_element("id", "filter").send_keys("puzzle 17")
    assert column(driver) == ["t2"]
    quiet(driver)


def test_an_interval_is_chosen_drawn_zoomed_and_explained(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    first = driver.execute_script("return document.querySelector('#lanes').dataset.drawn")
    assert first.startswith("0:")  # the finding's interval
    driver.execute_script(
        "[...document.querySelectorAll('#roles button')].find(b => b.textContent == 'slowest').click()"
    )
    until(driver, "document.querySelector('#lanes').dataset.drawn.startsWith('1:')", "drawing the slowest")
    assert "245 us" in driver.find_element("id", "reading").text
    names = driver.execute_script(
        "return [...document.querySelectorAll('#lanes .ytick text')].map(t => t.textContent)"
    )
    assert names == ["events", "budget", "NVTX, thread 484", "CUDA calls, thread 484", "stream 7"]
    hovers = driver.execute_script(
        "return document.querySelector('#lanes').data.flatMap(t => t.hovertext || [])"
    )
    assert any("gemm" in h and "24.8 us" in h and "grid 64 x 1 x 1" in h and "84.0 MB" in h for h in hovers)
    before = driver.execute_script("return document.querySelector('#lanes').dataset.drawn")
    driver.find_element("id", "lanes").send_keys("+")
    until(driver, f"document.querySelector('#lanes').dataset.drawn != '{before}'", "zooming by key")
    driver.find_element("id", "lanes").send_keys("0")
    until(driver, f"document.querySelector('#lanes').dataset.drawn == '{before}'", "fitting by key")
    driver.execute_script("document.querySelector('#pieces').open = true")
    until(driver, "document.querySelectorAll('#pieces tbody tr').length == 5", "the table of the pieces")
    quiet(driver)


def test_the_mouse_explains_and_zooms(driver, analysis, tmp_path):
    from selenium.webdriver import ActionChains

    open_page(driver, analysis, tmp_path)
    driver.execute_script("document.querySelector('#timeline').scrollIntoView()")
    bars = driver.find_elements("css selector", "#lanes .trace.bars")
    kernel = bars[-1].find_element("css selector", ".point")
    ActionChains(driver).move_to_element(kernel).perform()
    script = "[...document.querySelectorAll('#lanes .hovertext')].map(t => t.textContent).join()"
    text = until(driver, script, "the hover text")
    assert "gemm" in text and "24.8 us, from 206.80 us" in text and "3391 GB/s" in text
    drawn = driver.find_element("id", "lanes").get_attribute("data-drawn")
    area = driver.find_element("css selector", "#lanes .nsewdrag")
    ActionChains(driver).move_to_element(area).click_and_hold().move_by_offset(150, 0).release().perform()
    until(driver, f"document.querySelector('#lanes').dataset.drawn != '{drawn}'", "zooming by dragging")
    ActionChains(driver).double_click(area).perform()
    until(driver, f"document.querySelector('#lanes').dataset.drawn == '{drawn}'", "fitting by double click")
    quiet(driver)


def test_the_runs_are_drawn_and_tabulated(driver, analysis, tmp_path):
    open_page(driver, analysis, tmp_path)
    assert "3 runs, median 235 us, from 215 us to 245 us" in driver.find_element("id", "runs-reading").text
    assert until(driver, "document.querySelectorAll('#iterations .barlayer .point').length", "bars") == 12
    driver.execute_script("document.querySelector('#runs-table').open = true")
    until(driver, "document.querySelectorAll('#runs-table tbody tr').length == 3", "the table of the runs")
    quiet(driver)


def test_dark_is_dark(driver, analysis, tmp_path):
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    try:
        open_page(driver, analysis, tmp_path)
        assert (
            driver.execute_script("return getComputedStyle(document.body).backgroundColor")
            == "rgb(21, 23, 27)"
        )
        assert driver.execute_script("return document.querySelector('#lanes').layout.font.color") == "#e7e9ec"
        quiet(driver)
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_hostile_names_are_only_text(driver, hostile_analysis, tmp_path):
    open_page(driver, hostile_analysis, tmp_path)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    driver.execute_script("document.querySelectorAll('#cards button').forEach(b => b.click())")
    time.sleep(0.5)
    # Hover over every drawn bar's middle through plotly itself: its hover labels read a little HTML.
    driver.execute_script(
        "const p = document.querySelector('#lanes'); Plotly.Fx.hover(p, p.data.map((t, i) => ({curveNumber:i,"
        "pointNumber: 0})).filter(q => p.data[q.curveNumber].type == 'bar').slice(0, 1))"
    )
    time.sleep(0.3)
    assert (
        driver.execute_script("return document.querySelectorAll('img, iframe, a[href^=javascript]').length")
        == 0
    )
    assert driver.execute_script("return document.scripts.length") == 3
    assert "</script><img src=x onerror=alert(1)>" in driver.find_element("id", "cards").text
    quiet(driver)


def test_nothing_placed_is_a_page_too(driver, builder, tmp_path):
    path = tmp_path / "report.html"
    html.write(builder([]), path)
    driver.get_log("browser")
    driver.get(path.as_uri())
    until(driver, "document.querySelector('#timeline').hidden", "hiding what there is not")
    assert "No interval was placed" in driver.find_element("id", "cards").text
    quiet(driver)
