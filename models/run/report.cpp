// See report.h. Metrics of steps are rounded to six significant digits, which is enough for a curve and keeps the file
// small.
#include "ringgrad/models/run/report.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/formatted.h"
#include "ringgrad/core/plan.h"
#include "ringgrad/core/text.h"
#include "ringgrad/core/version.h"

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
double number(const Json& line, std::string_view key) {
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
    RG_CHECK(begin != std::string_view::npos, "report: expected a template with ", kBeforeData, ", got one without");
    std::string page(kTemplate.substr(0, begin + kBeforeData.size()));
    // Escape '<', so that no text in the data can end the script element or begin a comment.
    for (const char c : data) {
        if (c == '<')
            page += "\\u003c";
        else
            page += c;
    }
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

void Metrics::add(const Json& line) {
    const Json *step = line.find("step"), *epoch = line.find("epoch");
    if (!step || is_of_test(line)) {
        others_.push_back(line);
        return;
    }
    if (points_.empty() || points_.back().count == steps_per_point_) {
        if (points_.size() == max_points_) merge_pairs();
        points_.push_back({});
    }
    Point& last = points_.back();
    last.step = step->as_int();
    last.epoch = epoch ? epoch->as_int() : 0;
    last.lr = number(line, "lr");
    ++last.count;
    for (const auto& [name, value] : line.as_object())
        if (name != "step" && name != "epoch" && name != "lr" && (value.is_number() || value.is_null()))
            last.add(name, number(line, name));
}

void Metrics::Point::add(const std::string& name, double value) {
    for (auto& [known, sum] : sums)
        if (known == name) {
            sum += value;
            return;
        }
    sums.emplace_back(name, value);
}

void Metrics::add_file(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return;
    Json::parse_lines(
        read_file(path), path, [&](const Json& line, std::string_view) { add(line); }, [](const std::string&) {});
}

void Metrics::merge_pairs() {
    for (size_t i = 0; i < points_.size() / 2; ++i) {
        const Point &a = points_[2 * i], &b = points_[2 * i + 1];
        Point both{b.step, b.epoch, a.count + b.count, b.lr, a.sums};
        for (const auto& [name, sum] : b.sums) both.add(name, sum);
        points_[i] = std::move(both);
    }
    points_.resize(points_.size() / 2);
    steps_per_point_ *= 2;
}

Json Metrics::Point::line() const {
    Json line = Json::object().set("step", step);
    if (epoch > 0) line.set("epoch", epoch);
    for (const auto& [name, sum] : sums) line.set(name, rounded(sum / double(count)));
    if (!std::isnan(lr)) line.set("lr", rounded(lr));
    return line;
}

Json::Array Metrics::lines() const {
    Json::Array lines;
    size_t next = 0; // of the other lines
    const auto is_before = [](const Json& other, const Point& point) {
        const double step = number(other, "step");
        return std::isnan(step) ? number(other, "epoch") < double(point.epoch) : step < double(point.step);
    };
    for (const Point& point : points_) { // in the order of metrics.jsonl: an epoch's line follows its last step
        while (next < others_.size() && is_before(others_[next], point)) lines.push_back(others_[next++]);
        lines.push_back(point.line());
    }
    lines.insert(lines.end(), others_.begin() + std::ptrdiff_t(next), others_.end());
    return lines;
}

Json report_origin() {
    return Json::object().set("begun", unix_seconds()).set("build", kBuild).set("command", command_line());
}

Report::Report(const RunFolder& folder, Json config) : path_(folder.report_path()), run_(report_origin()) {
    run_.set("name", std::filesystem::path(folder.path()).filename().string()).set("config", std::move(config));
    metrics_.add_file(folder.metrics_path());
    try {
        const Json before = read_report(path_).at("runs").as_array().at(0);
        const double last = number(before, "written") - number(before, "begun"),
                     more = number(before, "seconds_before");
        run_.set("seconds_before", last + (std::isnan(more) ? 0 : more));
    } catch (const std::exception&) {} // a new run has no report
}

std::function<void()> Report::writing(const std::string& state) {
    run_.set("state", state).set("written", unix_seconds());
    return [path = path_, run = run()] {
        write_file_atomic(path, report_page(Json::object().set("runs", Json::array().push(run)).dump()));
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
