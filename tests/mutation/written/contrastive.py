"""Every image is told from the texts of all devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np


def embed(w, x):
    z = x @ w
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def loss_fn(params, images, texts):
    logits = embed(params["image"], images) @ embed(params["text"], texts).T * params["scale"]
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(logits)))


def step(params, images, texts):
    loss, grads = jax.value_and_grad(loss_fn)(params, images, texts)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def inputs(seed=0):
    random = np.random.default_rng(seed)
    params = {
        "image": random.normal(size=(5, 3)).astype(np.float32),
        "text": random.normal(size=(4, 3)).astype(np.float32),
        "scale": np.float32(2.0),
    }
    return (
        params,
        random.normal(size=(24, 5)).astype(np.float32),
        random.normal(size=(24, 4)).astype(np.float32),
    )


# parallel: p_step
def share(params, images, texts):
    mine = embed(params["text"], texts)
    others = jax.lax.all_gather(mine, "batch", tiled=True)
    logits = embed(params["image"], images) @ others.T * params["scale"]
    rows = jnp.arange(len(images))
    own = jax.lax.axis_index("batch") * len(images) + rows
    return -jnp.mean(jax.nn.log_softmax(logits)[rows, own])


@functools.partial(jax.pmap, axis_name="batch", in_axes=(None, 0, 0), out_axes=(None, None))
def p_step(params, images, texts):
    loss, grads = jax.value_and_grad(share)(params, images, texts)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), jax.lax.pmean(loss, "batch")
