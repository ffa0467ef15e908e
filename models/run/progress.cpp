// See progress.h.
#include "models/run/progress.h"

#include "core/clock.h"
#include "core/formatted.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

namespace rg {
namespace {

constexpr double kRedrawSeconds = 0.1, kDecaySeconds = 10, kFirstLineSeconds = 2, kLineSeconds = 10;

/// Returns the fields before the first one that does not fit, with two spaces between them. Skips empty fields.
std::string joined(const std::vector<std::string>& fields, int columns) {
    std::string line;
    for (const std::string& field : fields) {
        if (field.empty()) continue;
        const std::string longer = line.empty() ? field : line + "  " + field;
        if (int(longer.size()) > columns) break;
        line = longer;
    }
    return line;
}

} // namespace

void declare_progress(Options& o, ProgressKind* kind) {
    o.add("progress", kind,
          {{"auto", ProgressKind::automatic},
           {"line", ProgressKind::line},
           {"bar", ProgressKind::bar},
           {"none", ProgressKind::none}},
          "line: a line every ten seconds, with the time left in the epoch / in all; bar: one line that changes; auto: "
          "bar on a terminal, else line; none: only errors, and a line when images are copied or decoded");
}

ProgressStyle style_of(ProgressKind kind) {
    const char *type = std::getenv("TERM"), *no_colour = std::getenv("NO_COLOR");
    const bool terminal = ::isatty(STDOUT_FILENO) && type && std::string_view(type) != "dumb"; // can redraw a line
    return {.live = kind == ProgressKind::bar || (kind == ProgressKind::automatic && terminal),
            .colour = terminal && !(no_colour && *no_colour)};
}

std::string coloured(const std::string& text, Colour colour, bool use) {
    if (!use || colour == Colour::none) return text;
    return formatted("\x1b[%dm", 30 + int(colour)) + text + "\x1b[0m";
}

ScreenSize screen_size() {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    return known ? ScreenSize{size.ws_col, size.ws_row} : ScreenSize{80, 24};
}

std::string duration_text(double seconds) {
    const auto s = static_cast<long long>(std::min(std::ceil(seconds), 1e15));
    if (s >= 3600) return formatted("%lldh%02lldm", s / 3600, s / 60 % 60);
    return formatted("%lld:%02lld", s / 60, s % 60);
}

std::string folded(const std::string& text, int columns) {
    std::string out;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find("; ", begin), text.size());
        if (begin > 0) out += "\n";
        out += wrapped(text.substr(begin, end - begin), size_t(columns));
        begin = end + 2;
    }
    return out;
}

std::string step_text(const StepStatus& status, double samples_per_second, double step_seconds, int columns,
                      const std::string& rate_unit) {
    const auto of = [](int64_t n, int64_t all) { return all > 0 ? cat(n, "/", all) : cat(n); };
    const auto left = [&](int64_t steps) { return duration_text(step_seconds * double(steps)); };
    // The fields are in order of importance, since a narrow window shows only the first few.
    std::vector<std::string> fields;
    if (status.epochs > 0) fields.push_back("epoch " + of(status.epoch, status.epochs));
    fields.insert(fields.end(), status.metrics.begin(), status.metrics.end());
    fields.push_back("step " + of(status.step, status.steps));
    if (step_seconds > 0 && status.step < status.steps)
        fields.push_back(
            cat("left ", status.epochs > 0 ? left(status.epoch_left) + "/" : "", left(status.steps - status.step)));
    if (samples_per_second > 0) fields.push_back(formatted("%.0f ", samples_per_second) + rate_unit);
    return joined(fields, columns);
}

std::string epoch_text(const EpochStatus& status, int columns, const std::string& rate_unit) {
    constexpr size_t kInLine = 2;
    const auto joined_metrics = [](const EpochStatus::Set& set, size_t begin, size_t end, const char* separator) {
        std::string text;
        for (size_t i = begin; i < std::min(end, set.metrics.size()); ++i)
            text += (i > begin ? separator : set.name.empty() ? "" : set.name + " ") + set.metrics[i];
        return text;
    };
    const std::string line =
        joined({"epoch " + cat(status.epoch, "/", status.epochs), joined_metrics(status.train, 0, kInLine, " "),
                joined_metrics(status.test, 0, kInLine, " "), formatted("%.1f s", status.seconds),
                formatted("%.0f ", status.samples_per_second) + rate_unit},
               columns);
    const auto others = [&](const EpochStatus::Set& set) {
        const std::string text = joined_metrics(set, kInLine, set.metrics.size(), ", ");
        return text.empty() ? "" : "  " + text;
    };
    const std::string more = others(status.train) + others(status.test);
    return more.empty() ? line : line + "\n" + wrapped(more, size_t(columns));
}

Progress::Progress(ProgressKind kind, const char* samples)
    : Progress(std::cout, style_of(kind), seconds_now, samples) {}

Progress::Progress(std::ostream& out, const ProgressStyle& style, std::function<double()> clock, const char* samples)
    : out_(out),
      style_(style),
      clock_(std::move(clock)),
      rate_unit_(cat(samples, "/s")),
      start_(clock_()),
      last_step_(start_),
      next_line_(start_ + kFirstLineSeconds) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
    if (drawn_) out_ << "\r\x1b[K" << std::flush;
    drawn_ = false;
}

void Progress::step(const StepStatus& status) {
    const double now = clock_(), elapsed = now - last_step_, decay = std::exp(-elapsed / kDecaySeconds);
    last_step_ = now;
    seconds_ = seconds_ * decay + elapsed;
    samples_ = samples_ * decay + status.samples;
    steps_ = steps_ * decay + 1;
    status_ = status;
    unprinted_ = true;
    if (style_.live && now - last_draw_ >= kRedrawSeconds) {
        last_draw_ = now;
        // The last column stays free, since a full line makes some terminals wrap.
        out_ << '\r' << step_line(columns() - 1) << "\x1b[K" << std::flush;
        drawn_ = true;
    } else if (!style_.live && now >= next_line_) {
        end();
        next_line_ = now + kLineSeconds;
    }
}

std::string Progress::step_line(int columns) const {
    return step_text(status_, seconds_ > 0 ? samples_ / seconds_ : 0, seconds_ / steps_, columns, rate_unit_);
}

void Progress::epoch(const EpochStatus& status) {
    note(epoch_text(status, columns(), rate_unit_));
    unprinted_ = false;
    last_step_ = clock_();
    next_line_ = last_step_ + kLineSeconds;
}

void Progress::note(const std::string& line, Colour colour) {
    clear();
    out_ << coloured(line, colour, style_.colour) << std::endl;
}

void Progress::end() {
    if (std::exchange(unprinted_, false)) note(step_line(columns()));
}

} // namespace rg
