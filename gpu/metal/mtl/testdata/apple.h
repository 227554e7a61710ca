// Methods as Apple documents them at https://developer.apple.com/documentation, property by
// property its getter and setter: those that package mtl sends and those that hostmetal has.

typedef NS_ENUM(NSInteger, MTLMathMode);                    // macOS 15
typedef NS_ENUM(NSInteger, MTLMathFloatingPointFunctions);  // macOS 15
typedef NS_ENUM(NSUInteger, MTLLanguageVersion);
typedef NS_ENUM(NSInteger, MTLGPUFamily);
typedef NS_ENUM(NSUInteger, MTLDispatchType);
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus);
typedef NS_OPTIONS(NSUInteger, MTLResourceOptions);
typedef NS_OPTIONS(NSUInteger, MTLBarrierScope);
typedef double CFTimeInterval;

@protocol NSObject
- (instancetype)retain;
- (oneway void)release;
- (BOOL)respondsToSelector:(SEL)aSelector;
@end

@interface NSObject <NSObject>
+ (instancetype)new;
@end

@interface NSAutoreleasePool : NSObject
- (void)drain;
@end

@interface NSString : NSObject
+ (instancetype)stringWithUTF8String:(const char *)nullTerminatedCString;
- (const char *)UTF8String;
@end

@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
@end

@interface NSError : NSObject
- (NSErrorDomain)domain;
- (NSInteger)code;
- (NSString *)localizedDescription;
@end

@interface NSArray : NSObject
- (NSUInteger)count;
- (ObjectType)objectAtIndex:(NSUInteger)index;
@end

@interface MTLArchitecture : NSObject // macOS 14
- (NSString *)name;
@end

@interface MTLCompileOptions : NSObject
- (NSDictionary<NSString *, NSObject *> *)preprocessorMacros;
- (void)setPreprocessorMacros:(NSDictionary<NSString *, NSObject *> *)preprocessorMacros;
- (BOOL)fastMathEnabled;
- (void)setFastMathEnabled:(BOOL)fastMathEnabled;
- (MTLMathMode)mathMode;
- (void)setMathMode:(MTLMathMode)mathMode;
- (MTLMathFloatingPointFunctions)mathFloatingPointFunctions;
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)mathFloatingPointFunctions;
- (MTLLanguageVersion)languageVersion;
- (void)setLanguageVersion:(MTLLanguageVersion)languageVersion;
@end

@protocol MTLDevice <NSObject>
- (NSString *)name;
- (MTLArchitecture *)architecture; // macOS 14
- (uint64_t)registryID;
- (BOOL)hasUnifiedMemory;
- (uint64_t)recommendedMaxWorkingSetSize;
- (NSUInteger)maxBufferLength;
- (NSUInteger)maxThreadgroupMemoryLength;
- (MTLSize)maxThreadsPerThreadgroup;
- (NSUInteger)currentAllocatedSize;
- (BOOL)supportsFamily:(MTLGPUFamily)gpuFamily;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)maxCommandBufferCount;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytes:(const void *)pointer length:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)computeFunction error:(NSError **)error;
@end

@protocol MTLLibrary <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (NSArray<NSString *> *)functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString *)functionName;
@end

@protocol MTLFunction <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (NSString *)name;
@end

@protocol MTLComputePipelineState <NSObject>
- (NSString *)label;
- (id<MTLDevice>)device;
- (NSUInteger)maxTotalThreadsPerThreadgroup;
- (NSUInteger)threadExecutionWidth;
- (NSUInteger)staticThreadgroupMemoryLength;
@end

@protocol MTLResource <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (NSUInteger)allocatedSize;
@end

@protocol MTLBuffer <MTLResource>
- (NSUInteger)length;
- (void *)contents;
@end

@protocol MTLCommandQueue <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (id<MTLCommandBuffer>)commandBuffer;
@end

@protocol MTLCommandBuffer <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (id<MTLCommandQueue>)commandQueue;
- (id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType;
- (void)enqueue;
- (void)commit;
- (void)waitUntilScheduled;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (CFTimeInterval)GPUStartTime;
- (CFTimeInterval)GPUEndTime;
@end

@protocol MTLCommandEncoder <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (void)endEncoding;
@end

@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBytes:(const void *)bytes length:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope;
- (void)dispatchThreads:(MTLSize)threadsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
@end
