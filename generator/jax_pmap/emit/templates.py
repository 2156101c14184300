"""The Jinja environment, with compiled templates kept the way Python keeps compiled modules."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from importlib.util import cache_from_source
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from jax_pmap.version import PACKAGE


def templates_dir() -> Path:
    """The folder that holds the templates: beside the package in a wheel, at the top of a checkout.

    Raises:
        FileNotFoundError: neither place holds it, so the installation is broken.
    """
    package = PACKAGE.resolve()
    candidates = (package / "templates", package.parents[1] / "templates")
    for folder in candidates:
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no templates in {' or '.join(map(str, candidates))}: reinstall jax-pmap")


@functools.cache
def environment(*, autoescape: bool = False) -> jinja2.Environment:
    """The environment all templates are rendered in; those of HTML with `autoescape`."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=autoescape,
        auto_reload=False,
        bytecode_cache=_BytecodeCache(),
    )


class _BytecodeCache(jinja2.BytecodeCache):
    """Compiled templates beside this module's own byte code, and under the same rules.

    Python's settings about writing and placing byte code hold; a folder that cannot be written costs
    compiling the templates each time and nothing else. Jinja checks what it finds against the
    form of its code, Python's version and the template's text.
    """

    def load_bytecode(self, bucket: Bucket) -> None:
        # Damaged byte code fails in any way there is, and is made again like byte code that is missing.
        with contextlib.suppress(Exception), self._path(bucket).open("rb") as file:
            bucket.load_bytecode(file)

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        path = self._path(bucket)
        # Written aside and moved into place: another process never reads half a file.
        aside = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                bucket.write_bytecode(file)
            aside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()

    def _path(self, bucket: Bucket) -> Path:
        own = Path(cache_from_source(__file__))
        return own.with_name(f"{own.stem}.{bucket.key[:16]}.jinja")
