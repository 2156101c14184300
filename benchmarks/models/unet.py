"""A diffusion U-Net in Equinox: a time and noise of its own for every image, an average of the weights."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

STEPS = 1000
optimizer = optax.adam(2e-4)


class Residual(eqx.Module):
    """Two convolutions around the identity, the time added between them."""

    norms: list[eqx.nn.GroupNorm]
    convs: list[eqx.nn.Conv2d]
    time: eqx.nn.Linear
    skip: eqx.nn.Conv2d | None

    def __init__(self, before, after, wide, key):
        a, b, c, d = jax.random.split(key, 4)
        self.norms = [eqx.nn.GroupNorm(_groups(before), before), eqx.nn.GroupNorm(_groups(after), after)]
        self.convs = [eqx.nn.Conv2d(before, after, 3, padding=1, key=a)]
        self.convs += [eqx.nn.Conv2d(after, after, 3, padding=1, key=b)]
        self.time = eqx.nn.Linear(wide, after, key=c)
        self.skip = None if before == after else eqx.nn.Conv2d(before, after, 1, key=d)

    def __call__(self, x, time):
        """`(before, height, width)` to `(after, height, width)`."""
        y = self.convs[0](jax.nn.silu(self.norms[0](x)))
        y = y + self.time(time)[:, None, None]
        y = self.convs[1](jax.nn.silu(self.norms[1](y)))
        return y + (x if self.skip is None else self.skip(x))


class Attention(eqx.Module):
    """Attention among all places of an image."""

    norm: eqx.nn.GroupNorm
    into: eqx.nn.Conv2d
    out: eqx.nn.Conv2d

    def __init__(self, channels, key):
        a, b = jax.random.split(key)
        self.norm = eqx.nn.GroupNorm(_groups(channels), channels)
        self.into = eqx.nn.Conv2d(channels, 3 * channels, 1, key=a)
        self.out = eqx.nn.Conv2d(channels, channels, 1, key=b)

    def __call__(self, x):
        """`(channels, height, width)` to the same."""
        query, key, value = self.into(self.norm(x)).reshape(3, x.shape[0], -1)
        weights = jax.nn.softmax(query.T @ key / jnp.sqrt(x.shape[0]), axis=-1)
        return x + self.out((value @ weights.T).reshape(x.shape))


class UNet(eqx.Module):
    """Down to a low resolution and up again, with what was seen on the way down at hand."""

    time: list[eqx.nn.Linear]
    first: eqx.nn.Conv2d
    down: list[list[Residual]]
    shrink: list[eqx.nn.Conv2d]
    middle: tuple[Residual, Attention, Residual]
    up: list[list[Residual]]
    attention: list[Attention]
    norm: eqx.nn.GroupNorm
    last: eqx.nn.Conv2d

    def __init__(self, base, factors, blocks, key):
        keys = iter(jax.random.split(key, 8 + 4 * len(factors) * (blocks + 2)))
        wide = 4 * base
        widths = [base * factor for factor in factors]
        self.time = [eqx.nn.Linear(base, wide, key=next(keys)), eqx.nn.Linear(wide, wide, key=next(keys))]
        self.first = eqx.nn.Conv2d(3, base, 3, padding=1, key=next(keys))
        self.down, self.shrink, self.up, self.attention = [], [], [], []
        passed, now = [base], base
        for level, width in enumerate(widths):
            self.down.append([])
            for _ in range(blocks):
                self.down[-1].append(Residual(now, width, wide, next(keys)))
                now = width
                passed.append(now)
            if level + 1 < len(widths):
                self.shrink.append(eqx.nn.Conv2d(now, now, 3, stride=2, padding=1, key=next(keys)))
                passed.append(now)
        ends = Residual(now, now, wide, next(keys)), Residual(now, now, wide, next(keys))
        self.middle = ends[0], Attention(now, next(keys)), ends[1]
        for width in reversed(widths):
            self.up.append([])
            for _ in range(blocks + 1):
                self.up[-1].append(Residual(now + passed.pop(), width, wide, next(keys)))
                now = width
        self.attention = [Attention(widths[-1], next(keys)) for _ in range(2 * blocks + 1)]
        self.norm = eqx.nn.GroupNorm(_groups(base), now)
        self.last = eqx.nn.Conv2d(now, 3, 3, padding=1, key=next(keys))

    def __call__(self, x, step):
        """The noise in one image `(3, height, width)` at one step."""
        half = self.time[0].in_features // 2
        angles = step * jnp.exp(-jnp.log(10_000.0) * jnp.arange(half) / half)
        time = self.time[0](jnp.concatenate([jnp.sin(angles), jnp.cos(angles)]))
        time = jax.nn.silu(self.time[1](jax.nn.silu(time)))
        lowest = len(self.down) - 1
        attend = iter(self.attention)
        x = self.first(x)
        passed = [x]
        for level, blocks in enumerate(self.down):
            for block in blocks:
                x = block(x, time)
                passed.append(next(attend)(x) if level == lowest else x)
                x = passed[-1]
            if level < lowest:
                x = self.shrink[level](x)
                passed.append(x)
        x = self.middle[2](self.middle[1](self.middle[0](x, time)), time)
        for level, blocks in enumerate(self.up):
            for block in blocks:
                x = block(jnp.concatenate([x, passed.pop()]), time)
                x = next(attend)(x) if level == 0 else x
            if level < lowest:
                channels, height, width = x.shape
                x = jax.image.resize(x, (channels, 2 * height, 2 * width), "nearest")
        return self.last(jax.nn.silu(self.norm(x)))


def _groups(channels):
    return min(32, channels // 2)


def loss_fn(model, images, key):
    """Mean squared error of the noise that the model sees in noisy images."""
    when, what = jax.random.split(key)
    steps = jax.random.randint(when, (images.shape[0],), 0, STEPS)
    noise = jax.random.normal(what, images.shape)
    kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.02, STEPS))[steps][:, None, None, None]
    noisy = jnp.sqrt(kept) * images + jnp.sqrt(1 - kept) * noise
    return jnp.mean((jax.vmap(model)(noisy, steps) - noise) ** 2)


def train_step(model, average, opt_state, images, key):
    """One step, with a moving average of the weights for sampling."""
    loss, grads = jax.value_and_grad(loss_fn)(model, images, key)
    updates, opt_state = optimizer.update(grads, opt_state, model)
    model = optax.apply_updates(model, updates)
    average = optax.incremental_update(model, average, 1e-3)
    return model, average, opt_state, loss


def inputs(seed=0, batch=24, base=4, factors=(1, 2), blocks=1, size=8):
    """A fresh model, its average, the optimizer's state, a batch of images and a key."""
    weights, pixels, key = jax.random.split(jax.random.key(seed), 3)
    model = UNet(base, factors, blocks, weights)
    images = jax.random.normal(pixels, (batch, 3, size, size))
    return model, model, optimizer.init(model), images, key


def abstract_inputs(**sizes):
    """Shapes alone, of 128 channels and more on images of 64 x 64 where nothing else is said."""
    real = {"base": 128, "factors": (1, 2, 2, 4), "blocks": 2, "size": 64}
    return jax.eval_shape(partial(inputs, **(real | sizes)))
