"""The command line, as the console script and ``python -m jax_pmap`` start it.

Importing what it is made of takes most of the first third of a second: Ctrl-C works there too.
"""

import os
import sys


def main() -> None:
    """Run the command line, and end with its exit code."""
    try:
        try:
            from jax_pmap.cli import main as command
        except ImportError as error:
            sys.stderr.write(
                f"jax-pmap is not installed as it should be: {error}.\n"
                f"Install it again into the environment of {sys.executable}, for instance with pipx.\n"
            )
            sys.exit(2)
        command(prog_name="jax-pmap")
    except KeyboardInterrupt:
        # Before the command line could take it. Nothing was begun, and the interpreter's own end may be
        # interrupted as well.
        sys.stderr.write("jax-pmap: interrupted\n")
        sys.stderr.flush()
        os._exit(130)


if __name__ == "__main__":
    main()
