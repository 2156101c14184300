"""``python -m jax_pmap``: the command line without its console script."""

from jax_pmap.cli import main

if __name__ == "__main__":
    main(prog_name="jax-pmap")
