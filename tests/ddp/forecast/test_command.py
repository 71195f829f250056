"""`ddprun -n 2 -m ddp.forecast` with a script of its own."""

import json

import pytest

from tests.mpi_job import run_job

PROGRAM = "from ddp.forecast import main\nmain()\n"
SCRIPT = """
import sys, engine, ddp
from engine import nn
from neighbour import SIZE  # a module beside the script

ddp.init_process_group()
net = ddp.DistributedDataParallel(nn.Linear(SIZE, 3))
optimizer = engine.optim.SGD(net.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    net(engine.randn(4, SIZE)).sum().backward()
    optimizer.step()
if ddp.get_rank() == 0:
    print("the script's end", sys.argv, file=sys.stderr)
ddp.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path) -> str:
    (tmp_path / "neighbour.py").write_text("SIZE = 5\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.mark.full
@pytest.mark.parametrize(("count", "ended"), [("12", True), ("1000000", False)])
def test_a_line_for_each_number_of_nodes(script, count, ended) -> None:
    arguments = [script, count, "--nodes", "6", "--link", "1gbit,1ms", "--json", "--measure", "10"]
    result = run_job(PROGRAM, 2, timeout=120, args=arguments)
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(line["nodes"], line["ranks"]) for line in lines] == [(1, 2), (2, 4), (4, 8), (6, 12)]
    assert (f"the script's end ['{script}', '{count}']" in result.stderr) == ended
    assert lines[-1]["exposed"] - lines[0]["exposed"] >= 0.01  # there and back along five cables of 1 ms
    for line in lines:
        assert line["seconds"] == pytest.approx(line["own"] + line["slowest"] + line["exposed"])


@pytest.mark.full
def test_the_table_and_one_rank_on_each_node(script, tmp_path) -> None:
    page = tmp_path / "page.html"
    arguments = [script, "9", "--nodes", "2", "--link", "1gbit,1ms", "--ranks-per-node", "1", "--plot", str(page)]
    result = run_job(PROGRAM, 2, timeout=120, args=arguments)
    assert result.returncode == 0, result.stderr
    head, titles, first, second, here = result.stdout.splitlines()
    assert head == "link 1gbit,1ms, 3 steps measured on 2 ranks"
    assert titles.split()[:3] == ["nodes", "ranks", "step"]
    assert (first.split()[:2], second.split()[:2]) == (["1", "1"], ["2", "2"])
    assert here.startswith("ms; the step measured here: ")
    assert "2 nodes behind 1gbit,1ms" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["missing.py", "--nodes", "2", "--link", "1gbit,1ms"], "there is no file 'missing.py'"),
        ([__file__, "--nodes", "2", "--link", "fast"], "expected a bandwidth and a latency"),
        ([__file__, "--nodes", "0", "--link", "1gbit,1ms"], "expected a whole number from 1 on, got '0'"),
        ([__file__, "--nodes", "2", "--link", "1gbit,1ms", "--plot", "a.png"], "ends in .html"),
    ],
)
def test_what_is_wrong_is_said_before_the_script_runs(arguments, words, capsys) -> None:
    from ddp.forecast import main

    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.full
def test_a_script_that_does_not_train_is_told_so(tmp_path) -> None:
    (tmp_path / "idle.py").write_text("import ddp\nddp.init_process_group()\n")
    result = run_job(PROGRAM, 2, timeout=60, args=[str(tmp_path / "idle.py"), "--nodes", "2", "--link", "1gbit,1ms"])
    assert result.returncode != 0
    assert "expected at least 7 steps of an optimizer" in result.stderr
