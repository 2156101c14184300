"""First file of the worker process: `python boot.py READ_FD WRITE_FD PLACE_FD`.

Everything the process must have before jax is imported is settled here and in the
environment the generator starts it with. Any Python can read this file, also one that is far
too old, so that it can say so.
"""

import json
import os
import sys

PACKAGE = "_jax_pmap_worker"


def main():  # type: () -> None
    """Load this folder as a package of its own name, then serve requests until the pipe closes."""
    read_fd, write_fd, place_fd = (int(number) for number in sys.argv[1:4])
    # A blank before the first answer is no part of it, and says that this is a Python.
    os.write(write_fd, b" ")
    if sys.version_info < (3, 10):  # The rest of the worker does not compile there.
        message = "Python " + sys.version.split()[0] + " is older than 3.10"
        answer = json.dumps({"problem": {"kind": "interpreter", "message": message}}) + "\n"
        os.write(write_fd, answer.encode())
        return
    import importlib.util

    folder = os.path.dirname(os.path.abspath(__file__))
    # Python put this folder first on sys.path; our file names must not shadow the user's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    server = importlib.import_module(PACKAGE + ".server")
    server.serve(read_fd, write_fd, place_fd)


if __name__ == "__main__":
    main()
