"""Functions that synchronise over an axis where it is bound, and do without where it is not."""

import pytest
from project import Project

SOURCE = """
import dataclasses

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass
class Seen:
    value: jax.Array
    each: jax.Array
    extra: jax.Array | None = None


def children(seen):
    # Sorted, as chex has them.
    names = ("each", "extra", "value")
    return [(jax.tree_util.GetAttrKey(name), getattr(seen, name)) for name in names], names


jax.tree_util.register_pytree_with_keys(
    Seen, children, lambda names, parts: Seen(**dict(zip(names, parts)))
)


def mean_if_mapped(x, axis):
    try:
        return lax.pmean(x, axis)
    except NameError:
        return x


def grads(w, x, y):
    return jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)


def named(w, x, y):
    return w - 0.1 * mean_if_mapped(grads(w, x, y), "dev")


def default(w, x, y):
    return w - 0.1 * mean_if_mapped(grads(w, x, y), "batch")


def own(w, x, y):
    g = grads(w, x, y)
    try:
        g = lax.pmean(g, "dev")
    except NameError:
        pass
    return w - 0.1 * g


def another(w, x, y):
    g = grads(w, x, y)
    return w - 0.1 * jax.tree.map(lambda g: mean_if_mapped(g, "dev"), g)


def told(w, x, y, rate=0.1):
    if isinstance(rate, float):
        rate = 2 * rate
    return w - rate * mean_if_mapped(grads(w, x, y), "dev")


def told_here(w, x, y, rate=0.1):
    g = grads(w, x, y)
    try:
        g = lax.pmean(g, "dev")
    except NameError:
        pass
    return w - (2 * rate if isinstance(rate, float) else rate) * g


def doubled(w, x, y):
    g = grads(w, x, y)
    try:
        g = 2 * mean_of(g)
    except NameError:
        pass
    return w - 0.1 * g


def mean_of(x):
    return lax.pmean(x, "dev")


@jax.custom_jvp
def energy(w, x):
    e = (x @ w) ** 2
    loss = mean_if_mapped(jnp.mean(e), "dev")
    return loss, Seen(value=loss, each=e)


@energy.defjvp
def energy_jvp(given, tangents):
    (w, x), (dw, _) = given, tangents
    out = energy(w, x)
    centred = out[1].each - out[0]
    slope = mean_if_mapped(jnp.mean(centred * (x @ dw)), "dev")
    return out, (slope, Seen(value=slope, each=centred))


def sampled(w, x):
    (_, seen), g = jax.value_and_grad(energy, has_aux=True)(w, x)
    return w - 0.1 * g, seen


def inputs():
    x = jnp.sin(jnp.arange(144.0)).reshape(48, 3)
    return jnp.ones(3), x, jnp.cos(jnp.arange(48.0))


def rated():
    return *inputs(), 0.1


def samples():
    return inputs()[:2]
"""


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("conditional.py", SOURCE)
    return shared


@pytest.mark.parametrize(
    ("name", "axis", "note"),
    [("named", "dev", True), ("default", "batch", True), ("own", "dev", False), ("another", "dev", True)],
)
def test_what_is_synchronised_where_it_can_be_is_left_to_the_code(
    steps: Project, name: str, axis: str, note: bool
) -> None:
    made = steps.run("gen", f"conditional.py::{name}", "--inputs", "conditional.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert f'AXIS = "{axis}"' in made.stdout and "jax.lax.pmean" not in made.stdout
    said = f'`{name}` itself synchronises over the axis "{axis}" where that is bound'
    assert (said in made.words) == note


def test_under_another_axis_it_is_synchronised_for_it(steps: Project) -> None:
    words = ("gen", "conditional.py::named", "--inputs", "conditional.py::inputs", "--axis-name", "batch")
    made = steps.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "jax.lax.pmean" in made.stdout


def test_the_compiler_has_no_axis_and_needs_none(steps: Project) -> None:
    words = ("gen", "conditional.py::named", "--inputs", "conditional.py::inputs", "--backend", "jit")
    made = steps.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "synchronises over the axis" not in made.words


@pytest.mark.parametrize("name", ["told", "told_here"])
def test_the_original_is_still_called_as_it_is(steps: Project, name: str) -> None:
    words = ("gen", f"conditional.py::{name}", "--inputs", "conditional.py::rated", "--axis-name", "dev")
    made = steps.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "`rate` was tried with 0.1; the emitted function takes no other value" in made.words


def test_a_map_over_one_device_that_is_another_function_is_no_reference(steps: Project) -> None:
    words = ("gen", "conditional.py::doubled", "--inputs", "conditional.py::inputs", "--axis-name", "dev")
    assert steps.run(*words).exit_code == 1


def test_a_dataclass_whose_fields_come_sorted_may_hold_examples_and_means(steps: Project) -> None:
    words = ("gen", "conditional.py::sampled", "--inputs", "conditional.py::samples")
    made = steps.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words


MAPPED = """
import functools

import jax
import jax.numpy as jnp


def centred(x):
    def one(row):
        h = jnp.tanh(row)
        return h - jax.lax.pmean(h, "examples")

    return jnp.mean(jax.vmap(one, axis_name="examples")(x) ** 2)


def normalized(x):
    @functools.partial(jax.vmap, axis_name="batch")
    def one(row):
        most = jax.lax.pmax(row, axis_name="batch")
        parts = jnp.exp(row - most)
        return parts / jax.lax.psum(parts, axis_name="batch")

    return one(x)


def steps(w, x):
    # Each of several copies differentiates what hangs on all of them.
    def update(w, x):
        def loss(w):
            z = jnp.tanh(x @ w)
            mean = jax.lax.pmean(jnp.mean(z), "copies")
            square = jax.lax.pmean(jnp.mean(z**2), "copies")
            return jnp.mean((z - mean) ** 4) / (square + 1)

        value, grads = jax.value_and_grad(loss)(w)
        value, grads = jax.lax.pmean((value, grads), axis_name="copies")
        return w - 0.1 * grads, value

    w, values = jax.vmap(update, axis_name="copies")(w, x)
    return w, values


def numbered(x):
    return jax.vmap(lambda row: row * jax.lax.axis_index("examples"), axis_name="examples")(x)
"""


@pytest.mark.parametrize(
    ("function", "given", "written"),
    [
        ("centred", ("x=f32[24,3]",), ['pmean(h, ("examples", AXIS))']),
        (
            "normalized",
            ("x=f32[24,3]",),
            ['pmax(row, axis_name=("batch", AXIS))', 'axis_name=("batch", AXIS)'],
        ),
        (
            "steps",
            ("w=f32[24,3]", "x=f32[24,6,3]"),
            ['pmean(jnp.mean(z), ("copies", AXIS))', "grads = jax.lax.pmean(grads, axis_name=AXIS)"],
        ),
    ],
)
@pytest.mark.parametrize("backend", ["pmap", "shard_map"])
def test_what_goes_over_the_axis_of_a_map_inside_goes_over_the_devices_with_it(
    project: Project, function: str, given: tuple[str, ...], written: list[str], backend: str
) -> None:
    (project.folder / "maps.py").write_text(MAPPED)
    options = [word for each in given for word in ("--arg", each)]
    made = project.run("gen", f"maps.py::{function}", *options, "--backend", backend, "-o", "-")
    assert made.exit_code == 0, made.stderr
    assert "Proved: derived for all inputs and device counts" in made.stdout
    for each in written:
        assert each in made.stdout


def test_the_axis_of_a_map_inside_is_none_of_the_devices(project: Project) -> None:
    (project.folder / "maps.py").write_text(MAPPED)
    said = project.run("gen", "maps.py::normalized", "--arg", "x=f32[24,3]", "--axis-name", "batch")
    assert said.exit_code == 1
    assert "error[JP048]" in said.stderr and "--axis-name devices" in said.stderr
    # What tells the examples apart has no collective that makes it whole.
    said = project.run("gen", "maps.py::numbered", "--arg", "x=f32[24,3]")
    assert said.exit_code == 1 and "error[JP043]" in said.stderr
