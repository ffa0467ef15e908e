// See trial_table.h. CSV is as in RFC 4180, but a row is always one line, and carriage returns are dropped.
#include "models/sweep/trial_table.h"

#include "core/atomic_file.h"
#include "core/formatted.h"
#include "core/rng.h"
#include "core/text.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace rg {
namespace {

constexpr int kMostTries = 10'000;                          // to draw a trial that was not drawn before
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf"; // some programs write it before a table

/// Throws Error if kMaxTrials allows no further trial after the `count` existing ones.
void check_count(uint64_t count, const std::string& where) {
    RG_CHECK(count < kMaxTrials, "trials: expected at most ", kMaxTrials, " trials, got more (", where, ")");
}

void check_name(const std::string& option, const std::string& where) {
    RG_CHECK(option.size() <= kMaxOptionName, "trials: expected option names of at most ", kMaxOptionName,
             " bytes, got ", option.size(), " (", where, ")");
    // Names become arguments "--NAME=VALUE", so a name must not contain '='.
    const bool valid = std::all_of(option.begin(), option.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
    });
    RG_CHECK(valid && !option.empty(), "trials: expected option names of letters, digits, - and _, got \"",
             printable(option), "\" (", where, ")");
}

/// An option with its possible values: a list, or if the list is empty, a range of numbers.
struct GridOption {
    std::string name;
    std::vector<std::string> values;
    double least = 0, most = 0; // the range
    bool logarithmic = false;

    std::string draw(Rng& random) const {
        if (!values.empty()) return values[random.uniform_below(uint32_t(values.size()))];
        const double u = random.uniform();
        const double value = logarithmic ? least * std::pow(most / least, u) : least + (most - least) * u;
        const std::string text = formatted("%.4g", value);
        double rounded = value;
        read_number(text, rounded);
        return rounded < least ? Json(least).dump() : rounded > most ? Json(most).dump() : text;
    }
};

/// Parses "NAME=VALUES". Any text that is no range is a list of values in CSV. They may contain colons, as an address
/// or a command does. The training program checks them as values of its option.
GridOption parse_grid_option(const std::string& option) {
    const size_t equals = option.find('=');
    RG_CHECK(equals != std::string::npos && equals > 0 && equals + 1 < option.size(),
             "trials: expected NAME=VALUES, such as depth=1:4 or lr=0.01,0.05, got ", option);
    GridOption parsed;
    parsed.name = option.substr(0, equals);
    check_name(parsed.name, option);
    std::string text = option.substr(equals + 1);
    const std::vector<std::string> parts = split(text, ':');
    if (parts.size() > 1 && (parts[0] == "log" || parts[0] == "linear")) {
        parsed.logarithmic = parts[0] == "log";
        RG_CHECK(parts.size() == 3 && read_number(parts[1], parsed.least) && read_number(parts[2], parsed.most) &&
                     parsed.least < parsed.most && std::isfinite(parsed.most - parsed.least) &&
                     (!parsed.logarithmic || parsed.least > 0),
                 "trials: expected ", parts[0], ":FROM:TO with ascending numbers", parsed.logarithmic ? " above 0" : "",
                 ", got ", option);
        return parsed;
    }
    std::vector<int64_t> numbers;
    for (const std::string& part : parts)
        if (int64_t number; read_number(part, number)) numbers.push_back(number);
    if (parts.size() > 1 && numbers.size() == parts.size()) {
        const int64_t from = numbers.front(), to = numbers.back(), step = numbers.size() == 3 ? numbers[1] : 1;
        RG_CHECK(numbers.size() <= 3 && step > 0 && from <= to,
                 "trials: expected FROM:TO or FROM:STEP:TO of ascending whole numbers, got ", option);
        const uint64_t steps = (uint64_t(to) - uint64_t(from)) / uint64_t(step); // unsigned: cannot overflow
        check_count(steps, option);
        for (uint64_t i = 0; i <= steps; ++i)
            parsed.values.push_back(std::to_string(int64_t(uint64_t(from) + i * uint64_t(step))));
        return parsed;
    }
    constexpr std::string_view kChoice = "choice:";
    double number = 0;
    if (text.starts_with(kChoice))
        text.erase(0, kChoice.size());
    else
        RG_CHECK(parts.size() != 3 || !read_number(parts[1], number) || !read_number(parts[2], number) ||
                     read_number(parts[0], number),
                 "trials: expected linear:FROM:TO, log:FROM:TO, FROM:TO, FROM:STEP:TO or values with commas, got ",
                 option, "; for a text with colons, put choice: before it");
    parsed.values = csv_fields(text, "trials: " + option);
    return parsed;
}

std::vector<GridOption> parse_grid(const std::vector<std::string>& options) {
    std::vector<GridOption> grid;
    for (const std::string& option : options) {
        grid.push_back(parse_grid_option(option));
        for (size_t i = 0; i + 1 < grid.size(); ++i)
            RG_CHECK(grid[i].name != grid.back().name, "trials: expected ", grid[i].name, " once, got it twice");
    }
    return grid;
}

std::string cell_text(const Json* value) {
    if (!value || value->is_null()) return "";
    return value->is_string() ? value->as_string() : value->dump();
}

} // namespace

std::vector<TrialSettings> trial_grid(const std::vector<std::string>& options) {
    std::vector<TrialSettings> trials(1);
    const std::vector<GridOption> grid = parse_grid(options);
    for (size_t i = 0; i < grid.size(); ++i) {
        const GridOption& option = grid[i];
        RG_CHECK(!option.values.empty(), "trials: expected values of ", option.name,
                 ", got a range; list them, or give --random N to draw N trials");
        std::vector<TrialSettings> longer;
        for (const TrialSettings& trial : trials)
            for (const std::string& value : option.values) {
                check_count(longer.size(), options[i]);
                longer.push_back(trial);
                longer.back().emplace_back(option.name, value);
            }
        trials = std::move(longer);
    }
    return trials;
}

std::vector<TrialSettings> random_trials(const std::vector<std::string>& options, int64_t count, uint64_t seed) {
    const std::vector<GridOption> grid = parse_grid(options);
    std::vector<TrialSettings> trials;
    std::set<TrialSettings> drawn;
    for (int64_t i = 0; i < count; ++i) {
        Rng random(seed, Purpose::split, 0, uint64_t(i));
        TrialSettings trial;
        for (int tries = 0; trial.empty() || drawn.contains(trial); ++tries) {
            RG_CHECK(!grid.empty() && tries < kMostTries,
                     "trials: expected --random of at most the number of different trials, got ", count, " (", i,
                     " found); give fewer, or more values");
            trial.clear();
            for (const GridOption& option : grid) trial.emplace_back(option.name, option.draw(random));
        }
        drawn.insert(trial);
        trials.push_back(trial);
    }
    return trials;
}

std::vector<TrialSettings> parse_trials(std::string_view csv, const std::string& name) {
    std::vector<TrialSettings> trials;
    std::vector<std::string> names;
    int64_t number = 0;
    if (csv.starts_with(kByteOrderMark)) csv.remove_prefix(kByteOrderMark.size());
    for (const std::string& line : split(csv, '\n')) {
        ++number;
        if (line.empty() || line == "\r") continue;
        const std::string where = cat(name, ", line ", number);
        std::vector<std::string> fields = csv_fields(line, "trials: " + where);
        for (std::string& field : fields) field = std::string(text_of_cell(field)); // a row may come from results.csv
        if (names.empty()) {
            names = fields;
            std::set<std::string> seen;
            for (const std::string& option : names) {
                check_name(option, where);
                RG_CHECK(seen.insert(option).second, "trials: expected one column ", option, ", got several (", where,
                         ")");
            }
            continue;
        }
        check_count(trials.size(), where);
        RG_CHECK(fields.size() == names.size(), "trials: expected ", names.size(), " fields, got ", fields.size(), " (",
                 where, ")");
        for (size_t i = 0; i < names.size(); ++i)
            RG_CHECK((names[i] != "data" && names[i] != "test-data") || !fields[i].starts_with("pipe:"),
                     "trials: expected data without a command, got pipe: (", where, "); give --", names[i],
                     " pipe:COMMAND on the command line, since a table may come from others");
        TrialSettings& trial = trials.emplace_back();
        for (size_t i = 0; i < names.size(); ++i)
            if (!fields[i].empty()) trial.emplace_back(names[i], fields[i]);
    }
    RG_CHECK(!trials.empty(), "trials: expected a line of option names and at least one of values, got none (", name,
             ")");
    return trials;
}

std::string settings_text(const TrialSettings& settings) {
    std::string text;
    for (const auto& [name, value] : settings) text += cat(text.empty() ? "" : ", ", name, " ", value);
    return text;
}

std::vector<std::string> arguments_of(const TrialSettings& settings) {
    std::vector<std::string> args;
    for (const auto& [name, value] : settings)
        if (value == "true" || value == "false") // a switch
            args.push_back(cat("--", value == "true" ? "" : "no-", name));
        else
            args.push_back(cat("--", name, "=", value));
    return args;
}

std::optional<double> value_of(const Json& line, const std::string& metric) {
    const Json* const value = line.is_object() ? line.find(metric) : nullptr;
    return value && value->is_number() && !std::isnan(value->as_double()) ? std::optional(value->as_double())
                                                                          : std::nullopt;
}

std::set<std::string> differing_settings(const std::vector<TrialRow>& rows) {
    std::map<std::string, std::pair<std::string, size_t>>
        first; // by name: a value, and the number of rows that have it
    for (const TrialRow& row : rows)
        for (const auto& [name, value] : row.settings) {
            const auto known = first.try_emplace(name, value, 0).first;
            known->second.second += known->second.first == value;
        }
    std::set<std::string> differing;
    for (const auto& [name, value] : first)
        if (value.second < rows.size()) differing.insert(name);
    return differing;
}

std::vector<const TrialRow*> best_first(const std::vector<TrialRow>& rows, const Ranking& ranking) {
    std::vector<const TrialRow*> best;
    for (const TrialRow& row : rows)
        if (row.state != "failed" && value_of(row.last, ranking.name)) best.push_back(&row);
    std::stable_sort(best.begin(), best.end(), [&](const TrialRow* a, const TrialRow* b) {
        return ranking.is_better(*value_of(a->last, ranking.name), *value_of(b->last, ranking.name));
    });
    return best;
}

void write_results(const std::string& folder, const std::vector<TrialRow>& rows) {
    // Every setting and every metric that some trial has gets a column.
    std::vector<std::string> settings, metrics;
    const auto add = [](std::vector<std::string>& names, const std::string& name) {
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    };
    for (const TrialRow& row : rows) {
        for (const auto& setting : row.settings) add(settings, setting.first);
        if (row.last.is_object())
            for (const auto& member : row.last.as_object()) add(metrics, member.first);
    }
    std::string csv = "trial", jsonl;
    for (const std::string& name : settings) csv += cat(",", csv_field(name));
    csv += ",state";
    for (const std::string& name : metrics) csv += cat(",", csv_field(name == "seconds" ? "epoch_seconds" : name));
    csv += ",seconds,note,folder\n";
    for (const TrialRow& row : rows) {
        csv += cat(row.number);
        Json values = Json::object();
        for (const auto& [name, value] : row.settings) values.set(name, value);
        for (const std::string& name : settings) csv += cat(",", csv_field(cell_text(values.find(name))));
        csv += cat(",", row.state);
        for (const std::string& name : metrics)
            csv += cat(",", row.last.is_object() ? csv_field(cell_text(row.last.find(name))) : "");
        csv += cat(",", row.seconds, ",", csv_field(row.note), ",", csv_field(row.folder), "\n");
        jsonl += Json::object()
                     .set("trial", row.number)
                     .set("settings", values)
                     .set("state", row.state)
                     .set("note", row.note)
                     .set("last_epoch", row.last)
                     .set("seconds", row.seconds)
                     .set("folder", row.folder)
                     .dump() +
                 "\n";
    }
    write_file_atomic(folder + "/results.csv", csv);
    write_file_atomic(folder + "/results.jsonl", jsonl);
}

} // namespace rg
