"""examples/benchmark.py prints its lines, as a script and as a module; the figures themselves are nobody's test."""

import json

from tests.examples.running import command, run

FIELDS = {"workload", "ranks", "step_ms", "spread_ms", "samples_s", "params_M", "peak_rss_MB"}


def test_all_workloads_on_one_rank() -> None:
    done = run(command(1, "examples/benchmark.py"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["workload"] for line in lines] == ["mlp", "cnn", "gpt", "tiny"]
    assert [line["params_M"] for line in lines] == [1.864, 0.422, 0.876, 0.002]
    for line in lines:
        assert line.keys() == FIELDS
        assert line["ranks"] == 1
        assert line["step_ms"] > 0


def test_as_a_module_on_two_ranks() -> None:
    done = run(command(2, "-m", "examples.benchmark", "tiny"))
    assert done.returncode == 0, done.stderr
    (line,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (line["workload"], line["ranks"]) == ("tiny", 2)


def test_an_unknown_workload_is_refused() -> None:
    done = run(command(1, "examples/benchmark.py", "rnn"))
    assert done.returncode != 0
    assert "unknown workload 'rnn': choose from mlp, cnn, gpt, tiny" in done.stderr
