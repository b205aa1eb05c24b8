"""Names come from whoever made the program: in no output do they do anything but stand there."""

import io
import json
import re
from functools import cache
from html.parser import HTMLParser
from itertools import cycle

import pytest
from browsing import quiet, until
from handmade import FINDING, UNALIGNED, build
from rich.console import Console

from nsysalign import brief
from nsysalign.answer import answer
from nsysalign.show import html, markdown, screen, waterfall
from nsysalign.show.notebook import Analysis, fragment

STRINGS = (
    "<script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "<!--<script>",
    "]]><b>",
    "&lt;img src=x onerror=alert(1)&gt;",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)' autofocus='",
    "<a href='javascript:alert(1)'>x</a>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "</title></style><body onload=alert(1)>",
    "@@data@@ @@script@@",
    "${alert(1)} {{7*7}} %{y} {0}",
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "\x1b[2J\x1b[H\x9b31m\x07",
    "a\nb\r\nc\td\x0be",
    "a\u2028b\u2029c",
    "\u202egnp.exe\u202c \u2066x\u2069",
    "a\u200bb\u2060c\ufeffd",
    "[bold red]x[/] [link=https://evil.example]y[/link]",
    "\x00\x7f\\u003c",
    "../../etc/passwd#0 '; rm -rf ~; echo '" + "x" * 300,
)
#: Controls of terminals and of the direction of text; a newline ends a line of ours.
DRIVES = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def of(name):
    """An analysis in which every foreign text is made by `name`: labels, files, kernels, ranges,
    rules, advice, evidence, reasons."""
    text = {
        key: name(FINDING[key]) for key in ("label", "title", "advice", "faster", "rule", "site")
    }
    finding = {**FINDING, **text, "evidence": {name("key"): name("value")}}
    lost = [{key: name(value) for key, value in UNALIGNED[0].items()}]
    return build(findings=[finding], unaligned=lost, name=name)


PLAIN = {"p", "b", "code", "table", "thead", "tbody", "tr", "th", "td", "span", "title", "style"}


class Tags(HTMLParser):
    """The elements and attributes of some HTML."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def handle_starttag(self, tag, attrs):
        self.seen |= {tag, *(name for name, _ in attrs)}


def printed(draw, width=100) -> str:
    stream = io.StringIO()
    draw(Console(file=stream, width=width, force_terminal=False, legacy_windows=False))
    return stream.getvalue()


@cache
def scripts_of_a_page() -> int:
    return html.page(build()).count("<script")


def test_there_are_24():
    assert len(set(STRINGS)) == 24


@pytest.mark.parametrize("string", STRINGS, ids=range(24))
def test_nothing_is_executed(string):
    analysis = of(lambda text: f"{text}{string}")
    said = answer(analysis)
    texts = [
        printed(lambda console: screen.render(said, console, "report.html")),
        printed(lambda console: screen.everything(analysis, said, console, f"{string}.html")),
        printed(lambda console: screen.kernels(analysis, console)),
        printed(lambda console: waterfall.render(analysis, 0, console)),
        markdown.interval(analysis, said, 0),
    ]
    assert not any(DRIVES.search(text) for text in texts)
    code = {f"    {line}" for fix in said.fixes for line in fix.code.splitlines()}  # it is copied
    assert all(len(line) <= 100 or line in code for line in texts[0].splitlines())
    line = brief.of_answer(said, "show", string)
    assert not DRIVES.search(line) and "\n" not in line and len(line.encode()) <= 2_000
    assert json.loads(line)["labels"]
    tags = Tags()
    shown = fragment(analysis)
    tags.feed(shown)
    assert tags.seen == PLAIN and not DRIVES.search(shown)
    frame = Analysis(**analysis.fields).show()._repr_html_()
    assert "<" not in re.sub(r'^<iframe |</iframe>$|srcdoc="[^"]*"', "", frame)
    page = html.page(analysis)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    assert not set("<>&") & set(data) and not DRIVES.search(data)
    assert not re.search(r"\\u(00[01]|007f|00[89]|200b|202[8-e]|206)", data)
    head = page.replace(data, "").split("<script>")[0]
    assert page.count("<script") == scripts_of_a_page()
    assert not re.search(r"<(img|svg|iframe|a href='java)|<[^>]*\sonerror=", head)


@pytest.mark.browser
def test_nothing_is_executed_in_a_browser(driver, tmp_path):
    strings = cycle(STRINGS)
    html.write(of(lambda text: f"{text}{next(strings)}"), tmp_path / "report.html")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get((tmp_path / "report.html").as_uri())
    until(driver, "document.body.dataset.ready", "the page")
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    driver.execute_script("document.querySelectorAll('#cards a').forEach(b => b.click())")
    # Everything that is drawn explains itself, one after the other.
    said = driver.execute_script(
        "return [...drawings.values()].flatMap(d => d.hits).map(hit => { showTip(hit.said, 9, 9); return document.querySelector('#tip').innerText })"
    )
    assert any("alert(1)" in text for text in said)
    found = "document.querySelectorAll('img, iframe, a[href^=javascript], [onload], [onerror]')"
    assert driver.execute_script(f"return {found}.length") == 0
    assert driver.execute_script("return document.scripts.length") == 2
    quiet(driver)
