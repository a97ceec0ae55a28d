"""`python -m converter`: the same as the console script `ax2mt`."""

from converter.cli import main

if __name__ == "__main__":
    main()
