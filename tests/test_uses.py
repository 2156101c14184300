"""What a function is made of, by digests: which edits count, which do not, and that all Pythons agree."""

from pathlib import Path

import pytest

from jax_pmap.emit.header import used, uses_line
from jax_pmap.locate import locate
from jax_pmap.syntax.parse import parse
from jax_pmap.syntax.uses import MadeOf, made_of

TRAIN = '''\
import jax
import jax.numpy as jnp
import optax

import pkg.losses as losses
from pkg import scale

jax.config.update("jax_enable_x64", True)
RATE, UNUSED = 0.1, 3
tx = optax.sgd(RATE)


def loss_fn(w, x):
    """Of a batch."""
    return losses.mse(x @ w) * scale.FACTOR


def unrelated(x):
    return x


@jax.jit
def step(w, x):
    grads = jax.grad(loss_fn)(w, x)  # of the mean
    return optax.apply_updates(w, tx.update(grads, tx.init(w))[0])


class Model:
    rate = 0.5

    def forward(self, w, x):
        return self.half(x) @ w

    def half(self, x):
        return x / 2


def make_step(power=2):
    exponent = power + 1

    def inner(w, x):
        return jnp.mean((x @ w) ** exponent)

    print("made")
    return inner
'''
LOSSES = """\
import jax.numpy as jnp


def mse(x):
    return jnp.mean(power(x))


def power(x):
    return x**2
"""
#: name of the target, (file, old, new), what is named: None for nothing, "" for the target itself
EDITS = {
    "a comment": ("step", ("train.py", "# of the mean", "# of it all"), None),
    "a docstring": ("step", ("train.py", "Of a batch.", "Another."), None),
    "layout": ("step", ("train.py", "(w, x)  # of", "(\n        w, x\n    )  # of"), None),
    "a name of an import": (
        "step",
        ("train.py", "import pkg.losses as losses", "from pkg import losses"),
        None,
    ),
    "what it does not call": ("step", ("train.py", "return x\n", "return -x\n"), None),
    "itself": ("step", ("train.py", "tx.init(w))[0]", "tx.init(w))[-2]"), ""),
    "its decorator": ("step", ("train.py", "@jax.jit", "@jax.checkpoint"), ""),
    "a helper": ("step", ("train.py", "* scale.FACTOR", "- scale.FACTOR"), "loss_fn"),
    "a constant": ("step", ("train.py", "0.1, 3", "0.2, 3"), "RATE, UNUSED"),
    "a setting": ("step", ("train.py", 'x64", True', 'x64", 0'), "jax.config.update('jax_enable_x64', 0)"),
    "what an import brings": ("step", ("train.py", "import optax", "import other as optax"), "tx"),
    "a helper of a helper": ("step", ("pkg/losses.py", "x**2", "x**4"), "power"),
    "a constant of another file": ("step", ("pkg/scale.py", "3", "4"), "FACTOR"),
    "a method": ("Model.forward", ("train.py", "x / 2", "x / 3"), "Model"),
    "the target, a method": ("Model.forward", ("train.py", "(x) @ w", "(x) @ -w"), ""),
    "what stands around it": ("make_step.inner", ("train.py", "power + 1", "power + 2"), "exponent"),
    "a default around it": ("make_step.inner", ("train.py", "power=2", "power=3"), "make_step"),
    "work around it": ("make_step.inner", ("train.py", '"made"', '"done"'), None),
}


def write(folder: Path) -> None:
    for name, text in {
        "pyproject.toml": "",
        "train.py": TRAIN,
        "pkg/__init__.py": "",
        "pkg/losses.py": LOSSES,
        "pkg/scale.py": "FACTOR = 3\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def made(folder: Path, name: str) -> MadeOf:
    return made_of(parse(locate(f"train.py::{name}", folder)))


@pytest.mark.parametrize("case", EDITS)
def test_what_counts_as_a_change(tmp_path: Path, case: str) -> None:
    name, (file, old, new), named = EDITS[case]
    write(tmp_path)
    before = made(tmp_path, name)
    path = tmp_path / file
    path.write_text(path.read_text().replace(old, new))
    assert path.read_text().count(new) == 1
    after = made(tmp_path, name)
    changed = {each.name for each in after.uses} - {
        each.name for each in after.uses if (each.file, each.digest) in used(uses_line(before.uses))
    }
    assert (before.digest != after.digest) == (named in ("", "tx"))
    assert changed == ({named} if named else set())
