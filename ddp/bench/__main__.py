"""The command `python -m ddp.bench`."""

from ddp.bench import main

if __name__ == "__main__":
    main()
