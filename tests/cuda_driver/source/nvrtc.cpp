// NVRTC: a program is compiled by a function of Python's (tests/cuda_driver/nvrtc.py); its "machine code" is the path of
// a shared object, which cuModuleLoadData opens, and a line about dimensions (tests/cuda_driver/dimensions.py).

#include <cstring>
#include <map>
#include <string>
#include <vector>

// Source, options and instances of templates, one a line, in; path of the shared object, or log of errors, out. Returns
// whether it compiled.
typedef int (*Compile)(const char* source, const char* options, const char* instances, char* text, size_t size);
static Compile compile = nullptr;

struct Program {
    std::string source, path, log;
    std::vector<std::string> instances, lowered;  // of templates, as the caller writes them and as symbols
};

extern "C" {

void driver_set_compiler(Compile function) { compile = function; }

const char* nvrtcGetErrorString(int error) { return error == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }
int nvrtcVersion(int* major, int* minor) { return *major = 12, *minor = 9, 0; }
int nvrtcGetNumSupportedArchs(int* count) { return *count = 1, 0; }
int nvrtcGetSupportedArchs(int* archs) { return *archs = 90, 0; }
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char**, const char**) {
    *program = new Program{source, "", "", {}, {}};
    return 0;
}
int nvrtcDestroyProgram(Program** program) {
    delete *program;
    return *program = nullptr, 0;
}
int nvrtcCompileProgram(Program* program, int count, const char** options) {
    std::string all, instances;
    for (int i = 0; i < count; i++) all += std::string(options[i]) + "\n";
    for (auto& each : program->instances) instances += each + "\n";
    std::vector<char> text(1 << 16);
    bool good = compile(program->source.c_str(), all.c_str(), instances.c_str(), text.data(), text.size());
    (good ? program->path : program->log) = text.data();
    return good ? 0 : 6;
}
static int size(const std::string& text, size_t* to) { return *to = text.size() + 1, 0; }
static int take(const std::string& text, char* to) { return memcpy(to, text.c_str(), text.size() + 1), 0; }
int nvrtcGetCUBINSize(Program* program, size_t* to) { return size(program->path, to); }
int nvrtcGetCUBIN(Program* program, char* to) { return take(program->path, to); }
int nvrtcGetPTXSize(Program* program, size_t* to) { return size(program->path, to); }
int nvrtcGetPTX(Program* program, char* to) { return take(program->path, to); }
int nvrtcGetProgramLogSize(Program* program, size_t* to) { return size(program->log, to); }
int nvrtcGetProgramLog(Program* program, char* to) { return take(program->log, to); }
int nvrtcAddNameExpression(Program* program, const char* instance) {
    program->lowered.push_back("instance_" + std::to_string(program->instances.size()));
    program->instances.push_back(instance);
    return 0;
}
int nvrtcGetLoweredName(Program* program, const char* instance, const char** symbol) {
    for (size_t i = 0; i < program->instances.size(); i++)
        if (program->instances[i] == instance) return *symbol = program->lowered[i].c_str(), 0;
    return 10;  // NVRTC_ERROR_NAME_EXPRESSION_NOT_VALID
}
}
