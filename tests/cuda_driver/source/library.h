// What the libraries on top of the runtime share: operands whose accesses are looked at, work on a handle's stream, and
// the LAPACK inside NumPy, which computes.

#pragma once
#include "calls.h"

#include <algorithm>
#include <complex>

namespace driver {

struct OnStream {
    cudaStream_t stream;
};

typedef std::complex<float> complex64;
typedef std::complex<double> complex128;
template <typename T> struct Real { typedef T type; };
template <typename T> struct Real<std::complex<T>> { typedef T type; };
template <typename T> using real_of = typename Real<T>::type;
template <typename T> const bool is_complex = !std::is_same<T, real_of<T>>::value;
template <typename T> T conjugate(T value) { return value; }
template <typename T> std::complex<T> conjugate(std::complex<T> value) { return std::conj(value); }

// Device memory that a function reads or writes: `count` parts of `width` bytes, `step` bytes apart.
struct Operand {
    const void* start;
    size_t width, count, step;
    bool write;
};
enum Access { READS, WRITES };
template <typename T> Operand matrix(T* start, long long rows, long long columns, long long step, Access access) {
    return {start, rows * sizeof(T), (size_t)columns, step * sizeof(T), access == WRITES};
}
template <typename T> Operand vector(T* start, long long size, Access access) {
    return matrix(start, size, size ? 1 : 0, 0, access);
}

// library.cpp: the accesses of the work under way. False: not memory of the device, or a race, and problem() has it.
bool touched(const Operand& operand, const char* what);

// Queues what a function of a library does. Returns `fails` where that went wrong, else 0. (CuPy itself calls
// nothing of cuSOLVER while a stream is captured.)
int queue(const OnStream& handle, const std::string& what, int fails, std::vector<Operand> operands,
          std::function<bool()> run);

// LAPACK, whose integers have 64 bits. NULL: NumPy brings none that is known, and problem() has it.
typedef int64_t Integer;
void* lapack_function(const std::string& name);

template <typename T> std::string lapack_name(const char* real, const char* complex) {
    const char* letters = sizeof(real_of<T>) == 4 ? "sc" : "dz";
    return is_complex<T> ? letters[1] + std::string(complex) : letters[0] + std::string(real);
}
// `real` and `complex`: the function's name without its letter. All is passed by reference.
template <typename T, typename... A> bool lapack(const char* real, const char* complex, A... arguments) {
    void* found = lapack_function(lapack_name<T>(real, complex));
    if (found) ((void (*)(A...))found)(arguments...);
    return found;
}
// The same for one that wants memory to work in, after `arguments` and before `rest`.
template <typename T, typename F> bool with_workspace(F call) {
    T needed = 0;
    Integer size = -1;
    if (!call(&needed, &size)) return false;
    size = std::max<Integer>(1, (Integer)std::real(needed));
    std::vector<T> work((size_t)size);
    return call(work.data(), &size);
}

}  // namespace driver
