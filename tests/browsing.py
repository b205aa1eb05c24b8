"""A headless Chromium that opens a page from disk, and the checks every page has to pass."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time

import pytest

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
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


def start():
    """A driver, or a skip where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (CHROMIUM and DRIVER):
        pytest.skip("no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    failed = pytest.importorskip("selenium.common.exceptions").SessionNotCreatedException
    with tempfile.NamedTemporaryFile("r") as log:
        for pause_s in (0, 1, 3, 9):  # a busy machine does not always get it started
            time.sleep(pause_s)
            service = webdriver.ChromeService(
                DRIVER, log_output=log.name, service_args=["--verbose"]
            )
            with contextlib.suppress(failed):
                return webdriver.Chrome(options=options, service=service)
        pytest.fail(f"Chromium does not start:\n{log.read()[-3000:]}")


def until(driver, script, what, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := driver.execute_script("return " + script):
            return value
        time.sleep(0.05)
    pytest.fail(f"{what} did not happen in {seconds} s: {driver.get_log('browser')}")


def quiet(driver):
    """No console error, no dialog, no request but for the page itself."""
    from selenium.common.exceptions import NoAlertPresentException

    assert [
        entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
    ] == []
    with pytest.raises(NoAlertPresentException):
        driver.switch_to.alert  # noqa: B018
    requests = [
        e["message"]
        for e in driver.get_log("performance")
        if '"Network.requestWillBeSent"' in e["message"]
    ]
    assert [r for r in requests if '"url":"http' in r] == []
