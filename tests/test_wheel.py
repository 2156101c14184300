"""The wheel, built and used in a clean environment as a user's installation would."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

SCRIPT = '''\
import jax.numpy as jnp


def total_energy(weights, x):
    """Sum of squared projections."""
    return jnp.sum((x @ weights) ** 2)
'''

DRIVER = """\
import jax
import numpy as np
from energy import total_energy
from energy_pmap import total_energy as parallel

assert jax.device_count() == 4
x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
w = np.arange(6, dtype="float32").reshape(3, 2)
np.testing.assert_allclose(parallel(w, x), total_energy(w, x), rtol=1e-5)
print("same")
"""


def run(*command: str | Path, cwd: Path, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run to a zero exit, with nothing of this environment but what a shell would have."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**clean_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def clean_environment() -> dict[str, str]:
    """This process's environment without what would let the checkout leak in."""
    leaks = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    return {name: value for name, value in os.environ.items() if name not in leaks}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    # Hatchling is among the test requirements: no isolated environment, no download.
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, repository),
        cwd=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_holds_what_it_should_and_nothing_else(wheel: Path, repository: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    templates = [path for path in (repository / "templates").rglob("*") if path.is_file()]
    assert len(templates) >= 3, "one template per backend"
    for path in templates:
        assert f"jax_pmap/templates/{path.relative_to(repository / 'templates').as_posix()}" in names
    for path in (repository / "generator" / "jax_pmap").rglob("*.py"):
        assert path.relative_to(repository / "generator").as_posix() in names
    assert "jax_pmap/py.typed" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"jax_pmap"}


def test_generates_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "clean", with_pip=False)
    binaries = tmp_path / "clean" / ("Scripts" if sys.platform == "win32" else "bin")
    install = (sys.executable, "-m", "pip", "--python", binaries / "python", "install", "--quiet")
    run(*install, "--disable-pip-version-check", wheel, cwd=tmp_path)
    absent = "import importlib.util as u; print(u.find_spec('jax'))"
    assert run(binaries / "python", "-c", absent, cwd=tmp_path).stdout.strip() == "None"

    project = tmp_path / "project"
    project.mkdir()
    (project / "energy.py").write_text(SCRIPT)
    (project / "driver.py").write_text(DRIVER)
    run(
        *(binaries / "jax-pmap", "gen", "energy.py::total_energy", "--python", sys.executable),
        *("--arg", "weights=f32[3,2]", "--arg", "x=f32[8,3]", "-o", "energy_pmap.py"),
        cwd=project,
    )
    emitted = (project / "energy_pmap.py").read_text()
    assert "psum" in emitted
    assert "jax_pmap" not in emitted
    done = run(
        *(sys.executable, "driver.py"),
        cwd=project,
        JAX_PLATFORMS="cpu",
        XLA_FLAGS="--xla_force_host_platform_device_count=4",
    )
    assert done.stdout == "same\n"
