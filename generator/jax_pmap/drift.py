"""Code written for other versions of the libraries it uses, known by how it fails."""

from __future__ import annotations

import re
from pathlib import Path

from jax_pmap.checking.removals import NAMES, PARAMETERS
from jax_pmap.worker.protocol import Raised

#: What to do instead of names that code of one device uses; those of parallel code are in `removals`.
INSTEAD = {each.name: each.cure for each in NAMES} | {
    "jax.tree_leaves": "use `jax.tree.leaves`",
    "jax.tree_flatten": "use `jax.tree.flatten`",
    "jax.tree_unflatten": "use `jax.tree.unflatten`",
    "jax.tree_structure": "use `jax.tree.structure`",
    "jax.tree_transpose": "use `jax.tree.transpose`",
    "jax.ops.index_update": "use `x.at[index].set(y)`",
    "jax.ops.index_add": "use `x.at[index].add(y)`",
    "jax.ops.index": "use `x.at[…]`",
    "jax.experimental.optimizers": "use `optax`, or `jax.example_libraries.optimizers`",
    "jax.experimental.stax": "use `jax.example_libraries.stax`",
    "jax.experimental.host_callback": "use `jax.experimental.io_callback`",
    "jax.random.KeyArray": "use `jax.Array`",
    "jax.numpy.DeviceArray": "use `jax.Array`",
    "flax.optim": "use `optax`",
    "flax.nn": "use `flax.linen`",
}
#: The same of keyword parameters, as ``function(parameter)``.
CALLED = {each.name: each.cure for each in PARAMETERS} | {
    "jax.numpy.clip(a_min)": "it is called `min`",
    "jax.numpy.clip(a_max)": "it is called `max`",
}
#: What Python says of a parameter that a function does not have.
UNEXPECTED = re.compile(r"\b(?P<function>\w+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
#: What Python says of a name that a module does not have, or has not imported.
MISSING = re.compile(r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
#: What Python, and jax where it took something away, say of a name that a module does not have.
GONE = (
    re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'"),
    MISSING,
    re.compile(r"No module named '(?P<module>\w+(?:\.\w+)*)\.(?P<name>\w+)'"),
    re.compile(r"(?P<module>jax(?:\.\w+)*)\.(?P<name>\w+) (?:was|is|has been|were) (?:deprecated|removed)"),
)
#: What `import jax` does not import with it: modules by their names, and packages of such.
ALONE = frozenset(
    {"jax.ad_checkpoint", "jax.flatten_util", "jax.scipy.optimize", "jax.scipy.spatial"}
    | {"jax.example_libraries", "jax.experimental", "jax.extend"}
)
#: Errors that speak of it.
KINDS = frozenset({"AttributeError", "ImportError", "ModuleNotFoundError"})


def outdated(error: Raised | None, directory: Path) -> str | None:
    """What to do about a name or parameter that the installed version of a library does not have, or None.

    Modules in `directory` are the user's own.
    """
    if error is None:
        return None
    if error.type == "TypeError" and (unexpected := UNEXPECTED.search(error.message)):
        return _without(f"{unexpected['function']}({unexpected['name']})")
    if error.type not in KINDS:
        return None
    found = next((match for form in GONE if (match := form.search(error.message))), None)
    if found is None:
        return None
    library = found["module"].partition(".")[0]
    if (directory / library).exists() or (directory / f"{library}.py").exists():
        return None
    name = f"{found['module']}.{found['name']}"
    if found.re is MISSING and name not in INSTEAD and ALONE & {name, found["module"]}:
        return f"`{name}` is a module that `import {library}` does not import: write `import {name}`"
    cure = INSTEAD.get(name, "bring that line up to date")
    return (
        f"The installed `{library}` has no `{name}`: {cure}, or name a Python with the version of "
        f"`{library}` that it was written for: --python PATH"
    )


def _without(call: str) -> str | None:
    """What to do about a parameter that jax has no more, said as ``"clip(a_min)"``, or None."""
    gone = next((name for name in CALLED if name.endswith(f".{call}")), None)
    if gone is None:
        return None
    function, _, parameter = gone.removesuffix(")").partition("(")
    return (
        f"The installed `jax` has no parameter `{parameter}` of `{function}`: {CALLED[gone]}, or name a "
        "Python with the version of `jax` that it was written for: --python PATH"
    )
