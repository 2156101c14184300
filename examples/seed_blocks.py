"""The functions of the texts jax-pmap started from, in a form that can be imported.

docs/seed-documents.md says what each looked like there and what was wrong with it.
"""

import jax
import jax.numpy as jnp
import numpy as np


def scale_by_two(x):
    print("Compiling and running scale_by_two...")
    return x * 2


def scale_and_add(x, y):
    return x * 2 + y


def scale_and_sum(x):
    """Already written for several devices: the `psum` is part of the body."""
    scaled_x = x * 2
    local_sum = jnp.sum(scaled_x)
    global_sum = jax.lax.psum(local_sum, axis_name="devices")
    return scaled_x, global_sum


def simple_computation(x):
    return x * 2


def compute_fn(x):
    return jnp.sum(x**2)


def parallel_mean(x):
    """Already written for several devices: the `pmean` is part of the body."""
    local_mean = jnp.mean(x)
    global_mean = jax.lax.pmean(local_mean, axis_name="batch")
    return global_mean


def loss_fn(params, batch):
    prediction = batch["x"] @ params["w"] + params["b"]
    return jnp.mean((prediction - batch["y"]) ** 2)


def train_step(params, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return grads, loss


def synced_train_step(params, batch):
    """`train_step` with its gradients already synchronised, and its loss not."""
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    grads = jax.lax.pmean(grads, axis_name="batch")
    return grads, loss


def shard_data(data, num_devices):
    return data.reshape(num_devices, -1, *data.shape[1:])


def numbers():
    """Argument of the functions that take one array."""
    return (np.arange(48, dtype=np.float32).reshape(24, 2),)


def numbers_and_offset():
    """Arguments of `scale_and_add`."""
    return (*numbers(), np.float32(100.0))


def params_and_batch(seed=0):
    """Arguments of both training steps."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {"w": normal(3, 2), "b": normal(2)}, {"x": normal(24, 3), "y": normal(24, 2)}
