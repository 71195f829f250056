"""Which environment variables reach the ranks of other hosts: what a training script may depend on, and no secret.

Open MPI hands a remote rank its own variables only. MPICH and Intel MPI hand on everything, as they always do.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

# By what reads them: these packages and their script; Python; caches; BLAS and threads; GPUs; networks.
_PREFIXES = (
    *("ALLSTRIDE_", "TORCH_DISTRIBUTED_", "PYTHON", "NUMBA_", "CUPY_", "OMP_", "KMP_", "GOMP_", "OPENBLAS_", "MKL_"),
    *("BLIS_", "CUDA_", "NCCL_", "UCX_", "FI_", "LD_LIBRARY_PATH", "XDG_CACHE_HOME", "MASTER_ADDR", "MASTER_PORT"),
)
_NOT = ("CUDA_VISIBLE_DEVICES",)  # numbers of this host's
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE|AUTH|COOKIE")


def forwarded(environ: Mapping[str, str]) -> dict[str, str]:
    """What ranks of other hosts get of these variables, by default."""
    return {name: value for name, value in environ.items() if _is_needed(name) and not _SECRET.search(name)}


def held_back(environ: Iterable[str], given: Iterable[str]) -> list[str]:
    """Names of variables that would be forwarded, did they not sound like a secret, and were not given by `-x`."""
    return sorted(name for name in environ if _is_needed(name) and _SECRET.search(name) and name not in given)


def _is_needed(name: str) -> bool:
    return name.startswith(_PREFIXES) and name not in _NOT


def read_given(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `-x NAME` (its value here) and `-x NAME=VALUE`. Raises ValueError for one that is not set."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"-x {word}: expected NAME or NAME=VALUE")
        if not equals and name not in environ:
            raise ValueError(f"-x {name}: it is not set here; -x {name}=VALUE sets it")
        found[name] = value if equals else environ[name]
    return found


def describe_forwarded(forwarded: Iterable[str], withheld: Sequence[str], everything: bool = False) -> str:
    """Which variables other hosts get, in words; values are nobody's to see. everything: this MPI's way, for all."""
    if everything:
        return "ranks on other hosts get the whole environment, secrets included: so does every job of this MPI"
    words = f"ranks on other hosts get these variables as they are here: {', '.join(sorted(forwarded)) or 'none'}"
    if withheld:
        words += f"; not, for they sound like secrets: {', '.join(withheld)} (-x NAME passes one on)"
    return words
