"""What may be said to ddprun, and what it answers to words of other launchers."""

import pytest

from launch.options import answer, build_parser, split_command

# Of PyTorch 2.13, in the spelling with `-`.
TORCHRUN = """
--duplicate-stderr-filters --duplicate-stdout-filters --event-log-handler --help --local-addr --local-ranks-filter
--log-dir --logs-specs --master-addr --master-port --max-restarts --module --monitor-interval --nnodes --no-python
--node-rank --nproc-per-node --numa-binding --rdzv-backend --rdzv-conf --rdzv-endpoint --rdzv-id --redirects --role
--run-path --shutdown-timeout --signals-to-handle --standalone --start-method --tee --virtual-local-rank -m -r -t
"""


def test_options_are_pinned() -> None:
    """A setting of a training run belongs to its script, one of MPI into MPI's environment variables."""
    options = {option for action in build_parser()._actions for option in action.option_strings}
    assert options == {
        *(
            "-h",
            "--help",
            "-n",
            "-np",
            "--np",
            "--nproc",
            "--nproc-per-node",
            "--nproc_per_node",
            "--nnodes",
            "--standalone",
        ),
        *("--hostfile", "-H", "--host", "-x", "--grace", "--log-dir", "--log_dir", "--tag", "--dry-run"),
        *("-m", "--module", "--version", "--warm-cache", "--max-restarts", "--max_restarts", "--torch"),
        "--elastic",
        "--max-failures",
    }


@pytest.mark.parametrize(
    ("words", "own", "command"),
    [
        ("train.py", "", "train.py"),
        ("-n 2 train.py -n 3 --nproc=4 -m", "-n 2", "train.py -n 3 --nproc=4 -m"),
        ("--nproc=2 train.py --help", "--nproc=2", "train.py --help"),
        ("-n2 -m pkg.train --dry-run", "-n2 -m", "pkg.train --dry-run"),
        ("-m --hostfile h -n 2 pkg.train -- x", "-m --hostfile h -n 2", "pkg.train -- x"),
        ("train.py -- -- x", "", "train.py -- -- x"),
        ("-n 2 -- -odd.py -n", "-n 2", "-odd.py -n"),
        ("-n 2", "-n 2", ""),
        ("--hostfile", "--hostfile", ""),
        ("-np 2 train.py -x", "-np 2", "train.py -x"),
        (
            "--nproc-per-node 2 --nnodes 1 --standalone train.py",
            "--nproc-per-node 2 --nnodes 1 --standalone",
            "train.py",
        ),
        ("-H a,b:2 -x A -x B=1 train.py", "-H a,b:2 -x A -x B=1", "train.py"),
        ("--unknown train.py", "--unknown", "train.py"),
        ("--warm-cache train.py", "--warm-cache", "train.py"),
        ("", "", ""),
    ],
)
def test_what_follows_the_script_is_the_scripts(words: str, own: str, command: str) -> None:
    assert split_command(words.split()) == (own.split(), command.split())


def test_every_option_with_a_value_is_known_to_take_one() -> None:
    taking = {option for action in build_parser()._actions if action.nargs is None for option in action.option_strings}
    assert {option for option in taking if len(split_command([option, "x", "y"])[0]) == 2} == taking


@pytest.mark.parametrize("number", ["0", "-1", "two", "1.5", ""])
def test_number_of_ranks_must_be_one_or_more(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([f"--nproc={number}"])
    assert ended.value.code == 2
    assert f"expected a number of ranks of 1 or more, got {number!r}" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "soon", ""])
def test_the_grace_is_a_number_of_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args([f"--grace={seconds}"])
    assert f"expected a number of seconds of 0 or more, got {seconds!r}" in capsys.readouterr().err


def parsed(words: str) -> dict[str, object]:
    return vars(build_parser().parse_args(words.split()))


def test_words_of_torchrun_and_mpirun_that_work() -> None:
    assert parsed("-np 3")["nproc"] == parsed("-n3")["nproc"] == parsed("--np 3")["nproc"] == 3
    assert parsed("--nproc_per_node=2 --nnodes=1 --standalone")["nproc_per_node"] == 2
    assert parsed("--nproc-per-node gpu")["nproc_per_node"] == "gpu"
    assert parsed("-H a,b -x A -x B=1") == parsed("--host a,b -x A -x B=1")
    assert parsed("-x A -x B=1")["x"] == ["A", "B=1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--bind-to core", "there is no option --bind-to: ddprun decides it from the cores"),
        ("-n 2 --map-by=socket", "there is no option --map-by: ddprun decides"),
        ("--mca btl tcp", "OMPI_MCA_name=value ddprun"),
        ("--node_rank=1", "there is no option --node_rank: ddprun is started once, on one host"),
        ("--rdzv-endpoint=h:1", "name the hosts by --hostfile, by --host"),
        ("--master_addr h", "ddprun is started once"),
        ("--tee 3", "--log-dir DIR writes a file a rank"),
        ("-genv A 1", "-x NAME=VALUE sets a variable"),
        ("-ppn 4", "--nproc-per-node N is ddprun's word"),
        ("--oversubscribe", "need no permission"),
        ("--allow-run-as-root", "by itself, for root"),
        ("--tag-output", "--tag puts"),
        ("--shutdown_timeout 5", "--grace SECONDS"),
        ("--wdir /tmp", "cd FOLDER"),
    ],
)
def test_words_of_torchrun_and_mpirun_that_are_answered(words: str, said: str) -> None:
    assert said in answer(words.split())


def test_every_option_of_torchrun_works_or_is_answered() -> None:
    options = TORCHRUN.split()
    known = {option for action in build_parser()._actions for option in action.option_strings}
    assert [option for option in options if option not in known and not answer([option])] == []
    both = [option for option in options if option[2:].count("-")]
    assert [option for option in both if (option in known) != (f"--{option[2:].replace('-', '_')}" in known)] == []


def test_no_option_of_its_own_is_answered() -> None:
    options = [option for action in build_parser()._actions for option in action.option_strings]
    assert [option for option in options if answer([option])] == []
    assert answer(["--unknown"]) == ""


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("ddprun of allstride ")
