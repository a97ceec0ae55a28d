"""`python -m converter` is `ax2mt`."""

from converter.cli import main

if __name__ == "__main__":
    main()
