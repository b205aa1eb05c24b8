"""Ten tasks of a first-time reader, done on the demo's report in a real browser: clicks, keys and
seconds of each.

python scripts/ten_tasks.py        needs Chromium with its driver, and selenium

The seconds are the page's and the browser's, from the click to the answer on the screen; a person's
reading is not in them.  The line of code is looked for on the page of a recorded puzzle, because
the demo's intervals have names instead of lines.
"""

from __future__ import annotations

import contextlib
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from selenium.webdriver import ActionChains, Keys

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
import browsing  # noqa: E402

PUZZLE = ROOT / "tests" / "data" / "puzzles" / "copy_pageable.tar.xz"
BUTTON = "[...document.querySelectorAll(arguments[0])].find(e => e.textContent.trim().startsWith(arguments[1]) && e.offsetParent)"
HITS = "drawings.get(document.querySelector('#lanes')).hits"


class Reader:
    """A person in front of a page: what is clicked and typed is counted."""

    def __init__(self, driver) -> None:
        self.driver, self.clicks, self.keys = driver, 0, 0

    def open(self, page: Path) -> None:
        self.driver.get("about:blank")
        self.driver.get(page.as_uri())
        self.wait("document.body.dataset.ready", "the page")
        self.clicks = self.keys = 0

    def wait(self, script: str, what: str):
        return browsing.until(self.driver, script, what, 20)

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def click(self, selector: str, text: str = "") -> None:
        find = f"return {BUTTON}" if text else "return document.querySelector(arguments[0])"
        element = self.run(find, selector, text)
        assert element, f"{selector} {text!r} is not on the page"
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()
        self.clicks += 1

    def type(self, selector: str, text: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(text)
        self.keys += len(text)

    def point(self, what: str) -> list[str]:
        """The pointer on the longest thing in the lanes whose hover text begins so; what is said
        about it."""
        plot = self.driver.find_element("id", "lanes")
        self.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
        self.wait("document.querySelector('#lanes svg')", "the lanes")
        find = f"const hit = {HITS}.filter(h => h.said[0].startsWith(arguments[0])).sort((p, q) => q.w - p.w)[0], b = arguments[1].getBoundingClientRect();"
        x, y = self.run(
            find
            + "return [hit.x + hit.w / 2 - b.width / 2, hit.y + hit.h / 2 - b.height / 2].map(Math.round)",
            what,
            plot,
        )
        ActionChains(self.driver).move_to_element_with_offset(plot, x, y).perform()
        return self.wait("!$('tip').hidden && $('tip').innerText", "the hover text").split("\n")


def what_is_wrong(r: Reader) -> str:
    return r.run("return $('headline').innerText")


def code_line(r: Reader) -> str:
    """On the first screen, below the plot."""
    r.click(".about summary")
    return r.run("return [DATA.labels[0].site, $('source').innerText].join(' ')")


def slowest_kernel(r: Reader) -> str:
    r.click("#rows button.link", "h2d_t3")
    r.click("#run-strip .role", "slowest")
    lane = "view.picture.lanes.find(l => l.kind === 'stream')"
    return r.point(
        r.run(
            f"const l = {lane}; return DATA.strings[l.n[l.d.indexOf(Math.max(...l.d))]].slice(0, 20)"
        )
    )[0]


def launch_of_the_third(r: Reader) -> str:
    r.click("#run-strip .one", "2")
    return "; ".join(r.point("cuLaunchKernelEx")[:2])


def launch_to_start(r: Reader) -> str:
    said = r.point("nvjet")
    return next(line for line in said if "launch call" in line)


def gap_before(r: Reader) -> str:
    return "; ".join(r.point("CPU ")[:2])


def other_run(r: Reader) -> str:
    r.type("#filter", "h2d_t1")
    return r.run("return document.querySelector('#table tbody tr').innerText").replace("\n", " ")


def copied(r: Reader) -> str:
    r.click("#breakdown summary")
    r.click("#copy-table")
    r.wait("$('copied').textContent", "copying")
    cells = r.run("return tableText($('budgets'))").split("\n")[1].split("\t")
    return "\t".join(cells[:4])


def by_name(r: Reader) -> str:
    r.type("#find", "splitK" + Keys.ENTER)
    return r.wait("$('finds').textContent", "the search")


def link(r: Reader) -> str:
    r.click("#rows button.link", "dev_t1")
    r.click("#run-strip .role", "slowest")
    r.wait("location.hash.includes('run=' + selected.interval)", "the address")
    address, asked = r.driver.current_url, r.run("return selected.interval")
    r.driver.get("about:blank")
    r.driver.get(address)
    r.wait(f"document.body.dataset.ready && selected.interval === {asked}", "the linked interval")
    return "#" + address.split("#")[1]


TASKS = [
    ("what is wrong, and where", "demo", what_is_wrong),
    ("its line of code", "puzzle", code_line),
    ("the kernel of the slowest repetition", "demo", slowest_kernel),
    ("the third iteration's launch", "demo", launch_of_the_third),
    ("how long from launch to start", "demo", launch_to_start),
    ("the gap before it, and who made it", "demo", gap_before),
    ("the same label in another run", "diff", other_run),
    ("copy the table into a sheet", "demo", copied),
    ("find a kernel by name", "demo", by_name),
    ("send a link to one interval", "demo", link),
]


def main() -> None:
    from nsysalign.cli import cli

    with tempfile.TemporaryDirectory() as name, contextlib.suppress(SystemExit):
        folder = Path(name)
        call = lambda *words: cli([*map(str, words)], standalone_mode=False)  # noqa: E731
        with tarfile.open(PUZZLE) as packed:
            packed.extractall(folder / "recorded", filter="data")
        call("demo", "-q", "-o", folder / "demo")
        call("analyze", "-q", folder / "recorded", "-o", folder / "puzzle")
        call("diff", "-q", folder / "demo", folder / "demo", "-o", folder / "diff.html")
        pages = {key: folder / key / "report.html" for key in ("demo", "puzzle")}
        driver = browsing.start()
        try:
            reader = Reader(driver)
            print(f"{'task':38} clicks  keys  seconds  answer")
            for words, page, do in TASKS:
                reader.open(pages.get(page, folder / "diff.html"))
                begin = time.monotonic()
                answer = do(reader)
                seconds = time.monotonic() - begin
                print(
                    f"{words:38} {reader.clicks:6} {reader.keys:5} {seconds:8.2f}  {answer[:90]!r}"
                )
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
