"""``python -m anyxpu`` is the command ``anyxpu``."""

from anyxpu.cli import main

if __name__ == "__main__":
    main()
