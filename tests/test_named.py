"""Collectives inside long statements get names; nothing else is touched."""

from __future__ import annotations

import textwrap

import pytest

from jax_pmap.emit.named import with_names

MEAN = "jax.lax.pmean(jnp.mean(x * scale + offset, axis=0), axis_name=AXIS)"


def named(code: str, width: int = 60) -> str:
    return with_names(textwrap.dedent(code), "AXIS", "gather_joined", {"taken"}, width)


@pytest.mark.parametrize(
    "code",
    [
        "mean = jax.lax.pmean(x, axis_name=AXIS)\n",
        "a_long_name = another_name + still_another_name * one_more_of_these_names\n",
        # What is evaluated later, several times or not at all.
        f"f = lambda x: 1.0 + x * {MEAN}\n",
        f"parts = [1.0 + x * {MEAN} for x in several_of_them]\n",
        f"y = {MEAN} if flag else 1.0 + another_one_of_these_names\n",
        f"while 1.0 - x * {MEAN} > 0:\n    x = x / 2\n",
        # Layers that are made where they are called have their names from the order of the calls.
        f"y = nn.Dense(3)(x) - nn.Dense(3)({MEAN}) + 1.0\n",
        f"y = jax.random.normal(rng, x.shape) + x * {MEAN} + 1.0\n",
        f"y = (x  # the rows\n    - {MEAN})\n",
        f"y = x - {MEAN.replace('AXIS', 'OTHER')} + 1.0 + another_name\n",
    ],
)
def test_stays(code: str) -> None:
    assert named(code) == code


def test_parts_come_before_what_they_are_in() -> None:
    made = named(
        """
        # The rows, standardised.
        y = (x - jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)) / jnp.sqrt(jax.lax.pmean(jnp.mean((x - jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)) ** 2, axis=0), axis_name=AXIS) + 1e-5)
        """  # noqa: E501
    )
    assert made == textwrap.dedent(
        """
        # The rows, standardised.
        mean = jax.lax.pmean(x.mean(axis=0), axis_name=AXIS)
        mean_square = jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), axis_name=AXIS)
        y = (x - mean) / jnp.sqrt(mean_square + 1e-5)
        """
    )


def test_what_stands_behind_a_colon_has_lines_of_its_own() -> None:
    made = named(
        f"""
        if flag: return (x - {MEAN}) / scale  # whole
        if other: x = 1
        """
    )
    assert made == textwrap.dedent(
        f"""
        if flag:
            mean = {MEAN}
            return (x - mean) / scale  # whole
        if other: x = 1
        """
    )


def test_what_is_gathered_of_a_batch_has_its_key_for_a_name() -> None:
    code = 'y = batch["images"] - jax.lax.all_gather(batch["images"], axis_name=AXIS, tiled=True)[some]\n'
    assert named(code).startswith("all_images = ")
    assert named(code).endswith('\ny = batch["images"] - all_images[some]\n')


def test_lambdas_that_are_called_at_once_become_assignments() -> None:
    made = named(
        """
        values = 1
        y = (lambda values, taken: values / jax.lax.psum(jnp.sum(values), axis_name=AXIS) * taken)(x @ w, b)
        """
    )
    assert made == textwrap.dedent(
        """
        values = 1
        values_2 = x @ w
        total_values_2 = jax.lax.psum(jnp.sum(values_2), axis_name=AXIS)
        y = values_2 / total_values_2 * b
        """
    )


def test_results_are_laid_out_one_by_one() -> None:
    made = named(
        f"""
        def f(x):
            return jax.lax.psum(x, axis_name=AXIS), 2.0 * {MEAN}
        """
    )
    assert "return jax.lax.psum(x, axis_name=AXIS), 2.0 * mean\n" in made
    assert f"    mean = {MEAN}\n" in made


@pytest.mark.parametrize(
    ("synced", "later", "word"),
    [
        ("loss", "return w - grads, loss", "The gradient is whole"),
        ("grads", "return w - grads, loss", "The loss is whole"),
        ("grads", "return w - grads", ""),
        ("loss, grads", "return w - grads, loss", ""),
        ("loss", "return w - jax.lax.pmean(grads, axis_name=AXIS), loss", ""),
    ],
)
def test_what_is_synchronised_alone_is_explained(synced: str, later: str, word: str) -> None:
    made = named(
        f"""
        loss, grads = jax.value_and_grad(f)(w)
        {synced} = jax.lax.pmean(({synced}), axis_name=AXIS)
        {later}
        """
    )
    assert ("#" in made) is bool(word)
    assert word in made


@pytest.mark.parametrize(
    ("later", "says"), [("loss", True), ("logits", False), ("jax.lax.psum(loss, axis_name=AXIS)", False)]
)
def test_what_else_comes_of_a_loss_is_no_loss(later: str, says: bool) -> None:
    made = named(
        f"""
        (loss, logits), grads = jax.value_and_grad(f, has_aux=True)(w)
        grads = jax.lax.pmean(grads, axis_name=AXIS)
        for each in range(2):
            w = w - grads
        return w, {later}, jax.lax.pmax(logits, axis_name=AXIS)
        """
    )
    assert ("The loss is whole" in made) is says


def test_one_collective_takes_what_does_not_need_the_other() -> None:
    made = named(
        """
        loss = jax.lax.psum(jnp.sum(losses * mask), axis_name=AXIS) / jax.lax.psum(jnp.sum(b["mask"]), axis_name=AXIS)
        """  # noqa: E501
    )
    assert made == textwrap.dedent(
        """
        total, total_mask = jax.lax.psum((jnp.sum(losses * mask), jnp.sum(b["mask"])), axis_name=AXIS)
        loss = total / total_mask
        """
    )
    # A size is a number of Python's, and what needs the first comes behind it.
    needs = "jnp.sum((x - jax.lax.psum(jnp.sum(x * y), axis_name=AXIS)) * one_name * another_one)"
    for second in (needs, "x.shape[0]"):
        both = f"y = jax.lax.psum(jnp.sum(x * y), axis_name=AXIS) / jax.lax.psum({second}, axis_name=AXIS)\n"
        assert named(both).count("= jax.lax.psum(") == 2


def test_the_number_of_devices_has_one_name_in_a_block():
    line = "z = jnp.tanh(x).reshape(ROWS // jax.lax.psum(1, axis_name=AXIS), 2)\n"
    made = with_names(line + line.replace("z =", "y ="), "AXIS", "gather", (), 60)
    assert made.count("psum") == 1
    assert made.startswith("devices = jax.lax.psum(1, axis_name=AXIS)\n")
    long = line.replace("psum(1,", "psum(z,")
    assert with_names(long + long, "AXIS", "gather", (), 60).count("psum") == 2


def test_what_has_a_name_is_written_once():
    total = "jax.lax.psum(n, axis_name=AXIS)"
    made = named(
        f"rows = jnp.concatenate([jnp.arange({total}) * scale + {total}, jnp.arange({total})])\n"
        f"both = [lambda x: x / {total}, jnp.tanh(x * {total}) + x * offset]\n"
    )
    total_n, rows, both, _ = made.split("\n")
    assert total_n == f"total_n = {total}"
    assert rows == "rows = jnp.concatenate([jnp.arange(total_n) * scale + total_n, jnp.arange(total_n)])"
    # What is evaluated later may find another `n`.
    assert both == f"both = [lambda x: x / {total}, jnp.tanh(x * total_n) + x * offset]"


SPREAD = (
    "y = jnp.sqrt(jax.lax.pmean(jnp.mean((x - jax.lax.pmean(jnp.mean(x, axis=0), axis_name=AXIS)) ** 2, "
    "axis=0), axis_name=AXIS))\n"
)


@pytest.mark.parametrize(
    "before",
    [
        "mean = jax.lax.pmean(x.mean(0), axis_name=AXIS)\n",
        "mean = x.mean(axis=0)\nmean = jax.lax.pmean(mean, axis_name=AXIS)\n",
        "mean = jax.lax.pmean(jnp.mean(x, axis=0), axis_name=AXIS)\nz = x * 2\n",
    ],
)
def test_a_mean_that_has_a_name_is_not_taken_again(before: str) -> None:
    made = named(before + SPREAD)
    assert made == (
        before + "y = jnp.sqrt(jax.lax.pmean(jnp.mean((x - mean) ** 2, axis=0), axis_name=AXIS))\n"
    )


@pytest.mark.parametrize(
    "between", ["x = x * 2\n", "x[0] = 1\n", "mean = 0\n", "if w:\n    x = 1\n", "x, y = y, x\n", "del x\n"]
)
def test_a_mean_of_what_has_changed_since_is_taken_again(between: str) -> None:
    made = named("mean = jax.lax.pmean(x.mean(0), axis_name=AXIS)\n" + between + SPREAD)
    assert "mean_2 = jax.lax.pmean(jnp.mean(x, axis=0), axis_name=AXIS)\n" in made
    assert "(x - mean_2) ** 2" in made
