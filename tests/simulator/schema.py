"""The tables of an nsys export, as far as the simulator fills them."""

from __future__ import annotations

P = "CUPTI_ACTIVITY_KIND_"
NONE = 4294967295
NOT_READY = 600  # cudaErrorNotReady: simulated queries prove nothing

#: The columns that every table of GPU work begins with.
WORK = "start+ end+ deviceId+ contextId+ greenContextId streamId+ correlationId globalPid "

#: Columns as in a real export of schema 3.11; `+` marks those that are NOT NULL.
TABLES = {
    P + "KERNEL": WORK
    + "demangledName+ shortName+ mangledName launchType cacheConfig registersPerThread+ gridX+ "
    "gridY+ gridZ+ blockX+ blockY+ blockZ+ staticSharedMemory+ dynamicSharedMemory+ localMemoryPerThread+ "
    "localMemoryTotal+ gridId+ sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig",
    P + "MEMCPY": WORK
    + "bytes+ copyKind+ deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId "
    "dstContextId migrationCause graphNodeId virtualAddress",
    P + "MEMSET": WORK + "value+ bytes+ graphNodeId memKind",
    P + "SYNCHRONIZATION": WORK + "syncType+ eventId+",
    P + "GRAPH_TRACE": WORK + "graphId+ graphExecId+",
    P
    + "RUNTIME": "start+ end+ eventClass+ globalTid correlationId nameId+ returnValue+ callchainId",
    P
    + "CUDA_EVENT": "deviceId+ contextId+ greenContextId streamId+ correlationId globalPid eventId+",
    "NVTX_EVENTS": "start+ end eventType+ rangeId category color text globalTid endGlobalTid textId domainId",
    "PROFILER_OVERHEAD": "start+ end+ globalTid nameId+ returnValue+",
    "TARGET_INFO_CUDA_STREAM": "streamId+ hwId+ vmId+ processId+ contextId+ priority+ flag+",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId+ hwId+ vmId+ processId+ deviceId+ contextId+",
    "TARGET_INFO_GPU": "vmId+ id+ name busLocation isDiscrete l2CacheSize totalMemory memoryBandwidth smCount cuDevice",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
    "META_DATA_EXPORT": "name+ value",
    "DIAGNOSTIC_EVENT": "timestamp+ timestampType+ source+ severity+ text+ globalPid",
}
TEXT = {"text", "name", "value", "utcTime", "localTime", "busLocation"}
ENUMS = {
    "ENUM_CUDA_MEMCPY_OPER": {
        n: f"CUDA_MEMCPY_KIND_{x}" for n, x in ((1, "HTOD"), (2, "DTOH"), (8, "DTOD"))
    },
    "ENUM_CUDA_MEM_KIND": {
        n: f"CUDA_MEMOPR_MEMORY_KIND_{x}" for n, x in enumerate(("PAGEABLE", "PINNED", "DEVICE"))
    },
}
SYNC_TYPES = {"sync_event": 1, "wait_event": 2, "sync_stream": 3, "sync_device": 4}
