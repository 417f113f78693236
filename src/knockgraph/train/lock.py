"""One process trains into a run directory at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from pathlib import Path

from knockgraph.errors import KnockgraphError

NAME = ".lock"


class RunLock:
    """A lock of the operating system on ``.lock`` in the run directory.

    It belongs to the process: when that ends, by ``kill -9`` too, the lock is free, and children such as the loader's
    workers never hold it. The file says who has it and is removed with it. Of several ranks only the first takes it.

    Args:
        directory: The run directory.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / NAME
        self._handle: int | None = None

    def acquire(self) -> None:
        """Acquire the lock or raise an error; do nothing if it is already held."""
        while self._handle is None:
            try:
                handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise KnockgraphError(f"cannot write {self.path}: {str(error.strerror).lower()}") from error
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    owner = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                    os.close(handle)
                    raise KnockgraphError(
                        f"{self.directory} is in use: {owner} is training there; wait until it ends, or choose "
                        "another run_dir"
                    ) from error
                # A file system without locks is used as it is.
            if self._is_current(handle):
                self._handle = handle
            else:  # the one before has just ended and removed its file
                os.close(handle)
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _is_current(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self.path))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Release the lock."""
        if self._handle is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._handle)
            self._handle = None
