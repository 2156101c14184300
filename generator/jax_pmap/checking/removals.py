"""What parallel code uses and jax removed, renamed or deprecated, each with its version and its cure.

The versions are those of the changelog (https://docs.jax.dev/en/latest/changelog.html); a test holds the rows
of the table against the jax that is installed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Removal:
    """A name, parameter or option of jax, and until when it works: a row of ``removals.json``."""

    #: ``"jax.device_put_replicated"``; a module stands for all that is in it.
    name: str
    #: The version that deprecated it; empty where it went without.
    since: str
    #: The first version without it; empty while it still works.
    gone: str
    #: What to do instead.
    cure: str
    #: A name that is a drop-in replacement, if there is one.
    same: str = ""


_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
#: Names, by the module they were in; keyword parameters, as ``function(parameter)``; attributes of what a
#: function returns; options of `jax.config`. What is gone from `jax.shard_map` it never had.
NAMES, PARAMETERS, ATTRIBUTES, OPTIONS = (
    tuple(Removal(*row) for row in _TABLE[kind]) for kind in ("names", "parameters", "attributes", "options")
)
#: What a function takes by keyword alone, where the one that it replaces did not.
BY_KEYWORD = Removal(*_TABLE["by_keyword"])
#: The mesh as a context manager, which no name stands for.
WITH_MESH = Removal(*_TABLE["with_mesh"])
