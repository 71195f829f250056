"""What the doctor says of a GPU."""

import re

from ddp.doctor import facts


def test_facts_of_a_gpu_name_what_it_and_its_software_are(cuda) -> None:
    problems: dict[str, str] = {}
    found = facts._gpu(problems)
    expected = (
        r"\d+ of [^,]+, compute capability \d+\.\d, driver for CUDA \d+\.\d, CuPy 14\.\S+ for CUDA \d+\.\d, .*NCCL.*"
    )
    assert re.fullmatch(expected, found)
    assert not problems
