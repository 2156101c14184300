"""An axis that the target synchronises over where it is bound, and does without where it is not.

Such as ``lax.pmean(x, axis)`` in a `try`, or behind a question whether `axis` is bound. Its batch is going to
be mapped over that axis, and on one device it is that map over one, if that means the same.
"""

import dataclasses
import re
import sys
from collections.abc import Sequence

from .arguments import Packed
from .jaxpr.frames import frames
from .jaxpr.trace import Traced, abstract_leaves, leaf_names
from .jaxpr.versions import named_axes
from .jaxpr.walk import equations
from .load import text_of
from .placements.derive import same_meaning
from .protocol import Problem, Raised
from .target import Target, become, current
from .type_tests import is_users_module


def bind_own_axis(statics: Sequence[str]) -> None:
    """Have the axis of the target bound to one device if it synchronises over it; see `OneDevice`."""
    target = current()
    if target.one_device.axes or not _is_named(target.axis):
        return
    packed = Packed(target.values({}), statics)
    where = target.once("own axis", tuple(statics), lambda: _first_collective(target, packed))
    if where is None:
        return
    leaves = abstract_leaves(packed, {})
    unbound = Traced.of(target.reference, packed, leaves).jaxpr
    if target.one_device.axes:
        return  # It does not do without.
    target.one_device.axes[target.axis] = where
    if same_meaning(unbound, Traced.of(target.reference, packed, leaves).jaxpr, leaf_names(packed)):
        become(dataclasses.replace(target))
    else:
        del target.one_device.axes[target.axis]


def _first_collective(target: Target, packed: Packed) -> Raised | None:
    """Where the target has a collective over its axis, if that is bound; of no type, as nothing is raised."""
    try:
        program = Traced.of(target.reference, packed, abstract_leaves(packed, {}), {target.axis: 1})
    except (MemoryError, Problem):
        raise
    except BaseException:  # Without the axis it is traced, or says why not.
        return None
    for equation in equations(program.jaxpr):
        if target.axis in named_axes(equation.params) and (places := frames(equation)):
            calls = tuple((place.file, place.line, "") for place in places[::-1])
            return Raised("", equation.primitive.name, *calls[-1][:2], calls)
    return None


def _is_named(axis: str) -> bool:
    """Whether the user's code has the name of an axis in it."""
    quoted = re.compile(rf"[\"']{re.escape(axis)}[\"']".encode())
    for module in list(sys.modules.values()):
        if axis and is_users_module(module):
            try:
                text = text_of(str(module.__file__))
            except OSError:
                continue
            if quoted.search(text if isinstance(text, bytes) else text.encode()):
                return True
    return False
