"""What JP101 finds and what it leaves alone, besides its own example."""

INVALID = (
    """\
from jax import pmap as p

double = p(in_axes=0)(lambda x: 2 * x)
""",
    """\
\"\"\"A module with a docstring.\"\"\"

from __future__ import annotations

import jax


@jax.pmap()
def step(x):
    return 2 * x
""",
)
VALID = (
    """\
import jax

double = jax.pmap(fun=lambda x: 2 * x)
options = {"axis_name": "batch"}
triple = jax.pmap(lambda x: 3 * x, **options)
""",
    """\
from flax import nnx


@nnx.pmap(axis_name="batch")
def step(model, x):
    return model(x)
""",
    """\
import jax


def step(*function, **options):
    return jax.pmap(*function, **options)
""",
)
