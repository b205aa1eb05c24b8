"""Call sites and notes carry no user name, no home and no text of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsysalign import paths
from nsysalign.paths import short_path, without_paths
from nsysalign.record.convert import shorten

#: file -> what is said of it, where alice works in /work
FILES = {
    "/home/me/bench.py": "bench.py", "/mnt/home/me/bench.py": "bench.py", "/export/home/me/bench.py": "bench.py",
    "/data/users/me/bench.py": "bench.py", "/u/me/bench.py": "bench.py", "/fsx/me/bench.py": "bench.py",
    "/lustre/fsw/me/bench.py": "bench.py", "/lustre/me/bench.py": "bench.py", "/root/bench.py": "bench.py",
    "C:\\Users\\me\\bench.py": "bench.py", "/mnt/home/me/project/bench.py": "project/bench.py",
    "/a/b/c/d/alice/bench.py": "bench.py", "/opt/venv/lib/python3.11/site-packages/x/y.py": "x/y.py",
    "/app/train.py": "app/train.py", "/work/a/b.py": "a/b.py", "/workshop/b.py": "workshop/b.py", "<stdin>": "<stdin>",
    "/": "/", "project/bench.py": "project/bench.py",
}  # fmt: skip


def test_a_folder_that_may_be_called_like_a_user_is_left_out(monkeypatch):
    monkeypatch.setenv("USER", "alice")
    paths._own_names.cache_clear()
    short_path.cache_clear()
    try:
        for file, short in FILES.items():
            if not file.startswith("/work/"):
                assert short_path(file) == short
            if not file.startswith(("C:", "project")) and file != "/":
                assert shorten(file, Path("/work")) == short
    finally:
        paths._own_names.cache_clear()
        short_path.cache_clear()


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("open /home/me/x.py failed", "open x.py failed"),
        ("'/home/me/my files/x'", "'x'"),
        ("C:\\Users\\me\\x", "x"),
        ("file:///home/me/x", "x"),
        ("'file:///home/me/my files/x'", "'x'"),
        ("file:///C:/Users/me/x", "x"),
        ("file://server/share/x", "x"),
        ("~/a/x ~me/x ~me/a/x", "x x x"),
        ("https://host/a?file=%2Fhome%2Fme%2Fx%20y", "https://host/a"),
        ("file:%2F%2F%2Fhome%2fme%2fx", "x"),
        *(
            (t, t)
            for t in ("and/or", "/layer0", "https://host/a/b", "layer%2Fattn%2Fq", "A::~A()", "50%")
        ),
    ],
)
def test_of_a_path_in_a_text_its_last_part_stays(text, short):
    assert without_paths(text) == short


@pytest.mark.parametrize("cwd", ["/", "/home", "/mnt/home", "/home/me/..", "/srv/people"])
def test_what_is_relative_to_a_folder_of_homes_would_begin_with_a_user(cwd, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/me")
    for home in ("/home/me", "/mnt/home/me", "/srv/people/me"):
        assert shorten(f"{home}/bench.py", Path(cwd)) == "bench.py"
        assert shorten(f"{home}/project/bench.py", Path(cwd)) == "project/bench.py"
    assert shorten("/srv/people/me/bench.py", Path("/srv/people/me")) == "bench.py"
    assert shorten("/srv/people/me/a/b/bench.py", Path("/srv/people/me")) == "a/b/bench.py"
