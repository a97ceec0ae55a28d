"""`python -m converter` is `ax2mt`."""

from converter.launch import main

if __name__ == "__main__":
    main()
