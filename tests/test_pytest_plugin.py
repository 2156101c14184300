"""The pytest plugin in a project of its own: fresh processes, simulated devices, the proof as assertion."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

from project import simulated

REPOSITORY = Path(__file__).resolve().parents[1]

SOURCE = """\
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P


def rms(x):
    return jnp.sqrt(jnp.mean(x**2))


def mapped(body):
    def parallel(x):
        n = jax.local_device_count()
        split = x.reshape(n, -1, *x.shape[1:])
        return jax.pmap(body, axis_name="i", out_axes=None)(split)

    return parallel


right = mapped(lambda x: jnp.sqrt(jax.lax.pmean(jnp.mean(x**2), "i")))
root_first = mapped(lambda x: jax.lax.pmean(jnp.sqrt(jnp.mean(x**2)), "i"))
summed = mapped(lambda x: jax.lax.psum(x.sum() * 0 + 1, "i"))
not_synced = mapped(lambda x: jnp.sqrt(jnp.mean(x**2)))
narrow = lambda x: right(x).astype("float16")


def not_on_three(x):
    if jax.device_count() == 3:
        raise ValueError("three")
    return right(x)


def above(x):
    return jnp.mean(x > 0)


def single(x, mean=lambda value: value):
    total = mean(jnp.mean(x**2))
    return jax.lax.cond(total > 0, lambda: jnp.sqrt(total), lambda: jnp.float32(0))


share_above = mapped(lambda x: jax.lax.pmean(jnp.mean(x > 0), "i"))
p_single = mapped(lambda x: single(x, lambda value: jax.lax.pmean(value, "i")))
p_single_apart = mapped(lambda x: jax.lax.pmean(single(x), "i"))


def tally(seen, x):
    seen["sum"] = seen["sum"] + jnp.sum(x)


def tally_by(total):
    def parallel(seen, x):
        seen["sum"] = seen["sum"] + mapped(lambda part: total(jnp.sum(part), "i"))(x)

    return parallel


def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()), ("i",))


def half_the_total(x, mesh):
    # The mean of squares, on two devices.
    body = lambda part: jax.lax.psum(jnp.mean(part**2), "i") / 2
    return jax.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P())(x)


kept_mesh = functools.cache(mesh)
mesh_of_import = mesh()
rms_at_import = jax.jit(
    jax.shard_map(
        lambda part: jnp.sqrt(jax.lax.pmean(jnp.mean(part**2), "i")),
        mesh=mesh_of_import,
        in_specs=P("i"),
        out_specs=P(),
    )
)
half_on_kept = lambda x: half_the_total(x, kept_mesh())
half_compiled = jax.jit(lambda x: half_the_total(x, mesh()))


def noisy(key, x):
    return jnp.mean(jnp.tanh(x + jax.random.normal(key, x.shape)))


def noisy_by(own):
    body = lambda key: lambda part: jax.lax.pmean(noisy(own(key), part), "i")
    return lambda key, x: mapped(body(key))(x)


def noisy_pairs(key, x):
    both = jnp.concatenate([x, 1 - x])
    one, other = jnp.split(jnp.tanh(both + jax.random.normal(key, both.shape)), 2)
    return jnp.mean(one * other)


def pairs_by(own):
    body = lambda key: lambda part: jax.lax.pmean(noisy_pairs(own(key), part), "i")
    return lambda key, x: mapped(body(key))(x)


own_pairs = pairs_by(lambda key: jax.random.fold_in(key, jax.lax.axis_index("i")))
one_for_pairs = pairs_by(lambda key: key)
own_noise = noisy_by(lambda key: jax.random.fold_in(key, jax.lax.axis_index("i")))
one_noise = noisy_by(lambda key: key)
summed_tally, averaged_tally = tally_by(jax.lax.psum), tally_by(jax.lax.pmean)
"""
TESTS = """\
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import source
from jax_pmap.testing import assert_parallel_equal

x = np.random.default_rng(0).normal(size=(24, 2)).astype(np.float32)


def test_here():
    assert "JAX_PMAP_PYTEST_REPORTS" not in os.environ


@pytest.mark.devices(8)
def test_the_proof():
    assert jax.local_device_count() == 8
    assert_parallel_equal(source.right, source.rms, x)
    assert_parallel_equal(source.right, source.rms, x, counts=[8])
    for wrong, message in [
        (source.root_first, "differs on 2 devices"),
        (source.not_synced, "the output"),
        (source.narrow, "has another dtype"),
        (lambda x: (source.right(x),), "has another structure"),
    ]:
        with pytest.raises(AssertionError, match=message):
            assert_parallel_equal(wrong, source.rms, x)
    with pytest.raises(AssertionError, match="2 × the reference, summed where a mean is needed"):
        assert_parallel_equal(source.summed, lambda x: x.sum() * 0 + 1, x)
    # A mean of comparisons is float32 in 64-bit mode too, and is held to no more: in float32 the means of
    # shares differ from the whole one on all counts with the seed 5, and on 2 and 8 devices with 1.
    for seed in (1, 5):
        some = np.random.default_rng(seed).normal(size=(48, 3)).astype(np.float32)
        assert_parallel_equal(source.share_above, source.above, some)
    # 3 divides the features, and not the batch.
    wide = np.random.default_rng(1).normal(size=(64, 12)).astype(np.float32)
    assert_parallel_equal(source.right, source.rms, wide)
    with pytest.raises((TypeError, ValueError)):
        assert_parallel_equal(source.right, source.rms, wide, counts=[3])
    # It divides the batch, and one axis of the parameters not.
    params = {"w": np.ones((2, 64), np.float32), "b": np.ones(64, np.float32)}
    many = np.random.default_rng(2).normal(size=(24, 64)).astype(np.float32)
    with pytest.raises((TypeError, ValueError), match="three") as raised:
        assert_parallel_equal(
            lambda params, x: source.not_on_three(x), lambda params, x: source.rms(x), params, many
        )
    assert "It was called on 3 devices" in raised.value.__notes__[0]
    with pytest.raises(AssertionError, match="differs on 2 devices"):
        assert_parallel_equal(source.root_first, source.rms, wide)
    # What does not run in float64 is compared as it is.
    assert_parallel_equal(source.p_single, source.single, x)
    with pytest.raises(AssertionError, match="differs on 2 devices"):
        assert_parallel_equal(source.p_single_apart, source.single, x)
    # What the reference changes in place is compared, and the caller's stays as it is.
    seen = {"sum": np.float32(0)}
    assert_parallel_equal(source.summed_tally, source.tally, seen, x=x)
    for wrong in (source.averaged_tally, lambda seen, x: None):
        with pytest.raises(AssertionError, match="argument `seen.*sum.*`, which .* on 2 devices"):
            assert_parallel_equal(wrong, source.tally, seen, x)
    assert seen == {"sum": 0}
    # A mesh that is kept when it was made once, by the module or in a trace, is made anew for each count.
    for half in (source.half_on_kept, source.half_compiled):
        with pytest.raises(AssertionError, match="differs on 3 devices"):
            assert_parallel_equal(half, lambda x: (x**2).mean(), x)
    # Numbers drawn for examples are those of no single device.
    key = jax.random.key(0)
    assert_parallel_equal(source.own_noise, source.noisy, key, x, counts=[4])
    with pytest.raises(AssertionError, match="every device draws the same numbers for other examples"):
        assert_parallel_equal(source.one_noise, source.noisy, key, x, counts=[4])
    assert_parallel_equal(source.own_pairs, source.noisy_pairs, key, x, counts=[2])
    with pytest.raises(AssertionError, match="every device draws the same numbers for other examples"):
        assert_parallel_equal(source.one_for_pairs, source.noisy_pairs, key, x, counts=[2])
    with pytest.raises(AssertionError, match="differs on 4 devices: .* Both drew equal random numbers"):
        double = lambda key, x: source.own_noise(key, x) * 2
        assert_parallel_equal(double, source.noisy, key, x, counts=[4])
    with pytest.raises(ValueError, match="the same data"):
        assert_parallel_equal(source.right, source.rms, np.ones((24, 2), np.float32))
    with pytest.raises(ValueError, match="shapes alone"):
        assert_parallel_equal(source.right, source.rms, jax.ShapeDtypeStruct((24, 2), "float32"))
    # Nothing is compared, or on other devices than asked.
    for nothing, message in [
        (lambda x: None, "gives no arrays"),
        (lambda x: {}, "gives no arrays"),
        (lambda x: jnp.log(-(x**2)).mean(), "NaN or infinite"),
        (lambda x: (x / 0, jnp.log(-(x**2)).mean(), len(x)), "NaN or infinite"),
    ]:
        with pytest.raises(ValueError, match="nothing was compared: .*" + message):
            assert_parallel_equal(nothing, nothing, x)
    assert_parallel_equal(source.rms_at_import, source.rms, x, counts=[8])
    with pytest.raises(ValueError, match="asks for 2 devices, and the result lies on 8: .* .counts=.8.."):
        assert_parallel_equal(source.rms_at_import, source.rms, x, counts=[2])
    with pytest.raises(ValueError, match="no argument divides"):
        assert_parallel_equal(source.right, source.rms, x[:7, :1])


@pytest.mark.devices(2)
@pytest.mark.parametrize("value", ["a b", "c::d"])
def test_outcomes(value, tmp_path):
    assert jax.device_count() == 2
    if value == "a b":
        pytest.skip("said why")
    print("printed in the other process")
    assert value == "nothing"


@pytest.mark.devices(2)
def test_crash():
    os._exit(3)

"""


def run(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    installed = any(
        point.value == "jax_pmap.pytest_plugin" for point in importlib.metadata.entry_points(group="pytest11")
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment = {**kept, "PYTHONPATH": str(REPOSITORY / "generator")}
    if not installed:
        environment["PYTEST_PLUGINS"] = "jax_pmap.pytest_plugin"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_marked_tests_run_on_simulated_devices(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--strict-markers'\n")
    (tmp_path / "source.py").write_text(SOURCE)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run(tmp_path, "-rA", "test_it.py")
    assert done.returncode == 1, done.stdout
    assert "2 failed, 2 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_it.py::test_the_proof" in done.stdout
    assert "said why" in done.stdout
    assert "FAILED test_it.py::test_outcomes[c::d]" in done.stdout
    assert "printed in the other process" in done.stdout
    assert "assert 'c::d' == 'nothing'" in done.stdout
    assert "the process with the simulated devices exited with code 3" in done.stdout


WRONG_MARKERS = """\
import pytest


@pytest.mark.devices
def test_none():
    pass


@pytest.mark.devices(0)
def test_zero():
    pass


@pytest.mark.devices("8")
def test_text():
    pass


@pytest.mark.devices(2, 3)
def test_two():
    pass


@pytest.mark.devices(True)
def test_truth():
    pass


def test_unmarked():
    pass
"""


def test_a_marker_that_names_no_number_fails_its_own_test_alone(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--strict-markers'\n")
    (tmp_path / "test_it.py").write_text(WRONG_MARKERS)
    done = run(tmp_path, "-rA", "test_it.py")
    assert done.returncode == 1, done.stdout
    assert "5 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "takes one positive number, such as devices(8); here it is devices('8')" in done.stdout
    assert "here it is devices(2, 3)" in done.stdout


def test_one_device_shows_nothing() -> None:
    code = "from jax_pmap.testing import assert_parallel_equal; assert_parallel_equal(abs, abs, 1.0)"
    words = (sys.executable, "-c", code)
    done = subprocess.run(words, env=simulated(1), capture_output=True, text=True, check=False)
    assert done.returncode
    assert "ValueError" in done.stderr
    assert "one device only" in done.stderr
