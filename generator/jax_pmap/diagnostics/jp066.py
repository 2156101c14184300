"""JP066: statistics of one share."""

from jax_pmap.diagnostics.base import Diagnostic

DIAGNOSTIC = Diagnostic(
    code="JP066",
    title="statistics of one share",
    exit_code=1,
    meaning=(
        "A layer normalises by the mean and variance of the examples that it sees (BatchNorm), or an "
        "argument is changed in place by what they tell. On a device these are the examples of its share."
    ),
    why=(
        "Each device would normalise by other numbers than one device does, and what the layer "
        "keeps would differ between devices: a model that trains, and is another one."
    ),
    cure=(
        'Give the layer the name of the mapped axis, as the message has it (`axis_name="batch"`): its '
        "statistics are then those of the whole batch. Or use `--backend jit`, where statistics are those of "
        "the whole batch as it is."
    ),
    example="""\
import flax.linen as nn


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(x)


def apply(variables, x):
    return Model().apply(variables, x, mutable=["batch_stats"])
""",
    command="jax-pmap gen model.py::apply --inputs model.py::make_inputs",
    fixed="""\
import flax.linen as nn


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False, axis_name="batch")(x)


def apply(variables, x):
    return Model().apply(variables, x, mutable=["batch_stats"])
""",
)
