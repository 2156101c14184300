"""Every template with every plan variant: rendered, run on simulated devices, compared."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import black
import jinja2
import pytest
from project import simulated

from jax_pmap.emit import templates
from jax_pmap.emit.axes import collapse, spec_source, tree_source, type_imports
from jax_pmap.emit.function import EmitUnit
from jax_pmap.emit.header import Header
from jax_pmap.emit.names import names_for
from jax_pmap.emit.render import render
from jax_pmap.model import (
    Argument,
    Axes,
    AxesNode,
    Backend,
    Check,
    Devices,
    Evidence,
    Leaf,
    ParameterKind,
    Plan,
    Role,
)
from jax_pmap.reading.facts import Parameter
from jax_pmap.syntax.uses import MadeOf

HEADER = Header(
    version="0.1.0",
    command="jax-pmap gen user.py::step --axis-name batch",
    source="user.py::step",
    made_of=MadeOf("0123456789abcdef", ()),
    evidence=Evidence(
        checks=(
            Check(2, "float64", 8, 3, 1.1e-16, 4.0e-15),
            Check(4, "float64", 8, 3, 0.0, 4.0e-15),
            Check(4, "as given", 8, 1, 1e-7, 1e-6),
        ),
        jax_version="0.10.2",
        python_version="3.11.7",
        replicas_identical=True,
    ),
)
ORDINARY = ParameterKind.POSITIONAL_OR_KEYWORD
KINDS = {
    "/": ParameterKind.POSITIONAL_ONLY,
    "*": ParameterKind.VAR_POSITIONAL,
    "k": ParameterKind.KEYWORD_ONLY,
    "**": ParameterKind.VAR_KEYWORD,
}


def node(kind: str, /, *children: Axes, type_name: str = "", **fields: Axes) -> AxesNode:
    """Build an axes tree; keyword arguments are the fields of a dict or a namedtuple."""
    keys = tuple(repr(f) if kind == "dict" else f for f in fields)
    return AxesNode(kind, keys, (*children, *fields.values()), type_name)


def argument(name: str, axes: Axes = None, **options: object) -> Argument:
    return Argument(name, ORDINARY, axes, options.pop("leaves", ()), **options)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """A function, what is done to it, and calls that must agree with it."""

    #: The whole function as the user wrote it; ``SUM(x)`` and ``MEAN(x)`` mark the syncs.
    source: str
    arguments: tuple[Argument, ...]
    outputs: Axes
    #: Source of argument lists, e.g. ``"x, y, mode='train'"``, over the names of `VALUES`.
    calls: tuple[str, ...]
    imports: tuple[str, ...] = ("import jax", "import jax.numpy as jnp")
    user_imports: tuple[tuple[str, tuple[str, ...]], ...] = ()
    #: (argument list, piece of the message) pairs.
    refused: tuple[tuple[str, str], ...] = ()
    #: Such pairs for code in which devices have shares; the compiler keeps the meaning of these, too.
    refused_shares: tuple[tuple[str, str], ...] = ()
    devices: tuple[Devices, ...] = (Devices(),)
    helpers: tuple[str, ...] = ()
    #: Statements run in the emitted module's namespace, with ``plain`` the original.
    extra: str = ""

    def plain(self) -> str:
        return self.source.replace("SUM(", "(").replace("MEAN(", "(")


def parameters_of(function: ast.FunctionDef) -> tuple[Parameter, ...]:
    """Read a signature with ast; the generator's own reader is tested elsewhere."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + [ast.unparse(d) for d in a.defaults]

    def parameter(arg: ast.arg, kind: ParameterKind, default: str | None = None) -> Parameter:
        return Parameter(arg.arg, kind, ast.unparse(arg.annotation) if arg.annotation else None, default)

    found = [
        parameter(arg, KINDS["/"] if arg in a.posonlyargs else ORDINARY, default)
        for arg, default in zip(positional, defaults, strict=True)
    ]
    if a.vararg:
        found.append(parameter(a.vararg, KINDS["*"]))
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append(parameter(arg, KINDS["k"], ast.unparse(default) if default else None))
    if a.kwarg:
        found.append(parameter(a.kwarg, KINDS["**"]))
    return tuple(found)


def emitted(case: Case, backend: Backend, devices: Devices = Devices()) -> str:  # noqa: B008
    """Render a case, with the syncs woven in by text replacement."""
    function = ast.parse(case.source).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = case.source.splitlines()
    has_docstring = ast.get_docstring(function) is not None
    first = function.body[1 if has_docstring else 0]
    body = re.sub("^    ", "", "\n".join(lines[first.lineno - 1 :]), flags=re.MULTILINE)
    docstring = ast.get_source_segment(case.source, function.body[0]) if has_docstring else None
    used = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
    used |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    unit = EmitUnit(
        name=function.name,
        parameters=parameters_of(function),
        returns=ast.unparse(function.returns) if function.returns else None,
        docstring=docstring,
        body=body,
        imports=case.imports,
        user_imports=case.user_imports,
        taken_names=frozenset(used - {"SUM", "MEAN"}),
        helpers=case.helpers,
    )
    n = unit.names
    for mark, op in (("SUM(", "psum"), ("MEAN(", "pmean")):
        woven = f"{n.jax}.lax.{op}(axis_name={n.axis}, x=" if backend is not Backend.JIT else "("
        body = body.replace(mark, woven)
    plan = Plan(f"user.py::{function.name}", "batch", case.arguments, (), case.outputs, (), devices=devices)
    return render(replace(unit, body=body), plan, backend, HEADER)


VALUES = """
import collections
import jax, jax.numpy as jnp, numpy as np
Pair = collections.namedtuple("Pair", "x scale")
r = np.random.default_rng(0)
def f(*shape): return r.standard_normal(shape).astype("float32")
x, y, t, w = f(24, 3), f(24), f(5, 24, 3), f(3)
batch = {"x": x, "y": y}
params = {"w": w, "b": np.float32(0.5)}
table = f(24, 3)
keys = jax.random.split(jax.random.key(0), 24)
"""

LEAF = (Leaf("x", Role.BATCH, 0, (24, 3), "float32"),)
LEAVES = (
    Leaf("batch['x']", Role.BATCH, 0, (24, 3), "float32"),
    Leaf("batch['y']", Role.BATCH, 0, (24,), "bfloat16"),
)
CASES = {
    "one_array": Case(
        "def scale_by_two(x):\n    print('tracing')  # once\n    return x * 2\n",
        (argument("x", 0, leaves=LEAF),),
        0,
        # An array pinned to one device is a valid argument of the original, so of the drop-in.
        ("x", "x[:0]", "jnp.asarray(x)", *(f"jax.device_put(x, jax.devices()[{i}])" for i in (0, 3))),
        imports=(),
        refused=(
            ("x[:23]", "axis 0 a multiple of 8 (devices)"),
            ("3.0", "scale_by_two: x is "),
            ("[1, 2]", "x[0] is "),
            ("{'b': [1.0]}", "x['b'][0] is "),
        ),
        helpers=("devices",),
        extra="assert devices_in_use() == jax.devices()",
    ),
    "two_arguments": Case(
        "def scale_and_add(x, y):\n    return x * 2 + y\n",
        (argument("x", 0), argument("y", None)),
        0,
        ("x, 100.0", "x, y=w", "y=jax.device_put(w, jax.devices()[2]), x=x"),
        imports=(),
        devices=(Devices(), Devices(count=4), Devices(ids=(4, 2, 0))),
    ),
    "both_split": Case(
        "def mean_of_both(x, y):\n    return MEAN(jnp.mean(x.T * y))\n",
        (argument("x", 0), argument("y", 0)),
        None,
        ("x, y", "x, keys_of(y)"),
        refused=(("x, y[:16]", "the same in all of the batch"), ("x, y[:15]", "y is of shape (15,)")),
    ),
    "train_step": Case(
        '''def train_step(params: dict, batch: dict, lr: float = 0.1) -> tuple[dict, jax.Array]:
    """One step.

    Gradient descent.
    """
    def loss_fn(p):  # squared error
        return jnp.mean((batch["x"] @ p["w"] + p["b"] - batch["y"]) ** 2)

    loss, grads = MEAN(jax.value_and_grad(loss_fn)(params))
    params = jax.tree.map(lambda p, g: p - lr * g, params, grads)
    return params, loss
''',
        (argument("params"), argument("batch", node("dict", x=0, y=0), leaves=LEAVES), argument("lr")),
        node("tuple", None, None),
        ("params, batch", "params, batch, 0.5", "lr=0.2, batch=batch, params=params"),
        refused=(
            ("params, {'x': x, 'y': y[:8]}", "a multiple of 8 (devices), the same in all of the batch"),
            ("params, {'x': x[:15], 'y': y[:15]}", "train_step: batch['x'] is "),
        ),
        refused_shares=(
            ("params, {'x': x[:15], 'y': y[:15]}", "batch['x'] is float[15, 3]; expected float of rank 2, "),
            ("params, {'x': x, 'y': y[:, None]}", "batch['y'] is float[24, 1]; expected float of rank 1, "),
            ("params, {'x': x.astype(int), 'y': y}", "batch['x'] is int[24, 3]; expected float of rank 2, "),
            ("params, {'x': x, 'y': y, 'z': y}", "batch['z'] is float[24]; expected no leaf of rank -1, "),
        ),
        devices=(Devices(), Devices(count=3), Devices(ids=(1, 5))),
        helpers=("place", "devices"),
        extra="""
for placed in place([batch, batch]):
    run = compiled() if "compiled" in globals() else p_train_step
    leaves = jax.tree.leaves(placed)
    assert all(len(leaf.sharding.device_set) == len(devices_in_use()) for leaf in leaves)
    close(run(params, placed, 0.1), plain(params, batch))
    close(train_step(params, placed), plain(params, batch))
a, b = params, params
for _ in range(3):
    a, b = train_step(a, batch)[0], plain(b, batch)[0]
close(a, b)
""",
    ),
    "time_major": Case(
        "def shift(t, k):\n    total = SUM(t.sum())\n    return t * k, {'total': total, 't': t + 1}\n",
        (argument("t", 1), argument("k")),
        node("tuple", 1, node("dict", total=None, t=1)),
        ("t, 2.0", "jnp.asarray(t), 2.0"),
        refused=(
            ("t[:, :6], 1.0", "t is of shape (5, 6, 3); expected axis 1 a multiple of 8"),
            ("y, 1.0", "t is of shape (24,); expected axis 1 "),
        ),
    ),
    "mixed": Case(
        '''def predict(data, /, t, mask=None, *, mode: str = "train", flip=False):
    if mask is not None:
        t = t * mask
    text = """kept
  as it is"""
    mode = mode + text[:0]
    out = data["x"] @ data["table"].T + data["more"][0]
    return out, t * (2 if mode == "train" else 3), len(text) + 0 * SUM(jnp.sum(out))
''',
        (
            argument("data", node("dict", x=0, table=None, more=node("list", None, 0))),
            argument("t", 1),
            argument("mask", proved_values=("None",)),
            argument("mode", static=True, proved_values=("'train'", "'test'")),
            argument("flip", static=True, proved_values=("False",)),
        ),
        node("tuple", 0, 1, None),
        (
            "{'x': x, 'table': table, 'more': [1.0, y]}, t",
            "{'x': x, 'table': jnp.asarray(table), 'more': [w[0], y]}, t=t, mode='test'",
        ),
        refused=(
            ("{'x': x, 'table': table, 'more': [1.0, y]}, t, y", "`mask` must be None"),
            ("{'x': x, 'table': table, 'more': [1.0, y]}, t, mode='no'", "must be 'train' or 'test'"),
            ("{'x': x, 'table': table, 'more': [1.0, y]}, t, flip=True", "must be False"),
            ("{'x': x, 'table': table, 'more': [1.0, y[:4]]}, t", "data['more'][1] is of shape (4,)"),
            ("{'x': x, 'table': table, 'more': [1.0, y]}, t[:, :16]", "the same in all of the batch"),
        ),
    ),
    "stars": Case(
        "def add(first, *xs, **more):\n    return sum(xs, first) + more['y'][:, None] * more['w']\n",
        (argument("first", 0), argument("xs", 0), argument("more", node("dict", y=0, w=None))),
        0,
        ("x, x, table, y=y, w=w",),
        imports=(),
        refused=(
            ("x, x[:16], y=y, w=w", "the same in all of the batch"),
            ("x, x[:3], y=y, w=w", "xs[0] is of shape (3, 3)"),
        ),
    ),
    "namedtuple": Case(
        "def scaled(pair):\n    total = SUM(pair.x.sum())\n    return Pair(pair.x * pair.scale, total)\n",
        (argument("pair", node("namedtuple", type_name="user:Pair", x=0, scale=None)),),
        node("namedtuple", type_name="user:Pair", x=0, scale=None),
        ("Pair(x, w)",),
        imports=(),
        user_imports=(("user", ("Pair",)),),
        refused=(("Pair(x[:9], w)", "pair.x is of shape (9, 3)"),),
    ),
    "clashes": Case(
        """def step(P, np, name, axis, shard, AXIS, p_step=1.0):
    functools = jnp.ones(())
    return np * P + name.sum() * functools + SUM(axis.sum()) * AXIS * p_step, shard
""",
        (
            argument("P", 0),
            argument("np", 0),
            argument("name"),
            argument("axis", 0),
            argument("shard"),
            argument("AXIS"),
            argument("p_step"),
        ),
        node("tuple", 0, None),
        ("x, table, w, y, w, 2.0",),
        refused=(("x[:9], table, w, y, w, 1.0", "P is of shape (9, 3)"),),
    ),
    "keys": Case(
        "def noise(keys, seed):\n    return jax.vmap(jax.random.normal)(keys), jax.random.normal(seed)\n",
        (argument("keys", 0), argument("seed")),
        node("tuple", 0, None),
        ("keys, jax.random.key(3)", "jax.random.split(jax.random.PRNGKey(0), 24), jax.random.PRNGKey(7)"),
    ),
    "nothing_returned": Case(
        "def drop(x):\n    return (), {}, [x, 1.0 * x.shape[1]]\n",
        (argument("x", 0),),
        node("tuple", node("tuple"), node("dict"), node("list", 0, None)),
        ("x",),
        imports=(),
    ),
    "donated": Case(
        "def update(state, x):\n    state = state + SUM(x.sum(0))\n    return state, x + 1\n",
        (argument("state", donated=True), argument("x", 0, donated=True)),
        node("tuple", None, 0),
        ("w, x", "jnp.array(w), jnp.array(x)"),
        imports=(),
        extra="""
given = jnp.array(x)
state, out = update(jnp.array(w), given)
assert not given.is_deleted()
again, out = update(state, out)
assert state.is_deleted()
close(again, plain(plain(w, x)[0], x + 1)[0])
""",
    ),
}

RUNNER = """
import contextlib, io, json, pathlib, sys
import jax, numpy as np
assert jax.device_count() == 8

def close(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want), (got, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
        assert np.shape(a) == np.shape(b), (np.shape(a), np.shape(b))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)

import user
failures = []
for job in json.loads(pathlib.Path(sys.argv[1]).read_text()):
    space = {"__name__": job["id"], "CODE": job["code"], "close": close}
    given = vars(user) | {"keys_of": jax.numpy.asarray}
    try:
        plain = dict(given)
        exec(job["plain"], plain)
        exec(compile(job["code"], job["id"], "exec"), space)
        ours, theirs = space[job["name"]], plain[job["name"]]
        for call in job["calls"]:
            with contextlib.redirect_stdout(io.StringIO()):
                want = eval(f"F({call})", dict(given, F=theirs))
                got = eval(f"F({call})", dict(given, F=ours))
            close(got, want)
            if job["count"]:
                used = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(got)}
                assert max(used) in (1, job["count"]), used
        for call, piece in job["refused"]:
            try:
                eval(f"F({call})", dict(given, F=ours))
            except ValueError as error:
                assert piece in str(error), str(error)
            else:
                raise AssertionError(f"{call} was taken")
        exec(job["extra"], {**given, **space, "plain": theirs})
    except Exception as error:
        failures.append(f"{job['id']}: {type(error).__name__}: {error}")
print("\\n\\n".join(failures))
print(len(failures), "failures")
"""

VARIANTS = [
    (name, backend, devices)
    for name, case in CASES.items()
    for backend in Backend
    for devices in case.devices
]


def test_every_variant_runs_and_agrees(tmp_path: Path) -> None:
    jobs = []
    for name, backend, devices in VARIANTS:
        case = CASES[name]
        function = ast.parse(case.source).body[0]
        assert isinstance(function, ast.FunctionDef)
        refused = case.refused + (() if backend is Backend.JIT else case.refused_shares)
        jobs.append(
            {
                "id": f"{name}-{backend}-{devices.number}",
                "name": function.name,
                "code": emitted(case, backend, devices),
                "plain": case.plain(),
                "calls": case.calls,
                # The messages quoted in the cases are those for all eight devices.
                "refused": refused if devices.number is None else (),
                "count": devices.number or 0,
                "extra": case.extra,
            }
        )
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    (tmp_path / "user.py").write_text(VALUES)
    (tmp_path / "runner.py").write_text(RUNNER)
    done = subprocess.run(
        [sys.executable, "runner.py", "jobs.json"],
        cwd=tmp_path,
        env=simulated(8),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.endswith("\n0 failures\n"), done.stdout + done.stderr


@pytest.mark.parametrize(("name", "backend", "devices"), VARIANTS)
def test_text_is_tidy_and_deterministic(name: str, backend: Backend, devices: Devices) -> None:
    code = emitted(CASES[name], backend, devices)
    assert code == emitted(CASES[name], backend, devices)
    mode = black.Mode(line_length=88, target_versions={black.TargetVersion.PY310})
    assert black.format_str(code, mode=mode) == code
    assert "jax_pmap" not in code.replace("jax-pmap", "")
    ast.parse(code, feature_version=(3, 10))


def test_importing_emitted_code_starts_no_device(tmp_path: Path) -> None:
    checks = []
    for name, backend, devices in VARIANTS:
        if name == "train_step":
            (tmp_path / f"m{len(checks)}.py").write_text(emitted(CASES[name], backend, devices))
            checks.append(f"import m{len(checks)}")
    program = "\n".join([*checks, "from jax._src import xla_bridge", "assert not xla_bridge._backends"])
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=120)


def test_gold_example() -> None:
    unit = EmitUnit(
        name="train_step",
        parameters=tuple(Parameter(n, ORDINARY, None, None) for n in ("params", "opt_state", "batch")),
        returns=None,
        docstring='"""One step."""',
        body="loss, grads = jax.value_and_grad(loss_fn)(params, batch)\n"
        "loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)\n"
        "updates, opt_state = tx.update(grads, opt_state, params)\n"
        "params = optax.apply_updates(params, updates)\n"
        "return params, opt_state, loss\n",
        imports=("import jax", "import optax"),
        user_imports=(("train", ("tx", "loss_fn")),),
        taken_names=frozenset({"jax", "optax", "np", "functools", "loss_fn", "tx", "train_step"}),
    )
    arguments = (argument("params"), argument("opt_state"), argument("batch", 0))
    plan = Plan("train.py::train_step", "batch", arguments, (), node("tuple", None, None, None), ())
    code = render(unit, plan, Backend.PMAP, replace(HEADER, source="train.py::train_step"))
    assert code.startswith("# Generated by jax-pmap 0.1.0. Edit freely; regenerate with:\n#   jax-pmap gen ")
    assert (
        "# Proved: 2, 4 devices, 3 chained steps, float64 error 1.1e-16 (bound 4.0e-15), jax 0.10.2\n" in code
    )
    start = code.index('"""Data-parallel')
    assert code[start : code.index("@functools.cache\n")] == textwrap.dedent(
        '''\
        """Data-parallel `train_step`: same call and same results as train.py::train_step, on N devices."""

        import functools

        import jax
        import numpy as np
        import optax
        from jax.sharding import Mesh, NamedSharding
        from jax.sharding import PartitionSpec as P

        from train import loss_fn, tx

        AXIS = "batch"


        @functools.partial(
            jax.pmap, axis_name=AXIS, in_axes=(None, None, 0), out_axes=(None, None, None)
        )
        def p_train_step(params, opt_state, batch):
            """`train_step` on one device's share; `batch` leaves are (devices, per_device, ...)."""
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            loss, grads = jax.lax.pmean((loss, grads), axis_name=AXIS)
            updates, opt_state = tx.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            return params, opt_state, loss


        '''
    )
    assert code.endswith(
        "def train_step(params, opt_state, batch):\n"
        '    """One step."""\n'
        "    return p_train_step(params, opt_state, shard(batch))\n"
    )


def test_helpers_appear_only_when_asked_or_needed() -> None:
    plain = emitted(CASES["two_arguments"], Backend.PMAP)
    assert "def unshard" in plain
    for word in ("def place", "def devices_in_use", "def compiled", "collections", "PROVED"):
        assert word not in plain
    assert "def unshard" not in emitted(CASES["both_split"], Backend.PMAP)
    assert "sizes" not in emitted(CASES["one_array"], Backend.PMAP)


def test_signature_docstring_and_strings_survive() -> None:
    code = emitted(CASES["mixed"], Backend.SHARD_MAP)
    assert 'def predict(data, /, t, mask=None, *, mode: str = "train", flip=False):' in code
    assert '"""kept\n  as it is"""' in code
    code = emitted(CASES["train_step"], Backend.PMAP)
    assert "lr: float = 0.1) -> tuple[dict, jax.Array]:" in code.replace("\n", "")
    assert "One step.\n\n    Gradient descent.\n" in code
    assert "# squared error" in code


def test_unproved_code_says_so() -> None:
    assert "# NOT PROVED: the proof is still to come" in replace(HEADER, evidence=None).text()
    assert replace(HEADER, command="a\nimport os").text().count("\n") == 3


def test_wrong_plans_are_refused() -> None:
    case = CASES["two_arguments"]
    with pytest.raises(ValueError, match="holds a batch"):
        emitted(replace(case, arguments=(argument("x"), argument("y"))), Backend.PMAP)
    with pytest.raises(ValueError, match="not those of"):
        emitted(replace(case, arguments=(argument("x", 0),)), Backend.PMAP)


def test_names_keep_clear_of_the_users() -> None:
    names = names_for("step", frozenset({"AXIS", "AXIS_", "np", "shard"}), imports=["import jax.numpy as np"])
    assert (names.axis, names.np, names.shard, names.jax) == ("AXIS__", "np_", "shard_", "jax")
    assert names_for("step", frozenset({"np", "jax"})).np == "np"
    assert names_for("step", frozenset(), imports=["import numpy as np"]).np == "np"
    assert names_for("step", frozenset(), imports=["from jax.sharding import PartitionSpec as P"]).P == "P"
    assert names_for("step", frozenset(), imports=["from phi import P"]).P == "P_"


def test_axes_as_source() -> None:
    tree = node("dict", x=0, table=None, rest=node("tuple", 1))
    assert tree_source(tree) == "{'x': 0, 'table': None, 'rest': (1,)}"
    assert tree_source(tree, spec_source) == "{'x': P(AXIS), 'table': P(), 'rest': (P(None, AXIS),)}"
    batch = node("namedtuple", type_name="train:Outer.Batch", x=0, y=None)
    assert tree_source(batch) == "Outer.Batch(x=0, y=None)"
    assert type_imports(node("list", batch, 0)) == (("train", "Outer"),)
    assert collapse(node("dict", x=0, y=node("list", 0, node("tuple")))) == 0
    assert collapse(node("tuple")) is None
    assert collapse(node("dict", x=0, y=node("list", None, None))) == node("dict", x=0, y=None)
    with pytest.raises(ValueError, match="unknown container"):
        tree_source(node("set", 0))


# --- compiled templates -------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for byte code that is this test's own."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    templates.environment.cache_clear()
    yield tmp_path / "cache"
    templates.environment.cache_clear()


def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The templates compiled by one rendering in a process that just started."""
    compiled = []
    compile_template = jinja2.Environment.compile

    def noted(self: jinja2.Environment, source: str, name: str, *rest: object, **options: object) -> object:
        compiled.append(name)
        return compile_template(self, source, name, *rest, **options)

    templates.environment.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(jinja2.Environment, "compile", noted)
        templates.environment().get_template("module.py.jinja")
    return compiled


def test_templates_are_compiled_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compilations(monkeypatch) == ["module.py.jinja"]
    (kept,) = [path for path in own_cache.rglob("*") if path.is_file()]
    assert kept.suffix == ".jinja"
    assert compilations(monkeypatch) == []
    kept.write_bytes(kept.read_bytes()[:40])  # half a file, as a full disk leaves it
    assert compilations(monkeypatch) == ["module.py.jinja"]
    assert compilations(monkeypatch) == []


def test_a_cache_that_cannot_be_written_is_done_without(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.touch()  # a file where the folder should be: fails for root, too
    assert compilations(monkeypatch) == compilations(monkeypatch) == ["module.py.jinja"]


def test_byte_code_that_is_not_wanted_is_not_written(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert compilations(monkeypatch) == ["module.py.jinja"]
    assert not own_cache.exists()
