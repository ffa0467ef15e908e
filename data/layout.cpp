// See layout.h.
#include "ringgrad/data/layout.h"

#include "ringgrad/core/base.h"
#include "ringgrad/core/text.h"

#include <algorithm>
#include <map>
#include <set>

namespace rg::data {

namespace {

using Listed = Layout::Image;

/// The sets that names of folders stand for. `validation` is the test set only if there is no `test`.
enum class SetKind : uint8_t { none, train, test, validation };

SetKind kind_of(std::string_view name) {
    static constexpr std::pair<std::string_view, SetKind> kNames[] = {
        {"train", SetKind::train},          {"training", SetKind::train}, {"test", SetKind::test},
        {"testing", SetKind::test},         {"val", SetKind::validation}, {"valid", SetKind::validation},
        {"validation", SetKind::validation}};
    const std::string text = lower(std::string(name));
    for (const auto& [known, part] : kNames)
        if (text == known) return part;
    return SetKind::none;
}

/// Returns the number of folders between `position` and the file.
int64_t depth(const Listed& image) {
    return std::count(image.path.begin() + std::ptrdiff_t(image.position), image.path.end(), '/');
}

/// Sets `length` to that of the folder at `position`, or to 0 if the file itself is there.
void find_folder(Listed& image) {
    const size_t slash = image.path.find('/', image.position);
    image.length = slash == std::string::npos ? 0 : slash - image.position;
}

/// Moves to the next inner folder.
void descend(Listed& image) {
    image.position += image.length + 1;
    find_folder(image);
}

/// Skips outer folders: as long as all images lie in folders of one folder, descends into it. Stops at a folder whose
/// name is in `classes`, and at one such as train, unless only such folders are in it.
void skip_outer_folders(std::vector<Listed>& images, const std::vector<std::string>& classes) {
    while (!images.empty()) {
        const std::string top(images[0].label());
        const auto inside = [&](const Listed& image) { return image.label() == top && depth(image) > 1; };
        if (!std::all_of(images.begin(), images.end(), inside)) return;
        if (std::find(classes.begin(), classes.end(), top) != classes.end()) return;
        std::vector<Listed> inner = images;
        std::for_each(inner.begin(), inner.end(), descend);
        const auto is_part = [](const Listed& image) { return kind_of(image.label()) != SetKind::none; };
        if (kind_of(top) != SetKind::none && !std::all_of(inner.begin(), inner.end(), is_part)) return;
        images = std::move(inner);
    }
}

/// Compares like the paths of std::filesystem, which is many times slower: folder by folder, since '/' sorts first.
bool path_less(const std::string& a, const std::string& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        const auto rank = [](char c) { return c == '/' ? 0 : uint8_t(c) + 1; };
        return rank(x) < rank(y);
    });
}

void sort_images(std::vector<Listed>& images) {
    std::sort(images.begin(), images.end(), [](const Listed& a, const Listed& b) {
        return a.label() != b.label() ? a.label() < b.label() : path_less(a.path, b.path);
    });
}

std::string counted(size_t count, const char* what) { return cat(count, " ", what, count == 1 ? "" : "s"); }

} // namespace

std::vector<std::string> Layout::classes() const {
    std::set<std::string, std::less<>> names;
    for (const Listed& image : train.empty() ? test : train)
        if (image.length > 0) names.emplace(image.label());
    return {names.begin(), names.end()};
}

std::string with_class(const std::string& path, size_t root, const std::string& label) {
    size_t begin = root;
    for (size_t slash = path.find('/', root), from = root; slash != path.npos; slash = path.find('/', from)) {
        const bool is_set = kind_of(std::string_view(path).substr(from, slash - from)) != SetKind::none;
        from = slash + 1;
        if (!is_set) continue;
        begin = from;
        break;
    }
    return path.substr(0, begin) + label + "/" + path.substr(begin);
}

Layout layout_of(const std::vector<std::string>& paths, const std::string& folder,
                 const std::vector<std::string>& files) {
    std::vector<Listed> images;
    for (size_t i = 0; i < paths.size(); ++i)
        find_folder(images.emplace_back(Listed{paths[i], files.empty() ? paths[i] : files[i]}));
    skip_outer_folders(images, {});

    std::map<std::string, std::vector<Listed>, std::less<>> folders; // the images by outermost folder
    for (const Listed& image : images) folders[std::string(image.label())].push_back(image);
    const auto holds_classes = [](const std::vector<Listed>& in) {
        return std::all_of(in.begin(), in.end(), [](const Listed& image) { return depth(image) > 1; });
    };
    std::map<SetKind, std::string> parts; // the folder of each part
    bool all_are_parts = true;
    std::string without_classes;
    for (const auto& [name, in] : folders) {
        const SetKind part = kind_of(name);
        all_are_parts &= part != SetKind::none;
        if (part == SetKind::none) continue;
        if (!holds_classes(in)) {
            without_classes = name;
            continue;
        }
        const auto [other, is_new] = parts.emplace(part, name);
        RG_CHECK(is_new, "image folder: expected one folder of each set, got ", other->second, " and ", name, " (",
                 folder, "); merge the two");
    }
    RG_CHECK(!all_are_parts || without_classes.empty() || folders.size() == 1,
             "image folder: expected class folders in ", without_classes, ", got images (", folder,
             parts.contains(SetKind::train) ? cat("); give ", folder, "/", parts[SetKind::train], " to use it alone")
                                            : "); make a folder for each class");

    Layout layout;
    if (!parts.empty() && (all_are_parts || (parts.contains(SetKind::train) && parts.size() > 1))) {
        const SetKind test = parts.contains(SetKind::test) ? SetKind::test : SetKind::validation;
        for (auto& [name, in] : folders) {
            const bool is_train = parts.contains(SetKind::train) && name == parts[SetKind::train];
            const bool is_test = parts.contains(test) && name == parts[test];
            if (!is_train && !is_test) {
                layout.warnings.push_back(cat("warning: ", name.empty() ? "beside the folders" : name, ": left out ",
                                              counted(in.size(), "image"), ", since there are ",
                                              parts.contains(SetKind::train) ? parts[SetKind::train] + " and " : "",
                                              parts.contains(test) ? parts[test] : ""));
                continue;
            }
            std::for_each(in.begin(), in.end(), descend);
            (is_train ? layout.train : layout.test) = std::move(in);
        }
    } else {
        layout.train = std::move(images);
        for (const auto& [name, in] : folders)
            if (kind_of(name) != SetKind::none)
                layout.warnings.push_back(cat("warning: the folder ", name, " is a class here, since not all folders ",
                                              "beside it are sets such as train and test"));
    }
    skip_outer_folders(layout.train, {});
    skip_outer_folders(layout.test, layout.train.empty() ? std::vector<std::string>{} : layout.classes());
    sort_images(layout.train);
    sort_images(layout.test);
    return layout;
}

} // namespace rg::data
