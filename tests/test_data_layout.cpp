// Tests how the names of images decide their sets and labels, and that every reader agrees.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/data/layout.h"
#include "ringgrad/data/open.h"
#include "ringgrad/data/png.h"
#include "ringgrad/tests/image_sets.h"
#include "ringgrad/tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>

namespace rg::data {
namespace {

using Names = std::vector<std::string>;

/// Returns "label:file" of each image, for training, then " | " and those for testing, then for each warning " !".
std::string text_of(const Layout& layout) {
    std::string text;
    const auto add = [&](const std::vector<Layout::Image>& images) {
        for (const Layout::Image& image : images) {
            if (!text.empty() && text.back() != ' ') text += ' ';
            text += cat(image.label(), ":", image.path.substr(image.path.rfind('/') + 1));
        }
    };
    add(layout.train);
    if (!layout.test.empty()) text += " | ", add(layout.test);
    for (size_t i = 0; i < layout.warnings.size(); ++i) text += " !";
    return text;
}

struct Case {
    Names images;
    std::string expected; // text_of(), or the beginning of an error after "error: "
};
const Case kCases[] = {
    {{"dog/2", "cat/1"}, "cat:1 dog:2"},
    {{"cat/deep/er/1", "cat/2", "dog/3"}, "cat:2 cat:1 dog:3"},
    {{"1", "2"}, ":1 :2"},
    {{"1", "cat/2"}, ":1 cat:2"},
    // Sets, under each of their names.
    {{"train/cat/1", "train/dog/2", "test/cat/3"}, "cat:1 dog:2 | cat:3"},
    {{"train/cat/1", "train/dog/2", "valid/cat/3"}, "cat:1 dog:2 | cat:3"},
    {{"Train/cat/1", "Train/dog/2", "TEST/dog/3"}, "cat:1 dog:2 | dog:3"},
    {{"training/cat/1", "training/dog/2", "testing/dog/3"}, "cat:1 dog:2 | dog:3"},
    {{"Training/cat/1", "Training/dog/2", "Validation/dog/3"}, "cat:1 dog:2 | dog:3"},
    {{"train/cat/1", "train/dog/2", "val/cat/3", "test/cat/4"}, "cat:1 dog:2 | cat:4 !"},
    {{"train/cat/1", "train/dog/2", "test/cat/3", "extra/4", "extra/deep/5", "6"}, "cat:1 dog:2 | cat:3 ! !"},
    {{"train/cat/1", "train/dog/2"}, "cat:1 dog:2"},
    {{"test/cat/1", "test/dog/2"}, " | cat:1 dog:2"},
    {{"train/cat/a/1", "train/dog/2", "test/cat/deep/3"}, "cat:1 dog:2 | cat:3"},
    // Folders that hold everything are skipped, also within sets.
    {{"photos/Cat/1", "photos/Dog/2"}, "Cat:1 Dog:2"},
    {{"a/b/Cat/1", "a/b/Dog/2"}, "Cat:1 Dog:2"},
    {{"set/train/Cat/1", "set/train/Dog/2", "set/test/Cat/3"}, "Cat:1 Dog:2 | Cat:3"},
    {{"train/images/Cat/1", "train/images/Dog/2", "test/images/Dog/3"}, "Cat:1 Dog:2 | Dog:3"},
    {{"photos/1", "photos/2"}, "photos:1 photos:2"},
    {{"photos/Cat/1", "photos/2"}, "photos:2 photos:1"},
    // Classes that are named like sets.
    {{"train/1", "bus/2"}, "bus:2 train:1 !"},
    {{"train/side/1", "bus/2"}, "bus:2 train:1 !"},
    {{"train/1", "train/side/2", "bus/3", "test/4"}, "bus:3 test:4 train:1 train:2 ! !"},
    // A network must never learn to tell the sets.
    {{"train/1", "test/2"}, "error: image folder: expected class folders in train, got images (X)"},
    {{"train/cat/1", "train/dog/2", "test/3"},
     "error: image folder: expected class folders in test, got images (X); give X/train to use it alone"},
    {{"train/cat/1", "Training/dog/2"}, "error: image folder: expected one folder of each set, got Training and train"},
};

} // namespace

TEST_SUITE("data") {
    TEST_CASE("layout: names decide sets and labels") {
        for (const Case& c : kCases) {
            CAPTURE(c.expected);
            CAPTURE(c.images[0]);
            Names names = c.images;
            const auto text = [&] { return text_of(layout_of(names, "X")); };
            if (c.expected.starts_with("error: "))
                CHECK(error_of(text).starts_with(c.expected.substr(7)));
            else {
                CHECK(text() == c.expected);
                std::reverse(names.begin(), names.end());
                CHECK(text() == c.expected);
            }
        }
    }

    TEST_CASE("layout: sorts like the paths of the standard library") {
        const Names names{"c/a-b/1", "c/a/2", "c/a b/3", "c/a.png", "c/\xff", "c/B/1", "d/0"};
        std::vector<std::filesystem::path> sorted(names.begin(), names.end());
        std::sort(sorted.begin(), sorted.end());
        const Layout layout = layout_of(names, "X");
        REQUIRE(layout.train.size() == sorted.size());
        for (size_t i = 0; i < sorted.size(); ++i) CHECK(layout.train[i].path == sorted[i].string());
    }

    TEST_CASE("layout: a folder and its tar load as the same sets") {
        const TempDir dir;
        int number = 0;
        for (const Case& c : kCases) {
            const std::string folder = dir / cat("set", ++number);
            CAPTURE(c.expected);
            for (size_t i = 0; i < c.images.size(); ++i)
                write_image(folder + "/" + c.images[i] + ".png", 1, 1, 1, {uint8_t(i)});
            const LoadOptions options{.channels = 1, .test_fraction = 0, .skip_other_images = true, .cache = dir / "cache"};
            const auto loaded = [&](const std::string& path) {
                try {
                    const TrainTest sets = load(path, options);
                    std::string text;
                    for (const ImageSet* set : {&sets.train, &sets.test}) {
                        for (int64_t i = 0; i < set->count; ++i)
                            text += cat(set->classes[size_t(set->labels[size_t(i)])], ":", std::filesystem::path(set->names[size_t(i)]).filename().string(), ":",
                                        int(set->image(i)[0]), " ");
                        text += "| ";
                    }
                    for (const std::string& warning : sets.warnings) text += warning.substr(0, warning.find("left out")) + "\n";
                    return text;
                } catch (const Error& error) {
                    return "error: " + std::string(error.what()).substr(0, 45);
                }
            };
            const std::string expected = loaded(folder);
            CHECK(expected.starts_with("error: ") == (c.expected.starts_with("error: ") || c.expected.starts_with(":1 :2")));
            CHECK(loaded(cat("pipe:tar -cC ", folder, " .")).starts_with(expected.substr(0, expected.find('('))));
            if (std::any_of(c.images.begin(), c.images.end(), [](auto& name) { return name.find('/') == name.npos; }))
                continue; // in a folder, this would be another layout
            CHECK(loaded(cat("pipe:tar -czC ", dir.path(), " set", number)).starts_with(expected.substr(0, expected.find('('))));
        }
    }

    TEST_CASE("image folder: labels.csv gives numbers, or several classes") {
        const TempDir dir;
        int number = 0;
        const auto load_with = [&](const std::string& table, Labels labels, bool unlabelled = false) {
            const std::string folder = dir / cat("set", ++number);
            for (const char* name : {"/a,1.png", "/b.png", "/photos/c.png"}) write_image(folder + name, 1, 1, 1, {7});
            write_file_atomic(folder + "/labels.csv", table);
            return load(folder, {.channels = 1, .test_fraction = 0, .labels = labels, .unlabelled = unlabelled}).train;
        };
        const auto error = [&](const std::string& table, Labels labels) {
            return error_of([&] { load_with(table, labels); });
        };
        const std::string rows = "photos/c.png,3,-1e1\n\"a,1.png\",1,0.5\nb.png,2,0\n";
        for (const std::string heading : {"", "file,age,\"height, cm\"\n"}) {
            const ImageSet set = load_with("\xEF\xBB\xBF" + heading + rows, Labels::numbers);
            CHECK(set.targets == std::vector<float>{1, 0.5f, 2, 0, 3, -10});
            CHECK(set.target_names == (heading.empty() ? Names{"value1", "value2"} : Names{"age", "height, cm"}));
            CHECK(set.classes == Names{"images"});
            CHECK(subset(set, std::vector<int64_t>{2}).targets == std::vector<float>{3, -10});
        }
        CHECK(contains(error("file,age\nb.png,x\n", Labels::numbers), "a file and 1 number, got b.png,x (" ));
        for (const std::string wrong : {"nan", "inf", "-inf", "1e999", "+-4", "0x10", ""}) {
            const std::string text = error("file,age\nb.png,1\n\n\"a,1.png\"," + wrong + "\nphotos/c.png,2\n", Labels::numbers);
            CHECK(text == Containing{"a file and 1 number, got \"a,1.png\"," + wrong, "labels.csv, line 4)"});
        }
        CHECK(load_with("b.png,+4\n\"a,1.png\", 1e-60\nphotos/c.png,2 \n", Labels::numbers).targets == std::vector<float>{0, 4, 2});
        CHECK(contains(error("b,+4\n\"a,1.png\",1\nphotos/c.png,2\n", Labels::numbers), "an image b, got none"));
        CHECK(contains(error("file,age,size\nb.png,1\n", Labels::numbers), "a file and 2 numbers"));
        CHECK(contains(error("b.png,1\n\"a,1.png\",2\n", Labels::numbers), "a line for photos/c.png in labels.csv"));
        CHECK(std::isnan(load_with("b.png,1\n", Labels::numbers, true).targets[0]));

        for (const std::string both : {"sea|sky", "\"sea, sky\"", "sea;sky", " sky  sea "}) {
            const ImageSet set = load_with("file,labels\nphotos/c.png," + both + "\n\"a,1.png\",sky dog\nb.png,\n",
                                           Labels::several_classes);
            CHECK(set.target_names == Names{"dog", "sea", "sky"});
            CHECK(set.targets == std::vector<float>{1, 0, 1, 0, 0, 0, 0, 1, 1});
        }
        std::filesystem::remove(dir / cat("set", number, "/labels.csv"));
        CHECK_ERROR("a line for a,1.png in labels.csv, got none",
                    load(dir / cat("set", number), {.channels = 1, .labels = Labels::several_classes}));
    }

    TEST_CASE("image folder: labels.csv and --label-from give the classes") {
        const TempDir dir;
        int number = 0;
        /// Returns "label:path" of each image of both sets, or the error.
        const auto load_with = [&](const Names& images, const std::vector<std::pair<std::string, std::string>>& files,
                                   LoadOptions options) -> std::string {
            const std::string folder = dir / cat("set", ++number);
            for (const std::string& image : images) write_image(folder + "/" + image + ".png", 1, 1, 1, {7});
            for (const auto& [name, text] : files) write_file_atomic(folder + "/" + name, text);
            options.channels = 1, options.test_fraction = 0;
            try {
                const TrainTest sets = load(folder, options);
                std::string text;
                for (const ImageSet* set : {&sets.train, &sets.test}) {
                    for (size_t i = 0; i < size_t(set->count); ++i)
                        text += cat(set->classes[size_t(set->labels[i])], ":", set->names[i], " ");
                    if (set == &sets.train) text += "| ";
                }
                return text;
            } catch (const Error& error) {
                return error.what();
            }
        };
        const Names flat{"1", "2", "3"};
        for (const std::string heading : {"", "file,label\n", "\xEF\xBB\xBF", "\xEF\xBB\xBF" "file,label\r\n"})
            CHECK(load_with(flat, {{"labels.csv", heading + "2.png,cat\r\n\"1.png\",\"a \"\"dog\"\", small\"\n3.png,cat"}}, {}) ==
                  "a \"dog\", small:1.png cat:2.png cat:3.png | ");
        // Spreadsheets and people write a table in many ways. Each of these texts gives the same set.
        for (const std::string text :
             {"1.png,a\n2.png,b\n3.png,b", "file, label\n1.png, a\n2.png ,b\n 3.png,b \n", "1.png,a\n\n2.png,b\n,\n3.png,b\n\n\n",
              "file,label\r1.png,a\r2.png,b\r3.png,b\r", "\"file\",\"label\"\r\n\"1.png\",\"a\"\r\n\"2.png\",\"b\"\r\n\"3.png\",\"b\"\r\n",
              "./1.png,a\n./2.png,b\n././3.png,\tb\n"}) {
            CAPTURE(text);
            CHECK(load_with(flat, {{"labels.csv", text}}, {}) == "a:1.png b:2.png b:3.png | ");
        }
        // Each error names the line, and what to do.
        const std::pair<const char*, std::vector<std::string>> errors[] = {
            {"file,label\n\n1,a\n2,b\n3,b\n", {"an image 1, got none", "labels.csv, line 3)", "write the ending of its name too: 1.png"}},
            {"file,label,age\n1.png,a,3\n", {"labels.csv, line 2)", "remove the other columns"}},
            {",file,label\n0,1.png,a\n", {"labels.csv, line 2)", "remove the other columns"}},
            {"label,file\na,1.png\n", {"labels.csv, line 2)", "the first column has the files"}},
            {"1.png,a\n\n2.png\n", {"a file and a label, got 2.png", "line 3)"}},
            {"1.png\ta\n", {"separate them by a comma"}},
            {"1.png,a\n\n1.png,b\n", {"second one", "line 3)"}},
        };
        for (const auto& [text, parts] : errors)
            for (const std::string& part : parts) CHECK(contains(load_with(flat, {{"labels.csv", text}}, {}), part));
        CHECK(contains(load_with(flat, {{"labels.csv", std::string("1\0.\0", 4)}}, {}), "line 1); save the table as UTF-8"));
        std::filesystem::create_directories(dir / cat("set", number + 1, "/notes")); // is no class
        CHECK(load_with(flat, {{"labels.csv", "1.png,a\n2.png,b\n3.png,b\n"}}, {}) == "a:1.png b:2.png b:3.png | ");
        const std::string table = "file,label\ntrain/x/1.png,cat\ntrain/2.png,dog\ntest/3.png,dog\n";
        CHECK(load_with({"train/x/1", "train/2", "test/3"}, {{"labels.csv", table}}, {}) ==
              "cat:train/x/1.png dog:train/2.png | dog:test/3.png ");
        CHECK(load_with({"in/train/1", "in/train/2", "in/test/3"},
                        {{"in/train/labels.csv", "1.png,b\n2.png,a\n"}, {"in/test/labels.csv", "3.png,b\n"}}, {}) ==
              "a:in/train/2.png b:in/train/1.png | b:in/test/3.png ");
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png,a\n2.png,b\n"}}, {}), "a line for 3.png in labels.csv, got none"));
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png,a\n2.png,b\n3.png,b\n4.png,b\n"}}, {}), "an image 4.png, got none"));
        CHECK(contains(load_with(flat, {{"labels.csv", "4.png,a\n1.png,a\n2.png,b\n3.png,b\n"}}, {}), "an image 4.png, got none"));
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png,a\n1.png,b\n"}}, {}), "second one"));
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png\n"}}, {}), "expected a file and a label, got 1.png"));
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png,caf\xe9\n"}}, {}), "labels.csv, line 1); save the table as UTF-8"));
        CHECK(contains(load_with(flat, {{"labels.csv", "1.png,\"a\n"}}, {}), "labels.csv, line 1: expected a closing quote"));
        for (const std::string bad : {"", "a/b", ".."})
            CHECK(contains(load_with(flat, {{"labels.csv", cat("1.png,a\n2.png,", bad, "\n3.png,b\n")}}, {}),
                           "a label that can name a folder, got \"" + bad + "\" ("));
        const std::string large = dir / cat("set", ++number, "/labels.csv");
        write_image(dir / cat("set", number, "/1.png"), 1, 1, 1, {7});
        write_file_atomic(large, "1.png,a\n");
        std::filesystem::resize_file(large, (uintmax_t{1} << 30) + 1);
        CHECK_ERROR("a table of at most 1024 MiB", load(dir / cat("set", number)));

        const Names nested{"train/a/x/1", "train/b/y/2", "train/b/x/3", "test/a/y/4"};
        CHECK(load_with(nested, {}, {.label_from = LabelFrom::top}) ==
              "a:train/a/x/1.png b:train/b/x/3.png b:train/b/y/2.png | a:test/a/y/4.png ");
        CHECK(load_with(nested, {}, {.label_from = LabelFrom::parent}) ==
              "x:train/a/x/1.png x:train/b/x/3.png y:train/b/y/2.png | y:test/a/y/4.png ");
        std::filesystem::create_directories(dir / "py/cifar-10-batches-py");
        CHECK_ERROR("CIFAR's version for Python", load(dir / "py"));
    }
}

} // namespace rg::data
