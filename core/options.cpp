// Parses, checks and prints options. The error messages say how to correct the command line, since they are the first
// messages that most users see.
//
// --help is 80 columns wide: names on the left, wrapped texts on the right, one group after the other.
#include "core/options.h"

#include "core/text.h"
#include "core/version.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <unistd.h>

namespace rg {
namespace {

constexpr size_t kHelpWidth = 80, kNameColumn = 26;

/// Options, and after the colon the names that MATLAB, Keras, fastai, PyTorch with Lightning and torchvision, timm,
/// Hugging Face and Ultralytics have for the same. The error for such a name suggests ours.
constexpr const char* kOtherNames = R"(
accelerate: acceleration jit-compile torch-compile compile; augment: augmentation data-augmentation no-aug
auto-augment hflip vflip horizontal-flip vertical-flip fliplr item-tfms batch-tfms transforms; average: ema ema-decay
ema-momentum use-ema model-ema model-ema-decay; batch-size: batch bs mini-batch-size train-batch-size
per-device-train-batch-size; checkpoint-every: checkpoint-frequency save-steps save-period every-n-train-steps;
class-weights: class-weight; clip: clip-grad grad-clip max-norm max-grad-norm clip-grad-norm clip-norm clip-value
gradient-threshold gradient-threshold-method gradient-clip-val; cutmix: cutmix-alpha; data: data-dir data-path dataset
root train train-dir train-data; decay-biases: norm-weight-decay; device: gpu accelerator no-cuda
execution-environment; drop-every: learn-rate-drop-period lr-step-size step-size decay-epochs; drop-factor:
learn-rate-drop-factor lr-gamma gamma decay-rate lr-decay; drops: milestones decay-milestones; epochs: num-epochs
max-epochs n-epoch num-train-epochs t-max; erase: random-erase random-erasing reprob; fill: fill-mode; freeze:
freeze-backbone freeze-epochs; gpus: devices gpu-ids; init: weights pretrained checkpoint ckpt initial-checkpoint;
jitter: color-jitter; keep: checkpoint-hist save-top-k save-total-limit; l2: weight-decay wd l2-regularization;
label-smoothing: smoothing label-smoothing-factor; lr: learning-rate initial-learn-rate lr-max max-lr base-lr lr0;
lr-floor: min-lr lr-min eta-min; lr-scale: weight-learn-rate-factor layer-decay; mixup: mixup-alpha; net: model arch
network backbone; normalise: normalize mean std rescale reset-input-normalization; on-nan: detect-anomaly
terminate-on-nan; optimizer: optim opt solver solver-name gradient-decay-factor squared-gradient-decay-factor
adam-beta1 opt-betas opt-eps; patience: early-stopping validation-patience patience-epochs restore-best-weights
load-best-model-at-end; patience-on: monitor eval-metric metrics metric-for-best-model objective-metric-name
output-network; precision: amp dtype mixed-precision fp16 bf16; profile: profiler; progress: verbose verbose-frequency
print-freq log-interval log-every-n-steps logging-steps enable-progress-bar; report: plots; resized-crop:
random-resized-crop; resume: resume-from-checkpoint ckpt-path start-epoch initial-epoch; rotate: rotation-range
degrees; run-name: name experiment experiment-name; runs: out output output-dir save-dir log-dir checkpoint-path
default-root-dir project; scale: zoom-range; schedule: scheduler sched lr-schedule lr-scheduler lr-scheduler-type
learn-rate-schedule cos-lr; seed: random-state; size: image-size img-size imgsz input-size target-size
train-crop-size; steps: max-steps num-steps iterations steps-per-epoch limit-train-batches; store-size: crop-pct
val-resize-size; sync-bn: sync-batchnorm; test-data: validation-data val-data val-dir
test-dir; test-views: tta; threads: num-workers num-threads dataloader-num-workers dispatch-in-background
preprocessing-environment; translate-x: width-shift-range; translate-y: height-shift-range; validate-every:
validation-frequency validation-freq val-check-interval check-val-every-n-epoch eval-steps eval-strategy; validation:
validation-split val-split valid-pct; warmup: warmup-epochs lr-warmup-epochs warmup-steps warmup-ratio; workers:
accumulate-grad-batches gradient-accumulation-steps grad-accum-steps)";

std::string shortest(double value) {
    char digits[32];
    return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

std::string join(const std::vector<std::string>& names) {
    std::string all;
    for (size_t i = 0; i < names.size(); ++i) all += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
    return all;
}

/// Returns the smallest number of edits (insert, delete, replace, swap of neighbours) that turn a into b, where no
/// character is edited twice.
size_t distance(const std::string& a, const std::string& b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i)
        for (size_t j = 0; j <= b.size(); ++j) {
            if (i == 0 || j == 0) {
                d[i][j] = i + j;
                continue;
            }
            d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[a.size()][b.size()];
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

/// Returns "; did you mean ...?" with the second text of a pair: of the pair whose first text is most similar to
/// `typed`. Returns `otherwise` if none is similar.
std::string suggestion(const std::string& typed, const Pairs& names, const std::string& otherwise) {
    const auto plain = [](std::string name) { // "MiniBatchSize" and "--mini_batch_size" are the same
        std::erase_if(name, [](char c) { return c == '-' || c == '_'; });
        return lower(name);
    };
    const std::string a = plain(typed);
    std::string text = otherwise;
    size_t nearest = std::max<size_t>(2, a.size() / 4) + 1;
    for (const auto& [name, ours] : names) {
        const std::string b = plain(name);
        const size_t d = distance(a, b);
        if (d < nearest && 2 * d <= std::min(a.size(), b.size())) nearest = d, text = cat("; did you mean ", ours, "?");
    }
    return text;
}

/// Appends one item of --help to `out`: `label` on the left, and `text` on the right, wrapped.
void print_item(std::string& out, const std::string& label, const std::string& text) {
    std::string line = "  " + label;
    if (line.size() + 2 > kNameColumn) {
        out += line + "\n";
        line.clear();
    }
    line.resize(kNameColumn, ' ');
    out += wrapped(text, kHelpWidth, kNameColumn, line) + "\n";
}

} // namespace

std::string Options::Option::get() const {
    if (get_choice_) return get_choice_();
    if (const auto* v = std::get_if<int64_t*>(&variable_)) return std::to_string(**v);
    if (const auto* v = std::get_if<double*>(&variable_)) return shortest(**v);
    if (const auto* v = std::get_if<bool*>(&variable_)) return **v ? "true" : "false";
    if (const auto* v = std::get_if<std::vector<std::string>*>(&variable_)) {
        std::string all;
        for (const std::string& value : **v) all += (all.empty() ? "" : " ") + value;
        return all;
    }
    return *std::get<std::string*>(variable_);
}

Json Options::Option::get_json() const {
    if (get_choice_) return get();
    if (const auto* v = std::get_if<int64_t*>(&variable_)) return **v;
    if (const auto* v = std::get_if<double*>(&variable_)) return **v;
    if (const auto* v = std::get_if<bool*>(&variable_)) return **v;
    return get();
}

std::string Options::Option::valid_values() const {
    if (!choices_.empty()) return "one of " + join(choices_);
    if (is_bool()) return "true or false";
    if (std::holds_alternative<std::string*>(variable_) || is_list()) return "a text";
    const bool whole = std::holds_alternative<int64_t*>(variable_);
    const auto print = [whole](double bound) { return whole ? std::to_string(int64_t(bound)) : shortest(bound); };
    const std::string text = whole ? "an integer" : "a number";
    if (std::isfinite(lowest_) && std::isfinite(highest_))
        return text + " from " + print(lowest_) + " to " + print(highest_);
    if (std::isfinite(lowest_)) return text + " of at least " + print(lowest_);
    if (std::isfinite(highest_)) return text + " of at most " + print(highest_);
    return text;
}

void Options::Option::set(const std::string& value) {
    const auto require = [&](bool valid) {
        RG_CHECK(valid, "option --", name_, ": expected ", valid_values(), ", got \"", value, "\"");
    };
    size_t choice = 0;
    if (!choices_.empty()) {
        choice = size_t(std::find(choices_.begin(), choices_.end(), value) - choices_.begin());
        require(choice < choices_.size());
    }
    if (set_choice_) {
        set_choice_(choice);
    } else if (auto* i = std::get_if<int64_t*>(&variable_)) {
        int64_t number = 0;
        require(read_number(value, number) && double(number) >= lowest_ && double(number) <= highest_);
        **i = number;
    } else if (auto* d = std::get_if<double*>(&variable_)) {
        double number = 0;
        require(read_number(value, number) && std::isfinite(number) && number >= lowest_ && number <= highest_);
        **d = number;
    } else if (auto* b = std::get_if<bool*>(&variable_)) {
        require(value == "true" || value == "false");
        **b = value == "true";
    } else if (is_list()) {
        std::get<std::vector<std::string>*>(variable_)->push_back(value);
    } else {
        *std::get<std::string*>(variable_) = value;
    }
}

Options::Options(std::string program, std::string summary)
    : program_(std::move(program)), summary_(std::move(summary)) {}

Options::Option& Options::declare(const std::string& name, const std::string& text) {
    RG_CHECK(!find(name) && name != "help" && name != "help-all" && name != "version", "options: --", name,
             " is declared twice");
    Option& option = options_.emplace_back();
    option.name_ = name;
    option.text_ = text;
    option.group_ = group_;
    option.fixed_ = fixed_;
    return option;
}

Options::Option& Options::add(const std::string& name, Variable target, const std::string& text) {
    static constexpr const char* kMetavars[] = {"N", "X", "", "TEXT", "TEXT"}; // the index is that of the target's type
    Option& option = declare(name, text);
    option.variable_ = target;
    if (!option.is_list()) option.default_ = option.get();
    return option.metavar(kMetavars[target.index()]);
}

void Options::add_examples(const std::vector<std::string>& arguments, const std::string& launcher) {
    const std::string command = program_.substr(std::min(program_.find(' '), program_.size()));
    const bool has_mpi = std::string_view(kMpi) != "no";
    for (const std::string& argument : arguments)
        examples_.push_back(cat(has_mpi ? launcher : "", shell_word(invocation_name()), command, " ", argument));
}

void Options::positional(const std::string& metavar, std::vector<std::string>* values, const std::string& text,
                         size_t least, size_t most) {
    positional_metavar_ = metavar;
    positional_ = values;
    positional_text_ = text;
    positional_least_ = least;
    positional_most_ = most;
}

Options::Option* Options::find(const std::string& name) {
    for (Option& e : options_)
        if (e.name_ == name) return &e;
    return nullptr;
}

void Options::fail_unknown(const std::string& argument) const {
    const std::string typed = argument.substr(0, argument.find('='));
    Pairs names{{"--help", "--help"}, {"--help-all", "--help-all"}, {"--version", "--version"}};
    for (const Option& e : options_)
        for (const char* const dashes : {"--", "--no-"})
            if (dashes[2] == '\0' || e.is_bool()) names.emplace_back(dashes + e.name_, dashes + e.name_);
    std::string rows = kOtherNames;
    std::ranges::replace(rows, '\n', ' ');
    for (const std::string& row : split(rows, ';'))
        if (const std::string ours(trimmed(row.substr(0, row.find(':')))); find(ours))
            for (const std::string& name : split(row.substr(row.find(':') + 1), ' '))
                names.emplace_back("--" + name, "--" + ours);
    fail("unknown option ", typed, suggestion(typed, names, cat("; ", program_, " --help-all lists all")));
}

size_t Options::parse_option(std::span<const std::string> args) {
    const std::string& argument = args[0];
    const size_t equals = argument.find('=');
    const bool attached = equals != std::string::npos;
    const std::string name = argument.substr(2, attached ? equals - 2 : std::string::npos);
    RG_CHECK(name != "help" && name != "help-all" && name != "version", "option --", name, ": expected --", name,
             " alone, got ", argument);
    Option* option = find(name);
    Option* negated = !option && name.starts_with("no-") ? find(name.substr(3)) : nullptr;
    if (negated && !negated->is_bool()) negated = nullptr;
    if (!option && !negated) {
        if (!passed_on_) fail_unknown(argument);
        size_t used = 1;
        if (!attached)
            while (used < args.size() && !args[used].starts_with("--")) ++used;
        passed_on_->insert(passed_on_->end(), args.begin(), args.begin() + std::ptrdiff_t(used));
        return used;
    }
    Option& e = option ? *option : *negated;
    e.given_ = true;
    if (e.is_bool()) {
        RG_CHECK(!attached, "option --", e.name_, ": expected --", e.name_, " or --no-", e.name_, " alone, got ",
                 argument);
        e.set(option ? "true" : "false");
        return 1;
    }
    if (attached) {
        e.set(argument.substr(equals + 1));
        return 1;
    }
    // A following argument such as -3 is the value. A following argument that begins with "--" is the next option.
    RG_CHECK(args.size() > 1 && !args[1].starts_with("--"), "option --", e.name_, ": expected ", e.valid_values(),
             " after it, got ", args.size() > 1 ? args[1] : "the end of the command line");
    e.set(args[1]);
    return 2;
}

bool Options::parse(int argc, const char* const* argv) {
    return parse(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}

bool Options::parse(const std::vector<std::string>& args) {
    if (!commands_.empty() && !args.empty() && !args[0].starts_with("-")) {
        Pairs names;
        std::vector<std::string> all;
        for (const auto& [name, line] : commands_) names.emplace_back(name, name), all.push_back(name);
        fail(program_, ": expected a command (", join(all), "), got \"", args[0], "\"",
             suggestion(args[0], names, cat("; options begin with --, ", program_, " --help-all lists them")));
    }
    for (const std::string& argument : args) {
        version_asked_ = argument == "--version";
        all_asked_ = argument == "--help-all";
        if (version_asked_ || all_asked_ || argument == "--help" || argument == "-h") return false;
    }
    std::string after; // for errors: the option before an argument, and how many values it takes
    for (size_t i = 0; i < args.size();) {
        if (args[i].starts_with("--")) {
            const size_t used = parse_option(std::span(args).subspan(i));
            const bool alone = used == 1 && args[i].find('=') == std::string::npos;
            after = cat(" after ", args[i], used == 2 ? ", which takes one value" : alone ? ", which takes none" : "");
            i += used;
            continue;
        }
        if (args[i].size() > 1 && args[i][0] == '-') fail_unknown(args[i]);
        RG_CHECK(positional_, "unexpected argument \"", args[i], "\"", after, "; options begin with --, ", program_,
                 " --help-all lists them");
        positional_->push_back(args[i++]);
    }
    const size_t count = positional_ ? positional_->size() : 0;
    const bool few = count < positional_least_;
    RG_CHECK(!few && count <= positional_most_, program_, ": expected at ", few ? "least " : "most ",
             few ? positional_least_ : positional_most_, " ", positional_metavar_, ", got ", count, "; see ", program_,
             " --help");
    return true;
}

void Options::print_option(std::string& out, const Option& e) {
    if (e.is_bool()) {
        print_item(out, "--[no-]" + e.name_, cat(e.text_, " (default ", e.default_ == "true" ? "on" : "off", ")"));
        return;
    }
    std::string notes;
    if (!e.choices_.empty() || std::isfinite(e.lowest_) || std::isfinite(e.highest_)) notes = e.valid_values();
    if (!e.default_.empty()) notes += cat(notes.empty() ? "" : "; ", "default ", e.default_);
    const std::string metavar = e.choices_.empty() ? e.metavar_ : "NAME";
    print_item(out, cat("--", e.name_, " ", metavar), notes.empty() ? e.text_ : cat(e.text_, " (", notes, ")"));
}

std::string Options::help(bool all) const {
    std::string out = wrapped(cat(program_, ": ", summary_), kHelpWidth, 0) + "\n";
    if (!examples_.empty()) out += "\nExamples\n";
    for (const std::string& example : examples_) out += cat("  ", example, "\n");
    out += cat("\nUsage: ", program_, commands_.empty() ? "" : " [command]", " [options]");
    if (positional_)
        out += cat(" ", positional_metavar_,
                   positional_least_ == positional_most_ ? ""
                   : positional_least_ > 1               ? " ..."
                                                         : "...");
    out += "\n";
    if (positional_) {
        out += "\n";
        print_item(out, positional_metavar_, positional_text_);
    }
    if (!commands_.empty()) out += "\nCommands\n";
    for (const auto& [name, line] : commands_) print_item(out, name, line);
    const size_t basics =
        size_t(std::count_if(options_.begin(), options_.end(), [](const Option& e) { return e.basic_; }));
    all = all || basics == 0;
    if (basics > 0) out += "\nMain options\n";
    for (const Option& e : options_)
        if (e.basic_) print_option(out, e);
    std::string group;
    for (const Option& e : options_) {
        if (!all || e.basic_) continue;
        if (e.group_ != group) out += cat("\n", wrapped(e.group_, kHelpWidth, 0), "\n");
        group = e.group_;
        print_option(out, e);
    }
    out += "\n";
    if (passed_on_) print_item(out, "any other option", passed_on_text_);
    print_item(out, "-h, --help", basics > 0 ? "print the main options and exit" : "print this and exit");
    if (basics > 0) print_item(out, "--help-all", cat("print also the ", options_.size() - basics, " other options"));
    print_item(out, "--version", "print the version, and what it was built with, and exit");
    return out;
}

int Options::print_help_or_version(bool prints) const {
    if (prints) std::cout << help_or_version();
    return 0;
}

std::string Options::version() const { return cat(program_, " ", kBuild, "\n"); }

const Options::Option& Options::declared(const std::string& name) const {
    const Option* option = find(name);
    RG_CHECK(option, "options: --", name, " is not declared");
    return *option;
}

bool Options::was_given(const std::string& name) const { return declared(name).given_; }
bool Options::is_fixed(const std::string& name) const { return declared(name).fixed_; }
bool Options::is_path(const std::string& name) const {
    const std::string& metavar = declared(name).metavar_;
    return metavar.ends_with("DIR") || metavar.ends_with("FILE");
}

bool Options::is_by_rank(const std::string& name) const { return declared(name).by_rank_; }

void Options::set(const std::string& name, const std::string& value) {
    Option* option = find(name);
    RG_CHECK(option, "option --", name, " (value \"", value, "\"): this program has no such option");
    if (!option->is_list()) return option->set(value);
    std::get<std::vector<std::string>*>(option->variable_)->clear();
    for (const std::string& part : split(value, ' '))
        if (!part.empty()) option->set(part);
}

std::vector<std::pair<std::string, std::string>> Options::values() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (const Option& e : options_) all.emplace_back(e.name_, e.get());
    return all;
}

Json Options::to_json() const {
    Json all = Json::object();
    for (const Option& e : options_) all.set(e.name_, e.get_json());
    return all;
}

void prepare_process() {
    int fd;
    do fd = ::open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) ::close(fd);
    std::signal(SIGXFSZ, SIG_IGN);
}

std::vector<std::string> list_of(std::string_view option, const std::string& value) {
    if (value.empty()) return {};
    std::vector<std::string> parts = split(value, ',');
    for (const std::string& part : parts)
        RG_CHECK(!part.empty(), option, ": expected a list with commas, got \"", value, "\" (an empty name)");
    return parts;
}

std::string invocation_name() {
    std::ifstream command("/proc/self/cmdline");
    std::string path;
    std::getline(command, path, '\0');
    return path;
}

void finish_output() {
    errno = 0;
    std::cout.flush();
    const bool written = std::fflush(stdout) == 0 && !std::ferror(stdout) && std::cout.good();
    // If an earlier write failed and nothing is left to write, only another write finds the cause.
    if (!written && !errno && ::write(STDOUT_FILENO, "\n", 1) > 0) errno = 0;
    RG_CHECK(written, "standard output: expected to write all of it, got ", errno ? std::strerror(errno) : "an error",
             "; the output is incomplete");
}

int run_main(int argc, char** argv, int (*body)(int, const char* const*)) try {
    prepare_process();
    const int code = body(argc, argv);
    if (code == 0) finish_output();
    return code;
} catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", printable(error.what()).c_str());
    return 1;
}

} // namespace rg
