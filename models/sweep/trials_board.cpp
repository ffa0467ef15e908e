// See trials_board.h.
#include "models/sweep/trials_board.h"

#include "core/text.h"

#include <algorithm>
#include <iterator>

namespace rg {
namespace {

constexpr double kBoardSeconds = 0.1, kRepeatSeconds = 10;

/// Cuts a line to at most `columns` bytes, but not inside a UTF-8 character.
std::string cut_to_width(std::string line, int columns) {
    size_t size = std::min(line.size(), size_t(std::max(columns, 0)));
    while (size > 0 && size < line.size() && (line[size] & 0xC0) == 0x80) --size;
    line.resize(size);
    return line;
}

Colour colour_of(const TrialRow& row) {
    return row.state == "failed"     ? Colour::red
           : row.state == "stopped"  ? Colour::yellow
           : row.state == "finished" ? Colour::green
                                     : Colour::none;
}

} // namespace

std::string trial_line(const TrialRow& row, const Ranking& ranking, const std::set<std::string>& differing) {
    TrialSettings settings;
    std::copy_if(row.settings.begin(), row.settings.end(), std::back_inserter(settings),
                 [&](const auto& setting) { return differing.contains(setting.first); });
    std::string line =
        cat("trial ", row.number, "  ", settings_text(settings), settings.empty() ? "" : "  ", row.state);
    if (row.state == "running" && !row.ranks.empty()) {
        line += row.ranks.size() == 1 ? " on rank " : " on ranks ";
        for (size_t i = 0; i < row.ranks.size(); ++i) line += cat(i ? "," : "", row.ranks[i]);
    }
    if (row.state == "running" && row.live.is_object()) {
        if (const Json* epoch = row.live.find("epoch")) line += cat("  epoch ", epoch->as_int());
        if (const Json* step = row.live.find("step")) line += cat("  step ", step->as_int());
        // A running trial shows its training value. For validation_accuracy, that is accuracy in the line of a step,
        // and train_accuracy in the line of an epoch.
        MetricInfo metric = ranking;
        metric.name = ranking.name.substr(ranking.name.find('_') + 1);
        metric.label = "train " + ranking.label.substr(ranking.label.find(' ') + 1);
        for (const char* const prefix : {"", "train_"})
            if (const auto value = value_of(row.live, prefix + metric.name)) line += "  " + metric.format(*value);
    }
    if (const auto value = value_of(row.last, ranking.name)) line += "  " + ranking.format(*value);
    if (!row.note.empty()) line += "  (" + row.note + ")";
    return printable(line);
}

TrialsBoard::TrialsBoard(const std::vector<TrialRow>& rows, const Ranking& ranking, std::ostream& out,
                         const ProgressStyle& style, ScreenSize size, std::function<double()> clock)
    : rows_(rows),
      ranking_(ranking),
      differing_(differing_settings(rows)),
      out_(out),
      style_(style),
      size_(size),
      clock_(std::move(clock)),
      printed_at_(rows.size(), clock_()) {}

void TrialsBoard::update(const TrialRow& row, bool at_once) {
    const double now = clock_();
    double& shown_at = style_.live ? drawn_at_ : printed_at_[size_t(row.number) - 1];
    if (!at_once && now - shown_at < (style_.live ? kBoardSeconds : kRepeatSeconds)) return;
    if (style_.live) {
        shown_at = now;
        return draw();
    }
    const bool running = row.state == "running", starts = running && !row.live.is_object();
    if (starts || !running || !at_once) shown_at = now;
    if (running ? at_once : row.state == "queued") return;
    std::string line = trial_line(row, ranking_, differing_);
    if (const auto best = best_first(rows_, ranking_); !running && !best.empty())
        line += cat("  best: ", ranking_.format(*value_of(best.front()->last, ranking_.name)), " of trial ",
                    best.front()->number);
    out_ << coloured(line, colour_of(row), style_.colour) << std::endl;
}

void TrialsBoard::draw() {
    const ScreenSize size = size_.lines ? size_ : screen_size();
    const size_t room = size_t(std::max(size.lines, 3)) - 1; // the last line is for the cursor
    std::vector<std::pair<std::string, Colour>> lines;
    if (rows_.size() <= room) {
        for (const TrialRow& row : rows_) lines.emplace_back(trial_line(row, ranking_, differing_), colour_of(row));
    } else {
        size_t running = 0, queued = 0;
        for (const TrialRow& row : rows_) {
            queued += row.state == "queued";
            if (row.state == "running" && ++running < room)
                lines.emplace_back(trial_line(row, ranking_, differing_), Colour::none);
        }
        lines.emplace_back(cat(rows_.size(), " trials: ", running, " running, ", queued, " queued, ",
                               rows_.size() - running - queued, " ended"),
                           Colour::none);
    }
    if (drawn_lines_) out_ << "\x1b[" << drawn_lines_ << "A";
    // The last column stays free, since a full line makes some terminals wrap.
    for (const auto& [line, colour] : lines)
        out_ << "\r" << coloured(cut_to_width(line, size.columns - 1), colour, style_.colour) << "\x1b[K\n";
    out_ << "\x1b[J" << std::flush; // erases the remaining lines of the last drawing
    drawn_lines_ = lines.size();
}

} // namespace rg
