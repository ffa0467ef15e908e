// See trials_board.h.
#include "models/sweep/trials_board.h"

#include "core/text.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace rg {
namespace {

constexpr double kRedrawSeconds = 0.1, kRepeatSeconds = 10;

std::string percent(double fraction) {
    char text[16];
    std::snprintf(text, sizeof text, "%.2f %%", 100 * fraction);
    return text;
}

/// On one line of the screen. A character of several bytes is not cut.
std::string fit(std::string line, int columns) {
    size_t size = std::min(line.size(), size_t(std::max(columns, 0)));
    while (size > 0 && size < line.size() && (line[size] & 0xC0) == 0x80) --size;
    line.resize(size);
    return line;
}

} // namespace

std::string line_of(const TrialRow& row) {
    std::string line = cat("trial ", row.number, "  ", text_of(row.settings), "  ", row.state);
    if (row.state == "running" && !row.ranks.empty()) {
        line += row.ranks.size() == 1 ? " on rank " : " on ranks ";
        for (size_t i = 0; i < row.ranks.size(); ++i) line += cat(i ? "," : "", row.ranks[i]);
    }
    if (row.state == "running" && row.live.is_object()) {
        if (const Json* epoch = row.live.find("epoch")) line += cat("  epoch ", epoch->as_int());
        if (const Json* step = row.live.find("step")) line += cat("  step ", step->as_int());
        for (const char* name : {"accuracy", "train_accuracy"})
            if (const Json* value = row.live.find(name); value && value->is_number())
                line += "  train acc " + percent(value->as_double());
    }
    if (row.accuracy() >= 0) line += "  validation acc " + percent(row.accuracy());
    if (!row.note.empty()) line += "  (" + row.note + ")";
    return printable(line);
}

TrialsBoard::TrialsBoard(const std::vector<TrialRow>& rows)
    : TrialsBoard(rows, std::cout, standard_output_is_terminal(), {}, steady_seconds) {}

TrialsBoard::TrialsBoard(const std::vector<TrialRow>& rows, std::ostream& out, bool live, ScreenSize size,
                         std::function<double()> clock)
    : rows_(rows), out_(out), live_(live), size_(size), clock_(std::move(clock)), said_(rows.size(), clock_()) {}

void TrialsBoard::update(const TrialRow& row, bool event) {
    const double now = clock_();
    double& before = live_ ? drawn_at_ : said_[size_t(row.number) - 1];
    if (!event && now - before < (live_ ? kRedrawSeconds : kRepeatSeconds)) return;
    before = now;
    if (live_)
        draw();
    else
        out_ << line_of(row) << std::endl;
}

void TrialsBoard::draw() {
    const ScreenSize size = size_.lines ? size_ : screen_size();
    const size_t room = size_t(std::max(size.lines, 3)) - 1; // the last line is where the cursor waits
    std::vector<std::string> lines;
    if (rows_.size() <= room) {
        for (const TrialRow& row : rows_) lines.push_back(line_of(row));
    } else {
        size_t shown = 0, queued = 0;
        for (const TrialRow& row : rows_) {
            queued += row.state == "queued";
            if (row.state == "running" && ++shown < room) lines.push_back(line_of(row));
        }
        lines.push_back(cat(rows_.size(), " trials: ", shown, " running, ", queued, " queued, ",
                            rows_.size() - shown - queued, " ended"));
    }
    if (drawn_) out_ << "\x1b[" << drawn_ << "A";
    // One column stays free: a full line makes some terminals wrap.
    for (const std::string& line : lines) out_ << "\r" << fit(line, size.columns - 1) << "\x1b[K\n";
    out_ << "\x1b[J" << std::flush; // what is left of more lines before
    drawn_ = lines.size();
}

} // namespace rg
