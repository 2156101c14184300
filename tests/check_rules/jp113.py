"""What JP113 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax
import jax.numpy as jnp

num_devices = jax.device_count()
data = jnp.arange(num_devices * 4)
sharded = data.reshape((num_devices, 4))
parallel = jax.pmap(lambda x: 2 * x)
result = parallel(sharded)
""",
    """\
import jax

step = jax.pmap(lambda key: jax.random.normal(key, (3,)))


def run(key):
    n = len(jax.devices())
    return step(jax.random.split(key, n))
""",
    """\
import jax
import jax.numpy as jnp

init = jax.pmap(lambda key: jax.random.normal(key, (3,)))


def run(key):
    return init(jnp.stack([key] * jax.device_count()))
""",
    """\
import jax
import jax.numpy as jnp


def draw(key):
    return jax.random.normal(key, (3,))


def copies(key, n):
    return jnp.stack([key] * n)


init = jax.pmap(draw)


def run(key):
    return init(copies(key, jax.device_count()))
""",
)
VALID = (
    """\
import jax

step = jax.pmap(lambda x: 2 * x)


def run(x):
    per_device = 512 // jax.device_count()
    x = x.reshape((jax.local_device_count(), per_device))
    print(len(jax.devices()))
    return step(x)


def one_host(x):
    assert jax.process_count() == 1
    return x
""",
    """\
import jax


def mesh(x):
    return x.reshape((jax.device_count(), -1))
""",
)
