"""The options of ddprun, and an answer to each of torchrun's and mpirun's that it has not."""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from launch.restart import COUNT


def build_parser() -> argparse.ArgumentParser:
    """The options; a test holds their number, settings of a training run belong to its script."""
    parser = argparse.ArgumentParser(
        prog="ddprun",
        usage="ddprun [OPTION ...] SCRIPT [ARGUMENT ...]\n"
        "       ddprun [OPTION ...] -m MODULE [ARGUMENT ...]\n"
        "       ddprun --warm-cache",
        allow_abbrev=False,
        description="Starts a Python training script on N ranks under mpirun; what follows SCRIPT is passed on to it. "
        "Options of torchrun and mpirun that are not here are answered by name.",
        epilog="The exit code is 0 if every rank was seen to finish, else that of the first rank to fail, 2 if nothing "
        "was started, 128 + N after signal N (mpirun's own number for a rank that ends so: MPICH's is N, Intel MPI's "
        "255). SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 reach the handlers of the ranks.",
    )
    parser.add_argument(
        "-n",
        "-np",
        "--nproc",
        "--np",
        type=_positive,
        metavar="N",
        help="number of ranks in all (default: one a GPU, or one a core where there is none; or as many as the hosts "
        "have room for)",
    )
    parser.add_argument(
        "--nproc-per-node",
        "--nproc_per_node",
        type=_per_node,
        metavar="N",
        help="number of ranks on each host; 'auto', 'gpu' and 'cpu' are one a GPU or a core",
    )
    parser.add_argument(
        "--nnodes", type=_nodes, metavar="N", help="checked: the hosts are those of --hostfile, --host or the job"
    )
    parser.add_argument("--standalone", action="store_true", help="taken for torchrun's sake; it is always so")
    parser.add_argument("--hostfile", type=Path, metavar="FILE", help="hosts to use, a line each: 'name slots=N'")
    parser.add_argument(
        "-H",
        "--host",
        metavar="NAME[:N],...",
        help="the same in a word; default: the hosts of the job of Slurm, PBS, Torque, LSF or Grid Engine",
    )
    parser.add_argument(
        "-x",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="an environment variable that every rank gets, on other hosts too",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        default=30.0,
        help="time that ranks with a handler for SIGTERM, SIGINT or SIGHUP have to end by themselves, to write a "
        "checkpoint for example (default: 30); a second signal ends the job at once",
    )
    parser.add_argument(
        "--max-restarts",
        "--max_restarts",
        type=_count,
        metavar="N",
        default=0,
        help="start the job again, so often at most, when it has lost ranks or hosts, with the hosts that are left; "
        f"its script goes on from its newest checkpoint ({COUNT} tells how often that was)",
    )
    parser.add_argument(
        "--elastic",
        type=_elastic,
        metavar="MIN[:N]",
        help="go on without ranks that are lost, as long as at least MIN are left: a step that was not complete is run "
        "again by the others, with the same result; for scripts with a ddp.Job, with Open MPI 5. With :N, the "
        "number of ranks, those that are lost are replaced, on one host",
    )
    parser.add_argument(
        "--max-failures",
        type=_failures,
        metavar="N[/SECONDS]",
        help="with --elastic: end the job, with a checkpoint, when more than N ranks were lost, or more than N in so "
        "many seconds (default: however many)",
    )
    parser.add_argument(
        "--log-dir",
        "--log_dir",
        type=Path,
        metavar="DIR",
        help="each rank appends what it prints to DIR/rank_R.log; rank 0 prints it on the terminal too",
    )
    parser.add_argument("--tag", action="store_true", help="put '[rank R] ' before each line on the terminal")
    parser.add_argument(
        "--torch",
        action="store_true",
        help="the script is written for PyTorch: engine and ddp answer its `import torch`",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the mpirun command and start nothing")
    parser.add_argument("-m", "--module", action="store_true", help="run a module by its name, as `python -m` does")
    parser.add_argument("--version", action=_TellVersion, nargs=0, help="show program's version number and exit")
    parser.add_argument(
        "--warm-cache",
        action="store_true",
        help="start nothing: compile every kernel into NUMBA_CACHE_DIR (else XDG_CACHE_HOME, else ~/.cache), from "
        "where jobs read them; for images, and for homes that jobs cannot write",
    )
    return parser


_STARTED_ONCE = (
    "ddprun is started once, on one host, and starts the ranks of all; leave it out, and name the hosts by --hostfile, "
    "by --host, or by running within the batch system's job"
)
_PLACEMENT = (
    "ddprun decides it from the cores and says what it decided; for another placement change the command that "
    "`ddprun --dry-run` prints"
)
_MCA = "settings of MPI are environment variables: `OMPI_MCA_name=value ddprun ...`, which reach every rank"
_STREAMS = "--log-dir DIR writes a file a rank, --tag marks each line with its rank"
# By option, without its dashes and with `-` for `_`.
_ANSWERS = {
    **dict.fromkeys(
        ("node-rank", "rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "master-addr", "master-port"),
        _STARTED_ONCE,
    ),
    "local-addr": _STARTED_ONCE,
    **dict.fromkeys(
        (
            *("tee", "t", "redirects", "redirect", "r", "local-ranks-filter", "output-filename", "output"),
            *("duplicate-stdout-filters", "duplicate-stderr-filters", "logs-specs", "event-log-handler"),
        ),
        _STREAMS,
    ),
    **dict.fromkeys(("tag-output", "l", "prepend-rank"), "--tag puts '[rank R] ' before each line"),
    **dict.fromkeys(
        ("bind-to", "map-by", "rank-by", "report-bindings", "rankfile", "cpu-set", "numa-binding"), _PLACEMENT
    ),
    **dict.fromkeys(("mca", "prtemca", "pmixmca", "gmca"), _MCA),
    **dict.fromkeys(("genv", "env", "genvlist", "envlist"), "-x NAME=VALUE sets a variable, -x NAME passes one on"),
    **dict.fromkeys(
        ("N", "npernode", "ppn", "perhost", "ntasks-per-node", "map-by-node"), "--nproc-per-node N is ddprun's word"
    ),
    **dict.fromkeys(("f", "machinefile", "hosts"), "--hostfile FILE or --host NAME,... is ddprun's word"),
    **dict.fromkeys(("c", "ntasks"), "-n N is ddprun's word"),
    **dict.fromkeys(("wdir", "wd", "workdir", "chdir"), "ranks run where ddprun is started: `cd FOLDER && ddprun ...`"),
    **dict.fromkeys(
        ("display", "display-map", "display-allocation"), "--dry-run prints the command and what it decided"
    ),
    "timeout": "`timeout SECONDS ddprun ...` ends a job with SIGTERM, and ranks with a handler have their --grace then",
    "shutdown-timeout": "--grace SECONDS is ddprun's word",
    "signals-to-handle": "SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 reach the handlers of the ranks without it",
    "start-method": "ranks are processes that mpirun starts; leave it out",
    "monitor-interval": "ddprun notices the end of a rank by itself; leave it out",
    "role": "ranks have no roles; `ddp.new_group` makes groups of them",
    "run-path": "a script is run as `python SCRIPT` runs it; leave it out",
    "virtual-local-rank": "LOCAL_RANK is the rank's number on its host; leave it out",
    "use-env": "RANK, LOCAL_RANK, WORLD_SIZE and the like are always set; leave it out",
    "oversubscribe": "more ranks than cores need no permission: -n N",
    "allow-run-as-root": "ddprun says it to mpirun by itself, for root",
    "no-python": "ddprun starts Python scripts only",
}


def answer(own: Sequence[str]) -> str:
    """What to say about the first option that another launcher has and ddprun has not; empty if there is none.

    own: the words before the script, as `split_command` has them.
    """
    for word in own:
        name = word.partition("=")[0]
        if name.startswith("-") and (said := _ANSWERS.get(name.lstrip("-").replace("_", "-"))):
            return f"there is no option {name}: {said}"
    return ""


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words up to the script, and the script with its arguments.

    Not by argparse.REMAINDER, which drops a `--` among the script's arguments.
    """
    actions = build_parser()._actions
    with_value = {option for action in actions if action.nargs is None for option in action.option_strings}
    end = 0
    while end < len(words) and words[end].startswith("-") and words[end] != "--":
        end += 2 if words[end] in with_value else 1
    return list(words[:end]), list(words[end + 1 :] if words[end : end + 1] == ["--"] else words[end:])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of ranks of 1 or more, got {text!r}")
    return int(text)


def _per_node(text: str) -> int | str:
    if text in ("auto", "gpu", "cpu"):
        return text
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected a number of ranks of 1 or more, 'auto', 'gpu' or 'cpu', got {text!r}"
        )
    return int(text)


def _nodes(text: str) -> int:
    if ":" in text:
        raise argparse.ArgumentTypeError(
            f"expected one number, got {text!r}: the number of hosts is fixed during a job"
        )
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of hosts of 1 or more, got {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return int(text)


def _elastic(text: str) -> tuple[int, int | None]:
    least, colon, most = text.partition(":")
    if not least.isdecimal() or int(least) < 1 or (colon and not (most.isdecimal() and int(most) >= int(least))):
        raise argparse.ArgumentTypeError(f"expected numbers of ranks MIN or MIN:N, 1 <= MIN <= N, got {text!r}")
    return int(least), int(most) if colon else None


def _failures(text: str) -> str:
    number, slash, seconds = text.partition("/")
    if not number.isdecimal() or (slash and _seconds(seconds) == 0):
        raise argparse.ArgumentTypeError(f"expected N or N/SECONDS, N losses in so much time at most, got {text!r}")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds of 0 or more, got {text!r}")
    return seconds


class _TellVersion(argparse.Action):
    """Looks the version up where it is asked for: that would be a fifth of what this module takes otherwise."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: object) -> None:
        from importlib import metadata

        try:
            version = metadata.version("allstride")
        except metadata.PackageNotFoundError:
            version = "(a checkout that is not installed)"
        print(f"ddprun of allstride {version}")
        parser.exit()
