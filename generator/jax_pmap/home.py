"""Temporary folders of workers, which outlive no run for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

PREFIX = "jax-pmap-worker-"
#: What a folder is called until it is held.
MAKING = "jax-pmap-making-"
#: Seconds after which a folder that nobody came to hold is left over.
SETTLED = 60.0


class Home:
    """A temporary folder that is held while its process lives.

    A process that is killed cannot remove its own: the next run does.
    """

    def __init__(self) -> None:
        """Make the folder, and remove those that were left."""
        remove_left()
        made = Path(tempfile.mkdtemp(prefix=MAKING))
        self._lock = _lock(made)
        # Under its own name it is held from the first, so that one nobody holds is left over at once.
        folder = made.rename(made.with_name(PREFIX + made.name.removeprefix(MAKING)))
        self.name = str(folder)
        self._remove = weakref.finalize(self, _remove, folder)

    def __enter__(self) -> str:
        """The folder's name."""
        return self.name

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder."""
        self._remove()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def remove_left() -> None:
    """Remove this user's folders whose process is no longer there."""
    here = Path(tempfile.gettempdir())
    for folder in (*here.glob(f"{PREFIX}*"), *here.glob(f"{MAKING}*")):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            being_made = folder.name.startswith(MAKING) and time.time() - about.st_mtime < SETTLED
            if about.st_uid != os.getuid() or being_made:
                continue
            lock = _lock(folder)
            if lock is not None:
                _remove(folder)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder and all in it, what user code made unwritable too."""
    for place, names, _ in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds a folder; None where another process does, or nothing can be held there."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor
    return None
