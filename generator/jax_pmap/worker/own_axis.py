"""An axis that the target synchronises over where it is bound, and does without where it is not.

Such as ``lax.pmean(x, axis)`` in a `try`, or behind a question whether `axis` is bound. Its batch is going to
be mapped over that axis, and on one device it is that map over one, if that means the same.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence

from .arguments import Packed
from .exceptions import attempted
from .jaxpr.frames import frames
from .jaxpr.trace import Traced, abstract_leaves, leaf_names
from .jaxpr.versions import named_axes
from .jaxpr.walk import equations
from .load import text_of
from .origins import users_modules
from .placements.derive import same_meaning
from .protocol import Raised
from .target import Target, become, current

#: What names an axis in code: ``PMAP_AXIS = "i"``, ``axis_name="i"``, ``lax.pmean(x, "i")``.
NAMED = re.compile(
    r"""(?ix) \b\w*axis\w* \s* (?: :\s*[\w.]+ \s*)? = \s* ["'](\w+)["']
    | \bp(?:sum|mean|max|min)\( [^()\n]* , \s* (?:axis_name\s*=\s*)? ["'](\w+)["']"""
)
#: How many of the names in the user's code are tried.
MOST_NAMES = 3


def bind_own_axis(statics: Sequence[str]) -> None:
    """Have an axis bound to one device if the target synchronises over it; see `OneDevice`."""
    target = current()
    if target.one_device.axes:
        return
    packed = Packed(target.values({}), statics)
    found = target.once("own axis", tuple(statics), lambda: _own(target, packed))
    if found is not None:
        name, where = found
        target.one_device.axes[name] = where
        become(dataclasses.replace(target))


def _own(target: Target, packed: Packed) -> tuple[str, Raised] | None:
    """The axis that the target synchronises over and may do without, and where; None where there is none."""
    found = _first(target, packed)
    if found is None:
        return None
    leaves, axes = abstract_leaves(packed, {}), target.one_device.axes
    unbound = Traced.of(target.reference, packed, leaves).jaxpr
    if axes:
        return None  # It does not do without, as has been found out now.
    axes[found[0]] = found[1]
    try:
        bound = Traced.of(target.reference, packed, leaves).jaxpr
    finally:
        del axes[found[0]]
    return found if same_meaning(unbound, bound, leaf_names(packed)) else None


def _first(target: Target, packed: Packed) -> tuple[str, Raised] | None:
    """The first axis, of those that the user's code names, over which the target has a collective; and where.

    That is an error of no type, as nothing is raised.
    """
    texts = list(_texts())
    named = [match[1] or match[2] for text in texts for match in NAMED.finditer(text)]
    others = [] if target.axis_given else list(dict.fromkeys(named))[:MOST_NAMES]
    quoted = re.compile(rf"[\"']{re.escape(target.axis)}[\"']")
    own = [target.axis] if any(map(quoted.search, texts)) else []
    for name in dict.fromkeys([*own, *others]):
        leaves = abstract_leaves(packed, {})
        program = attempted(Traced.of, target.reference, packed, leaves, {name: 1})
        # Without the axis it is traced, or says why not.
        for equation in equations(program.jaxpr) if program is not None else ():
            if name in named_axes(equation.params) and (places := frames(equation)):
                calls = tuple((place.file, place.line, "") for place in places[::-1])
                return name, Raised("", equation.primitive.name, *calls[-1][:2], calls)
    return None


def _texts() -> Iterator[str]:
    """The user's code, by file."""
    for _, file in users_modules():
        with contextlib.suppress(OSError):
            text = text_of(file)
            yield text.decode(errors="replace") if isinstance(text, bytes) else text
