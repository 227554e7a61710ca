// Metal's Objective-C API over the engine. Manual reference counting, GCC's runtime.
#import <Metal/Metal.h>
#include <dlfcn.h>
#include <objc/message.h>
#include <objc/runtime.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "../hostmetal.h"
#include "engine.h"

using hostmetal::CompileOptions;
using hostmetal::Dispatch;
using hostmetal::Memory;
using hostmetal::Module;
using hostmetal::settings;

NSString *const MTLLibraryErrorDomain = @"MTLLibraryErrorDomain";
NSString *const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

// ---- settings and faults -------------------------------------------------------------

namespace {

enum Fault {
  kNoDevice, kNoQueue, kNoLibrary, kNoFunction, kNoPipeline, kNoCommandBuffer, kNoEncoder, kNoBuffer,
  kCommandOutOfMemory, kCommandTimeout, kCommandPageFault, kCommandIgnored, kCommandHang,
  kContracts, kRoundsWrongly, kWidth16, kThreads256, kLittleMemory,
  kFaults
};
const char *const kFaultNames[kFaults] = {
    "no-device", "no-queue", "no-library", "no-function", "no-pipeline", "no-command-buffer", "no-encoder", "no-buffer",
    "command-out-of-memory", "command-timeout", "command-page-fault", "command-ignored", "command-hang",
    "contracts", "rounds-wrongly", "width-16", "threads-256", "little-memory"};
constexpr size_t kLittle = 1 << 20;

std::mutex fault_mutex;
long faults[kFaults];
std::atomic<bool> hung;  // a command buffer, until faults are cleared

bool trait(Fault f) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  return faults[f] != 0;
}
// strikes reports whether an event's fault is due, and counts the event.
bool strikes(Fault f) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  if (faults[f] <= 0) return faults[f] < 0;
  return --faults[f] == 0;
}

long env_number(const char *name, long otherwise) {
  const char *s = getenv(name);
  return s && *s ? strtol(s, nullptr, 0) : otherwise;
}

std::mutex misuse_mutex;
std::string last_misuse;
std::atomic<unsigned long> misuses;

// misuse is Metal's validation layer speaking.
void misuse(const std::string &what) {
  if (settings.abort) {
    fprintf(stderr, "hostmetal: misuse: %s\n", what.c_str());
    abort();
  }
  std::lock_guard<std::mutex> lock(misuse_mutex);
  last_misuse = what;
  misuses++;
}

// ---- live objects ------------------------------------------------------------------------

enum Kind { kDevice, kArchitecture, kOptions, kLibrary, kFunction, kPipeline, kBufferObject, kQueue, kCommandBuffer, kEncoder, kKinds };
const char *const kKindNames[kKinds] = {"MTLDevice", "MTLArchitecture", "MTLCompileOptions", "MTLLibrary", "MTLFunction",
                                        "MTLComputePipelineState", "MTLBuffer", "MTLCommandQueue", "MTLCommandBuffer",
                                        "MTLComputeCommandEncoder"};
std::atomic<long> live[kKinds];

// Dead objects are kept a while, as zombies that know what they were.
constexpr size_t kZombies = 4096;
std::mutex zombie_mutex;
std::deque<std::pair<id, Kind>> zombies;

}  // namespace

@interface HostMTLZombie : NSObject
@end

namespace {

[[noreturn]] void zombie_message(id zombie, SEL selector) {
  const char *name = "object";
  {
    std::lock_guard<std::mutex> lock(zombie_mutex);
    for (auto &z : zombies)
      if (z.first == zombie) name = kKindNames[z.second];
  }
  bool release = sel_isEqual(selector, @selector(release)) || sel_isEqual(selector, @selector(autorelease));
  fprintf(stderr, "hostmetal: -[%s %s] sent to a deallocated object: %s\n", name, sel_getName(selector),
          release ? "released once too often" : "used after its release");
  abort();
}

// bury turns a dead object into a zombie; its memory is freed when many have died since. A
// dealloc ends with it, and with an unreachable [super dealloc] for the compiler's peace.
void bury(id object, Kind kind) {
  live[kind]--;
  object_setClass(object, [HostMTLZombie class]);
  id old = nil;
  {
    std::lock_guard<std::mutex> lock(zombie_mutex);
    zombies.push_back({object, kind});
    if (zombies.size() > kZombies) {
      old = zombies.front().first;
      zombies.pop_front();
    }
  }
  if (old) NSDeallocateObject(old);
}

}  // namespace

@implementation HostMTLZombie
- (id)retain {
  zombie_message(self, _cmd);
}
- (oneway void)release {
  zombie_message(self, _cmd);
}
- (id)autorelease {
  zombie_message(self, _cmd);
}
- (NSUInteger)retainCount {
  zombie_message(self, _cmd);
}
- (BOOL)respondsToSelector:(SEL)selector {
  zombie_message(self, _cmd);
}
- (NSMethodSignature *)methodSignatureForSelector:(SEL)selector {
  zombie_message(self, selector);
}
- (void)dealloc {
  return;
  [super dealloc];
}
@end

extern "C" id hostmetal_nil(id, SEL, ...) __attribute__((visibility("hidden")));

extern "C" __attribute__((visibility("hidden"))) IMP hostmetal_lookup(id object, SEL selector) {
  if (object == nil) return hostmetal_nil;
  static Class zombie = [HostMTLZombie class];
  if (object_getClass(object) == zombie) zombie_message(object, selector);
  return objc_msg_lookup(object, selector);
}

// GCC's runtime has no autorelease entry points; GNUstep's pools serve.
extern "C" void *objc_autoreleasePoolPush(void) { return [[NSAutoreleasePool alloc] init]; }
extern "C" void objc_autoreleasePoolPop(void *pool) { [static_cast<NSAutoreleasePool *>(pool) drain]; }

namespace {

NSString *string(const std::string &s) { return [NSString stringWithUTF8String:s.c_str()]; }

NSError *make_error(NSString *domain, NSInteger code, const std::string &text) {
  return [NSError errorWithDomain:domain
                             code:code
                         userInfo:[NSDictionary dictionaryWithObject:string(text) forKey:NSLocalizedDescriptionKey]];
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Traits is what a device was made with.
struct Traits {
  bool contracts, rounds_wrongly;
  unsigned width, threads;
  size_t memory;
};

std::atomic<size_t> allocated;

// Work is a command buffer's content, alive until it has run.
struct Work {
  struct Item {
    Dispatch dispatch;
    bool barrier;  // memoryBarrierWithScope: came before it
  };
  struct Pass {
    bool concurrent = false;
    std::vector<Item> items;
  };
  std::vector<Pass> passes;
  NSUInteger status = MTLCommandBufferStatusNotEnqueued;
  int polls = 0;
  std::string failure;
  NSInteger code = 0;
  double start = 0, end = 0;

  void fail(NSInteger c, const std::string &text) {
    code = c;
    failure = text;
  }

  void run(bool ignored) {
    start = seconds();
    if (ignored) fail(MTLCommandBufferErrorAccessRevoked, "Ignored (for causing prior/excessive GPU errors) (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)");
    else if (strikes(kCommandOutOfMemory)) fail(MTLCommandBufferErrorOutOfMemory, "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)");
    else if (strikes(kCommandTimeout)) fail(MTLCommandBufferErrorTimeout, "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)");
    else if (strikes(kCommandPageFault)) fail(MTLCommandBufferErrorPageFault, "Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)");
    else execute();
    end = seconds();
    passes.clear();
    status = code == 0 ? MTLCommandBufferStatusCompleted : MTLCommandBufferStatusError;
  }

  void execute() {
    for (auto &p : passes) {
      std::vector<size_t> order(p.items.size());
      for (size_t i = 0; i < order.size(); i++) order[i] = i;
      if (p.concurrent && settings.seed) {  // dispatches between two barriers have no order
        hostmetal::Random r(settings.seed + hostmetal::dispatches);
        for (size_t first = 0, next; first < order.size(); first = next) {
          for (next = first + 1; next < order.size() && !p.items[next].barrier; next++) {
          }
          for (size_t i = next - first; i > 1; i--) std::swap(order[first + i - 1], order[first + r.below(i)]);
        }
      }
      for (size_t i : order) {
        std::string e = hostmetal::run(p.items[i].dispatch);
        if (e.empty()) continue;
        if (settings.abort) {
          fprintf(stderr, "hostmetal: %s\n", e.c_str());
          abort();
        }
        return fail(MTLCommandBufferErrorInternal, "hostmetal: " + e);
      }
    }
  }
};

// Lane is a queue's order of execution. Work runs as late as Metal's contract allows: when
// somebody waits for it, or for something committed after it.
struct Lane {
  std::mutex mutex;
  std::deque<std::shared_ptr<Work>> pending;
  bool ignored = false;  // for good

  void commit(const std::shared_ptr<Work> &w) {
    std::lock_guard<std::mutex> lock(mutex);
    w->status = MTLCommandBufferStatusCommitted;
    pending.push_back(w);
  }
  void finish(const std::shared_ptr<Work> &w) {
    std::lock_guard<std::mutex> lock(mutex);
    while (w->status == MTLCommandBufferStatusCommitted) {
      auto first = pending.front();
      pending.pop_front();
      if (strikes(kCommandHang)) hung = true;
      while (hung) usleep(1000);
      if (strikes(kCommandIgnored)) ignored = true;
      first->run(ignored);
    }
  }
  NSUInteger poll(const std::shared_ptr<Work> &w) {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (w->status != MTLCommandBufferStatusCommitted || w->polls++ == 0) return w->status;
    }
    finish(w);
    std::lock_guard<std::mutex> lock(mutex);
    return w->status;
  }
};

std::string validate(const Dispatch &d, size_t max_shared) {
  size_t shared = d.function->variables;
  for (size_t s : d.shared) shared += s;
  if (shared > max_shared)
    return "threadgroup memory of " + std::to_string(shared) + " bytes is more than " + std::to_string(max_shared);
  auto k = d.function->kernel;
  for (unsigned i = 0; i < k->argument_count; i++) {
    auto &a = k->arguments[i];
    std::string at = std::to_string(a.index);
    if (a.kind == hm::kThreadgroup && d.shared[a.index] == 0) return "no length set for threadgroup memory " + at;
    if (a.kind != hm::kBuffer) continue;
    auto &b = d.buffers[a.index];
    if (!b.memory) return "no buffer bound at index " + at;
    if (b.offset % a.align != 0) return "offset " + std::to_string(b.offset) + " of buffer " + at + " is not a multiple of " + std::to_string(a.align);
    if (a.reference && b.memory->length() - b.offset < a.size)
      return "buffer " + at + " has " + std::to_string(b.memory->length() - b.offset) + " bytes, the argument needs " + std::to_string(a.size);
    if (b.bytes && a.writable && a.reference) return "setBytes at index " + at + ", which the kernel may write";
  }
  return "";
}

}  // namespace

// ---- classes -------------------------------------------------------------------------------

@interface HostMTLObject : NSObject {
  NSString *_label;
}
+ (int)kind;
- (void)tearDown;
- (NSString *)label;
- (void)setLabel:(NSString *)label;
@end

@implementation HostMTLObject
+ (int)kind {
  return -1;
}
+ (id)allocWithZone:(NSZone *)zone {
  id object = [super allocWithZone:zone];
  if (object) live[[self kind]]++;
  return object;
}
- (void)tearDown {
}
- (NSString *)label {
  return [[_label retain] autorelease];
}
- (void)setLabel:(NSString *)label {
  [_label autorelease];
  _label = [label copy];
}
- (void)dealloc {
  Kind kind = Kind([[self class] kind]);
  [self tearDown];
  [_label release];
  bury(self, kind);
  return;
  [super dealloc];
}
@end

#define KIND(K)      \
  +(int)kind {       \
    return K;        \
  }

@implementation MTLArchitecture
+ (id)allocWithZone:(NSZone *)zone {
  id object = [super allocWithZone:zone];
  if (object) live[kArchitecture]++;
  return object;
}
- (NSString *)name {
#if defined(__aarch64__)
  return @"hostmetal-arm64";
#else
  return @"hostmetal-x86_64";
#endif
}
- (void)dealloc {
  bury(self, kArchitecture);
  return;
  [super dealloc];
}
@end

@implementation MTLCompileOptions
+ (id)allocWithZone:(NSZone *)zone {
  id object = [super allocWithZone:zone];
  if (object) live[kOptions]++;
  return object;
}
- (id)init {
  if ((self = [super init])) {
    _fastMath = YES;
    _mathMode = MTLMathModeFast;
    _functions = MTLMathFloatingPointFunctionsFast;
    _version = MTLLanguageVersion3_2;
  }
  return self;
}
- (void)dealloc {
  [_macros release];
  bury(self, kOptions);
  return;
  [super dealloc];
}
- (NSDictionary *)preprocessorMacros {
  return [[_macros retain] autorelease];
}
- (void)setPreprocessorMacros:(NSDictionary *)macros {
  [_macros autorelease];
  _macros = [macros copy];
}
- (BOOL)fastMathEnabled {
  return _fastMath;
}
- (void)setFastMathEnabled:(BOOL)enabled {
  _fastMath = enabled;
  _mathMode = enabled ? MTLMathModeFast : MTLMathModeSafe;
  _functions = enabled ? MTLMathFloatingPointFunctionsFast : MTLMathFloatingPointFunctionsPrecise;
}
- (MTLMathMode)mathMode {
  return _mathMode;
}
- (void)setMathMode:(MTLMathMode)mode {
  if (mode < MTLMathModeSafe || mode > MTLMathModeFast) return misuse("-[MTLCompileOptions setMathMode:] with an unknown mode");
  _mathMode = mode;
}
- (MTLMathFloatingPointFunctions)mathFloatingPointFunctions {
  return _functions;
}
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)functions {
  if (functions < 0 || functions > 1) return misuse("-[MTLCompileOptions setMathFloatingPointFunctions:] with an unknown value");
  _functions = functions;
}
- (MTLLanguageVersion)languageVersion {
  return _version;
}
- (void)setLanguageVersion:(MTLLanguageVersion)version {
  if (version < (1 << 16) || version > MTLLanguageVersion3_2) return misuse("-[MTLCompileOptions setLanguageVersion:] with an unknown version");
  _version = version;
}
@end

@interface HostMTLDevice : HostMTLObject <MTLDevice> {
 @public
  Traits _traits;
}
@end

// Everything a device makes keeps it alive.
@interface HostMTLChild : HostMTLObject {
 @public
  HostMTLDevice *_device;
}
- (id)initWithDevice:(HostMTLDevice *)device;
- (id<MTLDevice>)device;
@end

@implementation HostMTLChild
- (id)initWithDevice:(HostMTLDevice *)device {
  if ((self = [super init])) _device = [device retain];
  return self;
}
- (id<MTLDevice>)device {
  return [[_device retain] autorelease];
}
- (void)tearDown {
  [_device release];
}
@end

@interface HostMTLLibrary : HostMTLChild <MTLLibrary> {
 @public
  const Module *_module;
}
@end
@interface HostMTLFunction : HostMTLChild <MTLFunction> {
 @public
  const Module::Function *_function;
}
@end
@interface HostMTLComputePipelineState : HostMTLChild <MTLComputePipelineState> {
 @public
  const Module::Function *_function;
  unsigned _maxThreads;
}
@end
@interface HostMTLBuffer : HostMTLChild <MTLBuffer> {
 @public
  std::shared_ptr<Memory> *_memory;
  MTLResourceOptions _options;
  void (^_deallocator)(void *, NSUInteger);
}
@end
@interface HostMTLCommandQueue : HostMTLChild <MTLCommandQueue> {
 @public
  std::shared_ptr<Lane> *_lane;
}
@end
@interface HostMTLCommandBuffer : HostMTLChild <MTLCommandBuffer> {
 @public
  HostMTLCommandQueue *_queue;
  std::shared_ptr<Work> *_work;
  BOOL _encoding;
}
@end
@interface HostMTLComputeCommandEncoder : HostMTLChild <MTLComputeCommandEncoder> {
  HostMTLCommandBuffer *_commandBuffer;
  HostMTLComputePipelineState *_pipeline;
  Dispatch *_dispatch;  // the state that the next dispatch copies
  BOOL _ended, _barrier;
}
- (id)initWithCommandBuffer:(HostMTLCommandBuffer *)buffer;
@end

@implementation HostMTLLibrary
KIND(kLibrary)
- (NSArray *)functionNames {
  NSMutableArray *names = [NSMutableArray array];
  for (auto &f : _module->functions) [names addObject:string(f.first)];
  return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString *)name {
  if (name == nil) {
    misuse("-[MTLLibrary newFunctionWithName:] with a nil name");
    return nil;
  }
  auto f = _module->functions.find([name UTF8String]);
  if (f == _module->functions.end() || strikes(kNoFunction)) return nil;
  HostMTLFunction *function = [[HostMTLFunction alloc] initWithDevice:_device];
  function->_function = &f->second;
  return function;
}
@end

@implementation HostMTLFunction
KIND(kFunction)
- (NSString *)name {
  return [NSString stringWithUTF8String:_function->kernel->name];
}
@end

@implementation HostMTLComputePipelineState
KIND(kPipeline)
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return _maxThreads;
}
- (NSUInteger)threadExecutionWidth {
  return _device->_traits.width;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return _function->variables;
}
@end

@implementation HostMTLBuffer
KIND(kBufferObject)
- (NSUInteger)length {
  return (*_memory)->length();
}
- (NSUInteger)allocatedSize {
  return (*_memory)->length();
}
- (void *)contents {
  return _options & MTLResourceStorageModePrivate ? NULL : (*_memory)->data();
}
- (void)tearDown {
  size_t length = (*_memory)->length();
  const char *damage = (*_memory)->damage();
  if (damage) misuse("a buffer of " + std::to_string(length) + " bytes was overwritten " + damage);
  if (_deallocator) {
    _deallocator((*_memory)->data(), length);
    static auto release = reinterpret_cast<void (*)(const void *)>(dlsym(RTLD_DEFAULT, "_Block_release"));
    if (release) release((const void *)_deallocator);
  }
  allocated -= length;
  delete _memory;
  [super tearDown];
}
@end

@implementation HostMTLCommandQueue
KIND(kQueue)
- (id)initWithDevice:(HostMTLDevice *)device {
  if ((self = [super initWithDevice:device])) _lane = new std::shared_ptr<Lane>(new Lane);
  return self;
}
- (id<MTLCommandBuffer>)commandBuffer {
  if (strikes(kNoCommandBuffer)) return nil;
  HostMTLCommandBuffer *b = [[[HostMTLCommandBuffer alloc] initWithDevice:_device] autorelease];
  b->_queue = [self retain];
  return b;
}
- (void)tearDown {
  delete _lane;
  [super tearDown];
}
@end

@implementation HostMTLCommandBuffer
KIND(kCommandBuffer)
- (id)initWithDevice:(HostMTLDevice *)device {
  if ((self = [super initWithDevice:device])) _work = new std::shared_ptr<Work>(new Work);
  return self;
}
- (id<MTLCommandQueue>)commandQueue {
  return [[_queue retain] autorelease];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (_encoding) {
    misuse("-[MTLCommandBuffer computeCommandEncoder] before the previous encoder's endEncoding");
    return nil;
  }
  if ((*_work)->status >= MTLCommandBufferStatusCommitted) {
    misuse("-[MTLCommandBuffer computeCommandEncoder] after commit");
    return nil;
  }
  if (strikes(kNoEncoder)) return nil;
  Work::Pass pass;
  pass.concurrent = type == MTLDispatchTypeConcurrent;
  (*_work)->passes.push_back(pass);
  _encoding = YES;
  return [[[HostMTLComputeCommandEncoder alloc] initWithCommandBuffer:self] autorelease];
}
- (void)enqueue {
  if ((*_work)->status >= MTLCommandBufferStatusCommitted) return misuse("-[MTLCommandBuffer enqueue] after commit");
  (*_work)->status = MTLCommandBufferStatusEnqueued;
}
- (void)commit {
  if (_encoding) return misuse("-[MTLCommandBuffer commit] before its encoder's endEncoding");
  if ((*_work)->status >= MTLCommandBufferStatusCommitted) return misuse("-[MTLCommandBuffer commit] twice");
  (*_queue->_lane)->commit(*_work);
}
- (void)waitUntilScheduled {
  if ((*_work)->status < MTLCommandBufferStatusCommitted) misuse("-[MTLCommandBuffer waitUntilScheduled] before commit");
}
- (void)waitUntilCompleted {
  if ((*_work)->status < MTLCommandBufferStatusCommitted) return misuse("-[MTLCommandBuffer waitUntilCompleted] before commit");
  (*_queue->_lane)->finish(*_work);
}
- (MTLCommandBufferStatus)status {
  return (*_queue->_lane)->poll(*_work);
}
- (NSError *)error {
  if ((*_work)->status != MTLCommandBufferStatusError) return nil;
  return make_error(MTLCommandBufferErrorDomain, (*_work)->code, (*_work)->failure);
}
- (double)GPUStartTime {
  return (*_work)->start;
}
- (double)GPUEndTime {
  return (*_work)->end;
}
- (void)tearDown {
  if ((*_work)->status == MTLCommandBufferStatusCommitted) (*_queue->_lane)->finish(*_work);
  delete _work;
  [_queue release];
  [super tearDown];
}
@end

@implementation HostMTLComputeCommandEncoder
KIND(kEncoder)
- (id)initWithCommandBuffer:(HostMTLCommandBuffer *)buffer {
  if ((self = [super initWithDevice:buffer->_device])) {
    _commandBuffer = [buffer retain];
    _dispatch = new Dispatch;
  }
  return self;
}
- (BOOL)cannot:(SEL)what {
  if (!_ended) return NO;
  misuse(std::string("-[MTLComputeCommandEncoder ") + sel_getName(what) + "] after endEncoding");
  return YES;
}
- (BOOL)slot:(NSUInteger)index of:(SEL)what {
  if (index < 31) return YES;
  misuse(std::string("-[MTLComputeCommandEncoder ") + sel_getName(what) + "] index " + std::to_string(index) + " is not below 31");
  return NO;
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  if ([self cannot:_cmd]) return;
  if (state == nil) return misuse("-[MTLComputeCommandEncoder setComputePipelineState:] with nil");
  if (![state isKindOfClass:[HostMTLComputePipelineState class]])
    return misuse("-[MTLComputeCommandEncoder setComputePipelineState:] with an object that is no pipeline state");
  [state retain];
  [_pipeline release];
  _pipeline = (HostMTLComputePipelineState *)state;
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if ([self cannot:_cmd] || ![self slot:index of:_cmd]) return;
  Dispatch::Binding &b = _dispatch->buffers[index];
  b = Dispatch::Binding();
  if (buffer == nil) return;
  if (![buffer isKindOfClass:[HostMTLBuffer class]])
    return misuse("-[MTLComputeCommandEncoder setBuffer:offset:atIndex:] with an object that is no buffer");
  auto &memory = *((HostMTLBuffer *)buffer)->_memory;
  if (offset >= memory->length())
    return misuse("-[MTLComputeCommandEncoder setBuffer:offset:atIndex:] offset " + std::to_string(offset) + " in a buffer of " +
                  std::to_string(memory->length()) + " bytes");
  b.memory = memory;
  b.offset = offset;
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if ([self cannot:_cmd] || ![self slot:index of:_cmd]) return;
  Dispatch::Binding &b = _dispatch->buffers[index];
  if (!b.memory || b.bytes) return misuse("-[MTLComputeCommandEncoder setBufferOffset:atIndex:] where no buffer is bound");
  if (offset >= b.memory->length())
    return misuse("-[MTLComputeCommandEncoder setBufferOffset:atIndex:] offset " + std::to_string(offset) + " in a buffer of " +
                  std::to_string(b.memory->length()) + " bytes");
  b.offset = offset;
}
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  if ([self cannot:_cmd] || ![self slot:index of:_cmd]) return;
  if (bytes == NULL || length == 0) return misuse("-[MTLComputeCommandEncoder setBytes:length:atIndex:] with no bytes");
  if (length > 4096) return misuse("-[MTLComputeCommandEncoder setBytes:length:atIndex:] with more than 4096 bytes");
  Dispatch::Binding &b = _dispatch->buffers[index];
  b = Dispatch::Binding();
  b.memory = Memory::allocate(length);
  if (!b.memory) return;
  memcpy(b.memory->data(), bytes, length);
  b.bytes = true;
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if ([self cannot:_cmd] || ![self slot:index of:_cmd]) return;
  if (length % 16 != 0)
    return misuse("-[MTLComputeCommandEncoder setThreadgroupMemoryLength:atIndex:] length " + std::to_string(length) + " is not a multiple of 16");
  _dispatch->shared[index] = length;
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  if ([self cannot:_cmd]) return;
  _barrier = YES;
}
- (void)dispatch:(SEL)what grid:(MTLSize)grid groups:(MTLSize)groups size:(MTLSize)size {
  if ([self cannot:what]) return;
  std::string name = std::string("-[MTLComputeCommandEncoder ") + sel_getName(what) + "] ";
  if (!_pipeline) return misuse(name + "without a pipeline state");
  NSUInteger s[3] = {size.width, size.height, size.depth}, n[3] = {groups.width, groups.height, groups.depth},
             t[3] = {grid.width, grid.height, grid.depth}, total = 1;
  for (int i = 0; i < 3; i++) {
    if (s[i] == 0 || n[i] == 0) return misuse(name + "with a size of 0");
    if (s[i] > 1024 || t[i] > 0xffffffffu) return misuse(name + "with a size beyond the device's limits");
    total *= s[i];
    _dispatch->size[i] = s[i];
    _dispatch->groups[i] = n[i];
    _dispatch->grid[i] = t[i];
  }
  _dispatch->name = _pipeline->_function->kernel->name;
  name += "of kernel '" + _dispatch->name + "': ";
  if (total > _pipeline->_maxThreads)
    return misuse(name + std::to_string(total) + " threads a threadgroup are more than the pipeline's " + std::to_string(_pipeline->_maxThreads));
  _dispatch->function = _pipeline->_function;
  _dispatch->width = _device->_traits.width;
  _dispatch->rounds_wrongly = _device->_traits.rounds_wrongly;
  std::string bad = validate(*_dispatch, [_device maxThreadgroupMemoryLength]);
  if (!bad.empty()) return misuse(name + bad);
  (*_commandBuffer->_work)->passes.back().items.push_back({*_dispatch, bool(_barrier)});
  _barrier = NO;
}
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)size {
  auto groups = [](NSUInteger n, NSUInteger by) { return by == 0 ? 0 : (n + by - 1) / by; };
  MTLSize count = MTLSizeMake(groups(threads.width, size.width), groups(threads.height, size.height), groups(threads.depth, size.depth));
  [self dispatch:_cmd grid:threads groups:count size:size];
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)size {
  MTLSize grid = MTLSizeMake(groups.width * size.width, groups.height * size.height, groups.depth * size.depth);
  [self dispatch:_cmd grid:grid groups:groups size:size];
}
- (void)endEncoding {
  if ([self cannot:_cmd]) return;
  _ended = YES;
  _commandBuffer->_encoding = NO;
}
- (void)tearDown {
  if (!_ended) {
    misuse("a MTLComputeCommandEncoder was released without endEncoding");
    _commandBuffer->_encoding = NO;
  }
  delete _dispatch;
  [_pipeline release];
  [_commandBuffer release];
  [super tearDown];
}
@end

@implementation HostMTLDevice
KIND(kDevice)
- (id)init {
  if ((self = [super init])) {
    _traits.contracts = trait(kContracts);
    _traits.rounds_wrongly = trait(kRoundsWrongly);
    _traits.width = trait(kWidth16) ? 16 : 32;
    _traits.threads = trait(kThreads256) ? 256 : 1024;
    _traits.memory = trait(kLittleMemory) ? kLittle : size_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / 4 * 3;
  }
  return self;
}
- (NSString *)name {
  return @"Host Metal";
}
- (MTLArchitecture *)architecture {
  return [[[MTLArchitecture alloc] init] autorelease];
}
- (uint64_t)registryID {
  return 0x100000407;
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return _traits.memory;
}
- (NSUInteger)maxBufferLength {
  return _traits.memory;
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return 32768;
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(_traits.threads, _traits.threads, _traits.threads);
}
- (NSUInteger)currentAllocatedSize {
  return allocated;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return (family >= MTLGPUFamilyApple1 && family <= MTLGPUFamilyApple7) || family == MTLGPUFamilyMac2 ||
         (family >= MTLGPUFamilyCommon1 && family <= MTLGPUFamilyCommon3) || family == MTLGPUFamilyMetal3;
}
- (id<MTLCommandQueue>)newCommandQueue {
  return strikes(kNoQueue) ? nil : [[HostMTLCommandQueue alloc] initWithDevice:self];
}
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count {
  return [self newCommandQueue];
}
- (HostMTLBuffer *)newBufferOver:(const std::shared_ptr<Memory> &)memory options:(MTLResourceOptions)options {
  HostMTLBuffer *b = [[HostMTLBuffer alloc] initWithDevice:self];
  b->_memory = new std::shared_ptr<Memory>(memory);
  b->_options = options;
  return b;
}
// reserve counts length bytes, or refuses.
- (BOOL)reserve:(NSUInteger)length for:(SEL)what {
  if (length == 0) {
    misuse(std::string("-[MTLDevice ") + sel_getName(what) + "] with length 0");
    return NO;
  }
  if (strikes(kNoBuffer) || length > [self maxBufferLength]) return NO;
  if ((allocated += length) <= _traits.memory) return YES;
  allocated -= length;
  return NO;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  if (![self reserve:length for:_cmd]) return nil;
  auto memory = Memory::allocate(length);
  if (!memory) {
    allocated -= length;
    return nil;
  }
  return [self newBufferOver:memory options:options];
}
- (id<MTLBuffer>)newBufferWithBytes:(const void *)bytes length:(NSUInteger)length options:(MTLResourceOptions)options {
  if (bytes == NULL) {
    misuse("-[MTLDevice newBufferWithBytes:length:options:] with no bytes");
    return nil;
  }
  HostMTLBuffer *b = (HostMTLBuffer *)[self newBufferWithLength:length options:options];
  if (b) memcpy((*b->_memory)->data(), bytes, length);
  return b;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *, NSUInteger))deallocator {
  size_t page = sysconf(_SC_PAGESIZE);
  if (bytes == NULL || (uintptr_t)bytes % page != 0 || length % page != 0) {
    misuse("-[MTLDevice newBufferWithBytesNoCopy:length:options:deallocator:] needs whole pages");
    return nil;
  }
  if (![self reserve:length for:_cmd]) return nil;
  HostMTLBuffer *b = [self newBufferOver:Memory::wrap(bytes, length) options:options];
  if (deallocator) {  // without the blocks runtime a block can only be a global one, which needs no copy
    static auto copy = reinterpret_cast<void *(*)(const void *)>(dlsym(RTLD_DEFAULT, "_Block_copy"));
    b->_deallocator = copy ? (void (^)(void *, NSUInteger))copy((const void *)deallocator) : deallocator;
  }
  return b;
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
  if (error) *error = nil;
  if (source == nil) {
    misuse("-[MTLDevice newLibraryWithSource:options:error:] with a nil source");
    return nil;
  }
  CompileOptions o;
  if (options) {
    o.math = hostmetal::MathMode([options mathMode]);
    o.fast_functions = [options mathFloatingPointFunctions] == MTLMathFloatingPointFunctionsFast;
    o.version = [options languageVersion];
    NSEnumerator *names = [[options preprocessorMacros] keyEnumerator];
    for (NSString *name; (name = [names nextObject]) != nil;)
      o.macros[[name UTF8String]] = [[[[options preprocessorMacros] objectForKey:name] description] UTF8String];
  }
  o.contracts = _traits.contracts;
  std::string errors;
  const Module *module = nullptr;
  if (strikes(kNoLibrary)) errors = "hostmetal: injected: no library";
  else module = hostmetal::load([source UTF8String], o, &errors);
  if (!module) {
    if (error) *error = make_error(MTLLibraryErrorDomain, MTLLibraryErrorCompileFailure, errors);
    return nil;
  }
  HostMTLLibrary *library = [[HostMTLLibrary alloc] initWithDevice:self];
  library->_module = module;
  return library;
}
// A compiled library is a file of source here, compiled with safe math.
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error {
  if (error) *error = nil;
  NSString *source = [NSString stringWithContentsOfFile:[url path] encoding:NSUTF8StringEncoding error:NULL];
  if (source == nil) {
    if (error) *error = make_error(MTLLibraryErrorDomain, MTLLibraryErrorFileNotFound, "hostmetal: no library in the file");
    return nil;
  }
  MTLCompileOptions *options = [[[MTLCompileOptions alloc] init] autorelease];
  [options setFastMathEnabled:NO];
  return [self newLibraryWithSource:source options:options error:error];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
  if (error) *error = nil;
  if (function == nil || ![function isKindOfClass:[HostMTLFunction class]]) {
    misuse("-[MTLDevice newComputePipelineStateWithFunction:error:] without a function");
    return nil;
  }
  if (strikes(kNoPipeline)) {
    if (error) *error = make_error(@"CompilerError", 2, "hostmetal: injected: no pipeline");
    return nil;
  }
  HostMTLComputePipelineState *p = [[HostMTLComputePipelineState alloc] initWithDevice:self];
  p->_function = ((HostMTLFunction *)function)->_function;
  unsigned limit = p->_function->kernel->max_threads;
  p->_maxThreads = limit ? std::min(limit, _traits.threads) : _traits.threads;
  return p;
}
@end

// ---- exported functions ---------------------------------------------------------------------

namespace {
// The kernels call back into this library and its libraries, whoever loaded it and how.
struct Load {
  Load() {
    Dl_info info;
    if (dladdr(reinterpret_cast<void *>(&hostmetal_set_seed), &info)) dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
    settings.seed = env_number("HOSTMETAL_SEED", 0);
    settings.ftz = env_number("HOSTMETAL_FTZ", 1);
    settings.threads = env_number("HOSTMETAL_THREADS", 1);
    settings.abort = env_number("HOSTMETAL_ABORT", 1);
    const char *s = getenv("HOSTMETAL_FAULT");
    std::string list = s ? s : "";
    for (size_t at = 0; at < list.size();) {
      size_t end = std::min(list.find(',', at), list.size());
      std::string one = list.substr(at, end - at);
      size_t eq = one.find('=');
      if (hostmetal_set_fault(one.substr(0, eq).c_str(), eq == std::string::npos ? -1 : atol(one.c_str() + eq + 1)) != 0) {
        fprintf(stderr, "hostmetal: HOSTMETAL_FAULT names no fault: %s\n", one.c_str());
        abort();
      }
      at = end + 1;
    }
  }
} load_settings;
}  // namespace

extern "C" {

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return strikes(kNoDevice) ? nil : [[HostMTLDevice alloc] init]; }

NSArray *MTLCopyAllDevices(void) {
  if (strikes(kNoDevice)) return [[NSArray alloc] init];
  HostMTLDevice *d = [[HostMTLDevice alloc] init];
  NSArray *all = [[NSArray alloc] initWithObjects:d, nil];
  [d release];
  return all;
}

void hostmetal_set_seed(uint64_t seed) { settings.seed = seed; }
void hostmetal_set_ftz(int on) { settings.ftz = on; }
void hostmetal_set_threads(int n) { settings.threads = n; }
void hostmetal_set_abort(int on) { settings.abort = on; }
unsigned long hostmetal_misuses(void) { return misuses; }
const char *hostmetal_last_misuse(void) {
  static thread_local std::string copy;
  std::lock_guard<std::mutex> lock(misuse_mutex);
  copy = last_misuse;
  return copy.c_str();
}

int hostmetal_set_fault(const char *name, long n) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  for (int f = 0; f < kFaults; f++)
    if (strcmp(name, kFaultNames[f]) == 0) {
      faults[f] = n;
      return 0;
    }
  return -1;
}
void hostmetal_clear_faults(void) {
  std::lock_guard<std::mutex> lock(fault_mutex);
  for (long &f : faults) f = 0;
  hung = false;
}

long hostmetal_live_count(const char *name) {
  long all = 0;
  for (int k = 0; k < kKinds; k++) {
    if (name && strcmp(name, kKindNames[k]) == 0) return live[k];
    all += live[k];
  }
  return name ? -1 : all;
}

uint64_t hostmetal_counter(const char *name) {
  std::string s = name;
  if (s == "compiles") return hostmetal::compiles;
  if (s == "cache-hits") return hostmetal::cache_hits;
  if (s == "dispatches") return hostmetal::dispatches;
  if (s == "threadgroups") return hostmetal::threadgroups;
  if (s == "switches") return hostmetal::switches;
  return 0;
}

}  // extern "C"
