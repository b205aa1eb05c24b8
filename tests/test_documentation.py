"""What the documentation promises about itself: README is short, its set-up commands come first,
every link arrives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_readme_is_short_and_begins_with_what_ci_runs():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.encode()) <= 10_000
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)
    assert "nsysalign demo" in blocks[0] and "-m pytest" in blocks[1]
    assert all("pip install" in block for block in blocks[:2])
    assert text.index(blocks[1]) < text.index("![")  # the picture follows


def test_the_readmes_example_is_what_the_demo_prints(tmp_path):
    command = [sys.executable, "-m", "nsysalign", "demo", "-o", str(tmp_path / "run")]
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    printed = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=True, timeout=120
    ).stdout
    text = (ROOT / "README.md").read_text("utf-8")
    example = re.findall(
        r"^    .+$", text[text.index("## A real example") : text.index("There is no column")], re.M
    )
    lines = {line.strip() for line in printed.splitlines()}
    assert len(example) > 20 and [line for line in example if line.strip() not in lines] == []


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings get."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_arrives(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(found), f"{page.name}: {target}"


def test_every_page_of_the_documentation_is_linked_from_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    missing = [
        page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in text
    ]
    assert missing == []
