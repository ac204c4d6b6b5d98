"""``python -m meshcost``: the command line."""

from meshcost.cli import main

if __name__ == "__main__":
    main()
