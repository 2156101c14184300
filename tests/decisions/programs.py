"""Functions whose traces are recorded beside this file, for `test_decide.py`."""

import jax
import jax.numpy as jnp


def masked_mean(x, mask):
    """A ratio of two sums: both are made whole, and not their quotient."""
    total = (x * mask).sum()
    return total / mask.sum()


def step(w, x, y):
    """Gradients are averaged, and not the weights that they change."""
    loss, slope = jax.value_and_grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return w - 0.1 * slope, loss


def clipped(w, x, y):
    """The norm is taken of gradients that are whole."""

    def error(w):
        return jnp.mean((x @ w - y) ** 2)

    slope = jax.grad(error)(w)
    norm = jnp.sqrt(jnp.sum(slope**2))
    return w - slope / jnp.maximum(norm, 1.0)


def weighted(w, x, weight):
    """Both sums are inside what is differentiated."""

    def error(w):
        losses = (x @ w) ** 2
        return (losses * weight).sum() / weight.sum()

    return jax.grad(error)(w)


def penalised(w, x, weight):
    """Both sums are inside what is differentiated."""

    def error(w):
        losses = (x @ w) ** 2
        return (losses * weight).sum() / weight.sum() + 0.1 * (w @ w)

    return jax.grad(error)(w)


def descent(w, x, y):
    """What a loop carries is whole after each round."""

    def body(w, _):
        slope = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
        return w - 0.1 * slope, None

    return jax.lax.scan(body, w, None, length=3)[0]


def scaled(x):
    """A standard deviation is two means."""
    return x / jnp.std(x, axis=0)


def extremes(x):
    """The largest and the smallest of all."""
    return (x - x.min()) / (x.max() - x.min())


def ranked(x):
    """A sort needs all of the examples."""
    return jnp.sort(x, axis=0)[0]


def rows(x):
    """Nothing is needed where each example is on its own."""
    return jnp.tanh(x) * 2


def shared(w, x, mask):
    """What a branch reads, and a line behind it too, is made whole where it is made."""

    def loss(w):
        error, rest = jnp.sum((x @ w) ** 2 * mask), jnp.sum(x)
        total = jnp.sum(mask)
        mean = error
        if x.ndim == 2:
            mean = error / (total + 1)
        rest = rest / (total + 1)
        return mean, rest

    (mean, rest), slope = jax.value_and_grad(loss, has_aux=True)(w)
    return w - slope, mean, rest


def judged(w, x, weight):
    """A ratio beside the loss that is differentiated, of what it gives back."""

    def error(w):
        losses = (x @ w) ** 2
        return (losses * weight).sum() / weight.sum(), losses

    (loss, losses), slope = jax.value_and_grad(error, has_aux=True)(w)
    return loss, slope, (losses * weight).max() / weight.sum()


def of_states(w, x, y):
    counted = (y > 0).astype(x.dtype)

    def cell(state, row):
        after = jnp.tanh(state + row * w)
        middle = (after * counted).sum() / jnp.maximum(counted.sum(), 1)
        return after - middle, middle

    state, middles = jax.lax.scan(cell, jnp.zeros(x.shape[0]), x.T)
    return (state**2 * counted).sum() / counted.sum() + middles.sum()


def recurrent(w, x, y):
    """What the rounds of a loop make, in a function that is called, is made whole where it is made."""
    return jax.grad(of_states)(w, x, y)


def mean_error(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def one_model(w, x, y):
    error, slope = jax.value_and_grad(mean_error)(w, x, y)
    return w - 0.1 * slope, error


def weighted_ensemble(w, x, weight):
    """A loss of each member, divided by what all rows of the batch weigh."""

    def error(member):
        return ((x @ member) ** 2 * weight).sum() / weight.sum()

    loss, slope = jax.vmap(jax.value_and_grad(error))(w)
    return w - slope, loss


def ensemble(w, x, y):
    """Gradients are averaged, and not the weights that they changed, in a function under `vmap` too."""
    return jax.vmap(one_model, in_axes=(1, None, None), out_axes=(1, 0))(w, x, y)
