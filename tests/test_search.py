"""What the search for a plan settles without observing: static values, structure, sizes left out."""

import ast
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version
import numpy as np
import pytest
from jax.extend.core import Primitive
from project import Project, simulated

from jax_pmap.drift import outdated
from jax_pmap.emit.decomposed import reduction
from jax_pmap.emit.places import Body
from jax_pmap.model import Source
from jax_pmap.planning import search
from jax_pmap.planning.callables import only_given_whole
from jax_pmap.planning.decide import Observation
from jax_pmap.planning.plan import is_literal
from jax_pmap.planning.roles import Roles, holds_state
from jax_pmap.session import Session
from jax_pmap.syntax.parse import parse
from jax_pmap.syntax.resolve import Resolver
from jax_pmap.syntax.text import FunctionText, function_text
from jax_pmap.worker.compiling import Compiling, count
from jax_pmap.worker.protocol import Raised

USUAL = """
    import dataclasses
    import jax
    import jax.numpy as jnp
    import numpy as np


    @dataclasses.dataclass(frozen=True)
    class Config:
        reduction: str = "mean"


    def rows(count):
        return np.random.default_rng(0).normal(size=(count, 5)).astype("float32")


    def inputs(): return (rows(24),)
    def with_config(): return rows(24), Config("sum")
    def sixty_four(): return (rows(64),)
    def dicts(): return {"w": np.ones(5, "float32")}, {"x": rows(24)}
"""


@pytest.mark.parametrize(
    ("source", "literal"),
    [("3", True), ("-0.5", True), ("(1, 'a')", True), ("nan", False), ("<function f>", False)],
)
def test_constants_that_can_be_compared(source: str, literal: bool) -> None:
    assert is_literal(source) is literal


def write(project: Project, code: str) -> None:
    project.write("f.py", textwrap.dedent(USUAL) + "\n\n" + textwrap.dedent(code))


@pytest.mark.parametrize(
    ("path", "state"),
    [("critic.params['w']", True), ("net['dense']['kernel']", True), ("params", False), ("a['x']", False)],
)
def test_states_are_known_by_their_parts(path: str, state: bool) -> None:
    assert holds_state({"leaves": [{"path": "a"}, {"path": path}]}) is state


def test_what_is_read_of_a_configuration_is_compared(project: Project) -> None:
    write(project, "def f(x, cfg):\n    return getattr(jnp, cfg.reduction.lower())(x)\n")
    made = project.run("gen", "f.py::f", "--inputs", "f.py::with_config")
    assert 'if cfg.reduction != "sum":' in made.stdout, made.stderr
    assert "`cfg` is static and was tried with cfg.reduction = 'sum'" in made.words


def test_what_is_read_of_a_configuration_in_the_functions_it_is_given_to_is_compared(
    project: Project,
) -> None:
    text = """\
        def reduced(values, settings):
            return getattr(jnp, settings.reduction)(values)

        def given_on(values, *, cfg):
            return reduced(values, cfg)

        def f(x, cfg):
            return given_on(x, cfg=cfg)

        def printed(x, cfg):
            return reduced(x, cfg) + len(repr(cfg))
        """
    write(project, textwrap.dedent(text))
    made = project.run("gen", "f.py::f", "--inputs", "f.py::with_config")
    assert 'if cfg.reduction != "sum":' in made.stdout, made.stderr
    # Where it is used as a whole, all that it holds counts.
    made = project.run("gen", "f.py::printed", "--inputs", "f.py::with_config")
    assert "contents(cfg)" in made.stdout, made.stderr


def test_a_value_with_which_the_function_fails_is_not_tried(project: Project) -> None:
    text = """\
        def f(x, rows=0, columns=1):
            columns = columns if columns >= 0 else columns + x.ndim
            return x.var(axis=rows) / jnp.max(jnp.abs(x), axis=(rows, columns))
        """
    write(project, textwrap.dedent(text))
    made = project.run("gen", "f.py::f", "--arg", "x=f32[24,3]")
    assert made.exit_code == 0, made.stderr
    assert "`columns` was tried with 1; the emitted function takes no other value" in made.words


def test_a_value_that_needs_another_collective_at_the_same_place_is_not_taken(project: Project) -> None:
    """The gradient of a sum is a sum, where that of a mean is a mean."""
    text = """\
        def f(w, x, kind="mean"):
            def loss(w):
                if kind == "mean":
                    return jnp.mean((x @ w) ** 2)
                if kind == "sum":
                    return jnp.sum((x @ w) ** 2)
                return jnp.max((x @ w) ** 2)

            value, grad = jax.value_and_grad(loss)(w)
            return w - 0.1 * grad, value
        """
    write(project, textwrap.dedent(text))
    made = project.run("gen", "f.py::f", "--arg", "w=f32[3]", "--arg", "x=f32[24,3]")
    assert made.exit_code == 0, made.stderr
    assert "`kind` was tried with 'mean'; the emitted function takes no other value" in made.words
    assert "psum" not in made.stdout


@pytest.mark.parametrize(("given", "taken"), [("tokens", "'tokens'"), ("rows", "'rows' and 'tokens'")])
def test_a_value_that_needs_no_collective_where_another_one_does_is_not_taken(
    project: Project, given: str, taken: str
) -> None:
    """A count of tokens is summed where it is made, if that is seen first, and a number of rows behind it."""
    text = f"""\
        def f(x, mask, per={given!r}):
            if per == "tokens":
                count = mask.sum()
            elif per == "rows":
                count = x.shape[0]
            else:
                raise ValueError(per)
            return jnp.sum(x * mask), jnp.asarray(count, jnp.float32)
        """
    write(project, textwrap.dedent(text))
    made = project.run("gen", "f.py::f", "--arg", "x=f32[24,3]", "--arg", "mask=mask[24,3]")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    assert f"`per` was tried with {taken}; the emitted function takes no other value" in made.words


def test_a_function_of_a_library_is_told_by_its_name(project: Project) -> None:
    """And one of the user's own, which may be edited, by what it does."""
    write(
        project,
        """\
        import jax.nn

        def own(x):
            return x + 1

        def ruled(rate):
            @jax.custom_jvp
            def same(x):
                return x * 1

            same.defjvp(lambda given, by: (given[0] * 1, by[0] * rate))
            return same

        def f(x, act, shift, rule):
            return shift(act(x)).mean() + jax.grad(lambda x: rule(x).mean())(x).sum()

        def functions():
            return jnp.ones((24, 3)), jax.nn.relu, own, ruled(1.0)
        """,
    )
    made = project.run("gen", "f.py::f", "--inputs", "f.py::functions", "-o", "out.py")
    assert "takes nothing but `jax.nn.relu`, and with --static act any" in made.words, made.stderr
    assert "takes no function of other contents, and with --static shift any" in made.words
    text = (project.folder / "out.py").read_text()
    assert "from jax.nn import relu as proved_relu" in text and "if act is not proved_relu:" in text
    said = "`act` is not `jax.nn.relu`, with which this was proved"
    run = "import jax, out, f; x = f.jnp.ones((24, 3)); print(out.f(x, jax.nn.relu, f.own, f.ruled(1.0)))"

    def ran(code: str) -> str:
        words = (sys.executable, "-c", code)
        made = subprocess.run(
            words, cwd=project.folder, env=simulated(8), capture_output=True, text=True, check=False
        )
        return " ".join((made.stdout + made.stderr).split())

    assert ran(run) == "3.0"
    assert said in ran(run.replace("nn.relu", "nn.silu"))
    assert "`rule` is not the custom_jvp of the run" in ran(run.replace("1.0", "2.0"))


def test_object_that_is_no_default_is_told_by_its_contents_unless_accepted(project: Project) -> None:
    write(project, "def f(x, cfg):\n    return getattr(jnp, vars(cfg)['reduction'])(x)\n")
    words = ("gen", "f.py::f", "--inputs", "f.py::with_config")
    made = project.run(*words)
    assert "takes no Config of other contents, and with --static cfg any" in made.words
    assert "`cfg` is not the Config of the run this file was made from" in made.stdout
    assert "the proof holds for the value it had" in project.run(*words, "--static", "cfg").words


def test_a_function_that_holds_a_mapped_one_is_told_from_others(project: Project) -> None:
    """What `jax.vmap` makes holds an object without contents; such a one of nobody's name tells nothing."""
    write(
        project,
        """\
        def held(power, mark=None):
            rows = jax.vmap(lambda w, x: x @ w, (None, 0))
            return lambda w, x: rows(w, x) ** power if mark is None else x @ w

        def f(x, act):
            return jnp.sqrt(act(jnp.ones(3), x).mean())

        def mapped():
            return jnp.ones((24, 3)), held(2)

        def marked():
            return jnp.ones((24, 3)), held(2, object())
        """,
    )
    made = project.run("gen", "f.py::f", "--inputs", "f.py::mapped", "-o", "out.py")
    assert "takes no function of other contents, and with --static act any" in made.words, made.stderr
    run = "import out, f; print(out.f(f.jnp.ones((24, 3)), f.held(2)))"
    words = [sys.executable, "-c", run]
    done = subprocess.run(
        words, cwd=project.folder, env=simulated(8), capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "3.0", done.stderr
    words[2] = run.replace("held(2)", "held(4)")
    done = subprocess.run(
        words, cwd=project.folder, env=simulated(8), capture_output=True, text=True, check=False
    )
    assert "`act` is not the function of the run" in " ".join(done.stderr.split())
    project.refused("JP053", "gen", "f.py::f", "--inputs", "f.py::marked", exit_code=1)


def test_a_function_around_a_variable_that_was_never_set_is_told_from_others(project: Project) -> None:
    """As `optax.exponential_decay` makes one, which clips where it is given an end alone."""
    write(
        project,
        """\
        def decay(rate, end=None):
            if end is not None:
                clip = lambda x: jnp.maximum(x, end)

            def schedule(x):
                return x * rate if end is None else clip(x * rate)

            return schedule

        def f(x, rule):
            return rule(x).mean()

        def functions():
            return jnp.ones((24, 3)), decay(2.0)
        """,
    )
    made = project.run("gen", "f.py::f", "--inputs", "f.py::functions", "-o", "out.py")
    assert "takes no function of other contents, and with --static rule any" in made.words, made.stderr
    for rule, said in (("2.0", "2.0"), ("3.0", "`rule` is not the"), ("2.0, 5.0", "`rule` is not the")):
        run = f"import out, f; print(out.f(f.jnp.ones((24, 3)), f.decay({rule})))"
        words = [sys.executable, "-c", run]
        done = subprocess.run(
            words, cwd=project.folder, env=simulated(8), capture_output=True, text=True, check=False
        )
        assert said in " ".join((done.stdout + done.stderr).split())


LOCKED = """
import threading

import jax
import jax.numpy as jnp


class Model:
    def __init__(self):
        self.lock = threading.Lock()

    def loss(self, w, x):
        return jnp.mean((x @ w) ** 2)

    def step(self, w, x):
        loss, grad = jax.value_and_grad(self.loss)(w, x)
        return w - 0.1 * grad, loss


def inputs(seed=0):
    return Model(), jnp.ones(16), jnp.ones((24, 16)) * (seed + 1)
"""


def test_of_the_object_of_a_method_that_has_no_contents_no_default_is_asked(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("model.py", LOCKED)
    words = ("gen", "model.py::Model.step", "--inputs", "model.py::inputs")
    says = ("hint: Have the proof hold for the Model given here and no other: --static self",)
    asked: list[Any] = []
    ask = Session.ask

    def noted(self: Session, request: Any, *doing: Any) -> Any:
        asked.append(request)
        return ask(self, request, *doing)

    monkeypatch.setattr(Session, "ask", noted)
    project.refused("JP053", *words, says=says, exit_code=1)
    # It is no other object where something else is split.
    assert {str(each.roles.axes) for each in asked if type(each).__name__ == "Observe"} == {"{'x': {0: 0}}"}
    made = project.run(*words, "--static", "self")
    assert made.exit_code == 0, made.stderr


def test_less_likely_ways_are_not_tried_where_the_likeliest_took_long(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, "def f(x):\n    return jnp.median(x, axis=0)\n")
    words = ("gen", "f.py::f", "--arg", "x=f32[24,16]", "--no-run")
    monkeypatch.setattr(search, "MOST_TRACED", 0)
    says = ("`f` is long, and less likely ways to divide its arguments were not tried", "--shard NAME")
    project.refused("JP043", *words, says=says, exit_code=1)
    made = project.run(*words, "--shard", "x:1")
    assert made.exit_code == 0, made.stderr


def test_object_of_a_class_that_a_function_makes_is_told_from_others(project: Project) -> None:
    """They have one name, and what decides is a variable of the function, or stands in another such class."""
    write(
        project,
        """\
        from functools import partial

        from flax.core import freeze

        def make(axis):
            @dataclasses.dataclass(frozen=True)
            class Centre:
                scale: float = 2.0

                def __call__(self, x):
                    return self.scale * (x - x.mean(axis, keepdims=True))
            return Centre

        @dataclasses.dataclass(frozen=True)
        class Layer:
            kind: type
            settings: object = freeze({"scale": 2.0})

            def __call__(self, x):
                return self.kind(**self.settings)(x)

        @partial(jax.jit, static_argnums=1)
        def f(x, centre):
            return jnp.abs(centre(x)).mean()

        def made():
            return rows(24), make(-1)()

        def held():
            return rows(24), Layer(make(-1))
        """,
    )
    for name in ("made", "held"):
        made = project.run("gen", "f.py::f", "--inputs", f"f.py::{name}", "-o", f"{name}_pmap.py", "--no-run")
        assert made.exit_code == 0, made.stderr
    code = textwrap.dedent("""\
        import f, held_pmap, made_pmap
        for module, wrapped in ((made_pmap, lambda kind: kind()), (held_pmap, f.Layer)):
            module.f(f.rows(24), wrapped(f.make(-1)))
            try:
                module.f(f.rows(24), wrapped(f.make(0)))
            except ValueError as error:
                assert "`centre` is not the" in str(error), error
            else:
                raise AssertionError(module)
    """)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project.folder,
        env=simulated(3),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_an_object_that_is_the_default_may_have_changed_since(project: Project) -> None:
    """It is the default still; what is read of it, or all that is in it, is compared."""
    write(
        project,
        """\
        class Kept:
            def __init__(self):
                self.axis = -1

        KEPT = Kept()

        def spread(x, kept):
            return x - x.mean(axis=kept.axis, keepdims=True)

        def read(x, kept=KEPT):
            return x - x.mean(axis=kept.axis, keepdims=True)

        def passed(x, kept=KEPT):
            return spread(x, kept) * len(vars(kept))
        """,
    )
    for name in ("read", "passed"):
        made = project.run(
            "gen", f"f.py::{name}", "--arg", "x=f32[24,3]", "-o", f"{name}_pmap.py", "--no-run"
        )
        assert made.exit_code == 0, made.stderr
    code = textwrap.dedent("""\
        import sys, numpy as np, f, read_pmap, passed_pmap
        for name, module in (("read", read_pmap), ("passed", passed_pmap)):
            function = getattr(module, name)
            function(np.ones((24, 3), "float32"))
            f.KEPT.axis = 0
            try:
                function(np.ones((24, 3), "float32"))
            except ValueError as error:
                print(str(error).partition(", ")[0])
            f.KEPT.axis = -1
        """)
    ran = subprocess.run(
        (sys.executable, "-c", code), cwd=project.folder, env=simulated(8), capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == [
        "read: `kept.axis` must be -1",
        "passed: `kept` is not the Kept of the run this file was made from",
    ], ran.stderr


@pytest.mark.parametrize(
    ("code", "inputs", "told"),
    [
        ("def f(x, cfg): return getattr(jnp, cfg.reduction)(x)", "with_config", 'if cfg.reduction != "sum":'),
        ("def f(x, cfg): return cfg(x)", "with_callable", "`cfg` is not the function of the run"),
    ],
)
def test_what_jit_takes_as_static_may_be_no_other_than_was_proved(
    project: Project, code: str, inputs: str, told: str
) -> None:
    given = "def with_callable(): return rows(24), lambda x: jnp.mean(x)"
    static = '@functools.partial(jax.jit, static_argnames="cfg")'
    write(project, f"import functools\n\n\n{given}\n\n\n{static}\n{code}\n")
    made = project.run("gen", "f.py::f", "--inputs", f"f.py::{inputs}")
    assert told in made.stdout, made.stderr


def test_object_that_is_the_default_is_compared(project: Project) -> None:
    write(project, "def f(x, cfg=Config()):\n    return getattr(jnp, cfg.reduction)(x)\n")
    made = project.run("gen", "f.py::f", "--inputs", "f.py::inputs")
    assert "if cfg != Config():" in made.stdout, made.stderr


def test_state_alone_is_no_batch_and_where_the_data_is_read_is_said(project: Project) -> None:
    write(
        project,
        """
        images = rows(24)


        def loss(params):
            return jnp.sum(jnp.tanh(images @ params) ** 2)


        def update(params):
            return params - 0.1 * jax.grad(loss)(params)


        def start(): return (np.ones((5, 3)),)
        """,
    )
    says = ("`images` (24, 5) of line", "def update(params, images)` and of `loss`", "parameters and state")
    refusal = project.refused(
        "JP040", "plan", "f.py::update", "--inputs", "f.py::start", says=says, exit_code=1
    )
    assert "with fewer rows" not in refusal.words


@pytest.mark.parametrize(
    ("kind", "message", "found"),
    [
        ("ImportError", "cannot import name 'optim' from 'flax' (/x/__init__.py)", "flax.optim"),
        ("AttributeError", "module 'jax' has no attribute 'tree_map'", "jax.tree_map"),
        ("AttributeError", "jax.tree_map was removed in JAX v0.6.0: use jax.tree.map", "jax.tree_map"),
        (
            "ModuleNotFoundError",
            "No module named 'jax.experimental.optimizers'",
            "jax.experimental.optimizers",
        ),
        ("ModuleNotFoundError", "No module named 'torch'", None),
        ("ImportError", "cannot import name 'net' from 'models'", None),
        ("ValueError", "module 'jax' has no attribute 'tree_map'", None),
    ],
)
def test_names_a_library_has_no_more(tmp_path: Path, kind: str, message: str, found: str | None) -> None:
    (tmp_path / "models.py").touch()
    said = outdated(Raised(kind, message), tmp_path)
    assert (said is None) if found is None else (said is not None and f"has no `{found}`: use `" in said)


def test_a_parameter_that_jax_has_no_more(tmp_path: Path) -> None:
    message = "{}() got an unexpected keyword argument '{}'"
    said = outdated(Raised("TypeError", message.format("clip", "a_max")), tmp_path)
    assert said is not None and "`a_max` of `jax.numpy.clip`: it is called `max`" in said
    assert outdated(Raised("TypeError", message.format("clip", "rate")), tmp_path) is None


def test_a_module_that_its_package_does_not_import(tmp_path: Path) -> None:
    message = "module 'jax.scipy' has no attribute 'optimize'"
    said = outdated(Raised("AttributeError", message), tmp_path)
    assert said is not None and said.endswith("write `import jax.scipy.optimize`")


def called(text: str) -> str:
    imports = "import jax\nimport numpy as np\nimport jax.numpy as jnp\nfrom jax.numpy import var\n"
    names = Resolver(f"{imports}{text}", "f.py", ast.parse(f"{imports}{text}"))
    return names.qualname(names.all_calls[0].func) or ""


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("jnp.median(x)", None),
        ("jnp.linalg.norm(x, jnp.inf)", None),
        ("jnp.linalg.norm(x, order)", None),
        ("jnp.cov(x, bias=flag)", None),
        ("jax.nn.logsumexp(x, return_sign=True)", None),
        ("jnp.var(x, dtype=float)", None),
        ("jnp.var(*x)", None),
        ("jnp.cov(x, rowvar=flag)", None),
        ("np.var(x)", "np.mean((x - np.mean(x)) ** 2)"),
        ("var(x, None)", "jnp.mean((x - jnp.mean(x)) ** 2)"),
        ("std(x)", None),  # Nothing says what it is.
        ("jax.numpy.ptp(x)", "jax.numpy.max(x) - jax.numpy.min(x)"),
        ("(x @ w).std()", "(lambda values: jnp.sqrt(jnp.mean((values - jnp.mean(values)) ** 2)))(x @ w)"),
        ("jnp.linalg.norm(x - 1, axis=1)", "jnp.sqrt(jnp.sum((x - 1) ** 2, axis=1))"),
        (
            "x.var(0, correction=1)",
            "jnp.sum((x - jnp.mean(x, axis=0)) ** 2, axis=0) / (jnp.size(x, axis=0) - 1)",
        ),
    ],
)
def test_reductions_are_written_as_what_can_be_made_whole(text: str, written: str | None) -> None:
    found = reduction(text, called(text))
    assert (found and found.written()) == written


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("sm(x)", "jax.nn.softmax"),
        ("spread(x)", "jax.numpy.std"),
        ("N.softmax(x)", "jax.nn.softmax"),
        ("x.std()", ""),
        ("softmax(x)", ""),
        ("np.var(x)", "np.var"),
    ],
)
def test_what_a_call_calls_is_known_under_any_name(tmp_path: Path, call: str, name: str) -> None:
    code = f"""
        import jax.nn as N
        import jax.numpy as jnp
        from jax.nn import softmax as sm
        try:
            import jax.numpy as np
        except ImportError:
            import numpy as np
        spread = jnp.std
        def softmax(x): return jnp.sum(x)
        def f(x): return {call}
    """
    source = Source("", tmp_path / "f.py", "f.py", "f", tmp_path, "f", textwrap.dedent(code))
    (found,) = (each for each in Body(function_text(parse(source))).expressions if each.is_call)
    assert found.called == name


@pytest.mark.parametrize(
    "text",
    [
        "jnp.mean(x, where=x > 2)",
        "jnp.mean(a=x, axis=0, keepdims=True, where=x > 2)",
        "jnp.nanmean(jnp.where(x > 5, jnp.nan, x), axis=0)",
        "jnp.nanvar(jnp.where(x > 5, jnp.nan, x))",
        "jnp.nanstd(jnp.where(x > 5, jnp.nan, x), axis=0, ddof=1)",
        "jnp.average(x - 1)",
        "jnp.average(x, axis=0, weights=x + 1)",
        "jnp.average(x, axis=0, weights=x[:, 0] + 1)",
        "jnp.var(x @ w, axis=1, ddof=1, keepdims=True)",
        "jnp.std(x, where=x > 5.5)",
        "jnp.std(x, axis=(0, 1), ddof=n, where=x > 2)",
        "x.std(n - 1)",
        "jnp.linalg.norm(x @ w, axis=0)",
        "jnp.linalg.norm(x[0] - 3, 1)",
        "jnp.linalg.norm(x - 3, ord=3, axis=0)",
        "jnp.linalg.vector_norm(x, axis=0)",
        "jnp.linalg.vector_norm(x - 3, axis=0, ord=1)",
        "jnp.ptp(x, axis=0)",
        "jax.nn.logsumexp(x)",
        "jax.nn.logsumexp(x - 200, axis=0)",
        "jax.nn.logsumexp(x, axis=0, keepdims=True)",
        "jax.nn.logsumexp(jnp.where(x > 2, x, -jnp.inf), axis=1)",
        "jax.nn.logsumexp(largest, axis=0)",
        "jax.nn.logsumexp(x, b=x - 2)",
        "jax.nn.logsumexp(x - 200, axis=0, b=largest + 1, keepdims=True)",
        "jax.nn.logsumexp(x - 200, where=x > 2)",
        "jax.nn.logsumexp(x, axis=0, b=w[0] - 1, keepdims=True, where=x > 2)",
        "jax.nn.softmax(x)",
        "jax.nn.softmax(x - 200, axis=0, where=x > 2)",
        "jax.nn.softmax(weights * 2, axis=0)",
        "jax.nn.log_softmax(x @ w, axis=n - 1)",
        "jax.nn.standardize(x)",
        "jax.nn.standardize(x - 3, axis=0, epsilon=w[0, 0] + 1, where=x > 2)",
        "jax.nn.logsumexp(x, axis=0, b=x % 3)",
        "jnp.cov(x)",
        "jnp.cov(x[0])",
        "jnp.cov(x, rowvar=False)",
        "jnp.cov(x, bias=True)",
        "jnp.cov(x, x + 1, rowvar=False, ddof=2)",
        "jnp.corrcoef(x, x**2, rowvar=False)",
        "jnp.corrcoef(x.T)",
        "jnp.corrcoef(x[0], x[1] ** 2)",
        "jnp.diag(x[:, :4])",
        "x[:4, :4].diagonal()",
        "jnp.trace(x[:, 1:] - w[0, 1:])",
        "x.at[ids].add(x[1] - 2)",
        "x.at[ids, 1:3].subtract(w[0, 1:3], mode='drop')",
        "x.at[:, ids % 3].add(2 * x[:, :3])",
        "(x - 1).at[ids].add(x[1] - 2)",
        "x.at[ids].add(1).at[ids, 1:3].subtract(w[0, 1:3], mode='drop')",
    ],
)
def test_what_is_written_for_a_reduction_is_equal_to_it(text: str) -> None:
    x = jnp.arange(20.0).reshape(4, 5) % 7
    names = {"jnp": jnp, "jax": jax, "w": jnp.eye(5) + 0.1, "x": x, "n": 1, "largest": x, "weights": x}
    names["ids"] = jnp.array([1, 1, 7])
    found = reduction(text, called(text))
    assert found is not None
    # Names of the caller's are not those of what is written.
    assert jnp.allclose(eval(found.written(), names), eval(text, names), equal_nan=True)


def test_numbers_that_say_what_is_written_for_a_reduction_are_read(shared: Project) -> None:
    shared.write(
        "norms.py",
        """
        import jax.numpy as jnp


        def norms(x, w):
            return jnp.linalg.norm(x, axis=0, ord=3), jnp.average(x, axis=0, weights=w)
        """,
    )
    made = shared.run("gen", "norms.py::norms", "--arg", "x=f32[24,5]", "--arg", "w=f32[24]>0")
    assert "derived for all inputs and device counts" in made.words, made.words
    assert "jnp.abs(x) ** 3.0" in made.stdout


def test_reductions_over_the_batch_alone_are_derived(project: Project) -> None:
    code = """\
        def f(x, w):
            gaps = jnp.where(x > 1, jnp.nan, x)
            spread = jnp.nanstd(gaps, axis=0, ddof=1)
            kept = jax.nn.logsumexp(x, axis=0, where=w > 2)
            return jax.nn.standardize(x, axis=0), spread, jax.nn.logsumexp(x, axis=0, b=w), kept


        def two(seed=0):
            return rows(24), rows(24)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::two")
    assert "derived for all inputs and device counts" in made.words, made.stderr
    assert "all_gather" not in made.stdout


def test_what_examples_add_to_a_table_is_summed_apart_from_it(project: Project) -> None:
    code = """\
        def f(x, counts, ids, others):
            error = x[others] - x[ids]
            moved = (0.9 * x).at[ids].add(0.1 * error).at[others].subtract(error)
            return moved, x.at[ids].add(error), counts.at[ids % 3, 0].subtract(1), jnp.mean(error**2)


        def given(seed=0):
            return rows(16), jnp.zeros((3, 2), int), jnp.arange(24) % 16, jnp.arange(24) ** 2 % 16
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::given")
    assert "derived for all inputs and device counts" in made.words, made.stderr
    text = " ".join(made.stdout.replace("jax.numpy", "jnp").split())
    # What says which rows is the batch, and the table no batch of them, whatever it is called.
    assert "in_axes=(None, None, 0, 0)" in text
    assert "jnp.zeros_like(x).at[ids].add(error)" in text
    assert "= 0.9 * x" in text and "jnp.zeros_like(table).at[others].subtract(error)" in text
    assert "all_gather" not in text


def test_positions_and_draws_of_one_expression_are_those_of_the_share(project: Project) -> None:
    code = """\
        def f(key, x):
            n = x.shape[0]
            u = (jnp.arange(n) + jax.random.uniform(key, (n,))) / n
            return jnp.mean(x[:, 0] * u)


        def drawn(seed=0):
            return jax.random.key(seed), rows(24)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::drawn")
    assert "derived for all inputs and device counts" in made.words, made.stderr


def test_what_is_drawn_for_half_of_the_rows_is_drawn_from_one_key(project: Project) -> None:
    code = """\
        def f(w, x, key):
            n = x.shape[0]
            keep = jax.random.bernoulli(key, 0.5, (n // 2,))
            keep = jnp.concatenate([keep, jnp.ones(n - n // 2, bool)])
            return jnp.sum(jnp.where(keep, (x @ w) ** 2, 0)) / jnp.sum(keep)


        def drawn(seed=0):
            return np.ones(5, "float32"), rows(24), jax.random.key(seed)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::drawn")
    assert "derived for all inputs and device counts" in made.words, made.stderr
    assert "bernoulli(key, 0.5" in made.stdout and "all_gather" not in made.stdout


def test_what_stands_ahead_of_another_program_is_known(project: Project) -> None:
    """A scan over ranks is another program for other shares: what is ranked is gathered, not all rows."""
    code = """\
        def f(w, x):
            time = jnp.abs(x[:, 0])

            def loss(w):
                risk = (x @ w)[jnp.argsort(-time)]
                return jnp.mean(jax.lax.cumlogsumexp(risk) - risk)

            def hard(w):
                kept, _ = jax.lax.top_k((x @ w) ** 2, x.shape[0] // 4)
                return kept.mean()

            return w - 0.1 * jax.grad(loss)(w) - 0.1 * jax.grad(hard)(w)


        def ranked(seed=0):
            return np.ones(5, "float32"), rows(24)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::ranked", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    gathered = {sync["value"] for sync in document["plan"]["syncs"] if sync["op"] == "all_gather"}
    assert gathered == {"-time", "(x @ w)", "(x @ w) ** 2"}


def test_each_device_compares_its_own_rows_with_all(project: Project) -> None:
    """What is made for all pairs meets what a device has of them, in one expression."""
    code = """\
        def f(x, y):
            scores = x @ x.T - 10 * jnp.eye(x.shape[0])
            nearest = jax.lax.top_k(scores, 3)[1]
            return jnp.mean(jnp.asarray(y)[nearest].sum(1) * y)


        def labelled():
            return rows(24), rows(24)[:, 0]
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::labelled", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    syncs = [(sync["op"], sync["value"]) for sync in json.loads(made.stdout)["plan"]["syncs"]]
    assert ("own_share", "jnp.eye(x.shape[0])") in syncs


def test_what_is_as_long_as_the_pairs_is_made_by_rows(project: Project) -> None:
    """Of the scores their number is asked for alone: what is made of that need not wait for them."""
    code = """\
        def f(w, pictures, texts):
            def loss(w):
                scores = jnp.tanh(pictures @ w) @ jnp.tanh(texts @ w).T
                target = jnp.eye(scores.shape[0])
                return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(scores), axis=1))

            return jax.value_and_grad(loss)(w)


        def both():
            return np.eye(5, 4, dtype="float32"), rows(24) % 7 / 7, rows(24) % 5 / 5
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::both", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    syncs = [(sync["op"], sync["value"]) for sync in json.loads(made.stdout)["plan"]["syncs"]]
    assert [value for op, value in syncs if op == "all_gather"] == ["jnp.tanh(texts @ w)"]
    assert ("own_share", "jnp.eye(scores.shape[0])") in syncs


def test_sums_that_begin_with_the_first_round_are_made_whole_behind_the_loop(project: Project) -> None:
    code = """\
        def f(w, x):
            grads, total = None, 0.0
            for part in jnp.split(x, 3):
                loss, grad = jax.value_and_grad(lambda w: jnp.mean(jnp.tanh(part @ w) ** 2))(w)
                grads = grad if grads is None else grads + grad
                total += loss / 3
            return w - 0.1 * grads / 3, total


        def given():
            return np.ones(5, "float32"), rows(36)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::given", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    syncs = [(sync["op"], sync["value"]) for sync in document["plan"]["syncs"]]
    assert sorted(syncs) == [("pmean", "grads"), ("pmean", "total")]


def test_a_contrastive_loss_makes_own_rows_of_the_pairs_alone(project: Project) -> None:
    """Each picture is told from all texts and each text from all pictures: one of both is gathered.

    On the diagonal a device reads what its own rows have there, and down the columns it sums with others.
    """
    code = """\
        def f(w, pictures, texts):
            def loss(w):
                scores = jnp.tanh(pictures @ w) @ jnp.tanh(texts @ w).T
                told = jnp.diag(jax.nn.log_softmax(scores, axis=1)) + jax.nn.log_softmax(scores.T).diagonal()
                return -jnp.mean(told) - 0.1 * jnp.trace(scores) / len(texts)

            return jax.value_and_grad(loss)(w)


        def both():
            return np.eye(5, 4, dtype="float32"), rows(24) % 7 / 7, rows(24) % 5 / 5
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::both", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    syncs = [(sync["op"], sync["value"]) for sync in document["plan"]["syncs"] if sync["op"] != "psum"]
    assert syncs == [
        ("all_gather", "jnp.tanh(texts @ w)"),
        ("diag", "jnp.diag(jax.nn.log_softmax(scores, axis=1))"),
        ("log_softmax", "jax.nn.log_softmax(scores.T)"),
        ("diagonal", "jax.nn.log_softmax(scores.T).diagonal()"),
        ("trace", "jnp.trace(scores)"),
        ("pmean", "jax.value_and_grad(loss)(w)"),
    ]
    project.write("plan.json", json.dumps(document["plan"]))
    again = project.run("gen", "f.py::f", "--inputs", "f.py::both", "--plan", "plan.json", "--no-run")
    assert again.exit_code == 0, again.stderr


def test_a_matrix_with_as_many_columns_as_rows_need_not_be_one_of_pairs(project: Project) -> None:
    code = """\
        def f(w, x):
            return jnp.sum(jnp.diag(jnp.tanh(x @ w)))


        def square():
            return np.eye(24, dtype="float32") + 0.1, np.ones((24, 24), "float32")
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::square", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    assert "diag" not in {sync["op"] for sync in json.loads(made.stdout)["plan"]["syncs"]}


def test_distances_beside_what_leaves_out_the_diagonal_are_made_by_rows(project: Project) -> None:
    code = """\
        def f(x):
            apart = jnp.sum((x[:, None] - x[None]) ** 2, -1) + 1e9 * jnp.eye(len(x))
            return jnp.argmin(apart, 1)


        def points():
            return (rows(24) % 7 / 7,)
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::points", "--output-format", "json", "--no-run")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    sent = [(sync["op"], sync["value"]) for sync in document["plan"]["syncs"] if sync["bytes"]]
    assert sent == [("all_gather", "x")]


def test_columns_of_pairs_are_exchanged_for_rows_where_a_library_needs_them(project: Project) -> None:
    code = """\
        import optax


        def f(w, pictures, texts):
            def loss(w):
                scores = jnp.tanh(pictures @ w) @ jnp.tanh(texts @ w).T
                right = jnp.arange(scores.shape[0])
                one = optax.softmax_cross_entropy_with_integer_labels(scores, right)
                other = optax.softmax_cross_entropy_with_integer_labels(scores.T, right)
                return jnp.mean(one) + jnp.mean(other)

            return jax.value_and_grad(loss)(w)


        def both():
            return np.eye(5, 4, dtype="float32"), rows(24) % 7 / 7, rows(24) % 5 / 5
        """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::both", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    document = json.loads(made.stdout)
    assert document["evidence"]["derivation"]["complete"]
    sent = [(sync["op"], sync["value"]) for sync in document["plan"]["syncs"] if sync["bytes"]]
    assert sent == [
        ("all_gather", "jnp.tanh(texts @ w)"),
        ("all_to_all", "scores.T"),
        ("pmean", "jax.value_and_grad(loss)(w)"),
    ]
    project.write("plan.json", json.dumps(document["plan"]))
    again = project.run("gen", "f.py::f", "--inputs", "f.py::both", "--plan", "plan.json", "--no-run")
    assert again.exit_code == 0, again.stderr


def test_a_loop_may_take_numbers_alone_from_a_mean(project: Project) -> None:
    code = """\
        def f(x):
            total = jnp.mean(x)
            for _ in range(2):
                total -= 1.0
            return total


        def one():
            return (rows(24),)
        """
    write(project, code)
    made = project.run("plan", "f.py::f", "--inputs", "f.py::one", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    assert [(sync["op"], sync["value"]) for sync in json.loads(made.stdout)["plan"]["syncs"]] == [
        ("pmean", "total")
    ]


def test_a_batch_is_not_left_whole_to_gather_less(project: Project) -> None:
    """Four rows that are shown are gathered rather than worked on, with all others, by every device."""
    code = """\
        def f(w, images, noise):
            for _ in range(4):
                decoded = jnp.tanh(images @ w) @ w
            shown = jnp.concatenate([images[:4], decoded[:4]])
            return jnp.mean((decoded - images) ** 2), shown, jnp.tanh(noise @ w)


        def two():
            return np.ones((5, 5), "float32"), rows(24), rows(24) + 1
        """
    write(project, code)
    made = project.run("plan", "f.py::f", "--inputs", "f.py::two", "--output-format", "json")
    assert made.exit_code == 0, made.stderr
    plan = json.loads(made.stdout)["plan"]
    roles = {argument["name"]: argument["role"] for argument in plan["arguments"]}
    assert roles == {"w": "replicated", "images": "batch", "noise": "batch"}


def test_counts_that_the_original_does_not_take_are_named(project: Project) -> None:
    write(project, "def f(x):\n    return x.reshape(4, -1, 5).mean()\n")
    made = project.run("gen", "f.py::f", "--inputs", "f.py::sixty_four")
    assert made.exit_code == 0
    assert "derived from traces on 8 and 4 and 2 devices" in made.words
    assert "run on 4, 8 devices" in made.stdout


TAKEN_OUT = """
import jax


def evaluate(p, batch):
    rows = batch.pop("x")
    return jax.lax.psum(jnp.sum(rows @ p["w"]), "batch")


def train(p, batch):
    def loss(p):
        rows = batch.pop("x")
        return jnp.mean((rows @ p["w"]) ** 2) + 0 * len(batch)

    loss, grads = jax.value_and_grad(loss)(p)
    grads = jax.lax.pmean(grads, "batch")
    return jax.tree.map(lambda w, g: w - 0.1 * g, p, grads), jax.lax.pmean(loss, "batch")


def unmapped(p, batch):
    rows = batch.pop("x")
    return jnp.mean(rows @ p["w"])
"""


def test_what_is_taken_out_of_a_batch_that_a_map_hands_in(project: Project) -> None:
    """With its axis unbound it cannot be called, and a map hands it containers of its own."""
    write(project, TAKEN_OUT)
    for name in ("evaluate", "train"):
        made = project.run("gen", f"f.py::{name}", "--inputs", "f.py::dicts")
        assert made.exit_code == 0, made.stderr
        assert "derived for all inputs and device counts" in made.stderr
    says = ("`unmapped` changes its argument `batch` in place", "call it compiled, put `@jax.jit` on it")
    project.refused("JP049", "gen", "f.py::unmapped", "--inputs", "f.py::dicts", says=says, exit_code=1)


def test_a_function_that_changes_by_itself_is_refused_for_that(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    ask = Session.ask

    def noted(self: Session, request: Any, *doing: Any) -> Any:
        asked.append(type(request).__name__)
        return ask(self, request, *doing)

    monkeypatch.setattr(Session, "ask", noted)
    code = "import time\n\n\ndef f(p, batch):\n    return jnp.mean(batch['x'] @ p['w']) * (time.time() % 9)\n"
    write(project, code)
    says = ("`f` returns another result each time it is traced, by `time.time()`",)
    project.refused("JP049", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)
    # Two traces say it, before anything is tried.
    assert "Observe" not in asked and asked.count("Repeats") == 1


def test_an_operation_that_holds_an_object_made_anew_is_not_what_changes(project: Project) -> None:
    code = """
    import jax.extend.core
    from jax.interpreters import mlir

    held_p = jax.extend.core.Primitive("held")
    held_p.def_abstract_eval(lambda x, *, function: x)
    mlir.register_lowering(held_p, mlir.lower_fun(lambda x, function: function.sorted(x), False))


    class Along:
        def __init__(self, axis):
            self.axis = axis

        def sorted(self, x):
            return jnp.sort(x, axis=self.axis)


    def f(p, batch):
        x = batch["x"]
        return held_p.bind(x @ p["w"] - (x @ p["w"]).mean(), function=Along(0))
    """
    write(project, textwrap.dedent(code))
    says = ("`held_p.bind(",)
    project.refused("JP067", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


@pytest.mark.parametrize("mean", ["jnp.mean(x)", "x.reshape(jax.device_count(), -1).mean()"])
def test_a_function_that_counts_devices_is_refused_for_that(project: Project, mean: str) -> None:
    code = "import jax\n\n\ndef f(p, batch):\n    x, rate = batch['x'], 0.1 * jax.device_count()\n"
    write(project, f"{code}    return jax.tree.map(lambda w: w - rate * {mean}, p)\n")
    says = ("another number of devices, by `jax.device_count()`", "f.py:")
    project.refused("JP049", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


PARALLEL = """\
import functools


@functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0), out_axes=None)
def on_devices(p, x):
    return jax.lax.pmean(jnp.mean((x @ p["w"]) ** 2), "i")


def f(p, batch):
    x = batch["x"]
    return on_devices(p, x.reshape(jax.local_device_count(), -1, *x.shape[1:]))
"""


def test_a_function_that_is_parallel_is_refused_for_that(project: Project) -> None:
    write(project, PARALLEL)
    says = ("`f` is parallel already", "jax-pmap verify f.py::f --against FILE::FUNC")
    project.refused("JP055", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


WRITES_OUTSIDE = """\
def f(p, batch):
    top, kept = 0.0, {"sums": [jnp.zeros(())]}

    def loss(p):
        nonlocal top
        y = jnp.tanh(batch["x"] @ p["w"])
        top = jnp.max(jax.lax.stop_gradient(y))
        kept["rows"] = len(y)
        kept["sums"][0] = kept["sums"][0] + jnp.sum(jax.lax.stop_gradient(y) ** 2)
        return jnp.sum(y**2) / kept["rows"]

    return jax.grad(loss)(p), top, kept["sums"][0] / kept["rows"]
"""


def test_a_nested_function_may_change_what_its_function_has(project: Project) -> None:
    write(project, WRITES_OUTSIDE)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words


def test_structure_asked_unseen_is_refused(project: Project) -> None:
    beside = "def total(b):\n    return jnp.sum(b.get('y', 0.0))\n\n\n"
    write(project, beside + "def f(p, b):\n    b = {**b}\n    return jnp.sum(b['x'] @ p['w']) + total(b)\n")
    says = ("may turn out otherwise for another `b`",)
    project.refused("JP058", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


@pytest.mark.parametrize(
    "part",
    [
        "b.get('y', 0.0)",
        "b.get('x', jnp.ones(3))",
        "sum(0 if each is None else each for each in [b.get(key, None) for key in ('x', 'y')])",
    ],
)
def test_the_parts_of_a_batch_are_those_of_the_proof_where_one_has_a_default(
    project: Project, part: str
) -> None:
    write(project, f"def f(p, b):\n    return jnp.sum(b['x'] @ p['w']) + jnp.sum({part})\n")
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts", "--no-run")
    assert 'if sorted(b) != ["x"]:' in made.stdout, made.stderr


ONE_BY_ONE = """\
def f(p, batch):
    y = jax.nn.softmax(batch["x"] * p["w"])
    put = lambda i, table: table.at[i].add(y[i] * 2)
    return jax.lax.fori_loop(0, len(y), put, jnp.zeros_like(y))
"""


def test_rows_that_a_loop_fills_in_by_number_are_divided(project: Project) -> None:
    write(project, ONE_BY_ONE)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts", "--no-run")
    assert "derived for all inputs and device counts" in made.words
    assert "all_gather" not in made.stdout
    # Of a loop that is not over all rows the message says what can be.
    write(project, ONE_BY_ONE.replace("fori_loop(0", "fori_loop(1"))
    says = ("Make what each example gives with jax.vmap, and sum or stack that",)
    project.refused("JP043", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


ASKED_BESIDE = """\
def weights(data):
    w = data.get("w", None)
    if w is None:
        w = jnp.abs(data["x"][:, 0])
    return w, data.get("scale", 1.0)


def loss(p, batch):
    w, scale = weights(batch)
    return scale * jnp.sum((batch["x"] @ p["w"]) ** 2 * w) / jnp.sum(w)


def f(p, given):
    return jax.value_and_grad(loss)(p, given)


def weighted():
    p, given = dicts()
    return p, {**given, "w": np.arange(24.0, dtype="f")}
"""
ASKED_OTHERS = """
import numpy as np
import f, f_pmap
for p, given in (f.dicts(), f.weighted(), (f.dicts()[0], {**f.dicts()[1], "scale": np.ones((), "f")})):
    try:
        print(np.allclose(f.f(p, given)[0], f_pmap.f(p, given)[0]))
    except (ValueError, NotImplementedError):
        print("refused")
"""


@pytest.mark.parametrize("given", ["dicts", "weighted"])
def test_a_function_beside_may_ask_for_parts_of_an_argument_that_it_is_given(
    project: Project, given: str
) -> None:
    """As one that says the weights of a loss does, by the entries that a batch has."""
    write(project, ASKED_BESIDE)
    made = project.run("gen", "f.py::f", "--inputs", f"f.py::{given}", "-o", "f_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    done = subprocess.run(
        [sys.executable, "-c", ASKED_OTHERS], env=simulated(2), capture_output=True, text=True
    )
    wanted = ["True", "refused", "refused"] if given == "dicts" else ["refused", "True", "refused"]
    assert done.stdout.split() == wanted, done.stderr
    # Where another call of it gives something else, nothing tells what that has.
    twice = ASKED_BESIDE.replace("jnp.sum(w)", "jnp.sum(weights(batch['more'])[0])", 1)
    more = "\n\ndef more():\n    p, given = dicts()\n    return p, {**given, 'more': given}\n"
    write(project, twice + more)
    says = ("may turn out otherwise for another `data`",)
    project.refused("JP058", "gen", "f.py::f", "--inputs", "f.py::more", says=says, exit_code=1)


ABSENT = """\
def f(p, batch):
    mask = batch.get("mask")
    y = batch["x"] @ p["w"]
    return jnp.mean(y) if mask is None else jnp.sum(y * mask) / jnp.sum(mask)
"""
USES = """\
import numpy as np
from f_pmap import f

p, batch = {"w": np.ones(5, "f")}, {"x": np.ones((24, 5), "f")}
assert f(p, batch) == f(p, batch | {"mask": None}) == 5
for rows in (24, 2):
    try:
        f(p, {"x": batch["x"][:rows], "mask": np.ones(rows, "f")})
    except ValueError as error:
        print(error)
"""


def test_a_part_that_no_batch_has_may_be_asked_for(project: Project) -> None:
    write(project, ABSENT)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts", "-o", "f_pmap.py")
    assert made.exit_code == 0, made.stderr
    command = [sys.executable, "-c", USES]
    done = subprocess.run(command, env=simulated(2), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("f: batch['mask'] is float[") == 2
    # What is made of the batch may have it.
    made_anew = ABSENT.replace("mask = ", "batch = {**batch}\n    mask = ")
    write(project, made_anew.replace("    return", "    y = y - jnp.mean(y, where=mask)\n    return"))
    says = ("may turn out otherwise for another `batch`",)
    project.refused("JP058", "gen", "f.py::f", "--inputs", "f.py::dicts", says=says, exit_code=1)


FIELDS = """\
import flax.struct


@flax.struct.dataclass
class Rows:
    x: jax.Array
    mask: jax.Array | None = None
    power: int = flax.struct.field(default=2, pytree_node=False)


def rows(mask=None):
    return {"w": np.ones(5, "f")}, Rows(np.ones((24, 5), "f"), mask)


def masked_rows():
    return rows(np.arange(24.0, dtype="f"))


def f(p, rows):
    mask = getattr(rows, "mask", None)
    y = (rows.x @ p["w"]) ** getattr(rows, "power", 1)
    weights = jnp.ones(len(y)) if mask is None else mask
    return jnp.sum(y * weights) / jnp.sum(weights) * (2 if hasattr(rows, "other") else 1)
"""
OTHERS = """
import numpy as np
import f, f_pmap
for p, rows in (f.rows(), f.masked_rows(), (f.rows()[0], f.rows()[1].replace(power=3))):
    try:
        print(np.allclose(f.f(p, rows), f_pmap.f(p, rows)))
    except (ValueError, NotImplementedError):
        print("refused")
"""


@pytest.mark.parametrize("given", ["rows", "masked_rows"])
def test_a_field_that_a_batch_is_asked_for_is_as_in_the_proof(project: Project, given: str) -> None:
    write(project, FIELDS)
    made = project.run("gen", "f.py::f", "--inputs", f"f.py::{given}", "-o", "f_pmap.py")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words
    done = subprocess.run([sys.executable, "-c", OTHERS], env=simulated(2), capture_output=True, text=True)
    wanted = ["True", "refused", "refused"] if given == "rows" else ["refused", "True", "refused"]
    assert done.stdout.split() == wanted, done.stderr


IN_ALL = """\
def f(p, batch):
    mask = batch.get("mask")

    def loss(p):
        y = batch["x"] @ p["w"]
        if mask is not None:
            return jnp.sum(y * mask) / jnp.sum(mask)
        return jnp.mean(y)

    return jax.grad(loss)(p)
"""
LACKS = """\
import numpy as np
from f_pmap import f

p, x, mask = {"w": np.ones(5, "f")}, np.ones((24, 5), "f"), np.ones(24, "f")
assert np.allclose(f(p, {"x": x, "mask": mask})["w"], 1)
try:
    f(p, {"x": x})
except NotImplementedError as error:
    print(error)
"""


def test_a_part_that_a_batch_lacks_is_told_by_a_test(project: Project) -> None:
    masked = "\n\ndef masked():\n    p, b = dicts()\n    return p, {**b, 'mask': np.ones(24, 'f')}\n"
    write(project, IN_ALL + masked)
    words = ("gen", "f.py::f", "--inputs", "f.py::masked")
    made = project.run(*words, "-o", "f_pmap.py", "--no-run")
    assert made.exit_code == 0, made.stderr
    done = subprocess.run([sys.executable, "-c", LACKS], env=simulated(2), capture_output=True, text=True)
    assert "mask is not None" in done.stdout, done.stdout + done.stderr
    # No test tells of a use ahead of it, or where neither way computes anything.
    for line in ("y = y * (mask if True else 1)", "if mask is None:\n            pass"):
        write(project, IN_ALL.replace("if", f"{line}\n        if", 1) + masked)
        assert 'if sorted(batch) != ["mask", "x"]:' in project.run(*words, "--no-run").stdout


@pytest.mark.parametrize(
    "code",
    [
        "def f(x):\n    return {3: rms}.get(x.shape[1], jnp.mean)(x)\n",
        "def f(x):\n    n, width = x.shape\n    half = width // 5\n    loss = [jnp.mean, rms][half]\n"
        "    return loss(x)\n",
        "def f(x):\n    return getattr(jnp, {3: 'mean'}.get(x.shape[1], 'max'))(x)\n",
    ],
)
def test_what_a_size_chooses_to_call_is_refused(project: Project, code: str) -> None:
    write(project, "def rms(x):\n    return jnp.sqrt(jnp.mean(x ** 2))\n\n\n" + code)
    says = ("chooses by a size what is called",)
    project.refused("JP058", "gen", "f.py::f", "--inputs", "f.py::inputs", says=says, exit_code=1)


@pytest.mark.parametrize("call", ["(rms)(x)", "((rms)(x))"])
def test_what_is_called_may_stand_in_parentheses(project: Project, call: str) -> None:
    rms = "def rms(x):\n    return jnp.sqrt(jnp.mean(x**2))\n\n\n"
    write(project, f"{rms}def f(x):\n    return {call} + 1\n")
    made = project.run("gen", "f.py::f", "--inputs", "f.py::inputs")
    assert made.exit_code == 0, made.stderr


def test_structure_of_what_is_not_split_may_be_asked(project: Project) -> None:
    code = "def f(p, batch):\n    return jnp.mean(batch['x'] @ p['w']) + p.get('b', 0.0)\n"
    write(project, code)
    assert project.run("gen", "f.py::f", "--inputs", "f.py::dicts").exit_code == 0


def test_what_compiles_or_runs_slowly_is_compiled_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from jax._src import compiler

    monkeypatch.setattr(compiler, "get_compile_options", compiler.get_compile_options)
    monkeypatch.setenv("XLA_FLAGS", "--xla_llvm_disable_expensive_passes=false")

    def chained(x: jax.Array) -> jax.Array:
        chain = [x]
        for n in range(150):
            chain.append(chain[-1] * (1 + n / 1000))
        return jnp.stack([jnp.sum(each) for each in chain])

    def strided(x: jax.Array) -> jax.Array:
        w = jnp.ones((256, 1, 5, 5))
        return jax.grad(
            lambda w: jnp.mean(jax.lax.conv(x[:, None, :, None] * jnp.ones(16), w, (2, 2), "SAME"))
        )(w)

    def compiled(function: Callable[[jax.Array], jax.Array]) -> tuple[object, bool]:
        compiling.suit(jax.make_jaxpr(function)(jnp.ones((8, 16))))
        text = jax.jit(lambda x: jnp.sin(x) * jnp.cos(x) + 1).lower(1.0).compile().as_text()
        return compiling.options["xla_backend_optimization_level"], text.count("fusion(") == 1

    compiling = Compiling()
    compiling.suit(jax.make_jaxpr(chained)(jnp.ones((8, 16))))
    assert not compiling.options  # Of a machine that is to be told of, it is not said to be in haste.
    compiling.begin(jaxlib.version.__version__)
    # Each result hangs on all of the chain before it; the gradient of such a convolution is a loop.
    assert compiled(chained) == (0, False)
    assert compiled(strided) == (1, True)
    assert compiled(jnp.sum) == (0, True)
    # What the user has set stays.
    assert "xla_llvm_disable_expensive_passes" not in compiling.options


def test_a_primitive_may_hold_a_program_whose_constants_are_operands() -> None:
    solve = Primitive("solve")
    solve.def_abstract_eval(lambda x, program: x)
    held = jax.make_jaxpr(lambda x: jnp.sin(x) * np.arange(8.0))(jnp.ones(8)).jaxpr
    assert held.constvars
    assert count(jax.make_jaxpr(lambda x: solve.bind(jnp.cos(x), program=held))(jnp.ones(8))) == (3, 3, 4)


def test_branches_inside_nested_functions_raise_where_no_input_went(project: Project) -> None:
    code = """
    def f(p, batch):
        def loss(p):
            error = batch["x"] @ p["w"]
            if error.ndim > 2:
                return jnp.sum(error)
            try:
                size = len(error)
            except TypeError:
                size = 1
            if "weights" in batch:
                return jnp.sum(error * batch["weights"]) / size
            return jnp.mean(error)

        return jax.grad(loss)(p)
    """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts")
    assert made.exit_code == 0, made.stderr
    for condition in ("if error.ndim > 2", "except TypeError", 'if "weights" in batch'):
        assert f"`{condition}` was not reached" in " ".join(made.stdout.split()), condition


def test_what_small_batches_alone_reach_is_said(project: Project) -> None:
    code = """
    TIMES = np.linspace(0, 1, 24)


    def f(w, x):
        x = jnp.tanh(x * w)
        return jnp.mean(x * TIMES[: x.shape[0], None]) if x.shape[0] <= 24 else jnp.mean(x)
    """
    write(project, textwrap.dedent(code))
    words = ("gen", "f.py::f", "--arg", "w=f32[3]", "--arg")
    says = ("is reached by the batch of a run", "the function chooses by the size of the batch")
    project.refused("JP045", *words, "x=f32[24,3]", says=says, exit_code=1)
    made = project.run(*words, "x=f32[96,3]")
    assert made.exit_code == 0 and 'unseen("jnp.mean(x * TIMES' in made.stdout, made.stderr


def test_unseen_side_of_an_expression_inside_a_nested_function_raises(project: Project) -> None:
    code = """
    def f(p, batch):
        def loss(p):
            error = batch["x"] @ p["w"]
            return jnp.sum(error) if error.ndim > 2 else jnp.mean(error)

        return jax.grad(loss)(p)
    """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts")
    assert made.exit_code == 0, made.stderr
    assert 'unseen("jnp.sum(error)") if error.ndim > 2' in " ".join(made.stdout.split())
    assert "`jnp.sum(error)`, decided by `error.ndim > 2`" in " ".join(made.stderr.split())


def test_key_handed_to_a_function_that_is_looked_into(project: Project) -> None:
    code = """
    def ratio(key, p, b):
        noisy = b["x"] @ p["w"] + jax.random.normal(key, (b["x"].shape[0],))
        return jnp.sum(noisy * b["x"][:, 0] ** 2) / jnp.sum(b["x"][:, 0] ** 2)


    def f(key, params, batch):
        key, noise = jax.random.split(key)
        return key, jax.grad(lambda p: ratio(noise, p, batch))(params)


    def keyed():
        return jax.random.PRNGKey(0), *dicts()
    """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::keyed")
    assert made.exit_code == 0, made.stderr
    assert 'total_square = jax.lax.psum(jnp.sum(b["x"]' in made.stdout and "fold_in(noise, " in made.stdout


STEP = """
def step(params, x, hook):
    def near(p):
        return jnp.mean(x) * p
    grads = gradient(params, x)
    far = lambda p: p * jnp.sum(x)
    kept = []
    kept.append(x)
    params = {use}
    return params
"""


@pytest.mark.parametrize(
    ("use", "free"),
    [
        ("hook(grads, params)", True),
        ("apply(params, hook.update(grads, params=params)[0])", True),
        ("hook()(params)", False),
        ("hook(grads, x)", False),
        ("hook(grads, jnp.sum(x))", False),
        ("hook(near(grads))", False),
        ("hook(far, grads)", False),
        ("hook(kept, grads)", False),
        ("apply(grads, lambda g: hook(g))", False),
        ("[hook(g) for g in grads]", False),
        ("grads if hook else params", False),
    ],
)
def test_callable_that_sees_only_what_is_whole_may_be_any_other(use: str, free: bool) -> None:
    lines = STEP.replace("{use}", use).strip()
    body = Body(FunctionText(lines, 1, 0, "f.py"))
    points = {name: p for s in body.statements.values() for name, p in s.names}
    alike = frozenset({points["grads"], points["params"]})
    calls = frozenset(e.point for e in body.expressions if e.is_call and "jnp" not in e.text)
    seen = frozenset(points.values())
    found = Observation((), (), None, 0, frozenset(), seen, whole=alike, arrays=calls)
    roles = Roles({"x": {0: 0}}, ("hook",), frozenset(), {})
    assert only_given_whole("hook", body, roles, found, ()) is free


def test_branches_on_the_size_that_only_a_cut_batch_takes(shared: Project) -> None:
    shared.write(
        "sizes.py",
        """
        def even(x):
            y = x
            if len(x) % 2 == 0:
                y = y + 1
            return y.sum() / len(x)

        def fives(x):
            y = x
            if len(x) % 5 == 0:
                y = y + 1
            return y.sum() / len(x)
        """,
    )
    # An odd number of rows takes another branch, which the emitted code refuses.
    made = shared.run("gen", "sizes.py::even", "--arg", "x=f32[16,2]")
    assert made.exit_code == 0, made.stderr
    said = " ".join(made.stderr.split())
    assert "derived for all inputs and device counts" in said
    assert "each device takes a multiple of 2 rows, which the code checks" in said
    # What all 20 rows do is observed too, though 8 shards hold 16 of them.
    made = shared.run("gen", "sizes.py::fives", "--arg", "x=f32[20,2]")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.stderr


def test_many_parameters_of_one_size_are_no_batch(shared: Project) -> None:
    shared.write(
        "wide.py",
        """
        import jax.numpy as jnp
        import numpy as np


        def step(average, velocity, x):
            size = jnp.mean(x**2)
            velocity = [0.9 * v + size * a for v, a in zip(velocity, average)]
            return [a - v for a, v in zip(average, velocity)], velocity


        def inputs():
            square = [np.full((8, 8), 0.1 * i, "float32") for i in range(6)]
            return square, square, np.linspace(0, 1, 24, dtype="float32")
        """,
    )
    done = shared.run("plan", "wide.py::step", "--inputs", "wide.py::inputs", "--output-format", "json")
    assert done.exit_code == 0, done.stderr
    split = [
        (path, leaf["axis"])
        for argument in json.loads(done.stdout)["plan"]["arguments"]
        for leaf in argument["leaves"]
        for path in leaf["paths"]
        if leaf["axis"] is not None
    ]
    assert split == [("x", 0)]


LIKELY = """
import jax
import jax.numpy as jnp
from jax import lax

drawn = jax.random.normal(jax.random.key(0), (32, 16, 8))


def recurrent(Wx, Wh, h0, xs):
    h, hs = lax.scan(lambda h, x: (jnp.tanh(x @ Wx + h @ Wh),) * 2, h0, xs)
    return h, jnp.mean(hs**2)


def attention(Wq, Wk, seqs):
    return jax.nn.softmax(jnp.einsum("btd,bsd->bts", seqs @ Wq, seqs @ Wk)).mean((0, 1))


def sparse(codes, dictionary, signal_):
    def step(codes, _):
        codes = codes - 0.01 * (codes @ dictionary - signal_) @ dictionary.T
        return jnp.sign(codes) * jnp.maximum(jnp.abs(codes) - 0.01, 0), None

    codes, _ = lax.scan(step, codes, None, length=3)
    return codes, dictionary - 0.01 * codes.T @ (codes @ dictionary - signal_) / len(signal_)


def nearest(train_x, train_y, test_x):
    apart = jnp.sum((test_x[:, None] - train_x[None]) ** 2, -1)
    return jnp.mean(train_y[lax.top_k(-apart, 3)[1]], 1)


def recurrent_inputs():
    return drawn[0, :8], drawn[1, 8:], drawn[:, 0], drawn.swapaxes(0, 1)


def attention_inputs():
    wide = jax.random.normal(jax.random.key(1), (32, 16, 16))
    return wide[0], wide[1], wide


def sparse_inputs():
    return jnp.zeros((32, 8)), drawn[0, :8], drawn[:, 0]


def nearest_inputs():
    return drawn.reshape(-1, 8)[:48], drawn.reshape(-1)[:48], drawn[:, 1]
"""


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("recurrent", {"h0": 0, "xs": 1}),
        ("attention", {"seqs": 0}),
        ("sparse", {"codes": 0, "signal_": 0}),
        ("nearest", {"test_x": 0}),
    ],
)
def test_of_several_ways_to_divide_the_likeliest_and_least_is_taken(
    shared: Project, name: str, split: dict[str, int]
) -> None:
    shared.write("likely.py", LIKELY)
    target, inputs = f"likely.py::{name}", f"likely.py::{name}_inputs"
    done = shared.run("plan", target, "--inputs", inputs, "--output-format", "json")
    assert done.exit_code == 0, done.stderr
    arguments = json.loads(done.stdout)["plan"]["arguments"]
    axes = {each["name"]: leaf["axis"] for each in arguments for leaf in each["leaves"]}
    assert {name: axis for name, axis in axes.items() if axis is not None} == split


@pytest.mark.parametrize("views", [("x1", "x2"), ("one_view", "other_view")])
def test_a_network_that_follows_another_is_no_batch(shared: Project, views: tuple[str, str]) -> None:
    """A teacher has the arrays of its student, of which a gradient is taken, and is called anything."""
    one, other = views
    shared.write(
        f"{one}.py",
        f"""
        import jax
        import jax.numpy as jnp
        import numpy as np


        def net(w, x):
            return jnp.tanh(x @ w["a"]) @ w["b"]


        def step(w, tw, centre, {one}, {other}):
            towards = [jax.nn.softmax(net(tw, x) - centre) for x in ({one}, {other})]

            def loss(w):
                found = [jax.nn.log_softmax(net(w, x)) for x in ({one}, {other})]
                return -jnp.mean(towards[0] * found[1]) - jnp.mean(towards[1] * found[0])

            value, grads = jax.value_and_grad(loss)(w)
            centre = jnp.concatenate([net(tw, {one}), net(tw, {other})]).mean(0)
            return jax.tree.map(lambda w, g: w - 0.1 * g, w, grads), centre, value


        def inputs():
            draw = np.random.default_rng(0).normal
            made = [{{"a": draw(size=(6, 8)), "b": draw(size=(8, 4))}} for _ in range(2)]
            return *made, np.zeros(4), draw(size=(24, 6)), draw(size=(24, 6))
        """,
    )
    done = shared.run("plan", f"{one}.py::step", "--inputs", f"{one}.py::inputs", "--output-format", "json")
    assert done.exit_code == 0, done.stderr
    arguments = json.loads(done.stdout)["plan"]["arguments"]
    split = {each["name"] for each in arguments if any(leaf["axis"] is not None for leaf in each["leaves"])}
    assert split == set(views)


def roles_of(document: str) -> dict[str, str]:
    """The role of each argument in the plan of a JSON report."""
    return {argument["name"]: argument["role"] for argument in json.loads(document)["plan"]["arguments"]}


def test_rows_that_minibatches_name_are_divided_and_the_data_that_they_name_is_whole(shared: Project) -> None:
    shared.write(
        "named_rows.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def loss_fn(w, obs, value, reward):
            return jnp.mean((jnp.tanh(obs @ w) - reward / value.std()) ** 2)


        def epoch(w, minibatches, obs, value, reward):
            for rows in minibatches:
                w = w - 0.1 * jax.grad(loss_fn)(w, obs[rows], value[rows], reward[rows])
            return w


        def inputs():
            value = np.linspace(0, 1, 96, dtype="float32")
            order = np.random.default_rng(0).permutation(96)
            obs = np.stack([value, value**2, np.cos(value)], 1)
            return np.ones(3, "float32"), np.split(order, 4), obs, value, value[::-1].copy()
        """,
    )
    words = ("gen", "named_rows.py::epoch", "--inputs", "named_rows.py::inputs", "--output-format", "json")
    done = shared.run(*words)
    assert done.exit_code == 0, done.stderr
    assert [name for name, role in roles_of(done.stdout).items() if role == "batch"] == ["minibatches"]


def test_the_steps_of_a_recurrent_network_are_tried_last(shared: Project) -> None:
    """A loop over them goes on from each to the next: the first axis is not the batch, which saves trying."""
    shared.write(
        "recurrent.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def loss(w, rollout):
            def cell(h, row):
                obs, reset = row
                h = jnp.tanh(jnp.where(reset[:, None], 0.0, h) @ w["h"] + obs @ w["x"])
                return h, h

            h = jnp.zeros((rollout["obs"].shape[1], 5))
            _, out = jax.lax.scan(cell, h, (rollout["obs"], rollout["done"]))
            return jnp.mean((out @ w["out"] - rollout["target"]) ** 2)


        def step(w, rollout):
            value, grads = jax.value_and_grad(loss)(w, rollout)
            return jax.tree.map(lambda a, b: a - 0.1 * b, w, grads), value


        def inputs():
            rng = np.random.default_rng(0)
            w = {"h": rng.normal(size=(5, 5)), "x": rng.normal(size=(7, 5)), "out": rng.normal(size=5)}
            obs, done = rng.normal(size=(16, 24, 7)), rng.random((16, 24)) < 0.2
            return w, {"obs": obs, "done": done, "target": rng.normal(size=(16, 24))}
        """,
    )
    done = shared.run("plan", "recurrent.py::step", "--inputs", "recurrent.py::inputs", "-v")
    assert "axis 1 is the batch of 24" in done.words, done.stderr
    assert done.stderr.count("tracing on") <= 3, done.stderr


def test_chains_that_a_gradient_is_taken_of_are_the_batch_beside_a_few_scales(shared: Project) -> None:
    shared.write(
        "chains.py",
        """
        import jax
        import jax.numpy as jnp


        def langevin(q, scale, key):
            def log_density(q):
                return -0.5 * jnp.sum(scale * q**2, -1)

            pull = jax.grad(lambda q: log_density(q).sum())(q)
            q = q + 0.01 * pull + 0.1 * jax.random.normal(key, q.shape)
            return q, log_density(q).mean()


        def inputs():
            return jax.random.normal(jax.random.key(0), (24, 6)), jnp.arange(1.0, 7.0), jax.random.key(1)
        """,
    )
    words = ("gen", "chains.py::langevin", "--inputs", "chains.py::inputs", "--output-format", "json")
    done = shared.run(*words)
    assert done.exit_code == 0, done.stderr
    assert roles_of(done.stdout) == {"q": "batch", "scale": "replicated", "key": "key"}


def test_steps_of_trajectories_depend_on_each_other_and_the_batch_is_the_other_axis(shared: Project) -> None:
    shared.write(
        "trajectories.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def value_and_aux(w, steps):
            returns = jnp.cumsum(steps["reward"][::-1], axis=0)[::-1]
            error = jnp.median(steps["x"] @ w, axis=0) - returns
            return jnp.mean(error**2), jnp.mean(returns)


        def step(w, steps):
            (_, mean), grad = jax.value_and_grad(value_and_aux, has_aux=True)(w, steps)
            return w - 0.1 * grad, mean


        def one(reward):
            return jax.lax.scan(lambda sum, each: (sum + each,) * 2, 0.0, reward, reverse=True)[1]


        def towards(w, steps):
            targets = jax.vmap(one, in_axes=1, out_axes=1)(steps["reward"])
            return jax.grad(lambda w: jnp.mean((steps["x"] @ w - targets) ** 2))(w)


        def inputs():
            rng = np.random.default_rng(0)
            x, reward = rng.normal(size=(16, 24, 3)), rng.normal(size=(16, 24))
            return rng.normal(size=3), {"x": x, "reward": reward}


        def scale(rate, x):
            return rate * x


        def scalars():
            return 0.1, np.float32(2)
        """,
    )
    done = shared.run("plan", "trajectories.py::step", "--inputs", "trajectories.py::inputs")
    assert "axis 1 is the batch of 24" in done.words, done.stderr
    assert "pmean grad" in done.words and "pmean _" not in done.words
    # Every step could have all rewards of its own: each device would add up those of all trajectories.
    done = shared.run("plan", "trajectories.py::towards", "--inputs", "trajectories.py::inputs")
    assert "axis 1 is the batch of 24" in done.words, done.stderr
    assert "all_gather" not in done.words
    says = ("are scalars (rate (), x ()): there is no axis to split",)
    words = ("plan", "trajectories.py::scale", "--inputs", "trajectories.py::scalars")
    shared.refused("JP040", *words, says=says, exit_code=1)


def test_what_examples_add_to_a_table_of_narrow_floats_is_summed_too(shared: Project) -> None:
    code = """
        import jax.numpy as jnp


        def counted(table, ids, x):
            return table.at[ids].add(0.01 * x)
        """
    shared.write("narrow_table.py", code)
    given = ("table=bf16[10,3]", "ids=i32[24]<10", "x=bf16[24,3]")
    words = [word for each in given for word in ("--arg", each)]
    made = shared.run("gen", "narrow_table.py::counted", *words)
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr and "run on 3, 8 devices" in made.stderr
    assert "numpy.zeros_like(table).at[ids].add(0.01 * x)" in made.stdout


def test_an_option_that_keeps_the_batch_whole_is_named(shared: Project) -> None:
    shared.write("kept_whole.py", "import jax.numpy as jnp\n\n\ndef mean(x):\n    return jnp.mean(x)\n")
    says = (
        "`--replicate x` keeps that whole on every device",
        "Leave `--replicate x` out, or name the batch",
    )
    words = ("plan", "kept_whole.py::mean", "--arg", "x=f32[24]", "--replicate", "x")
    shared.refused("JP040", *words, says=says, exit_code=1)


def test_prints_on_every_device_are_said_and_effects_on_other_things_refused(shared: Project) -> None:
    shared.write(
        "effects.py",
        """
        import jax
        import numpy as np
        from jax.experimental import io_callback
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

        MESH = Mesh(np.array(jax.devices()[:1]), ("data",))


        def told(x):
            total = x.sum()
            jax.debug.print("total {t}", t=total)
            return total


        def stored(x):
            total = x.sum()
            io_callback(print, None, total)
            return total


        def placed(x):
            total = jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P("data"))).sum()
            return total


        def inputs():
            return (np.linspace(0, 1, 24, dtype="float32"),)
        """,
    )
    words = ("plan", "effects.py::told", "--inputs", "effects.py::inputs")
    assert "(effects.py:11) runs on every device" in shared.run(*words).words
    words = ("plan", "effects.py::stored", "--inputs", "effects.py::inputs")
    shared.refused("JP049", *words, says=("by `io_callback`", "effects.py:17:"), exit_code=1)
    words = ("effects.py::placed", "--inputs", "effects.py::inputs")
    says = ("`jax.lax.with_sharding_constraint` says", "Leave it out of the function for one device")
    shared.refused("JP068", "plan", *words, says=(*says, "effects.py:22:"), exit_code=1)
    shared.refused("JP045", "gen", *words, "--backend", "jit", says=says, exit_code=1)


def test_decorators_that_only_log_are_left_out_and_not_looked_into(shared: Project) -> None:
    shared.write(
        "logged.py",
        """
        import functools
        import jax
        import jax.numpy as jnp

        RUNNING = False


        def logged(f):
            @functools.wraps(f)
            def wrapper(*args, **kwargs):
                global RUNNING
                started = not RUNNING
                RUNNING = True
                try:
                    return f(*args, **kwargs)
                finally:
                    if started:
                        RUNNING = False

            return wrapper


        @jax.jit
        @logged
        def loss(w, x, mask):
            return jnp.sum((x @ w) ** 2 * mask) / jnp.sum(mask)


        @logged
        def step(w, x, mask):
            return w - 0.1 * jax.grad(loss)(w, x, mask)
        """,
    )
    words = ("--arg", "w=f32[3]", "--arg", "x=f32[24,3]", "--arg", "mask=mask[24]")
    made = shared.run("gen", "logged.py::step", *words)
    assert "`@logged` hands on what it is given" in made.words, made.stderr
    assert "logged" not in made.stdout.partition("import")[2].replace("logged.py", "")
    assert "psum" in made.stdout


def test_a_callback_that_gives_one_dtype_and_shares_that_suit_the_function_are_run(shared: Project) -> None:
    shared.write(
        "runs.py",
        """
        import jax
        import jax.numpy as jnp
        import numpy as np


        def positive(x):
            x = np.asarray(x)
            return np.where(x > 0, x, 0.0) if x.ndim else x


        def called(x):
            kind = jax.ShapeDtypeStruct(x.shape, jnp.float32)
            return jnp.mean(jax.pure_callback(positive, kind, x, vmap_method="sequential"))


        def pooled(x):
            return jnp.mean(x.reshape(-1, 4).mean(axis=1) ** 2)
        """,
    )
    made = shared.run("gen", "runs.py::called", "--arg", "x=f32[24]")
    assert "`called` does not run in float64" in made.words
    assert "proved on 2, 3, 4, 8 devices" in made.words
    made = shared.run("gen", "runs.py::pooled", "--arg", "x=f32[24]")
    assert "run on 2, 3 devices" in made.words


def test_terms_of_a_loss_have_factors_of_their_own(project: Project) -> None:
    """What flows back through a mean over the devices is a factor over their number, which is rounded."""
    code = """
    def f(params, batch):
        def loss(p):
            error = batch["x"] @ p["w"]
            size = jnp.square(error).mean()
            return (error**3).sum() + 1e-3 * size - 0.01 * jnp.exp(error).sum(), size

        return jax.value_and_grad(loss, has_aux=True)(params)
    """
    write(project, code)
    made = project.run("gen", "f.py::f", "--inputs", "f.py::dicts")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs and device counts" in made.words


def test_what_ties_arguments_to_the_batch_is_asked_for_one_number_of_rows(shared: Project) -> None:
    """Tracing a solver takes seconds, and a batch may have many leaves, of which any may be no part."""
    shared.write(
        "tied.py",
        """
        from pathlib import Path

        import jax.numpy as jnp


        def ranked(a, b, c):
            with Path("traced.txt").open("a") as file:
                print(len(a), len(b), len(c), file=file)
            return sum(jnp.argsort(jnp.argsort(x)) for x in (a, b, c))
        """,
    )
    given = ("--arg", "a=f32[24]", "--arg", "b=f32[24]", "--arg", "c=f32[24]")
    assert shared.run("plan", "tied.py::ranked", *given).exit_code == 1
    lines = {line for line in Path("traced.txt").read_text().splitlines() if len(set(line.split())) > 1}
    assert len(lines) <= 8, lines


def test_arguments_of_time_are_divided_along_the_axis_of_the_batch(project: Project) -> None:
    """The object says how long the second axis is, and there are fewer steps than devices."""
    write(
        project,
        """\
        from flax import struct

        class Agent(struct.PyTreeNode):
            w: jax.Array
            rows: int = struct.field(pytree_node=False)

            @jax.jit
            def loss(self, states, actions):
                total = jnp.zeros(self.rows)
                for step in range(3):
                    total += (jnp.concatenate([states, actions], -1)[step] @ self.w) ** 2
                return jnp.sum(total) / self.rows

        def made():
            return Agent(jnp.ones(12), 24), jnp.ones((3, 24, 8)), jnp.ones((3, 24, 4))
        """,
    )
    words = ("gen", "f.py::Agent.loss", "--inputs", "f.py::made", "--in-place", "--diff", "--no-run")
    made = project.run(*words)
    assert made.exit_code == 0, made.stderr
    assert "states batch axis 1" in made.words and "actions batch axis 1" in made.words


def test_batches_with_an_array_of_no_columns_are_split_and_changed(shared: Project) -> None:
    """NumPy tells no size from the others of an array without elements, and has no least one of them."""
    shared.write(
        "columns.py",
        """\
        import jax
        import jax.numpy as jnp
        import numpy as np


        def step(w, batch):
            given = jnp.concatenate([batch["x"], batch["extra"], batch["codes"]], axis=1)
            loss = lambda w: jnp.mean((given @ w - batch["y"]) ** 2) + jnp.sum(batch["extra"])
            value, grads = jax.value_and_grad(loss)(w)
            return w - 0.1 * grads, value


        def inputs():
            x = np.random.default_rng(0).normal(size=(24, 3)).astype("f")
            without = {"codes": np.zeros((24, 0), "i"), "extra": np.zeros((24, 0), "f")}
            return np.ones(3, "f"), {**without, "x": x, "y": x.sum(axis=1)}
        """,
    )
    result = shared.run("gen", "columns.py::step", "--inputs", "columns.py::inputs")
    assert result.exit_code == 0, result.stderr
    # Where everything is derived, the inputs are not changed.
    assert "not derived for all inputs" in result.words


def test_integers_are_no_parameters_whatever_they_are_called(project):
    # Samples of a lattice are spins, of -1 and 1, and called by the letter of a standard deviation.
    project.write(
        "spins.py",
        """
        import jax
        import jax.numpy as jnp


        def energy(parameters, table, sigma):
            sigma = sigma.reshape(-1, sigma.shape[-1])
            bonds, pull = jax.vjp(lambda w: jnp.einsum("bi,ij,bj->b", sigma, w, sigma), parameters)
            local = jnp.sum(table["fields"] * sigma, axis=-1) + bonds
            mean = jnp.mean(local)
            return mean, pull((local - mean) / local.size)[0]


        def inputs():
            sigma = 2 * jax.random.bernoulli(jax.random.key(0), 0.5, (24, 10, 9)).astype(jnp.int8) - 1
            return jnp.eye(9), {"fields": jnp.ones(9), "bonds": jnp.ones((10, 9), bool)}, sigma
        """,
    )
    result = project.run("gen", "spins.py::energy", "--inputs", "spins.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert "sigma batch axis 0" in result.words


def test_two_layers_ahead_of_the_data_are_no_batch(shared: Project) -> None:
    """From (12, 16) to (16, 8), all pairs of the rows of two samples: hidden units would be less to send."""
    shared.write(
        "samples.py",
        """
        import jax.numpy as jnp


        def discrepancy(net, real, made):
            def kernel(u, v):
                return jnp.exp(-jnp.sum((u[:, None] - v[None]) ** 2, -1)).mean()

            u, v = (jnp.tanh(each @ net["in"]) @ net["out"] for each in (real, made))
            return kernel(u, u) + kernel(v, v) - 2 * kernel(u, v)
        """,
    )
    words = (
        "--arg",
        "net={in: f32[12,16], out: f32[16,8]}",
        "--arg",
        "real=f32[24,12]",
        "--arg",
        "made=f32[24,12]",
    )
    found = shared.run("plan", "samples.py::discrepancy", *words)
    assert found.exit_code == 0, found.stderr
    assert "real batch axis 0" in found.words and "made batch axis 0" in found.words
    assert "net replicated" in found.words


def test_several_rows_for_each_example_are_told_where_a_call_cannot_be_read(project):
    # Pairs of a preferred and another answer, one half behind the other, beside a number for each pair.
    project.write(
        "pairs.py",
        """
        import jax
        import jax.numpy as jnp


        class Net:
            def __init__(self):
                self.block = self.block

            def block(self, w, ids):
                return jnp.tanh(w[ids])


        NET = Net()


        def preference(w, ids, reference):
            score = NET.block(w, ids).sum((-2, -1))
            size = len(score) // 2
            return -jax.nn.log_sigmoid(score[:size] - score[size:] - reference).sum() / size
        """,
    )
    words = ("--arg", "w=f32[9,9]", "--arg", "ids=i32[48,6]<9", "--arg", "reference=f32[24]")
    says = ("Of several rows for each example, make an axis", "take `ids` as (24, 2, 6)")
    project.refused("JP067", "plan", "pairs.py::preference", *words, says=says, exit_code=1)


def test_hidden_units_are_not_divided_while_every_device_does_the_rest(shared: Project) -> None:
    """Which is equal, and no parallel version: all go on with all examples, which depend on each other."""
    shared.write(
        "spread.py",
        """
        import jax
        import jax.numpy as jnp


        def spread(params, x, y):
            z = jnp.tanh(x @ params["w"]) @ params["v"]
            for _ in range(20):
                z = jnp.cumsum(jnp.sort(z, axis=0), axis=0) / len(z)
            return jnp.mean((z - jnp.sort(y, axis=0)) ** 2)


        def inputs():
            keys = jax.random.split(jax.random.key(0), 4)
            shapes = (2, 8), (8, 2), (24, 2), (24, 2)
            w, v, x, y = (jax.random.normal(key, shape) for key, shape in zip(keys, shapes))
            return {"w": w, "v": v}, x, y
        """,
    )
    said = ("`jnp.sort(z, axis=0)` couples the examples of the batch",)
    args = ("gen", "spread.py::spread", "--inputs", "spread.py::inputs")
    shared.refused("JP043", *args, says=said, exit_code=1)


FLAGGED = """
    import functools

    import jax
    import jax.numpy as jnp


    @functools.partial(jax.jit, static_argnames=("metrics", "scaled"))
    def step(w, x, metrics=True, scaled=False):
        loss, grad = jax.value_and_grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        if scaled:
            grad = grad / jnp.mean(x**2)
        info = {"loss": loss}
        if metrics:
            info["largest"] = jnp.max(x)
        return w - 0.1 * grad, info


    def inputs():
        return {"w": jnp.ones(3), "x": jnp.arange(72.0).reshape(24, 3) / 72}
"""


def test_a_flag_that_changes_what_is_returned_is_told_by_one_trace(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    ask = Session.ask

    def noted(self: Session, request: Any, *doing: Any) -> Any:
        asked.append(request)
        return ask(self, request, *doing)

    monkeypatch.setattr(Session, "ask", noted)
    project.write("flagged.py", textwrap.dedent(FLAGGED))
    words = ("flagged.py::step", "--inputs", "flagged.py::inputs", "--output-format", "json")
    made = project.run("gen", *words)
    assert made.exit_code == 0, made.stderr
    seen = [dict(each.overrides) for each in asked if type(each).__name__ == "Observe"]
    # Without metrics it returns something else, which the emitted code does not take.
    assert {"metrics": "False"} not in seen
    assert {"scaled": "True"} in seen
    code = json.loads(made.stdout)["code"]
    assert "scaled not in (False, True)" in code
    assert "metrics is not True" in code or "metrics != True" in code, code


SHADOWED = """
import jax
import jax.numpy as jnp


def batch(rows, steps=None):
    shape = (rows,) if steps is None else (steps, rows)
    keys = jax.random.split(jax.random.key(0), 2)
    return {"x": jax.random.normal(keys[0], (*shape, 5)), "y": jax.random.normal(keys[1], shape)}


def update(w, rows):
    return w - 0.1 * jax.grad(lambda w: jnp.mean((rows["x"] @ w - rows["y"]) ** 2))(w)


def epoch(w, batches):
    def body(w, batch):
        return update(w, batch), jnp.sum(w)

    return jax.lax.scan(body, w, batches)


def inputs():
    return jnp.ones(5), batch(24, 3)
"""


def test_a_parameter_is_not_the_function_that_has_its_name(project: Project) -> None:
    project.write("shadowed.py", SHADOWED)
    made = project.run("gen", "shadowed.py::epoch", "--inputs", "shadowed.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "derived for all inputs" in made.stderr
