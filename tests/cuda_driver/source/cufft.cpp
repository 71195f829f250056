// cuFFT: plans of one to three axes and their transforms, of any length, in double precision. What is not here returns
// CUFFT_NOT_SUPPORTED (tests/cuda_driver/build.py adds it).

#include "library.h"

#include <cmath>

using namespace driver;

enum Result {
    SUCCESS = 0, INVALID_PLAN = 1, INVALID_TYPE = 3, INVALID_VALUE = 4, EXEC_FAILED = 6, INVALID_SIZE = 8, NO_WORKSPACE = 13
};
enum Type { C2C = 0x29, R2C = 0x2a, C2R = 0x2c, Z2Z = 0x69, D2Z = 0x6a, Z2D = 0x6c };

// Where elements lie: of one batch `inside` (its axes' sizes in memory, the first without meaning), `stride` apart.
struct Layout {
    std::vector<int> inside;
    long long stride, distance;
};
struct Plan : OnStream {
    std::vector<int> sizes;
    Layout from, to;
    int type, batch;
    size_t work_size;
    void* work;
    bool own_work;  // cuFFT allocates what it works in, as it does unless it is told not to
};

static std::map<int, Plan> plans;

// Transforms

static complex128 root(size_t j, size_t n, int sign) {
    static const complex128 quarters[] = {{1, 0}, {0, 1}, {-1, 0}, {0, -1}};
    complex128 found = 4 * j % n ? std::polar(1.0, 2 * M_PI * (double)j / (double)n) : quarters[4 * j / n];
    return sign < 0 ? std::conj(found) : found;
}

// By the smallest factor of the length; a prime one by its definition.
static std::vector<complex128> transformed(const std::vector<complex128>& x, int sign) {
    size_t n = x.size(), factor = 2;
    while (factor < n && n % factor) factor++;
    if (n < 2) return x;
    size_t part = n / factor;
    std::vector<std::vector<complex128>> parts(factor);
    for (size_t r = 0; r < factor; r++) {
        std::vector<complex128> each(part);
        for (size_t j = 0; j < part; j++) each[j] = x[j * factor + r];
        parts[r] = transformed(each, sign);
    }
    std::vector<complex128> roots(n), result(n);
    for (size_t j = 0; j < n; j++) roots[j] = root(j, n, sign);
    for (size_t k = 0; k < n; k++)
        for (size_t r = 0; r < factor; r++) result[k] += roots[r * k % n] * parts[r][k % part];
    return result;
}

typedef std::function<std::vector<complex128>(std::vector<complex128>)> OfRow;

static void along(std::vector<complex128>& x, std::vector<int>& sizes, size_t axis, const OfRow& function) {
    size_t length = sizes[axis], step = 1, longer = 0;
    for (size_t i = axis + 1; i < sizes.size(); i++) step *= sizes[i];
    std::vector<complex128> row(length), result;
    for (size_t first = 0; first < x.size() / length; first++) {
        size_t outer = first / step, inner = first % step;
        for (size_t i = 0; i < length; i++) row[i] = x[(outer * length + i) * step + inner];
        std::vector<complex128> done = function(row);
        longer = done.size();
        result.resize(x.size() / length * longer);
        for (size_t i = 0; i < longer; i++) result[(outer * longer + i) * step + inner] = done[i];
    }
    x = std::move(result);
    sizes[axis] = (int)longer;
}

static void transform(std::vector<complex128>& x, const std::vector<int>& sizes, int type, int sign) {
    size_t last = sizes.size() - 1, n = sizes[last], half = n / 2 + 1;
    std::vector<int> now = sizes;
    bool to_real = type == C2R || type == Z2D, from_real = type == R2C || type == D2Z;
    if (to_real) now[last] = (int)half;
    auto whole = [=](std::vector<complex128> row) { return transformed(row, sign); };
    if (!to_real) along(x, now, last, [=](std::vector<complex128> row) {
        row = transformed(row, sign);
        if (from_real) row.resize(half);
        return row;
    });
    for (size_t axis = last; axis-- > 0;) along(x, now, axis, whole);
    if (to_real) along(x, now, last, [=](std::vector<complex128> row) {
        row.resize(n);
        for (size_t i = half; i < n; i++) row[i] = std::conj(row[n - i]);
        row[0] = row[0].real();  // whatever else is there is ignored
        if (n % 2 == 0) row[n / 2] = row[n / 2].real();
        return transformed(row, sign);
    });
}

// Calls `function` with the offset of each row of the last axis, in elements.
static void rows(const Layout& layout, const std::vector<int>& sizes, int batch,
                 const std::function<void(long long)>& function) {
    long long count = 1;
    for (size_t axis = 0; axis + 1 < sizes.size(); axis++) count *= sizes[axis];
    for (long long row = 0; row < count; row++) {
        long long rest = row, offset = 0, step = 1;
        for (size_t axis = sizes.size(); axis-- > 0;) {
            if (axis + 1 < sizes.size()) {
                offset += rest % sizes[axis] * step;
                rest /= sizes[axis];
            }
            step *= layout.inside[axis];
        }
        function(batch * layout.distance + offset * layout.stride);
    }
}

static bool look(const Layout& layout, const std::vector<int>& sizes, int batches, const void* start, size_t size,
                 bool write) {
    bool good = true;
    size_t last = sizes.back();
    for (int batch = 0; good && batch < batches; batch++)
        rows(layout, sizes, batch, [&](long long offset) {
            const char* place = (const char*)start + offset * (long long)size;
            Operand row = layout.stride == 1 ? Operand{place, last * size, 1, 0, write}
                                             : Operand{place, size, last, layout.stride * size, write};
            good = good && touched(row, "cufft");
        });
    return good;
}

template <typename From, typename To> static int execute(int number, From* from, To* to, int sign, int type) {
    Locked locked;
    auto found = plans.find(number);
    if (found == plans.end() || found->second.sizes.empty()) return INVALID_PLAN;
    Plan plan = found->second;  // what is captured keeps it
    if (plan.type != type || (sign != 1 && sign != -1)) return INVALID_VALUE;
    if (!plan.own_work && !plan.work && plan.work_size) return NO_WORKSPACE;
    const size_t aligned = 2 * sizeof(real_of<To>);
    if ((uintptr_t)from % aligned || (uintptr_t)to % aligned) {
        problem("cufft: data that is not aligned to complex numbers");
        return INVALID_VALUE;
    }
    std::vector<int> in = plan.sizes, out = plan.sizes;
    if (is_complex<From> && !is_complex<To>) in.back() = in.back() / 2 + 1;
    if (is_complex<To> && !is_complex<From>) out.back() = out.back() / 2 + 1;
    bool destroyed = is_complex<From> && !is_complex<To> && (void*)from != (void*)to;
    std::vector<Operand> work;
    if (!plan.own_work) work.push_back(vector((char*)plan.work, (long long)plan.work_size, WRITES));
    return queue(plan, "cufft", EXEC_FAILED, work, [=] {
        if (!look(plan.from, in, plan.batch, from, sizeof(From), destroyed) ||
            !look(plan.to, out, plan.batch, to, sizeof(To), true))
            return false;
        std::vector<std::vector<complex128>> all(plan.batch);  // all read before any is written: it may be one place
        for (int batch = 0; batch < plan.batch; batch++) {
            rows(plan.from, in, batch, [&](long long offset) {
                for (int i = 0; i < in.back(); i++) {
                    From& value = from[offset + i * plan.from.stride];
                    all[batch].push_back(complex128(value));
                    if (destroyed) value = From(NAN);  // as the real one may
                }
            });
            transform(all[batch], plan.sizes, type, sign);
        }
        for (int batch = 0; batch < plan.batch; batch++) {
            const complex128* next = all[batch].data();
            rows(plan.to, out, batch, [&](long long offset) {
                for (int i = 0; i < out.back(); i++, next++) {
                    To& value = to[offset + i * plan.to.stride];
                    if constexpr (is_complex<To>) value = To(*next);
                    else value = (To)next->real();
                }
            });
        }
        return true;
    });
}

static Layout laid_out(const std::vector<int>& sizes, const int* inside, int stride, int distance) {
    if (inside) return {std::vector<int>(inside, inside + sizes.size()), stride, distance};
    long long size = 1;
    for (int each : sizes) size *= each;
    return {sizes, 1, size};
}

extern "C" {

int cufftGetVersion(int* version) { return *version = 11401, SUCCESS; }
int cufftCreate(int* plan) {
    Locked locked;
    static int count = 0;
    *plan = ++count;
    return plans[*plan] = Plan{{nullptr}, {}, {}, {}, 0, 0, 0, nullptr, true}, SUCCESS;
}
int cufftDestroy(int plan) {
    Locked locked;
    return plans.erase(plan) ? SUCCESS : INVALID_PLAN;
}

#define OF_PLAN(number)                                   \
    Locked locked;                                        \
    auto found = plans.find(number);                      \
    if (found == plans.end()) return INVALID_PLAN; \
    Plan& plan = found->second
int cufftSetAutoAllocation(int number, int automatic) {
    OF_PLAN(number);
    return plan.own_work = automatic, SUCCESS;
}
int cufftSetWorkArea(int number, void* start) {
    OF_PLAN(number);
    return plan.work = start, SUCCESS;
}
int cufftSetStream(int number, cudaStream_t stream) {
    OF_PLAN(number);
    return plan.stream = stream, SUCCESS;
}
int cufftMakePlanMany(int number, int rank, const int* sizes, const int* inside, int stride, int distance,
                      const int* inside_to, int stride_to, int distance_to, int type, int batch, size_t* work_size) {
    OF_PLAN(number);
    if (!plan.sizes.empty()) return INVALID_PLAN;  // a plan is made once
    if (type != C2C && type != R2C && type != C2R && type != Z2Z && type != D2Z && type != Z2D) return INVALID_TYPE;
    if (rank < 1 || rank > 3 || batch < 1) return INVALID_SIZE;
    if (std::any_of(sizes, sizes + rank, [](int size) { return size < 1; })) return INVALID_SIZE;
    std::vector<int> whole(sizes, sizes + rank), half = whole;
    half.back() = half.back() / 2 + 1;
    plan.from = laid_out(type == C2R || type == Z2D ? half : whole, inside, stride, distance);
    plan.to = laid_out(type == R2C || type == D2Z ? half : whole, inside_to, stride_to, distance_to);
    plan.sizes = whole;
    plan.type = type;
    plan.batch = batch;
    plan.work_size = type & 0x40 ? 16 : 8;
    for (int each : whole) plan.work_size *= each;
    return *work_size = plan.work_size *= batch, SUCCESS;
}
int cufftMakePlan1d(int number, int size, int type, int batch, size_t* work_size) {
    return cufftMakePlanMany(number, 1, &size, nullptr, 1, 0, nullptr, 1, 0, type, batch, work_size);
}

int cufftExecC2C(int plan, complex64* from, complex64* to, int sign) { return execute(plan, from, to, sign, C2C); }
int cufftExecZ2Z(int plan, complex128* from, complex128* to, int sign) { return execute(plan, from, to, sign, Z2Z); }
int cufftExecR2C(int plan, float* from, complex64* to) { return execute(plan, from, to, -1, R2C); }
int cufftExecD2Z(int plan, double* from, complex128* to) { return execute(plan, from, to, -1, D2Z); }
int cufftExecC2R(int plan, complex64* from, float* to) { return execute(plan, from, to, 1, C2R); }
int cufftExecZ2D(int plan, complex128* from, double* to) { return execute(plan, from, to, 1, Z2D); }
}
