"""`python -m bench` is the `minblas` command without an install."""

from bench.cli import main

if __name__ == "__main__":  # compile workers import this module too
    main()
