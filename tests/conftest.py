"""What every test may use. Tests that want several MPI ranks are marked `mpi`: see `tests/mpi_plugin.py`."""

pytest_plugins = ["pytester", "tests.mpi_plugin"]
