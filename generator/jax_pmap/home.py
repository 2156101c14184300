"""Temporary folders of workers, which outlive no run for long."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "jax-pmap-worker-"
#: Seconds after which a folder that nobody holds is left over: it is made before it is held.
SETTLED = 60.0


class Home:
    """A temporary folder that is held while its process lives.

    A process that is killed cannot remove its own: the next run does.
    """

    def __init__(self) -> None:
        """Make the folder, and remove those that were left."""
        remove_left()
        self._folder = tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True)
        self.name = self._folder.name
        self._held = _hold(Path(self.name))

    def __enter__(self) -> str:
        """The folder's name."""
        return self.name

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        self.cleanup()

    def cleanup(self) -> None:
        """Remove the folder."""
        self._folder.cleanup()
        if self._held is not None:
            os.close(self._held)
            self._held = None


def remove_left() -> None:
    """Remove this user's folders whose process is no longer there."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            about = folder.lstat()
            if about.st_uid != os.getuid() or time.time() - about.st_mtime < SETTLED:
                continue
            held = _hold(folder)
            if held is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(held)


def _hold(folder: Path) -> int | None:
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
