"""Analyses made by hand, as fixtures."""

from __future__ import annotations

import browsing
import pytest
from handmade import FINDING, UNALIGNED, bad, build

from nsysalign.model import Analysis


@pytest.fixture
def analysis() -> Analysis:
    return build(findings=[FINDING], unaligned=UNALIGNED)


@pytest.fixture
def plain_analysis() -> Analysis:
    """Without findings, everything placed."""
    return build()


@pytest.fixture
def hostile_analysis() -> Analysis:
    """Every foreign name carries markup, a script's end, an escape sequence and plotly's own
    tags."""
    finding = {
        **FINDING,
        "label": bad("t1"),
        "title": bad("title"),
        "advice": bad("advice"),
        "faster": bad("faster"),
        "rule": bad("rule"),
        "evidence": {bad("key"): bad("value")},
        "site": bad("site"),
    }
    lost = [
        {"name": bad("lost"), "label": bad("lost"), "reason": bad("reason"), "site": bad("site")}
    ]
    return build(findings=[finding], unaligned=lost, name=bad)


@pytest.fixture
def builder():
    return build


@pytest.fixture
def finding() -> dict:
    return dict(FINDING)


@pytest.fixture(scope="session")
def driver():
    """One browser for all pages."""
    driver = browsing.start()
    yield driver
    driver.quit()
