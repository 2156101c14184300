"""A reference that is parallel itself: called in a layout of its own, on the devices there are."""

import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax

from . import prove
from .arguments import LeafAxes, Packed, Values, copied, partitioned
from .calling import Calling
from .exceptions import describe_exception
from .jaxpr.trace import traced_arrays
from .jaxpr.versions import opened
from .jaxpr.walk import MAPS, equations, is_mapped, subjaxprs
from .leaves import is_key_leaf, shape_of, to_host
from .parallel import (
    MOST_LAYOUTS,
    Layout,
    devices_of,
    each_taken,
    fitting,
    is_stacked,
    layouts,
    put,
    traced,
)
from .protocol import Call, Failure
from .renaming import Renaming


class ParallelReference:
    """The user's object, called with values as the reference's signature binds them.

    Its results come as one device returns them: shares are put together, and of copies on all devices there
    is one. Copies that are not the same stay as they are, with their axis of devices.

    Args:
        calling: the object.
        whole: the function that it maps over devices, of the whole batch: for the shapes of results.
        given: the example inputs, as one device takes them.
        axes: batch axes of the arguments.
        statics: arguments that are constants.
        layout: how each argument is given.
        count: how many devices there are.
        renaming: of trees that the object has in a form of its own.
    """

    def __init__(
        self,
        calling: Calling,
        whole: Callable[[Values], Any],
        given: Values,
        axes: LeafAxes,
        statics: Sequence[str],
        layout: Layout,
        count: int,
        renaming: Renaming | None = None,
    ) -> None:
        self.calling, self.whole, self.given, self.renaming = calling, whole, given, renaming
        self.axes, self.statics, self.layout, self.count = axes, statics, layout, count
        #: Results of the whole batch by their shapes, for the shapes of the values.
        self._shapes: dict[Any, Any] = {}

    def __call__(self, values: Values) -> Any:
        """Lay the values out, call, and return the results as one device does.

        Raises:
            prove.Differs: a result is neither that of one device, nor copies or shares of it.
        """
        out = self.laid_out(values)
        if all(form == "whole" for form in self.layout.values()):
            return out
        return one_of_each(out, self.shapes(values), self.count)

    def laid_out(self, values: Values) -> Any:
        """What the object returns, as it is; on the host, as what it donates would be gone for others."""
        out = self.called(values if traced(values) else to_host(values))
        return out if traced(out) else to_host(out)

    def called(self, values: Values) -> Any:
        """What the object returns, and where it lies."""
        given, first = copied(values), self.given
        if self.renaming is None:
            return self.calling(put(given, self.axes, self.layout, self.count, first))
        given, first = self.renaming.back(given, self.count), self.renaming.back(first)
        out = self.calling(put(given, self.axes, self.layout, self.count, first))
        return self.renaming.results(out)

    def shapes(self, values: Values) -> Any:
        """The results of one device by their shapes, where it has values like these."""
        plain = {name: self._plain(name, value) for name, value in values.items()}
        packed = Packed(plain, self.statics)
        kinds = tuple((shape_of(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in packed.leaves)
        key = kinds, packed.key, bool(jax.config.jax_enable_x64)
        if key not in self._shapes:
            self._shapes[key] = shapes_of(self.whole, packed)
        return self._shapes[key]

    def _plain(self, name: str, value: Any) -> Any:
        """A value as one device has it: of what is each device's own, that of the first."""
        leaves, tree = jax.tree.flatten(value)
        like = jax.tree.leaves(self.given[name])
        if len(leaves) != len(like):
            return value
        pairs = zip(leaves, like, strict=True)
        return tree.unflatten([x[0] if is_stacked(x, given, self.count) else x for x, given in pairs])


def shapes_of(function: Callable[[Values], Any], packed: Packed) -> Any:
    """The result of a function, with the shapes of its arrays in their places."""
    again: list[Callable[[Sequence[Any]], Any]] = []

    def run(leaves: Sequence[Any]) -> list[Any]:
        arrays, back = partitioned(function(packed.unpack(leaves)))
        again.append(back)
        return arrays

    arrays = jax.eval_shape(run, packed.leaves)
    return again[-1](arrays)


def one_of_each(got: Any, want: Any, count: int) -> Any:
    """Outputs of raw code as one device returns them, but for what every device has its own of.

    Raises:
        prove.Differs: an output is neither of the shape of one device's, nor copies or shares of that.
    """
    if jax.tree.structure(got) != jax.tree.structure(want):
        raise prove.Differs(Failure("structure"))
    leaves, _ = each_taken(got, want, count)
    return jax.tree.unflatten(jax.tree.structure(got), leaves)


def find_layout(
    make: Callable[[Layout, Sequence[str]], ParallelReference],
    calling: Calling,
    values: Values,
    axes: LeafAxes,
    statics: Sequence[str],
    wanted: "Sequence[Layout] | None",
) -> list[Call]:
    """How the object ends in each `wanted` way of calling it, up to one in which it runs; None for all ways.

    It ``"raises"``, gives results of another ``"form"`` than the function that it maps, or ``"runs"``.
    """
    asked: Iterable[Layout] = wanted or itertools.islice(
        layouts(calling, values, axes, statics), MOST_LAYOUTS
    )
    tried: list[Call] = []
    for layout in asked:
        fits = fitting(calling, layout)
        for named in dict.fromkeys((tuple(calling.named), ())):
            reference = make(fits, named)
            ended, indexed = attempt(reference, values, statics)
            if ended.ends != "raises":
                break
        if wanted is None and ended.ends == "runs" and not indexed:
            # Without its own index, a device that is given a copy of a key draws what all others draw.
            keyed = {
                name: "keys" for name, form in fits.items() if form == "devices" and is_key_only(values[name])
            }
            if keyed:
                own, _ = attempt(make({**fits, **keyed}, named), values, statics)
                ended = own if own.ends == "runs" else ended
        tried.append(ended)
        if ended.ends == "runs":
            break
    return tried


def is_key_only(value: Any) -> bool:
    """Whether all arrays of a value are keys, typed or raw."""
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(map(is_key_leaf, leaves))


def attempt(reference: ParallelReference, values: Values, statics: Sequence[str]) -> tuple[Call, bool]:
    """How one call ends, see `find_layout`, and whether devices ask for their index."""
    ended = functools.partial(Call, reference.layout, tuple(reference.calling.named))
    try:
        out = jax.block_until_ready(reference.called(to_host(values)))
        # Shares of what is none may be taken by broadcasting, where all of it is not.
        shapes = reference.shapes(values)
    except MemoryError:
        raise
    except BaseException as error:
        return ended("raises", describe_exception(error)), False
    lies_on = devices_of(out)
    try:
        one_of_each(to_host(out), shapes, reference.count)
    except prove.Differs:
        return ended("form"), False
    packed = Packed(values, statics)
    jaxpr = traced_arrays(reference.laid_out, packed)
    if jaxpr is None:
        return ended("runs", mapped=lies_on > 1), True
    if _keeps_device_axis(jaxpr, reference, packed):
        # Inside, it is one axis more of the array, which may go well by broadcasting.
        return ended("form"), False
    indexed = any(each.primitive.name == "axis_index" for each in equations(jaxpr))
    return ended("runs", mapped=is_mapped(jaxpr)), indexed


def _keeps_device_axis(jaxpr: Any, reference: ParallelReference, packed: Packed) -> bool:
    """Whether an array that is given a device axis has all of it on every device, as for ``in_axes=None``."""
    count = reference.count
    shapes = {
        (count, *shape_of(leaf))
        for leaf, (name, _) in zip(packed.leaves, packed.owners, strict=True)
        if reference.layout[name] == "devices"
    }
    return any(
        outer.aval.shape == inner.aval.shape and outer.aval.shape in shapes
        for equation in equations(jaxpr)
        if equation.primitive.name in MAPS
        for body in subjaxprs(equation)
        for outer, inner in zip(equation.invars, opened(body)[0].invars, strict=False)
    )
