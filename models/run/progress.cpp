// Fields are joined with two spaces; widths are stable from step to step, so that the line does not jitter.
#include "models/run/progress.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

namespace rg {
namespace {

constexpr double kRedrawSeconds = 0.1, kFadeSeconds = 10;

template <class... Values>
std::string print(const char* format, Values... values) {
    char text[64];
    std::snprintf(text, sizeof text, format, values...);
    return text;
}

std::string duration(double seconds) {
    const auto s = static_cast<long long>(std::min(std::ceil(seconds), 1e15));
    if (s >= 3600) return print("%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    return print("%lld:%02lld", s / 60, s % 60);
}

/// "12/50", the first number as wide as the second.
std::string of(int64_t i, int64_t n) {
    const std::string last = std::to_string(n), now = std::to_string(i);
    return std::string(last.size() - std::min(last.size(), now.size()), ' ') + now + "/" + last;
}

} // namespace

bool standard_output_is_terminal() {
    const char* kind = std::getenv("TERM");
    return ::isatty(STDOUT_FILENO) && kind && std::string_view(kind) != "dumb";
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
    // In the order in which they matter: a narrow window shows the first few.
    const std::string fields[] = {
        "epoch " + of(status.epoch, status.epochs),
        print("loss %.4f", status.loss),
        print("acc %5.1f %%", 100 * status.accuracy),
        "step " + of(status.step, status.steps),
        images_per_second > 0 ? print("%.0f images/s", images_per_second) : "",
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
    std::string line = "epoch " + of(status.epoch, status.epochs);
    const auto field = [&line](const std::string& format, double value) {
        line += "  " + print(format.c_str(), value);
    };
    field("train loss %.4f", status.train_loss);
    field("train acc %.2f %%", 100 * status.train_accuracy);
    field(status.tested + " loss %.4f", status.test_loss);
    field(status.tested + " acc %.2f %%", 100 * status.test_accuracy);
    for (const EpochStatus::Extra& extra : status.extras) field(extra.format, extra.value);
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
    const double now = clock_(), took = now - last_step_, fade = std::exp(-took / kFadeSeconds);
    last_step_ = now;
    seconds_ = seconds_ * fade + took;
    images_ = images_ * fade + double(status.images);
    steps_ = steps_ * fade + 1;
    if (!live_ || now - last_draw_ < kRedrawSeconds) return;
    last_draw_ = now;
    const double rate = seconds_ > 0 ? images_ / seconds_ : 0;
    const double left = seconds_ / steps_ * double(status.steps - status.step);
    // One column stays free: a full line makes some terminals wrap.
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
