"""Names in a dict that tell whether code takes them apart, as in ``ACTIVATIONS[name.split("_")[1]]``."""

import re
import sys
from collections.abc import Callable
from typing import Any

#: jax goes through names, too: it prints those of arguments, and sorts all.
OF_JAX = re.compile(r"[/\\](?:site-packages|dist-packages)[/\\]jax(?:lib)?[/\\]")
#: What prints names for whoever calls it.
PRINTS = re.compile(r"[/\\]tree_util\.py$")
#: How names are kept and found in dicts, which is no question about what they say.
KEPT = (frozenset(dir(object)) | {"__getnewargs__"}) - {"__str__", "__repr__", "__format__"}


class Name(str):
    """A name that is equal to the plain one, and calls `note` where code reads more of it than the whole."""

    note: Callable[[], None]

    @classmethod
    def of(cls, text: str, note: Callable[[], None]) -> "Name":
        """The name that says `text`."""
        made = cls(text)
        made.note = note
        return made


def _noting(method: str) -> Callable[..., Any]:
    plain = getattr(str, method)

    def read(self: Name, *args: Any, **kwargs: Any) -> Any:
        if _is_asked_by_code() and hasattr(self, "note"):
            self.note()
        return plain(self, *args, **kwargs)

    return read


def _is_asked_by_code() -> bool:
    """Whether what reads a name now is no part of jax, or was called for it."""
    frame = sys._getframe(2)
    while frame.f_back is not None and PRINTS.search(frame.f_code.co_filename):
        frame = frame.f_back
    return OF_JAX.search(frame.f_code.co_filename) is None


for _method in set(dir(str)) - KEPT:
    if callable(getattr(str, _method)) and _method != "maketrans":
        setattr(Name, _method, _noting(_method))
