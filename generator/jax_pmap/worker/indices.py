"""What of a program depends on nothing but which device it runs on, for more devices than were tried."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .jaxpr.forward import Forward
from .jaxpr.versions import bind, named_axes, primitive_name
from .placements.derive import mesh_axes
from .placements.interpreter import COLLECTIVES

#: How many devices are looked at, and numbers up to which a value is computed for all of them.
DEVICES, MOST = 1024, 1 << 20


def first_unlike(jaxpr: Any, tried: int, most: int = DEVICES) -> list[int]:
    """Indices of devices, from `tried` on, at which a value of the index goes on in another way than before.

    Whole numbers and truth values that the program makes of ``axis_index`` and constants alone are computed
    for the first `most` devices. What is one number for all that were tried, or grows by the same from one to
    the next, is taken to go on so: ``index == 37`` and ``index // 40`` do not. Of what is another number on
    each, runs tell. For a mesh of one axis; nothing is known of others.

        >>> import jax.numpy as jnp
        >>> step = jax.pmap(lambda x: jnp.where(jax.lax.axis_index("i") == 37, 0 * x, x), axis_name="i")
        >>> first_unlike(jax.make_jaxpr(step)(jnp.ones((8, 3))), 8)
        [37]
    """
    if len(mesh_axes([jaxpr])) != 1:
        return []
    walk = _OfIndex(tried, most)
    walk.run(jaxpr, [None] * len(getattr(jaxpr, "jaxpr", jaxpr).invars))
    return sorted(walk.found)


class _Value:
    """An array that all devices have, or one with an axis of devices in front (`each`)."""

    def __init__(self, array: Any, *, each: bool) -> None:
        self.array, self.each = np.asarray(array), each

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Value) and self.each == other.each and np.array_equal(self.array, other.array)
        )

    __hash__ = None  # type: ignore[assignment]


class _OfIndex(Forward["_Value | None"]):
    """Computes what depends on the index of the device alone; None of all else."""

    def __init__(self, tried: int, most: int) -> None:
        super().__init__()
        self.tried, self.most = tried, most
        self.found: set[int] = set()

    def constant(self, value: Any) -> "_Value | None":
        small = getattr(value, "size", 1) <= MOST // self.most
        dtype = getattr(value, "dtype", None)
        if not small or (dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.extended)):
            return None
        return _Value(value, each=False)

    def operation(self, equation: Any, facts: "list[_Value | None]") -> "list[_Value | None]":
        nothing: list[_Value | None] = [None] * len(equation.outvars)
        name = primitive_name(equation)
        if name == "axis_index" and named_axes(equation.params):
            return [_Value(np.arange(self.most, dtype=equation.outvars[0].aval.dtype), each=True)]
        known = [each for each in facts if each is not None]
        if len(known) < len(facts) or not facts or name in COLLECTIVES or equation.effects:
            return nothing
        sizes = [math.prod(out.aval.shape) for out in equation.outvars]
        fits = all(
            each.array.shape[each.each :] == atom.aval.shape
            for each, atom in zip(known, equation.invars, strict=True)
        )
        if not fits or max(sizes) > MOST // self.most:
            return nothing
        try:
            made, each = self._made(equation, known)
        except MemoryError:
            raise
        except Exception:  # An operation without a rule for a batch, say.
            return nothing
        for array in made if each else ():
            self._look_at(array)
        return [_Value(array, each=each) for array in made]

    def _made(self, equation: Any, known: "Sequence[_Value]") -> tuple[list[Any], bool]:
        each = any(value.each for value in known)

        def called(*values: Any) -> list[Any]:
            return bind(equation, values)

        with jax.ensure_compile_time_eval():
            if each:
                called = jax.vmap(called, in_axes=tuple(0 if value.each else None for value in known))
            made = called(*(value.array for value in known))
            return [np.asarray(array) for array in made], each

    def _look_at(self, array: np.ndarray) -> None:
        """Keep the first device at which whole numbers go on in another way than on those that were tried."""
        if array.dtype.kind not in "biu" or len(array) <= self.tried:
            return
        numbers = array.reshape(len(array), -1)
        numbers = numbers.astype(np.int8) if numbers.dtype == bool else numbers
        with np.errstate(over="ignore"):
            straight = np.diff(numbers, 2, axis=0) == 0
        before = straight[: self.tried - 2].all(axis=0)
        after = straight[self.tried - 2 :]
        unlike = before & ~after.all(axis=0)
        if unlike.any():
            # The difference of two steps shows at the last of three devices.
            self.found.add(int(np.argmin(after[:, unlike], axis=0).min()) + self.tried)

    def join(self, one: "_Value | None", other: "_Value | None") -> "_Value | None":
        return one if one == other else None

    def under(self, fact: "_Value | None", choice: "_Value | None") -> "_Value | None":
        return fact if choice is not None and not choice.each else None
