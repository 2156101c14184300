"""Inputs of other widths, ranks and kinds than the given ones: code is right for them, or refuses them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from project import Project, simulated

pytest_plugins = ["project"]

FORMS = """\
import jax
import jax.numpy as jnp


def turned(x, y):
    return jnp.mean(jnp.exp(x.T.reshape(x.shape)) * y[:, None])


def grouped(x):
    return jnp.mean(x.T.reshape(4, -1), axis=1)


def of_one_column(x, y):
    if x.shape[1] != 1:
        raise ValueError("one column")
    return jnp.mean(x.ravel()[: len(y)] * y)


def any_form(w, x, y):
    return jnp.mean(jnp.sum((x @ w) ** 2, axis=1) * y)


def of_rows(w, x):
    return jnp.sum(jnp.log(jnp.mean(jnp.abs(x @ w), axis=-1)))


def cast(scale, x):
    return jnp.mean(x).astype(jnp.result_type(scale)) * scale


def least(x):
    return -jnp.max(x)


def share_of(x, y, factor=2.0):
    return jnp.mean(x == jnp.max(x)) * jnp.mean(y) * factor


def hidden_groups(w, x):
    return jnp.mean((x @ w).T.reshape(4, -1), axis=1)


def by_width(x):
    return x - x.mean({4: -1, 16: 0}.get(x.shape[1], -1), keepdims=True)


def of_wide(x):
    return x - x.mean(-int(x.shape[1] < 20), keepdims=True)


def by_precision(x):
    return x - x.mean({"bfloat16": 0}.get(x.dtype.name, -1), keepdims=True)


def cast_back(x):
    return jnp.mean(x.astype("float32") ** 2).astype(x.dtype)


@jax.jit
def by_hand(x, y):
    mapped = jax.pmap(lambda x, y: jax.lax.pmean(turned(x, y), "i"), "i", out_axes=None)
    return mapped(x.reshape(jax.device_count(), -1, x.shape[1]), y.reshape(jax.device_count(), -1))
"""
LAYERS = """\
import functools
import operator

import jax.numpy as jnp
import numpy as np


def product(ws, x):
    return functools.reduce(operator.mul, [jnp.mean(x @ w) for w in ws]) * 2


def many(ws, x):
    total = 0.0
    for w in ws:
        total = total + jnp.tanh(x @ w)
    return functools.reduce(operator.mul, [jnp.mean(x @ w) for w in ws[405:]], jnp.mean(total))


def deep(ws, x):
    for w in ws:
        x = jnp.tanh(x * w)
    return jnp.mean(x**2)


def inputs():
    draw = np.random.default_rng(0)
    return [draw.normal(size=3)], draw.normal(size=(24, 3))


def inputs_many():
    draw = np.random.default_rng(0)
    return [draw.normal(size=3) for _ in range(400)], draw.normal(size=(24, 3))
"""
X = ("--arg", "x=f32[24,4]")
Y = ("--arg", "y=f32[24]")
INPUTS = {
    "turned": ("--arg", "x=f32[24,1]", *Y),
    "grouped": X,
    "of_one_column": ("--arg", "x=f32[24,1]", *Y),
    "any_form": ("--arg", "w=f32[4,2]", *X, *Y),
    "of_rows": ("--arg", "w=f32[4]", *X),
    "cast": ("--arg", "scale=f32[]", *X),
    "least": ("--arg", "x=i32[24]"),
    "share_of": ("--arg", "x=i32[24]", *Y),
    "hidden_groups": ("--arg", "w=f32[3,4]", "--arg", "x=f32[24,3]"),
    "by_width": X,
    "of_wide": X,
    "by_precision": X,
    "cast_back": X,
}
CALLS = """\
import numpy as np
from jax.numpy import bfloat16
import forms
from any_form_pmap import any_form
from by_precision_pmap import by_precision
from by_width_pmap import by_width
from cast_back_pmap import cast_back
from cast_pmap import cast
from grouped_pmap import grouped
from hidden_groups_pmap import hidden_groups
from of_wide_pmap import of_wide
from least_pmap import least
from of_one_column_pmap import of_one_column
from of_rows_pmap import of_rows
from share_of_pmap import share_of
from turned_pmap import turned

draw = np.random.default_rng(0)


def floats(*shape):
    return draw.normal(size=shape).astype("float32")


def checked(parallel, *args):
    try:
        found = parallel(*args)
    except (ValueError, NotImplementedError):
        print("refused", parallel.__name__)
    else:
        assert np.allclose(found, getattr(forms, parallel.__name__)(*args), rtol=1e-4), parallel.__name__


for width in (1, 2, 6):
    checked(any_form, floats(width, 3), floats(48, width), floats(48))
for rows in (24, 48):
    checked(turned, floats(rows, 1), floats(rows))
    checked(grouped, floats(rows, 4))
    checked(of_rows, floats(3), floats(rows, 3))
    checked(cast, 2.5, floats(rows, 7))
for dtype in ("int32", "int64", "uint8"):
    checked(share_of, np.arange(24).astype(dtype) % 7, floats(24))
    checked(hidden_groups, floats(3, 4), floats(rows, 3))
    checked(by_width, floats(rows, 4))
    checked(of_wide, floats(rows, 4))
    checked(by_precision, floats(rows, 3))
    checked(cast_back, floats(rows, 3).astype(bfloat16))
checked(least, np.arange(24) % 7)
print("refused below")
checked(of_one_column, floats(48, 2), floats(48))
checked(turned, floats(48, 2), floats(48))
checked(grouped, floats(48, 6))
checked(of_rows, floats(4, 2), floats(48, 4))
checked(cast, 2, 100 * floats(48, 4))
checked(least, np.arange(24, dtype="uint8") // 6)
checked(least, np.arange(24, dtype="int16"))
checked(hidden_groups, floats(3, 6), floats(24, 3))
checked(by_width, floats(24, 16))
checked(of_wide, floats(24, 32))
checked(by_precision, floats(24, 4).astype(bfloat16))
"""
CHECKED = {
    "turned",
    "grouped",
    "of_rows",
    "cast",
    "least",
    "hidden_groups",
    "by_width",
    "of_wide",
    "by_precision",
}
REFUSED = """\
refused below
refused of_one_column
refused turned
refused grouped
refused of_rows
refused cast
refused least
refused least
refused hidden_groups
refused by_width
refused of_wide
refused by_precision
"""


def test_code_takes_the_forms_of_inputs_that_it_is_right_for(shared: Project) -> None:
    shared.write("forms.py", FORMS)
    for name, given in INPUTS.items():
        made = shared.run("gen", f"forms.py::{name}", *given, "--no-run", "-o", f"{name}_pmap.py")
        assert made.exit_code == 0, made.stderr
        assert ("the code checks that" in made.stderr) is (name in CHECKED)
    ran = subprocess.run(
        [sys.executable, "-c", CALLS], env=simulated(4), capture_output=True, text=True, cwd=Path.cwd()
    )
    assert ran.returncode == 0 and ran.stdout == REFUSED, ran.stdout + ran.stderr


def test_a_number_of_layers_may_be_another(shared: Project) -> None:
    shared.write("layers.py", LAYERS)
    made = shared.run("gen", "layers.py::product", "--inputs", "layers.py::inputs", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "has the ranks, kinds and parts that it has here" in " ".join(made.stderr.split())
    assert 'as_proved("product: `ws`", ws, ("float", None))' in made.stdout
    made = shared.run("gen", "layers.py::deep", "--inputs", "layers.py::inputs", "--no-run")
    assert made.exit_code == 0 and "as_proved(" not in made.stdout, made.stderr
    # Of a large program too, of which fewer lengths are tried.
    made = shared.run("gen", "layers.py::many", "--inputs", "layers.py::inputs_many", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "`ws[1]` (float64), `ws[2]` (float64) and 398 more in NumPy" in " ".join(made.stderr.split())
    assert 'as_proved("many: `ws`", ws, *[("float", None)] * 400)' in made.stdout


def test_verify_refuses_written_code_that_works_in_another_way_with_several_columns(shared: Project) -> None:
    shared.write("forms.py", FORMS)
    made = shared.run("verify", "forms.py::by_hand", "--against", "forms.py::turned", *INPUTS["turned"])
    assert made.exit_code == 1, made.stderr
    assert "arrays that have several elements along axes where the given ones have one" in made.words
    assert "have it raise for these" in made.words


def test_code_in_place_checks_its_inputs_and_is_made_again(shared: Project) -> None:
    shared.write("forms.py", FORMS)
    for _ in range(2):
        made = shared.run("gen", "forms.py::grouped", *X, "--no-run", "--in-place")
        assert made.exit_code == 0, made.stderr
    text = Path("forms.py").read_text()
    assert text.count('as_proved("grouped: `x`", x, ("float", None, 4))') == 1
    assert text.count("def as_proved(") == 1


CONSTANTS = """\
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


fields = {"data_fields": ["scale"], "meta_fields": ["axis", "width", "power", "over", "label"]}


@functools.partial(jax.tree_util.register_dataclass, **fields)
@dataclasses.dataclass(frozen=True)
class Norm:
    scale: jax.Array
    axis: int = -1
    width: int = 3
    power: int = 2
    over: str = "columns"
    label: str = "first"

    @property
    def offset(self):
        return {"columns": -1, "rows": 0}[self.over]


def energy(parts, x):
    norm = parts["norm"]
    x = x.reshape(-1, norm.width) * norm.scale
    x = x - x.mean(norm.offset, keepdims=True)
    return jnp.mean((x - x.mean(norm.axis, keepdims=True)) ** norm.power)


class Nothing(NamedTuple):
    pass


def inputs():
    return {"norm": Norm(np.ones(3)), "state": Nothing()}, np.random.default_rng(0).normal(size=(24, 3))
"""
CALLS_WITH = """\
import numpy as np
import constants
from constants import Norm
from energy_pmap import energy

x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
for norm in (Norm(np.ones(4), width=4), Norm(np.ones(4), width=4, power=3, label="second")):
    assert np.allclose(energy({"norm": norm}, x), constants.energy({"norm": norm}, x), rtol=1e-4)
try:
    energy({"norm": Norm(np.ones(4), width=4, over="rows")}, x)
except ValueError as error:
    assert "over` must be 'columns'" in str(error)
    energy({"norm": Norm(np.ones(4), 0, 4)}, x)
"""


LISTED = """
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx


class Einsum(nnx.Module):
    def __init__(self, text, shape, rngs):
        self.text = text
        self.w = nnx.Param(jax.random.normal(rngs.params(), shape))

    def __call__(self, x):
        return jnp.einsum(self.text, x, self.w[...])


class Net(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([Einsum("bi,ij->bj", (4, 4), rngs), Einsum("bj,jk->bk", (4, 4), rngs)])

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


def loss(net, x):
    return jnp.mean(net(x) ** 2)


def inputs():
    return Net(nnx.Rngs(0)), np.ones((24, 4), np.float32)
"""


def test_constants_in_a_list_of_flax_are_named_by_their_index(shared: Project) -> None:
    pytest.importorskip("flax")
    shared.write("listed.py", LISTED)
    made = shared.run("gen", "listed.py::loss", "--inputs", "listed.py::inputs", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert "the code checks that `net.layers[1].text` is 'bj,jk->bk', as here" in made.words


def test_constants_of_own_containers_are_held_to_the_proof_where_they_decide(
    shared: Project,
) -> None:
    shared.write("constants.py", CONSTANTS)
    words = ("constants.py::energy", "--inputs", "constants.py::inputs", "--no-run", "-o", "energy_pmap.py")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    assert "the code checks that `parts['norm'].axis` is -1, as here" in made.words
    ran = subprocess.run([sys.executable, "-c", CALLS_WITH], env=simulated(4), capture_output=True, text=True)
    assert "ValueError: energy: `parts['norm'].axis` must be -1" in ran.stderr


BESIDE_LEAVES = """\
import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

NAMES = [f"other{i}" for i in range(9)] + ["axis"]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    axis: int = -1


class Centre(nnx.Module):
    def __init__(self, axis):
        self.axis = axis
        self.norm = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0))

    def __call__(self, x):
        x = self.norm(x)
        return x - x.mean(self.axis, keepdims=True)


def spread(x, axis):
    return jnp.mean(jnp.abs(x - x.mean(axis, keepdims=True)))


def of_slots(conf, x):
    return spread(x, conf.axis)


def of_many(conf, x):
    return spread(x, conf.axis) * conf.w.sum()


def of_graph(graphdef, state, x):
    return jnp.mean(jnp.abs(nnx.merge(graphdef, state)(x)))


fields = [(name, int, dataclasses.field(default=3)) for name in NAMES]
made = dataclasses.make_dataclass("Many", ["w", *fields])
made.__module__ = __name__
Many = jax.tree_util.register_dataclass(made, data_fields=["w"], meta_fields=NAMES)


class Scaled(eqx.Module):
    scale: jax.Array
    axis: int
    drop: eqx.nn.Dropout

    def __call__(self, x, key):
        return self.drop(self.scale * (x - x.mean(self.axis, keepdims=True)), key=key)


@eqx.filter_jit
def of_module(model, x, key):
    return model(x, key)


@nnx.jit
def of_rates(first, second, x):
    return second(first(x))


@functools.partial(jax.jit, static_argnums=0)
def of_static(graphdef, state, x):
    return jnp.mean(jnp.abs(nnx.merge(graphdef, state)(x)))


def x(seed=0):
    return np.random.default_rng(seed).normal(size=(24, 3)).astype("float32")


def for_slots(axis=-1):
    return Slots(axis), x()


def for_many(axis=-1):
    return Many(np.ones(3), axis=axis), x()


def for_graph(axis=-1, average=True):
    centre = Centre(axis)
    centre.norm.use_running_average = average
    return *nnx.split(centre), x()


for_static = for_graph


def for_module(axis=-1, rate=0.0):
    return Scaled(jnp.ones(3), axis, eqx.nn.Dropout(rate)), x(), jax.random.key(0)


def for_rates(second=0.0):
    return nnx.Dropout(0.0, rngs=nnx.Rngs(0)), nnx.Dropout(second, rngs=nnx.Rngs(1)), x()
"""
CALLS_BESIDE = """\
import numpy as np
import beside
import of_slots_pmap, of_many_pmap, of_graph_pmap, of_module_pmap, of_rates_pmap, of_static_pmap


def raises(call, args):
    try:
        call(*args)
    except ValueError as error:
        return "the run this file was made from" in str(error)
    return False


for module in (of_slots_pmap, of_many_pmap, of_graph_pmap, of_module_pmap, of_rates_pmap, of_static_pmap):
    name = module.__name__[:-5]
    call, makes = getattr(module, name), getattr(beside, name.replace("of", "for"))
    assert np.allclose(call(*makes()), getattr(beside, name)(*makes()), rtol=1e-5), name
    assert raises(call, makes(0 if module is not of_rates_pmap else 0.5)), name
assert raises(of_module_pmap.of_module, beside.for_module(rate=0.5))
assert raises(of_graph_pmap.of_graph, beside.for_graph(average=False))
"""


def test_constants_in_slots_graphs_and_layers_are_held_to_the_proof(shared: Project) -> None:
    shared.write("beside.py", BESIDE_LEAVES)
    for name in ("slots", "many", "graph", "module", "rates", "static"):
        words = ["--inputs", f"beside.py::for_{name}", "-o", f"of_{name}_pmap.py"]
        # A run has other numbers than the given ones, but where these decide.
        words += ["--no-run"] if name != "module" else []
        made = shared.run("gen", f"beside.py::of_{name}", *words)
        assert made.exit_code == 0, made.stderr
    subprocess.run([sys.executable, "-c", CALLS_BESIDE], env=simulated(4), check=True)


NAMED = """\
import jax.numpy as jnp
import numpy as np

AXES = {"layer": -1, "batch": 0}
FROZEN = ("bias", "scale")


def centred(params, x):
    for name, weight in params.items():
        x = x - weight * jnp.mean(x, axis=AXES.get(name[:5], -1), keepdims=True)
    return x


def by_prefix(params, x):
    for name, weight in params.items():
        x = x - weight * jnp.mean(x, axis=name.startswith("batch") - 1, keepdims=True)
    return x


def of_rank(params, x):
    for name, weight in params.items():
        if weight.ndim == 1:
            x = x - x.mean({"batch": 0}.get(name, -1), keepdims=True) * weight
    return x


def decayed(params, x):
    return {name: weight - 0.1 * (name not in FROZEN) * jnp.mean(x) for name, weight in params.items()}


def inputs():
    return {"layer1": np.float32(0.5), "layer2": np.float32(0.25)}, np.arange(72.0).reshape(24, 3)


def of_ranks():
    params, x = inputs()
    return {**params, "layer2": np.ones(3, np.float32)}, x
"""
WITH_NAMES = """\
import numpy as np
import named
from by_prefix_pmap import by_prefix
from centred_pmap import centred
from decayed_pmap import decayed

params, x = named.inputs()
np.testing.assert_allclose(centred(params, x), named.centred(params, x), rtol=1e-4)
other = {"bias": params["layer1"], "kernel": params["layer2"]}
found, wanted = decayed(other, x), named.decayed(other, x)
assert all(np.allclose(found[name], wanted[name]) for name in wanted)
for function in (by_prefix, centred):
    try:
        function({"batch": np.float32(0.5), "layer2": np.float32(0.25)}, x)
    except ValueError as error:
        print(error)
"""


def test_names_in_dicts_are_held_to_the_proof_where_they_are_looked_up(shared: Project) -> None:
    shared.write("named.py", NAMED)
    for name in ("by_prefix", "centred", "decayed", "of_rank"):
        given = "of_ranks" if name == "of_rank" else "inputs"
        words = (f"named.py::{name}", "--inputs", f"named.py::{given}", "--no-run", "-o", f"{name}_pmap.py")
        made = shared.run("gen", *words)
        assert made.exit_code == 0, made.stderr
        assert ("the code checks that `sorted(params)` is" in made.words) is (name != "decayed")
    ran = subprocess.run([sys.executable, "-c", WITH_NAMES], env=simulated(4), capture_output=True, text=True)
    for name in ("by_prefix", "centred"):
        assert f"{name}: `sorted(params)` must be ['layer1', 'layer2']" in ran.stdout, ran.stderr


PARTS = """\
import jax
import jax.numpy as jnp
import numpy as np
import optax

KINDS = {"mean": jnp.mean, "max": jnp.max}
AFTER = (jnp.tanh, jnp.sin, lambda x: x - x.mean(0))
adam = optax.adam(0.1)


def taken_apart(params, x):
    return sum(KINDS[name.split("_")[1]](x @ w) for name, w in params.items())


def trained(params, state, x):
    later = {"centre": lambda x: x - x.mean(0)}

    def loss(params):
        each = [later.get(name, jnp.tanh)(x * w) for name, w in params.items()]
        return jnp.mean(sum(each) ** 2)

    grads = jax.grad(loss)(params)
    updates, state = adam.update(grads, state)
    return optax.apply_updates(params, updates), state


def counted(params, x):
    return jnp.mean(jnp.max(jnp.stack([x * w for w in params.values()]), axis=len(params) - 2))


def zipped(weights, x):
    for after, w in zip(AFTER, weights):
        x = after(x * w)
    return jnp.mean(x**2)


def without(batch):
    return jnp.mean(jnp.max(jnp.stack(list(batch.values())), axis=len(batch) - 3))


def none_in_place(params, x):
    scaled = {True: lambda x: x, False: lambda x: (x - x.mean()) * params["scale"]}
    return jnp.mean(scaled[params["scale"] is None](x @ params["w"]) ** 2)


def literal(params, x):
    names = [name.upper() for name in params]
    return jnp.mean((x @ params["w"] + params["b"]) ** 2) * len(names)


def numbered(params, x):
    return jnp.mean({1: x - x.mean(), 4: jnp.tanh(x)}.get(max(params), x) @ params[0])


def taken_whole(layers, x):
    apply = {1: lambda x, scale: (x - x.mean(0)) * scale, 2: lambda x, w, b: jnp.tanh(x * w + b)}
    for layer in layers:
        x = apply[len(layer)](x, *layer)
    return jnp.mean(x**2)


def by_type(terms, x):
    return {tuple: jnp.max, list: jnp.mean}[type(terms)](x @ terms[0])


def by_kind(power, w, x):
    kinds = {float: lambda h: h * power, int: lambda h: h**power}
    return jnp.mean(kinds.get(type(power), lambda h: h - h.mean())(x @ w) ** 2)


def penalised(params, batch, others):
    return jnp.mean(batch["x"] @ params["w"] * batch["y"]) + sum(jnp.sum(w) for w in others)


def shrunk(params, x, y, centre):
    return jnp.mean((x @ params["w"] - y) ** 2) * params["b"], jax.tree.map(lambda each: each * 0.9, centre)


def given(name):
    w, x = np.ones(3, np.float32), np.random.default_rng(0).normal(size=(24, 3)).astype(np.float32)
    two = {"a": w, "b": 2 * w}
    return {
        "taken_apart": lambda: ({"1_mean": w, "2_mean": w}, x),
        "trained": lambda: (two, adam.init(two), x),
        "counted": lambda: ({**two, "c": w}, x),
        "zipped": lambda: ([w], x),
        "without": lambda: ({"x": x, "y": 2 * x},),
        "none_in_place": lambda: ({"w": w, "scale": None}, x),
        "literal": lambda: ({"w": w, "b": w[0]}, x),
        "numbered": lambda: ({0: w, 2: w}, x),
        "taken_whole": lambda: ([(w, w), (w, w)], x),
        "by_type": lambda: ([w], x),
        "by_kind": lambda: (2.0, w, x),
        "penalised": lambda: ({"w": w}, {"x": x, "y": x[:, 0]}, [w]),
        "shrunk": lambda: ({"w": w, "b": w[0]}, x, x[:, 0], {"w": None}),
    }[name]()


for each in ("taken_apart", "trained", "counted", "zipped", "without"):
    globals()["of_" + each] = lambda each=each: given(each)
for each in ("none_in_place", "literal", "penalised", "shrunk"):
    globals()["of_" + each] = lambda each=each: given(each)
for each in ("numbered", "taken_whole", "by_type", "by_kind"):
    globals()["of_" + each] = lambda each=each: given(each)
"""


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("taken_apart", "`sorted(params)` is ['1_mean', '2_mean']"),
        ("trained", "`sorted(params)` is ['a', 'b']"),
        ("counted", "`sorted(params)` is ['a', 'b', 'c']"),
        ("zipped", "`weights` has the ranks, kinds and parts"),
        ("without", "`sorted(batch)` is ['x', 'y']"),
        ("none_in_place", "`params` has the ranks, kinds and parts"),
        ("literal", ""),
        ("numbered", "`sorted(params)` is [0, 2]"),
        ("taken_whole", "`layers` has the ranks, kinds and parts"),
        ("by_type", "`type(terms)` is list"),
        ("penalised", "`others` has the ranks, kinds and parts"),
    ],
)
def test_names_and_numbers_of_parts_are_held_to_the_proof_where_they_decide(
    shared: Project, name: str, checked: str
) -> None:
    shared.write("of_parts.py", PARTS)
    made = shared.run("gen", f"of_parts.py::{name}", "--inputs", f"of_parts.py::of_{name}", "--no-run")
    assert made.exit_code == 0, made.stderr
    assert f"the code checks that {checked}" in made.words if checked else "the code checks" not in made.words


def test_a_number_that_is_told_by_its_type_is_held_to_that(shared: Project) -> None:
    shared.write("of_parts.py", PARTS)
    made = shared.run("gen", "of_parts.py::by_kind", "--inputs", "of_parts.py::of_by_kind", "--no-run")
    assert "if (type(power), power) not in ((float, 2.0),):" in made.stdout, made.stderr


def test_axes_are_those_of_arguments_where_one_has_no_leaves(shared: Project) -> None:
    shared.write("of_parts.py", PARTS)
    made = shared.run("gen", "of_parts.py::shrunk", "--inputs", "of_parts.py::of_shrunk")
    assert made.exit_code == 0, made.stderr
    assert 'in_axes=({"b": None, "w": None}, 0, 0, None)' in made.stdout


PLACED = """\
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
import peaks
from peak_pmap import peak, place

rows = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
(placed,) = place([rows])
assert np.allclose(peak(placed), peaks.peak(rows))
# As many arrays of rows as there are devices, where their owner put them.
own = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), P("batch"))
peak(jax.device_put(np.ones((4, 6, 3), "float32"), own))
"""


def test_an_array_that_its_owner_divided_is_no_batch_that_was_split(shared: Project) -> None:
    shared.write(
        "peaks.py",
        "import jax.numpy as jnp\n\n\ndef peak(x):\n    return jnp.mean(jnp.max(x, axis=1))\n",
    )
    words = ("peaks.py::peak", "--arg", "x=f32[24,3]", "--helper", "place", "--no-run", "-o", "peak_pmap.py")
    made = shared.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    ran = subprocess.run([sys.executable, "-c", PLACED], env=simulated(4), capture_output=True, text=True)
    assert "ValueError: peak: x is float[4, 6, 3]; expected float of rank 2" in ran.stderr


DISCOUNTS = """\
import jax
import jax.numpy as jnp


def error(w, gamma, x, y):
    return jnp.mean((gamma * (x @ w) - y) ** 2)


def step(w, rate, x, y):
    return w - rate * jax.grad(lambda w: jnp.mean((x @ w - y) ** 2))(w)
"""
FOR_EACH_ROW = """\
import numpy as np
import discounts
from error_pmap import error

draw = np.random.default_rng(0)
w, x, y = (draw.normal(size=shape).astype("float32") for shape in (3, (4, 3), 4))
for gamma in (0.9, 1, np.float32(0.5)):
    assert np.allclose(error(w, gamma, x, y), discounts.error(w, gamma, x, y), rtol=1e-4)
error(w, y, x, y)
"""


def test_one_number_is_not_one_for_each_row_where_a_device_has_one(shared: Project) -> None:
    shared.write("discounts.py", DISCOUNTS)
    for name, number in (("error", "gamma"), ("step", "rate")):
        shapes = {"w": "f32[3]", number: "f32[]", "x": "f32[24,3]", "y": "f32[24]"}
        given = [word for each, shape in shapes.items() for word in ("--arg", f"{each}={shape}")]
        made = shared.run("gen", f"discounts.py::{name}", *given, "--no-run", "-o", f"{name}_pmap.py")
        assert made.exit_code == 0, made.stderr
        assert ("the code checks that `gamma.ndim` is 0" in made.words) is (name == "error")
    ran = subprocess.run(
        [sys.executable, "-c", FOR_EACH_ROW], env=simulated(4), capture_output=True, text=True
    )
    assert "ValueError: error: `gamma.ndim` must be 0" in ran.stderr


IMAGES = """\
def unless_square(x):
    return x - x.mean(2 * int(x.shape[1] == x.shape[2]), keepdims=True)


def unless_one_side(x):
    return x - x.mean(2 * int((x.shape[1] == 16) == (x.shape[2] == 16)), keepdims=True)


def of_any(x):
    return x - x.mean(2, keepdims=True)
"""


@pytest.mark.parametrize(
    ("name", "held"), [("unless_square", True), ("unless_one_side", True), ("of_any", False)]
)
def test_images_whose_sides_decide_are_held_to_the_proof(shared: Project, name: str, held: bool) -> None:
    shared.write("images.py", IMAGES)
    made = shared.run("gen", f"images.py::{name}", "--arg", "x=f32[24,16,16]", "--no-run")
    assert made.exit_code == 0, made.stderr
    for axis in (1, 2):
        assert (f"the code checks that axis {axis} of `x` is as long as it is here" in made.words) is held
