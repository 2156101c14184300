"""JP105: a reduction inside the differentiated loss."""

from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Losses whose value is a reduction over devices, unless the gradients are averaged afterwards."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind != "pmap" and not mapping.is_unchecked:
            continue
        for made in events(mappings, mapping).gradients:
            reduction = made.loss.reduced if made.loss is not None else None
            if reduction is None or made.lost or reduction in seen:
                continue
            application = module.application(reduction)
            name = application.qualname.rpartition(".")[2] if application else "psum"
            if made.synced == {"jax.lax.psum"}:
                what = "its gradients, summed over N devices, are N times too large"
            elif not made.synced and made.updates:
                what = "its gradient is still each device's own" + (
                    ", times the number of devices" if name == "psum" else ""
                )
            else:
                continue
            seen.add(reduction)
            yield module.finding(
                "JP105",
                reduction,
                f"`{name}` is inside the function that is differentiated: {what}",
                "Return the device's own loss, and apply `jax.lax.pmean` to loss and gradients after "
                "`value_and_grad`",
            )


RULE = rule(
    "JP105",
    "reduction inside the differentiated loss",
    find,
    meaning="The loss whose gradient is taken ends in a `psum` or `pmean`.",
    why=(
        "Under `pmap`, and in a `shard_map` with `check_vma=False`, the gradient of a `psum` is a `psum` "
        "of what flows back, the same on all devices: the result is the device's own gradient, N times "
        "too large for `psum`, and not the gradient of the mean."
    ),
    cure="Keep the loss local, and synchronise loss and gradients after they were computed.",
    example="""\
import functools

import jax


def loss_fn(w, x):
    return jax.lax.pmean((w * x).mean(), axis_name="batch")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def train_step(w, x):
    grads = jax.grad(loss_fn)(w, x)
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)
""",
    fixed="""\
import functools

import jax


def loss_fn(w, x):
    return (w * x).mean()


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0), out_axes=None)
def train_step(w, x):
    grads = jax.grad(loss_fn)(w, x)
    grads = jax.lax.pmean(grads, axis_name="batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, w, grads)
""",
)
DIAGNOSTIC = RULE.diagnostic
