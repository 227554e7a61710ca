// hostmetal-cc: checks a Metal source, or compiles it to a shared object.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "compile.h"

int main(int argc, char **argv) {
  hostmetal::CompileOptions o;
  o.math = hostmetal::kSafe;
  o.fast_functions = false;
  std::string out, source;
  for (int i = 1; i < argc; i++) {
    std::string a = argv[i];
    if (a == "-o" && i + 1 < argc) out = argv[++i];
    else if (a == "-ffast-math") o.math = hostmetal::kFast, o.fast_functions = true;
    else if (a.compare(0, 2, "-D") == 0) {
      size_t eq = a.find('=');
      o.macros[a.substr(2, eq == std::string::npos ? eq : eq - 2)] = eq == std::string::npos ? "1" : a.substr(eq + 1);
    } else if (a[0] != '-' && source.empty()) source = a;
    else {
      fprintf(stderr, "usage: hostmetal-cc [-o OUT.so] [-ffast-math] [-DNAME=VALUE] SOURCE.metal\n");
      return 2;
    }
  }
  std::ifstream in(source, std::ios::binary);
  if (!in) {
    fprintf(stderr, "hostmetal-cc: cannot read %s\n", source.c_str());
    return 1;
  }
  std::stringstream text;
  text << in.rdbuf();
  std::string diagnostics;
  bool ok = hostmetal::build(text.str(), source, o, out, &diagnostics);
  fputs(diagnostics.c_str(), stderr);
  return ok ? 0 : 1;
}
