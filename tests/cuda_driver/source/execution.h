// Running a kernel: see execution.cpp.

#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace driver {

struct Kernel {
    std::string name;
    void (*thread)(void** parameters);
    std::vector<size_t> sizes;    // of the parameters
    std::vector<int> dimensions;  // that the caller's have where the kernel is for more, else -1
    int most_threads;           // of a block
    int most_shared;            // bytes of dynamic shared memory that it is permitted
    bool ended_arrive;          // threads that have ended count as arrived at barriers
};
struct Shape {
    unsigned grid[3], block[3];
    size_t shared;
};

// All blocks, one after another, by the work under way. NULL, or what went wrong.
const char* run_grid(const Kernel& kernel, void** parameters, const Shape& shape);

}  // namespace driver
