"""What JP109 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax

scale = jax.pmap(lambda x, y: x * y, in_axes=[0, None])
""",
    """\
import jax


def scale(x, y):
    return x * y


parallel_scale = jax.pmap(scale, in_axes=(0,))
""",
)
VALID = (
    """\
import jax


def scale(x, y, n=1, *more, **options):
    return x * y * n


a = jax.pmap(scale, in_axes=(0, None))
b = jax.pmap(scale, in_axes=(0, None), static_broadcasted_argnums=(2,))
c = jax.pmap(scale, in_axes=(0, {"w": None, "b": 0}))
d = jax.pmap(lambda x: x, in_axes=0)
e = jax.pmap(lambda *xs: xs, in_axes=(0, 0, 0))


class Model:
    def step(self, x, y):
        return x * y

    def run(self, x, y):
        return jax.pmap(self.step, in_axes=(0, None))(x, y)
""",
)
