"""The machine that runs CUDA kernels on the CPU finds what a device would do wrong in silence."""

import numpy as np
import pytest

from tests.cuda_simulator import kernels

pytestmark = pytest.mark.skipif(kernels.why_not() is not None, reason=kernels.why_not() or "")

CODE = r"""
extern "C" __global__ void reverse(float* values, int count, bool wait) {
    extern __shared__ float kept[];
    kept[threadIdx.x] = values[threadIdx.x];
    if (wait) __syncthreads();
    values[threadIdx.x] = kept[count - 1 - threadIdx.x];
}
extern "C" __global__ void __launch_bounds__(256) sums(const float* values, float* sums, int count) {
    __shared__ float parts[8], total;
    float sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += values[i];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_down_sync(0xffffffffu, sum, distance);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        total = 0;
        for (int warp = 0; warp < blockDim.x / 32; warp++) total += parts[warp];
    }
    __syncthreads();
    sums[blockIdx.x * blockDim.x + threadIdx.x] = total;
}
extern "C" __global__ void lanes(unsigned* ballots, int* found) {
    int i = threadIdx.x + blockDim.x * threadIdx.y;
    ballots[i] = __ballot_sync(0xffffffffu, i % 3 == 0);
    found[i] = __shfl_sync(0xffffffffu, i, 5, 8) + 100 * __shfl_up_sync(0xffffffffu, i, 1)
             + 10000 * __reduce_add_sync(0xffffffffu, 1) + 1000000 * __syncthreads_count(i < 7);
}
extern "C" __global__ void half_warps(int* found) {
    int i = threadIdx.x;
    unsigned mask = i < 16 ? 0x0000ffffu : 0xffff0000u;
    found[i] = i < 16 ? __shfl_xor_sync(mask, i, 1) : __shfl_xor_sync(mask, 10 * i, 1);
}
extern "C" __global__ void some_wait(int* found, int count) {
    if (threadIdx.x < count) __syncthreads();
    found[threadIdx.x] = 1;
}
extern "C" __global__ void two_barriers(int* found) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
}
extern "C" __global__ void some_shuffle(int* found, int count) {
    if (threadIdx.x < count) found[threadIdx.x] = __shfl_xor_sync(0xffffffffu, found[threadIdx.x], 1);
}
extern "C" __global__ void shift(int* found, int by) { found[threadIdx.x + by] = 1; }
struct __align__(16) Four { int values[4]; };
extern "C" __global__ void vectors(int* found, int by) {
    if (threadIdx.x == 0) *(Four*)(found + by) = Four{{1, 2, 3, 4}};
}
extern "C" __global__ void last_block(int* partial, unsigned* done, int* total, bool fence) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = blockIdx.x + 1;
        if (fence) __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += partial[b];
        *total = sum;
    }
}
"""


def run(name, grid, block, *arguments, shared_mem=0):
    kernels.run(CODE, ("--std=c++17",), name, (grid,), block, arguments, shared_mem)


def test_kernel_names():
    assert kernels.kernel_names(CODE)[:2] == ["reverse", "sums"]


def test_blocks_larger_than_declared_are_refused():
    code = """
    #define MANY 32
    const int THREADS = 4 * WARPS * MANY;
    extern "C" __global__ void __launch_bounds__(THREADS) declared() {}
    extern "C" __global__ void undeclared() {}
    """
    options = ("--std=c++17", "-DWARPS=3")
    assert kernels.largest_blocks(code, options) == {"declared": 384, "undeclared": 256}
    for name, most in (("declared", 384), ("undeclared", 256)):
        kernels.run(code, options, name, (1,), (most // 2, 2), ())
        with pytest.raises(kernels.KernelError, match=f"{name}: a block of {most + 32} threads"):
            kernels.run(code, options, name, (1,), (most + 32,), ())


def test_more_parameters_than_every_driver_takes_are_refused():
    code = 'struct Table { double at[512]; }; extern "C" __global__ void read(Table table, int* out) {}'
    with pytest.raises(kernels.KernelError, match="4104 bytes of parameters"):
        kernels.run(code, (), "read", (1,), (32,), (np.zeros((), "V4096"), np.zeros(1, np.int32)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sums_of_a_block(seed):
    values = np.arange(1000, dtype=np.float32)
    sums = np.zeros((3, 256), np.float32)
    with kernels.order(seed):
        run("sums", 3, (256,), values, sums, np.int32(1000))
    assert (sums == 499500).all()
    with kernels.checked(seed):
        run("sums", 3, (256,), values, sums, np.int32(1000))


def test_a_missing_barrier_is_found():
    values = np.arange(64, dtype=np.float32)
    with kernels.checked():
        run("reverse", 1, (64,), values, np.int32(64), np.bool_(True), shared_mem=256)
        assert values.tolist() == list(range(63, -1, -1))
        with pytest.raises(kernels.KernelError, match=r"race: \w+ byte \d+ of dynamic shared memory"):
            run("reverse", 1, (64,), values, np.int32(64), np.bool_(False), shared_mem=256)


def test_operations_of_a_warp():
    ballots, found = np.zeros(64, np.uint32), np.zeros(64, np.int32)
    run("lanes", 1, (16, 4), ballots, found)
    i = np.arange(64)
    assert ballots[0] == sum(1 << lane for lane in range(0, 32, 3))
    assert ballots[32] == sum(1 << lane for lane in range(32) if (lane + 32) % 3 == 0)
    before = np.where(i % 32 == 0, i, i - 1)
    assert found.tolist() == (i // 8 * 8 + 5 + 100 * before + 320000 + 7000000).tolist()
    run("half_warps", 1, (32,), found[:32])
    assert found[:32].tolist() == [(j ^ 1) * (1 if j < 16 else 10) for j in range(32)]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("some_wait", (np.int32(33),)), ("two_barriers", ()), ("some_shuffle", (np.int32(31),))],
)
def test_divergence_is_an_error(name, arguments):
    with pytest.raises(kernels.KernelError, match="divergence"):
        run(name, 1, (64,), np.zeros(64, np.int32), *arguments)
    run("some_wait", 1, (64,), np.zeros(64, np.int32), np.int32(64))  # and nothing is left of it


def test_bounds_alignment_and_races_between_blocks():
    found = np.zeros(64, np.int32)
    with kernels.checked():
        run("shift", 1, (32,), found, np.int32(32))
        with pytest.raises(kernels.KernelError, match="writes 4 bytes outside all allocations: byte 256 of 256"):
            run("shift", 1, (32,), found, np.int32(33))
        with pytest.raises(kernels.KernelError, match=r"race: writes byte 0 .* which thread 0 of block 0 has written"):
            run("shift", 2, (32,), found, np.int32(0))
        aligned = found[-found.ctypes.data // 4 % 4 :]
        run("vectors", 1, (32,), aligned, np.int32(4))
        with pytest.raises(kernels.KernelError, match="misaligned"):
            run("vectors", 1, (32,), aligned, np.int32(2))
        with pytest.raises(kernels.KernelError, match="dynamic shared memory"):
            run("reverse", 1, (64,), found.view(np.float32), np.int32(64), np.bool_(True), shared_mem=252)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_last_block_sees_the_others_writes_after_a_fence(seed):
    partial, total = np.zeros(5, np.int32), np.zeros(1, np.int32)
    with kernels.checked(seed):
        run("last_block", 5, (32,), partial, np.zeros(1, np.uint32), total, np.bool_(True))
        assert total == 15
        with pytest.raises(kernels.KernelError, match="race: reads"):
            run("last_block", 5, (32,), partial, np.zeros(1, np.uint32), total, np.bool_(False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(64), np.int32(0)), "points to i4, the array has float64"),
        ((np.zeros(64, np.int32), np.int64(0)), "the parameter is i4, the scalar int64"),
        ((np.zeros(64, np.int32), 0), "expected a NumPy scalar, got int"),
        ((np.int32(0), np.int32(0)), "expected a device array, got int32"),
        ((np.zeros(64, np.int32),), "1 arguments for 2 parameters"),
    ],
)
def test_arguments_must_have_the_parameters_types(arguments, message):
    with pytest.raises(TypeError, match=message):
        run("shift", 1, (32,), *arguments)


def test_launches_that_no_device_accepts():
    with pytest.raises(kernels.KernelError, match="configuration"):
        run("shift", 1, (1025,), np.zeros(1), np.int32(0))
    with pytest.raises(kernels.KernelError, match="configuration"):
        run("shift", 0, (32,), np.zeros(1), np.int32(0))
    with pytest.raises(kernels.KernelError, match="symbol not found"):
        run("shifted", 1, (32,))
