// See progress.h.
#include "ringgrad/models/run/progress.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/text.h"

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
std::string joined(std::initializer_list<std::string> fields, int columns) {
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

std::string step_text(const StepStatus& status, double images_per_second, double step_seconds, int columns) {
    const auto left = [&](int64_t steps) { return duration_text(step_seconds * double(steps)); };
    // The fields are in order of importance, since a narrow window shows only the first few.
    return joined({cat("epoch ", status.epoch, "/", status.epochs), formatted("loss %.3f", status.loss), status.metric,
                   cat("step ", status.step, "/", status.steps),
                   step_seconds > 0 && status.step < status.steps
                       ? cat("left ", left(status.epoch_left), "/", left(status.steps - status.step))
                       : "",
                   images_per_second > 0 ? formatted("%.0f img/s", images_per_second) : ""},
                  columns);
}

std::string epoch_text(const EpochStatus& status, int columns) {
    const auto with_main = [](const std::string& set, double loss, const std::vector<std::string>& metrics) {
        return set + formatted(" loss %.4f", loss) + (metrics.empty() ? "" : " " + metrics.front());
    };
    const auto others = [](const std::string& set, const std::vector<std::string>& metrics) {
        std::string text = set;
        for (size_t i = 1; i < metrics.size(); ++i) text += (i > 1 ? ", " : " ") + metrics[i];
        return text;
    };
    const std::string line = joined(
        {cat("epoch ", status.epoch, "/", status.epochs), with_main("train", status.train_loss, status.train_metrics),
         with_main(status.test_set_name, status.test_loss, status.test_metrics), formatted("%.1f s", status.seconds),
         formatted("%.0f img/s", status.images_per_second)},
        columns);
    if (status.test_metrics.size() < 2) return line;
    return line + "\n" +
           wrapped(others("  train", status.train_metrics) + others("  " + status.test_set_name, status.test_metrics),
                   size_t(columns));
}

Progress::Progress(ProgressKind kind) : Progress(std::cout, style_of(kind), seconds_now) {}

Progress::Progress(std::ostream& out, const ProgressStyle& style, std::function<double()> clock)
    : out_(out),
      style_(style),
      clock_(std::move(clock)),
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
    images_ = images_ * decay + double(status.images);
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
    return step_text(status_, seconds_ > 0 ? images_ / seconds_ : 0, seconds_ / steps_, columns);
}

void Progress::epoch(const EpochStatus& status) {
    note(epoch_text(status, columns()));
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
