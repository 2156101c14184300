"""Run emitted code with jax's own random numbers, and hold it to what must be true of them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from . import draws, prove
from .arguments import Packed, Values, cut
from .distance import distance
from .drawn_keys import made_one, of_both_kinds
from .exceptions import describe_exception
from .following import traced_as
from .jaxpr.trace import arrays_of
from .leaves import category, to_float64
from .perturb import jitter
from .protocol import Failure
from .specs import SEED
from .trials import Question


def own_draws(
    question: Question,
    call: Callable[[Values], Any],
    replicas: prove.Replicas,
    count: int,
    size: int,
    *,
    run: bool,
) -> Failure | bool:
    """Whether the keys of a parallel function are right, and its results that hold no noise of examples.

    Every draw for examples must have a key that differs between the `count` devices and every
    other one a key that does not, as the traced program shows. With `run`, the program is run
    on `size` rows too: replicated outputs must be the same bits on every device, and an output that
    no folded key went into must be the original's, keys to the last bit. Answers what
    is wrong, or whether any key was folded.
    """
    kind = question.kind
    values = cut(question.data[0], question.axes, size)
    values = to_float64(values) if question.wide else values
    packed = Packed(values, question.statics)

    with prove.x64(question.precision(kind)):
        try:
            parts = jax.make_jaxpr(arrays_of(call, packed))(packed.leaves)
            whole = traced_as(question.traceable, packed, packed.leaves).jaxpr
            wrong, followed = keys_of_both(whole, parts, packed.leaves, question.own_axes)
            if wrong is not None:
                return wrong
            # The first key of a device is another one than that of the whole batch.
            folded = any(draw.key.folded or (draw.of_first and draw.key.varying) for draw in followed.draws)
            if not run:
                return folded
            want = question.reference(values)
            nearby = jitter(values, question.statics, question.eps[kind], SEED)
            moved = want if nearby is None else question.reference(nearby)
            got = call(values)
            jax.block_until_ready(got)
        except MemoryError:
            raise
        except draws.Unfollowed as error:
            why = f"random numbers are drawn inside `{error}`, whose source jax-pmap cannot read"
            return Failure("draws", why=why)
        except BaseException as error:
            return Failure("exception", error=describe_exception(error))
        widths = question.widths(kind)
        found = differs(got, want, moved, followed.results, replicas, count, question.eps[kind], widths)
    return found or folded


def keys_of_both(
    whole: Any, parts: Any, leaves: Sequence[Any], own_axes: bool
) -> tuple[Failure | None, draws.Followed]:
    """What is wrong with the keys that a parallel program draws from, and what is known of them.

    Args:
        whole: the program for one device.
        parts: the same mapped over devices.
        leaves: what both are called with.
        own_axes: whether collectives stand in the original's own text.

    Raises:
        draws.Unfollowed: as `draws.follow`.
    """
    before, followed = draws.follow_both(whole, parts, live=True)
    wrong = draws.misuse(before, followed, own_axes)
    if wrong is not None:
        return Failure("draws", why=wrong), followed
    own = [draw.key.varying for draw in followed.draws]
    for mixed in of_both_kinds(before.program, leaves, own):
        why = (
            f"the numbers of shape {before.draws[mixed].shape} are examples' own, and on one device "
            "numbers that all share are drawn from their key in another round of a loop: there they "
            "depend on each other"
        )
        return Failure("keys", why=why), followed
    same = made_one(before.program, followed.program, leaves)
    if same is not None:
        one, other = (before.draws[at].shape for at in same)
        why = (
            f"the numbers of shape {one} and those of shape {other} are drawn with one key, on one "
            "device or another, where one device draws them with two: they depend on each other"
        )
        return Failure("keys", why=why), followed
    return None, followed


def differs(
    got: Any,
    want: Any,
    moved: Any,
    flows: Sequence[draws.Flow],
    replicas: prove.Replicas,
    count: int,
    eps: float,
    widths: bool,
) -> Failure | None:
    """The first difference between two results where there may be none.

    `flows` says of each array of `got` what went into it; `moved` is `want` for inputs changed by a rounding;
    `widths` is that of `prove.same_form`.
    """
    table = prove.leaf_table(got)
    failure = prove.same_form(got, want, widths=widths) or replicas(table, count)
    if failure is not None:
        return failure
    arrays = [
        (path, leaf, target, near)
        for (path, leaf), target, near in zip(
            table, jax.tree.leaves(want), jax.tree.leaves(moved), strict=True
        )
        if category(leaf) in ("array", "key")
    ]
    for (path, leaf, target, near), flow in zip(arrays, flows, strict=True):
        if flow.noisy or flow.folded:
            continue
        left, right = prove.host(leaf), prove.host(target)
        off, scale = distance(left, right)
        by_rounding = max(prove.ASSUMED * scale * eps, distance(prove.host(near), right)[0])
        bound = prove.SLACK * by_rounding if right.dtype.kind in "fcV" else 0.0
        if not off <= bound:
            return prove.wrong_value(left, right, bound, path)
    return None
