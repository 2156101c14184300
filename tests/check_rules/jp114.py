"""What JP114 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import jax

total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")


def run(x):
    result = total(x)
    print(f"sum: {result[0]}")
""",
)
VALID = (
    """\
import jax

double = jax.pmap(lambda x: 2 * x)


def run(x, rows):
    result = double(x)
    first = rows[0]
    pair = jax.pmap(lambda a: (a, a), axis_name="i", out_axes=(None, 0))(x)
    return jax.tree.map(lambda r: r[0], rows), result[1], pair[0], double(x)[0]
""",
)
