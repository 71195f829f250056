"""Starts a training script on many ranks: `ddprun -n 4 train.py`, or `python -m launch -n 4 train.py`.

In the order a start goes through them: __main__.py (the command), options.py (what may be said), machine.py and
hosts.py (cores and hosts), sizes.py (how many ranks were asked for), plan.py (ranks, threads, binding), environment.py
(what other hosts get of the environment), find.py (which mpirun), argv.py (its command line), job.py (runs it to the
end), worker.py (what each rank runs), output.py (where it prints).
Nothing here imports the other packages: ranks learn what they need from environment variables.
"""


class LaunchError(Exception):
    """Nothing was started; the message says why and what to do."""
