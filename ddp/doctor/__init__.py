"""`python -m ddp.doctor`: is this machine, as it is set up now, one to train on?

    ddprun -n 4 -m ddp.doctor         # before a job, with the ranks, hosts and settings that it will have
    mpirun -n 4 python -m ddp.doctor  # the same under another launcher
    python -m ddp.doctor              # one rank

A line for each fact: `ok`, `warn` or `FAIL`, what was found, and below a warning or failure what to do. The exit code
is 1 where anything failed. It takes some seconds, and ends by itself where MPI hangs.

Read in this order: `findings` (what is reported), `facts` (what each rank knows of itself, read by `machine`),
`judgements` (pure functions of all ranks' facts), `trials` (what has to be tried by all ranks together). A new check is
a function in one of the last two and its row in `JUDGEMENTS` or `TRIALS`.
"""
