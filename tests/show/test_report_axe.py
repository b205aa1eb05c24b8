"""What axe-core finds on the pages, in the widths and colours that people have them in: nothing."""

from importlib import resources

import pytest
from browsing import until

from nsysalign.show import html

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing(driver, analysis, tmp_path, width, colours):
    path = tmp_path / "report.html"
    html.write(analysis, path)
    axe = resources.files(pytest.importorskip("axe_core_python")).joinpath("axe.min.js").read_text()
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    media = [{"name": "prefers-color-scheme", "value": colours}]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
    try:
        driver.get("about:blank")
        driver.get(path.as_uri())
        until(driver, "document.body.dataset.ready", "the page")
        driver.execute_script(axe)
        found = driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then(result => done({passes: result.passes.length,"
            " violations: result.violations.map(v => [v.id, v.nodes.map(node => [node.html, node.any.map(c => c.message)])])}))"
        )
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
        driver.get("about:blank")
    assert found["violations"] == [] and found["passes"] > 10
