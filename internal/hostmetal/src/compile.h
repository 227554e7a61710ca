// From a Metal source to a loaded shared object.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "../include/hostmetal/layout.h"

namespace hostmetal {

enum MathMode { kSafe = 0, kRelaxed = 1, kFast = 2 };  // MTLMathMode

struct CompileOptions {
  MathMode math = kFast;        // Apple's default too: whoever wants safe math says so
  bool fast_functions = true;
  unsigned version = 0x30000;   // MTLLanguageVersion
  std::map<std::string, std::string> macros;
  bool contracts = false;       // the fault of a device that fuses whatever it is told
};

struct Module {
  struct Function {
    const hm::Kernel *kernel;
    bool needs_fibers;   // its code reaches a barrier or a SIMD-group function
    size_t variables;    // bytes of the threadgroup variables in its code
  };
  std::map<std::string, Function> functions;
};

// load compiles a source, or finds it compiled, and loads it. Modules live as long as
// the process. On failure it returns null and the compiler's diagnostics.
const Module *load(const std::string &source, const CompileOptions &options, std::string *errors);

// build compiles a source into a shared object at path and writes what its kernels need
// to path + ".facts". An empty path only checks.
bool build(const std::string &source, const std::string &name, const CompileOptions &options, const std::string &path,
           std::string *diagnostics);

// counters, for tests
extern unsigned long compiles, cache_hits;

}  // namespace hostmetal
