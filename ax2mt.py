"""The command `ax2mt`, and `python -m ax2mt`.

A module of its own, with a name that nobody else has: `converter` may be a folder of the user's as well. This one loads
the `converter` that lies beside it, before anything on the import path can take its place. Until `converter.launch` has
put the import path in order, only modules that Python itself has loaded by then are used.
"""

import os
import sys


def main() -> None:
    """Runs the command line and exits with the documented code."""
    home = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, home)
    try:
        from converter.launch import main as start
    finally:
        sys.path.remove(home)
    start()


if __name__ == "__main__":
    main()
