"""What JP120 finds and what it leaves alone, besides its own example."""

INVALID = (
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
