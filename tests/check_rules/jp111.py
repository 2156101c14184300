"""What JP111 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
import functools

import jax


def step(scale, x):
    return scale * x


def train(batches, scale):
    while batches:
        parallel = jax.pmap(functools.partial(step, scale))
        out = parallel(batches.pop())
    return out
""",
)
VALID = (
    """\
import jax


def step(x):
    return x


def compare(functions, batch, scales):
    results = [jax.pmap(function)(batch) for function in functions]
    for scale in scales:
        results.append(jax.pmap(lambda x: scale * x)(batch))
        results.append(jax.pmap(step)(batch))
    for name in ("a", "b"):
        def make():
            return jax.pmap(lambda x: 2 * x)
        results.append(make)
    return results
""",
)
