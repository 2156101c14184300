"""What earlier runs found, by content: a file that did not change is not looked at again.

JSON files in ``.jax-pmap-cache`` at the project root. They are only ever a saving: one that is missing,
damaged, of another version or not written by this user counts as empty, and a folder that cannot be written
is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from pathlib import Path
from typing import Any

from jax_pmap.version import PACKAGE, VERSION

FOLDER = ".jax-pmap-cache"
#: How a file can be no cache.
_DAMAGED = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
#: Entries kept; the oldest go first.
_MOST = 20_000


def digest(*parts: bytes | str) -> str:
    """Hash of `parts`, each told apart from the next."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big") + data)
    return total.hexdigest()[:32]


def tool_digest() -> str:
    """Changes whenever this package does, also between releases."""
    folder = PACKAGE
    marks = [VERSION]
    for top, _, files in os.walk(folder):
        for name in sorted(files):
            if name.endswith((".py", ".jinja", ".toml", ".json")):
                status = (Path(top) / name).stat()
                marks.append(f"{top}/{name} {status.st_mtime_ns} {status.st_size}")
    return digest(*sorted(marks))


def own_key() -> bytes | None:
    """A random number that this user's cached answers are signed with; None where it cannot be kept.

    A cache lies in the project, where a repository may bring one along that says what its author likes.
    """
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: nobody's home
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "jax-pmap"
        path = folder / "key"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f"{secrets.token_hex(8)}.tmp"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(temporary)  # whole from the first, also where two begin at once
            temporary.unlink()
        about = path.stat()
        if about.st_uid == os.getuid() and not about.st_mode & 0o077 and about.st_size == 32:
            return path.read_bytes()
    return None


class Cache:
    """Answers by key, in one file; nothing is kept where `root` is None, or this user has no key."""

    def __init__(self, root: Path | None, name: str = "check.json") -> None:
        self._key = own_key() if root is not None else None
        self._folder = root / FOLDER if root is not None and self._key is not None else None
        if self._folder is not None and self._folder.is_symlink():
            self._folder = None  # it leads out of the project, to who knows whose files
        self._name = name
        self._tool = tool_digest() if self._folder is not None else ""
        self._entries: dict[str, Any] = {}
        self._changed = False
        if self._folder is not None:
            with contextlib.suppress(*_DAMAGED):
                document = json.loads((self._folder / name).read_text(encoding="utf-8"))
                entries = dict(document["entries"])
                if hmac.compare_digest(str(document["signed"]), self._signed(entries)):
                    self._entries = entries

    def _signed(self, entries: dict[str, Any]) -> str:
        """What shows that this user's own tool, in its present version, wrote the entries."""
        assert self._key is not None
        text = json.dumps([self._tool, self._name, entries])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def get(self, key: str) -> Any:
        """What was kept under `key`, or None."""
        return self._entries.get(key)

    def put(self, key: str, value: Any) -> None:
        """Keep `value`, which JSON can hold, under `key`."""
        if self._folder is not None:
            self._entries.pop(key, None)
            self._entries[key] = value
            self._changed = True

    def save(self) -> None:
        """Write what changed, whole or not at all."""
        if self._folder is None or not self._changed:
            return
        entries = dict(list(self._entries.items())[-_MOST:])
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            ignored = self._folder / ".gitignore"
            if not ignored.exists():
                ignored.write_text("*\n", encoding="utf-8")
            temporary = self._folder / f"{secrets.token_hex(8)}.tmp"
            document = {"signed": self._signed(entries), "entries": entries}
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.replace(self._folder / self._name)
