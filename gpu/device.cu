// A GPU as a Device, through the CUDA runtime. One stream runs all ops in order. RoundTrip, which copies gradient
// buckets, uses two more streams, sum() another one, and transfer() one for each thread that calls it.
//
// Freed memory is cached and reused (block_cache.h). Since one stream runs all ops, a block may be reused as soon as
// the work that reads it is queued. Scratch memory is freed only with the device, so that its addresses in captured
// graphs stay valid. Uploads and small downloads go through pinned memory, which the GPU can access while the program
// continues.
#include "gpu/device.h"

#include "core/context.h"
#include "gpu/block_cache.h"
#include "gpu/kernels.h"
#include "gpu/pinned_downloads.h"
#include "gpu/scratch.cuh"
#include "gpu/scratch_stack.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

namespace rg::gpu {

namespace {

void check(cudaError_t status, const char* action) {
    if (status == cudaSuccess) return;
    const std::string text = cat("device cuda: ", action, ": ", cudaGetErrorString(status));
    if (is_device_lost(status)) throw DeviceLost(text + "; to get the name of the kernel, set RG_SYNC=1");
    throw Error(text);
}

/// Prints a warning once per process about something that makes the program slower.
void warn_once(bool& warned, const char* what, cudaError_t error) {
    (void)cudaGetLastError(); // clears the error, so that the next launch does not report it again
    if (std::exchange(warned, true)) return;
    std::fprintf(stderr, "warning: device cuda: %s: %s\n", what, cudaGetErrorString(error));
}

/// Does the same as check(), for memory of other processes. Clears the error, so that the next launch does not report
/// it again.
void check_peer(cudaError_t status, const char* action) {
    if (status != cudaSuccess) (void)cudaGetLastError();
    check(status, action);
}

/// Selects the GPU for the calling thread. Memory and kernels belong to the GPU that the thread has selected.
void select_gpu(int index) {
    thread_local int selected = -1;
    if (selected == index) return;
    check(cudaSetDevice(index), "cudaSetDevice");
    selected = index;
}

/// Returns null if the device has not enough memory left.
void* allocate_memory(size_t bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) return (void)cudaGetLastError(), nullptr;
    check(status, "cudaMalloc");
    return memory;
}
void free_memory(void* memory) { (void)cudaFree(memory); } // cudaFree reports only errors of earlier work

struct CudaStream {
    /// CUDA prefers the blocks of streams whose priority is a lower number.
    explicit CudaStream(int priority = 0) {
        check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreate");
    }
    ~CudaStream() { (void)cudaStreamDestroy(stream); }
    CudaStream(const CudaStream&) = delete;
    CudaStream& operator=(const CudaStream&) = delete;
    operator cudaStream_t() const { return stream; }
    /// Makes later work in this stream wait for the event.
    void wait_for(cudaEvent_t event) { check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent"); }
    /// Blocks until all work in this stream is done. `what` names the work in error texts.
    void wait(const char* what = "a kernel or a copy") {
        check(wait_for_gpu(what, [&] { return cudaStreamQuery(stream); }), what);
    }
    cudaStream_t stream = nullptr;
};

struct CudaEvent {
    explicit CudaEvent(unsigned flags = cudaEventDisableTiming) {
        check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    }
    ~CudaEvent() { (void)cudaEventDestroy(event); }
    CudaEvent(const CudaEvent&) = delete;
    CudaEvent& operator=(const CudaEvent&) = delete;
    operator cudaEvent_t() const { return event; }
    void record(cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
    void wait() { // returns at once if never recorded
        check(wait_for_gpu("a kernel or a copy", [&] { return cudaEventQuery(event); }), "a kernel or a copy");
    }
    cudaEvent_t event = nullptr;
};

/// Pinned memory, and an event that is recorded after the last upload from it.
struct PinnedSlot {
    static constexpr size_t kBytes = size_t{1} << 20;
    PinnedSlot() { check(cudaMallocHost(&memory, kBytes), "cudaMallocHost"); }
    ~PinnedSlot() { (void)cudaFreeHost(memory); }
    void* memory = nullptr;
    CudaEvent copied;
};

/// Copies chunks to and from host memory at the same time, with a stream for each direction.
class CudaRoundTrip final : public Device::RoundTrip {
public:
    /// `pinned` is the result of pin() for the memory at `host`, or null.
    CudaRoundTrip(int gpu, CudaStream& ops, void* host, void* device, std::vector<size_t> ends,
                  std::shared_ptr<void> pinned)
        : gpu_(gpu),
          ops_(ops),
          host_(static_cast<std::byte*>(host)),
          device_(static_cast<std::byte*>(device)),
          ends_(std::move(ends)),
          pinned_(std::move(pinned)),
          copied_(ends_.size()) {}
    ~CudaRoundTrip() override {
        (void)cudaStreamSynchronize(down_);
        (void)cudaStreamSynchronize(up_);
    }
    void download(size_t chunk) override {
        if (!host_) return copied_[chunk].record(ops_);
        computed_.record(ops_);
        down_.wait_for(computed_); // waits for the record() above, even if the event is recorded again later
        copy(chunk, host_, device_, cudaMemcpyDeviceToHost, down_);
        copied_[chunk].record(down_);
    }
    void wait(size_t chunk) override { select_gpu(gpu_), copied_[chunk].wait(); }
    void upload(size_t chunk) override {
        if (!host_) return;
        copy(chunk, device_, host_, cudaMemcpyHostToDevice, up_);
        copied_[chunk].record(up_);
        ops_.wait_for(copied_[chunk]); // later downloads wait for ops, so they wait for this copy as well
    }

private:
    void copy(size_t chunk, std::byte* to, const std::byte* from, cudaMemcpyKind kind, cudaStream_t stream) {
        const size_t begin = chunk == 0 ? 0 : ends_[chunk - 1];
        check(cudaMemcpyAsync(to + begin, from + begin, ends_[chunk] - begin, kind, stream), "cudaMemcpyAsync");
    }
    const int gpu_;
    CudaStream& ops_;
    std::byte *const host_, *const device_;
    const std::vector<size_t> ends_;
    const std::shared_ptr<void> pinned_;
    CudaStream down_, up_;
    CudaEvent computed_;
    std::vector<CudaEvent> copied_; // per chunk: recorded after its last copy or, without host memory, after its ops
};

/// Runs for 40000 clock cycles, about 20 us.
__global__ void delay_kernel() {
    for (const long long start = clock64(); clock64() - start < 40000;) {}
}

cudaDeviceProp properties_of(int index) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    return properties;
}
Capability capability_of(const cudaDeviceProp& properties) { return {properties.major, properties.minor}; }
std::string id_of(const cudaDeviceProp& properties) { return {properties.uuid.bytes, sizeof properties.uuid.bytes}; }

class CudaDevice final : public Device {
public:
    explicit CudaDevice(int index) : selection_(index) {
        const cudaDeviceProp properties = properties_of(index);
        const char* const kernels = std::getenv("RG_GPU_KERNELS");
        traits_ = gpu_traits_of(properties.multiProcessorCount, capability_of(properties), kernels ? kernels : "",
                                RG_CUDA_ARCH);
        name_ = cat(properties.name, " (", capability_of(properties).str(), ", ", properties.totalGlobalMem >> 30,
                    traits_.hopper_kernels ? " GiB, hopper kernels)" : " GiB)");
        cudaFuncAttributes attributes; // fails here if the driver is too old to translate this build's kernels
        check(cudaFuncGetAttributes(&attributes, delay_kernel), "loading the kernels of this build, for " RG_CUDA_ARCH);
        constexpr size_t kBytes = kArrivalCounters * sizeof(unsigned);
        arrival_counters_ = static_cast<unsigned*>(allocate(kBytes));
        check(cudaMemsetAsync(arrival_counters_, 0, kBytes, stream_), "cudaMemsetAsync");
    }
    ~CudaDevice() override {
        (void)cudaStreamSynchronize(stream_);
        release(arrival_counters_);
    }

    std::string name() const override { return name_; }

    /// Selects this GPU for the calling thread.
    void select() const { select_gpu(selection_.index); }

    void* allocate(size_t bytes) override {
        select();
        if (void* const memory = blocks_.take(bytes)) return memory;
        size_t available = 0, total = 0;
        check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
        fail("device cuda: expected ", bytes >> 20, " MiB of memory, got none; this program uses ",
             blocks_.bytes_taken() >> 20, " of ", total >> 20, " MiB, and ", available >> 20,
             " MiB are free; make --batch-size smaller, or end other programs on this GPU");
    }
    void release(void* memory) noexcept override { blocks_.give_back(memory); }
    size_t free_bytes() override {
        select();
        size_t available = 0, total = 0;
        check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
        return available;
    }
    std::shared_ptr<void> pin(void* memory, size_t bytes) override {
        select();
        const cudaError_t error = cudaHostRegister(memory, bytes, cudaHostRegisterDefault);
        static bool warned = false;
        if (error == cudaSuccess) return {memory, [](void* pinned) { (void)cudaHostUnregister(pinned); }};
        warn_once(warned, "gradients or images are copied more slowly, since their memory was not pinned", error);
        return nullptr;
    }
    void upload(void* to, const void* from, size_t bytes) override {
        for (size_t done = 0; done < bytes; done += PinnedSlot::kBytes) {
            PinnedSlot& slot = slots_[next_slot_++ % slots_.size()];
            slot.copied.wait();
            const size_t size = std::min(bytes - done, PinnedSlot::kBytes);
            std::memcpy(slot.memory, static_cast<const std::byte*>(from) + done, size);
            check(
                cudaMemcpyAsync(static_cast<std::byte*>(to) + done, slot.memory, size, cudaMemcpyHostToDevice, stream_),
                "cudaMemcpyAsync");
            slot.copied.record(stream_);
        }
    }
    void copy(void* to, const void* from, size_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
    }
    // Goes through pinned memory if the values fit there, since a copy to pageable memory blocks.
    void download(void* to, const void* from, size_t bytes, bool more) override {
        const auto copy = [&](void* destination) {
            check(cudaMemcpyAsync(destination, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
        };
        downloads_.download(to, bytes, more, copy, [&] { stream_.wait(); });
    }
    std::unique_ptr<RoundTrip> round_trip(void* host, void* device, std::vector<size_t> ends) override {
        select();
        std::shared_ptr<void> pinned = host && !ends.empty() ? pin(host, ends.back()) : nullptr;
        return std::make_unique<CudaRoundTrip>(selection_.index, stream_, host, device, std::move(ends),
                                               std::move(pinned));
    }

    std::string share(const void* memory) override {
        RG_CHECK(peer_memory() != "0", "RG_PEER_MEMORY is 0");
        select();
        Shared shared{};
        check_peer(cudaIpcGetMemHandle(&shared.memory, const_cast<void*>(memory)), "cudaIpcGetMemHandle");
        id_of(properties_of(selection_.index)).copy(shared.gpu, sizeof shared.gpu);
        return {reinterpret_cast<const char*>(&shared), sizeof shared};
    }
    std::shared_ptr<std::byte> open_shared(const std::string& handle) override {
        select();
        Shared shared;
        RG_CHECK(handle.copy(reinterpret_cast<char*>(&shared), sizeof shared) == sizeof shared,
                 "open_shared: expected a handle of share(), got another text");
        // Processes that share a GPU take turns on it, so each would wait for the turns of all.
        RG_CHECK(id_of(properties_of(selection_.index)) != std::string(shared.gpu, sizeof shared.gpu) ||
                     peer_memory() == "1",
                 "another rank uses the same GPU; RG_PEER_MEMORY=1 sums there all the same");
        void* memory = nullptr;
        check_peer(cudaIpcOpenMemHandle(&memory, shared.memory, cudaIpcMemLazyEnablePeerAccess),
                   "cudaIpcOpenMemHandle");
        const auto close = [](std::byte* mapped) { // fails only if earlier work has failed
            if (cudaIpcCloseMemHandle(mapped) != cudaSuccess) (void)cudaGetLastError();
        };
        return {static_cast<std::byte*>(memory), close};
    }
    void sum(std::span<std::byte* const> from, std::span<std::byte* const> to, size_t count) override {
        select();
        sum_vectors(from, to, count, sums_);
        sums_.wait(kPeerWork);
    }
    void transfer(void* to, const void* from, size_t bytes) override {
        select();
        // Each thread has a stream of its own, so that copies of images do not delay those of gradients.
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cudaStreamPerThread), "cudaMemcpyAsync");
        check(wait_for_gpu("a copy", [] { return cudaStreamQuery(cudaStreamPerThread); }), "a copy");
    }

    Kernel kernel(Op op) const override {
        static constexpr Kernel kKernels[] = {
#define RG_KERNEL(name) gpu::name,
            RG_OPS(RG_KERNEL)
#undef RG_KERNEL
        };
        return kernel_of(op, kKernels);
    }
    void synchronize() override { stream_.wait(); }

    double time_of(const std::function<void()>& f) override {
        select();
        synchronize();
        delay_kernel<<<1, 1, 0, stream_>>>(); // the CPU queues f meanwhile, so that most launch overhead is hidden
        began_.record(stream_);
        f();
        ended_.record(stream_);
        ended_.wait();
        float ms = 0;
        check(cudaEventElapsedTime(&ms, began_, ended_), "cudaEventElapsedTime");
        return double(ms) * 1e-3;
    }
    /// Measures copies of 256 MiB within device memory, far more than fits the cache, and products on tensor cores
    /// (rates.cu). Runs each five times, and returns the best rates.
    Rates rates() override {
        constexpr size_t kBytes = size_t{1} << 28;
        constexpr int kRounds = 1 << 14;
        const Context on_this_device{.device = this};
        const ContextScope scope(on_this_device);
        const gpu::DeviceScratch<std::byte> from(kBytes), to(kBytes);
        const int blocks = 4 * traits_.sm_count;
        const gpu::DeviceScratch<float> sums(size_t(blocks) * kMultiplyThreads);
        Rates best;
        for (int i = 0; i < 5; ++i) {
            const double copy_time = time_of([&] { copy(to, from, kBytes); });
            best.bytes = std::max(best.bytes, 2 * double(kBytes) / copy_time);
            double flops = 0;
            const double multiply_time = time_of([&] { flops = multiply(sums, blocks, kRounds); });
            best.flops = std::max(best.flops, flops / multiply_time);
        }
        return best;
    }

    std::unique_ptr<KernelGraph> capture(const std::function<void()>& work) override;

    cudaStream_t stream() const { return stream_; }
    const GpuTraits& traits() const { return traits_; }
    ScratchStack& scratch() { return scratch_; }
    unsigned* arrival_counters() const { return arrival_counters_; }

private:
    /// Selects the GPU before the members below create streams and memory on it.
    struct Selection {
        explicit Selection(int gpu) : index(gpu) { select_gpu(gpu); }
        int index;
    };
    const Selection selection_;
    static constexpr char kPeerWork[] = "a sum in the memory of several GPUs, which RG_PEER_MEMORY=0 avoids";
    /// share() returns these bytes as a text.
    struct Shared {
        cudaIpcMemHandle_t memory;
        char gpu[16]; // FoundGpus::Gpu::id
    };
    std::string name_;
    GpuTraits traits_;
    CudaStream stream_, sums_{-1}; // sums_: for sum(), which other GPUs wait for
    DeviceBlockCache blocks_{allocate_memory, free_memory};
    ScratchStack scratch_{[this](size_t bytes) { return allocate(bytes); }, [this](void* memory) { release(memory); }};
    unsigned* arrival_counters_;
    std::array<PinnedSlot, 4> slots_; // for uploads; at most 4 copies of up to 1 MiB are in flight
    PinnedSlot download_slot_;
    PinnedDownloads downloads_{download_slot_.memory, PinnedSlot::kBytes};
    size_t next_slot_ = 0;
    CudaEvent began_{cudaEventDefault}, ended_{cudaEventDefault};
};

class CudaGraph final : public Device::KernelGraph {
public:
    CudaGraph(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
    ~CudaGraph() override { (void)cudaGraphExecDestroy(graph_); }
    void launch() override { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

private:
    cudaGraphExec_t graph_;
    cudaStream_t stream_;
};

/// Begins a capture. If an exception leaves it open, the destructor ends it, so that the stream remains usable.
struct Capture {
    explicit Capture(cudaStream_t s) : stream(s) {
        const cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        (void)cudaGetLastError(); // clears the error, so that the next launch does not report it again
        check(error, "cudaStreamBeginCapture");
    }
    ~Capture() {
        if (!ended) (void)cudaStreamEndCapture(stream, &graph), (void)cudaGetLastError(); // clears the error
        if (graph) (void)cudaGraphDestroy(graph);
    }
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    bool ended = false;
};

std::unique_ptr<Device::KernelGraph> CudaDevice::capture(const std::function<void()>& work) {
    if (synchronous_launches()) return nullptr; // RG_SYNC waits for each kernel, which a capture does not allow
    Capture capture(stream_);
    work();
    capture.ended = true;
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_, &capture.graph);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, capture.graph, 0);
    static bool warned = false;
    if (error != cudaSuccess)
        return warn_once(warned, "kernels are launched one by one, since no graph of them was made", error), nullptr;
    return std::make_unique<CudaGraph>(executable, stream_);
}

/// Returns the device of this thread's context, which runs the op that calls this, and selects its GPU.
CudaDevice& current_device() {
    auto& device = static_cast<CudaDevice&>(*context().device);
    device.select();
    return device;
}

} // namespace

void* take_scratch(size_t bytes) { return current_device().scratch().take(bytes); }
unsigned* arrival_counters() { return current_device().arrival_counters(); }
void give_back_scratch(void*) { current_device().scratch().give_back(); }
cudaStream_t stream() { return current_device().stream(); }
const GpuTraits& gpu_traits() { return current_device().traits(); }

FoundGpus find_devices() {
    FoundGpus found;
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) (void)cudaGetLastError();
    found.why_none = status == cudaSuccess || status == cudaErrorNoDevice ? "there is no GPU"
                     : status == cudaErrorInsufficientDriver
                         ? "there is no NVIDIA driver, or one too old for this build"
                         : cudaGetErrorString(status);
    for (int i = 0; status == cudaSuccess && i < count; ++i) {
        const cudaDeviceProp properties = properties_of(i);
        found.why_none = why_not(properties.name, capability_of(properties), RG_CUDA_ARCH);
        if (found.why_none.empty()) found.gpus.push_back({i, id_of(properties), properties.name});
    }
    return found;
}

std::shared_ptr<Device> open_device(int index) {
    const FoundGpus found = find_devices();
    RG_CHECK(!found.gpus.empty(), "device cuda: ", found.why_none);
    RG_CHECK(std::ranges::count(found.gpus, index, &FoundGpus::Gpu::index) > 0,
             "device cuda: expected one of the GPUs ", found.list(), ", got ", index);
    return std::make_shared<CudaDevice>(index);
}

} // namespace rg::gpu
