"""What `-o FILE` or `--in-place` would change, as a patch."""

from __future__ import annotations

from pathlib import Path

from jax_pmap.files import unified_diff
from jax_pmap.model import Source, refused


def patch(path: Path, code: str) -> str:
    """Unified diff from the file at `path` (which need not exist) to `code`; empty when nothing would change.

    Line endings and a byte order mark are the file's own, because they are kept when it is written.

    Raises:
        RefusalError: JP016, when what is there cannot be read as text.
    """
    try:
        old = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        old = None
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise refused(
            "JP016", f"`{path}` cannot be compared with: {what}.", "Choose another path with `-o`."
        ) from error
    new = code.replace("\r\n", "\n")
    if old is not None and "\r\n" in old:
        new = new.replace("\n", "\r\n")
    if old is not None and old.startswith("\ufeff"):
        new = "\ufeff" + new
    return unified_diff(path, old, new)


def patch_in_place(source: Source, new: str) -> str:
    """Unified diff from the text of `source` to `new`, with paths from the project's root.

    Bytes that are not UTF-8, because the file is not, are surrogates.
    """
    bom, encoding = ("\ufeff", "utf-8") if source.encoding == "utf-8-sig" else ("", source.encoding)
    text = unified_diff(Path(source.shown_path), bom + source.file_text, bom + new)
    return text.encode(encoding, "backslashreplace").decode("utf-8", "surrogateescape")
