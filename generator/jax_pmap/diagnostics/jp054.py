"""JP054: container cannot be written as a prefix."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP054",
    title="container cannot be written as a prefix",
    exit_code=1,
    meaning=(
        "One container holds leaves that need different treatment, and its type leaves no room to "
        "say so in `in_axes` or `out_axes`."
    ),
    why=(
        "`jax.pmap` takes the axes as a tree prefix of the same container types. A custom pytree "
        "node that cannot hold integers, or whose structure changes from call to call, has no "
        "such prefix."
    ),
    cure=(
        "Pass the data and the state as two arguments, or keep them in a dict, tuple, NamedTuple "
        "or dataclass."
    ),
    example="""\
import jax
import jax.numpy as jnp


@jax.tree_util.register_pytree_node_class
class Job:
    def __init__(self, w, x):
        self.w, self.x = jnp.asarray(w), jnp.asarray(x)

    def tree_flatten(self):
        return (self.w, self.x), None

    @classmethod
    def tree_unflatten(cls, _, leaves):
        return cls(*leaves)


def apply(job):
    return job.x @ job.w


def make_inputs():
    return (Job(jnp.arange(5.0), jnp.arange(120.0).reshape(24, 5)),)
""",
    command="jax-pmap gen model.py::apply --inputs model.py::make_inputs",
    fixed="""\
def apply(w, x):
    return x @ w
""",
)
