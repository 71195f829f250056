"""What other hosts get of the environment."""

import pytest

from launch.environment import describe_forwarded, forwarded, held_back, read_given

NEEDED = [
    *("ALLSTRIDE_LOG", "PYTHONPATH", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "CUPY_CACHE_DIR", "NCCL_SOCKET_IFNAME"),
    *("UCX_TLS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "OMP_PLACES", "LD_LIBRARY_PATH", "TORCH_DISTRIBUTED_DEBUG"),
    *("MASTER_PORT", "CUDA_PATH", "FI_PROVIDER"),
]
SECRET = ["ALLSTRIDE_API_KEY", "PYTHON_TOKEN", "NUMBA_SECRET", "UCX_PASSWORD", "PYTHON_KEYRING_AUTH"]
OTHER = ["HOME", "PATH", "SSH_AUTH_SOCK", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOSTNAME", "CUDA_VISIBLE_DEVICES"]
ENVIRON = {name: name.lower() for name in (*NEEDED, *SECRET, *OTHER)}


def test_what_a_job_needs_is_forwarded_and_no_secret() -> None:
    assert forwarded(ENVIRON) == {name: name.lower() for name in NEEDED}
    assert held_back(ENVIRON, []) == sorted(SECRET)
    assert held_back(ENVIRON, SECRET[1:]) == SECRET[:1]


def test_variables_can_be_given() -> None:
    assert read_given(["A", "B=1=2", "C="], {"A": "here"}) == {"A": "here", "B": "1=2", "C": ""}


@pytest.mark.parametrize(
    ("word", "message"),
    [("A", "-x A: it is not set here; -x A=VALUE sets it"), ("=1", "expected NAME"), ("a-b=1", "expected NAME")],
)
def test_a_variable_that_cannot_be_given(word: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_given([word], {})


def test_only_names_are_told() -> None:
    told = describe_forwarded(["UCX_TLS", "A"], ["NUMBA_SECRET"])
    assert told == (
        "ranks on other hosts get these variables as they are here: A, UCX_TLS; not, for they sound like secrets: "
        "NUMBA_SECRET (-x NAME passes one on)"
    )


def test_an_mpi_that_hands_on_everything_is_told_of() -> None:
    assert "the whole environment, secrets included" in describe_forwarded(["UCX_TLS"], [], everything=True)
