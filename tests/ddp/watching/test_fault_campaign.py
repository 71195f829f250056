"""A sample of tests/campaigns/faults.py: a job that is struck anywhere ends in time, says why, and leaves nothing."""

import pytest

from tests.campaigns import faults


@pytest.mark.full
@pytest.mark.parametrize("transport", faults.TRANSPORTS)
def test_a_job_that_is_struck_ends_as_it_should(
    transport: str, tmp_path: faults.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A fault after the other, at every 40th place of the first rank and of the last."""
    kept = tmp_path / "kept"
    chosen = ["--every", "40", "--begin", "5", "--ranks", "2", "--transports", transport]
    wrong = faults.main([*chosen, "--keep", str(kept)])
    table = capfd.readouterr().out
    assert not wrong, "\n".join([table, *(path.read_text() for path in kept.iterdir())])
    assert sum(line.count("| struck |") for line in table.splitlines()) == 1
    assert len(table.splitlines()) > 4, "several faults were tried"


def test_the_judgement_of_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of wrong ending is told from the right one."""

    def judged(code: int | None, text: str) -> list[str]:
        def run(folder: faults.Path, *_: object) -> tuple[int | None, float, str]:
            (folder / "struck").write_text("Dup")
            (folder / "job").write_text("no job of this name")
            return code, 1.0, text

        monkeypatch.setattr(faults, "run_job", run)
        return faults.strike(faults.Case("raise", "shared", 2, 1, 0), {}).problems

    assert judged(1, "rank 1 of 2 raised:\nCampaignError: struck") == []
    assert judged(0, "rank 1 of 2 raised:\nCampaignError: struck") == ["code"]
    assert judged(1, "rank 0 waits for rank 1\nCampaignError: struck") == ["culprit"]
    nobody = "ddp watchdog on a: rank 0 has been waiting in x, for bytes to arrive, or others\nranks 0, 1 wait in x\n"
    assert judged(1, f"{nobody}rank 1 of 2 raised:\nCampaignError: struck") == []
    assert judged(1, f"CampaignError: struck\n{nobody}") == ["culprit"]
    assert judged(1, "rank 1 of 2 ended") == ["cause"]
    assert judged(None, "") == ["time", "code", "culprit", "cause"]

    monkeypatch.setattr(faults, "run_job", lambda *_: (1, 1.0, "SyntaxError"))
    assert faults.strike(faults.Case("raise", "shared", 2, 1, 0), {}).problems == ["ended by something else"]
    monkeypatch.setattr(faults, "run_job", lambda *_: (0, 1.0, ""))
    assert faults.strike(faults.Case("raise", "shared", 2, 1, 0), {}).problems == []
