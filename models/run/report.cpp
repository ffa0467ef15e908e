// See report.h. Metrics of steps are rounded to six significant digits, which is enough for a curve and keeps the file
// small.
#include "models/run/report.h"

#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/formatted.h"
#include "core/plan.h"
#include "core/text.h"
#include "core/version.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace rg {
namespace {

constexpr std::string_view kTemplate =
#include "report_template.h" // models/run/page/ as a string literal
    ;
// The texts before and after the data in the page. In the template, the data is null.
constexpr std::string_view kBeforeData = "type=\"application/json\">", kAfterData = "</script>";

double rounded(double value) {
    read_number(formatted("%.6g", value), value);
    return value;
}

/// Returns the number of the member `key` of a line of metrics, or NaN if the line has none. In metrics.jsonl, null
/// stands for a number that was not finite.
double number_or_nan(const Json& line, std::string_view key) {
    const Json* value = line.find(key);
    return value && value->is_number() ? value->as_double() : std::nan("");
}

/// Returns the arguments of this process as a line for a shell, or "" if the system does not tell them.
std::string command_line() {
    std::ifstream file("/proc/self/cmdline");
    std::string line;
    for (std::string argument; std::getline(file, argument, '\0');)
        line += cat(line.empty() ? "" : " ", shell_word(argument));
    return printable(line);
}

} // namespace

std::string report_page(std::string_view data) {
    const size_t begin = kTemplate.find(kBeforeData);
    std::string page(kTemplate.substr(0, begin + kBeforeData.size()));
    // Escape '<', so that no text in the data can end the script element or begin a comment.
    for (const char c : data) c == '<' ? page += "\\u003c" : page += c;
    page += kTemplate.substr(kTemplate.find(kAfterData, begin));
    return page;
}

Json read_report(const std::string& path) {
    const std::string page = read_file(path);
    const size_t begin = page.find(kBeforeData), end = page.find(kAfterData, begin);
    RG_CHECK(end != std::string::npos, "report: expected a page with data, got one without (", path, ")");
    const size_t data = begin + kBeforeData.size();
    return Json::parse(std::string_view(page).substr(data, end - data), path);
}

Json::Array metrics_of(const std::string& path, size_t points) {
    Json::Array lines;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return lines;
    const std::string text = read_file(path);
    size_t steps = 0;
    for (size_t at = 0; (at = text.find("{\"step\"", at)) != std::string::npos; ++at) ++steps;
    const size_t most = (steps + points - 1) / points; // largest number of steps that a point stands for
    Json point;                                        // has step and epoch of its last step
    std::vector<std::pair<std::string, double>> sums;  // of the point's other numbers, over its steps
    size_t count = 0;
    const auto end_point = [&] {
        for (const auto& [name, sum] : sums) point.set(name, rounded(sum / double(count)));
        lines.push_back(point);
        sums.clear(), count = 0;
    };
    const auto add = [&](const Json& line, std::string_view) {
        if (!line.find("step") || is_of_test(line)) return lines.push_back(line);
        point = Json::object().set("step", line.at("step").as_int());
        for (const auto& [name, value] : line.as_object()) {
            if (name == "epoch") point.set(name, value);
            if (name == "step" || name == "epoch" || !(value.is_number() || value.is_null())) continue;
            auto sum = std::ranges::find(sums, name, &std::pair<std::string, double>::first);
            if (sum == sums.end()) sum = sums.insert(sum, {name, 0});
            sum->second += number_or_nan(line, name);
        }
        if (++count == most) end_point();
    };
    Json::parse_lines(text, path, add, [](const std::string&) {});
    if (count > 0) end_point();
    return lines;
}

Json report_origin() {
    return Json::object().set("begun", unix_seconds()).set("build", kBuild).set("command", command_line());
}

Report::Report(const RunFolder& folder, Json config)
    : path_(folder.report_path()), metrics_path_(folder.metrics_path()), run_(report_origin()) {
    run_.set("name", std::filesystem::path(folder.path()).filename().string()).set("config", std::move(config));
    try {
        const Json before = read_report(path_).at("runs").as_array().at(0);
        const double last = number_or_nan(before, "written") - number_or_nan(before, "begun"),
                     more = number_or_nan(before, "seconds_before");
        run_.set("seconds_before", last + (std::isnan(more) ? 0 : more));
        // The results of tests stay until this run tests again.
        for (const char* const member : {"confusion", "samples", "predicted", "ranks", "best_on_test"})
            if (const Json* const result = before.find(member)) run_.set(member, *result);
    } catch (const std::exception&) {} // a new run has no report
}

std::function<void()> Report::writer_of(const std::string& state) {
    run_.set("state", state).set("written", unix_seconds());
    return [path = path_, metrics = metrics_path_, run = run_] {
        const Json runs = Json::array().push(Json(run).set("metrics", metrics_of(metrics, kSteps)));
        write_file_atomic(path, report_page(Json::object().set("runs", runs).dump()));
    };
}

Json report_network(const Parameters& parameters, const Plan& plan) {
    Json tensors = Json::array();
    for (const Parameters::Entry& entry : parameters.entries()) {
        const std::span<const int64_t> extents = entry.shape.extents();
        tensors.push(Json::array().push(entry.name).push(Json::Array(extents.begin(), extents.end())));
    }
    return Json::object()
        .set("parameters", parameters.count())
        .set("parameter_bytes", parameters.values().bytes())
        .set("tensors", std::move(tensors))
        .set("planned_bytes", plan.bytes())
        .set("unshared_bytes", plan.bytes_unshared());
}

Json report_confusion(const data::ImageSet& set, std::span<const double> predicted) {
    const Confusion confusion(set, predicted);
    const std::vector<size_t> shown = confusion.shown();
    Json classes = Json::array(), counts = Json::array();
    Json images = Json::array(), seen = Json::array();
    for (const size_t i : shown) {
        Json row = Json::array();
        for (const size_t j : shown) row.push(confusion.count(i, j));
        classes.push(set.classes[i]);
        counts.push(std::move(row));
        images.push(confusion.images_of(i));
        seen.push(confusion.predicted_as(i));
    }
    Json json = Json::object().set("classes", std::move(classes)).set("counts", std::move(counts));
    if (!confusion.shows_all())
        json.set("images", std::move(images))
            .set("seen", std::move(seen))
            .set("right", confusion.correct())
            .set("total", confusion.total())
            .set("left_out", int64_t(set.classes.size() - shown.size()));
    return json;
}

} // namespace rg
