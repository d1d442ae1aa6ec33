"""`python -m benchmarks.own_models`."""

from benchmarks.own_models.grid import main

if __name__ == "__main__":  # worker processes import this file too
    main()
