"""Columns of a table at Arrow speed, through the ADBC driver for SQLite where it is installed.

A second, read-only connection of its own: nothing is written beside the file (a file in WAL mode is
left alone).  Only for plain tables that `Source.plain_table` has looked at.  None is always an
answer: whatever the driver stumbles over (a text where a number belongs, a damaged page, more rows
than a file of this size has room for) is read again, and explained, by the ordinary reader; both
fill the same `Gathered`, so that results do not depend on who read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nsysalign.trace.gathered import Gathered

_BATCH_ROWS = 1 << 16
#: No row of an nsys table is shorter; more rows than that are pages that point at each other.
_BYTES_PER_ROW = 8
_ROLLBACK_JOURNAL = b"\x01\x01"  # bytes 18 and 19 of the header; 2 is WAL
_INT64 = b"l"


class _Schema(ctypes.Structure):
    """ArrowSchema of the Arrow C data interface."""


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    """ArrowArray of the Arrow C data interface."""


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    """ArrowArrayStream of the Arrow C stream interface."""

    _fields_ = [
        ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    ]


_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def available() -> bool:
    """Whether the driver is there."""
    try:
        import adbc_driver_manager  # noqa: F401
        import adbc_driver_sqlite  # noqa: F401
    except ImportError:
        return False
    return True


def readable(path: Path) -> bool:
    """Whether the driver is there and the file is one that reading leaves alone."""
    if not available():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    beside = (path.with_name(path.name + end) for end in ("-journal", "-wal"))
    return head[18:20] == _ROLLBACK_JOURNAL and not any(p.exists() for p in beside)


def most_rows(path: Path) -> int:
    """More rows than the file has room for."""
    return path.stat().st_size // _BYTES_PER_ROW


def gather(path: Path, sql: str, into: Sequence[Gathered]) -> bool:
    """Run a SELECT of integer columns, one per `into`.  False, with `into` to be thrown away, where
    that fails."""
    import adbc_driver_manager
    import adbc_driver_sqlite

    most = most_rows(path)
    try:
        with (
            adbc_driver_sqlite.connect(path.resolve().as_uri() + "?mode=ro") as database,
            adbc_driver_manager.AdbcConnection(database) as connection,
        ):
            for pragma in ("query_only = on", "trusted_schema = off", "cell_size_check = on"):
                with adbc_driver_manager.AdbcStatement(connection) as statement:
                    statement.set_sql_query(f"pragma {pragma}")
                    statement.execute_update()
            with adbc_driver_manager.AdbcStatement(connection) as statement:
                statement.set_options(**{"adbc.sqlite.query.batch_rows": str(_BATCH_ROWS)})
                statement.set_sql_query(sql)
                handle, _ = statement.execute_query()
                try:
                    return _drain(handle.address, into, most)
                finally:
                    handle.release()
    except adbc_driver_manager.Error:
        return False


def _drain(address: int, into: Sequence[Gathered], most: int) -> bool:
    stream = _Stream.from_address(address)
    schema = _Schema()
    if stream.get_schema(address, ctypes.addressof(schema)):
        return False
    formats = [schema.children[i].contents.format for i in range(schema.n_children)]
    integers = [_INT64] * len(into)
    _RELEASE(schema.release)(ctypes.addressof(schema))
    while True:
        batch = _Array()
        if stream.get_next(address, ctypes.addressof(batch)):
            return False
        if not batch.release:
            return True
        try:
            most -= batch.length
            # what has no rows has no types either
            if most < 0 or (batch.length and formats != integers) or not _take(batch, into):
                return False
        finally:
            _RELEASE(batch.release)(ctypes.addressof(batch))


def _take(batch: _Array, into: Sequence[Gathered]) -> bool:
    if not batch.length:
        return True
    for number, column in enumerate(into):
        child = batch.children[number].contents
        if child.offset or batch.offset or _nulls(child):
            return False
        column.add(_view(child.buffers[1], ctypes.c_int64, batch.length))
    return True


def _nulls(array: _Array) -> bool:
    """Whether a value is missing: -1 as the count says that nobody has counted the bits."""
    if array.null_count >= 0 or not array.buffers[0]:
        return array.null_count > 0
    whole, rest = divmod(array.length, 8)
    bits = _view(array.buffers[0], ctypes.c_uint8, whole + (rest > 0))
    return bool(
        (bits[:whole] != 0xFF).any() or (rest and bits[-1] & ((1 << rest) - 1) != (1 << rest) - 1)
    )


def _view(address: int, kind: Any, length: int) -> np.ndarray:
    """The driver's memory, good until the batch is released."""
    return np.ctypeslib.as_array((kind * length).from_address(address))
