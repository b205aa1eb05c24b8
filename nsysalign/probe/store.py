"""Where a process stores what it saw: memory-mapped files that grow in chunks.

Writing is a store into mapped pages: no system call, nothing to flush, and what was written
survives SIGKILL. Chunks are populated when they are created, so a store does not cause a page fault
either.
"""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import threading

from .blame import pass_on
from .rawtime import Files, Untraced
from .slots import CHUNK_BITS, CHUNK_BYTES, TEXT_CHUNK

_MOST_CHUNKS = 16  # of 0.6 MB
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, which the module mmap does not name
_MAPPING = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
_OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC


def _map(fd: int, offset: int, size: int) -> mmap.mmap:
    try:
        # on a full disk this raises; a store into a page without a block would end the user's
        # process (SIGBUS)
        Files.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        Files.ftruncate(fd, offset + size)  # a file system that does not support it
    chunk = mmap.mmap(fd, size, flags=_MAPPING, offset=offset)
    try:  # MAP_POPULATE maps shared pages for reading: the first store into each would fault
        chunk.madvise(_POPULATE_WRITE)
    except (OSError, ValueError, AttributeError) as error:  # Linux before 5.14
        pass_on(error)
    return chunk


def page_of_last_words(folder: str) -> mmap.mmap:
    """A page of a file of errors, for a process that may give up its right to open one (setuid), or
    the way to it (chroot).  The mapping keeps a descriptor until it is collected."""
    fd = Files.open(f"{folder}/{os.getpid()}.later", _OPEN, 0o600)
    try:
        return _map(fd, 0, mmap.PAGESIZE)
    finally:
        Files.close(fd)


class Store:
    """The raw files of one process.  `chunks[seq >> CHUNK_BITS]` is the buffer that holds slot
    `seq`."""

    def __init__(self, folder: str, first_seq: int, chunks: dict[int, mmap.mmap]) -> None:
        self.lock = threading.RLock()  # a signal handler of the user's may run and call us
        self.chunks = chunks
        self._first = first_seq >> CHUNK_BITS
        for number in itertools.count():  # exec() keeps the pid, and its files are there
            self._stem = f"{folder}/{os.getpid()}-{number}"
            try:
                self._slots = Files.open(self._stem + ".rec", _OPEN | os.O_EXCL, 0o600)
                break
            except FileExistsError as error:
                pass_on(error)
        self._texts = Files.open(self._stem + ".txt", _OPEN, 0o600)
        self._text_offset = self._text_used = 0
        self._text = _map(self._texts, 0, TEXT_CHUNK)

    def grow(self, index: int) -> mmap.mmap:
        """The chunk with this number, created if it does not exist yet.  Older ones are forgotten,
        so that the program's memory does not grow with their number; whoever still writes into one
        holds it, or maps it again."""
        with self.lock:
            chunk = self.chunks.get(index)
            if chunk is None:
                place = (index - self._first) * CHUNK_BYTES
                chunk = self.chunks[index] = _map(self._slots, place, CHUNK_BYTES)
                for old in [n for n in self.chunks if n < index - _MOST_CHUNKS]:
                    del self.chunks[old]
            return chunk

    def close(self) -> None:
        """Let go of the files; what a late thread writes is lost."""
        with self.lock:
            self.chunks.clear()
            self._text = mmap.mmap(-1, TEXT_CHUNK)
            # no number that the program's next file may get
            descriptors, self._slots, self._texts = (self._slots, self._texts), -1, -1
            for descriptor in descriptors:
                Files.close(descriptor)

    def readings(self, size: int) -> mmap.mmap:
        """The file of the clock readings, created on first use at its full size."""
        fd = Files.open(self._stem + ".clk", _OPEN, 0o600)
        try:
            return _map(fd, 0, size)
        finally:
            Files.close(fd)

    def line(self, value: dict) -> None:
        """Append one JSON line to the text file.  It begins with a line end, too: of the one before
        only a part may be there, if an exception of the program's came at the end of a chunk."""
        with Untraced():
            data = b"\n" + json.dumps(value, separators=(",", ":")).encode() + b"\n"
        with self.lock:
            while data:
                begin, room = self._text_used, TEXT_CHUNK - self._text_used
                piece, data = data[:room], data[room:]
                self._text_used = begin + len(piece)  # reserved before it is filled
                self._text[begin : begin + len(piece)] = piece
                if self._text_used == TEXT_CHUNK:
                    self._text_offset += TEXT_CHUNK
                    self._text = _map(self._texts, self._text_offset, TEXT_CHUNK)
                    self._text_used = 0
