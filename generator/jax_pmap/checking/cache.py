"""What earlier runs found, by content: a file that did not change is not looked at again.

One JSON file in ``.jax-pmap-cache`` at the project root. It is only ever a saving: one that is missing,
damaged or of another version counts as empty, and a folder that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from pathlib import Path
from typing import Any

import jax_pmap

FOLDER = ".jax-pmap-cache"
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
    folder = Path(jax_pmap.__file__).parent
    marks = [jax_pmap.__version__]
    for top, _, files in os.walk(folder):
        for name in sorted(files):
            if name.endswith((".py", ".jinja")):
                status = (Path(top) / name).stat()
                marks.append(f"{top}/{name} {status.st_mtime_ns} {status.st_size}")
    return digest(*sorted(marks))


class Cache:
    """Answers by key; nothing is kept where `root` is None."""

    def __init__(self, root: Path | None) -> None:
        self._folder = root / FOLDER if root is not None else None
        self._tool = tool_digest() if root is not None else ""
        self._entries: dict[str, Any] = {}
        self._changed = False
        if self._folder is not None:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                document = json.loads((self._folder / "check.json").read_text(encoding="utf-8"))
                if document.get("tool") == self._tool:
                    self._entries = dict(document["entries"])

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
            temporary.write_text(json.dumps({"tool": self._tool, "entries": entries}), encoding="utf-8")
            temporary.replace(self._folder / "check.json")
