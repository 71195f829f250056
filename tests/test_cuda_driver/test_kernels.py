"""Raw kernels on the CPU driver: what a device punishes rarely is an error, assembler does what the PTX ISA says."""

from types import ModuleType

import numpy as np
import pytest

from tests.cuda_driver import control

SOURCE = r"""
extern "C" __global__ void copy(const float* from, float* to, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = from[i];
}
extern "C" __global__ void wide(const float* from, float* to) {
    ((float4*)to)[threadIdx.x] = ((const float4*)from)[threadIdx.x];
}
extern "C" __global__ void turn_round(float* values) {
    __shared__ float kept[64];
    kept[threadIdx.x] = values[threadIdx.x];
    if (WITH_BARRIER) __syncthreads();
    values[threadIdx.x] = kept[63 - threadIdx.x];
}
extern "C" __global__ void staged(const float* from, float* to) {
    __shared__ __align__(16) float kept[128];
    unsigned target = (unsigned)__cvta_generic_to_shared(kept + 4 * threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(target), "l"(from + 4 * threadIdx.x), "r"(threadIdx.x < 31 ? 16 : 0) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (WITH_BARRIER) asm volatile("cp.async.wait_group %0;" :: "n"(0) : "memory");
    __syncthreads();
    for (int i = 0; i < 4; i++) to[4 * threadIdx.x + i] = kept[(4 * threadIdx.x + i + 4) % 128];
}
extern "C" __global__ void multiply(const float* a, const float* b, float* c) {  // 16 x 8 by 8 x 8
    int lane = threadIdx.x, row = lane / 4, k = lane % 4;
    unsigned of_a[4] = {__float_as_uint(a[row * 8 + k]), __float_as_uint(a[(row + 8) * 8 + k]),
                        __float_as_uint(a[row * 8 + k + 4]), __float_as_uint(a[(row + 8) * 8 + k + 4])};
    unsigned first = __float_as_uint(b[k * 8 + row]), second = __float_as_uint(b[(k + 4) * 8 + row]);
    float sum[4] = {0, 0, 0, 0};
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(of_a[0]), "r"(of_a[1]), "r"(of_a[2]), "r"(of_a[3]), "r"(first), "r"(second));
    for (int e = 0; e < 4; e++) c[(row + 8 * (e / 2)) * 8 + 2 * k + e % 2] = sum[e];
}
"""


def _kernel(cupy: ModuleType, name: str, barrier: int = 1):
    return cupy.RawModule(code=SOURCE, options=("--std=c++17", f"-DWITH_BARRIER={barrier}")).get_function(name)


def _problem_of(cupy: ModuleType, launch) -> str:
    with pytest.raises(cupy.cuda.driver.CUDADriverError) as raised:
        launch()
    control.take_problems()
    return str(raised.value)


def test_values(cupy: ModuleType) -> None:
    x, y = cupy.arange(300, dtype="f4"), cupy.zeros(300, "f4")
    _kernel(cupy, "copy")((2,), (256,), (x, y, np.int32(300)))
    assert (x == y).all()


def test_reads_beyond_the_end(cupy: ModuleType) -> None:
    x, y = cupy.ndarray(300, "f4", cupy.cuda.MemoryPointer(cupy.cuda.Memory(1200), 0)), cupy.zeros(400, "f4")
    x.fill(0)
    found = _problem_of(cupy, lambda: _kernel(cupy, "copy")((2,), (256,), (x, y, np.int32(301))))
    assert "copy: block (1, 0, 0), thread (44, 0, 0): reads" in found


def test_memory_that_was_freed(cupy: ModuleType) -> None:
    memory, y = cupy.cuda.Memory(1200), cupy.zeros(300, "f4")
    x = np.uint64(memory.ptr)
    del memory
    found = _problem_of(cupy, lambda: _kernel(cupy, "copy")((2,), (256,), (x, y, np.int32(300))))
    assert "outside all allocations" in found


def test_misaligned(cupy: ModuleType) -> None:
    x, y = cupy.zeros(200, "f4"), cupy.zeros(200, "f4")
    found = _problem_of(cupy, lambda: _kernel(cupy, "wide")((1,), (32,), (x[1:], y)))
    assert "misaligned" in found


@pytest.mark.parametrize("seed", [0, 1])
def test_a_missing_barrier(cupy: ModuleType, seed: int) -> None:
    x = cupy.arange(64, dtype="f4")
    with control.checked(seed):
        _kernel(cupy, "turn_round")((1,), (64,), (x,))
        assert x.get().tolist() == list(range(63, -1, -1))
        found = _problem_of(cupy, lambda: _kernel(cupy, "turn_round", barrier=0)((1,), (64,), (x,)))
    assert "race" in found


def test_a_missing_wait_for_copies(cupy: ModuleType) -> None:
    x, y = cupy.arange(128, dtype="f4"), cupy.zeros(128, "f4")
    _kernel(cupy, "staged")((1,), (32,), (x, y))
    assert y.get().tolist() == [*range(4, 124), 0, 0, 0, 0, 0, 1, 2, 3]
    _kernel(cupy, "staged", barrier=0)((1,), (32,), (x, y))
    assert np.isnan(y.get()[:100]).all()


def test_tensor_cores(cupy: ModuleType) -> None:
    a = cupy.arange(128, dtype="f4").reshape(16, 8)
    b, c = cupy.arange(64, dtype="f4").reshape(8, 8), cupy.zeros((16, 8), "f4")
    _kernel(cupy, "multiply")((1,), (32,), (a, b, c))
    np.testing.assert_array_equal(c.get(), a.get() @ b.get())


def test_a_misaligned_array_in_a_kernel_of_cupys(cupy: ModuleType) -> None:
    memory = cupy.cuda.Memory(64)
    x = cupy.ndarray(4, "f4", cupy.cuda.MemoryPointer(memory, 2))
    assert "misaligned address" in _problem_of(cupy, lambda: x + 1)


def test_launches_that_no_device_accepts(cupy: ModuleType) -> None:
    x = cupy.zeros(2048, "f4")
    for grid, block, shared in (((1,), (512,), 0), ((1, 70000), (32,), 0), ((1,), (32,), 64 << 10)):
        launch = _kernel(cupy, "copy")
        assert "the launch is invalid" in _problem_of(
            cupy,
            lambda: launch(grid, block, (x, x, np.int32(1)), shared_mem=shared),  # noqa: B023
        )


def test_a_source_that_does_not_compile(cupy: ModuleType) -> None:
    with pytest.raises(cupy.cuda.compiler.CompileException, match="nonsense"):
        cupy.RawModule(code='extern "C" __global__ void f() { nonsense; }').get_function("f")


def test_instances_of_templates(cupy: ModuleType) -> None:
    code = "template <typename T> __global__ void twice(T* values) { values[threadIdx.x] *= 2; }"
    module = cupy.RawModule(code=code, options=("--std=c++17",), name_expressions=["twice<float>", "twice<int>"])
    for kind in ("float", "int"):
        x = cupy.arange(5, dtype=f"{kind}32")
        module.get_function(f"twice<{kind}>")((1,), (5,), (x,))
        assert x.get().tolist() == [0, 2, 4, 6, 8]
