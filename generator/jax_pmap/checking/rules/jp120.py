"""JP120: gradients that `shard_map` has summed already are averaged over the devices."""

import ast
from collections.abc import Iterator

from jax_pmap.checking.arguments import split_axes
from jax_pmap.checking.findings import Finding
from jax_pmap.checking.flow import events
from jax_pmap.checking.mapped import Mapping, Mappings
from jax_pmap.checking.module import Module
from jax_pmap.checking.rule import rule
from jax_pmap.checking.values import Gradient, Reduction, leaves

INVALID = (
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import apply, mesh


def loss_fn(params, batch):
    return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()


def train_step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


step = jax.jit(jax.shard_map(train_step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P()))
""",
    """\
import functools

import jax
from jax import shard_map
from jax.sharding import PartitionSpec
from model import mesh


def loss_fn(w, x):
    return (x @ w).mean()


@functools.partial(
    shard_map, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("i")), out_specs=PartitionSpec()
)
def train_step(w, x):
    loss, grads = jax.value_and_grad(loss_fn)(w, x)
    loss, grads = jax.lax.pmean((loss, grads), "i")
    return w - 0.1 * grads
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import apply, mesh


def gradients(params, batch):
    def loss_fn(params):
        return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()

    return jax.value_and_grad(loss_fn)(params)


def average(tree):
    return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, axis_name="batch"), tree)


def train_step(params, batch):
    loss, grads = gradients(params, batch)
    grads = average(grads)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), jax.lax.pmean(loss, "batch")


def data_parallel(body):
    specs = (P(), P("batch"))
    return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=(P(), P())))


step = data_parallel(train_step)
""",
    """\
import functools

import jax
from jax.sharding import PartitionSpec as P
from model import mesh

AXIS = "batch"


def step(w, x, rate, loss):
    return w - rate * jax.lax.pmean(jax.grad(lambda v: loss(v, x))(w), AXIS)


def squares(w, x):
    return ((x @ w) ** 2).mean()


body = functools.partial(step, rate=0.1, loss=squares)
sharded = jax.shard_map(body, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P())
""",
)
VALID = (
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import apply, mesh


def loss_fn(params, batch):
    return ((apply(params, batch["x"]) - batch["y"]) ** 2).mean()


def train_step(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


step = jax.jit(
    jax.shard_map(train_step, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P(), check_vma=False)
)
""",
    """\
import jax
from jax.sharding import PartitionSpec as P
from model import elsewhere, loss_of, mesh


def loss_fn(params, batch):
    return loss_of(params, batch)


def another_file_may_hold_the_collective(params, batch):
    return jax.lax.pmean(jax.grad(elsewhere)(params, batch), "batch")


def the_loss_is_that_of_all_devices(params, batch):
    def loss(params):
        return jax.lax.pmean(loss_fn(params, batch), "batch")

    grads = jax.lax.pmean(jax.grad(loss)(params), "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def parameters_are_made_to_vary(params, batch):
    params = jax.lax.pcast(params, "batch", to="varying")
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


def divided_by_the_number_of_devices(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    grads = grads / jax.lax.psum(1, "batch")
    return jax.lax.pmean(grads, "batch")


def the_same_batch_on_all_devices(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


def along_an_axis_that_splits_nothing(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "model")


def not_of_what_is_replicated(params, batch):
    grads = jax.grad(loss_fn)(batch, params)
    return jax.lax.pmean(grads, "batch")


def copies_with_a_device_axis(params, batch):
    grads = jax.grad(loss_fn)(params, batch)
    return jax.lax.pmean(grads, "batch")


in_specs = (P(), P("batch"))
a = jax.shard_map(the_loss_is_that_of_all_devices, mesh=mesh, in_specs=in_specs, out_specs=P())
b = jax.shard_map(parameters_are_made_to_vary, mesh=mesh, in_specs=in_specs, out_specs=P())
c = jax.shard_map(not_of_what_is_replicated, mesh=mesh, in_specs=in_specs, out_specs=P())
e = jax.shard_map(another_file_may_hold_the_collective, mesh=mesh, in_specs=in_specs, out_specs=P())
f = jax.shard_map(divided_by_the_number_of_devices, mesh=mesh, in_specs=in_specs, out_specs=P())
g = jax.shard_map(the_same_batch_on_all_devices, mesh=mesh, in_specs=(P(), P()), out_specs=P())
h = jax.shard_map(along_an_axis_that_splits_nothing, mesh=mesh, in_specs=in_specs, out_specs=P())
d = jax.shard_map(copies_with_a_device_axis, mesh=mesh, in_specs=P("batch"), out_specs=P())
""",
    """\
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from model import loss_of, mesh


def step(w, x):
    def share_of_the_mean(w):
        return ((x @ w) ** 2).mean() / jax.lax.axis_size("batch")

    return w - 0.1 * jax.lax.pmean(jax.grad(share_of_the_mean)(w), "batch")


def the_sum_of_all(w, x):
    grads = jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w)
    return w - 0.1 * jax.lax.pmean(grads, "batch")


def of_another_file(params, batch):
    grads = jax.grad(lambda p: loss_of(p, batch))(params)
    return jax.lax.pmean(grads, "batch")


def divided_later(w, x):
    grads = jax.lax.pmean(jax.grad(lambda w: ((x @ w) ** 2).mean())(w), "batch")
    return w - 0.1 * jax.tree.map(lambda g: g / jax.device_count(), grads)


def sharded(body):
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("batch")), out_specs=P())


steps = [sharded(step), sharded(the_sum_of_all), sharded(of_another_file), sharded(divided_later)]
""",
)


def find(module: Module, mappings: Mappings) -> Iterator[Finding]:
    """Gradients of replicated parameters, of a loss without a collective, that a collective takes."""
    seen: set[object] = set()
    for mapping in mappings.all:
        if mapping.kind != "shard_map" or mapping.function is None or not _is_checked(mapping):
            continue
        happened = events(mappings, mapping)
        axes_of = split_axes(module, mapping)
        for made in happened.gradients:
            if made.loss is None or not made.of or not made.local or made.loss.foreign:
                continue
            if made.divided or made.loss.counted:
                continue
            reduction = _first(happened.reductions, made)
            if reduction is None or reduction.call in seen:
                continue
            axes = set().union(*(axes_of.get(name, set()) for name in made.loss.shares))
            if reduction.axis not in axes or (made.loss.total and reduction.name == "pmean"):
                continue  # of a sum, what `shard_map` adds up is the gradient of the whole
            seen.add(reduction.call)
            yield module.finding(
                "JP120",
                reduction.call,
                f"this is the gradient of `{_source(module, made)}`, which `shard_map` has summed over the "
                f"devices already; after `{reduction.name}` it is N times too large",
                "Pass `check_vma=False` (`check_rep=False` before jax 0.7) to `shard_map`, as a `pmap` body "
                "needs it; or take the gradient of `jax.lax.pmean(loss, …)` and leave this out",
            )


def _source(module: Module, made: Gradient) -> str:
    """What a gradient is taken of, as it is written: ``state.params``."""
    given = made.call.args[0] if made.call.args else None
    is_name = isinstance(given, ast.Name | ast.Attribute)
    return module.segment(given) if is_name and given is not None else sorted(made.of)[0]


def _is_checked(mapping: Mapping) -> bool:
    """Whether the replication of values is followed, as it is unless it is switched off."""
    application = mapping.application
    off = [application.keywords.get(name) for name in ("check_vma", "check_rep", "auto", "axis_names")]
    return not application.open and application.qualname == "jax.shard_map" and not any(off)


def _first(reductions: list[Reduction], made: Gradient) -> Reduction | None:
    """The first collective that takes a gradient, if it is a `psum` or `pmean` of the gradient itself."""
    for reduction in reductions:
        for array in leaves(reduction.value):
            if made in array.gradients:
                is_plain = array.is_gradient and reduction.name in ("psum", "pmean")
                return reduction if is_plain else None
    return None


RULE = rule(
    "JP120",
    "gradients of `shard_map` averaged twice",
    find,
    meaning=(
        "The body of a `shard_map` takes the gradient of a replicated argument and applies `pmean` or "
        "`psum` to it, as the body of a `pmap` has to."
    ),
    why=(
        "With `check_vma=True`, the default, `shard_map` knows that the argument is the same on every "
        "device, and sums its gradient over the devices by itself. A `pmean` after it changes nothing "
        "then, and the gradient stays N times too large; a `psum` makes it N² times too large. Nothing "
        "fails."
    ),
    cure=(
        "Switch the check off, so that the body means what it means under `pmap`; or take the gradient "
        "of the averaged loss."
    ),
    invalid=INVALID,
    valid=VALID,
)
DIAGNOSTIC = RULE.diagnostic
