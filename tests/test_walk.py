"""The two ways through a traced program: looking at its equations, and following facts through it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_pmap.worker.couplings import steps
from jax_pmap.worker.jaxpr.forward import Forward
from jax_pmap.worker.jaxpr.versions import bind
from jax_pmap.worker.jaxpr.walk import CONTROL, control, equations, walk

X, Y, Z = jnp.arange(1.0, 4.0), jnp.arange(3.0), jnp.float32(0.5)


@jax.custom_vjp
def halved(x):
    return jnp.sin(x) / 2


halved.defvjp(lambda x: (halved(x), x), lambda x, g: (jnp.cos(x) * g / 2,))


@jax.custom_jvp
def doubled(x):
    return jnp.exp(x) * 2


doubled.defjvp(lambda primals, tangents: (doubled(*primals), 2 * tangents[0]))


def scanned(x, y, z):
    """The second carry learns of `x` in the first round, the first in the second, the slices of both."""

    def body(carry, row):
        first, second = carry
        return (first + second, second * row), first - z

    return lax.scan(body, (z * 0, z), x)


def looped(x, y, z):
    """What is added does not depend on `y`; how often it is, does."""
    return lax.while_loop(lambda c: c[0].sum() < 5 + y.sum(), lambda c: (c[0] + x, c[1] + 1), (x, 0))


def chosen(x, y, z):
    return lax.cond(z > 0, lambda x, y: (x, y), lambda x, y: (x * 2, x), x, y)


def nested(x, y, z):
    """A branch in a loop in a loop, inside of a compiled function."""

    @jax.jit
    def inner(x, y):
        def body(i, c):
            return lax.fori_loop(0, 2, lambda j, c: lax.cond(i > j, lambda c: c + x, lambda c: c, c), c)

        return lax.fori_loop(0, 3, body, y)

    return inner(x, y), z


#: A function of `X`, `Y` and `Z`, and which of them each leaf of its result depends on.
PROGRAMS = {
    "plain": (lambda x, y, z: (x * 2 + 1, jnp.ones(3), y), ["x", "", "y"]),
    "jit": (jax.jit(lambda x, y, z: (jax.jit(lambda y: y + 1)(y), x * z)), ["y", "xz"]),
    "remat": (jax.checkpoint(lambda x, y, z: (jnp.sin(x), y * z)), ["x", "yz"]),
    "custom_vjp": (lambda x, y, z: (halved(x), halved(y)), ["x", "y"]),
    "custom_jvp": (lambda x, y, z: (doubled(x), doubled(z)), ["x", "z"]),
    "scan": (scanned, ["xz", "xz", "xz"]),
    "while": (looped, ["xy", "xy"]),
    "cond": (chosen, ["xz", "xyz"]),
    "nested": (nested, ["xy", "z"]),
    "vmap": (jax.vmap(lambda x, y, z: (halved(x) * z, doubled(y)), in_axes=(0, 0, None)), ["xz", "y"]),
    "vmap of while": (
        jax.vmap(
            lambda x, y, z: lax.while_loop(lambda c: c < z * 9, lambda c: c + x, x), in_axes=(0, None, None)
        ),
        ["xz"],
    ),
    "grad of scan": (jax.grad(lambda x, y, z: scanned(x, y, z)[0][0] * y.sum()), ["xyz"]),
    "grad of custom_vjp": (jax.grad(lambda x, y, z: halved(x).sum() * z), ["xz"]),
}
EACH = pytest.mark.parametrize("name", PROGRAMS)


def traced(name):
    return jax.make_jaxpr(PROGRAMS[name][0])(X, Y, Z)


class Inputs(Forward):
    """The inputs that every value depends on; and every operation that is met, with where it is."""

    def __init__(self):
        super().__init__()
        self.met = []

    def constant(self, value):
        return frozenset()

    def operation(self, equation, facts):
        if self.settled:
            self.met.append((self.path, equation.primitive.name, self.loops))
        return [frozenset().union(*facts)] * len(equation.outvars)

    def join(self, one, other):
        return one | other

    def under(self, fact, choice):
        return fact | choice


class Run(Forward):
    """The values themselves; loops and branches run as they stand."""

    enters = frozenset({"jit"})

    def constant(self, value):
        return value

    def operation(self, equation, facts):
        return bind(equation, facts)


@EACH
def test_facts_reach_what_depends_on_them_and_nothing_else(name):
    found = Inputs().run(traced(name), [frozenset(each) for each in "xyz"])
    assert ["".join(sorted(each)) for each in found] == PROGRAMS[name][1]


@EACH
def test_values_that_go_through_are_those_of_the_function(name):
    found = Run().run(traced(name), [X, Y, Z])
    for got, want in zip(found, jax.tree.leaves(PROGRAMS[name][0](X, Y, Z)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


@EACH
def test_once_settled_every_operation_is_met_once_in_its_place(name):
    """That is in the order in which looking comes to them, which goes into what is followed."""
    follow = Inputs()
    follow.run(traced(name), [frozenset()] * 3)
    rows = walk(traced(name), into=lambda equation: control(equation) in CONTROL)
    looked = [row[-1][0].primitive.name for row in rows if control(row[-1][0]) not in CONTROL]
    assert [primitive for _, primitive, _ in follow.met] == looked
    assert [path for path, *_ in follow.met] == sorted({path for path, *_ in follow.met})


def test_the_loops_around_an_operation_are_known():
    def loops_of(name, program):
        follow = Inputs()
        follow.run(jax.make_jaxpr(program)(X), [frozenset()])
        return {loops for _, primitive, loops in follow.met if primitive == name}

    def both(x):
        return lax.while_loop(lambda x: x[0] < 9, lambda x: lax.map(jnp.sin, x), jnp.cos(x))

    assert loops_of("sin", both) == {(-1, 3)}
    assert loops_of("lt", both) == {(-1,)}
    assert loops_of("cos", both) == {()}


def test_a_mapped_function_gets_what_its_devices_know():
    class Shares(Inputs):
        def share(self, equation, facts):
            return [fact | {"mapped"} for fact in facts]

    mesh = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("i",))
    spec = jax.sharding.PartitionSpec("i")
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=spec, out_specs=spec)
    (found,) = Shares().run(jax.make_jaxpr(lambda x: mapped(x * 2))(X), [frozenset({"x"})])
    assert found == {"x", "mapped"}


def test_equations_are_those_of_all_loops_branches_and_calls():
    names = [each.primitive.name for each in equations(traced("cond"))]
    assert names.count("cond") == 1 and "mul" in names
    names = [each.primitive.name for each in equations(traced("while"))]
    assert names.index("while") < names.index("lt") < len(names) - 1 - names[::-1].index("add")
    assert "sin" in {each.primitive.name for each in equations(traced("custom_vjp"))}
    assert {"sin", "cos"} & {each.primitive.name for each in equations(traced("vmap"))}
    assert sum(each.primitive.name == "scan" for each in equations(traced("grad of scan"))) == 2


def test_rows_say_what_is_around_an_equation():
    jaxpr = jax.make_jaxpr(jax.jit(lambda x: lax.scan(lambda c, r: (c + jnp.sin(r), c), 0.0, x)))(X)
    (path,) = [path for path in walk(jaxpr) if path[-1][0].primitive.name == "sin"]
    assert [row[0].primitive.name for row in path][1:] == ["scan", "sin"]
    assert list(walk(jaxpr, into=lambda equation: False)) == [path for path in walk(jaxpr) if len(path) == 1]


def test_traces_of_one_function_go_side_by_side_as_far_as_they_agree():
    def function(x):
        y = lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
        unrolled = jax.jit(lambda y: sum(jnp.exp(y[i]) for i in range(y.shape[0])))(y)
        return jnp.tanh(y) * unrolled

    rows = [path[-1] for path in walk(*(jax.make_jaxpr(function)(jnp.ones(n)) for n in (4, 2)))]
    assert all(one.primitive is other.primitive for one, other in rows)
    names = [one.primitive.name for one, _ in rows]
    # What is unrolled has another number of operations in each; what follows it is the same again.
    assert "exp" not in names and {"sin", "cos", "tanh"} <= set(names)
    shapes = {(one.invars[0].aval.shape, other.invars[0].aval.shape) for one, other in rows[:1]}
    assert shapes == {((4,), (2,))}


def test_what_follows_another_operation_is_no_longer_held_against_it():
    one, other = (
        jax.make_jaxpr(each)(X) for each in (lambda x: jnp.tanh(jnp.sin(x)), lambda x: jnp.tanh(-x))
    )
    assert not list(walk(one, other))


ROUNDS = {
    "goes on": (lambda h, w, row: (jnp.tanh(h + row), row), {7}),
    "adds up": (lambda h, w, row: (h + row, row), set()),
    "begins again": (lambda h, w, row: (jnp.tanh(row), row), set()),
    "hands on": (lambda h, w, row: (h, h * row), set()),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_loops_whose_rounds_need_the_one_before_are_those_over_steps(name):
    round_, lengths = ROUNDS[name]

    def loss(w, x):
        def over_layers(h, layer):
            return jnp.tanh(h * layer), None

        h, _ = lax.scan(over_layers, x[:7] * 2, w)
        last, rows = lax.scan(lambda h, row: round_(h, w, row), jnp.zeros(()), h)
        return last + rows.sum()

    traced = jax.make_jaxpr(jax.value_and_grad(loss))(jnp.ones(5), jnp.ones(9))
    # Layers are gone through one after the other, too.
    assert steps(traced) == [{5} | lengths, lengths]
