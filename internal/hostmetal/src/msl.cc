#include "msl.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <set>
#include <vector>

namespace hostmetal {
namespace {

enum Type { kSpace, kMarker, kPragma, kName, kNumber, kString, kPunct };

struct Token {
  Type type;
  std::string text;
  bool user;  // from the source itself, not from the shim
  int file, line;
};

bool name_start(char c) { return isalpha((unsigned char)c) || c == '_'; }
bool name_part(char c) { return isalnum((unsigned char)c) || c == '_'; }

std::vector<Token> tokenize(const std::string &s, std::vector<std::string> *files) {
  std::vector<Token> out;
  bool user = false, line_start = true;
  int file = 0, line = 1;
  files->push_back("program_source");
  size_t i = 0, n = s.size();
  auto add = [&](Type t, size_t end) {
    out.push_back({t, s.substr(i, end - i), user, file, line});
    i = end;
  };
  while (i < n) {
    char c = s[i];
    if (c == '\n') {
      add(kSpace, i + 1);
      line++;
      line_start = true;
      continue;
    }
    if (isspace((unsigned char)c)) {
      add(kSpace, i + 1);
      continue;
    }
    if (c == '#' && line_start) {
      size_t end = s.find('\n', i);
      if (end == std::string::npos) end = n;
      size_t p = s.find_first_not_of(" \t", i + 1);
      if (p < end && isdigit((unsigned char)s[p])) {
        size_t open = s.find('"', p), close = s.find('"', open + 1);
        std::string name = s.substr(open + 1, close - open - 1), flags = s.substr(close + 1, end - close - 1);
        int at = atoi(s.c_str() + p);
        add(kMarker, end);
        user = flags.find('3') == std::string::npos && name[0] != '<';
        file = std::find(files->begin(), files->end(), name) - files->begin();
        if (file == int(files->size())) files->push_back(name);
        line = at - 1;
      } else {
        add(kPragma, end);
      }
      continue;
    }
    line_start = false;
    size_t e = i + 1;
    if (name_start(c)) {
      while (e < n && name_part(s[e])) e++;
      add(kName, e);
    } else if (isdigit((unsigned char)c) || (c == '.' && e < n && isdigit((unsigned char)s[e]))) {
      while (e < n && (name_part(s[e]) || s[e] == '.' || s[e] == '\'' ||
                       ((s[e] == '+' || s[e] == '-') && strchr("eEpP", s[e - 1]))))
        e++;
      add(kNumber, e);
    } else if (c == '"' || c == '\'') {
      while (e < n && s[e] != c && s[e] != '\n') e += s[e] == '\\' ? 2 : 1;
      add(kString, e + 1 < n ? e + 1 : n);
    } else {
      if (c == ':' && e < n && s[e] == ':') e++;
      add(kPunct, e);
    }
  }
  return out;
}

const std::set<std::string> kValues = {
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup", "dispatch_simdgroups_per_threadgroup", "threads_per_simdgroup",
    "thread_execution_width", "thread_position_in_threadgroup", "thread_position_in_grid",
    "threadgroup_position_in_grid", "threadgroups_per_grid", "threads_per_grid", "grid_size",
    "threads_per_threadgroup", "dispatch_threads_per_threadgroup", "grid_origin"};

const std::set<std::string> kVectors = {
    "char2", "char3", "char4", "uchar2", "uchar3", "uchar4", "short2", "short3", "short4",
    "ushort2", "ushort3", "ushort4", "int2", "int3", "int4", "uint2", "uint3", "uint4",
    "long2", "long3", "long4", "ulong2", "ulong3", "ulong4", "half2", "half3", "half4",
    "float2", "float3", "float4", "bool2", "bool3", "bool4"};

// Words of C++ that Metal's language does not have (specification, 1.5.4).
const std::set<std::string> kRefused = {"double", "virtual", "dynamic_cast", "typeid", "throw", "try", "catch",
                                        "new", "delete", "goto", "thread_local", "asm", "vertex", "fragment"};

struct Attribute {
  std::string name, argument;
};

class Rewriter {
 public:
  explicit Rewriter(const std::string &s) { t_ = tokenize(s, &files_); }

  Rewritten run() {
    before_.resize(t_.size() + 1);
    drop_.resize(t_.size());
    for (size_t i = 0; i < t_.size(); i++) token(i);
    Rewritten r;
    for (size_t i = 0; i < t_.size(); i++) {
      r.text += before_[i];
      if (!drop_[i]) {
        r.text += t_[i].text;
      } else {
        for (char c : t_[i].text)
          if (c == '\n') r.text += c;
        if (t_[i].type == kName) r.text += ' ';
      }
    }
    r.text += before_[t_.size()];
    r.text += "\n";
    r.errors = errors_;
    return r;
  }

 private:
  std::vector<Token> t_;
  std::vector<std::string> before_;  // text put in front of a token
  std::vector<bool> drop_;
  std::vector<std::string> files_;
  std::string errors_;
  std::map<std::string, std::vector<std::string>> kernels_;  // template kernels: argument bindings
  int next_id_ = 0;
  size_t handled_ = 0;  // declarations before this index have their thunks

  bool solid(size_t i) const { return t_[i].type > kPragma; }
  bool is(size_t i, const char *s) const { return i < t_.size() && t_[i].text == s; }
  size_t next(size_t i) const {
    do i++;
    while (i < t_.size() && !solid(i));
    return i;
  }
  // prev returns t_.size() when nothing solid comes before.
  size_t prev(size_t i) const {
    while (i-- > 0)
      if (solid(i)) return i;
    return t_.size();
  }
  void error(size_t i, const std::string &message) {
    errors_ += files_[t_[i].file] + ":" + std::to_string(t_[i].line) + ": error: " + message + "\n";
  }
  // closing returns the index of the bracket that matches the one at i.
  size_t closing(size_t i) const {
    int depth = 0;
    for (; i < t_.size(); i++) {
      if (t_[i].type != kPunct) continue;
      char c = t_[i].text[0];
      if (c == '(' || c == '[' || c == '{') depth++;
      if ((c == ')' || c == ']' || c == '}') && --depth == 0) return i;
    }
    return t_.size();
  }
  // text joins tokens [a, b); an attribute's own words count though they are dropped.
  std::string text(size_t a, size_t b, bool dropped = false) const {
    std::string s;
    for (size_t i = a; i < b && i < t_.size(); i++) {
      if (t_[i].type == kMarker || t_[i].type == kPragma) continue;
      if (t_[i].type == kSpace) {
        if (!s.empty() && s.back() != ' ') s += ' ';
      } else if (dropped || !drop_[i]) {
        s += t_[i].text;
      }
    }
    while (!s.empty() && s.back() == ' ') s.pop_back();
    return s;
  }
  bool attribute_opens(size_t i) const {
    return is(i, "[") && is(i + 1, "[");
  }

  // attributes parses [[...]] at i, drops it when it is Metal's and returns the index
  // after it.
  size_t attributes(size_t i, std::vector<Attribute> *out) {
    size_t end = closing(i);
    std::vector<Attribute> found;
    for (size_t j = next(next(i)); j < end && !is(j, "]"); j = next(j)) {
      if (is(j, ",")) continue;
      Attribute a{t_[j].text, ""};
      while (is(next(j), "::")) {
        j = next(next(j));
        a.name += "::" + t_[j].text;
      }
      if (is(next(j), "(")) {
        size_t open = next(j), close = closing(open);
        a.argument = text(open + 1, close, true);
        j = close;
      }
      found.push_back(a);
    }
    bool metal = false;
    for (auto &a : found) {
      if (a.name == "kernel" || a.name == "host_name" || a.name == "max_total_threads_per_threadgroup" ||
          a.name == "buffer" || a.name == "threadgroup" || kValues.count(a.name)) {
        metal = true;
      } else if (a.name == "texture" || a.name == "sampler" || a.name == "function_constant" ||
                 a.name == "stage_in" || a.name == "visible" || a.name == "intersection") {
        error(i, "hostmetal does not support [[" + a.name + "]]");
      }
    }
    if (metal)
      for (size_t j = i; j <= end && j < t_.size(); j++) drop_[j] = true;
    if (out) out->insert(out->end(), found.begin(), found.end());
    return end + 1;
  }

  static const Attribute *find(const std::vector<Attribute> &list, const char *name) {
    for (auto &a : list)
      if (a.name == name) return &a;
    return nullptr;
  }

  // bindings reads a parameter list between the parentheses open and close.
  std::vector<std::string> bindings(size_t open, size_t close) {
    std::vector<std::string> out;
    if (next(open) == close || (is(next(open), "void") && next(next(open)) == close)) return out;
    size_t start = next(open);
    int angle = 0;
    std::vector<Attribute> attrs;
    for (size_t i = start; i <= close;) {
      if (i == close || (is(i, ",") && angle == 0)) {
        std::string binding;
        for (auto &a : attrs) {
          if (a.name == "buffer") binding = "::hm::buffer<(" + a.argument + ")>";
          if (a.name == "threadgroup") binding = "::hm::threadgroup_memory<(" + a.argument + ")>";
          if (kValues.count(a.name)) binding = "::hm::" + a.name;
        }
        if (binding.empty()) error(start < close ? start : open, "kernel argument without [[buffer(n)]], [[threadgroup(n)]] or a built-in's attribute");
        out.push_back(binding);
        attrs.clear();
        i = next(i);
        start = i;
        continue;
      }
      if (attribute_opens(i)) {
        i = attributes(i, &attrs);
        if (i < t_.size() && !solid(i)) i = next(i);
        continue;
      }
      if (is(i, "<")) angle++;
      if (is(i, ">")) angle--;
      if (is(i, "(") || is(i, "[") || is(i, "{")) {
        i = next(closing(i));
        continue;
      }
      i = next(i);
    }
    return out;
  }

  std::string thunks(const std::string &name, const std::string &function, const std::string &max,
                     const std::vector<std::string> &bind) {
    std::string id = std::to_string(next_id_++), types;
    for (auto &b : bind) types += (types.empty() ? "" : ", ") + b;
    std::string hidden = "extern \"C\" __attribute__((visibility(\"hidden\"))) void ", binding = "::hm::Binding<" + types + ">";
    // The names are the implementation's, so that none hides the kernel's.
    return " " + hidden + "hm_thread_" + id + "(const ::hm::Group *__g, unsigned __i) { " + binding + "::call(&" + function +
           ", ::hm::thread_at(__g, __i)); } " + hidden + "hm_loop_" + id +
           "(const ::hm::Group *__g, const unsigned *__order) { for (unsigned __i = 0; __i < __g->threads; __i++) " + binding +
           "::call(&" + function + ", ::hm::thread_at(__g, __order ? __order[__i] : __i)); } " +
           "__attribute__((constructor)) static void hm_register_" + id + "() { static const ::hm::Kernel __k = {" + name + ", \"" + id +
           "\", " + binding + "::arguments(&" + function + "), " + binding + "::check(&" + function + "), " +
           (max.empty() ? "0" : "(" + max + ")") + ", hm_thread_" + id + ", hm_loop_" + id + "}; ::hm::hostmetal_register(&__k); }";
  }

  // kernel handles the declaration in which `kernel` or [[kernel]] stands at i.
  void kernel(size_t i) {
    if (i < handled_) return;
    size_t begin = i;
    for (size_t p = prev(i); p != t_.size() && !is(p, ";") && !is(p, "}") && !is(p, "{"); p = prev(p)) begin = p;
    bool is_template = is(begin, "template") && is(next(begin), "<");
    bool instantiation = is(begin, "template") && !is_template;

    // Walk to the parameter list or the end, collecting attributes.
    std::vector<Attribute> attrs;
    size_t open = t_.size(), end = t_.size(), name = t_.size(), decltype_close = t_.size();
    size_t j = begin;
    if (is_template) {  // skip template <...>
      int angle = 0;
      for (j = next(j); j < t_.size(); j = next(j)) {
        if (is(j, "<")) angle++;
        if (is(j, ">") && --angle == 0) break;
        if (is(j, "(")) j = closing(j);
      }
      j = next(j);
    }
    int angle = 0;
    while (j < t_.size()) {
      if (attribute_opens(j)) {
        j = attributes(j, &attrs);
        if (j < t_.size() && !solid(j)) j = next(j);
        continue;
      }
      if (is(j, ";") || is(j, "{")) {
        end = j;
        break;
      }
      if (is(j, "decltype") && is(next(j), "(")) {
        decltype_close = closing(next(j));
        j = next(decltype_close);
        continue;
      }
      if (is(j, "__attribute__") && is(next(j), "(")) {
        j = next(closing(next(j)));
        continue;
      }
      if (is(j, "<")) angle++;
      if (is(j, ">")) angle--;
      if (is(j, "(") && angle == 0) {
        open = j;
        break;
      }
      if (is(j, "(")) {
        j = next(closing(j));
        continue;
      }
      if (t_[j].type == kName && angle == 0) name = j;
      j = next(j);
    }
    std::string max;
    if (auto a = find(attrs, "max_total_threads_per_threadgroup")) max = a->argument;
    std::string host;
    if (auto a = find(attrs, "host_name")) host = a->argument;

    if (instantiation && open == t_.size()) {  // template [[host_name("x")]] [[kernel]] decltype(f<A>) f<A>;
      if (decltype_close == t_.size() || end == t_.size()) return error(i, "cannot read this kernel instantiation");
      std::string function = text(next(decltype_close), end);
      instantiate(i, host, function, max, end, nullptr);
      handled_ = end;
      return;
    }
    if (open == t_.size() || name == t_.size()) return error(i, "expected a kernel function");
    size_t close = closing(open);
    std::vector<std::string> bind = bindings(open, close);
    size_t after = next(close);
    while (after < t_.size() && attribute_opens(after)) {
      after = attributes(after, &attrs);
      if (after < t_.size() && !solid(after)) after = next(after);
    }
    if (auto a = find(attrs, "max_total_threads_per_threadgroup")) max = a->argument;
    if (instantiation) {  // template [[host_name("x")]] kernel void f<A>(parameters);
      std::string function = text(name, open);
      instantiate(i, host, function, max, after, &bind);
      handled_ = after;
      return;
    }
    std::string id = t_[name].text;
    if (is_template) {
      kernels_[id] = bind;
      limits_[id] = max;
    } else if (is(after, "{")) {
      std::string quoted = host.empty() ? "\"" + id + "\"" : host;
      size_t body = closing(after);
      before_[body + 1 < t_.size() ? body + 1 : t_.size()] += thunks(quoted, id, max, bind);
    }
    handled_ = after;
  }

  std::map<std::string, std::string> limits_;

  void instantiate(size_t at, const std::string &host, const std::string &function, const std::string &max,
                   size_t semicolon, const std::vector<std::string> *bind) {
    if (host.empty()) return error(at, "a kernel instantiation needs [[host_name(\"...\")]]");
    std::string base = function.substr(0, function.find('<'));
    size_t colon = base.rfind("::");
    if (colon != std::string::npos) base = base.substr(colon + 2);
    while (!base.empty() && base.back() == ' ') base.pop_back();
    auto known = kernels_.find(base);
    if (known == kernels_.end()) return error(at, "no kernel template named '" + base + "'");
    before_[semicolon + 1] += thunks(host, function, max.empty() ? limits_[base] : max, bind ? *bind : known->second);
  }

  void pragma(size_t i) {
    std::string words;
    for (char c : t_[i].text)
      if (!isspace((unsigned char)c)) words += c;
    const char *fp = "#pragmaMETALfp";
    if (words.compare(0, strlen(fp), fp) != 0) return;
    std::string rest = words.substr(strlen(fp));
    std::string &s = t_[i].text;
    if (rest == "contract(off)") s = "#pragma clang fp contract(off)";
    else if (rest == "contract(on)") s = "#pragma clang fp contract(on)";
    else if (rest == "contract(fast)") s = "#pragma clang fp contract(fast)";
    else if (rest == "math_mode(safe)") s = "#pragma float_control(precise, on)";
    else if (rest == "math_mode(relaxed)" || rest == "math_mode(fast)") s = "#pragma float_control(precise, off)";
    else error(i, "unknown pragma METAL fp " + rest);
  }

  // statement_starts reports whether the token at i begins a declaration or statement.
  bool statement_starts(size_t i) const {
    size_t p = prev(i);
    return p == t_.size() || is(p, ";") || is(p, "{") || is(p, "}") || is(p, ")");
  }

  // threadgroup_variable: `threadgroup T name[N];` in a kernel's body is memory of the
  // threadgroup; a pointer or reference to it is an ordinary variable.
  void threadgroup_variable(size_t i) {
    if (!statement_starts(i)) return;
    size_t name = t_.size(), end = next(i);
    int angle = 0;
    for (; end < t_.size() && !is(end, ";"); end = next(end)) {
      if (is(end, "<")) angle++;
      if (is(end, ">")) angle--;
      if (angle > 0) continue;
      if (is(end, "*") || is(end, "&") || is(end, "=") || is(end, "(") || is(end, "{")) return;
      if (is(end, "[")) {
        end = prev(next(closing(end)));
        continue;
      }
      if (is(end, ",")) return error(i, "declare one threadgroup variable a statement");
      if (t_[end].type == kName) name = end;
    }
    if (name == t_.size() || end == t_.size()) return;
    before_[i] += "static thread_local ";
    before_[end + 1] += " ::hm::hostmetal_threadgroup_variable(&" + t_[name].text + ", sizeof(" + t_[name].text + "));";
  }

  void token(size_t i) {
    if (t_[i].type == kPragma) return pragma(i);
    if (attribute_opens(i) && !drop_[i]) {
      std::vector<Attribute> attrs;
      bool kernel_here = false;
      size_t end = closing(i);
      for (size_t j = i; j < end; j++) kernel_here |= t_[j].type == kName && t_[j].text == "kernel";
      if (kernel_here) kernel(i);
      if (!drop_[i]) attributes(i, nullptr);
      return;
    }
    if (t_[i].type != kName || drop_[i]) return;
    const std::string &s = t_[i].text;
    if (s == "device" || s == "thread") {
      drop_[i] = true;
    } else if (s == "threadgroup") {
      drop_[i] = true;
      threadgroup_variable(i);
    } else if (s == "constant") {
      drop_[i] = true;
      before_[i] += "const";
    } else if (s == "kernel") {
      drop_[i] = true;
      kernel(i);
    } else if (kVectors.count(s) && is(next(i), "(") && !is(next(next(i)), "*") && !is(next(next(i)), "&") &&
               !is(prev(i), "operator")) {
      before_[i] += "::hm::make<";
      before_[i + 1] += ">";
    } else if (t_[i].user && kRefused.count(s)) {
      error(i, "'" + s + "' is not supported in Metal");
    } else if (t_[i].user && s == "long" && (is(next(i), "long") || is(next(i), "double"))) {
      error(i, "'long long' is not supported in Metal");
    }
  }
};

}  // namespace

Rewritten rewrite(const std::string &preprocessed) { return Rewriter(preprocessed).run(); }

}  // namespace hostmetal
