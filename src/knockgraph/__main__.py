"""``python -m knockgraph``: the command line, also for launchers that want a module (``torchrun -m knockgraph``)."""

from knockgraph.cli import main

if __name__ == "__main__":
    main()
