"""python -m qdfm."""

import sys

from qdfm.cli import main

if __name__ == "__main__":
    sys.exit(main())
