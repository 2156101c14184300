"""The proof as an assertion, for a project's own tests; imports jax, which their environment has."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from jax_pmap.proof.causes import likeliest_cause
from jax_pmap.worker import arguments, draws, host_arrays, sharing
from jax_pmap.worker.arguments import Packed
from jax_pmap.worker.distance import distance
from jax_pmap.worker.generator import Shares, drawn_sizes, groupings, rekeyed, repeat_draws
from jax_pmap.worker.jaxpr.trace import arrays_of
from jax_pmap.worker.leaves import category, is_abstract, is_key, is_key_leaf, to_float64
from jax_pmap.worker.noise import keys_of_both
from jax_pmap.worker.one_device import OneDevice
from jax_pmap.worker.origins import users_modules
from jax_pmap.worker.protocol import Failure, Problem
from jax_pmap.worker.prove import (
    Trial,
    bounds,
    host,
    jittered_bounds,
    leaf_table,
    only_devices,
    ratio,
    replicas_differ,
    same_form,
    x64,
)
from jax_pmap.worker.tracing import Measured, measure_in
from jax_pmap.worker.units import Rounding

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
    Compared are structure, shapes, dtypes and values, of results and of what `reference` changes in place (in
    copies of the arguments): in float64, within a bound that is measured from its own rounding, and in the
    dtypes as given. What lies whole on every device has to be the same bits on all of them. Numbers that are
    drawn for examples are drawn alike for both, row by row, and their keys have to differ between devices.

    Args:
        parallel: the multi-device function.
        reference: the single-device function; an axis that it synchronises over is bound to one device.
        *args: example arguments, the whole batch, different on every share.
        counts: device counts to run on; None for those of 2, 3, 4 and 8 that there are devices for and that
            divide the batch, the leading axis that most arguments have in all their arrays. A function that
            was mapped over chosen devices takes one count: ``counts=[8]``.
        **kwargs: example keyword arguments.

    Raises:
        AssertionError: they differ; it names the output, the device count, the error, the likeliest cause.
        ValueError: there is nothing to compare: one device only, no count that fits, shapes alone, a
            reference that gives no numbers, the same data on every share, which would hide a missing
            `pmean`, or other devices than those that `counts` names.
    """
    __tracebackhide__ = True  # pytest then points at the line of the test
    host_arrays.tell_modes_apart()
    names = _names(reference, len(args))
    available = jax.local_device_count()
    if available < 2:
        raise ValueError(
            "there is one device only, which shows nothing: mark the test with `@pytest.mark.devices(8)`"
        )
    if is_abstract((args, kwargs)):
        raise ValueError("the arguments are shapes alone, and both functions are called: use arrays")
    wanted = [count for count in counts or COUNTS if count <= available]
    asked = [count for count in wanted if _divides(count, args, kwargs)]
    if not asked:
        raise ValueError(
            f"no argument divides over {', '.join(map(str, wanted))} devices: use a batch of 24, or name the "
            "counts that fit: `counts=[...]`"
        )
    rows = _rows((*args, *kwargs.values()))
    for count in [count for count in asked if rows % count == 0][-1:]:
        _refuse_repeats(count, rows, args, kwargs)
    given = bool(jax.config.jax_enable_x64)
    one = OneDevice()
    reference = _on_one_device(reference, one)
    if counts:
        parallel = _on_devices_asked(parallel)
    mutated = _mutated(reference, names, (args, kwargs))
    reference, parallel = (_with_changes(function, names, mutated) for function in (reference, parallel))
    values = (args, kwargs)
    runs = _runs(reference, values, given, None)
    _refuse_nothing([want for _, _, want, _ in runs])
    left_out: Exception | None = None
    compared = draws_own = False
    for count in asked:
        strict = bool(counts) or rows % count == 0
        left: Exception | None = None
        try:
            if not draws_own:
                left = _hold(parallel, runs, count, None, mutated, given, strict)
        except AssertionError:
            draws_own = _measured(reference, values, given, wide=False).draws
            if not draws_own:
                raise
        if draws_own:
            left = _hold_for_equal_draws(
                parallel, reference, values, count, mutated, given, strict, bool(one.axes)
            )
        left_out, compared = left or left_out, compared or left is None
    if left_out is not None and not compared:
        raise left_out


#: Whether in 64 bits, arguments by position and by name, the result of the reference, and its bounds.
_Run: TypeAlias = tuple[bool, tuple[Any, Any], Any, list[float]]


def _hold(
    parallel: Callable[..., Any],
    runs: Sequence[_Run],
    count: int,
    shares: Shares | None,
    mutated: list[str],
    given: bool,
    strict: bool,
) -> Exception | None:
    """Hold `parallel` on `count` devices against runs of the reference, with random numbers for `shares`.

    Answers the error of a count that does not divide the batch, unless `strict`.
    """
    __tracebackhide__ = True
    jax.clear_caches()  # What was traced on other devices has their mesh in it.
    for number, (enabled, values, want, allowed) in enumerate(runs):
        with x64(enabled), only_devices(count), _caches_anew(), repeat_draws(shares):
            try:
                got = parallel(*values[0], **values[1])
                jax.block_until_ready(got)
            except (TypeError, ValueError) as error:
                if number or strict:
                    error.add_note(
                        f"It was called on {count} devices. If it is not made for that, name the counts that "
                        "it is made for: `counts=[...]`"
                    )
                    raise
                return error
            _compare(got, want, allowed, count, mutated, widths=enabled == given)
    return None


def _hold_for_equal_draws(
    parallel: Callable[..., Any],
    reference: Callable[..., Any],
    values: tuple[Any, Any],
    count: int,
    mutated: list[str],
    given: bool,
    strict: bool,
    own_axes: bool,
) -> Exception | None:
    """`_hold`, where numbers are drawn for examples, which on shares are others than on the whole batch.

    The keys are followed; then both functions draw by a generator that gives equal rows equal numbers. Which
    axis is the batch's is found out: for any other, a function that is right draws unlike numbers.
    """
    __tracebackhide__ = True
    drawn = _program(reference, values, count, given)
    # What is drawn on shares has other sizes where it is for examples.
    every, on_shares = drawn_sizes(drawn), drawn_sizes(_program(parallel, values, count, given))
    drawn_for = every - on_shares or every
    sizes = {size for leaf in _batches(*values) for size in np.shape(leaf) if size and size % count == 0}
    likeliest = sorted(sizes, key=lambda rows: (rows in drawn_for, rows), reverse=True)
    tried = [
        Shares(rows // count, rows, groups=groups)
        for rows in likeliest
        if any(size % rows == 0 or (size and rows % size == 0) for size in drawn_for)
        for groups in ((), *groupings(every, on_shares, rows))
    ]
    tried += [dataclasses.replace(shares, siblings=True) for shares in tried if not shares.groups]
    told: AssertionError | None = None
    for shares in tried:
        runs = _runs(reference, values, given, shares)
        try:
            left = _hold(parallel, runs, count, shares, mutated, given, strict)
        except AssertionError as error:
            told = told or error
            continue
        if left is None:
            _hold_keys(parallel, reference, values, count, given, own_axes)
        return left
    _hold_keys(parallel, reference, values, count, given, own_axes)  # What is wrong there says more.
    raise AssertionError(f"{told}. Both drew equal random numbers for equal rows") from None


def _program(function: Callable[..., Any], values: tuple[Any, Any], count: int, given: bool) -> Any:
    """What a function is traced to on `count` devices."""
    packed = Packed(_named(values), ())
    call = arrays_of(lambda given: _called(function, given), packed)
    with x64(given), only_devices(count), _caches_anew():
        return jax.make_jaxpr(call)(packed.leaves)


def _hold_keys(
    parallel: Callable[..., Any],
    reference: Callable[..., Any],
    values: tuple[Any, Any],
    count: int,
    given: bool,
    own_axes: bool,
) -> None:
    """Hold the keys of `parallel`: others on every device where it draws for examples, one elsewhere."""
    __tracebackhide__ = True
    whole, parts = (_program(function, values, count, given) for function in (reference, parallel))
    with x64(given), only_devices(count):
        try:
            wrong, _ = keys_of_both(whole, parts, Packed(_named(values), ()).leaves, own_axes)
        except draws.Unfollowed as error:
            raise AssertionError(f"random numbers are drawn inside `{error}`, which cannot be read") from None
    if wrong is not None:
        raise AssertionError(f"it uses its random keys wrongly on {count} devices: {wrong.why}")


@contextlib.contextmanager
def _caches_anew() -> Iterator[None]:
    """Give every function under `functools.cache` in the project's modules a cache that is empty.

    Generated files keep their mesh in one, which is of the devices that there were when it was made.
    """
    own = [namespace for namespace, _ in users_modules()]
    saved: list[tuple[dict[str, Any], str, Any]] = []
    anew: dict[Any, Any] = {}
    for namespace in own:
        for name, kept in list(namespace.items()):
            if isinstance(kept, functools._lru_cache_wrapper) and not kept.__module__.startswith("jax_pmap."):
                saved.append((namespace, name, kept))
                again = functools.lru_cache(**kept.cache_parameters())
                namespace[name] = anew.setdefault(kept, again(kept.__wrapped__))
    try:
        yield
    finally:
        for namespace, name, kept in saved:
            namespace[name] = kept


def _called(function: Callable[..., Any], named: dict[str, Any]) -> Any:
    return function(*named["args"], **named["kwargs"])


def _measured(reference: Callable[..., Any], values: tuple[Any, Any], given: bool, *, wide: bool) -> Measured:
    """What there is to know of the numbers in the reference, in float64 if `wide`."""
    call = functools.partial(_called, reference)
    try:
        return measure_in(call, Packed(_named(values), ()), wide=wide, x64=wide or given)
    except Problem:  # it needs numbers where tracing has none
        coarsest = np.float64 if wide else np.float32
        return Measured(Rounding(float(np.finfo(coarsest).eps)), False)


def _runs(
    reference: Callable[..., Any], values: tuple[Any, Any], given: bool, shares: Shares | None
) -> list[_Run]:
    """The reference in float64 and in the dtypes as given; in the latter alone where it fails in float64.

    Random numbers are drawn for `shares`.
    """
    values = rekeyed(values, shares)

    def trial(enabled: bool, values: tuple[Any, Any]) -> Trial:
        with x64(enabled), repeat_draws(shares):
            return Trial(functools.partial(_called, reference), _named(values), (), 1)

    wide = to_float64(values)
    rough, own = trial(given, values), _measured(reference, values, given, wide=False)
    try:
        fine = trial(True, wide)
    except Exception:  # A state that stays float32 does not go with gradients in float64; `rough` ran.
        return [(given, values, rough.results[0], jittered_bounds(rough, (), 1.0, own.rounding)[0])]
    # What `parallel` rounds by itself is not known.
    double = _measured(reference, wide, given, wide=True).rounding.with_that_of(None)

    def allowed_for(one: Trial, other: Trial, precision: Rounding) -> list[float]:
        # Numbers drawn in another precision are others: nothing is measured there.
        return (
            jittered_bounds(one, (), 1.0, precision)
            if own.draws
            else bounds(one, other, own.rounding, precision)
        )[0]

    return [
        (True, wide, fine.results[0], allowed_for(fine, rough, double)),
        (given, values, rough.results[0], allowed_for(rough, fine, own.rounding)),
    ]


def _on_one_device(function: Callable[..., Any], one: OneDevice) -> Callable[..., Any]:
    return lambda *args, **kwargs: one.run(lambda: function(*args, **kwargs))


def _on_devices_asked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of which it is an error that its results lie on more or fewer devices than there are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        arrays = [
            leaf
            for leaf in jax.tree.leaves(result)
            if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        ]
        found, asked = len({device for leaf in arrays for device in leaf.devices()}), jax.device_count()
        if found > 1 and found != asked:  # Behind `x[0]` an array is on one.
            raise ValueError(
                f"`counts` asks for {asked} devices, and the result lies on {found}: a mesh that is made "
                "when a module is imported keeps its devices. Name how many it has, "
                f"`counts=[{found}]`, or make it when the function is called"
            )
        return result

    return call


def _names(function: Callable[..., Any], count: int) -> list[str]:
    """Names for arguments by position: those of the parameters, where there are as many."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = {}.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [each.name for each in parameters if each.kind in positional][:count]
    return found if len(found) == count else [f"argument_{index}" for index in range(count)]


def _mutated(reference: Callable[..., Any], names: list[str], values: tuple[Any, Any]) -> list[str]:
    """The arguments that a function changes in place: Flax NNX modules, an entry of a dict."""
    args, kwargs = values
    given = {**dict(zip(names, args, strict=True)), **kwargs}
    try:
        sharing.note(given)
        own = arguments.own(given, given)
        before = {name: jax.tree.flatten(value) for name, value in own.items()}
        reference(*(own[name] for name in names), **{name: own[name] for name in kwargs})
    except Exception:  # It fails, or does not let itself be copied: it is called as it is.
        return []
    return [name for name, value in own.items() if arguments.changed(before[name], value)]


def _with_changes(function: Callable[..., Any], names: list[str], mutated: list[str]) -> Callable[..., Any]:
    """`function` on copies of the arguments `mutated`, which come behind its result as it leaves them."""
    if not mutated:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        own = arguments.own({**dict(zip(names, args, strict=True)), **kwargs}, mutated)
        result = function(*(own[name] for name in names), **{name: own[name] for name in kwargs})
        return result, tuple(own[name] for name in mutated)

    return call


def _named(values: tuple[Any, Any]) -> dict[str, Any]:
    return {"args": values[0], "kwargs": values[1]}


def _batches(args: Any, kwargs: Any) -> list[Any]:
    """The arrays with at least one axis, which may be a batch."""
    return [leaf for leaf in jax.tree.leaves((args, kwargs)) if np.ndim(leaf) and not is_key(leaf)]


def _divides(count: int, args: Any, kwargs: Any) -> bool:
    return any(
        size % count == 0 for leaf in _batches(args, kwargs) for size in np.shape(leaf) if size >= count
    )


def _rows(given: Iterable[Any]) -> int:
    """The size of the batch: the leading axis that most arguments have in all their arrays.

    Those of parameters seldom agree. Of sizes that as many have it is the last one's, as batches come last.
    """
    leading = [
        {np.shape(leaf)[0] for leaf in jax.tree.leaves(each) if np.ndim(leaf) and not is_key_leaf(leaf)}
        for each in given
    ]
    sizes = [size for found in leading if len(found) == 1 for size in found]
    sizes = sizes or [size for found in leading for size in found]
    return max(reversed(sizes), key=sizes.count, default=0)


def _refuse_nothing(results: Sequence[Any]) -> None:
    """Refuse a reference in whose results there is no number, which any function gives as well."""
    arrays = [
        host(leaf) for result in results for leaf in jax.tree.leaves(result) if category(leaf) != "opaque"
    ]
    floats = [each.astype(complex) for each in arrays if each.size and each.dtype.kind in "fcV"]
    whole = any(each.size and each.dtype.kind not in "fcV" for each in arrays)
    if any(np.isfinite(each).any() for each in floats):
        return
    if whole and not any(np.isnan(each).any() for each in floats):
        return
    raise ValueError(
        "nothing was compared: every float that the reference gives is NaN or infinite. Give arguments for "
        "which it gives numbers"
        if floats
        else "nothing was compared: the reference gives no arrays, and none of its arguments is seen to "
        "change. Let both functions return what they compute"
    )


def _refuse_repeats(count: int, rows: int, args: Any, kwargs: Any) -> None:
    """Refuse data of which every share is the same: a function that never communicates would pass."""
    batch = [np.asarray(leaf) for leaf in _batches(args, kwargs) if np.shape(leaf)[0] == rows]
    if batch and all(
        (np.array(np.split(leaf, count)) == leaf[: leaf.shape[0] // count]).all() for leaf in batch
    ):
        raise ValueError(
            "every device would get the same data, which hides a missing `pmean`: use random numbers "
            "instead of ones "
            "or zeros"
        )


def _where(path: str, mutated: list[str]) -> str:
    """A leaf of what is compared, in words: ``[1][0].weights`` is one of the first argument of `mutated`."""
    if mutated and path.startswith("[1]"):
        index, bracket, rest = path.removeprefix("[1][").partition("]")
        return f"argument `{mutated[int(index)]}{rest}`, which the reference changes," if bracket else path
    path = path.removeprefix("[0]") if mutated else path
    return f"output `{path}`" if path else "the output"


def _compare(
    got: Any, want: Any, allowed: list[float], count: int, mutated: list[str], *, widths: bool
) -> None:
    __tracebackhide__ = True
    form = same_form(got, want, widths=widths)
    if form is not None:
        where = _where(form.path, mutated)
        raise AssertionError(
            f"{where} has another {form.what} on {count} devices: {form.got}, the reference's is {form.want}"
        )
    for (path, leaf), target, bound in zip(leaf_table(got), jax.tree.leaves(want), allowed, strict=True):
        where = _where(path, mutated)
        left, right = host(leaf), host(target)
        error, scale = distance(left, right)
        if not error <= bound:
            found = Failure("value", ratio=ratio(left, right), differing=(left.size, left.size))
            cause = likeliest_cause(found, "given", count)
            raise AssertionError(
                f"{where} differs on {count} devices: error {error / (scale or 1.0):.1e} of its size, bound "
                f"{bound / (scale or 1.0):.1e}" + (f". Likeliest cause: {cause}" if cause else "")
            )
        sharding = getattr(leaf, "sharding", None)
        if sharding is not None and sharding.is_fully_replicated and len(sharding.device_set) == count:
            why = replicas_differ(leaf, count)
            if why:
                raise AssertionError(f"{where} is returned as one value on {count} devices, but {why}")
