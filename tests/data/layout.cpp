// Tests how the names of images decide their sets and labels, and that every reader agrees.
#include "core/atomic_file.h"
#include "data/layout.h"
#include "data/open.h"
#include "data/png.h"
#include "tests/image_sets.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>
#include <filesystem>

namespace rg::data {
namespace {

using Names = std::vector<std::string>;

/// Returns "label:file" of each image, for training, then " | " and those for testing, then " !" for each warning, and
/// " ?" for each note.
std::string text_of(const Layout& layout) {
    std::string text;
    const auto add = [&](const std::vector<Layout::ListedImage>& images) {
        for (const Layout::ListedImage& image : images) {
            if (!text.empty() && text.back() != ' ') text += ' ';
            text += cat(image.label(), ":", image.file.substr(image.file.rfind('/') + 1));
        }
    };
    add(layout.train);
    if (!layout.test.empty()) text += " | ", add(layout.test);
    for (const std::string& warning : layout.warnings) text += warning.starts_with("note: ") ? " ?" : " !";
    return text;
}

struct Case {
    Names images;
    std::string expected; // text_of(), or the beginning of an error after "error: "
    Names labels = {};    // of labels.csv
};
/// Two folders that hold the same two classes.
Names twins(const std::string& a, const std::string& b) {
    return {a + "/cat/1", a + "/dog/2", b + "/cat/3", b + "/dog/4"};
}
const std::string kTwins = "cat:1 dog:2 | cat:3 dog:4", kTwinsBack = "cat:3 dog:4 | cat:1 dog:2";
const std::string kFolds = "error: image folder: expected folders for training and testing, got folds such as ";
const Case kCases[] = {
    {{"dog/2", "cat/1"}, "cat:1 dog:2"},
    {{"cat/deep/er/1", "cat/2", "dog/3"}, "cat:2 cat:1 dog:3"},
    {{"1", "2"}, ":1 :2"},
    {{"1", "cat/2"}, ":1 cat:2"},
    // Sets with plain names need not hold the same.
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
    {{"train/cat/1", "test/cat/2", "test_hidden/3"}, "cat:1 | cat:2 !"},
    {{"train/cat/1", "train_extra/cat/2", "test/cat/3"}, "cat:1 | cat:3 !"},
    // Sets whose names have a word.
    {twins("training_set", "test_set"), kTwins + " ?"},
    {twins("seg_train", "seg_test"), kTwins + " ?"},
    {twins("train-set", "test-set"), kTwins + " ?"},
    {twins("train2017", "val2017"), kTwins + " ?"},
    {twins("Train Images", "Test Images"), kTwins + " ?"},
    {twins("learn", "eval"), kTwins + " ?"},
    {twins("dataset_train", "dataset_test"), kTwins + " ?"},
    {twins("TRAIN_DATA", "TEST_DATA"), kTwins + " ?"},
    {twins("1_train", "2_test"), kTwins + " ?"},
    {twins("xtrain", "xtest"), kTwins + " ?"},
    {twins("TrainData", "HoldOut"), kTwins + " ?"},
    {twins("trainset", "devset"), kTwins + " ?"},
    {twins("fit", "dev"), kTwins + " ?"},
    {twins("x.train.v2", "x.validation.v2"), kTwins + " ?"},
    {twins("split1_train", "split1_test"), kTwins + " ?"},
    {twins("archive/dataset/training_set", "archive/dataset/test_set"), kTwins + " ?"},
    {twins("training_set/training_set", "test_set/test_set"), kTwins + " ?"},
    {twins("train/train", "test/test"), kTwins},
    {{"a/train_set/images/cat/1", "a/train_set/images/dog/2", "a/test_set/images/dog/3"}, "cat:1 dog:2 | dog:3 ?"},
    {{"train_set/cat/1", "train_set/dog/2", "test_set/dog/deep/3"}, "cat:1 dog:2 | dog:3 ?"},
    {{"train_set/cat/1", "test_set/cat/2"}, "cat:1 | cat:2 ?"},
    {{"train_set/cat/1", "train_set/dog/2"}, "cat:1 dog:2"},
    {{"seg_train/cat/1", "seg_test/cat/2", "seg_pred/3"}, "cat:1 | cat:2 ! ?"},
    {{"train_set/cat/1", "val_set/cat/2", "test_set/cat/3"}, "cat:1 | cat:3 ! ?"},
    {{"val_set/cat/2", "test_set/cat/3"}, " | cat:3 !"},
    {{"train_set/Cat/1", "TEST_SET/cat/2"}, "Cat:1 | cat:2 ?"}, // an error of the reader
    // One name is enough for two folders that hold the same.
    {twins("train_set", "unseen"), kTwins + " ?"},
    {twins("photos", "val"), kTwins + " ?"},
    {twins("holdout", "photos"), kTwinsBack + " ?"},
    {twins("test", "part1"), kTwinsBack + " ?"},
    // Folds, of which a large one is for training.
    {twins("fold0", "fold1"), kFolds + "fold0 and fold1 (X); to test on one, move"},
    {{"fold_1/a/1", "fold_2/a/2", "fold_3/a/3"}, kFolds + "fold_1 and fold_3"},
    {twins("k1", "k2"), kFolds},
    {twins("Set-A", "Set-B"), kFolds},
    {twins("photos/part1", "photos/part2"), kFolds},
    {twins("train/fold0", "train/fold1"), kFolds},
    {{"fold0/a/1", "fold1/a/2", "test/a/3"}, kFolds + "fold0 and test"},
    {{"part1/a/1", "part1/b/2", "part2/a/3", "part2/a/4", "part2/b/5", "part2/b/6"}, "a:3 a:4 b:5 b:6 | a:1 b:2 ?"},
    {{"set1/1", "set2/2"}, "set1:1 set2:2"},
    {{"part1/a/1", "part2/b/2"}, "part1:1 part2:2"},
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
    {{"fit/1", "unfit/2"}, "fit:1 unfit:2"},
    {{"latest/a/1", "contest/a/2", "strain/a/3"}, "contest:2 latest:1 strain:3"},
    {{"train_station/1", "beach/2", "test_bench/3"}, "beach:2 test_bench:3 train_station:1 ! !"},
    // Classes that hold the same folders.
    {{"cat/in/1", "cat/out/2", "dog/in/3", "dog/out/4"}, "cat:1 cat:2 dog:3 dog:4 !"},
    {{"cat/in/1", "cat/out/2", "dog/in/3", "dog/4"}, "cat:1 cat:2 dog:4 dog:3"},
    {{"cat/images/1", "dog/images/2"}, "cat:1 dog:2"},
    {{"train_station/in/1", "train_station/out/2", "hall/in/3", "hall/out/4", "zoo/in/5", "zoo/out/6"},
     "hall:3 hall:4 train_station:1 train_station:2 zoo:5 zoo:6 !"},
    // With labels, folders are sets or nothing.
    {{"train_set/1", "train_set/2", "test_set/3"}, "cat:1 dog:2 | dog:3 ?", {"cat", "dog", "dog"}},
    {{"a/train/x/1", "a/train/2", "a/test/3"}, "cat:1 dog:2 | dog:3", {"cat", "dog", "dog"}},
    {{"fold0/1", "fold1/2", "fold1/3"}, "cat:1 cat:3 dog:2", {"cat", "dog", "cat"}},
    {{"cat/1", "dog/2"}, "x:2 y:1", {"y", "x"}},
    {{"train/1", "bus/2"}, "x:2 y:1", {"y", "x"}},
    {{"1", "train/2", "test/3"}, "x:2 | x:3 !", {"x", "x", "x"}},
    {{"cat/in/1", "cat/out/2", "dog/in/3", "dog/out/4"}, "x:2 x:3 y:1 y:4", {"y", "x", "x", "y"}},
    // A network must never learn to tell the sets.
    {{"train/1", "test/2"}, "error: image folder: expected class folders in train, got images (X)"},
    {{"train/cat/1", "train/dog/2", "test/3"},
     "error: image folder: expected class folders in test, got images (X); give X/train to use it alone"},
    {{"train_set/cat/1", "train_set/dog/2", "test_set/3"},
     "error: image folder: expected class folders in test_set, got images (X); give X/train_set to use it alone"},
    {{"train/cat/1", "train/dog/2", "Training/dog/3"}, "error: image folder: expected one folder of each set, got Training and train"},
    {{"train_a/cat/1", "train_b/cat/2", "test/cat/3"}, "error: image folder: expected one folder of each set, got train_a and train_b"},
};

} // namespace

TEST_SUITE("data") {
    TEST_CASE("layout: names decide sets and labels") {
        for (const Case& c : kCases) {
            CAPTURE(c.expected);
            CAPTURE(c.images[0]);
            Names names = c.images;
            Names labels = c.labels;
            const auto text = [&] {
                try {
                    return text_of(layout_of(names, "X", labels));
                } catch (const Error& error) {
                    return cat("error: ", error.what()).substr(0, c.expected.size());
                }
            };
            CHECK(text() == c.expected);
            std::reverse(names.begin(), names.end());
            std::reverse(labels.begin(), labels.end());
            CHECK(text() == c.expected);
        }
    }

    TEST_CASE("layout: sorts like the paths of the standard library") {
        const Names names{"c/a-b/1", "c/a/2", "c/a b/3", "c/a.png", "c/\xff", "c/B/1", "d/0"};
        std::vector<std::filesystem::path> sorted(names.begin(), names.end());
        std::sort(sorted.begin(), sorted.end());
        const Layout layout = layout_of(names, "X");
        REQUIRE(layout.train.size() == sorted.size());
        for (size_t i = 0; i < sorted.size(); ++i) CHECK(layout.train[i].file == sorted[i].string());
    }

    TEST_CASE("layout: a folder and its tar load as the same sets") {
        const TempDir dir;
        int number = 0;
        for (const Case& c : kCases) {
            const std::string folder = dir / cat("set", ++number);
            CAPTURE(c.expected);
            for (size_t i = 0; i < c.images.size(); ++i)
                write_image(folder + "/" + c.images[i] + ".png", 1, 1, 1, {uint8_t(i)});
            std::string table;
            for (size_t i = 0; i < c.labels.size(); ++i) table += cat(c.images[i], ".png,", c.labels[i], "\n");
            if (!table.empty()) write_file_atomic(folder + "/labels.csv", table);
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
            CHECK(expected.starts_with("error: ") == (c.expected.starts_with("error: ") || c.expected.starts_with(":1 :2") || c.expected.starts_with("Cat:1 | cat")));
            CHECK(loaded(cat("pipe:tar -cC ", folder, " .")).starts_with(expected.substr(0, expected.find('('))));
            if (std::any_of(c.images.begin(), c.images.end(), [](auto& name) { return name.find('/') == name.npos; }))
                continue; // in a folder, this would be another layout
            CHECK(loaded(cat("pipe:tar -czC ", dir.path(), " set", number)).starts_with(expected.substr(0, expected.find('('))));
        }
    }

    TEST_CASE("layout: says which folder is for what, and what else to do") {
        const auto said = [](const Names& images) { return cat(layout_of(images, "X").warnings.at(0)); };
        CHECK(said(twins("train_set", "test_set")) ==
              "note: train_set is for training and test_set for testing, since both hold cat and dog");
        CHECK(said({"train_a/cat/1", "test_a/dog/2"}) == "note: train_a is for training and test_a for testing");
        CHECK(said({"cat/in/1", "cat/out/2", "dog/in/3", "dog/out/4"}) ==
              "warning: the classes are folders such as cat and dog, which all hold folders such as in and out; "
              "--label-from parent makes those the classes");
        const TempDir dir; // does what the warning and the error of folds say
        for (const char* const name : {"fold0/cat/1", "fold0/dog/2", "fold1/cat/3", "fold1/dog/4"})
            write_image(dir / "set/" + name + ".png", 1, 1, 1, {7});
        CHECK_ERROR("--label-from parent", load(dir / "set", {.channels = 1}));
        const TrainTest all = load(dir / "set", {.channels = 1, .test_fraction = 0, .label_from = LabelFrom::parent});
        CHECK(all.train.classes == Names{"cat", "dog"});
        CHECK(all.train.count == 4);
        CHECK(all.warnings.empty());
    }

    TEST_CASE("layout: hidden and empty folders are no sets") {
        const TempDir dir;
        for (const std::string& name : twins("train_set", "test_set")) {
            write_image(dir / "set/" + name + ".png", 1, 1, 1, {7});
            for (const char* const hidden : {"__MACOSX/", ".cache/", "@eaDir/"})
                write_image(dir / "set/" + hidden + name + ".png", 1, 1, 1, {7});
        }
        write_file_atomic(dir / "set/.DS_Store", "x");
        const auto counts = [&](const LoadOptions& options) {
            const TrainTest sets = load(dir / "set", options);
            return std::pair(sets.train.count, sets.test.count);
        };
        CHECK(counts({.channels = 1}) == std::pair<int64_t, int64_t>(2, 2));
        CHECK(counts({.channels = 1, .label_from = LabelFrom::parent}) == std::pair<int64_t, int64_t>(2, 2));
        CHECK(counts({.channels = 1, .labels = Labels::none}) == std::pair<int64_t, int64_t>(2, 2));
        std::filesystem::remove_all(dir / "set/test_set");
        std::filesystem::create_directories(dir / "set/test_set");
        CHECK(counts({.channels = 1, .test_fraction = 0}) == std::pair<int64_t, int64_t>(2, 0));
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
