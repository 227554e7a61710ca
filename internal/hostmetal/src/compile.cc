#include "compile.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>

#include "msl.h"

extern char **environ;

namespace hostmetal {

unsigned long compiles, cache_hits;

namespace {

std::string env(const char *name, const std::string &otherwise) {
  const char *v = getenv(name);
  return v && *v ? v : otherwise;
}
std::string compiler() { return env("HOSTMETAL_CXX", "clang++-19"); }
std::string include_dir() { return env("HOSTMETAL_INCLUDE", HOSTMETAL_INCLUDE_DIR); }

std::string read_file(const std::string &path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}
bool write_file(const std::string &path, const std::string &text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  return bool(out.flush());
}

// 128-bit FNV-1a: names cache entries.
std::string digest(const std::vector<std::string> &parts) {
  unsigned __int128 h = ((unsigned __int128)0x6c62272e07bb0142ull << 64) | 0x62b821756295c58dull;
  const unsigned __int128 prime = ((unsigned __int128)1 << 88) | 0x13b;
  for (auto &p : parts) {
    for (unsigned char c : p + '\0') {
      h ^= c;
      h *= prime;
    }
  }
  char s[33];
  snprintf(s, sizeof s, "%016llx%016llx", (unsigned long long)(h >> 64), (unsigned long long)h);
  return s;
}

// run starts a program and waits for it. Its diagnostics are appended to *err.
bool run(const std::vector<std::string> &args, const std::string &out, const std::string &dir, std::string *err) {
  std::string log = dir + "/stderr";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.empty() ? "/dev/null" : out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  std::vector<char *> argv, envp;
  for (auto &a : args) argv.push_back(const_cast<char *>(a.c_str()));
  argv.push_back(nullptr);
  // A preloaded sanitizer is for this process, not for the compiler.
  for (char **e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0 && strncmp(*e, "LD_LIBRARY_PATH=", 16) != 0) envp.push_back(*e);
  envp.push_back(nullptr);
  pid_t pid;
  int e = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (e != 0) {
    *err += "hostmetal: cannot start " + args[0] + ": " + strerror(e) + "\n";
    return false;
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  *err += read_file(log);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::vector<std::string> target_flags() {
#if defined(__aarch64__)
  return {"--target=aarch64-linux-gnu"};
#else
  return {"--target=x86_64-linux-gnu", "-march=x86-64-v3"};
#endif
}

std::vector<std::string> language_flags(const CompileOptions &o) {
  std::vector<std::string> f = {"-x", "c++", "-std=c++14", "-nostdinc", "-nostdinc++", "-isystem", include_dir()};
  for (auto &t : target_flags()) f.push_back(t);
  switch (o.math) {
    case kSafe:
      f.push_back("-ffp-contract=on");
      break;
    case kRelaxed:
      for (auto s : {"-fno-signed-zeros", "-freciprocal-math", "-fassociative-math", "-fno-trapping-math", "-ffp-contract=fast"})
        f.push_back(s);
      break;
    case kFast:
      f.push_back("-ffast-math");
#if defined(__x86_64__)
      f.push_back("-mrecip=all");
#endif
      break;
  }
  return f;
}

std::vector<std::string> preprocess_flags(const CompileOptions &o) {
  std::vector<std::string> f = {"-E", "-include", "hostmetal/prelude.h"};
  unsigned version = (o.version >> 16) * 100 + (o.version & 0xffff) * 10;
  f.push_back("-D__METAL__=1");
  f.push_back("-D__METAL_MACOS__=1");
  f.push_back("-D__METAL_VERSION__=" + std::to_string(version));
  for (auto u : {"__linux__", "__linux", "linux", "__gnu_linux__", "__unix__", "__unix", "unix", "__x86_64__", "__x86_64",
                 "__amd64__", "__amd64", "__aarch64__", "__ELF__"})
    f.push_back(std::string("-U") + u);
  if (o.fast_functions) f.push_back("-DHM_FAST_FUNCTIONS=1");
  for (auto &m : o.macros) f.push_back("-D" + m.first + (m.second.empty() ? "" : "=" + m.second));
  return f;
}

std::vector<std::string> code_flags() {
  std::vector<std::string> f = {
      "-c", "-O2", "-fPIC", "-ffunction-sections", "-fdata-sections", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-fno-math-errno", "-fvisibility=hidden", "-fsigned-char",
      "-Wno-unknown-attributes", "-Wno-unused", "-Werror=c++17-extensions", "-Werror=unknown-pragmas", "-Werror=return-type",
      "-Werror=uninitialized", "-fno-caret-diagnostics", "-Xclang", "-cl-single-precision-constant",
      // binary16 operations round to binary16 each
      "-Xclang", "-ffloat16-excess-precision=none"};
#if defined(HOSTMETAL_ASAN)
  for (auto s : {"-fsanitize=address", "-g1", "-fno-omit-frame-pointer"}) f.push_back(s);
#endif
#if defined(HOSTMETAL_UBSAN)
  for (auto s : {"-fsanitize=undefined,float-cast-overflow", "-fno-sanitize=vptr,function", "-fno-sanitize-recover=all", "-g1"})
    f.push_back(s);
#endif
#if !defined(HOSTMETAL_ASAN) && !defined(HOSTMETAL_UBSAN)
  f.push_back("-fno-asynchronous-unwind-tables");
#endif
  return f;
}

// Facts is what a kernel's code tells: whether it reaches a barrier or a SIMD-group
// function, and the bytes of its threadgroup variables, which are thread-local here.
struct Facts {
  bool fibers = false;
  size_t variables = 0;
};

// read_facts follows relocations from section to section, from each kernel's thunk; every
// function and variable has a section of its own. The result is by kernel id.
bool read_facts(const std::string &object, std::map<std::string, Facts> *facts) {
  std::string data = read_file(object);
  if (data.size() < sizeof(Elf64_Ehdr)) return false;
  const char *base = data.data();
  auto header = reinterpret_cast<const Elf64_Ehdr *>(base);
  auto sections = reinterpret_cast<const Elf64_Shdr *>(base + header->e_shoff);
  size_t count = header->e_shnum ? header->e_shnum : sections[0].sh_size;
  const Elf64_Sym *symbols = nullptr;
  const char *names = nullptr;
  const Elf64_Word *wide = nullptr;  // section numbers that do not fit 16 bits
  size_t symbol_count = 0;
  for (size_t i = 0; i < count; i++) {
    if (sections[i].sh_type == SHT_SYMTAB) {
      symbols = reinterpret_cast<const Elf64_Sym *>(base + sections[i].sh_offset);
      symbol_count = sections[i].sh_size / sizeof(Elf64_Sym);
      names = base + sections[sections[i].sh_link].sh_offset;
    }
    if (sections[i].sh_type == SHT_SYMTAB_SHNDX) wide = reinterpret_cast<const Elf64_Word *>(base + sections[i].sh_offset);
  }
  if (!symbols) return false;
  auto section_of = [&](size_t s) -> size_t {
    return symbols[s].st_shndx == SHN_XINDEX && wide ? wide[s] : symbols[s].st_shndx;
  };
  std::vector<std::set<size_t>> to(count);  // by section: the sections it refers to
  std::vector<bool> collective(count);
  for (size_t i = 0; i < count; i++) {
    if (sections[i].sh_type != SHT_RELA) continue;
    auto rela = reinterpret_cast<const Elf64_Rela *>(base + sections[i].sh_offset);
    size_t from = sections[i].sh_info;
    for (size_t r = 0; r < sections[i].sh_size / sizeof(Elf64_Rela); r++) {
      size_t s = ELF64_R_SYM(rela[r].r_info);
      if (symbols[s].st_shndx == SHN_UNDEF) {
        std::string name = names + symbols[s].st_name;
        if (name == "hostmetal_threadgroup_barrier" || name == "hostmetal_simdgroup_barrier" || name == "hostmetal_exchange")
          collective[from] = true;
      } else if (section_of(s) < count) {
        to[from].insert(section_of(s));
      }
    }
  }
  for (size_t s = 0; s < symbol_count; s++) {
    std::string name = names + symbols[s].st_name;
    if (name.compare(0, 10, "hm_thread_") != 0) continue;
    Facts &f = (*facts)[name.substr(10)];
    std::vector<size_t> todo = {section_of(s)};
    std::set<size_t> seen(todo.begin(), todo.end());
    while (!todo.empty()) {
      size_t at = todo.back();
      todo.pop_back();
      if (collective[at]) f.fibers = true;
      if (sections[at].sh_flags & SHF_TLS) f.variables += (sections[at].sh_size + 15) / 16 * 16;
      for (size_t n : to[at])
        if (seen.insert(n).second) todo.push_back(n);
    }
  }
  return true;
}

struct TempDir {
  std::string path;
  TempDir() {
    std::string p = env("TMPDIR", "/tmp") + "/hostmetal.XXXXXX";
    if (char *d = mkdtemp(&p[0])) path = d;
  }
  ~TempDir() {
    if (path.empty()) return;
    for (auto f : {"/source.metal", "/source.ii", "/source.cc", "/source.o", "/stderr"}) unlink((path + f).c_str());
    rmdir(path.c_str());
  }
};

bool make_dirs(const std::string &path) {
  for (size_t i = 1; i <= path.size(); i++)
    if (i == path.size() || path[i] == '/')
      if (mkdir(path.substr(0, i).c_str(), 0755) != 0 && errno != EEXIST) return false;
  return true;
}

std::string cache_dir() {
  std::string home = env("HOME", "/tmp");
  return env("HOSTMETAL_CACHE", env("XDG_CACHE_HOME", home + "/.cache") + "/turbotrellis-hostmetal");
}

// The compiler by path, size and time; asking it for its version costs more.
std::string compiler_identity() {
  std::string c = compiler(), found = c;
  if (c.find('/') == std::string::npos) {
    std::stringstream path(env("PATH", "/usr/bin:/bin"));
    for (std::string d; std::getline(path, d, ':');)
      if (access((d + "/" + c).c_str(), X_OK) == 0) {
        found = d + "/" + c;
        break;
      }
  }
  struct stat st {};
  stat(found.c_str(), &st);
  return found + ":" + std::to_string(st.st_size) + ":" + std::to_string(st.st_mtime);
}

std::string join(const std::vector<std::string> &list) {
  std::string s;
  for (auto &l : list) s += l + "\n";
  return s;
}

std::mutex load_mutex;
std::vector<const hm::Kernel *> registered;  // by the constructors of the object being loaded

}  // namespace

extern "C" void hostmetal_register(const hm::Kernel *k) { registered.push_back(k); }

bool build(const std::string &source, const std::string &name, const CompileOptions &options, const std::string &path,
           std::string *diagnostics) {
  TempDir dir;
  std::string d = dir.path;
  if (d.empty() || !write_file(d + "/source.metal", "#line 1 \"" + name + "\"\n" + source)) {
    *diagnostics += "hostmetal: cannot write a temporary file\n";
    return false;
  }
  std::vector<std::string> base = {compiler()};
  for (auto &f : language_flags(options)) base.push_back(f);

  std::vector<std::string> args = base;
  for (auto &f : preprocess_flags(options)) args.push_back(f);
  args.push_back(d + "/source.metal");
  if (!run(args, d + "/source.ii", d, diagnostics)) return false;

  Rewritten r = rewrite(read_file(d + "/source.ii"));
  if (options.contracts) {
    const std::string off = "#pragma clang fp contract(off)";
    for (size_t at; (at = r.text.find(off)) != std::string::npos;) r.text.replace(at, off.size(), "#pragma clang fp contract(fast)");
  }
  write_file(d + "/source.cc", r.text);
  if (!r.errors.empty()) {
    *diagnostics += r.errors;
    return false;
  }
  args = base;
  if (options.contracts) args.push_back("-ffp-contract=fast");
  for (auto &f : code_flags()) args.push_back(f);
  if (path.empty()) args.push_back("-fsyntax-only");
  args.insert(args.end(), {"-o", d + "/source.o", d + "/source.cc"});
  if (!run(args, "", d, diagnostics)) return false;
  if (path.empty()) return true;

  std::map<std::string, Facts> facts;
  if (!read_facts(d + "/source.o", &facts)) {
    *diagnostics += "hostmetal: cannot read the object file\n";
    return false;
  }
  std::string unique = path + d.substr(d.rfind('.'));
  std::string lines;
  for (auto &f : facts) lines += f.first + " " + std::to_string(f.second.fibers) + " " + std::to_string(f.second.variables) + "\n";
  write_file(unique, lines);
  rename(unique.c_str(), (path + ".facts").c_str());
  args = {compiler()};
  for (auto &f : target_flags()) args.push_back(f);
#if defined(__aarch64__)
  args.push_back("-fuse-ld=lld");
#endif
  args.insert(args.end(), {"-shared", "-nostdlib", "-Wl,-z,now", "-o", unique, d + "/source.o"});
  if (!run(args, "", d, diagnostics)) {
    unlink(unique.c_str());
    return false;
  }
  return rename(unique.c_str(), path.c_str()) == 0;
}

const Module *load(const std::string &source, const CompileOptions &options, std::string *errors) {
  static std::map<std::string, Module *> modules;
  std::lock_guard<std::mutex> lock(load_mutex);
  static const std::string shim = [] {
    std::string s;
    for (auto f : {"/metal_stdlib", "/hostmetal/prelude.h", "/hostmetal/kernel.h", "/hostmetal/layout.h"})
      s += read_file(include_dir() + f);
    return s;
  }();
  std::string key = digest({source, join(language_flags(options)), join(preprocess_flags(options)), join(code_flags()),
                            options.contracts ? "contracts" : "", compiler_identity(), shim, HOSTMETAL_BUILD_ID});
  auto found = modules.find(key);
  if (found != modules.end()) {
    cache_hits++;
    return found->second;
  }
  std::string dir = cache_dir(), path = dir + "/" + key + ".so";
  if (!make_dirs(dir)) {
    *errors = "hostmetal: cannot make the cache folder " + dir;
    return nullptr;
  }
  if (access(path.c_str(), R_OK) == 0) {
    cache_hits++;
  } else {
    compiles++;
    if (!build(source, "program_source", options, path, errors)) return nullptr;
  }
  registered.clear();
  if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    *errors = std::string("hostmetal: ") + dlerror();
    return nullptr;
  }
  std::map<std::string, Facts> facts;
  std::stringstream lines(read_file(path + ".facts"));
  Facts f;
  for (std::string id; lines >> id >> f.fibers >> f.variables;) facts[id] = f;
  Module *m = new Module;
  for (auto k : registered) m->functions[k->name] = {k, facts[k->id].fibers, facts[k->id].variables};
  modules[key] = m;
  return m;
}

}  // namespace hostmetal
