"""JP104: gradients that differ between devices go into an update."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.gradients import Gradients, gradients, returned_reduction
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule
from jax_pmap.syntax.scopes import Function, names_in, positional


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Updates with gradients that no collective took."""
    replicated = "replicate" in module.text
    seen: set[object] = set()
    for mapping in mappings.pmaps:
        if mapping.function is None or (mapping.axis is None and not replicated):
            continue
        function = mapping.function.node
        if function in seen:
            continue
        seen.add(function)
        for made in gradients(module, mappings, function):
            if (
                made.synced_by
                or made.lost
                or not made.updates
                or _elsewhere(module, mappings, made, function)
            ):
                continue
            if returned_reduction(module, made) is not None:
                continue  # JP105
            if isinstance(made.updates[0], ast.BinOp) and not _of_shares(module, mapping, made):
                continue  # a chain or a member of an ensemble may be each device's own
            name = sorted(made.names)[0]
            axis = f'"{mapping.axis}"' if isinstance(mapping.axis, str) else '"batch"'
            yield module.finding(
                "JP104",
                made.updates[0],
                f"`{name}` is each device's own gradient: the parameters are updated with it before it is "
                "averaged over the devices",
                f"Average it first: `{name} = jax.lax.pmean({name}, axis_name={axis})`",
            )


def _of_shares(module: Module, mapping: Mapping, made: Gradients) -> bool:
    """Whether a gradient is taken with data that is split, beside what it is taken of."""
    reference, application = mapping.function, mapping.application
    if reference is None or application.open:
        return False
    names = positional(reference.node)[reference.bound :]
    node = application.argument(99, "in_axes")
    axes = 0 if node is None else module.constant(node)
    if not isinstance(axes, int | tuple):
        return False
    per_name = dict(zip(names, axes, strict=False)) if isinstance(axes, tuple) else dict.fromkeys(names, axes)
    first, *others = made.call.args
    used = set().union(*(names_in(each) for each in others)) if others else set()
    if made.loss is not None and reference.node in module.ancestors(made.loss.node):
        used |= names_in(made.loss.node)
    return any(isinstance(per_name.get(name), int) for name in used - names_in(first))


def _elsewhere(module: Module, mappings: Mappings, made: Gradients, function: Function) -> bool:
    """Whether a function that the mapped one calls holds a collective, which may be what synchronises."""
    loss = made.loss.node if made.loss is not None else None
    return any(
        node is not function and node is not loss and loss not in set(module.ancestors(collective.call))
        for node in mappings.reachable(function)
        for collective in mappings.collectives(node)
        if function not in module.ancestors(collective.call)
    )


RULE = rule(
    "JP104",
    "gradients not synchronised before an update",
    find,
    meaning=(
        "A mapped function takes a gradient of its share of the batch and updates the parameters with "
        "it, "
        "and no collective is applied in between."
    ),
    why=(
        "Every device then trains a model of its own on its share: the copies drift apart without an "
        "error, "
        "and it even looks faster, since nothing is communicated."
    ),
    cure="Average the gradients over the axis before the update.",
    example="""\
import functools

import jax
import optax
from model import loss_fn

tx = optax.adam(1e-3)


@functools.partial(jax.pmap, axis_name="batch")
def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    loss = jax.lax.pmean(loss, axis_name="batch")
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss
""",
    fixed="""\
import functools

import jax
from model import loss_fn


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def averaged_first(w, x):
    loss, grad = jax.value_and_grad(loss_fn)(w, x)
    grad = jax.lax.pmean(grad, "batch")
    return w - 0.1 * grad, loss


@functools.partial(jax.pmap, axis_name="chains")
def a_chain_for_each_device(w, key):
    grad = jax.grad(loss_fn)(w)
    return w - 0.1 * grad + jax.random.normal(key, w.shape)


@functools.partial(jax.pmap, axis_name="members", in_axes=(0, None))
def a_member_for_each_device(w, x):
    grad = jax.grad(loss_fn)(w, x)
    return w - 0.1 * grad


@functools.partial(jax.pmap, axis_name="clients", in_axes=(None, 0))
def the_weights_are_averaged(w, x):
    grad = jax.grad(loss_fn)(w, x)
    return jax.lax.pmean(w - 0.1 * grad, "clients")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0))
def the_distance_to_it_is_no_update(w, x):
    grad = jax.grad(loss_fn)(w, x)
    return jax.lax.pmean(((w - grad) ** 2).sum(), "batch")
""",
)
DIAGNOSTIC = RULE.diagnostic
