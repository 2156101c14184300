"""What an uncompiled function reads at each call, and other code changes between calls."""

import pytest
from project import Project

LATER = """\
import numpy as np

SCALE = 2.0
CONFIG = {"rate": 0.1}
MEAN = np.zeros(3, np.float32)
TABLE = {}
for name in ("a", "b"):
    TABLE[name] = len(name)


class Schedule:
    def __init__(self):
        self.rate, self.start = 0.1, 1.0

    def advance(self):
        self.rate *= 0.5

    def now(self):
        return self.rate


def set_scale(value):
    global SCALE
    SCALE = value


def set_rate(value):
    CONFIG["rate"] = value


def note(x):
    MEAN[:] = x.mean(0)


def local_names(CONFIG, SCALE):
    TABLE = {}
    TABLE["c"] = SCALE
    CONFIG["other"] = 0
    return TABLE
"""
STEPS = """\
import jax
import jax.numpy as jnp
import later
from later import CONFIG, MEAN, SCALE, TABLE, Schedule

schedule = Schedule()
LIMIT = 1.0


def scaled(x):
    return later.SCALE * jnp.mean(x)


def through_a_helper(x):
    return loss(x, CONFIG)


def loss(x, config):
    return jnp.mean(x) * config["rate"]


def centred(x):
    return jnp.mean((x - MEAN) ** 2)


def scheduled(x):
    return schedule.rate * jnp.mean(x)


def asked(x):
    return schedule.now() * jnp.mean(x)


def limited(x):
    return jnp.minimum(jnp.mean(x), LIMIT)


def train(x):
    for _ in range(3):
        limited(x)


def constants(x):
    return (SCALE + TABLE["a"] + schedule.start) * jnp.mean(x)


@jax.jit
def compiled(x):
    return schedule.rate * later.SCALE * jnp.mean(x)


if __name__ == "__main__":
    for epoch in range(3):
        LIMIT *= 0.5
        limited(jnp.ones((24, 3)))
"""


@pytest.fixture
def steps(shared: Project) -> Project:
    shared.write("later.py", LATER)
    shared.write("rebound_steps.py", STEPS)
    return shared


@pytest.mark.parametrize(
    ("name", "what", "by"),
    [
        ("scaled", "`later.SCALE`", "line 24 of later.py"),
        ("through_a_helper", "`CONFIG`", "line 28 of later.py"),
        ("centred", "`MEAN`", "line 32 of later.py"),
        ("scheduled", "`schedule.rate`", "line 16 of later.py"),
        ("asked", "`self.rate`", "line 16"),
        ("limited", "`LIMIT`", "line 54"),
    ],
)
def test_what_changes_between_calls_is_refused(steps: Project, name: str, what: str, by: str) -> None:
    args = ("gen", f"rebound_steps.py::{name}", "--arg", "x=f32[24,3]")
    steps.refused("JP062", *args, says=[what, f"which {by} changes", "@jax.jit"], exit_code=1)


@pytest.mark.parametrize("name", ["constants", "compiled"])
def test_what_stays_is_taken(steps: Project, name: str) -> None:
    """What a module makes when it is imported, and what a compiled function keeps from its first call."""
    made = steps.run("gen", f"rebound_steps.py::{name}", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr


HANDED_ON = """
import threading

import jax.numpy as jnp

RATE = [1.0]


def decay():
    while True:
        RATE[0] *= 0.9


threading.Thread(target=decay, daemon=True)


def step(x):
    return RATE[0] * jnp.mean(x)
"""


def test_what_is_handed_on_at_import_may_be_called_later(shared: Project) -> None:
    """A thread, a signal or a scheduler calls it when it likes; a decorator that fills a table is done."""
    shared.write("handed_on.py", HANDED_ON)
    says = ("`RATE` anew, which line 10 changes",)
    shared.refused("JP062", "gen", "handed_on.py::step", "--arg", "x=f32[24,3]", says=says, exit_code=1)


OWN_BOX = """
import types

import jax.numpy as jnp


class Options:
    def __init__(self):
        self.rate = 0.1


OPTIONS = Options()


def step(x):
    box = types.SimpleNamespace(value=0.0)
    before = box.value
    box.value = jnp.mean(x)
    return OPTIONS.rate * box.value + before
"""


def test_a_local_that_has_other_attributes_is_no_object_of_the_module(shared: Project) -> None:
    shared.write("own_box.py", OWN_BOX)
    made = shared.run("gen", "own_box.py::step", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr


MAKER = """
import jax.numpy as jnp


class Config:
    target = 0.0


CONFIG = Config()


def step(x, config):
    return jnp.mean(x) + config.target


def inputs():
    CONFIG.target = -3.0
    return jnp.arange(24.0), CONFIG


def again():
    CONFIG.target = -3.0
    return jnp.arange(24.0), CONFIG


def main():
    x, config = again()
    print(step(x, config))
    x, config = again()
    print(step(x, config))
"""


def test_what_makes_the_example_inputs_and_nothing_else_changes_nothing_later(shared: Project) -> None:
    shared.write("maker.py", MAKER)
    words = ("gen", "maker.py::step", "--no-run", "--inputs")
    made = shared.run(*words, "maker.py::again")
    assert made.exit_code == 1 and "JP062" in made.stderr
    shared.write("maker_alone.py", MAKER.partition("def again")[0])
    made = shared.run(words[0], "maker_alone.py::step", *words[2:], "maker_alone.py::inputs")
    assert made.exit_code == 0, made.stderr
    # Something else has that name in a file that does not import it.
    method = "\n\nclass Fit:\n    def step(self, x, config):\n        return step(x, config)\n"
    acting = "\n\ndef act(env):\n    return env.act()\n"
    shared.write("making.py", MAKER.partition("def inputs")[0] + acting + method)
    changing = "import jax.numpy as jnp\n\nimport making\n\n\ndef act():\n    making.CONFIG.target = -3.0\n"
    shared.write("its_inputs.py", changing + "    return jnp.arange(24.0), making.CONFIG\n")
    made = shared.run(words[0], "making.py::step", *words[2:], "its_inputs.py::act")
    assert made.exit_code == 0, made.stderr
    shared.write("of_method.py", changing + "    return making.Fit(), jnp.arange(24.0), making.CONFIG\n")
    made = shared.run(
        words[0], "making.py::Fit.step", *words[2:], "of_method.py::act", "--in-place", "--diff"
    )
    assert made.exit_code == 0, made.stderr


FIELDS = """
from typing import NamedTuple

import jax
import jax.numpy as jnp


class State(NamedTuple):
    params: dict


def clip(state):
    state.params.update({name: jnp.clip(each, -1, 1) for name, each in state.params.items()})
    return State(params=state.params)


def step(x):
    state = State(params={"w": jnp.ones(3)})
    grads = jax.grad(lambda p: jnp.mean((x @ p["w"]) ** 2))(state.params)
    return clip(State(params={"w": state.params["w"] - grads["w"]})).params
"""


def test_a_class_has_none_of_the_fields_of_its_objects(shared: Project) -> None:
    shared.write("fields.py", FIELDS)
    made = shared.run("gen", "fields.py::step", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr


MEMBERS = """
import enum
from dataclasses import dataclass

import jax.numpy as jnp


class Kind(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


@dataclass
class Box:
    value: float = 0.0


def fill(boxes, value):
    for box in boxes:
        box.value = value


def step(x, w):
    scale = 1.0 if Kind.MEAN.value == "mean" else 2.0
    return jnp.mean(scale * (x @ w) ** 2)
"""


def test_what_cannot_be_set_is_none_of_what_is_changed(shared: Project) -> None:
    """The `value` of an enum's member, beside a function that sets that of other objects."""
    shared.write("members.py", MEMBERS)
    made = shared.run("gen", "members.py::step", "--arg", "x=f32[24,3]", "--arg", "w=f32[3]", "--no-run")
    assert made.exit_code == 0, made.stderr


PROPERTIES = """
import jax
import jax.numpy as jnp
import numpy as np


class Schedule:
    def __init__(self):
        self.rate = 0.1


class Trainer:
    def __init__(self):
        self._schedule = Schedule()

    @property
    def schedule(self):
        return self._schedule

    def step(self, w, x):
        grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)
        return w - self._schedule.rate * grads


def later(trainer):
    trainer.schedule.rate *= 0.5


def inputs():
    return Trainer(), np.ones(4, np.float32), np.ones((24, 4), np.float32)
"""


def test_what_changes_behind_a_property_is_refused(shared: Project) -> None:
    shared.write("properties.py", PROPERTIES)
    says = ("which line 25 changes",)
    words = ("gen", "properties.py::Trainer.step", "--inputs", "properties.py::inputs")
    shared.refused("JP062", *words, says=says, exit_code=1)


DECORATORS = """
import jax.numpy as jnp

TABLE = {}
COUNT = {"calls": 0}


def register(name):
    def put(function):
        TABLE[name] = function
        return function

    return put


def counted(times):
    def put(function):
        def inner(x):
            COUNT["calls"] += times
            return function(x)

        return inner

    return put


@register("mean")
def mean(x):
    return jnp.mean(x)


@counted(1)
def other(x):
    return x


def by_entry(x):
    return TABLE["mean"](x) ** 2


def by_count(x):
    return jnp.mean(x) * COUNT["calls"]
"""


def test_what_decorators_enter_at_import_is_taken_and_what_wrappers_count_refused(shared: Project) -> None:
    shared.write("decorators.py", DECORATORS)
    made = shared.run("gen", "decorators.py::by_entry", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr
    says = ("reads `COUNT` anew, which line 18 changes",)
    words = ("decorators.py::by_count", "--arg", "x=f32[24,3]")
    shared.refused("JP062", "gen", *words, says=says, exit_code=1)


OTHER_WAYS = """
import jax.numpy as jnp
import numpy as np

CONFIG = {"adam": {"rate": 0.1}}
GROUPS = [{"rate": 0.1}]
SCALE = np.ones(3, np.float32)
MEAN = np.zeros(3, np.float32)
DECAY = 0.5


class Options:
    rate = 0.1


def change(value):
    adam = CONFIG["adam"]
    adam["rate"] = value
    for group in GROUPS:
        group["rate"] = value
    np.copyto(SCALE, value)
    mean = MEAN
    mean += value
    decay = DECAY
    decay *= value
    setattr(Options, "rate", value)


def schedule():
    step = 0

    def rate():
        return 0.1 / (1 + step)

    def advance():
        nonlocal step
        step += 1

    return rate, advance


rate, advance = schedule()


def nested(x):
    return CONFIG["adam"]["rate"] * jnp.mean(x)


def grouped(x):
    return GROUPS[0]["rate"] * jnp.mean(x)


def scaled(x):
    return jnp.mean(x * SCALE)


def centred(x):
    return jnp.mean((x - MEAN) ** 2)


def optional(x):
    return Options.rate * jnp.mean(x)


def scheduled(x):
    return rate() * jnp.mean(x)


def collected(x):
    parts = []

    def add(x):
        parts.append(DECAY * jnp.mean(x))
        return len(parts)

    return add(x) * parts[0]
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("nested", 17), ("grouped", 19), ("scaled", 20), ("centred", 22), ("optional", 25), ("scheduled", 36)],
)
def test_what_changes_by_another_name_or_in_a_closure_is_refused(
    shared: Project, name: str, line: int
) -> None:
    shared.write("other_ways.py", OTHER_WAYS)
    args = ("gen", f"other_ways.py::{name}", "--arg", "x=f32[24,3]")
    shared.refused("JP062", *args, says=[f"anew, which line {line} changes"], exit_code=1)


def test_what_a_call_collects_for_itself_is_taken(shared: Project) -> None:
    shared.write("other_ways.py", OTHER_WAYS)
    made = shared.run("gen", "other_ways.py::collected", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr


ATTRIBUTES = """
import types

import jax.numpy as jnp


class Options:
    start = 0.5

    def __init__(self, **given):
        self.__dict__.update(given)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)


class Loaded:
    def __init__(self):
        self.rate = 0.1

    def load(self, given):
        for name, value in given.items():
            setattr(self, name, value)


BY_VARS, BY_DICT, BY_NAME, BY_HELPER = Options(rate=0.1), Options(), Options(rate=0.1), Options(rate=0.1)
PLAIN, ASKED, FROZEN, SETTLED = Options(rate=0.1), Options(rate=0.1), Options(rate=0.1), Options(rate=0.1)
SPACE, LOADED, LIMIT = types.SimpleNamespace(rate=0.1), Loaded(), 1.0


def assign(options, given):
    for name, value in given.items():
        setattr(options, name, value)


def change(given, name):
    vars(BY_VARS)["rate"] = given
    BY_DICT.__dict__.update(start=given)
    setattr(BY_NAME, name, given)
    assign(BY_HELPER, {name: given})
    PLAIN.rate = given
    ASKED.rate = given
    object.__setattr__(FROZEN, "rate", given)
    space = vars(SPACE)
    space[name] = given
    globals()["LIMIT"] = given
    other = Options(rate=0.1)
    setattr(other, name, given)
    return vars(SETTLED)


def by_vars(x):
    return BY_VARS.rate * jnp.mean(x)


def by_dict(x):
    return BY_DICT.start * jnp.mean(x)


def by_name(x):
    return BY_NAME.rate * jnp.mean(x)


def by_helper(x):
    return BY_HELPER.rate * jnp.mean(x)


def plain(x):
    return vars(PLAIN)["rate"] * jnp.mean(x)


def asked(x):
    return getattr(ASKED, "rate", 0.1) * jnp.mean(x)


def frozen(x):
    return FROZEN.rate * jnp.mean(x)


def in_a_space(x):
    return SPACE.rate * jnp.mean(x)


def limited(x):
    return LIMIT * jnp.mean(x)


def loaded(x):
    return LOADED.rate * jnp.mean(x)


def settled(x):
    return SETTLED.rate * SETTLED.start * jnp.mean(x)
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("loaded", 22),
        ("limited", 45),
        ("by_vars", 36),
        ("by_dict", 37),
        ("by_name", 38),
        ("by_helper", 39),
        ("plain", 40),
        ("asked", 41),
        ("frozen", 42),
        ("in_a_space", 44),
    ],
)
def test_attributes_that_change_by_other_ways_are_seen(shared: Project, name: str, line: int) -> None:
    shared.write("attributes.py", ATTRIBUTES)
    args = ("gen", f"attributes.py::{name}", "--arg", "x=f32[24,3]")
    shared.refused("JP062", *args, says=[f"anew, which line {line} changes"], exit_code=1)


def test_what_changes_another_object_or_reads_all_of_one_is_taken(shared: Project) -> None:
    shared.write("attributes.py", ATTRIBUTES)
    made = shared.run("gen", "attributes.py::settled", "--arg", "x=f32[24,3]", "--no-run")
    assert made.exit_code == 0, made.stderr


PROGRAM = """
import jax.numpy as jnp

BEFORE = {"rate": 0.1}
LATER = {"rate": 0.1}
BETWEEN = {"rate": 0.1}


class Trainer:
    def __init__(self):
        self.options = {"rate": 0.1}
        self.fixed = {"rate": 0.1}

    def step(self, x):
        return self.options["rate"] * jnp.mean(x)

    def other(self, x):
        return self.fixed["rate"] * jnp.mean(x)


def before(x):
    return BEFORE["rate"] * jnp.mean(x)


def later(x):
    return LATER["rate"] * jnp.mean(x)


def between(x):
    return BETWEEN["rate"] * jnp.mean(x)


def both(x):
    return before(x), later(x)


class Kept:
    def __init__(self, options):
        self.options = options

    def step(self, x):
        return self.options["rate"] * jnp.mean(x)


def make(given, settled):
    def made(x):
        return given["rate"] * jnp.mean(x)

    def apart(x):
        return settled["rate"] * jnp.mean(x)

    return made, apart


def main():
    BEFORE["rate"] = 0.2
    x = jnp.ones((24, 3))
    trainer = Trainer()
    for epoch in range(3):
        BETWEEN["rate"] /= 2
        trainer.step(x), trainer.other(x), both(x), between(x)
        trainer.options["rate"] /= 2
    LATER["rate"] = 0.2
    both(x)
    options, settled = {"rate": 0.1}, {"rate": 0.1}
    settled["rate"] = 0.3
    made, apart = make(options, settled)
    kept = Kept(options)
    for epoch in range(3):
        made(x), apart(x), kept.step(x)
        options["rate"] /= 2
    print((lambda: options)())


main()
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Trainer.step", 61),
        ("later", 62),
        ("between", 59),
        ("Kept.step", 70),
        ("make.made", 70),
        ("Trainer.other", 0),
        ("before", 0),
        ("make.apart", 0),
    ],
)
def test_what_a_program_changes_after_its_first_call_is_refused(
    shared: Project, name: str, line: int
) -> None:
    """What `main` sets up before is there at the first call; so is what the object of a method holds."""
    shared.write("program.py", PROGRAM)
    args = ("gen", f"program.py::{name}", "--run", "python program.py", "--in-place", "--diff")
    if line:
        shared.refused("JP062", *args, says=[f"anew, which line {line} changes"], exit_code=1)
    else:
        made = shared.run(*args)
        assert made.exit_code == 0, made.stderr


MAKERS = """
import dataclasses

import jax.numpy as jnp


@dataclasses.dataclass
class Kept:
    options: dict

    def step(self, x):
        return self.options["rate"] * jnp.mean(x)


def make(given, settled):
    def made(x):
        return given["rate"] * jnp.mean(x)

    def apart(x):
        return settled["rate"] * jnp.mean(x)

    return made, apart
"""
MAKES = """
import sys

import jax.numpy as jnp
import makers

SHARED, FIXED = {"rate": 0.1}, {"rate": 0.1}


def main():
    x = jnp.ones((24, 3))
    options, settled = {"rate": 0.1}, {"rate": 0.1}
    kind = sys.argv[1]
    if kind == "kept":
        step = makers.Kept(options).step
    elif kind == "local":
        step = makers.make(options, settled)[0]
    elif kind == "settled":
        step = makers.make(options, settled)[1]
    else:
        step = makers.make(SHARED, FIXED)[0]
    for epoch in range(3):
        step(x)
        options["rate"] /= 2
        SHARED["rate"] /= 2


main()
"""


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [
        ("kept", "Kept.step", "`self.options`"),
        ("local", "make.made", "`given`"),
        ("global", "make.made", "`given`"),
        ("settled", "make.apart", ""),
    ],
)
def test_what_is_handed_to_the_makers_of_another_file_is_followed(
    shared: Project, kind: str, name: str, what: str
) -> None:
    """To functions and dataclasses, under their names and those of globals."""
    shared.write("makers.py", MAKERS)
    shared.write("makes.py", MAKES)
    args = ("gen", f"makers.py::{name}", "--run", f"python makes.py {kind}", "--in-place", "--diff")
    if what:
        says = [f"reads {what} anew, which line"]
        shared.refused("JP062", *args, says=says, exit_code=1)
    else:
        made = shared.run(*args)
        assert made.exit_code == 0, made.stderr


MAKES_AND_SETS = """
import copy

import jax.numpy as jnp


def make(options):
    options["rate"] = options["rate"] / 2

    def step(x):
        return options["rate"] * jnp.mean(x)

    return step


def once(options):
    return make(options)


def sweep():
    options = copy.deepcopy({"rate": 0.1})
    for name in ("rate",):
        options[name] = 0.3
    others = dict(options)
    others["rate"] = 0.4
    make(others)


class hydra:
    main = staticmethod(lambda main: main)


@hydra.main
def main():
    options = {"rate": 0.2}
    step = once(options)
    AGAIN
    step(jnp.ones((24, 3)))


main()
"""


STATES = """
import jax.numpy as jnp


class Scaled:
    def apply(self, params, x, state=None):
        def inner(v):
            return jnp.tanh(v @ params) * (1.0 if state is None else state["scale"])

        return inner(x)


class Pair:
    def __init__(self):
        self.one, self.other = Scaled(), Scaled()

    def apply(self, params, x, state=None):
        if state is not None:
            state["scale"] = state.get("scale")

        def inner(v, own):
            return self.one.apply(params, v, state=own) + self.other.apply(params, v, state=own)

        return inner(x, state)


scaled = Scaled()


def step(params, x):
    return jnp.mean(scaled.apply(params, x) ** 2)


def inputs(seed=0):
    return jnp.ones((6, 3)), jnp.ones((24, 6)) * (seed + 1)
"""


def test_what_a_call_makes_a_function_of_is_no_other_calls(shared: Project) -> None:
    """A method of the same name changes what it is given by that name, and is not called."""
    shared.write("states.py", STATES)
    made = shared.run("gen", "states.py::step", "--inputs", "states.py::inputs")
    assert made.exit_code == 0, made.stderr


def test_what_the_maker_of_the_target_sets_ahead_of_it_is_taken(shared: Project) -> None:
    """And what others set of their own ahead of it, but not what it sets again, as it makes another one."""
    shared.write("sets.py", MAKES_AND_SETS.replace("AGAIN", "pass"))
    shared.write("sets_again.py", MAKES_AND_SETS.replace("AGAIN", "make(options)"))
    made = shared.run("gen", "sets.py::make.step", "--run", "python sets.py", "--in-place", "--diff")
    assert made.exit_code == 0, made.stderr
    args = ("gen", "sets_again.py::make.step", "--run", "python sets_again.py", "--in-place", "--diff")
    says = ["reads `options` anew, which line 36 changes"]
    shared.refused("JP062", *args, says=says, exit_code=1)


LEADS = """
import jax.numpy as jnp

CONFIG = {"rate": 0.1}


def step(x):
    return CONFIG["rate"] * jnp.mean(x)


class Model:
    def __call__(self, x):
        return CONFIG["rate"] * jnp.mean(x)

    def loss(self, x):
        return CONFIG["rate"] * jnp.mean(x)


def wrap(fn):
    return lambda x: fn(x)


train = wrap(step)
models = [Model()]
"""


def leading(call: str) -> str:
    """A program that sets what is read, calls the target, and sets it anew."""
    return f"""
import jax.numpy as jnp
import leads
from leads import step as go


def main():
    leads.CONFIG["rate"] = 0.3
    {call}(jnp.ones((24, 3)))
    leads.CONFIG["rate"] = 0.2


main()
"""


@pytest.mark.parametrize(
    ("name", "program", "call"),
    [
        ("step", "alias", "go"),
        ("step", "variable", "leads.train"),
        ("Model.loss", "element", "leads.models[0].loss"),
        ("Model.loss", "made", "leads.Model().loss"),
        ("Model.__call__", "called", "leads.models[0]"),
    ],
)
def test_a_program_calls_the_target_by_any_name(shared: Project, name: str, program: str, call: str) -> None:
    shared.write("leads.py", LEADS)
    shared.write(f"calls_{program}.py", leading(call))
    words = ("gen", f"leads.py::{name}", "--run", f"python calls_{program}.py", "--in-place", "--diff")
    says = ["`CONFIG` anew, which line 9 of calls_"]
    shared.refused("JP062", *words, "--no-run", says=says, exit_code=1)


#: A function on the lines on which, changed in place, the file has the helpers.
LONG = """\
import jax
import jax.numpy as jnp
import numpy as np


def step(w, batch):
    total = 0.0
{lines}
    loss, grads = jax.value_and_grad(lambda w: jnp.mean((batch["x"] @ w - batch["y"]) ** 2))(w)
    return w - 0.1 * grads, loss + total


def inputs():
    rng = np.random.default_rng(0)
    w, x = (rng.normal(size=size).astype(np.float32) for size in (3, (24, 3)))
    return w, {{"x": x, "y": x[:, 0]}}
"""


def test_lines_are_those_of_the_text_that_is_loaded(shared: Project) -> None:
    """`check` proves a function that was changed in place as it was before; the file has other lines."""
    lines = "\n".join(f"    total = total + {n}.0 * w[0]" for n in range(50))
    shared.write("long.py", LONG.format(lines=lines))
    made = shared.run("gen", "long.py::step", "--inputs", "long.py::inputs", "--in-place", "--no-run")
    assert made.exit_code == 0, made.stderr
    found = shared.run("check", "long.py")
    assert found.exit_code == 0, found.stdout


IN_EFFECT = """
import collections
import heapq

import jax.numpy as jnp
import numpy as np

ROTATED = collections.deque([0.1, 0.2])
SORTED = [0.2, 0.1]
SCALED = np.ones(3, np.float32)
ADDED = np.ones(3, np.float32)
HEAP = [0.1, 0.2]
GIVEN = {"rate": 0.1}
NAMED = {"rate": 0.1}
SHOWN = {"rate": 0.1}


def halve(options):
    options["rate"] *= 0.5


def decay(epoch, options):
    if epoch:
        halve(options)


def show(options, written=[]):
    written.append(options["rate"])
    print(sorted(options), options)


def train():
    ROTATED.rotate(1)
    SORTED.sort()
    np.multiply(SCALED, 0.5, out=SCALED)
    np.add.at(ADDED, 0, 1)
    heapq.heapify(HEAP)
    decay(1, GIVEN)
    decay(1, options=NAMED)
    show(SHOWN)


def rotated(x):
    return ROTATED[0] * jnp.mean(x)


def in_order(x):
    return SORTED[0] * jnp.mean(x)


def scaled(x):
    return jnp.mean(x * SCALED)


def added(x):
    return jnp.mean(x * ADDED)


def heaped(x):
    return HEAP[0] * jnp.mean(x)


def given(x):
    return GIVEN["rate"] * jnp.mean(x)


def named(x):
    return NAMED["rate"] * jnp.mean(x)


def shown(x):
    return SHOWN["rate"] * jnp.mean(x)
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("rotated", 32),
        ("in_order", 33),
        ("scaled", 34),
        ("added", 35),
        ("heaped", 36),
        ("given", 37),
        ("named", 38),
        ("shown", 0),
    ],
)
def test_what_is_called_for_what_it_does_changes_what_it_is_given(
    shared: Project, name: str, line: int
) -> None:
    """A method of a container whose result nobody takes, ``out=``, and functions that change a parameter."""
    shared.write("in_effect.py", IN_EFFECT)
    args = ("gen", f"in_effect.py::{name}", "--arg", "x=f32[24,3]", "--no-run")
    if line:
        shared.refused("JP062", *args, says=[f"anew, which line {line} changes"], exit_code=1)
    else:
        made = shared.run(*args)
        assert made.exit_code == 0, made.stderr


IN_HELPERS = """
import jax.numpy as jnp
import numpy as np

TAPS = jnp.array([1.0, 3.0, 1.0])


class Blur:
    gain = 2.0

    def __init__(self, taps, count):
        self.taps, self.count = taps, count

    def __call__(self, x):
        return self.gain * jnp.mean(x * normalized(self.taps)) + plus_one(self.count) + plus_one(self.gain)


def normalized(taps):
    taps /= sum(taps)
    return taps


def plus_one(n):
    n += 1
    return n


jax_array, numpy_array = Blur(TAPS, 1), Blur(np.array([1.0, 3.0, 1.0]), 1)


def of_jax(x):
    return jax_array(x) + jnp.sum(normalized(TAPS))


def of_numpy(x):
    return numpy_array(x)


def smooth(taps):
    taps = jnp.array(taps)
    taps /= taps.sum()
    return taps


class Smooth:
    def __init__(self, taps):
        self.taps = taps

    def __call__(self, x):
        return jnp.mean(x * smooth(self.taps))


tuple_ = Smooth((1.0, 3.0, 1.0))


def of_tuple(x):
    return tuple_(x)


def longer(taps):
    taps += [1.0]
    return jnp.array(taps)


class Longer:
    def __init__(self, taps):
        self.taps = taps

    def __call__(self, x):
        return jnp.sum(x) * longer(self.taps[1]).sum()


nested = Longer((1.0, [3.0]))


def of_list_in_tuple(x):
    return nested(x)
"""


@pytest.mark.parametrize(
    ("name", "refused"),
    [("of_jax", False), ("of_tuple", False), ("of_numpy", True), ("of_list_in_tuple", True)],
)
def test_arithmetic_in_place_on_what_cannot_change_changes_nothing(
    shared: Project, name: str, *, refused: bool
) -> None:
    """``taps /= total`` in a helper makes another number, tuple or jax array, and changes a NumPy array."""
    shared.write("in_helpers.py", IN_HELPERS)
    args = ("gen", f"in_helpers.py::{name}", "--arg", "x=f32[24,3]", "--no-run")
    if refused:
        shared.refused("JP062", *args, says=["reads `self.taps` anew"], exit_code=1)
    else:
        made = shared.run(*args)
        assert made.exit_code == 0, made.stderr


IN_MAIN = """
import jax.numpy as jnp


class Options:
    def __init__(self):
        self.rate, self.scale = 0.1, 1.0

    def decay(self):
        self.rate *= 0.5


def halve(options):
    options["rate"] *= 0.5


def main():
    scales, options, other, given = [1.0], Options(), {"rate": 0.1}, {"rate": 0.1}
    scales.append(2.0)
    options.scale = 2.0
    weights = [0.5]

    def appended(x):
        return scales[-1] * jnp.mean(x)

    def of_object(x):
        return options.rate * jnp.mean(x)

    def by_another_name(x):
        return other["rate"] * jnp.mean(x)

    def handed(x):
        return given["rate"] * jnp.mean(x)

    def settled(x):
        return options.scale * weights[0] * jnp.mean(x)

    weights.append(0.25)
    for epoch in range(3):
        x = jnp.ones((24, 3))
        appended(x), of_object(x), by_another_name(x), handed(x), settled(x)
        scales.append(scales[-1] / 2)
        options.decay()
        same = other
        same["rate"] /= 2
        halve(given)


main()
"""


@pytest.mark.parametrize(
    ("name", "line"),
    [("appended", 41), ("of_object", 9), ("by_another_name", 44), ("handed", 45), ("settled", 0)],
)
def test_what_main_changes_of_its_own_after_the_first_call_is_refused(
    shared: Project, name: str, line: int
) -> None:
    shared.write("in_main.py", IN_MAIN)
    args = ("gen", f"in_main.py::main.{name}", "--run", "python in_main.py", "--in-place", "--diff")
    if line:
        shared.refused("JP062", *args, says=[f"anew, which line {line} changes"], exit_code=1)
    else:
        made = shared.run(*args)
        assert made.exit_code == 0, made.stderr


#: An object deep in that of a method, and a program whose statements change both.
DEEP = """
import jax.numpy as jnp


class Schedule:
    def __init__(self):
        self.count = self.other = 0

    @property
    def rate(self):
        return 0.1 * 0.5**self.count

    def advance(self):
        self.count += 1


class Logger:
    def __init__(self):
        self.mean = self.shape = 0

    def log(self):
        self.mean += 1
        self.shape += 1


def rate_of(schedule):
    return 0.1 * 0.5**schedule.count


class Trainer:
    def __init__(self):
        self.schedules, self.logger, self.scale, self.start = [Schedule()], Logger(), 1.0, 1.0
        self.rate = 0.1
        self.schedule = self.schedules[0]

    def by_property(self, x):
        return self.schedule.rate * jnp.mean(x)

    def by_helper(self, x):
        return rate_of(self.schedule) * jnp.mean(x)

    def by_local(self, x):
        schedule = self.schedule
        return 0.5**schedule.count * jnp.mean(x)

    def by_callback(self, x):
        return self.rate * jnp.mean(x)

    def by_program(self, x):
        return self.scale * jnp.mean(x)

    def of_others(self, x):
        x = self.start * self.schedule.other + x - x.mean(0)
        return jnp.mean(x) / x.shape[0]


class Callback:
    def __init__(self, trainer):
        self.trainer = trainer

    def on_epoch_end(self):
        self.trainer.rate *= 0.5


def rescale(trainer, scale):
    setattr(trainer, "scale", scale)


trainer, x = Trainer(), jnp.ones((24, 3))
trainer.start, callback = 2.0, Callback(trainer)
for _ in range(2):
    trainer.by_property(x), trainer.by_helper(x), trainer.by_local(x), trainer.of_others(x)
    trainer.by_callback(x)
    callback.on_epoch_end()
    trainer.schedule.advance()
    trainer.logger.log()
trainer.by_program(x)
rescale(trainer, 0.5)
trainer.by_program(x)
"""


def deep(project: Project, name: str) -> tuple[str, ...]:
    project.write("deep.py", DEEP)
    return "gen", f"deep.py::Trainer.{name}", "--run", "python deep.py", "--in-place", "--diff", "--no-run"


@pytest.mark.parametrize(
    ("name", "what", "line"),
    [
        ("by_property", "self.count", 13),
        ("by_helper", "schedule.count", 13),
        ("by_local", "schedule.count", 13),
        ("by_callback", "self.rate", 61),
        ("by_program", "self.scale", 65),
    ],
)
def test_what_changes_deep_in_the_object_of_a_method_is_refused(
    shared: Project, name: str, what: str, line: int
) -> None:
    says = (f"`{what}` anew, which line {line} changes",)
    shared.refused("JP062", *deep(shared, name), says=says, exit_code=1)


def test_a_local_is_nothing_that_lacks_what_is_asked_of_it(shared: Project) -> None:
    """The mean of an array is not that of a logger, and what is set ahead of the first call is not later."""
    made = shared.run(*deep(shared, "of_others"))
    assert made.exit_code == 0, made.stderr


STRAIGHT = """
import jax.numpy as jnp

RATE = 0.1


def step(x):
    return RATE * jnp.mean(x)


x = jnp.ones((24, 3))
step(x)
RATE = 0.01
step(x)
"""


def test_what_a_program_assigns_behind_a_call_is_refused(shared: Project) -> None:
    shared.write("straight.py", STRAIGHT)
    words = ("gen", "straight.py::step", "--run", "python straight.py", "--in-place", "--diff", "--no-run")
    shared.refused("JP062", *words, says=("`RATE` anew, which line 12 changes",), exit_code=1)


NESTED = """
import jax.numpy as jnp


def main():
    options = {"scale": 1.0}

    def decay():
        options["scale"] *= 0.5

    class Trainer:
        def __init__(self):
            self.rate = 0.1

        def slower(self):
            self.rate *= 0.5

        def step(self, x):
            return self.rate * jnp.mean(x)

    def scaled(x):
        return options["scale"] * jnp.mean(x)

    trainer = Trainer()
    for _ in range(2):
        trainer.step(jnp.ones((24, 3)))
        trainer.slower()
        scaled(jnp.ones((24, 3)))
        decay()


main()
"""


@pytest.mark.parametrize(("name", "line"), [("Trainer.step", 15), ("scaled", 8)])
def test_what_a_nested_function_changes_may_be_called_later(shared: Project, name: str, line: int) -> None:
    """It stands ahead of the loop in which it is called."""
    shared.write("nested.py", NESTED)
    words = ("gen", f"nested.py::main.{name}", "--run", "python nested.py", "--in-place", "--no-run")
    shared.refused("JP062", *words, says=(f"anew, which line {line} changes",), exit_code=1)


REBINDS = """\
import jax.numpy as jnp


def main():
    rate, scale, shift = 0.1, 1.0, 0.0

    def step(x):
        hidden = x * scale

        def squared(row):
            return hidden * row

        hidden = hidden + 1
        return jnp.mean(squared(x))

    def scaled(x):
        return rate * jnp.mean(x)

    def shifted(x):
        return jnp.mean(x) + shift

    class Trainer:
        def step(self, x):
            return weight * jnp.mean(x)

    x = jnp.ones((24, 3))
    scale = weight = 2.0
    step(x)
    for rate in (0.1, 0.2):
        scaled(x)
        Trainer().step(x)
        x, weight = x + 1, weight + 1
    print([shift for shift in (1, 2)], shifted(x))
    shifted(x)
    step(x)


main()
"""


def test_a_variable_of_the_function_around_that_is_bound_again_after_a_call_is_refused(
    shared: Project,
) -> None:
    """By a loop as by a statement; a call's own variables, and what is bound ahead of it, are taken."""
    shared.write("binds.py", REBINDS)
    words = ("--run", "python binds.py", "--in-place", "--diff")
    for name, what, line in (("scaled", "rate", 29), ("Trainer.step", "weight", 32)):
        says = (f"reads `{what}` anew, which line {line} changes",)
        shared.refused("JP062", "gen", f"binds.py::main.{name}", *words, says=says, exit_code=1)
    for name in ("step", "shifted"):
        made = shared.run("gen", f"binds.py::main.{name}", *words)
        assert made.exit_code == 0, made.stderr
