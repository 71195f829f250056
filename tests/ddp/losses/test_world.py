"""The world of an elastic job, with real processes."""

from pathlib import Path

import pytest

from tests.launch.jobs import this_mpi
from tests.mpi_job import run_ddprun

pytestmark = pytest.mark.full

# A communicator from before the job's cannot be duplicated, since a rank ends meanwhile.
UNMADE = """
import os, signal, sys, time
import ddp
from mpi4py import MPI
earlier = MPI.COMM_WORLD.Dup()
earlier.Set_errhandler(MPI.ERRORS_RETURN)
ddp.init_process_group()
from ddp.losses import world
earlier.Barrier()
if earlier.rank == 2:
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    earlier.Dup()
except MPI.Exception as error:
    assert error.Get_error_class() == MPI.ERR_PROC_FAILED, error
else:
    raise AssertionError("it was made")
world.untold(10.0)
lost, _ = world.shrink()
sys.stdout.write(f"without {[member.number for member in lost]}\\n")
sys.stdout.flush()
os._exit(0)
"""


def test_a_communicator_that_could_not_be_made_keeps_nobody(tmp_path: Path) -> None:
    """Open MPI 5.0 has others wait for it for ever that are made from later ones, also by MPI_Comm_shrink."""
    if not this_mpi().elastic:
        pytest.skip("this MPI ends the job when a rank is lost")
    done = run_ddprun(tmp_path, UNMADE, ["-n", "3", "--elastic", "1"], timeout=60)
    assert done.stdout.splitlines() == ["without [2]", "without [2]"], done.stderr
