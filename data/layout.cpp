// See layout.h.
#include "data/layout.h"

#include "core/base.h"
#include "core/text.h"

#include <algorithm>
#include <map>
#include <set>

namespace rg::data {

namespace {

using ListedImage = Layout::ListedImage;

/// The roles that names of folders tell. `validation` is the test set only if there is no `test`.
enum class FolderRole : uint8_t { none, train, test, validation, fold };

bool has_word(std::string_view words, std::string_view word) { return words.find(cat(" ", word, " ")) != words.npos; }

/// Returns true for plain names of sets, such as train, which need no confirmation by the class folders in them.
bool is_set_name(const std::string& name) {
    return has_word(" train training test testing val valid validation ", lower(name));
}

/// Returns the role that a word in the name tells, such as train in TrainData. A fold also has a number or a letter.
FolderRole role_of(std::string_view name) {
    static constexpr std::string_view kWords[] = {
        "", " train training trainval trainset traindata xtrain trn learn learning fit ",
        " test testing testset testdata xtest tst eval evaluation holdout ",
        " val valid validation valset xval dev devset development ", " fold kfold part split set k "};
    std::string words;
    const auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
    for (size_t i = 0; i < name.size(); ++i) {
        if (i > 0 && is_capital(name[i]) && !is_capital(name[i - 1])) words += ' ';
        words += std::string_view("0123456789-_.,()").find(name[i]) == name.npos ? name[i] : ' ';
    }
    const std::vector<std::string> parts = split(lower(words), ' ');
    const bool numbered = name.find_first_of("0123456789") != name.npos || parts.back().size() == 1;
    for (size_t role = 1; role < std::size(kWords) - !numbered; ++role)
        for (const std::string& word : parts)
            if (!word.empty() && has_word(kWords[role], word)) return FolderRole(role);
    return FolderRole::none;
}

/// Returns the number of folders between `position` and the file.
int64_t depth(const ListedImage& image) {
    return std::count(image.file.begin() + std::ptrdiff_t(image.position), image.file.end(), '/');
}

/// Moves to the next inner folder.
void descend(ListedImage& image) { image.position += image.folder().size() + 1; }

/// Skips outer folders: as long as all images lie in folders of one folder, descends into it. Stops at a folder whose
/// name is in `classes`. If not `of_set`, also stops at a folder with a plain name such as train, unless all folders in
/// it have a role.
void skip_outer_folders(std::vector<ListedImage>& images, bool of_set, const std::vector<std::string>& classes = {}) {
    while (!images.empty()) {
        const std::string top(images[0].folder());
        const auto inside = [&](const ListedImage& image) { return image.folder() == top && depth(image) > 1; };
        if (!std::ranges::all_of(images, inside) || std::ranges::find(classes, top) != classes.end()) return;
        std::vector<ListedImage> inner = images;
        std::ranges::for_each(inner, descend);
        const auto is_part = [](const ListedImage& image) { return role_of(image.folder()) != FolderRole::none; };
        if (!of_set && is_set_name(top) && !std::ranges::all_of(inner, is_part)) return;
        images = std::move(inner);
    }
}

/// A folder that may be a set.
struct TopFolder {
    std::vector<ListedImage> images;
    std::vector<std::string> holds; // names of its class folders, sorted
    FolderRole role = FolderRole::none;
    bool plain = false;
    bool named() const { return role != FolderRole::none && role != FolderRole::fold; }
};

/// Returns the class folders that both hold, if these are at least half of those in the smaller one.
std::vector<std::string> held_by_both(const TopFolder& a, const TopFolder& b) {
    std::vector<std::string> both;
    std::ranges::set_intersection(a.holds, b.holds, std::back_inserter(both));
    return both.size() * 2 < std::min(a.holds.size(), b.holds.size()) ? std::vector<std::string>() : both;
}

/// Compares like the paths of std::filesystem, which is many times slower: folder by folder, since '/' sorts first.
bool path_less(const std::string& a, const std::string& b) {
    const auto rank = [](char c) { return c == '/' ? 0 : uint8_t(c) + 1; };
    return std::ranges::lexicographical_compare(a, b, {}, rank, rank);
}

void sort_images(std::vector<ListedImage>& images) {
    std::sort(images.begin(), images.end(), [](const ListedImage& a, const ListedImage& b) {
        return a.label() != b.label() ? a.label() < b.label() : path_less(a.file, b.file);
    });
}

/// Takes two folders with mostly the same class folders. If only one is for training or testing, the other gets the
/// opposite role. Of two folds, one that is at least twice as large is for training, and the other for testing.
void complete_roles(TopFolder* known, TopFolder* other) {
    const bool folds = known->role == FolderRole::fold && other->role == FolderRole::fold;
    if (other->named() || (folds && other->images.size() > known->images.size())) std::swap(known, other);
    if (folds && known->images.size() >= 2 * other->images.size()) known->role = FolderRole::train;
    if (known->named() && !other->named())
        other->role = known->role == FolderRole::train ? FolderRole::test : FolderRole::train;
}

} // namespace

std::vector<std::string> Layout::classes(bool all) const {
    std::set<std::string, std::less<>> names;
    for (const std::vector<ListedImage>* const images : {&train, &test})
        for (const ListedImage& image : *images)
            if ((all || train.empty() || images == &train) && !names.contains(image.label()))
                names.emplace(image.label());
    names.erase("");
    return {names.begin(), names.end()};
}

Layout layout_of(const std::vector<std::string>& files, const std::string& folder,
                 const std::vector<std::string>& labels) {
    std::vector<ListedImage> images;
    for (size_t i = 0; i < files.size(); ++i) images.push_back({files[i], labels.empty() ? "" : labels[i]});
    skip_outer_folders(images, false);

    std::map<std::string, TopFolder, std::less<>> tops;
    for (const ListedImage& image : images) tops[std::string(image.folder())].images.push_back(image);
    std::vector<std::string> held; // class folders in the first and the last folder, if all hold mostly the same
    for (auto& [name, top] : tops) {
        if (name.empty()) continue;
        std::vector<ListedImage> inner = top.images;
        std::ranges::for_each(inner, descend);
        skip_outer_folders(inner, true);
        top = {std::move(top.images), Layout{std::move(inner), {}, {}}.classes(), role_of(name), is_set_name(name)};
    }
    for (const auto& [name, top] : tops)
        if (held = held_by_both(tops.begin()->second, top); held.empty()) break;
    if (tops.size() == 2 && held.size() > 1) complete_roles(&tops.begin()->second, &tops.rbegin()->second);
    size_t folds = 0, named = 0;
    for (const auto& [name, top] : tops) folds += top.role == FolderRole::fold, named += top.named();
    RG_CHECK(!labels.empty() || folds < 2 || folds + named < tops.size() || held.empty(),
             "image folder: expected folders for training and testing, got folds such as ", tops.begin()->first,
             " and ", tops.rbegin()->first, " (", folder, "); to test on one, move it elsewhere and give it as ",
             "--test-data; --label-from parent takes the others together");

    std::map<FolderRole, std::string> parts; // the folder with each role
    bool all_are_parts = true;
    std::string without_classes;
    for (const auto& [name, top] : tops) {
        const auto confirms = [&, own = &top](const auto& other) {
            return other.second.named() && other.second.role != own->role &&
                   (named == tops.size() || !held_by_both(other.second, *own).empty());
        };
        const bool is_part = top.named() && (top.plain || std::ranges::any_of(tops, confirms));
        const bool holds_classes = std::ranges::all_of(
            top.images, [](const ListedImage& image) { return depth(image) > 1 || !image.given.empty(); });
        all_are_parts &= is_part;
        if (is_part && !holds_classes) without_classes = name;
        if (!is_part || !holds_classes) continue;
        const auto [other, is_new] = parts.emplace(top.role, name);
        RG_CHECK(is_new || top.plain != tops[other->second].plain,
                 "image folder: expected one folder of each set, got ", other->second, " and ", name, " (", folder,
                 "); merge the two");
        if (top.plain) other->second = name;
    }
    RG_CHECK(!all_are_parts || without_classes.empty() || (parts.size() > 1 && !is_set_name(without_classes)) ||
                 tops.size() == 1,
             "image folder: expected class folders in ", without_classes, ", got images (", folder,
             parts.contains(FolderRole::train)
                 ? cat("); give ", folder, "/", parts[FolderRole::train], " to use it alone")
                 : "); make a folder for each class");

    Layout layout;
    if (!parts.empty() && (all_are_parts || (parts.contains(FolderRole::train) && parts.size() > 1))) {
        // No other folder has the name "", since images beside the folders are no set.
        const std::string train = parts[FolderRole::train],
                          test = parts[parts.contains(FolderRole::test) ? FolderRole::test : FolderRole::validation];
        for (auto& [name, top] : tops) {
            if (name.empty() || (name != train && name != test)) {
                layout.warnings.push_back(cat("warning: ", name.empty() ? "beside the folders" : name, ": left out ",
                                              top.images.size(), top.images.size() == 1 ? " image" : " images",
                                              ", since there are ", train, train.empty() || test.empty() ? "" : " and ",
                                              test));
                continue;
            }
            std::ranges::for_each(top.images, descend);
            (name == train ? layout.train : layout.test) = std::move(top.images);
        }
        if (!train.empty() && !test.empty() && !(tops[train].plain && tops[test].plain)) {
            const std::vector<std::string> same = held_by_both(tops[train], tops[test]);
            layout.warnings.push_back(cat("note: ", train, " is for training and ", test, " for testing",
                                          same.empty() ? "" : ", since both hold " + same.front(),
                                          same.size() > 1 ? " and " + same.back() : ""));
        }
    } else {
        layout.train = std::move(images);
        for (const auto& [name, top] : tops)
            if (labels.empty() && top.named() && (top.plain || named > 1))
                layout.warnings.push_back(cat("warning: the folder ", name, " is a class here, since not all folders ",
                                              "beside it are sets such as train and test"));
        if (labels.empty() && tops.size() > 1 && held.size() > 1)
            layout.warnings.push_back(cat("warning: the classes are folders such as ", tops.begin()->first, " and ",
                                          tops.rbegin()->first, ", which all hold folders such as ", held.front(),
                                          " and ", held.back(), "; --label-from parent makes those the classes"));
    }
    skip_outer_folders(layout.train, true);
    skip_outer_folders(layout.test, true, layout.train.empty() ? std::vector<std::string>{} : layout.classes());
    sort_images(layout.train);
    sort_images(layout.test);
    return layout;
}

} // namespace rg::data
