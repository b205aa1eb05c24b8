"""Tables as JSON text, row by row: a template that has what all rows share, filled with what differs between them.

The values of the columns are spelled already (`listed` with an encoder), numbers are spelled by the template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from nsysalign.report.listed import Listed


def template(columns: Mapping[str, Listed]) -> tuple[str, list[Listed]]:
    """The object of every row, `{"ns":%s,"bytes":0}`, and the columns that fill it."""
    fields = [
        _literal(json.dumps(name)) + ":" + (_literal(str(column.values[0])) if column.constant else "%s")
        for name, column in columns.items()
    ]
    return "{" + ",".join(fields) + "}", [column for column in columns.values() if not column.constant]


def _literal(text: str) -> str:
    return text.replace("%", "%%")


class Nested:
    """The rows of a table inside the objects of another one, comma between those that share an object."""

    def __init__(self, owner: np.ndarray, owners: int, template: str, columns: Sequence[Listed]) -> None:
        """`owner`: the row of the other table that each row is inside of, -1 for none; `owners`: how many it has."""
        self._template, self._columns = template, columns
        # Stable: rows of one owner stay in their order.
        self._order = np.argsort(owner, kind="stable")[np.count_nonzero(owner < 0) :]
        self._count = np.bincount(owner[owner >= 0], minlength=owners)
        self._end = np.cumsum(self._count)

    def texts(self, owners: slice) -> Iterator[str]:
        """What stands inside each of some owners that follow each other."""
        count = self._count[owners].tolist()
        end = int(self._end[owners][-1]) if count else 0
        mine = self._filled(self._order[end - sum(count) : end])
        return (",".join(islice(mine, few)) for few in count)

    def _filled(self, rows: np.ndarray) -> Iterator[str]:
        if not self._columns:  # the rows are all the same
            return iter([self._template % ()] * len(rows))
        return map(self._template.__mod__, zip(*(c.rows(rows) for c in self._columns), strict=True))
