// Implements products of warpgroups: decodes descriptors, checks and reads operands, and distributes sums as documented
// in gpu/hopper.cuh.
#include "tests/simt/async_proxy.h"
#include "tests/simt/hopper.h"
#include "tests/simt/sanitizers.h"
#include "tests/simt/scheduler.h"
#include "tests/simt/tensor_core.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace rg::simt {
namespace {

constexpr int kSum = 16, kRun = 8; // values that a product sums, and neighbouring values in memory
constexpr int kMaxColumns = 192;   // of a product
constexpr float kInFlight = std::bit_cast<float>(0xffffffffu); // a NaN

struct Operand {
    int start, next_values, next_rows;
    explicit Operand(uint64_t d)
        : start(int(d & 0x3fff) << 4), next_values(int(d >> 16 & 0x3fff) << 4), next_rows(int(d >> 32 & 0x3fff) << 4) {}
    /// Returns the core matrix with these indices.
    const std::byte* core_matrix(int rows, int values) const {
        return executor().arena.begin() + start + rows * next_rows + values * next_values;
    }
};

int warp_index() { return executor().current().number / kWarp; }

/// Throws Error unless a product may read the operand's rows from 8 * first on, 8 * count rows in all.
void check(const char* name, uint64_t descriptor, int first, int count, Site site) {
    if (descriptor & 0xffffc000c000c000u) fail_here(site, cat("wgmma: ", name, ": the descriptor has invalid bits"));
    const Operand operand(descriptor);
    for (int i = first; i < first + count; ++i)
        for (int v = 0; v < kSum / kRun; ++v) {
            const std::byte* const core = operand.core_matrix(i, v);
            if (!in_shared(core, kRun * kRun * 2))
                fail_here(site, cat("wgmma: ", name, ", row ", kRun * i, ", is not within a shared array"));
            const std::string objection = executor().proxy.operands.objection(core, kRun * kRun * 2);
            if (!objection.empty())
                fail_here(site, cat("wgmma: ", name, ", row ", kRun * i, ", value ", kRun * v, ": reads ", objection));
        }
}
void check(const Product& p, int warp) {
    check("a", p.a, warp % 4 * 2, 2, p.site);
    check("b", p.b, 0, p.values / 4, p.site);
}

/// Reads 8 * count rows of an operand, from row 8 * first on, to to[kSum][8 * count].
void read(uint64_t descriptor, bool transposed, int first, int count, float* to) {
    for (int i = 0; i < count; ++i)
        for (int v = 0; v < kSum / kRun; ++v) {
            const std::byte* const core = Operand(descriptor).core_matrix(first + i, v);
            {
                const FiberAccesses instrument;
                note_read(core, kRun * kRun * 2);
            }
            uint16_t bits[kRun][kRun];
            std::memcpy(bits, core, sizeof bits);
            for (int row = 0; row < kRun; ++row)
                for (int k = 0; k < kRun; ++k)
                    to[(v * kRun + k) * count * kRun + i * kRun + row] =
                        std::bit_cast<float>(uint32_t{transposed ? bits[k][row] : bits[row][k]} << 16);
        }
}

void multiply(const Product& p, int warp, Sums& sums) {
    const int columns = 2 * p.values;
    float a[kSum * 16], b[kSum * kMaxColumns];
    read(p.a, p.transposed, warp % 4 * 2, 2, a);
    read(p.b, p.transposed, 0, columns / kRun, b);
    for (int row = 0; row < 16; ++row) {
        double sum[kMaxColumns] = {};
        for (int k = 0; k < kSum; ++k)
            for (int c = 0; c < columns; ++c) sum[c] += double(a[k * 16 + row]) * double(b[k * columns + c]);
        for (int c = 0; c < columns; ++c) {
            const int lane = row % 8 * 4 + c % 8 / 2, i = c / 8 * 4 + row / 8 * 2 + c % 2;
            float& d = sums.values[size_t(lane * p.values + i)];
            d = truncate(double(d) + sum[c]);
        }
    }
}

Sums* find(WarpProducts& warp, const Product& p) {
    for (Sums& sums : warp.sums)
        if (std::equal(sums.d, sums.d + kWarp, p.d)) return &sums;
    return nullptr;
}

struct Arguments {
    float* d;
    bool transposed;
    uint64_t a, b;
    Site site;
};

void issue(void* const (&data)[kWarp], unsigned, int values) {
    const OwnAccesses do_not_instrument;
    const auto arguments = [&](int lane) { return *static_cast<const Arguments*>(data[lane]); };
    Product p{{}, values, arguments(0).transposed, arguments(0).a, arguments(0).b, arguments(0).site};
    for (int lane = 0; lane < kWarp; ++lane) {
        p.d[lane] = arguments(lane).d;
        if (arguments(lane).a != p.a || arguments(lane).b != p.b)
            fail_here(p.site, cat("wgmma: descriptors differ between lanes 0 and ", lane));
    }
    const int number = warp_index();
    if ((number / 4 + 1) * 4 * kWarp > executor().threads())
        fail_here(p.site, "wgmma: the warpgroup has fewer than 4 warps");
    AsyncProxy& proxy = executor().proxy;
    WarpProducts& warp = proxy.warps[number];
    std::vector<Product>& issued = proxy.groups[number / 4];
    if (warp.issued == issued.size()) issued.push_back(p);
    if (const Product& other = issued[warp.issued++];
        other.a != p.a || other.b != p.b || other.values != p.values || other.transposed != p.transposed)
        fail_here(p.site, "wgmma: another warp of the group has issued another product");
    check(p, number);
    Sums* sums = find(warp, p);
    if (!sums) {
        if (!warp.fenced) fail_here(p.site, "wgmma: no wgmma_fence() since the sums may have been written");
        sums = &warp.sums.emplace_back();
        for (int lane = 0; lane < kWarp; ++lane) {
            sums->d[lane] = p.d[lane];
            sums->values.insert(sums->values.end(), p.d[lane], p.d[lane] + values);
            std::fill_n(p.d[lane], values, kInFlight);
        }
    }
    ++sums->products;
    if (executor().settings.eager_copies) multiply(p, number, *sums);
    warp.open.push_back(p);
}

void finish(WarpProducts& warp, const Product& p) {
    Sums& sums = *find(warp, p);
    if (!executor().settings.eager_copies) {
        check(p, warp_index()); // again, since operands may have been overwritten
        multiply(p, warp_index(), sums);
    }
    if (--sums.products > 0) return;
    for (int lane = 0; lane < kWarp; ++lane)
        for (int i = 0; i < p.values; ++i) {
            float& d = sums.d[lane][i];
            if (std::bit_cast<uint32_t>(d) != std::bit_cast<uint32_t>(kInFlight))
                fail_here(p.site, cat("wgmma: lane ", lane, " has written sum ", i, " before it waited"));
            d = sums.values[size_t(lane * p.values + i)];
        }
    warp.sums.erase(warp.sums.begin() + (&sums - warp.sums.data()));
}

void finish_all(void* const (&)[kWarp], unsigned, int) {
    const OwnAccesses do_not_instrument;
    WarpProducts& warp = executor().proxy.warps[warp_index()];
    for (const auto& group : std::exchange(warp.groups, {}))
        for (const Product& p : group) finish(warp, p);
    warp.fenced = false;
}

void commit(void* const (&)[kWarp], unsigned, int) {
    const OwnAccesses do_not_instrument;
    WarpProducts& warp = executor().proxy.warps[warp_index()];
    warp.groups.push_back(std::exchange(warp.open, {}));
}

void fence(void* const (&)[kWarp], unsigned, int) {
    const OwnAccesses do_not_instrument;
    executor().proxy.warps[warp_index()].fenced = true;
}

} // namespace

void products_fence(Site site) { warp_collective({.name = "wgmma_fence", .combine = fence}, kAllLanes, nullptr, site); }
void add_product(float* d, int values, bool transposed, uint64_t a, uint64_t b, Site site) {
    Arguments arguments{d, transposed, a, b, site};
    warp_collective({.name = "wgmma", .argument = values, .combine = issue}, kAllLanes, &arguments, site);
}
void products_commit(Site site) {
    warp_collective({.name = "wgmma_commit", .combine = commit}, kAllLanes, nullptr, site);
}
void products_wait(Site site) {
    warp_collective({.name = "wgmma_wait", .combine = finish_all}, kAllLanes, nullptr, site);
}

Site AsyncProxy::pending_product(int warp) const {
    const auto it = warps.find(warp);
    if (it == warps.end()) return {};
    const WarpProducts& w = it->second;
    for (const auto& group : w.groups)
        if (!group.empty()) return group.front().site;
    return w.open.empty() ? Site{} : w.open.front().site;
}

} // namespace rg::simt
