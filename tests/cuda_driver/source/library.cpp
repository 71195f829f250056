// Accesses and work of the libraries on top of the runtime, and where they find LAPACK.

#include "library.h"

#include <dlfcn.h>

namespace driver {

static void* numpys = nullptr;

bool touched(const Operand& operand, const char* what) {
    if (!operand.width || !operand.count) return true;
    Allocation* found = find(operand.start);
    if (!found) return problem("%s: an operand that is not in device memory", what), false;
    size_t offset = (size_t)((const char*)operand.start - found->start);
    size_t end = offset + (operand.count - 1) * operand.step + operand.width;
    if (end > found->size)
        return problem("%s: bytes %zu to %zu of an allocation of %zu", what, offset, end, found->size), false;
    for (size_t part = 0; part < operand.count; part++)
        if (!touch(*found, offset + part * operand.step, operand.width, operand.write)) return false;
    return true;
}

int queue(const OnStream& handle, const std::string& what, int fails, std::vector<Operand> operands,
          std::function<bool()> run) {
    Locked locked;
    Stream* stream = stream_of(handle.stream);
    if (!stream) return fails;
    if (!stream->capture) note("launch %s", what.c_str());
    if (!kernels_run) return 0;
    const char* wrong = submit(*stream, what, [=]() -> const char* {
        for (auto& each : operands)
            if (!touched(each, what.c_str())) return last_problem.c_str();
        return run() ? nullptr : last_problem.c_str();
    });
    return wrong ? fails : 0;
}

void* lapack_function(const std::string& name) {
    for (const char* prefix : {"scipy_", ""})
        if (void* found = numpys ? dlsym(numpys, (prefix + name + "_64_").c_str()) : nullptr) return found;
    problem("NumPy has no LAPACK with a function %s_64_", name.c_str());
    return nullptr;
}

}  // namespace driver

extern "C" void driver_set_lapack(const char* library) { driver::numpys = dlopen(library, RTLD_NOW | RTLD_LOCAL); }

// What stands for a function of a library's that is not there.
extern "C" void driver_has_not(const char* function) {
    driver::Locked locked;
    driver::problem("%s is not there", function);
}
