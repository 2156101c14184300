# flags: gen triplet_loss --arg params=f32[6,4] --arg x=f32[24,6] --arg labels=i32[24]<4
import jax.numpy as jnp


def triplet_loss(params, x, labels):
    z = jnp.tanh(x @ params)
    distance = jnp.sum((z[:, None] - z[None, :]) ** 2, axis=-1)
    same = labels[:, None] == labels[None, :]
    hardest = jnp.max(jnp.where(same, distance, 0.0), axis=1)
    nearest = jnp.min(jnp.where(same, jnp.inf, distance), axis=1)
    return jnp.mean(jnp.maximum(hardest - nearest + 1.0, 0.0))
# refused JP043 line 7: `z` goes into a value that couples the examples of the batch: with all of them gathered on each of 8 devices, each would do 97% of the work of one
