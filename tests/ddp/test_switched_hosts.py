"""The switch between hosts carries what is sent, not faster than its links; what is measured over it is used."""

import json
from pathlib import Path

import pytest

from ddp.forecast import parse_link
from tests.campaigns import forecast as campaign
from tests.ddp.switched_hosts import switched_hosts
from tests.ddp.two_hosts import NotPossibleError
from tests.launch.jobs import this_mpi
from tests.launch.on_two_hosts import prepare

_BYTES = 1 << 20
BUCKETS = """
import json
import ddp, engine
from ddp.groups.group import resolve

ddp.init_process_group()
model = engine.nn.Sequential(*[engine.nn.Linear(300, 300) for _ in range(40)])
net = ddp.DistributedDataParallel(model)
times = resolve(None).sum_times
found = [net.bucket_limits(), [*times], sum(parameter.nbytes for parameter in model.parameters())]
if ddp.get_rank() == 0:
    print(json.dumps(found))
ddp.destroy_process_group()
"""


@pytest.mark.full
@pytest.mark.parametrize("text", ["200mbit,0us", "200mbit,1ms"])
def test_no_sum_is_faster_than_the_links(text: str) -> None:
    link = parse_link(text)
    bench = ["-m", "ddp.bench", "--json", "--transport", "mpi", "--min-bytes", str(_BYTES), "--max-bytes", str(_BYTES)]
    try:
        with switched_hosts(3, link) as hosts:
            ended = hosts.run(bench, ranks=3, timeout=100)
    except NotPossibleError as why:
        pytest.skip(f"hosts cannot be made here: {why}")
    assert ended.returncode == 0, ended.stderr  # it compares the sums with what they are
    figure = json.loads(ended.stdout.splitlines()[-1])
    share = 2 * 2 / 3  # of the bytes that a rank of three sends
    least = share * _BYTES / link.bandwidth + 2 * link.latency
    assert figure["seconds"] > 0.9 * least  # what is in buckets of tokens goes at once


@pytest.mark.full
def test_buckets_are_chosen_by_what_a_sum_takes_there(tmp_path: Path) -> None:
    link = parse_link("200mbit,0us")
    program = tmp_path / "program.py"
    program.write_text(BUCKETS)
    try:
        with switched_hosts(2, link) as hosts:
            ended = hosts.run(["-m", "mpi4py", str(program)], ranks=2, timeout=100)
    except NotPossibleError as why:
        pytest.skip(f"hosts cannot be made here: {why}")
    assert ended.returncode == 0, ended.stderr
    limits, (seconds, byte), nbytes = json.loads(ended.stdout)
    assert byte > 0.8 / link.bandwidth
    cap = min(max(2**18, int((nbytes * seconds / byte) ** 0.5)), 25 * 2**20)
    assert limits == [min(2**20, cap), cap]


@pytest.mark.full
@pytest.mark.skipif(this_mpi().name != "Open MPI", reason="the forecast's messages go by TCP with its settings")
def test_a_forecast_and_a_step_on_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A case of the campaign: both sides run, and neither is faster than the link."""
    monkeypatch.setitem(campaign._STEPS, "steps", 5)
    text = "200mbit,0us"
    link = parse_link(text)
    said = campaign.forecast("mlp", 8, 2, text)
    try:
        with switched_hosts(2, link) as hosts:
            environment = prepare(hosts, tmp_path) | campaign.ONE_THREAD
            seen = campaign.measured(hosts, tmp_path, environment, campaign.training("mlp", 8), 2)
    except NotPossibleError as why:
        pytest.skip(f"hosts cannot be made here: {why}")
    least = 0.9 * 4e6 * seen["params_M"] / link.bandwidth
    assert said["exposed"] > least
    assert seen["step_ms"] / 1e3 > least
    row = {"workload": "mlp", "scaling": "weak", "hosts": 2, "link": text, "forecast_ms": 200, "measured_ms": 210}
    assert "| mlp | weak | 2 | 200mbit,0us | 200.0 | 210.0 | 1.05 |" in campaign.table([row])
