// Metal Shading Language to C++: the rewriting of a preprocessed source.
#pragma once

#include <string>

namespace hostmetal {

struct Rewritten {
  std::string text;    // C++ for clang, lines where they were
  std::string errors;  // clang-style diagnostics; empty when all is well
};

// rewrite turns what `clang -E` made of a Metal source into C++. It removes the address
// space words and Metal's attributes, gives uint4(...) and its like their meaning,
// translates `#pragma METAL fp`, refuses what Metal's language does not have, and adds
// to each kernel and each host_name instantiation the thunks the library calls.
Rewritten rewrite(const std::string &preprocessed);

}  // namespace hostmetal
