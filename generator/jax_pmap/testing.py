"""The proof as an assertion, for a project's own tests; imports jax, which their environment has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jax_pmap.proof.causes import likeliest_cause
from jax_pmap.worker import host_arrays
from jax_pmap.worker.distance import distance
from jax_pmap.worker.leaves import is_key, to_float64
from jax_pmap.worker.one_device import OneDevice
from jax_pmap.worker.prove import (
    Rounding,
    Trial,
    bounds,
    coarsest_eps,
    draws_numbers,
    host,
    jittered_bounds,
    leaf_table,
    only_devices,
    ratio,
    replicas_differ,
    same_form,
    x64,
)

#: Device counts that are tried, as far as there are devices.
COUNTS = (2, 3, 4, 8)


def assert_parallel_equal(
    parallel: Callable[..., Any],
    reference: Callable[..., Any],
    *args: Any,
    counts: Sequence[int] | None = None,
    **kwargs: Any,
) -> None:
    """Assert that `parallel` gives on several devices what `reference` gives on one.

    Both are called with the same arguments, so `parallel` splits the batch itself, as generated functions do.
    Compared are structure, shapes, dtypes and values: in float64, within a bound that is measured from the
    reference's own rounding, and in the dtypes as given. What lies whole on every device has to be the same
    bits on all of them.

    Args:
        parallel: the multi-device function.
        reference: the single-device function; an axis that it synchronises over is bound to one device.
        *args: example arguments, the whole batch, different on every share.
        counts: device counts to run on; None for those of 2, 3, 4 and 8 that there are devices for and that
            divide the batch. A function that was mapped over chosen devices takes one count: ``counts=[8]``.
        **kwargs: example keyword arguments.

    Raises:
        AssertionError: they differ; it names the output, the device count, the error, the likeliest cause.
        ValueError: there is nothing to compare: one device only, no count that fits, or the same data on
            every share, which would hide a missing `pmean`.
    """
    __tracebackhide__ = True  # pytest then points at the line of the test
    host_arrays.tell_modes_apart()
    available = jax.local_device_count()
    if available < 2:
        raise ValueError(
            "there is one device only, which shows nothing: mark the test with `@pytest.mark.devices(8)`"
        )
    wanted = [count for count in counts or COUNTS if count <= available]
    asked = [count for count in wanted if _divides(count, args, kwargs)]
    if not asked:
        raise ValueError(
            f"no argument divides over {', '.join(map(str, wanted))} devices: use a batch of 24, or name the "
            "counts that fit: `counts=[...]`"
        )
    _refuse_repeats(asked[-1], args, kwargs)
    given = bool(jax.config.jax_enable_x64)
    reference = _on_one_device(reference)
    eps, draws = _rounding(reference, args, kwargs)
    wide_args, wide_kwargs = to_float64((args, kwargs))

    def trial(enabled: bool, values: tuple[Any, Any]) -> Trial:
        with x64(enabled):
            return Trial(lambda v: reference(*v["args"], **v["kwargs"]), _named(values), (), 1)

    rough = trial(given, (args, kwargs))
    fine = trial(True, (wide_args, wide_kwargs))
    own, double = Rounding(eps), Rounding(float(np.finfo(np.float64).eps))

    def allowed_for(one: Trial, other: Trial, precision: Rounding) -> list[list[float]]:
        # Numbers drawn in another precision are others: nothing is measured there.
        return jittered_bounds(one, (), 1.0, precision) if draws else bounds(one, other, own, precision)

    for count in asked:
        for enabled, values, want, allowed in (
            (True, (wide_args, wide_kwargs), fine, allowed_for(fine, rough, double)),
            (given, (args, kwargs), rough, allowed_for(rough, fine, own)),
        ):
            with x64(enabled), only_devices(count):
                got = parallel(*values[0], **values[1])
                jax.block_until_ready(got)
                _compare(got, want.results[0], allowed[0], count, widths=enabled == given)


def _on_one_device(function: Callable[..., Any]) -> Callable[..., Any]:
    one = OneDevice()
    return lambda *args, **kwargs: one.run(lambda: function(*args, **kwargs))


def _named(values: tuple[Any, Any]) -> dict[str, Any]:
    return {"args": values[0], "kwargs": values[1]}


def _rounding(reference: Callable[..., Any], args: Any, kwargs: Any) -> tuple[float, bool]:
    """The coarsest rounding in `reference` and whether it draws random numbers."""
    try:
        jaxpr = jax.make_jaxpr(lambda: reference(*args, **kwargs))()
    except jax.errors.JAXTypeError:  # it needs numbers where tracing has none
        return float(np.finfo(np.float32).eps), False
    return coarsest_eps(jaxpr), draws_numbers(jaxpr)


def _batches(args: Any, kwargs: Any) -> list[Any]:
    """The arrays with at least one axis, which may be a batch."""
    return [leaf for leaf in jax.tree.leaves((args, kwargs)) if np.ndim(leaf) and not is_key(leaf)]


def _divides(count: int, args: Any, kwargs: Any) -> bool:
    return any(
        size % count == 0 for leaf in _batches(args, kwargs) for size in np.shape(leaf) if size >= count
    )


def _refuse_repeats(count: int, args: Any, kwargs: Any) -> None:
    """Refuse data of which every share is the same: a function that never communicates would pass."""
    split = [np.asarray(leaf) for leaf in _batches(args, kwargs) if np.shape(leaf)[0] % count == 0]
    largest = max((leaf.shape[0] for leaf in split), default=0)
    batch = [leaf for leaf in split if leaf.shape[0] == largest]
    if batch and all(
        (np.array(np.split(leaf, count)) == leaf[: leaf.shape[0] // count]).all() for leaf in batch
    ):
        raise ValueError(
            "every device would get the same data, which hides a missing `pmean`: use random numbers "
            "instead of ones "
            "or zeros"
        )


def _compare(got: Any, want: Any, allowed: list[float], count: int, *, widths: bool) -> None:
    __tracebackhide__ = True
    form = same_form(got, want, widths=widths)
    if form is not None:
        where = f"output `{form['path']}`" if form["path"] else "the output"
        raise AssertionError(
            f"{where} has another {form['what']} on {count} devices: {form['got']}, the reference's is "
            f"{form['want']}"
        )
    for (path, leaf), target, bound in zip(leaf_table(got), jax.tree.leaves(want), allowed, strict=True):
        where = f"output `{path}`" if path else "the output"
        left, right = host(leaf), host(target)
        error, scale = distance(left, right)
        if not error <= bound:
            found = {"what": "value", "step": 0, "ratio": ratio(left, right)}
            cause = likeliest_cause(found, count)
            raise AssertionError(
                f"{where} differs on {count} devices: error {error / (scale or 1.0):.1e} of its size, bound "
                f"{bound / (scale or 1.0):.1e}" + (f". Likeliest cause: {cause}" if cause else "")
            )
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None and sharding.is_fully_replicated and len(sharding.device_set) == count:
            why = replicas_differ(leaf, count)
            if why:
                raise AssertionError(f"{where} is returned as one value on {count} devices, but {why}")
