// The part of Apple's Metal API that hostmetal presents, written from its documentation.
#ifndef HOSTMETAL_METAL_H
#define HOSTMETAL_METAL_H

#import <Foundation/Foundation.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;

static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef NSInteger MTLMathMode;
enum { MTLMathModeSafe = 0, MTLMathModeRelaxed = 1, MTLMathModeFast = 2 };
typedef NSInteger MTLMathFloatingPointFunctions;
enum { MTLMathFloatingPointFunctionsFast = 0, MTLMathFloatingPointFunctionsPrecise = 1 };
typedef NSUInteger MTLLanguageVersion;
enum {
  MTLLanguageVersion2_4 = (2 << 16) + 4,
  MTLLanguageVersion3_0 = (3 << 16) + 0,
  MTLLanguageVersion3_1 = (3 << 16) + 1,
  MTLLanguageVersion3_2 = (3 << 16) + 2,
};
typedef NSUInteger MTLResourceOptions;
enum {
  MTLResourceStorageModeShared = 0,
  MTLResourceStorageModeManaged = 16,
  MTLResourceStorageModePrivate = 32,
  MTLResourceHazardTrackingModeUntracked = 256,
};
typedef NSUInteger MTLCommandBufferStatus;
enum {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5,
};
typedef NSUInteger MTLCommandBufferError;
enum {
  MTLCommandBufferErrorNone = 0,
  MTLCommandBufferErrorInternal = 1,
  MTLCommandBufferErrorTimeout = 2,
  MTLCommandBufferErrorPageFault = 3,
  MTLCommandBufferErrorAccessRevoked = 4,
  MTLCommandBufferErrorOutOfMemory = 8,
  MTLCommandBufferErrorInvalidResource = 9,
};
typedef NSUInteger MTLLibraryError;
enum { MTLLibraryErrorInternal = 2, MTLLibraryErrorCompileFailure = 3, MTLLibraryErrorFunctionNotFound = 5, MTLLibraryErrorFileNotFound = 6 };
typedef NSUInteger MTLDispatchType;
enum { MTLDispatchTypeSerial = 0, MTLDispatchTypeConcurrent = 1 };
typedef NSUInteger MTLBarrierScope;
enum { MTLBarrierScopeBuffers = 1, MTLBarrierScopeTextures = 2 };
typedef NSInteger MTLGPUFamily;
enum {
  MTLGPUFamilyApple1 = 1001,
  MTLGPUFamilyApple7 = 1007,
  MTLGPUFamilyApple8 = 1008,
  MTLGPUFamilyMac2 = 2002,
  MTLGPUFamilyCommon1 = 3001,
  MTLGPUFamilyCommon3 = 3003,
  MTLGPUFamilyMetal3 = 5001,
};

extern NSString *const MTLLibraryErrorDomain;
extern NSString *const MTLCommandBufferErrorDomain;

@protocol MTLDevice, MTLLibrary, MTLFunction, MTLComputePipelineState, MTLBuffer, MTLCommandQueue, MTLCommandBuffer,
    MTLComputeCommandEncoder;

@interface MTLArchitecture : NSObject
- (NSString *)name;
@end

@interface MTLCompileOptions : NSObject {
  NSDictionary *_macros;
  BOOL _fastMath;
  MTLMathMode _mathMode;
  MTLMathFloatingPointFunctions _functions;
  MTLLanguageVersion _version;
}
- (NSDictionary *)preprocessorMacros;
- (void)setPreprocessorMacros:(NSDictionary *)macros;
- (BOOL)fastMathEnabled;
- (void)setFastMathEnabled:(BOOL)enabled;
- (MTLMathMode)mathMode;
- (void)setMathMode:(MTLMathMode)mode;
- (MTLMathFloatingPointFunctions)mathFloatingPointFunctions;
- (void)setMathFloatingPointFunctions:(MTLMathFloatingPointFunctions)functions;
- (MTLLanguageVersion)languageVersion;
- (void)setLanguageVersion:(MTLLanguageVersion)version;
@end

@protocol MTLDevice <NSObject>
- (NSString *)name;
- (MTLArchitecture *)architecture;
- (uint64_t)registryID;
- (BOOL)hasUnifiedMemory;
- (uint64_t)recommendedMaxWorkingSetSize;
- (NSUInteger)maxBufferLength;
- (NSUInteger)maxThreadgroupMemoryLength;
- (MTLSize)maxThreadsPerThreadgroup;
- (NSUInteger)currentAllocatedSize;
- (BOOL)supportsFamily:(MTLGPUFamily)family;
- (id<MTLCommandQueue>)newCommandQueue;
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)count;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytes:(const void *)bytes length:(NSUInteger)length options:(MTLResourceOptions)options;
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)bytes
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void *pointer, NSUInteger length))deallocator;
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error;
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error;
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error;
@end

@protocol MTLLibrary <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (NSArray *)functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString *)name;
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

@protocol MTLBuffer <NSObject>
- (NSString *)label;
- (void)setLabel:(NSString *)label;
- (id<MTLDevice>)device;
- (NSUInteger)length;
- (NSUInteger)allocatedSize;
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
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type;
- (void)enqueue;
- (void)commit;
- (void)waitUntilScheduled;
- (void)waitUntilCompleted;
- (MTLCommandBufferStatus)status;
- (NSError *)error;
- (double)GPUStartTime;
- (double)GPUEndTime;
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
- (void)dispatchThreads:(MTLSize)threads threadsPerThreadgroup:(MTLSize)size;
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)size;
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void);
NSArray *MTLCopyAllDevices(void);

#ifdef __cplusplus
}
#endif

#endif
