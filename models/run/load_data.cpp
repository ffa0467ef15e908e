// See load_data.h.
#include "models/run/load_data.h"

#include "core/stop.h"
#include "data/open.h"
#include "data/s3.h"
#include "data/shards.h"
#include "models/run/data_parallel.h"
#include "par/message.h"

namespace rg {

namespace {

/// Does every rank's work while the ranks meet. The failure of one rank is heard by all, and a request to stop one of
/// them stops all.
void at_the_same_time(par::Group& group, const std::function<void()>& work, const std::function<void()>& pulse) {
    std::exception_ptr failure;
    std::string error;
    const auto guarded = [&] {
        try {
            work();
        } catch (const std::exception& e) {
            failure = std::current_exception();
            error = e.what();
        }
    };
    // The same answer on all ranks. Each rank's own request may come at any moment, so nothing else may decide.
    const auto agreed_to_stop = [&] { return !group.all(!stop_requested(), "go on"); };
    const auto meet = [&] {
        if (agreed_to_stop()) request_stop(); // the work on this rank, too
        if (pulse) pulse();
    };
    while_meeting(group, "data", guarded, group.size() == 1 ? pulse : meet);
    if (agreed_to_stop()) throw Stopped();
    const std::vector<std::string> errors = group.allgather(error, "data");
    if (failure) std::rethrow_exception(failure);
    for (size_t rank = 0; rank < errors.size(); ++rank)
        if (!errors[rank].empty()) throw par::PeerFailed(cat("rank ", rank, ": ", errors[rank]));
}

void broadcast(par::Group& group, std::string& bytes, int root) {
    uint64_t size = bytes.size();
    group.broadcast(std::as_writable_bytes(std::span(&size, 1)), root, "data");
    bytes.resize(size);
    group.broadcast(std::as_writable_bytes(std::span(bytes)), root, "data");
}

/// What --data itself says, each rank takes from its own command line. Only the objects of a list, which rank 0 asks
/// for, come as text of others; they are checked on every rank, so that none of them is anything but an object below
/// the path.
std::vector<data::Shard> find_shards(par::Group& group, const std::string& path, const data::FetchOptions& options,
                                     const std::function<void()>& pulse) {
    if (!data::is_listed(path)) return data::find_shards(path, options);
    std::string message;
    const auto list = [&] {
        std::vector<std::string> texts; // the URL of each shard and its size
        if (group.rank() == 0)
            for (const data::Shard& shard : data::find_shards(path, options))
                texts.insert(texts.end(), {shard.url, cat(shard.bytes)});
        message = par::pack_texts(texts);
    };
    at_the_same_time(group, list, pulse);
    broadcast(group, message, 0);
    const std::vector<std::string> texts = par::unpack_texts(message);
    std::vector<data::Shard> shards;
    for (size_t i = 0; i + 1 < texts.size(); i += 2) {
        data::check_s3_object(texts[i], path);
        shards.push_back({texts[i], std::stoll(texts[i + 1])});
    }
    return shards;
}

} // namespace

void DataOptions::declare(Options& o, const std::string& folder, const std::string& shards, const std::string& none) {
    o.group("Data");
    o.add("data", &path,
          cat("folder of ", folder, "; s3://bucket/prefix or pipe:COMMAND for shards of ", shards, "; none: ", none))
        .metavar("DIR");
    o.add("cache", &cache, "keep what s3: and pipe: bring here, and take it from here").metavar("DIR");
    o.add("retries", &retries, "of a command of s3: or pipe: that fails; after 0.5 s, 1 s, 2 s, ...").range(0, 20);
    o.add("unpacked-mib", &unpacked_mib, "MiB that one gzipped shard may be long when it is unpacked")
        .range(1, 1 << 20);
    o.add("skip-other-images", &skip_other_images,
          "leave out images of other formats than PNG; without this they are an error");
    o.add("validation", &validation,
          "fraction of the training images held out for validation, of each class by --seed; then the test set is not "
          "used")
        .range(0, 0.9);
}

void DataOptions::hold_out_validation(data::TrainTest& sets, int64_t seed) const {
    if (validation == 0) return;
    const data::Split parts = data::split_fraction(sets.train, validation, uint64_t(seed));
    RG_CHECK(!parts.selected.empty() && !parts.others.empty(),
             "--validation: expected 2 training images of some class, got fewer in ", sets.source);
    sets.test = data::subset(sets.train, parts.selected);
    sets.train = data::subset(sets.train, parts.others);
    sets.source += cat(", ", sets.test.count, " of the training images for validation");
}

data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options,
                          const std::function<void()>& pulse) {
    if (group.size() == 1 || !data::is_remote(path)) {
        data::TrainTest sets;
        const auto load = [&] { sets = data::load(path, options); };
        at_the_same_time(group, load, pulse);
        return sets;
    }
    const std::vector<data::Shard> shards = find_shards(group, path, options.fetch, pulse);
    data::ShardSet set(path, shards, options);
    const size_t n = size_t(group.size());
    for (size_t begin = 0; begin < shards.size(); begin += n) {
        const size_t mine = begin + size_t(group.rank());
        std::string own;
        const auto fetch = [&] {
            if (mine < shards.size()) own = data::fetch_shard(shards[mine], options.fetch);
        };
        at_the_same_time(group, fetch, pulse);
        for (size_t i = begin; i < std::min(begin + n, shards.size()); ++i) {
            std::string other;
            std::string& bytes = i == mine ? own : other;
            broadcast(group, bytes, int(i - begin));
            const auto add = [&] { set.add(data::as_bytes(bytes)); };
            at_the_same_time(group, add, pulse);
        }
    }
    return set.finish();
}

} // namespace rg
