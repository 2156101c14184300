"""Functions whose results are not averages of per-device results, and batches that are not dimension 0."""

import jax
import jax.numpy as jnp
import numpy as np


def masked_mean(values, mask):
    """Mean of the values the mask keeps: shards carry different weight."""
    total = jnp.sum(values * mask)
    count = jnp.sum(mask)
    return total / count


def perplexity(losses):
    """The exponential of the mean, which is not the mean of exponentials."""
    return jnp.exp(jnp.mean(losses))


def evaluate(params, images, labels):
    """Accuracy and worst confidence over the batch, and each example's prediction."""
    probabilities = jax.nn.softmax(images @ params["w"] + params["b"])
    predictions = jnp.argmax(probabilities, axis=-1)
    correct = jnp.sum(predictions == labels)
    return {
        "accuracy": correct / images.shape[0],
        "least_sure": jnp.min(jnp.max(probabilities, axis=-1)),
        "predictions": predictions,
    }


def run_rnn(params, inputs, state):
    """Time-major: `inputs` is [time, batch, features], `state` is [batch, hidden]."""

    def cell(state, x):
        state = jnp.tanh(x @ params["w_in"] + state @ params["w_state"])
        return state, state

    state, outputs = jax.lax.scan(cell, state, inputs)
    return state, outputs, jnp.mean(outputs**2)


def look_up(data):
    """One dict, three roles: per-example indices, a shared table and a number."""
    rows = data["table"][data["index"]] * data["scale"]
    return rows, jnp.max(rows, axis=0)


def ranks(scores):
    """Every example's place in the whole batch: no shard can know it."""
    return jnp.argsort(jnp.argsort(scores))


def _normal(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def inputs_masked_mean(seed=0):
    rng = np.random.default_rng(seed)
    return _normal(rng, 24), (rng.random(24) < 0.6).astype(np.float32)


def inputs_perplexity(seed=0):
    return (_normal(np.random.default_rng(seed), 24) ** 2,)


def inputs_evaluate(seed=0):
    rng = np.random.default_rng(seed)
    params = {"w": _normal(rng, 6, 4), "b": _normal(rng, 4)}
    return params, _normal(rng, 24, 6), rng.integers(0, 4, size=24).astype(np.int32)


def inputs_run_rnn(seed=0):
    rng = np.random.default_rng(seed)
    params = {"w_in": _normal(rng, 3, 16) / 2, "w_state": _normal(rng, 16, 16) / 5}
    return params, _normal(rng, 5, 24, 3), np.zeros((24, 16), np.float32)


def inputs_look_up(seed=0):
    rng = np.random.default_rng(seed)
    data = {"index": rng.integers(0, 10, size=24), "table": _normal(rng, 10, 3), "scale": 0.5}
    return (data,)


def inputs_ranks(seed=0):
    return (_normal(np.random.default_rng(seed), 24),)
