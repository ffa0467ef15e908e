// See training_options.h.
#include "models/run/training_options.h"

#include "core/text.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace rg {


constexpr double kAdamRate = 0.001;

namespace {

std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

data::Interval parse_range(const char* option, const std::string& text) {
    data::Interval range;
    const std::vector<std::string> parts = split(text, ':');
    RG_CHECK(parts.size() == 2 && read_number(parts[0], range.least) && read_number(parts[1], range.most), "--", option,
             ": expected MIN:MAX, such as 0.8:1.2, got \"", text, "\"");
    return range;
}

/// Parses numbers of at least 0, separated by commas. Returns none if the text is anything else.
std::vector<double> parse_non_negative(const std::string& text) {
    std::vector<double> numbers;
    for (const std::string& part : split(text, ',')) {
        double number = 0;
        if (!read_number(part, number) || !(number >= 0)) return {};
        numbers.push_back(number);
    }
    return numbers;
}

std::string none_or(const std::vector<std::string>& names) {
    return names.empty() ? "none" : cat("none, or a list of ", joined(names));
}

} // namespace

double DefaultRate::at(int64_t batch_size) const {
    return root ? rate * std::sqrt(double(batch_size) / batch) : rate * double(batch_size) / batch;
}

std::string DefaultRate::text() const {
    return root ? cat(rate, " x sqrt(batch-size / ", batch, ")") : cat(rate, " x batch-size / ", batch);
}

void TrainingOptions::declare_data(Options& o) {
    data_options.declare(o, data_texts.folder, data_texts.none);
    o.add("partial-batch", &partial,
          {{"auto", Partial::automatic}, {"keep", Partial::keep}, {"discard", Partial::discard}},
          "use of a last, smaller mini-batch; auto: keep it if it is at least half as large, or the only one")
        .fixed();
    o.add("normalise", &normalisation,
          {{"auto", Normalisation::automatic}, {"imagenet", Normalisation::imagenet}, {"none", Normalisation::none}},
          "mean and deviation by channel that normalise the images; auto: those of the data; imagenet: those of "
          "torchvision's pretrained networks, for --init; none: 0 and 1, so inputs are bytes / 255")
        .fixed();
    o.add("augment", &augment,
          cat("random changes of the training images: ", none_or(augment_names()),
              augmentations.contains("crop") ? "; crop: with --store-size, a window at a random place" : "",
              augment == "auto" ? "; auto: flip,translate for one class per image or a reconstruction, else none" : ""))
        .metavar("LIST")
        .basic()
        .fixed();
    if (augmentations.contains("translate")) {
        o.add("translate", &translate,
              "largest translation in pixels, for --augment translate; with --fill zero, a random crop with that "
              "padding")
            .range(0, 1024)
            .fixed();
        o.add("translate-x", &translate_x, "largest translation to the left and right; -1: that of --translate")
            .range(-1, 1024)
            .fixed();
        o.add("translate-y", &translate_y, "largest translation up and down; -1: that of --translate")
            .range(-1, 1024)
            .fixed();
    }
    if (augmentations.contains("rotate"))
        o.add("rotate", &rotate, "largest random rotation of the training images, in degrees, in both directions")
            .range(0, 180)
            .fixed();
    if (augmentations.contains("scale"))
        o.add("scale", &scale, "range of a random zoom factor for the training images, such as 0.8:1.2")
            .metavar("MIN:MAX")
            .fixed();
    if (augmentations.contains("resized-crop"))
        o.add("resized-crop", &resized_crop,
              "range of a random box's area, as a fraction of the image, resized to --size, such as 0.25:1; 1:1: off")
            .metavar("MIN:MAX")
            .fixed();
    o.add("fill", &fill, {{"zero", data::Fill::zero}, {"reflect", data::Fill::reflect}},
          "how to fill the pixels beyond the edge of a moved image; zero: black; reflect: the mirrored image")
        .fixed();
    o.add("jitter", &jitter,
          "largest changes X of brightness, contrast and saturation, by factors from 1 - X to 1 + X; 0,0,0: off")
        .metavar("B,C,S")
        .fixed();
    o.add("erase", &erase, "probability of erasing a random box of a training image (random erasing)")
        .range(0, 1)
        .fixed();
    o.add("mixup", &mixup,
          "mix pairs of training images and labels with weights of the distribution Beta(A, A), such as 0.2; 0: off")
        .range(0, 100)
        .fixed();
    o.add("cutmix", &cutmix,
          "replace a box by a part of another image, of an area by Beta(A, A); with --mixup, one of both; 0: off")
        .range(0, 100)
        .fixed();
    if (!has_smoothing) return;
    o.add("class-weights", &class_weights,
          "weights of the classes in the loss: none, balanced (inverse to their numbers of images), or a number for "
          "each")
        .metavar("LIST")
        .fixed();
    o.add("sampler", &sampler,
          "uniform: each training image once per epoch; balanced: equally many of each class, as many in all")
        .one_of({"uniform", "balanced"})
        .fixed();
}

std::vector<std::string> TrainingOptions::augment_names() const {
    std::vector<std::string> names;
    for (const char* name : {"flip", "alternating-flip", "flip-vertical", "translate", "crop"})
        if (augmentations.contains(name)) names.push_back(name);
    return names;
}

void TrainingOptions::declare_training(Options& o) {
    o.group("Training");
    o.add("epochs", &epochs, "number of epochs").range(1, 1e6).basic();
    o.add("steps", &steps, "total number of steps; the schedule of the rate still uses --epochs; -1: those of --epochs")
        .at_least(-1);
    o.add("lr", &schedule.base,
          cat("highest learning rate; 0: ", default_rate.text(),
              optimizer.has_momentum() ? cat("; with adam or adamw ", kAdamRate)
                                       : cat("; with sgd or muon ", DefaultRate().text())))
        .at_least(0)
        .basic();
    o.add("schedule", &schedule.kind, schedule_kinds(), "schedule of the learning rate");
    o.add("drops", &drops,
          "piecewise: when the rate drops: fractions of --epochs below 1, and numbers of epochs from 1 on")
        .metavar("LIST");
    o.add("drop-every", &drop_every,
          "piecewise: drop at each multiple of this fraction of --epochs, or from 1 on of epochs; 0: see --drops")
        .at_least(0);
    o.add("drop-factor", &schedule.factor, "piecewise: factor for the rate at each drop").at_least(1e-9);
    o.add("lr-floor", &schedule.floor, "cosine, triangular: last rate").at_least(0);
    o.add("lr-peak", &schedule.peak,
          "triangular: when the rate is highest, as a fraction of the training below 1; 0: at its beginning")
        .range(0, 1);
    o.add("lr-start", &schedule.start, "triangular: first rate; -1: that of --lr-floor").at_least(-1);
    o.add("warmup", &schedule.warmup, "epochs in which a factor of the rate rises linearly from 0 to 1").at_least(0);
    o.add("freeze", &freeze,
          "layers, such as conv1,bn1,layer1, that keep their values, and all within them; batch norm is as in tests")
        .metavar("NAMES");
    o.add("lr-scale", &rate_factors, "factors of the learning rate of layers, such as fc=10,layer4=0.1")
        .metavar("LIST");
    default_momentum_ = optimizer.has_momentum();
    o.add("optimizer", &optimizer.kind,
          {{"sgd", OptimizerKind::sgd},
           {"adam", OptimizerKind::adam},
           {"adamw", OptimizerKind::adamw},
           {"muon", OptimizerKind::muon}},
          "update rule; sgd: SGD with momentum; muon: sgd with orthogonal steps for filters before a batch norm")
        .fixed();
    o.add("momentum", &optimizer.momentum, "sgd, muon: momentum").range(0, 1);
    o.add("nesterov", &optimizer.nesterov, "sgd, muon: use Nesterov momentum");
    o.add("l2", &optimizer.weight_decay,
          "weight decay: factor of a parameter that is added to its gradient; adamw: decoupled")
        .at_least(0);
    o.add("decay-biases", &optimizer.decay_biases, "apply weight decay to biases and batch norm, too");
    o.add("clip", &optimizer.max_norm, "largest norm of all gradients together; larger ones are scaled down; 0: none")
        .at_least(0);
    o.add(
         "average", &optimizer.average,
         "decay of a moving average of the weights and of batch norm's running statistics, which tests and models then "
         "use, such as 0.999 for about the last 1000 steps; 0: none")
        .range(0, 0.999999)
        .fixed();
    o.add(
         "lookahead", &optimizer.lookahead,
         "every 5 steps, move the weights back towards where the last such move left them, by the fraction X (s / S)^3 "
         "at step s of S; after step S, they are those of the last move; 0: never")
        .range(0, 0.999999)
        .fixed();
    if (has_smoothing)
        o.add("label-smoothing", &smoothing, "fraction of the target spread over all classes").range(0, 0.99);
}

double TrainingOptions::highest_rate() const {
    if (schedule.base > 0) return schedule.base;
    const bool momentum = optimizer.has_momentum(), same = momentum == default_momentum_;
    return momentum || same ? (same ? default_rate : DefaultRate()).at(data_options.batch_size) : kAdamRate;
}

void TrainingOptions::check(const Options& options) const {
    if (!optimizer.has_momentum())
        for (const char* name : {"momentum", "nesterov"})
            RG_CHECK(!options.was_given(name), "--", name,
                     ": expected --optimizer sgd or muon, got another one; omit one of them");
    RG_CHECK(optimizer.kind != OptimizerKind::muon || optimizer.max_norm == 0,
             "--clip: expected another --optimizer than muon, whose steps ignore the length of gradients; omit one");
    const bool drops_rate = schedule.kind == ScheduleKind::piecewise, rises = schedule.kind == ScheduleKind::triangular,
               falls = rises || schedule.kind == ScheduleKind::cosine;
    const auto check_schedule = [&](const char* name, bool fits, const char* kinds) {
        RG_CHECK(fits || !options.was_given(name), "--", name, ": expected --schedule ", kinds,
                 ", got another one; omit one of them");
    };
    for (const char* name : {"drops", "drop-every", "drop-factor"}) check_schedule(name, drops_rate, "piecewise");
    for (const char* name : {"lr-peak", "lr-start"}) check_schedule(name, rises, "triangular");
    check_schedule("lr-floor", falls, "cosine or triangular");
    RG_CHECK(drop_every == 0 || !options.was_given("drops"),
             "--drop-every: expected no --drops beside it, got both; omit one of them");
    (void)full_schedule();
    (void)augmentation();
}

void TrainingOptions::fit_batch_size(int64_t images, const Workers& workers) {
    constexpr int64_t kLeast = 8; // batch norm needs more than a few images
    const auto sixteenth = int64_t(std::bit_floor(uint64_t(images) / 16));
    int64_t& size = data_options.batch_size;
    if (scales_batch_size || batch_size_per_gpu) size = workers.times_gpus(size);
    if (!batch_size_per_gpu) size = std::min(size, std::max(sixteenth, kLeast));
}

Schedule TrainingOptions::full_schedule() const {
    constexpr int64_t kMostDrops = 10000;
    Schedule full = schedule;
    full.base = highest_rate();
    full.epochs = double(epochs);
    const std::vector<double> times = parse_non_negative(drops);
    RG_CHECK(drops.empty() || !times.empty(),
             "--drops: expected fractions of the training or epochs, such as 0.9 or 30,45, got \"", drops, "\"");
    // In floating point, 0.07 * 100 is a little more than the 7 that is meant.
    const auto in_epochs = [&](double time) { return time < 1 ? std::round(time * full.epochs * 1e9) / 1e9 : time; };
    RG_CHECK(drop_every == 0 || in_epochs(drop_every) * kMostDrops >= full.epochs, "--drop-every: expected at most ",
             kMostDrops, " drops, got more; make it larger");
    if (drop_every > 0)
        for (int64_t i = 1; double(i) * in_epochs(drop_every) < full.epochs; ++i)
            full.drops.push_back(double(i) * in_epochs(drop_every));
    else
        for (const double drop : times) full.drops.push_back(in_epochs(drop));
    full.check();
    return full;
}

std::string TrainingOptions::default_augment(bool keeps_labels) const {
    std::vector<std::string> names = augment_names();
    std::erase_if(names, [](const std::string& name) { return name != "flip" && name != "translate"; });
    return keeps_labels && !names.empty() ? joined(names) : "none";
}

data::Augment TrainingOptions::augmentation() const {
    const std::vector<std::string> names = augment_names();
    std::set<std::string> chosen;
    if (augment != "none" && augment != "auto")
        for (const std::string& name : split(augment, ',')) {
            RG_CHECK(std::ranges::count(names, name), "--augment: expected ", none_or(names), ", got \"", augment,
                     "\"");
            chosen.insert(name);
        }
    RG_CHECK(!chosen.contains("crop") || !data_options.store_size.empty(),
             "--augment crop: expected a --store-size larger than --size, got none; add it, or use translate");
    const std::vector<double> changes = parse_non_negative(jitter);
    RG_CHECK(changes.size() == 3, "--jitter: expected three numbers of at least 0 for brightness, contrast and ",
             "saturation, such as 0.4,0.4,0.4, got \"", jitter, "\"");
    const int64_t shift = chosen.contains("translate") ? 1 : 0;
    return {.flip = chosen.contains("flip"),
            .alternating_flip = chosen.contains("alternating-flip"),
            .flip_vertical = chosen.contains("flip-vertical"),
            .translate_x = shift * (translate_x >= 0 ? translate_x : translate),
            .translate_y = shift * (translate_y >= 0 ? translate_y : translate),
            .rotate = rotate,
            .scale = parse_range("scale", scale),
            .fill = fill,
            .crop = chosen.contains("crop"),
            .crop_area = parse_range("resized-crop", resized_crop),
            .jitter = {changes[0], changes[1], changes[2]},
            .erase = erase,
            .mixup = mixup,
            .cutmix = cutmix};
}

std::vector<float> TrainingOptions::weights_of_classes(const data::ImageSet& images) const {
    if (class_weights == "none") return {};
    if (class_weights == "balanced") return data::balanced_weights(images);
    const std::vector<double> numbers = parse_non_negative(class_weights);
    RG_CHECK(!numbers.empty(), "--class-weights: expected none, balanced, or a list of numbers such as 1,2,0.5, got \"",
             class_weights, "\"");
    return {numbers.begin(), numbers.end()};
}

void TrainingOptions::set_rates(Parameters& parameters) const {
    for (const std::string& text : list_of("--lr-scale", rate_factors)) {
        const size_t equals = text.find('=');
        double factor = -1;
        const bool read = equals != std::string::npos && read_number(text.substr(equals + 1), factor);
        RG_CHECK(read && factor >= 0, "--lr-scale: expected a layer and a factor of at least 0, such as fc=10, got ",
                 text);
        for_option("--lr-scale", [&] {
            for (Parameters::Entry* entry : parameters.entries_of(text.substr(0, equals))) entry->rate *= float(factor);
        });
    }
    const std::vector<std::string> skipped = list_of("--init-skip", run_options.init_skip);
    for (const std::string& layer : list_of("--freeze", freeze)) {
        for_option("--freeze", [&] { parameters.freeze(layer); });
        for (const std::string& skip : skipped)
            RG_CHECK(run_options.resume ||
                         (!(skip + ".").starts_with(layer + ".") && !(layer + ".").starts_with(skip + ".")),
                     "--freeze: expected layers with the values of --init, got ", layer,
                     ", but --init-skip leaves out ", skip, "; freeze other layers only");
    }
}

data::LoaderOptions TrainingOptions::loader_options(const data::ImageSet& images, const data::Normalise& normalise,
                                                    const Task& task) const {
    RG_CHECK(task.mixes || (mixup == 0 && cutmix == 0),
             "--mixup, --cutmix: expected a task whose labels can be mixed, got another one; omit both");
    RG_CHECK(task.weighs || class_weights == "none",
             "--class-weights: expected a classification, got a task whose loss has no weights; omit the option");
    const int64_t size = data_options.batch_size;
    const bool keeps = images.count < size || 2 * (images.count % size) >= size;
    return {.batch_size = size,
            .shuffle = data_options.shuffle,
            .keep_partial = partial == Partial::keep || (partial == Partial::automatic && keeps),
            .seed = uint64_t(data_options.seed),
            .balanced = sampler == "balanced",
            .class_weights = weights_of_classes(images),
            .augment = augmentation(),
            .normalise = normalise};
}

} // namespace rg
