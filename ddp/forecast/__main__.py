"""The command `python -m ddp.forecast`."""

from ddp.forecast import main

if __name__ == "__main__":
    main()
