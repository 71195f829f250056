"""How long a step of a training script would take on more nodes than there are here, and what would limit it.

    ddprun -n 2 -m ddp.forecast train.py --nodes 64 --link 25gbit,2us
    ddprun -n 2 -m ddp.forecast train.py --nodes 64 --link 25gbit,2us --plot efficiency.html   # needs plotly
    ddprun -n 2 -m ddp.forecast --json train.py --epochs 1      # what it does not know goes to the script

The script runs on the ranks of this host until `--measure` steps (50) were taken after the first 5. Of each step and
rank there is how long it worked (without waiting for others), and after how much of that each gradient was there. Then
sums over the ranks of this host, and sums by messages between two of them, are timed.

From these a step on N nodes is put together (`ddp.forecast.prediction`): the ranks' own work, the wait for the slowest
of so many ranks, and what of the sums backward does not hide. A sum takes its time within the node as measured, and
between nodes what the messages of the transport that N nodes would get (`ddp.forecast.network`) need on the link, in
the manner of LogGP: latency, bandwidth (of which Ethernet's headers take 6 %, and messages among more than two ranks
fill 92 % of what is left, as TCP's do), and the measured time of the software for a message and a byte. That time is a
rank's own: what backward hides of a sum makes backward longer by it. Messages are measured as this MPI sends them on
one host. Where the network will be TCP's, measure TCP's: under Open MPI by `OMPI_MCA_pml=ob1 OMPI_MCA_btl=tcp,self`
before the command. Buckets are those that would be chosen for the network, unless the script chooses.

Formulas are held to runs of the real Reducer and transport in virtual time (`run_in_virtual_time`, `rehearse`).

It is weak scaling: each rank keeps the batch of the script. Efficiency is the time that a rank works over that of the
step. Not in it: other traffic on the network, links that nodes share (a switch that does not carry all at once), and
noise that comes to many ranks at the same time; a rank's slowest step of so many ranks is never slower than the slowest
one seen.

Source: A. Alexandrov et al., LogGP: Incorporating Long Messages into the LogP Model, 1995.
"""

from ddp.forecast.command import main
from ddp.forecast.network import Link, Software, parse_link
from ddp.forecast.prediction import Prediction, Workload, predict
from ddp.forecast.rehearsal import Rehearsal, rehearse
from ddp.forecast.virtual_time import run_in_virtual_time

__all__ = [
    "Link",
    "Prediction",
    "Rehearsal",
    "Software",
    "Workload",
    "main",
    "parse_link",
    "predict",
    "rehearse",
    "run_in_virtual_time",
]
