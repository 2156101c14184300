"""Programs that are one for integers of any bits, and those that are not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_pmap.worker.narrowed import only_wraps_elsewhere

TABLE = np.arange(60, dtype="float32").reshape(20, 3)


def looked_up(ids, x):
    """Indices, classes and a loss whose gradient scatters."""

    def loss(table):
        logits = table[ids] @ x.T
        kept = jnp.where(ids != 3, 1.0, 0.0) * jnp.take_along_axis(x, ids[:, None], 1)[:, 0]
        return (jax.nn.one_hot(ids, 4) * logits).sum() + kept.sum()

    return jax.grad(loss)(TABLE)


def shifted(ids, x):
    """Moved and computed with, element by element."""
    before = jnp.concatenate([jnp.zeros_like(ids[:1]), ids[:-1] + 1])
    return jnp.mean(x[:, 0] * before)


def scaled(ids, x):
    """Floats, then reduced."""
    return jnp.mean(ids.astype(jnp.float32) / 255) + x.sum()


def in_a_loop(ids, x):
    """Looked up in each round."""
    return jax.lax.scan(lambda carry, one: (carry + jnp.asarray(TABLE)[one].sum(), carry), x.sum(), ids)


def counted(ids, x):
    """What they are compared with decides, for one row or for all."""
    kept = ids != 3
    some = jax.lax.cond(ids[0] > 3, jnp.sum, jnp.max, x)
    return (x[:, 0] * kept).sum() / jnp.maximum(kept.sum(), 1) + some, jnp.any(ids == 0)


def summed(ids, x):
    return jnp.sum(ids) * x


def largest(ids, x):
    return -jnp.max(-ids) * x


def ordered(ids, x):
    return x[jnp.argsort(ids)]


def decides(ids, x):
    return jax.lax.switch(ids[0], [jnp.sum, jnp.max], x)


def by_dtype(ids, x):
    """Another function for few bits."""
    return jnp.mean(x) if ids.dtype == jnp.int32 else jnp.max(x)


def turned_by_dtype(ids, x):
    """What is done to the integers themselves is another thing there."""
    return jnp.asarray(TABLE)[ids if ids.dtype == jnp.int32 else ids[::-1]] * x


def added_by_dtype(ids, x):
    """What is added to them there comes of all rows."""
    other = jnp.argmax(x[:, 0])
    return jnp.asarray(TABLE)[ids if ids.dtype == jnp.int32 else ids + other], other


def returned_by_dtype(ids, x):
    """What comes back is an integer, or a float."""
    return (ids if ids.dtype == jnp.int32 else x[:, 0]), x


def programs(function):
    """Of int32, and of uint8."""
    x = jax.ShapeDtypeStruct((4, 3), jnp.float32)
    return [
        jax.make_jaxpr(function)(jax.ShapeDtypeStruct((4,), dtype), x) for dtype in (jnp.int32, jnp.uint8)
    ]


@pytest.mark.parametrize("function", [looked_up, shifted, scaled, in_a_loop, counted])
def test_what_is_done_element_by_element_is_one_program(function):
    assert only_wraps_elsewhere(*programs(function), {0})


@pytest.mark.parametrize(
    "function",
    [summed, largest, ordered, decides, by_dtype, turned_by_dtype, added_by_dtype, returned_by_dtype],
)
def test_what_all_rows_decide_is_held_on_its_own(function):
    assert not only_wraps_elsewhere(*programs(function), {0})
