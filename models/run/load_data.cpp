// See load_data.h.
#include "ringgrad/models/run/load_data.h"

#include "ringgrad/core/json.h"
#include "ringgrad/core/stop.h"
#include "ringgrad/data/decode.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/data/open.h"
#include "ringgrad/data/shards.h"
#include "ringgrad/models/run/data_parallel.h"

namespace rg {

namespace {

/// Collective. Runs `work` on all ranks at the same time. If one rank gets a stop request, throws Stopped on all. Else
/// if `work` fails on some ranks, these throw its error, and the others PeerFailed. `pulse`: see run_while_polling().
void run_on_all_ranks(par::Group& group, const std::function<void()>& work, const std::function<void()>& pulse) {
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
    // Returns true on all ranks if some rank has a stop request. A rank must not act on its own request alone, since
    // the others would wait for it.
    const auto agreed_to_stop = [&] { return !group.all(!stop_requested(), "go on"); };
    const auto poll = [&] {
        if (agreed_to_stop()) request_stop(); // ends `work` on this rank too
        if (pulse) pulse();
    };
    run_while_polling(group, "data", guarded, group.size() == 1 ? pulse : poll);
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

/// Collective. Returns the shards at a path. Each rank takes the path from its own command line. If a server must list
/// the objects at the path, rank 0 asks it and sends the list. Then every rank checks that the list has only objects
/// below the path, and derives the same shards from it.
std::vector<data::Shard> find_shards(par::Group& group, const std::string& path, const data::LoadOptions& options,
                                     const std::function<void()>& pulse) {
    if (!data::is_listed(path)) return data::find_shards(path, options);
    std::string message; // JSON: URL, bytes, URL, bytes, ...
    const auto list = [&] {
        Json found = Json::array();
        if (group.rank() == 0)
            for (const data::S3Object& object : data::list_s3(data::find_s3_client(), path, options.fetch))
                found.push(object.url).push(object.bytes);
        message = found.dump();
    };
    run_on_all_ranks(group, list, pulse);
    broadcast(group, message, 0);
    const Json received = Json::parse(message, "list of objects");
    const Json::Array& values = received.as_array();
    std::vector<data::S3Object> objects;
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
        objects.push_back({values[i].as_string(), values[i + 1].as_int()});
        data::check_s3_object(objects.back().url, path);
    }
    return data::shards_of(path, objects, options);
}

} // namespace

void DataOptions::declare(Options& o, const std::string& folder, const std::string& shards, const std::string& none) {
    o.group("Data");
    o.add("data", &path,
          cat("folder of ", folder, ", or s3://BUCKET/PREFIX or pipe:COMMAND for shards of ", shards,
              " (default: ", none, ")"))
        .metavar("DIR")
        .basic();
    o.add("test-data", &test_path,
          "test set, of the same kinds as --data: its own test set if it has one, else all of it (default: the test "
          "set of --data; of a folder without one, a fifth of each class, of digits a tenth)")
        .metavar("DIR");
    o.add("size", &size,
          "height and width to which images are resized and cropped when they are loaded, with their aspect ratio "
          "kept; one number stands for both (default: as they are)")
        .metavar("H[xW]")
        .basic();
    o.add("cache", &cache,
          "folder that keeps downloads from s3: and pipe: for the next time; delete it when the data have changed "
          "(default: "
          "none)")
        .metavar("DIR");
    o.add("retries", &retries, "retries after a failed download, with 0.5 s, 1 s, 2 s ... between them").range(0, 20);
    o.add("unpacked-mib", &unpacked_mib, "largest size of an unpacked gzipped shard, in MiB; a larger one is an error")
        .range(1, 1 << 20);
    o.add("skip-other-images", &skip_other_images,
          "skip images of other formats than PNG; without this option they are an error");
    o.add("validation", &validation,
          "fraction of each class of the training images held out for validation, chosen by --seed; the test set is "
          "then not used")
        .range(0, 0.9)
        .basic();
    o.add("batch-size", &batch_size,
          "images per mini-batch, over all ranks; the default is multiplied by the number of GPUs, but not in quick94 "
          "and for the embedded sample")
        .range(1, 1e6)
        .basic();
    o.add("shuffle", &shuffle,
          {{"epoch", data::Shuffle::epoch}, {"once", data::Shuffle::once}, {"never", data::Shuffle::never}},
          "order of the images; epoch: a new random one in every epoch; once: one random order for all; never: that of "
          "the files");
    o.add("seed", &seed, "seed of all random numbers: initial values, held-out images, order, augmentation, dropout")
        .at_least(0);
}

data::LoadOptions DataOptions::load_options() const {
    const auto [height, width] = data::parse_size(size);
    return {.height = height,
            .width = width,
            .seed = uint64_t(seed),
            .skip_other_images = skip_other_images,
            .fetch = {.cache = cache, .retries = retries, .unpacked_mib = unpacked_mib}};
}

void DataOptions::hold_out_validation(data::TrainTest& sets) const {
    if (validation == 0) return;
    const data::Split parts = data::split_fraction(sets.train, validation, uint64_t(seed));
    RG_CHECK(!parts.selected.empty() && !parts.others.empty(),
             "--validation: expected 2 training images of some class, got fewer in ", sets.source);
    sets.test = data::subset(sets.train, parts.selected);
    sets.train = data::subset(sets.train, parts.others);
    sets.source += cat(", ", sets.test.count, " of the training images for validation");
}

void expect_images(const data::TrainTest& sets, const Shape& image) {
    const Shape shape = {sets.train.height, sets.train.width, sets.train.channels};
    RG_CHECK(shape == image, "--data: expected images of ", image.str(), ", got ", shape.str(), " in ", sets.source,
             "; give --size ", image[0], "x", image[1]);
}

data::TrainTest load_digits(par::Group& group, const DataOptions& options, const std::function<void()>& pulse) {
    data::LoadOptions grey = options.load_options();
    grey.channels = 1, grey.test_fraction = 0.1;
    const auto draw = [](const data::LoadOptions& drawn) {
        data::ImageSet set = data::draw_digits(1000, 0);
        data::Conversion conversion(drawn);
        conversion.convert(set);
        return data::split_sets(set, drawn.test_fraction, drawn.seed, "drawn digits", conversion.text());
    };
    data::TrainTest sets = load_data(group, options, grey, pulse, draw);
    expect_images(sets, {data::kDigitSide, data::kDigitSide, 1});
    options.hold_out_validation(sets);
    return sets;
}

data::TrainTest load_data(par::Group& group, const DataOptions& options, data::LoadOptions load_options,
                          const std::function<void()>& pulse, const BuiltInData& built_in) {
    if (!options.test_path.empty()) load_options.test_fraction = 0;
    data::TrainTest sets =
        options.path.empty() && built_in ? built_in(load_options) : load_data(group, options.path, load_options, pulse);
    if (options.test_path.empty()) return sets;
    return data::with_test_set(std::move(sets), load_data(group, options.test_path, load_options, pulse));
}

data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options,
                          const std::function<void()>& pulse) {
    if (group.size() == 1 || !data::is_remote(path)) {
        data::TrainTest sets;
        const auto load = [&] { sets = data::load(path, options); };
        run_on_all_ranks(group, load, pulse);
        return sets;
    }
    const std::vector<data::Shard> shards = find_shards(group, path, options, pulse);
    data::ShardSet set(path, shards, options);
    const size_t n = size_t(group.size());
    for (size_t begin = 0; begin < shards.size(); begin += n) {
        const size_t own_index = begin + size_t(group.rank());
        std::string own_bytes;
        const auto fetch = [&] {
            if (own_index < shards.size()) own_bytes = data::fetch_shard(shards[own_index], options.fetch);
        };
        run_on_all_ranks(group, fetch, pulse);
        for (size_t i = begin; i < std::min(begin + n, shards.size()); ++i) {
            std::string received;
            std::string& bytes = i == own_index ? own_bytes : received;
            broadcast(group, bytes, int(i - begin));
            const auto add = [&] { set.add(data::as_bytes(bytes)); };
            run_on_all_ranks(group, add, pulse);
        }
    }
    return set.finish();
}

} // namespace rg
