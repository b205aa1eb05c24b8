"""Shell completion for the names in a run: labels and intervals, straight from its analysis.db.

eval "$(_NSYSALIGN_COMPLETE=bash_source nsysalign)"
nsysalign show nsysalign-runs/train-001 --label <TAB>
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import click

from nsysalign.rundir import DATABASE

#: Shells ask before they list more than this.
MOST = 200


def names(table: str, column: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """A completer for an option whose values are in this column of the run named on the command line."""

    def propose(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
        # click has not parsed the argument while the option before it still lacks its value
        given = [Path(run) for run in (ctx.params.get("analysis"), *ctx.args) if run]
        path = next((p / DATABASE if p.is_dir() else p for p in given if p.exists()), None)
        if path is None or not path.is_file():
            return []
        sql = f'SELECT DISTINCT "{column}" FROM "{table}" WHERE substr("{column}", 1, ?) = ? LIMIT ?'
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                found = [str(v) for (v,) in connection.execute(sql, (len(incomplete), incomplete, MOST))]
        except sqlite3.Error:  # not an analysis: nothing to propose, and no place to say so
            return []
        # one proposal is one line, and a control character would reach the terminal
        return [text for text in found if text.isprintable()]

    return propose


LABELS, INTERVALS = names("labels", "label"), names("intervals", "name")
