"""JP121: the average of the devices' masked means."""

import ast
import re
from collections.abc import Iterator

from jax_pmap.checking.findings import Finding
from jax_pmap.checking.mapped import Mappings
from jax_pmap.checking.module import Function, Module, names_in, parameters
from jax_pmap.checking.rule import Rule, diagnostic

INVALID = (
    """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def masked_mean(values, mask):
    return jax.lax.pmean(jnp.sum(values * mask) / jnp.sum(mask), axis_name="batch")
""",
    """\
import jax


def evaluate(losses, batch):
    loss = (losses * batch["weights"]).sum() / batch["weights"].sum()
    return jax.lax.pmean(loss, "i")


p_evaluate = jax.pmap(evaluate, axis_name="i")
""",
)
VALID = (
    """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def masked_mean(values, mask):
    total, count = jax.lax.psum((jnp.sum(values * mask), jnp.sum(mask)), axis_name="batch")
    return total / count
""",
    """\
import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.pmap, axis_name="batch")
def of_what_is_the_same_on_all_devices(values, mask):
    count = jax.lax.psum(jnp.sum(mask), "batch")
    return jax.lax.pmean(jnp.sum(values * mask) / count, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def the_mask_is_the_same_everywhere(scores):
    mask = jnp.tril(jnp.ones((8, 8)))
    return jax.lax.pmean(jnp.sum(scores * mask) / jnp.sum(mask), "batch")


@functools.partial(jax.pmap, axis_name="batch")
def a_mask_of_the_parameters(params, x):
    kept = jnp.sum(params["w"] * params["mask"]) / jnp.sum(params["mask"])
    return jax.lax.pmean(x * kept, "batch"), jax.lax.pmean(kept, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def everything_is_gathered_first(values, mask):
    values, mask = jax.lax.all_gather((values, mask), "batch")
    return jax.lax.pmean(jnp.sum(values * mask) / jnp.sum(mask), "batch")


@functools.partial(jax.pmap, axis_name="batch")
def of_a_plain_size(values):
    return jax.lax.pmean(jnp.sum(values) / values.size, "batch")


@functools.partial(jax.pmap, axis_name="batch")
def normalised_for_each_example(values, mask):
    each = (values * mask).sum(-1) / mask.sum(-1)
    return jax.lax.pmean(each.mean(), "batch")


@functools.partial(jax.pmap, axis_name="batch", in_axes=(0, None))
def weights_of_classes(values, class_weights):
    return jax.lax.pmean(jnp.sum(values @ class_weights) / jnp.sum(class_weights), "batch")
""",
)
#: Arguments that are the same on every device.
_WHOLE = re.compile(r"param|state|model|config|cfg|self|^w$")
_MASK = re.compile(r"mask|valid|padding|(?:^|_)weights?$", re.IGNORECASE)


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """``pmean(sum(values * mask) / sum(mask))``, where the mask is split over the devices."""
    for mapping in mappings.pmaps:
        if mapping.function is None or mapping.application.argument(99, "in_axes") is not None:
            continue
        function = mapping.function.node
        for collective in mappings.collectives(function):
            value = collective.call.args[0] if collective.call.args else None
            if collective.name != "pmean" or value is None:
                continue
            ratio = module.assigned(value)
            if not isinstance(ratio, ast.BinOp) or not isinstance(ratio.op, ast.Div):
                continue
            mask = _summed(module, ratio.right)
            if mask is None or _summed(module, ratio.left) is None:
                continue
            name = _name(mask)
            if not _is_share(module, function, mask):
                continue
            if not _MASK.search(name) or name not in {_name(node) for node in ast.walk(ratio.left)}:
                continue
            yield module.finding(
                "JP121",
                collective.call,
                f"the average of the devices' masked means is not the mean over all: each device's "
                f"`{module.source(ratio.right)}` is another one",
                "Add up numerator and denominator over the devices first: "
                "`total, count = jax.lax.psum((total, count), …)`, then divide",
            )


def _is_share(module: Module, function: Function, mask: ast.expr) -> bool:
    """Whether `mask` is part of an argument that is data, or is computed from one."""
    arguments = {name for name in parameters(function) if not _WHOLE.search(name)}
    arguments -= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    value = module.assigned(mask)
    if value is None or any(isinstance(node, ast.Call) for node in ast.walk(value)):
        return False
    attributes = {node.attr for node in ast.walk(value) if isinstance(node, ast.Attribute)}
    return bool(names_in(value) & arguments) and attributes.isdisjoint({"shape", "ndim", "size"})


def _summed(module: Module, node: ast.expr) -> ast.expr | None:
    """What ``jnp.sum(x)`` or ``x.sum()`` adds up to one number, None for anything else."""
    made = module.assigned(node)
    if not isinstance(made, ast.Call) or made.keywords:
        return None
    if (module.qualname(made.func) or "") in ("jax.numpy.sum", "numpy.sum"):
        return made.args[0] if len(made.args) == 1 else None
    is_method = isinstance(made.func, ast.Attribute) and made.func.attr == "sum" and not made.args
    return made.func.value if is_method and isinstance(made.func, ast.Attribute) else None


def _name(node: ast.AST) -> str:
    """``"mask"`` for `mask`, ``batch["mask"]`` and ``batch.mask``."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return str(node.slice.value)
    return ""


RULE = Rule(
    diagnostic(
        "JP121",
        "average of masked means",
        meaning=(
            "A mapped function divides by the sum of a mask or of weights on its own share of the batch, and "
            "averages the quotients over the devices."
        ),
        why=(
            "The quotients have different weights: a device with two valid rows counts as much as one with "
            "two hundred, and one with none makes everything NaN. Nothing fails, and with full batches the "
            "numbers are even right."
        ),
        cure="Sum numerator and denominator over the devices, then divide.",
        invalid=INVALID[0],
        valid=VALID[0],
    ),
    find,
    VALID,
    INVALID,
)
DIAGNOSTIC = RULE.diagnostic
