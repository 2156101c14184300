# flags: gen step --inputs this::inputs
import jax
import jax.numpy as jnp
import numpy as np


def step(w, batch):
    def loss_fn(w):
        error = (batch["x"] @ w - batch["y"]) ** 2
        if "mask" in batch:
            return jnp.sum(error * batch["mask"]) / jnp.sum(batch["mask"])
        return jnp.mean(error)

    return jax.value_and_grad(loss_fn)(w)


def inputs(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(24, 5)).astype("float32"), rng.normal(size=24).astype("float32")
    return rng.normal(size=5).astype("float32"), {"x": x, "y": y}
# refused JP058 line 10: `"mask" in batch` may turn out otherwise for another `batch`
