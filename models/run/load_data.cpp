// See load_data.h.
#include "models/run/load_data.h"

#include "core/checksum.h"
#include "core/formatted.h"
#include "core/stop.h"
#include "data/decode.h"
#include "data/digits.h"
#include "data/open.h"
#include "models/run/collective.h"

#include <algorithm>

namespace rg {

namespace {

/// Collective. Runs `work` on all ranks at the same time. If one rank gets a stop request, throws Stopped on all. Else
/// if `work` fails on some ranks, these throw its error, and others PeerFailed. `poll_stop`: as run_while_polling().
void run_on_all_ranks(par::Group& group, const std::function<void()>& work, const std::function<void()>& poll_stop) {
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
        if (poll_stop) poll_stop();
    };
    run_while_polling(group, "data", guarded, group.size() == 1 ? poll_stop : poll);
    if (agreed_to_stop()) throw Stopped();
    const std::vector<std::string> errors = group.allgather(error, "data");
    if (failure) std::rethrow_exception(failure);
    for (size_t rank = 0; rank < errors.size(); ++rank)
        if (!errors[rank].empty()) throw par::PeerFailed(cat("rank ", rank, ": ", errors[rank]));
}

} // namespace

void DataOptions::declare(Options& o, const std::string& folder, const std::string& none) {
    o.group("Data");
    o.add("data", &path,
          cat("folder of ", folder, "; or s3://BUCKET/PREFIX, or pipe:COMMAND, which prints a tar (default: ", none,
              ")"))
        .metavar("DIR")
        .basic()
        .by_rank();
    o.add("test-data", &test_path,
          "test set, of the same kinds as --data: its own test set if it has one, else all of it (default: the test "
          "set of --data; of a folder without one, a fifth of each class, of digits a tenth)")
        .metavar("DIR")
        .by_rank();
    o.add("size", &size,
          "size to which images are resized and cropped when they are loaded, such as 64 (default: as they are)")
        .metavar("H[xW]")
        .basic()
        .fixed();
    o.add("store-size", &store_size,
          "larger size of the loaded images, of which the network takes a window of --size: the central one, but a "
          "random one in training with --augment crop or --resized-crop (default: that of --size)")
        .metavar("H[xW]")
        .fixed();
    data::declare_reading(o, reading);
    o.add("validation", &validation,
          "fraction of each class held out for validation; in the end, the best model is tested on the test set")
        .range(0, 0.9)
        .basic()
        .fixed();
    o.add("batch-size", &batch_size,
          "images per mini-batch, over all ranks; the default is multiplied by the number of GPUs, except in quick94, "
          "but it is at most a sixteenth of the training images, a power of two of at least 8")
        .range(1, 1e6)
        .basic()
        .fixed();
    o.add("shuffle", &shuffle,
          {{"epoch", data::Shuffle::epoch}, {"once", data::Shuffle::once}, {"never", data::Shuffle::never}},
          "order of the images; epoch: a new random one in each epoch; once: a random one; never: that of the files")
        .fixed();
    o.add("seed", &seed, "seed of all random numbers: initial values, held-out images, order, augmentation, dropout")
        .at_least(0)
        .fixed();
}

data::LoadOptions DataOptions::load_options() const {
    const data::ImageSize input = data::parse_size(size),
                          stored = store_size.empty() ? input : data::parse_size(store_size, "--store-size");
    RG_CHECK(store_size.empty() || !size.empty(),
             "--store-size: expected --size too, the smaller size of the network's input, got none; add it");
    RG_CHECK(stored.height >= input.height && stored.width >= input.width, "--store-size: expected at least --size ",
             input.height, "x", input.width, ", got ", stored.height, "x", stored.width,
             "; make --store-size larger, or --size smaller");
    data::LoadOptions options = reading;
    options.height = stored.height, options.width = stored.width, options.seed = seed, options.held_out = test_rule;
    return options;
}

void DataOptions::hold_out_validation(data::TrainTest& sets) const {
    if (validation == 0) return;
    const data::Split parts = data::split_fraction(sets.train, validation, validation_rule.or_new("validation", seed));
    RG_CHECK(!parts.selected.empty() && !parts.others.empty(),
             "--validation: expected 2 training images of some class, got fewer in ", sets.source);
    sets.reserved = std::move(sets.test);
    sets.test = data::subset(sets.train, parts.selected);
    sets.train = data::subset(sets.train, parts.others);
    sets.validation = parts.rule;
    sets.source += cat(", ", sets.test.count, " of the training images for validation");
}

Json DataOptions::describe(const data::TrainTest& sets, const Columns& columns) const {
    const auto text_of = [&](const data::ImageSet& set) {
        std::vector<uint64_t> checksums;
        for (const data::Column& column : columns.at(&set)) checksums.push_back(column.checksum);
        return data::fingerprint(set, checksums);
    };
    Json json = Json::object();
    for (const auto& [member, source] : {std::pair("source", &path), {"test_source", &test_path}})
        json.set(member, source->starts_with("pipe:") ? "pipe:" : *source);
    json.set("left_out", std::ssize(sets.left_out));
    if (const std::vector<std::string>& all = sets.train.names; !all.empty()) {
        Json names = Json::array();
        const size_t count = std::min<size_t>(all.size(), 16); // so that some are left after others are removed
        for (size_t i = 0; i < count; ++i) names.push(hex(checksum(all[all.size() * i / count])));
        json.set("names", names);
    }
    for (const auto& [member, rule] : {std::pair("held_out", &sets.held_out), {"validation", &sets.validation}}) {
        Json limits = Json::object();
        for (const auto& [name, limit] : rule->limits) limits.set(name, limit);
        if (!rule->limits.empty()) json.set(member, Json::object().set("salt", rule->salt).set("limits", limits));
    }
    for (const auto& [member, set] :
         {std::pair("train", &sets.train), {"test", &sets.test}, {"reserved", &sets.reserved}})
        if (columns.contains(set)) json.set(member, text_of(*set));
    return json;
}

Json stored_data(const TensorFile& file) {
    const std::string* const text = file.find_text("data");
    return text ? Json::parse(*text, file.source + ": data") : Json();
}

void DataOptions::follow(const TensorFile& file) {
    const Json stored = stored_data(file);
    if (!stored.is_object()) return;
    if (const Json* const names = stored.find("names"))
        for (const std::string& name : names->as_texts()) known_names.insert(name);
    if (const Json* const name = stored.find("name")) known_names.insert(name->as_string()); // of older runs
    for (const auto& [member, rule] : {std::pair("held_out", &test_rule), {"validation", &validation_rule}})
        if (const Json* const json = stored.find(member)) {
            rule->salt = json->at("salt").as_string();
            for (const auto& [name, limit] : json->at("limits").as_object()) rule->limits[name] = limit.as_int();
        }
}

bool DataOptions::has_other_names(const data::TrainTest& sets) const {
    const auto is_known = [&](const std::string& name) { return known_names.contains(hex(checksum(name))); };
    return !known_names.empty() &&
           std::ranges::none_of(std::array{&sets.train, &sets.test, &sets.reserved},
                                [&](const data::ImageSet* set) { return std::ranges::any_of(set->names, is_known); });
}

data::TrainTest load_digits(par::Group& group, const DataOptions& options, const std::function<void()>& poll_stop) {
    data::LoadOptions grey = options.load_options();
    grey.channels = 1, grey.test_fraction = 0.1;
    const auto draw = [](const data::LoadOptions& drawn) {
        data::TrainTest sets{data::draw_digits(1000, 0), {}, ""};
        data::Conversion conversion(drawn);
        conversion.convert(sets);
        return data::split_sets(sets.train, drawn.test_fraction, drawn.held_out.or_new("test", drawn.seed),
                                "drawn digits", conversion.text());
    };
    data::TrainTest sets = load_data(group, options, grey, poll_stop, draw);
    const auto [height, width] = sets.train.input_size();
    const Shape shape = {height, width, sets.train.channels}, expected = {data::kDigitSide, data::kDigitSide, 1};
    RG_CHECK(shape == expected, "--data: expected images of ", expected.str(), ", got ", shape.str(), " in ",
             sets.source, "; give --size ", expected[0], "x", expected[1]);
    return sets;
}

data::TrainTest load_data(par::Group& group, const DataOptions& options, data::LoadOptions load_options,
                          const std::function<void()>& poll_stop, const BuiltInData& built_in) {
    if (!options.test_path.empty()) load_options.test_fraction = 0;
    data::TrainTest sets = options.path.empty() && built_in ? built_in(load_options)
                                                            : load_data(group, options.path, load_options, poll_stop);
    if (!options.test_path.empty())
        sets = data::with_test_set(std::move(sets), load_data(group, options.test_path, load_options, poll_stop));
    if (!options.store_size.empty()) sets.train.window = sets.test.window = data::parse_size(options.size);
    return sets;
}

data::TrainTest load_data(par::Group& group, const std::string& path, const data::LoadOptions& options,
                          const std::function<void()>& poll_stop) {
    data::Source source; // is destroyed after all ranks have loaded the data
    // Of the ranks that load the same data on one node, the first opens them.
    const std::vector<std::string> sources = group.allgather(cat(data::node_name(), "\n", checksum(path)), "data");
    const auto first = std::find(sources.begin(), sources.end(), sources[size_t(group.rank())]) - sources.begin();
    const auto open = [&] {
        if (first == group.rank()) source = data::open_source(path, options);
    };
    run_on_all_ranks(group, open, poll_stop);
    const std::vector<std::string> opened = group.allgather(source.path, "data");
    data::TrainTest sets;
    data::LoadOptions own = options;
    own.processes = group.local_size();
    const auto load = [&] { sets = data::load_source(opened[size_t(first)], own, path); };
    run_on_all_ranks(group, load, poll_stop);
    return sets;
}

} // namespace rg
