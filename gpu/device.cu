// A GPU through the CUDA runtime: one stream, on which everything happens in order.
//
// Freed memory is kept by size and given out again, since cudaMalloc waits for the device; in one stream a block may be
// written again as soon as the work that reads it is queued. Scratch memory of kernels grows while ops run for the
// first time and never after, so that what a graph was captured with stays in place.
#include "gpu/device.h"

#include "gpu/kernels.h"
#include "gpu/scratch.cuh"
#include "gpu/scratch_stack.h"

#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

namespace rg::gpu {

namespace {

void check(cudaError_t status, const char* what, size_t bytes = 0) {
    if (status == cudaSuccess) return;
    if (status == cudaErrorMemoryAllocation)
        fail("device cuda: ", bytes >> 20, " MiB are not available; make --batch-size smaller");
    fail("device cuda: ", what, ": ", cudaGetErrorString(status), "; RG_SYNC=1 in the environment names the kernel");
}

void* new_memory(size_t bytes) {
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc", bytes);
    return memory;
}
void free_memory(void* memory) { cudaFree(memory); }

class CudaDevice;
thread_local CudaDevice* current = nullptr; // of the kernel that is being launched

__global__ void do_nothing() {}

/// With the kernels that RG_GPU_KERNELS asks for: portable, hopper.
Machine machine_of(const cudaDeviceProp& properties) {
    Machine machine{.processors = properties.multiProcessorCount};
    const char* const variable = std::getenv("RG_GPU_KERNELS");
    const std::string_view wanted = variable ? variable : "", built = RG_CUDA_ARCH;
    if (wanted.empty() || wanted == "portable") return machine;
    RG_CHECK(wanted == "hopper", "RG_GPU_KERNELS: expected portable or hopper, got ", wanted);
    RG_CHECK(properties.major == 9 && properties.minor == 0 && built.find("sm_90a") != built.npos,
             "RG_GPU_KERNELS: hopper takes a GPU of sm_90 and a build for sm_90a, got sm_", properties.major,
             properties.minor, " and a build for ", built);
    machine.hopper = true;
    return machine;
}

class CudaDevice final : public Device {
public:
    explicit CudaDevice(int index) : index_(index) {
        check(cudaSetDevice(index), "cudaSetDevice");
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
        machine_ = machine_of(properties);
        name_ = cat(properties.name, " (sm_", properties.major, properties.minor, ", ", properties.totalGlobalMem >> 30,
                    machine_.hopper ? " GiB, hopper kernels)" : " GiB)");
        cudaFuncAttributes attributes;
        if (cudaFuncGetAttributes(&attributes, do_nothing) != cudaSuccess) {
            (void)cudaGetLastError();
            fail("device cuda: ", name_, " needs code that this build does not have: it was made for ", RG_CUDA_ARCH,
                 "; set the option gpu_arch (meson configure -Dgpu_arch=sm_", properties.major, properties.minor, ")");
        }
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    }
    ~CudaDevice() override {
        cudaStreamSynchronize(stream_);
        for (const auto& [bytes, memory] : free_) free_memory(memory);
        cudaStreamDestroy(stream_);
    }

    std::string name() const override { return name_; }

    void* allocate(size_t bytes) override {
        void* memory = nullptr;
        if (const auto found = free_.find(bytes); found != free_.end()) {
            memory = found->second;
            free_.erase(found);
        } else {
            memory = new_memory(bytes);
        }
        sizes_[memory] = bytes;
        return memory;
    }
    void release(void* memory) noexcept override {
        const auto found = sizes_.find(memory);
        free_.emplace(found->second, memory);
        sizes_.erase(found);
    }
    void upload(void* to, const void* from, size_t bytes) override {
        transfer(to, from, bytes, cudaMemcpyHostToDevice);
    }
    void download(void* to, const void* from, size_t bytes) override {
        transfer(to, from, bytes, cudaMemcpyDeviceToHost);
    }
    void copy(void* to, const void* from, size_t bytes) override {
        check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "cudaMemcpyAsync");
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
    void synchronize() override { check(cudaStreamSynchronize(stream_), "a kernel"); }

    std::unique_ptr<Graph> capture(const std::function<void()>& work) override;

    cudaStream_t stream() const { return stream_; }
    const Machine& machine() const { return machine_; }
    ScratchStack& scratch() { return scratch_; }

private:
    void transfer(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
        check(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
        check(cudaStreamSynchronize(stream_), "a kernel or a copy");
    }

    int index_;
    std::string name_;
    Machine machine_;
    cudaStream_t stream_ = nullptr;
    std::multimap<size_t, void*> free_;
    std::map<void*, size_t> sizes_; // of what is in use
    ScratchStack scratch_{new_memory, free_memory};
};

class CudaGraph final : public Device::Graph {
public:
    CudaGraph(cudaGraphExec_t graph, cudaStream_t stream) : graph_(graph), stream_(stream) {}
    ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
    void launch() override { check(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch"); }

private:
    cudaGraphExec_t graph_;
    cudaStream_t stream_;
};

/// Ends a capture on every way out, so that the stream is usable again.
struct Capture {
    explicit Capture(cudaStream_t s) : stream(s) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    }
    ~Capture() {
        if (!ended) cudaStreamEndCapture(stream, &graph);
        if (graph) cudaGraphDestroy(graph);
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

Found find_devices() {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaSuccess && count > 0) return {count, {}};
    (void)cudaGetLastError();
    if (status == cudaErrorInsufficientDriver) return {0, "there is no NVIDIA driver, or one too old for this build"};
    return {0, status == cudaSuccess || status == cudaErrorNoDevice ? "there is no GPU" : cudaGetErrorString(status)};
}

std::unique_ptr<Device> open_device(int index) { return std::make_unique<CudaDevice>(index); }

} // namespace rg::gpu
