"""Functions from different corners of the field, each with inputs of any batch size.

`CASES` gives the inputs of a function: called with a source of random arrays and the size of the batch,
it returns the arguments. `REFUSED` names those that no explicit parallel version fits, with the code that
says why. See coverage.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Source:
    """Random arrays."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape):
        return self.rng.normal(size=shape).astype("float32")

    def below(self, limit, *shape):
        return self.rng.integers(0, limit, shape)

    def mask(self, *shape):
        return (self.rng.random(shape) < 0.6).astype("float32")


def net(params, x):
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


def weights(r, inner=6, hidden=16, outer=3):
    return {"hidden": r(inner, hidden), "out": r(hidden, outer)}


# Supervised learning


def regression(params, x, y):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean((net(p, x) - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss


def classification(params, x, labels):
    def loss_fn(p):
        logits = net(p, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

    (loss, logits), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    return grads, {"loss": loss, "accuracy": jnp.mean(logits.argmax(-1) == labels)}


def masked_loss(params, x, y, mask):
    return jnp.sum(jnp.mean((net(params, x) - y) ** 2, -1) * mask) / jnp.sum(mask)


def masked(params, x, y, mask):
    return jax.value_and_grad(masked_loss)(params, x, y, mask)


def clipped(params, x, y):
    grads = jax.grad(lambda p: jnp.mean((net(p, x) - y) ** 2))(params)
    norm = optax.global_norm(grads)
    return jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), grads), norm


def regularised(params, x, y):
    decay = sum(jnp.sum(p**2) for p in jax.tree.leaves(params))
    return jnp.mean((net(params, x) - y) ** 2) + 1e-3 * decay


def moving_average(params, slow, x, y):
    grads = jax.grad(lambda p: jnp.mean((net(p, x) - y) ** 2))(params)
    params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params, jax.tree.map(lambda s, p: 0.99 * s + 0.01 * p, slow, params)


def accumulated(params, x, y):
    def add(total, part):
        grads = jax.grad(lambda p: jnp.mean((net(p, part[0]) - part[1]) ** 2))(params)
        return jax.tree.map(jnp.add, total, grads), None

    total, _ = jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (x, y))
    return jax.tree.map(lambda p, g: p - 0.1 * g / x.shape[0], params, total)


def two_heads(params, x, y, kind):
    out = net(params, x)
    first = jnp.sum(jnp.where(kind == 0, jnp.sum((out - y) ** 2, -1), 0.0)) / jnp.sum(kind == 0)
    second = jnp.max(jnp.abs(out - y))
    return first + 0.1 * second, {"first": first, "second": second}


def sharpness(params, x, y):
    def loss(p):
        return jnp.mean((net(p, x) - y) ** 2)

    grads = jax.grad(loss)(params)
    norm = optax.global_norm(grads)
    return jax.grad(loss)(jax.tree.map(lambda p, g: p + 0.05 * g / norm, params, grads))


def newton_step(w, x, y):
    loss = lambda w: jnp.mean((x @ w - y) ** 2) + 0.01 * jnp.sum(w**2)
    return w - jnp.linalg.solve(jax.hessian(loss)(w), jax.grad(loss)(w))


# Losses between examples


def info_nce(params, x, y):
    similarity = net(params, x) @ net(params, y).T
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(similarity, axis=1)))


def triplet(params, x, labels):
    z = net(params, x)
    distance = jnp.sum((z[:, None] - z[None, :]) ** 2, axis=-1)
    same = labels[:, None] == labels[None, :]
    hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
    nearest = jnp.min(jnp.where(same, 1e3, distance), axis=1)
    return jnp.mean(jax.nn.relu(hardest - nearest + 1.0))


def decorrelation(params, x, y):
    a, b = net(params, x), net(params, y)
    spread = jnp.mean(jax.nn.relu(1 - jnp.sqrt(jnp.var(a, axis=0) + 1e-4)))
    centred = a - a.mean(0)
    covariance = centred.T @ centred / (a.shape[0] - 1)
    off = covariance - jnp.diag(jnp.diag(covariance))
    return jnp.mean((a - b) ** 2) + spread + jnp.sum(off**2)


def kernel_discrepancy(params, x, y):
    def kernel(u, v):
        return jnp.exp(-jnp.sum((u[:, None] - v[None]) ** 2, -1))

    a, b = net(params, x), net(params, y)
    return kernel(a, a).mean() + kernel(b, b).mean() - 2 * kernel(a, b).mean()


def standardised(x):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)


def ranks(x):
    return jnp.argsort(jnp.argsort(x[:, 0]))


def medians(x):
    return jnp.median(x, axis=0)


def running_sum(x):
    return jnp.cumsum(x, axis=0)


def shifted(x):
    return jnp.roll(x, 1, axis=0) - x


def mixup(params, key, x, y):
    lam, order = 0.7, jax.random.permutation(key, x.shape[0])
    predicted = net(params, lam * x + (1 - lam) * x[order])
    return jnp.mean((predicted - lam * y - (1 - lam) * y[order]) ** 2)


def softmax_weights(params, x, advantage):
    return jnp.sum(jax.nn.softmax(advantage)[:, None] * net(params, x), axis=0)


def forces(positions, masses):
    towards = positions[None] - positions[:, None]
    cubed = (jnp.sum(towards**2, axis=-1) + 1e-2) ** 1.5
    return jnp.sum(masses[None, :, None] * towards / cubed[..., None], axis=1)


# Loops that jax runs


def epoch(params, x, y):
    def step(params, minibatch):
        return regression(params, *minibatch)

    size = x.shape[0] // 2
    minibatches = x.reshape(2, size, -1), y.reshape(2, size, -1)
    return jax.lax.scan(step, params, minibatches)


def power_iteration(v, x):
    def turn(_, v):
        v = x.T @ (x @ v)
        return v / jnp.linalg.norm(v)

    return jax.lax.fori_loop(0, 3, turn, v)


def widths(centres, x):
    return jax.vmap(lambda centre: jnp.sqrt(jnp.mean((x - centre) ** 2)))(centres)


def until_settled(centre, x):
    def move(centre):
        weight = jnp.exp(-jnp.sum((x - centre) ** 2, axis=-1))
        return weight @ x / jnp.sum(weight)

    return jax.lax.while_loop(lambda c: jnp.sum((move(c) - c) ** 2) > 1e-3, move, centre)


# Reinforcement learning


def clipped_policy(params, states, actions, advantages, old):
    def loss(p):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(net(p, states)), actions[:, None], 1)[:, 0]
        ratio = jnp.exp(chosen - old)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        return -jnp.mean(jnp.minimum(ratio * scaled, jnp.clip(ratio, 0.8, 1.2) * scaled))

    return jax.value_and_grad(loss)(params)


def q_learning(params, target, states, actions, rewards, following, alive):
    goal = rewards + 0.99 * alive * net(target, following).max(-1)

    def loss(p):
        value = jnp.take_along_axis(net(p, states), actions[:, None], 1)[:, 0]
        return jnp.mean(optax.huber_loss(value, goal))

    return jax.grad(loss)(params)


def generalised_advantages(rewards, values, alive):
    def back(carry, row):
        reward, value, following, live = row
        carry = reward + 0.99 * following * live - value + 0.95 * live * carry
        return carry, carry

    rows = (rewards, values[:-1], values[1:], alive)
    _, out = jax.lax.scan(back, jnp.zeros_like(rewards[0]), rows, reverse=True)
    return out


def policy_gradient(params, states, actions, returns):
    def loss(p):
        chosen = jnp.take_along_axis(jax.nn.log_softmax(net(p, states)), actions[:, None], 1)[:, 0]
        return -jnp.sum(chosen * (returns - returns.mean())) / states.shape[0]

    return jax.grad(loss)(params)


# Random numbers


def dropout(params, key, x, y):
    hidden = jnp.tanh(x @ params["hidden"])
    hidden = jnp.where(jax.random.bernoulli(key, 0.8, hidden.shape), hidden / 0.8, 0.0)
    return jnp.mean((hidden @ params["out"] - y) ** 2)


def denoising(params, key, x):
    when, what = jax.random.split(key)
    level = jax.random.uniform(when, (x.shape[0], 1))
    noise = jax.random.normal(what, x.shape)
    return jnp.mean((net(params, x * (1 - level) + noise * level) - noise) ** 2)


def langevin(w, key, x, y):
    key, now = jax.random.split(key)
    grads = jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
    return key, w - 0.1 * grads + 0.01 * jax.random.normal(now, w.shape)


def shuffled(key, x):
    return jax.random.permutation(key, x)


# Statistics and metrics


def perplexity(logits, labels):
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
    return jnp.exp(-chosen.mean()), jnp.mean(logits.argmax(-1) == labels), labels.shape[0]


def confusion(predicted, labels):
    return jnp.zeros((4, 4), jnp.int32).at[labels, predicted].add(1)


def f1_score(predicted, labels):
    both = jnp.sum(predicted * labels)
    precision = both / jnp.maximum(jnp.sum(predicted), 1)
    recall = both / jnp.maximum(jnp.sum(labels), 1)
    return 2 * precision * recall / jnp.maximum(precision + recall, 1e-9)


def correlation(x, y):
    a, b = x - x.mean(), y - y.mean()
    return jnp.mean(a * b) / jnp.sqrt(jnp.mean(a**2) * jnp.mean(b**2))


def covariance(x):
    centred = x - x.mean(0)
    return centred.T @ centred / (x.shape[0] - 1)


def r_squared(predicted, y):
    return 1 - jnp.sum((y - predicted) ** 2) / jnp.sum((y - y.mean()) ** 2)


def sums_by_group(x, group):
    return jax.ops.segment_sum(x, group, num_segments=4)


def extremes(x):
    return x.min(0), x.max(0), jnp.abs(x).max(), jnp.any(x > 2), jnp.all(jnp.isfinite(x))


def calibration(x):
    confident = jax.nn.sigmoid(x)
    return jnp.stack([jnp.sum((confident > lo) * (confident <= lo + 0.25)) for lo in (0.0, 0.25, 0.5, 0.75)])


# Unsupervised learning


def k_means(centres, x):
    nearest = jnp.argmin(jnp.sum((x[:, None] - centres[None]) ** 2, -1), 1)
    mine = jax.nn.one_hot(nearest, centres.shape[0])
    return (mine.T @ x) / jnp.maximum(mine.sum(0), 1)[:, None], nearest


def mixture(model, x):
    log = -0.5 * jnp.sum((x[:, None] - model["mean"]) ** 2, -1) + jnp.log(model["weight"])
    share = jax.nn.softmax(log, axis=1)
    total = share.sum(0)
    return {"mean": share.T @ x / total[:, None], "weight": total / x.shape[0]}


def principal_direction(basis, x):
    centred = x - x.mean(0)
    return jnp.linalg.qr(centred.T @ (centred @ basis))[0]


def autoencoder(params, x):
    loss = lambda p: jnp.mean(jnp.sum((net(p, x) - x) ** 2, -1))
    return jax.value_and_grad(loss)(params)


def mean_shift(start, x):
    for _ in range(2):
        near = jnp.exp(-jnp.sum((x - start) ** 2, -1))
        start = (near[:, None] * x).sum(0) / near.sum()
    return start


# Physics, images, signals


def heat_equation(params, points):
    value = lambda point: net(params, point)[0]

    def residual(point):
        return jax.grad(value)(point)[1] - jax.hessian(value)(point)[0, 0]

    return jnp.mean(jax.vmap(residual)(points) ** 2)


def pendulums(angle, speed):
    def step(state, _):
        angle, speed = state
        speed = speed - 0.1 * jnp.sin(angle)
        return (angle + 0.1 * speed, speed), None

    (angle, speed), _ = jax.lax.scan(step, (angle, speed), None, length=10)
    return angle, jnp.mean(speed**2 / 2 - jnp.cos(angle))


def convolution(kernel, images):
    return jax.nn.relu(
        jax.lax.conv_general_dilated(
            images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )


def augmented(images):
    flipped = images[:, :, ::-1]
    mean = images.mean((0, 1, 2))
    return (flipped - mean) / 2, mean


def spectra(signals):
    power = jnp.abs(jnp.fft.rfft(signals, axis=-1)) ** 2
    return power, power.mean(0)


def recurrent(params, x):
    def step(hidden, row):
        hidden = jnp.tanh(row @ params["in"] + hidden @ params["back"])
        return hidden, hidden

    _, states = jax.lax.scan(step, jnp.zeros((x.shape[1], 8)), x)
    return states, jnp.mean(states[-1])


def attention(projection, x):
    query = x @ projection
    scores = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", query, query) / 2.0)
    return jnp.einsum("bqk,bkd->bqd", scores, x)


# Shapes of program


def totals_in_a_loop(x):
    total = 0.0
    for column in range(x.shape[1]):
        total = total + jnp.sum(x[:, column] ** 2)
    return jnp.sqrt(total)


def normalised_layers(layers, x):
    for w in layers:
        x = jnp.tanh(x @ w)
        x = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)
    return x


def ensemble(members, x):
    losses = [jnp.mean((x @ w) ** 2) for w in members]
    return jnp.stack(losses), sum(losses)


def branching(x, scale):
    if x.ndim == 1:
        x = x[:, None]
    elif scale.ndim == 1:
        x = x * scale
    return x.sum(1), x.max()


def per_example_gradients(x, y):
    return jax.vmap(jax.grad(lambda a, b: jnp.sum(jnp.sin(a) * b)))(x, y)


def written_size(x):
    return x.reshape(24 // 2, 2, 4).mean(1)


def named(x):
    return x.mean(), "mean"


def decided_by_data(x):
    if x.mean() > 0:
        return x
    return -x


CASES = {
    "regression": lambda r, n: (weights(r), r(n, 6), r(n, 3)),
    "classification": lambda r, n: (weights(r), r(n, 6), r.below(3, n)),
    "masked": lambda r, n: (weights(r), r(n, 6), r(n, 3), r.mask(n)),
    "clipped": lambda r, n: (weights(r), r(n, 6), r(n, 3)),
    "regularised": lambda r, n: (weights(r), r(n, 6), r(n, 3)),
    "moving_average": lambda r, n: (weights(r), weights(r), r(n, 6), r(n, 3)),
    "accumulated": lambda r, n: (weights(r), r(4, n, 6), r(4, n, 3)),
    "two_heads": lambda r, n: (weights(r), r(n, 6), r(n, 3), r.below(2, n)),
    "sharpness": lambda r, n: (weights(r), r(n, 6), r(n, 3)),
    "newton_step": lambda r, n: (r(6), r(n, 6), r(n)),
    "info_nce": lambda r, n: (weights(r), r(n, 6), r(n, 6)),
    "triplet": lambda r, n: (weights(r, hidden=64), r(n, 6), r.below(4, n)),
    "decorrelation": lambda r, n: (weights(r), r(n, 6), r(n, 6)),
    "kernel_discrepancy": lambda r, n: (weights(r), r(n, 6), r(n, 6)),
    "standardised": lambda r, n: (r(n, 6),),
    "ranks": lambda r, n: (r(n, 6),),
    "medians": lambda r, n: (r(n, 6),),
    "running_sum": lambda r, n: (r(n, 6),),
    "mixup": lambda r, n: (weights(r, inner=4, outer=3), jax.random.key(0), r(n, 4), r(n, 3)),
    "softmax_weights": lambda r, n: (weights(r, inner=4, outer=3), r(n, 4), r(n)),
    "forces": lambda r, n: (r(n, 3), np.abs(r(n)) + 0.1),
    "epoch": lambda r, n: (weights(r, inner=4, outer=3), r(2 * n, 4), r(2 * n, 3)),
    "power_iteration": lambda r, n: (r(4), r(n, 4)),
    "widths": lambda r, n: (r(3, 4), r(n, 4)),
    "until_settled": lambda r, n: (r(4) / 4, r(n, 4)),
    "shifted": lambda r, n: (r(n, 6),),
    "clipped_policy": lambda r, n: (weights(r), r(n, 6), r.below(3, n), r(n), r(n) - 2),
    "q_learning": lambda r, n: (weights(r), weights(r), r(n, 6), r.below(3, n), r(n), r(n, 6), r.mask(n)),
    "generalised_advantages": lambda r, n: (r(8, n), r(9, n), r.mask(8, n)),
    "policy_gradient": lambda r, n: (weights(r), r(n, 6), r.below(3, n), r(n)),
    "dropout": lambda r, n: (weights(r), jax.random.key(0), r(n, 6), r(n, 3)),
    "denoising": lambda r, n: (weights(r, outer=6), jax.random.key(1), r(n, 6)),
    "langevin": lambda r, n: (r(6), jax.random.key(2), r(n, 6), r(n)),
    "shuffled": lambda r, n: (jax.random.key(3), r(n, 6)),
    "perplexity": lambda r, n: (r(n, 7), r.below(7, n)),
    "confusion": lambda r, n: (r.below(4, n), r.below(4, n)),
    "f1_score": lambda r, n: (r.below(2, n), r.below(2, n)),
    "correlation": lambda r, n: (r(n), r(n)),
    "covariance": lambda r, n: (r(n, 4),),
    "r_squared": lambda r, n: (r(n), r(n)),
    "sums_by_group": lambda r, n: (r(n, 3), r.below(4, n)),
    "extremes": lambda r, n: (r(n, 3),),
    "calibration": lambda r, n: (r(n),),
    "k_means": lambda r, n: (r(3, 2), r(n, 2)),
    "mixture": lambda r, n: ({"mean": r(3, 2), "weight": np.abs(r(3)) + 0.1}, r(n, 2)),
    "principal_direction": lambda r, n: (r(4, 2), r(n, 4)),
    "autoencoder": lambda r, n: (weights(r, outer=6), r(n, 6)),
    "mean_shift": lambda r, n: (r(2), r(n, 2)),
    "heat_equation": lambda r, n: (weights(r, inner=2, outer=1), np.abs(r(n, 2))),
    "pendulums": lambda r, n: (r(n, 4), r(n, 4)),
    "convolution": lambda r, n: (r(3, 3, 1, 4), r(n, 8, 8, 1)),
    "augmented": lambda r, n: (r(n, 8, 8, 3),),
    "spectra": lambda r, n: (r(n, 16),),
    "recurrent": lambda r, n: ({"in": r(3, 8), "back": r(8, 8)}, r(5, n, 3)),
    "attention": lambda r, n: (r(8, 4), r(n, 5, 8)),
    "totals_in_a_loop": lambda r, n: (r(n, 4),),
    "normalised_layers": lambda r, n: ([r(4, 4) for _ in range(3)], r(n, 4)),
    "ensemble": lambda r, n: ([r(4), r(4)], r(n, 4)),
    "branching": lambda r, n: (r(n, 4), r(4)),
    "per_example_gradients": lambda r, n: (r(n, 4), r(n, 4)),
    "written_size": lambda r, n: (r(n, 4),),
    "named": lambda r, n: (r(n, 4),),
    "decided_by_data": lambda r, n: (r(n, 4),),
}
REFUSED = {
    "ranks": "JP043",
    "medians": "JP043",
    "running_sum": "JP043",
    "shifted": "JP043",
    "shuffled": "JP043",
    "written_size": "JP068",
    "named": "JP044",
    "decided_by_data": "JP052",
}
