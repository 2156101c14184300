"""Random numbers: which keys are folded, what is shown of them, and that a wrong fold is caught."""

import json
import re
import textwrap
import zlib

import pytest

from jax_pmap.emit.unit import emit
from jax_pmap.inputs.load import load
from jax_pmap.model import RefusalError, Request
from jax_pmap.pipeline import _read, _session, quiet
from jax_pmap.planning.search import find_plan
from jax_pmap.proof.prove import prove

pytest_plugins = ["project"]

ROWS = """

    def rows(seed, *shape):
        return np.random.default_rng(seed).normal(size=shape).astype("float32")
"""
HEAD = """
    import jax
    import jax.numpy as jnp
    import numpy as np
"""
STEP = """
    def train_step(params, key, x):
        key, drop, noise = jax.random.split(key, 3)

        def loss_fn(params):
            hidden = jnp.tanh(x @ params)
            return jnp.mean(hidden * jax.random.bernoulli(drop, 0.5, hidden.shape))

        grads = jax.grad(loss_fn)(params)
        return params - 0.1 * grads + 0.01 * jax.random.normal(noise, params.shape), key


    def inputs(seed):
        return rows(seed, 5, 3), jax.random.PRNGKey(seed), rows(seed, 16, 5)
"""
FOLDED = 'jax.random.fold_in(key, jax.lax.axis_index("i"))'
FOLD = "jax.random.fold_in({}, jax.lax.axis_index(AXIS))"


def source(text):
    """A module around `text`, which has `rows` to make inputs."""
    return "\n\n".join(map(textwrap.dedent, (HEAD, ROWS, text)))


def folds(code):
    """Every folded key in emitted code, on one line each."""
    return re.findall(
        r"jax\.random\.fold_in\( ?(.*?), jax\.lax\.axis_index\(AXIS\) ?\)", " ".join(code.split())
    )


def test_a_fold_too_few_or_too_many_is_caught_by_the_proof(project):
    project.write("steps.py", source(STEP))
    request = Request("steps.py::train_step", inputs="steps.py::inputs", python=None)
    with _session(request) as session:
        target = _read(request, session)
        loaded = load(session, target, request, quiet)
        observed = find_plan(session, target, loaded, request, quiet)
        code = emit(target, observed.plan, request)
        assert folds(code) == ["drop"]
        evidence = prove(session, target, observed.plan, observed, code, quiet)
        assert evidence.proved
        assert evidence.equal_draws

        def refusal(old, new):
            found = re.search(re.escape(old).replace(r"\ ", r"\s+"), code)
            assert found is not None, code
            faulty = code.replace(found[0], new)
            with pytest.raises(RefusalError) as raised:
                prove(session, target, observed.plan, observed, faulty, quiet)
            assert raised.value.refusal.code == "JP045"
            return raised.value.refusal.reason

        # No key differs: every device drops the same units of other examples.
        assert "every device draws the same numbers" in refusal(
            "jax.random.fold_in(drop, jax.lax.axis_index(AXIS))", "drop"
        )
        # The noise of parameters differs: their copies drift apart.
        assert "every device draws other numbers" in refusal(
            "jax.random.normal(noise,", f"jax.random.normal({FOLD.format('noise')},"
        )
        # The carried key differs, and with it all that is drawn from the next step on.
        assert "random keys wrongly" in refusal(
            "jax.random.split(key, 3)", f"jax.random.split({FOLD.format('key')}, 3)"
        )
        # A key that is returned folded, although nothing is drawn from it any more.
        assert "its copies differ between devices" in refusal(
            "noise, params.shape), key", f"noise, params.shape), {FOLD.format('key')}"
        )
        # A key that is the same everywhere and not the original's.
        assert "[1]" in refusal(
            "noise, params.shape), key", "noise, params.shape), jax.random.fold_in(key, 1)"
        )


def test_every_way_to_a_key_is_followed(shared):
    shared.write(
        "ways.py",
        source("""
        from typing import NamedTuple

        KEY = jax.random.PRNGKey(7)


        class State(NamedTuple):
            step: jax.Array
            key: jax.Array


        def jitter(key, params, x):
            params_key, x_key = jax.random.split(key)
            return params + jax.random.normal(params_key, ()), x + jax.random.normal(x_key, x.shape)


        def ways(state, rngs, keys, params, x):
            made = jax.random.PRNGKey(state.step)
            x = x * jax.random.uniform(made, x.shape[:1])[:, None]
            x = x + jax.random.normal(jax.random.fold_in(state.key, state.step), x.shape)
            x = x + jax.random.uniform(rngs["noise"], x.shape) * jax.random.normal(rngs["scale"], ())
            x = jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(
                jax.random.split(rngs["each"], x.shape[0]), x
            )
            x = jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(keys, x)
            params, x = jitter(state.key, params, x)

            def body(carry, sub):
                return carry + jax.random.normal(sub, carry.shape), None

            x, _ = jax.lax.scan(body, x, jax.random.split(rngs["scan"], 3))
            x = x + jax.random.normal(jax.random.fold_in(KEY, state.step), x.shape)
            return State(state.step + 1, jax.random.split(state.key)[0]), params, x

        def inputs(seed):
            key = jax.random.key(seed)
            rngs = dict(zip(["noise", "scale", "each", "scan"], jax.random.split(key, 4)))
            state = State(np.int32(3), jax.random.PRNGKey(seed))
            return state, rngs, jax.random.split(key, 16), np.float32(1.5), rows(seed, 16, 5)
"""),
    )
    result = shared.run("gen", "ways.py::ways", "--inputs", "ways.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert folds(result.stdout) == [
        "x_key",
        "made",
        "jax.random.fold_in(state.key, state.step)",
        'rngs["noise"]',
        'rngs["each"]',
        "sub",
        "jax.random.fold_in(KEY, state.step)",
    ]
    assert "equal for equal draws" in result.stdout
    assert "key folded with the device's index" in result.words


WALK = """
    class Walk:
        def __init__(self, rate):
            self.rate = rate

        def _moved(self, state, x):
            key, noise_key = jax.random.split(state["key"])
            return {**state, "key": key}, x + self.rate * jax.random.normal(noise_key, x.shape)

        def step(self, state, x):
            state, x = self._moved(state, x)
            return {**state, "steps": state["steps"] + 1}, jnp.sum(x**2, axis=1)


    def inputs(seed):
        return Walk(0.1), {"key": jax.random.key(seed), "steps": np.int32(0)}, rows(seed, 24, 5)
"""


def test_a_key_is_followed_into_the_methods_that_a_method_calls(shared):
    shared.write("walk.py", source(WALK))
    words = ("walk.py::Walk.step", "--inputs", "walk.py::inputs", "--output-format", "json")
    result = shared.run("plan", *words)
    assert result.exit_code == 0, result.stderr
    syncs = json.loads(result.stdout)["plan"]["syncs"]
    assert [(sync["op"], sync["value"]) for sync in syncs] == [("fold_in", "noise_key")]


UNUSED_DRAW = """
    def decode(w, key, x):
        code_key, pixel_key = jax.random.split(key)
        code = x @ w + jax.random.normal(code_key, x.shape)
        return code, jax.random.bernoulli(pixel_key, jax.nn.sigmoid(code))


    @jax.jit
    def loss_fn(w, key, x):
        code, _ = decode(w, key, x)
        return jnp.mean((code - x) ** 2)


    def update(w, key, x):
        key, next_key = jax.random.split(key)
        return w - 0.1 * jax.grad(loss_fn)(w, key, x), next_key


    def inputs(seed):
        return rows(seed, 3, 3), jax.random.key(seed), rows(seed, 24, 3)
"""


def test_a_draw_that_nothing_uses_is_none(shared):
    shared.write("unused.py", source(UNUSED_DRAW))
    made = shared.run("gen", "unused.py::update", "--inputs", "unused.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert len(folds(made.stdout)) == 1, made.stdout


def test_a_draw_for_examples_that_nothing_uses_needs_no_key_of_its_own(shared):
    # A library that picks rows for a caller who picks them himself, from a key that it gives back.
    shared.write(
        "picks.py",
        source("""
        def picked(key, x):
            keys = jax.random.split(key, x.shape[0])
            return key, jax.vmap(lambda k: jax.random.randint(k, (), 0, 1000))(keys)


        def evaluate(w, key, x):
            key, _ = picked(key, x)
            return jnp.mean((x @ w) ** 2), key


        def inputs(seed):
            return rows(seed, 3), jax.random.key(seed), rows(seed, 24, 3)
        """),
    )
    made = shared.run("gen", "picks.py::evaluate", "--inputs", "picks.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert folds(made.stdout) == []
    assert "derived for all inputs" in made.stderr


def test_a_reduction_of_noise_alone_is_synchronised(shared):
    shared.write(
        "noise.py",
        source("""
    def noisy(x, key):
        noise = jax.random.normal(key, x.shape)
        fake = jnp.mean(jnp.tanh(jax.random.normal(jax.random.fold_in(key, 1), x.shape)))
        return x + noise - noise.mean(0), fake, jnp.max(noise)


    def inputs(seed):
        return rows(seed, 16, 3), jax.random.PRNGKey(seed)
"""),
    )
    result = shared.run("plan", "noise.py::noisy", "--inputs", "noise.py::inputs", "--output-format", "json")
    assert result.exit_code == 0, result.stderr
    syncs = [(sync["op"], sync["value"]) for sync in json.loads(result.stdout)["plan"]["syncs"]]
    assert ("pmean", "noise.mean(0)") in syncs
    assert [op for op, _ in syncs].count("pmean") == 2
    assert [op for op, _ in syncs].count("pmax") == 1


def test_keys_of_examples_and_jit_draw_the_numbers_of_one_device(shared):
    shared.write(
        "each.py",
        source("""
        def augment(keys, x):
            return jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(keys, x)


        def inputs(seed):
            return jax.random.split(jax.random.PRNGKey(seed), 16), np.ones((16, 3), "float32")


        def inputs_rbg(seed):
            return jax.random.split(jax.random.key(seed, impl="rbg"), 16), np.ones((16, 3), "float32")


        def noisy(key, x):
            return x + jax.random.normal(key, x.shape)


        def inputs_noisy(seed):
            return jax.random.key(seed), np.ones((16, 3), "float32")
"""),
    )
    result = shared.run("gen", "each.py::augment", "--inputs", "each.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert folds(result.stdout) == []
    assert "equal draws" not in result.stdout + result.words
    result = shared.run("gen", "each.py::augment", "--inputs", "each.py::inputs_rbg")
    assert "equal for equal draws" in result.stdout and "equal for equal draws" in result.words
    result = shared.run("gen", "each.py::noisy", "--inputs", "each.py::inputs_noisy", "--backend", "jit")
    assert result.exit_code == 0, result.stderr
    assert "fold_in" not in result.stdout + result.stderr
    assert "equal draws" not in result.stdout + result.words


def test_a_plan_with_a_fold_is_taken_back(shared):
    shared.write("steps.py", source(STEP))
    asked = ("steps.py::train_step", "--inputs", "steps.py::inputs")
    planned = shared.run("plan", *asked, "--output-format", "json")
    assert planned.exit_code == 0, planned.stderr
    plan = json.loads(planned.stdout)
    (fold,) = [sync for sync in plan["plan"]["syncs"] if sync["op"] == "fold_in"]
    assert (fold["value"], fold["where"]) == ("drop", "wrap")
    shared.write("plan.json", planned.stdout)
    taken = shared.run("gen", *asked, "--plan", "plan.json", "--output-format", "json")
    assert taken.exit_code == 0, taken.stderr
    report = json.loads(taken.stdout)
    assert folds(report["code"]) == ["drop"]
    assert report["evidence"]["equal_draws"] is True


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ("return x[jax.random.permutation(key, x.shape[0])]", "JP043", "couples the examples"),
        ("return x[jnp.argsort(jax.random.uniform(key, x.shape[:1]))]", "JP043", "couples the examples"),
        ("return jax.random.permutation(key, x)", "JP043", "couples the examples"),
        (
            "return [x + jax.random.normal(key, v.shape) for v in (x, x[0])]",
            "JP051",
            "numbers that all devices share are drawn from it too",
        ),
    ],
)
def test_what_mixes_examples_or_draws_is_refused(shared, body, code, says):
    file = f"mixed_{zlib.crc32(body.encode())}.py"
    shared.write(
        file,
        f"import jax\nimport jax.numpy as jnp\nimport numpy as np\n\n\ndef mixed(key, x):\n    {body}\n\n\n"
        "def inputs(seed):\n    x = np.random.default_rng(seed).normal(size=(16, 3)).astype('float32')\n"
        "    return jax.random.key(seed), x\n",
    )
    shared.refused(code, "gen", f"{file}::mixed", "--inputs", f"{file}::inputs", says=(says,), exit_code=1)


MIXED = """
    def step(w, x, key):
        order, part = jax.random.permutation(key, len(x)), jax.random.beta(key, 0.2, 0.2)
        x = part * x + (1 - part) * x[order]
        return jax.grad(lambda w: jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2))(w)

    def inputs(seed=0): return rows(1, 5, 5), rows(seed, 24, 5), jax.random.key(seed)
"""


def test_a_key_of_a_permutation_may_draw_what_all_devices_share(shared):
    """The order of all rows is drawn whole, so no key is folded: it is that of one device."""
    shared.write("mixed.py", textwrap.dedent(HEAD + ROWS + MIXED))
    made = shared.run("gen", "mixed.py::step", "--inputs", "mixed.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert "count = jax.lax.psum(len(x), axis_name=AXIS)" in made.stdout
    assert "jax.random.permutation(key, count)" in made.stdout
    assert "fold_in" not in made.stdout and "derived for all inputs" in made.words


BESIDE = """
    def shared(key, x):
        own = jnp.mean(x + jax.random.normal(key, x.shape), axis=0)
        return own + jax.random.normal(jax.random.split(key)[1], own.shape)


    def carried(key, x):
        first, second = jax.random.split(key)
        noise = jax.random.normal(first, x.shape) * jax.random.uniform(second, x.shape)
        key, _ = jax.random.split(key)
        return jnp.mean(x + noise, axis=0), key


    def given_back(key, x):
        return jnp.mean(x + jax.random.normal(key, x.shape), axis=0), key


    def inputs(seed):
        return jax.random.key(seed), rows(seed, 16, 5)
"""
DOWNWARD = "jax.random.fold_in({}, ~jax.lax.axis_index(AXIS))"


@pytest.mark.parametrize(("name", "key"), [("shared", "key"), ("carried", "first"), ("given_back", "key")])
def test_a_key_of_which_other_keys_are_made_is_folded_with_numbers_that_none_of_them_has(shared, name, key):
    """`split(key)[1]` and `fold_in(key, 1)` are one key, and device 1 must not have it."""
    shared.write("beside.py", source(BESIDE))
    made = shared.run("gen", f"beside.py::{name}", "--inputs", "beside.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert DOWNWARD.format(key) in re.sub(r"\(\s+", "(", made.stdout)
    assert "derived for all inputs" in made.stderr


BY_HAND = """
    def one(key, x):
        own = jax.random.fold_in(key, INDEX)
        mean = jax.lax.pmean(jnp.mean(x + jax.random.normal(own, x.shape), axis=0), "b")
        return mean + jax.random.normal(jax.random.split(key)[1], mean.shape)


    mapped = jax.pmap(one, axis_name="b", in_axes=(None, 0), out_axes=None)
"""


@pytest.mark.parametrize(
    ("index", "exit_code"), [('jax.lax.axis_index("b")', 1), ('~jax.lax.axis_index("b")', 0)]
)
def test_devices_that_count_upward_beside_other_keys_are_caught(shared, index, exit_code):
    shared.write("beside.py", source(BESIDE))
    file = f"by_hand_{exit_code}.py"
    shared.write(file, source(BY_HAND).replace("INDEX", index))
    asked = ("--against", "beside.py::shared", "--inputs", "beside.py::inputs")
    found = shared.run("verify", f"{file}::mapped", *asked)
    assert found.exit_code == exit_code, found.stdout + found.stderr


HELD = """
    import flax.linen as nn
    import optax


    class Streams:
        def __init__(self, key):
            self.key = key

        def __call__(self, *names):
            self.key, *keys = jax.random.split(self.key, len(names) + 1)
            return dict(zip(names, keys))


    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            order = jnp.argsort(jax.random.uniform(self.make_rng("order"), x.shape[1:]))
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(4)(x[:, order]))


    model = Model()


    def step(params, key, x):
        streams = Streams(key)

        def loss_fn(params):
            return jnp.mean(model.apply(params, x, rngs=streams("order", "dropout")) ** 2)

        loss, grads = jax.value_and_grad(loss_fn)(params)
        return optax.apply_updates(params, jax.tree.map(lambda g: -0.1 * g, grads)), loss, streams.key


    def inputs(seed):
        x, key = rows(seed, 16, 5), jax.random.PRNGKey(seed)
        return model.init({"params": key, "order": key, "dropout": key}, x), key, x
"""


def test_of_keys_that_a_call_gives_those_of_examples_are_folded(shared):
    shared.write("held.py", source(HELD))
    made = shared.run("gen", "held.py::step", "--inputs", "held.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert folds(made.stdout) == ['keys["dropout"]']
    assert made.stdout.count('streams("order", "dropout")') == 1


LOOP = """
    def walk(key, x):
        def step(i, state):
            x, key = state
            key, noise = jax.random.split(key)
            return x + 0.1 * jax.random.normal(noise, x.shape), key

        x, key = jax.lax.fori_loop(0, 3, step, (x, key))
        return x


    def inputs(seed):
        return jax.random.PRNGKey(seed), rows(seed, 16, 5)
"""


def test_a_key_that_a_loop_carries_is_folded_where_every_round_passes(shared):
    shared.write("walks.py", source(LOOP))
    result = shared.run("gen", "walks.py::walk", "--inputs", "walks.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert folds(result.stdout) == ["noise"]


SAMPLER = """
    def log_density(w, x):
        return -jnp.sum((x @ w) ** 2, axis=-1)


    def accept(x, moved, before, after, key, count):
        key, own = jax.random.split(key)
        taken = after - before > jnp.log(jax.random.uniform(own, before.shape))
        x, count = jnp.where(taken[:, None], moved, x), count + jnp.sum(taken)
        return x, jnp.where(taken, after, before), key, count


    def move(w, x, density, key, count):
        key, own = jax.random.split(key)
        moved = x + 0.3 * jax.random.normal(own, x.shape)
        return accept(x, moved, density, log_density(w, moved), key, count)


    def walked(w, key, x):
        start = (x, log_density(w, x), key, 0)
        return jax.lax.fori_loop(0, 3, lambda i, state: move(w, *state), start)


    def sample(w, key, x):
        x, _, _, count = walked(w, key, x)
        return x, count / (3 * len(x))


    def chain(w, key, x):
        start = (x, log_density(w, x), key, 0)
        (x, _, key, count), _ = jax.lax.scan(lambda state, _: (move(w, *state), None), start, None, length=3)
        return x, key, count


    def inputs(seed):
        return rows(seed, 5, 2), jax.random.PRNGKey(seed), rows(seed, 24, 5)
"""


@pytest.mark.parametrize(("name", "folded"), [("sample", {"key"}), ("chain", {"own"})])
def test_a_key_that_goes_through_a_function_and_on_to_the_next_round_is_folded_once(shared, name, folded):
    """Before the loop, or in the function where it is returned: not in every round, with others each time."""
    shared.write("samplers.py", source(SAMPLER))
    result = shared.run("gen", f"samplers.py::{name}", "--inputs", "samplers.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs and device counts" in result.stderr
    assert set(folds(result.stdout)) == folded


ROUNDS = """
    def scanned(key, w, x):
        def round(w, i):
            rows = x + jax.random.normal(jax.random.fold_in(key, FIRST), x.shape)
            w = w + 0.1 * jax.random.normal(jax.random.fold_in(key, SECOND), w.shape)
            return w + 0.01 * jnp.mean(rows, axis=0), None

        return jax.lax.scan(round, w, jnp.arange(4))[0]


    def sliced(key, w, x):
        keys = jax.random.split(key, 6)

        def round(w, own):
            for_rows, for_all = own
            rows = x + jax.random.normal(for_rows, x.shape)
            w = w + 0.1 * jax.random.normal(for_all, w.shape)
            return w + 0.01 * jnp.mean(rows, axis=0), None

        return jax.lax.scan(round, w, SLICES)[0]


    def chained(key, w, x):
        def round(state):
            i, key, w = state
            following = jax.random.fold_in(key, 1)
            for_rows, for_all = CHAINED
            rows = x + jax.random.normal(for_rows, x.shape)
            w = w + 0.1 * jax.random.normal(for_all, w.shape)
            return i + 1, following, w + 0.01 * jnp.mean(rows, axis=0)

        return jax.lax.while_loop(lambda state: state[0] < 4, round, (0, key, w))[2]


    def inputs(seed):
        return jax.random.key(seed), rows(seed, 5), rows(seed + 1, 24, 5)
"""
MEETING = {
    "FIRST": "i",
    "SECOND": "i + 1",
    "SLICES": "(keys[:-1], keys[1:])",
    "CHAINED": "jax.random.fold_in(key, 5), jax.random.fold_in(following, 5)",
}
APART = {
    "FIRST": "2 * i",
    "SECOND": "2 * i + 1",
    "SLICES": "(keys[:3], keys[3:])",
    "CHAINED": "jax.random.fold_in(key, 5), jax.random.fold_in(key, 6)",
}


@pytest.mark.parametrize("name", ["scanned", "sliced", "chained"])
def test_a_key_that_is_of_the_other_kind_in_another_round_is_refused(shared, name):
    """On one device such numbers depend on each other; with a key of the device's own they would not."""
    for kind, texts in (("meeting", MEETING), ("apart", APART)):
        text = source(ROUNDS)
        for place, with_ in texts.items():
            text = text.replace(place, with_)
        shared.write(f"rounds_{kind}.py", text)
    says = ("numbers that all devices share are drawn from it",)
    asked = ("--inputs", "rounds_meeting.py::inputs")
    shared.refused("JP051", "plan", f"rounds_meeting.py::{name}", *asked, says=says, exit_code=1)
    planned = shared.run("plan", f"rounds_apart.py::{name}", "--inputs", "rounds_apart.py::inputs")
    assert planned.exit_code == 0, planned.stderr


REJECTED = """
    def sample(key, x):
        def one(key, low):
            first, key = jax.random.split(key)

            def again(carry):
                key, _, rounds = carry
                key, draw = jax.random.split(key)
                return key, jax.random.normal(draw), rounds + 1

            start = key, jax.random.normal(first), 0
            return jax.lax.while_loop(lambda carry: carry[1] < low, again, start)[1:]

        return jax.vmap(one)(jax.random.split(key, len(x)), x)


    def inputs(seed):
        return jax.random.PRNGKey(seed), rows(seed, 24)
"""


def test_draws_in_a_loop_that_ends_by_the_examples_do_not_bar_a_fold(shared):
    shared.write("rejected.py", source(REJECTED))
    result = shared.run("gen", "rejected.py::sample", "--inputs", "rejected.py::inputs")
    assert result.exit_code == 0, result.stderr
    assert "derived for all inputs" in result.stderr
    assert folds(result.stdout) == ["key"]


ATTENTION = """
import flax.linen as nn
import jax
import jax.numpy as jnp

model = nn.Sequential(
    [
        nn.MultiHeadDotProductAttention(2, dropout_rate=0.1, deterministic=False),
        nn.Dropout(0.1, deterministic=False),
    ]
)


def loss(params, x, key):
    return jnp.mean(model.apply(params, x, rngs={"dropout": key}) ** 2)


def inputs(seed):
    key = jax.random.key(seed)
    x = jax.random.normal(key, (24, 3, 4))
    return model.init({"params": key, "dropout": key}, x), x, key
"""


def test_one_mask_of_dropout_for_the_attention_of_all_examples(shared):
    """Its stream has the masks of the examples too, and no split of the key in the source parts them."""
    shared.write("attention.py", ATTENTION)
    words = ("plan", "attention.py::loss", "--inputs", "attention.py::inputs")
    shared.refused("JP051", *words, says=("broadcast_dropout=False", "--backend jit"), exit_code=1)
    shared.write("one_key.py", ATTENTION.replace('{"dropout": key})', "key)"))
    words = ("plan", "one_key.py::loss", "--inputs", "one_key.py::inputs")
    shared.refused("JP051", *words, says=("Split it first", "broadcast_dropout=False"), exit_code=1)


JOINED = """
    def views(w, x, y, key):
        first, second, third = jax.random.split(key, 3)
        joined = jnp.concatenate([x, y, x * y])
        joined = joined + jax.random.normal(first, joined.shape)
        joined = jax.vmap(lambda k, row: row * jax.random.uniform(k))(
            jax.random.split(second, joined.shape[0]), joined
        )
        one, two, three = jnp.split(jnp.tanh(joined @ w), 3)
        one = one * jax.random.bernoulli(third, 0.5, one.shape)
        return jnp.mean(one * two - three), two


    def inputs(seed):
        w = np.random.default_rng(seed).normal(size=(6, 4)).astype("float32")
        return w, rows(seed, 24, 6), rows(seed + 1, 24, 6), jax.random.key(seed)


    @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, 0, None), out_axes=(None, 0))
    def parallel(w, x, y, key):
        loss, two = views(w, x, y, {key})
        return jax.lax.pmean(loss, "i"), two
"""


def test_jit_is_named_as_a_way_out_with_what_it_takes(shared):
    text = """
    def step(w, key, x):
        noisy = x + jax.random.normal(key, x.shape)
        w = w + 0.1 * jax.random.normal(key, w.shape)
        return jax.lax.pmean(jnp.mean(noisy @ w), "batch")


    def inputs(seed):
        return rows(seed, 5), jax.random.PRNGKey(seed), rows(seed, 24, 5)
    """
    shared.write("entangled.py", source(text))
    says = ("try --backend jit", 'without its collectives over "batch"')
    shared.refused(
        "JP051", "gen", "entangled.py::step", "--inputs", "entangled.py::inputs", says=says, exit_code=1
    )


def test_what_is_drawn_for_batches_that_are_joined(shared):
    """On three devices, each draws as many numbers for its three parts as are drawn for one batch of all."""
    shared.write("joined.py", source(JOINED.replace("{key}", "key")))
    result = shared.run("gen", "joined.py::views", "--inputs", "joined.py::inputs", "-o", "joined_views.py")
    assert result.exit_code == 0, result.stderr
    code = (shared.folder / "joined_views.py").read_text()
    assert code.count("jax.lax.pmean") == 1 and "all_gather" not in code and len(folds(code)) == 3
    assert "derived for all inputs and device counts" in result.words
    assert "equal for equal draws" in result.words


GROUPED = """
    def groups(w, x, key):
        noise = jax.random.normal(key, (x.shape[0] // 4, 6))
        h = (x.reshape(-1, 4, 6) + noise[:, None]).reshape(x.shape)
        return jnp.mean(jnp.tanh(h @ w)), h


    def inputs(seed):
        w = np.random.default_rng(seed).normal(size=(6, 4)).astype("float32")
        return w, rows(seed, 96, 6), jax.random.key(seed)


    @functools.partial(jax.pmap, axis_name="i", in_axes=(None, 0, None), out_axes=(None, 0))
    def parallel(w, x, key):
        loss, h = groups(w, x, {key})
        return jax.lax.pmean(loss, "i"), h
"""


def test_what_is_drawn_for_several_examples_each(shared):
    """What is drawn for a quarter of the batch is other noise on every device."""
    shared.write("grouped.py", "import functools\n" + source(GROUPED.replace("{key}", FOLDED)))
    result = shared.run(
        "gen", "grouped.py::groups", "--inputs", "grouped.py::inputs", "-o", "grouped_pmap.py"
    )
    assert result.exit_code == 0, result.stderr
    assert len(folds((shared.folder / "grouped_pmap.py").read_text())) == 1
    assert "derived for all inputs and device counts" in result.words
    assert "equal for equal draws" in result.words


@pytest.mark.parametrize(("key", "exit_code"), [(FOLDED, 0), ("key", 1)])
def test_draws_for_several_examples_each_in_code_of_the_user(shared, key, exit_code):
    name = "grouped_by_hand" if exit_code == 0 else "grouped_alike"
    shared.write(f"{name}.py", "import functools\n" + source(GROUPED.replace("{key}", key)))
    words = (
        "verify",
        f"{name}.py::parallel",
        "--against",
        f"{name}.py::groups",
        "--inputs",
        f"{name}.py::inputs",
    )
    result = shared.run(*words)
    assert result.exit_code == exit_code, result.words


@pytest.mark.parametrize(("key", "exit_code"), [(FOLDED, 0), ("key", 1)])
def test_draws_for_joined_batches_in_code_of_the_user(shared, key, exit_code):
    name = "joined_by_hand" if exit_code == 0 else "joined_alike"
    shared.write(f"{name}.py", "import functools\n" + source(JOINED.replace("{key}", key)))
    result = shared.run(
        "verify", f"{name}.py::parallel", "--against", f"{name}.py::views", "--inputs", f"{name}.py::inputs"
    )
    assert result.exit_code == exit_code, (result.stdout, result.stderr)
    if exit_code:
        assert "every device draws the same numbers" in " ".join(result.stderr.split())


REPLAY = """
    import jax
    import jax.numpy as jnp

    ROWS = 24


    def update(state, rows):
        key, sub, noise = jax.random.split(state["key"], 3)
        drawn = rows[jax.random.randint(sub, (ROWS,), 0, len(rows))]
        x, action = drawn[:, :3], drawn[:, 25:28]

        def loss(w):
            made = x + 0.1 * jax.random.normal(noise, action.shape)
            return jnp.mean((made @ w - drawn[:, 3]) ** 2)

        value, grad = jax.value_and_grad(loss)(state["w"])
        return {"w": state["w"] - 0.1 * grad, "key": key}, value


    def inputs():
        rows = jax.random.normal(jax.random.key(1), (512, 28))
        return {"w": jnp.ones(3), "key": jax.random.key(0)}, rows
"""


def test_draws_of_a_function_that_fails_on_what_divides_over_the_devices_are_none(shared):
    """24 of 28 columns divide; with twice as many it runs, and with those the last ones are missing."""
    shared.write("replay.py", REPLAY)
    made = shared.run("gen", "replay.py::update", "--inputs", "replay.py::inputs", "--shard", "rows:1")
    assert made.exit_code == 0, made.stderr
    assert "noise = jax.random.fold_in" in made.stdout or "fold_in(noise" in made.stdout


QUANTIZED = """
    import jax
    import jax.numpy as jnp


    def quantized(w, x, key):
        rows = (x @ w).reshape(-1, 2)
        chosen = jax.nn.softmax(rows + jax.random.gumbel(key, rows.shape))
        fixed = jax.random.normal(jax.jit(jax.random.key)(7), (2,))
        return jnp.mean(chosen @ fixed)


    def inputs(seed):
        x = jax.random.normal(jax.random.key(seed), (24, 12, 3))
        return jnp.ones((3, 8)), x, jax.random.PRNGKey(seed)
"""


def test_draws_for_many_rows_of_each_example_beside_a_key_that_is_made_inside(shared):
    """There are 48 for each example. Flax makes such a key whenever it is given one of plain numbers."""
    shared.write("quantized.py", QUANTIZED)
    made = shared.run("gen", "quantized.py::quantized", "--inputs", "quantized.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.count("fold_in") == 1


KINDS = """
    import enum

    import jax
    import jax.numpy as jnp


    class Kind(enum.Enum):
        START = enum.auto()
        NOISE = enum.auto()


    class Loss:
        kind = Kind.NOISE

        def of(self, key, x):
            key, noise_key = jax.random.split(key)
            noise = jax.random.normal(noise_key, x.shape)
            target = {Kind.START: x, Kind.NOISE: noise}[self.kind]
            return jax.random.uniform(key) * jnp.mean((x - target) ** 2)


    def loss(key, x):
        return Loss().of(key, x)


    def inputs(seed):
        return jax.random.PRNGKey(seed), jax.random.normal(jax.random.key(seed), (24, 3))
"""


def test_keys_beside_a_dict_that_is_no_pytree(shared):
    """Members of an enum have no order, so jax cannot take such a dict apart."""
    shared.write("kinds.py", KINDS)
    made = shared.run("gen", "kinds.py::loss", "--inputs", "kinds.py::inputs")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.count("fold_in") == 1
