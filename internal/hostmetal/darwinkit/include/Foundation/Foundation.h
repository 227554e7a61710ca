// GNUstep's Foundation, with the protocols that it lacks.
#include_next <Foundation/Foundation.h>

@protocol NSConnectionDelegate @end
@protocol NSDecimalNumberBehaviors @end
@protocol NSKeyedArchiverDelegate @end
@protocol NSKeyedUnarchiverDelegate @end
@protocol NSMachPortDelegate @end
@protocol NSPortDelegate @end
@protocol NSSpellServerDelegate @end
@protocol NSURLConnectionDataDelegate @end
@protocol NSURLConnectionDownloadDelegate @end
@protocol NSURLSessionDataDelegate @end
@protocol NSURLSessionDelegate @end
@protocol NSURLSessionDownloadDelegate @end
@protocol NSURLSessionStreamDelegate @end
@protocol NSURLSessionTaskDelegate @end
@protocol NSURLSessionWebSocketDelegate @end
@protocol NSUserActivityDelegate @end
