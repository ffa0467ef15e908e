// See progress.h. Fields keep their width from step to step, so that the line does not jitter.
#include "ringgrad/models/run/progress.h"

#include "ringgrad/models/run/formatted.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

namespace rg {
namespace {

constexpr double kRedrawSeconds = 0.1, kDecaySeconds = 10;

std::string duration(double seconds) {
    const auto s = static_cast<long long>(std::min(std::ceil(seconds), 1e15));
    if (s >= 3600) return formatted("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return formatted("%lld:%02lld", s / 60, s % 60);
}

/// Returns "12/50", where the first number is as wide as the second.
std::string count_of(int64_t i, int64_t n) {
    const std::string total = std::to_string(n), current = std::to_string(i);
    return std::string(total.size() - std::min(total.size(), current.size()), ' ') + current + "/" + total;
}

} // namespace

bool standard_output_is_terminal() {
    const char* type = std::getenv("TERM");
    return ::isatty(STDOUT_FILENO) && type && std::string_view(type) != "dumb";
}

ScreenSize screen_size() {
    winsize size{};
    const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    return known ? ScreenSize{size.ws_col, size.ws_row} : ScreenSize{80, 24};
}

double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string step_text(const StepStatus& status, double images_per_second, double seconds_left, int columns) {
    // In the order of importance, since a narrow window shows only the first few.
    const std::string fields[] = {
        "epoch " + count_of(status.epoch, status.epochs),
        formatted("loss %.4f", status.loss),
        formatted("acc %5.1f %%", 100 * status.accuracy),
        "step " + count_of(status.step, status.steps),
        images_per_second > 0 ? formatted("%.0f images/s", images_per_second) : "",
        seconds_left > 0 ? duration(seconds_left) + " left" : "",
    };
    std::string line;
    for (const std::string& field : fields) {
        if (field.empty()) continue;
        const std::string longer = line.empty() ? field : line + "  " + field;
        if (int(longer.size()) > columns) break;
        line = longer;
    }
    return line;
}

std::string epoch_text(const EpochStatus& status) {
    std::string line = "epoch " + count_of(status.epoch, status.epochs);
    const auto field = [&line](const std::string& format, double value) {
        line += "  " + formatted(format.c_str(), value);
    };
    field("train loss %.4f", status.train_loss);
    field("train acc %.2f %%", 100 * status.train_accuracy);
    field(status.test_set_name + " loss %.4f", status.test_loss);
    field(status.test_set_name + " acc %.2f %%", 100 * status.test_accuracy);
    for (const ExtraMetric& extra : status.extras) field(extra.format, extra.value);
    field("%.0f images/s", status.images_per_second);
    field("%.1f s", status.seconds);
    return line;
}

Progress::Progress() : Progress(std::cout, standard_output_is_terminal(), 0, steady_seconds) {}

Progress::Progress(std::ostream& out, bool live, int columns, std::function<double()> clock)
    : out_(out), live_(live), columns_(columns), clock_(std::move(clock)), last_step_(clock_()) {}

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
    if (!live_ || now - last_draw_ < kRedrawSeconds) return;
    last_draw_ = now;
    const double rate = seconds_ > 0 ? images_ / seconds_ : 0;
    const double left = seconds_ / steps_ * double(status.steps - status.step);
    // The last column stays free, since a full line makes some terminals wrap.
    out_ << '\r' << step_text(status, rate, left, (columns_ > 0 ? columns_ : screen_size().columns) - 1) << "\x1b[K"
         << std::flush;
    drawn_ = true;
}

void Progress::epoch(const EpochStatus& status) {
    note(epoch_text(status));
    last_step_ = clock_();
}

void Progress::note(const std::string& line) {
    clear();
    out_ << line << std::endl;
}

} // namespace rg
