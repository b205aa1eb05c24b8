"""What the documentation promises about itself: README is short, its set-up commands are what CI
runs, every link arrives, every command and option exists, the example is what the demo prints."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import click
import pytest
import warm
from click.testing import CliRunner

from nsysalign.cli import cli

ROOT = Path(__file__).resolve().parents[1]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *DOCS]
#: Of a page's text what is typed: fenced and indented blocks, and code in a line.
TYPED = re.compile(r"^```[^\n]*\n(?s:(.*?))^```|^(?: {4})(.*)$|`([^`\n]+)`", re.M)


def readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")


def test_readme_is_short_and_its_first_two_blocks_are_what_ci_runs():
    text = readme()
    assert len(text.splitlines()) <= 90 and text.count("![") == 1
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.M | re.S)
    assert "nsysalign demo" in blocks[0] and "-m pytest" in blocks[1] and len(blocks) == 2
    assert all("pip install" in block for block in blocks)


def printed(folder: Path, *words: str) -> list[str]:
    """The lines that a command prints in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", "NO_COLOR": "1"}
    done = warm.python(["-m", "nsysalign", *words], folder, environment)
    done.check_returncode()
    return [line.rstrip() for line in done.stdout.splitlines()]


#: The indented block of README before its first command.
EXAMPLE = re.compile(r"(?<=\n\n)(?:    .*\n|\n(?=    ))+")


def test_the_readmes_example_is_what_the_demo_prints(tmp_path):
    """All but the last line, which names the page.  `python tests/test_documentation.py` renews it."""
    text = readme()
    lines = [line[4:] for line in EXAMPLE.search(text)[0].splitlines()]
    *screen, last = printed(tmp_path, "demo", "-o", "run")
    assert len(lines) > 8 and lines == screen
    more, estimate = re.search(r"shows (\d+) more labels.*: (.*) for `h2d_t1`", text).groups()
    assert last.startswith(f"-v shows {more} more labels")
    of_first = " ".join(printed(tmp_path, "analyze", "-v", "run")).partition("h2d_t2")[0]
    assert f"Without nsys {estimate}, estimated" in re.sub(" +", " ", of_first)


def renew_example() -> None:
    """Write what the demo prints now into README."""
    with tempfile.TemporaryDirectory() as folder:
        lines = printed(Path(folder), "demo", "-o", "run")[:-1]
    block = "".join(f"    {line}".rstrip() + "\n" for line in lines)
    (ROOT / "README.md").write_text(EXAMPLE.sub(lambda _: block, readme(), count=1), "utf-8")


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
        linked = (page.parent / name).resolve() if name else page
        assert linked.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name}: {target}"


def test_every_page_is_named_in_readme_or_changelog_and_the_docs_are_short():
    pages = sorted((ROOT / "docs").glob("*.md"))
    named = readme() + (ROOT / "CHANGELOG.md").read_text("utf-8")  # new ones are there first
    assert [page.name for page in pages if f"docs/{page.name}" not in named] == []
    assert sum(page.stat().st_size for page in pages) <= 100_000
    told = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "lab"]
    assert sum(len(page.read_text("utf-8").split()) for page in told) <= 9_000


def typed_commands(page: Path) -> list[list[str]]:
    """The words of every `nsysalign COMMAND ...` that a page shows."""
    typed = (
        line
        for match in TYPED.finditer(page.read_text("utf-8"))
        for line in (match[1] or match[2] or match[3] or "").splitlines()
    )
    lines = (re.sub(r"^[ $]*|\s#.*|\s{4,}.*|[;…].*", "", line) for line in typed)
    return [shlex.split(line)[1:] for line in lines if line.startswith("nsysalign ")]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_every_command_and_option_exists(page):
    """Options behind the script, or behind `--`, are the script's own."""
    context = click.Context(cli)
    for words in typed_commands(page):
        if words[0].startswith("-") or words[0] == "COMMAND":
            continue
        command = cli.get_command(context, words[0])
        assert command is not None, f"{page.name}: nsysalign {' '.join(words)}"
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        own = words[1 : words.index("--")] if "--" in words else words[1:]
        if command.context_settings.get("allow_interspersed_args") is False:
            scripts = [number for number, word in enumerate(own) if word.endswith(".py")]
            own = own[: scripts[0]] if scripts else own
        unknown = {word.split("=")[0] for word in own if word.startswith("-")} - options
        assert not unknown, f"{page.name}: nsysalign {' '.join(words)}"


@pytest.mark.usefixtures("remembered")
def test_the_commands_of_the_quickstart_work(tmp_path, monkeypatch):
    """All that need no GPU, in their order."""
    monkeypatch.chdir(tmp_path)
    tried = 0
    for words in typed_commands(ROOT / "docs" / "quickstart.md"):
        if words[0] in ("demo", "show", "export"):
            done = CliRunner().invoke(cli, words)
            assert done.exit_code == 0, done.output
            tried += 1
    assert tried >= 4 and (tmp_path / "demo.json.gz").exists()


def test_every_stop_of_the_way_of_a_pair_is_there():
    way = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## The way of an event")[2]
    stops = re.findall(r"`([\w/]+\.py)` `(\w+)`", way)
    for file, name in stops:
        source = (ROOT / "nsysalign" / file).read_text("utf-8")
        assert re.search(rf"^(def|class) {name}\b", source, re.M), f"{file}: {name}"
    lines = re.findall(r"^\| \d+ \| (↑?)", way, re.M)
    assert f"{len(lines)} stops, {lines.count('↑')} climbs" in way
    assert len(lines) <= 25 and lines.count("↑") <= 5


if __name__ == "__main__":
    renew_example()
