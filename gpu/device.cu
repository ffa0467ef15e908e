// A GPU through the CUDA runtime: one stream, on which everything happens in order; only pieces of gradients come and
// go beside it.
//
// Freed memory is kept and given out again (block_cache.h): in one stream a block may be written again as soon as the
// work that reads it is queued. Scratch memory of kernels grows while ops run for the first time and never after, so
// that what a graph was captured with stays in place. What is uploaded, and small downloads, go through page-locked
// memory, since the GPU can use it while the program goes on.
#include "gpu/device.h"

#include "gpu/block_cache.h"
#include "gpu/kernels.h"
#include "gpu/landing.h"
#include "gpu/scratch.cuh"
#include "gpu/scratch_stack.h"

#include <array>
#include <cstdlib>
#include <vector>

namespace rg::gpu {

namespace {

void check(cudaError_t status, const char* what) {
    if (status == cudaSuccess) return;
    const bool of_kernel = status >= cudaErrorIllegalAddress && status <= cudaErrorLaunchFailure;
    fail("device cuda: ", what, ": ", cudaGetErrorString(status),
         of_kernel ? "; RG_SYNC=1 in the environment names the kernel" : "");
}

/// Null: there is none left.
void* new_memory(size_t bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation) return (void)cudaGetLastError(), nullptr;
    check(status, "cudaMalloc");
    return memory;
}
void free_memory(void* memory) { (void)cudaFree(memory); } // what fails here has failed before

struct Stream {
    Stream() { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate"); }
    ~Stream() { (void)cudaStreamDestroy(stream); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator cudaStream_t() const { return stream; }
    /// What is put into this stream from now on comes after the event.
    void after(cudaEvent_t event) { check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent"); }
    void wait() { check(cudaStreamSynchronize(stream), "a kernel or a copy"); }
    cudaStream_t stream = nullptr;
};

/// A point in a stream.
struct Event {
    explicit Event(unsigned flags = cudaEventDisableTiming) {
        check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    }
    ~Event() { (void)cudaEventDestroy(event); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    operator cudaEvent_t() const { return event; }
    void record(cudaStream_t stream) { check(cudaEventRecord(event, stream), "cudaEventRecord"); }
    void wait() { check(cudaEventSynchronize(event), "a kernel or a copy"); } // at once if it was never recorded
    cudaEvent_t event = nullptr;
};

/// Page-locked memory, and the copy that was made from it last.
struct Slot {
    static constexpr size_t kBytes = size_t{1} << 20;
    Slot() { check(cudaMallocHost(&memory, kBytes), "cudaMallocHost"); }
    ~Slot() { (void)cudaFreeHost(memory); }
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;
    void* memory = nullptr;
    Event left;
};

/// Copies in both directions at once, in a stream each.
class CudaRoundTrip final : public Device::RoundTrip {
public:
    CudaRoundTrip(Stream& ops, void* here, void* there, std::vector<size_t> ends)
        : ops_(ops),
          here_(static_cast<std::byte*>(here)),
          there_(static_cast<std::byte*>(there)),
          ends_(std::move(ends)),
          at_(ends_.size()) {
        // Copies to and from memory that cannot be locked are slower, and wait.
        locked_ = !ends_.empty() && cudaHostRegister(here, ends_.back(), cudaHostRegisterDefault) == cudaSuccess;
        if (!locked_) (void)cudaGetLastError();
    }
    ~CudaRoundTrip() override {
        (void)cudaStreamSynchronize(down_);
        (void)cudaStreamSynchronize(up_);
        if (locked_) (void)cudaHostUnregister(here_);
    }
    void fetch(size_t piece) override {
        made_.record(ops_);
        down_.after(made_); // as it is now: it may be recorded anew at once
        copy(piece, here_, there_, cudaMemcpyDeviceToHost, down_);
        at_[piece].record(down_);
    }
    void wait(size_t piece) override { at_[piece].wait(); }
    void put_back(size_t piece) override {
        copy(piece, there_, here_, cudaMemcpyHostToDevice, up_);
        at_[piece].record(up_);
        ops_.after(at_[piece]); // and with them the next fetches
    }

private:
    void copy(size_t piece, std::byte* to, const std::byte* from, cudaMemcpyKind kind, cudaStream_t stream) {
        const size_t begin = piece == 0 ? 0 : ends_[piece - 1];
        check(cudaMemcpyAsync(to + begin, from + begin, ends_[piece] - begin, kind, stream), "cudaMemcpyAsync");
    }
    Stream& ops_;
    std::byte *const here_, *const there_;
    const std::vector<size_t> ends_;
    Stream down_, up_;
    Event made_;
    std::vector<Event> at_; // the last copy of each piece
    bool locked_;
};

class CudaDevice;
thread_local CudaDevice* current = nullptr; // of the kernel that is being launched

/// Some 20 us.
__global__ void wait_a_little() {
    for (const long long start = clock64(); clock64() - start < 40000;) {}
}

cudaDeviceProp properties_of(int index) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
    return properties;
}
Capability capability_of(const cudaDeviceProp& properties) { return {properties.major, properties.minor}; }

class CudaDevice final : public Device {
public:
    explicit CudaDevice(int index) : chosen_(index) {
        const cudaDeviceProp properties = properties_of(index);
        const char* const kernels = std::getenv("RG_GPU_KERNELS");
        machine_ =
            machine_of(properties.multiProcessorCount, capability_of(properties), kernels ? kernels : "", RG_CUDA_ARCH);
        name_ = cat(properties.name, " (", capability_of(properties).str(), ", ", properties.totalGlobalMem >> 30,
                    machine_.hopper ? " GiB, hopper kernels)" : " GiB)");
        cudaFuncAttributes attributes; // of code that the driver translates, it may be too old for
        check(cudaFuncGetAttributes(&attributes, wait_a_little), "the kernels of this build, for " RG_CUDA_ARCH);
    }
    ~CudaDevice() override { (void)cudaStreamSynchronize(stream_); }

    std::string name() const override { return name_; }

    void* allocate(size_t bytes) override {
        if (void* const memory = blocks_.take(bytes)) return memory;
        size_t left = 0, all = 0;
        check(cudaMemGetInfo(&left, &all), "cudaMemGetInfo");
        fail("device cuda: expected ", bytes >> 20, " MiB of memory, got none: of ", all >> 20, " MiB ",
             blocks_.bytes_taken() >> 20, " are in use here and ", left >> 20, " are free; make --batch-size smaller, ",
             "or end other programs on this GPU");
    }
    void release(void* memory) noexcept override { blocks_.give_back(memory); }
    void upload(void* to, const void* from, size_t bytes) override {
        for (size_t done = 0; done < bytes; done += Slot::kBytes) {
            Slot& slot = slots_[next_slot_++ % slots_.size()];
            slot.left.wait();
            const size_t part = std::min(bytes - done, Slot::kBytes);
            std::memcpy(slot.memory, static_cast<const std::byte*>(from) + done, part);
            check(
                cudaMemcpyAsync(static_cast<std::byte*>(to) + done, slot.memory, part, cudaMemcpyHostToDevice, stream_),
                "cudaMemcpyAsync");
            slot.left.record(stream_);
        }
    }
    void copy(void* to, const void* from, size_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
    }
    // By way of page-locked memory where there is room: a copy to other memory would be waited for.
    void download(void* to, const void* from, size_t bytes, bool more) override {
        const auto copy = [&](void* landing) {
            check(cudaMemcpyAsync(landing, from, bytes, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
        };
        landing_.download(to, bytes, more, copy, [&] { stream_.wait(); });
    }
    std::unique_ptr<RoundTrip> round_trip(void* here, void* there, std::vector<size_t> ends) override {
        return std::make_unique<CudaRoundTrip>(stream_, here, there, std::move(ends));
    }

    Kernel kernel(Op op) const override {
        static constexpr Kernel kKernels[] = {
#define RG_KERNEL(name) gpu::name,
            RG_OPS(RG_KERNEL)
#undef RG_KERNEL
        };
        current = const_cast<CudaDevice*>(this);
        return kKernels[size_t(op)];
    }
    void synchronize() override { stream_.wait(); }

    double seconds(const std::function<void()>& f) override {
        synchronize();
        wait_a_little<<<1, 1, 0, stream_>>>(); // until f is queued: it is not the launches that are measured
        began_.record(stream_);
        f();
        ended_.record(stream_);
        ended_.wait();
        float ms = 0;
        check(cudaEventElapsedTime(&ms, began_, ended_), "cudaEventElapsedTime");
        return double(ms) * 1e-3;
    }
    /// Of copies within its memory, of far more than its cache has, and of products (rates.cu): the quickest of five.
    Rates rates() override {
        constexpr size_t kBytes = size_t{1} << 28;
        constexpr int kRounds = 1 << 14;
        current = this;
        const gpu::Scratch<std::byte> from(kBytes), to(kBytes);
        const int blocks = 4 * machine_.processors;
        const gpu::Scratch<float> sums(size_t(blocks) * kMultiplyThreads);
        Rates most;
        for (int i = 0; i < 5; ++i) {
            const double copying = seconds([&] { copy(to, from, kBytes); });
            most.bytes = std::max(most.bytes, 2 * double(kBytes) / copying);
            double flops = 0;
            const double multiplying = seconds([&] { flops = multiply(sums, blocks, kRounds); });
            most.flops = std::max(most.flops, flops / multiplying);
        }
        return most;
    }

    std::unique_ptr<Graph> capture(const std::function<void()>& work) override;

    cudaStream_t stream() const { return stream_; }
    const Machine& machine() const { return machine_; }
    ScratchStack& scratch() { return scratch_; }

private:
    /// Makes the GPU the one of this process before there is a stream or memory on it.
    struct Chosen {
        explicit Chosen(int index) { check(cudaSetDevice(index), "cudaSetDevice"); }
    };
    Chosen chosen_;
    std::string name_;
    Machine machine_;
    Stream stream_;
    BlockCache blocks_{new_memory, free_memory};
    ScratchStack scratch_{[this](size_t bytes) { return allocate(bytes); }, [this](void* memory) { release(memory); }};
    std::array<Slot, 4> slots_; // as many uploads are under way at most
    Slot landing_slot_;
    Landing landing_{landing_slot_.memory, Slot::kBytes};
    size_t next_slot_ = 0;
    Event began_{cudaEventDefault}, ended_{cudaEventDefault};
};

class CudaGraph final : public Device::Graph {
public:
    CudaGraph(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
    ~CudaGraph() override { (void)cudaGraphExecDestroy(graph_); }
    void launch() override { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

private:
    cudaGraphExec_t graph_;
    cudaStream_t stream_;
};

/// Ends a capture on every way out, so that the stream is usable again.
struct Capture {
    explicit Capture(cudaStream_t s) : stream(s) {
        const cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
        (void)cudaGetLastError(); // what is thrown is not the next launch's
        check(error, "cudaStreamBeginCapture");
    }
    ~Capture() {
        if (!ended) (void)cudaStreamEndCapture(stream, &graph), (void)cudaGetLastError(); // nor is it the next one's
        if (graph) (void)cudaGraphDestroy(graph);
    }
    cudaStream_t stream;
    cudaGraph_t graph = nullptr;
    bool ended = false;
};

std::unique_ptr<Device::Graph> CudaDevice::capture(const std::function<void()>& work) {
    if (synchronous_launches()) return nullptr; // there is no waiting for a kernel that is captured
    Capture capture(stream_);
    work();
    capture.ended = true;
    cudaGraphExec_t executable = nullptr;
    if (cudaStreamEndCapture(stream_, &capture.graph) != cudaSuccess ||
        cudaGraphInstantiate(&executable, capture.graph, 0) != cudaSuccess) {
        (void)cudaGetLastError(); // plain launches do the same, more slowly
        return nullptr;
    }
    return std::make_unique<CudaGraph>(executable, stream_);
}

} // namespace

void* take_scratch(size_t bytes) { return current->scratch().take(bytes); }
void give_back_scratch(void*) { current->scratch().give_back(); }
cudaStream_t stream() { return current->stream(); }
const Machine& machine() { return current->machine(); }

namespace {

/// Those that run this build, by their numbers in CUDA, of which `found` has the rest.
std::vector<int> usable(Found& found) {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) (void)cudaGetLastError();
    found.why_none = status == cudaSuccess || status == cudaErrorNoDevice ? "there is no GPU"
                     : status == cudaErrorInsufficientDriver
                         ? "there is no NVIDIA driver, or one too old for this build"
                         : cudaGetErrorString(status);
    std::vector<int> indices;
    for (int i = 0; status == cudaSuccess && i < count; ++i) {
        const cudaDeviceProp properties = properties_of(i);
        found.why_none = why_not(properties.name, capability_of(properties), RG_CUDA_ARCH);
        if (!found.why_none.empty()) continue;
        indices.push_back(i);
        found.ids.emplace_back(properties.uuid.bytes, sizeof properties.uuid.bytes);
    }
    return indices;
}

} // namespace

Found find_devices() {
    Found found;
    usable(found);
    return found;
}

std::unique_ptr<Device> open_device(int place) {
    Found found;
    const std::vector<int> indices = usable(found);
    RG_CHECK(!indices.empty(), "device cuda: ", found.why_none);
    return std::make_unique<CudaDevice>(indices.at(size_t(place)));
}

} // namespace rg::gpu
