// Tests checkpoints: round trips, damage of every byte, the files that are kept, and the fall back from damaged files.
#include "core/atomic_file.h"
#include "core/checkpoint.h"
#include "core/rng.h"
#include "tests/temp_dir.h"

#include <algorithm>
#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <set>

namespace fs = std::filesystem;

namespace rg {
namespace {

TensorFile state_of(int salt) {
    Tensor w = Tensor::empty({3, 5});
    for (int i = 0; i < 15; ++i) w.data<float>()[i] = float(i * 3 + salt) / 7;
    Tensor n = Tensor::zeros({}, DType::i64);
    n.data<int64_t>()[0] = salt;
    TensorFile state;
    state.tensors = {{"w", w}, {"count", n}};
    state.metadata = {{"epoch", std::to_string(salt)}, {"options", "{\"lr\": 0.1}"}};
    return state;
}

std::set<std::string> names_in(const std::string& dir) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir)) names.insert(entry.path().filename().string());
    return names;
}

void overwrite(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// Flips a bit in the data of a file.
void damage(const std::string& path) {
    std::string bytes = read_file(path);
    bytes[bytes.size() - 3] = char(bytes[bytes.size() - 3] ^ 16);
    overwrite(path, bytes);
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("checkpoint: loads what was saved") {
        TempDir dir;
        const TensorFile state = state_of(4);
        const std::string path = save_checkpoint(dir / "checkpoint", 123, state, 2);
        CHECK(path == dir / "checkpoint/step-00000123.safetensors");
        CHECK_THROWS_AS(save_checkpoint(dir / "none/checkpoint", 123, state, 2), Error); // the run folder was deleted
        CHECK_FALSE(fs::exists(dir / "none"));
        const LoadedCheckpoint back = load_checkpoint(path);
        CHECK(back.step == 123);
        CHECK(back.path == path);
        CHECK(back.warnings.empty());
        CHECK(back.state.metadata == state.metadata);
        REQUIRE(back.state.tensors.size() == 2);
        const Tensor& w = back.state.tensor("w", DType::f32, {3, 5});
        CHECK(std::memcmp(w.bytes_data(), state.tensors[0].value.bytes_data(), 60) == 0);
        CHECK(back.state.tensor("count", DType::i64, {}).data<int64_t>()[0] == 4);
        CHECK(load_tensors(path).text("step") == "123"); // a checkpoint is a safetensors file
    }

    TEST_CASE("checkpoint: writes the same bytes for the same state") {
        TempDir dir;
        const std::string a = save_checkpoint(dir / "a", 7, state_of(1), 1),
                          b = save_checkpoint(dir / "b", 7, state_of(1), 1);
        CHECK(read_file(a) == read_file(b));
    }

    TEST_CASE("checkpoint: rejects every flipped bit, truncation and extension") {
        TempDir dir;
        const std::string path = save_checkpoint(dir.path(), 5, state_of(2), 1), good = read_file(path);
        const std::string other = dir / "bad";
        // The data follow the header: the i64 count, then the f32 w.
        const size_t data = good.size() - 8 - 15 * 4;
        const auto damaged_part = [&](size_t i) {
            return i < data ? "header" : i < data + 8 ? "of tensor count" : "of tensor w";
        };
        for (size_t i = 0; i < good.size(); ++i) {
            for (int bit = 0; bit < 8; ++bit) {
                std::string bad = good;
                bad[i] = char(bad[i] ^ (1 << bit));
                overwrite(other, bad);
                INFO("i ", i, ", bit ", bit);
                const std::string error = error_of([&] { load_checkpoint(other); });
                CHECK(error == Containing{other, damaged_part(i)});
            }
            overwrite(other, good.substr(0, i));
            CHECK_ERROR(i < data ? "header" : "tensor ", load_checkpoint(other));
            CHECK_ERROR(other, load_checkpoint(other));
        }
        overwrite(other, good + '\0');
        CHECK_ERROR("data bytes for all tensors, got ", load_checkpoint(other));
        std::string swapped = good; // two exchanged words do not change a plain sum
        std::swap_ranges(swapped.end() - 16, swapped.end() - 8, swapped.end() - 8);
        REQUIRE(swapped != good);
        overwrite(other, swapped);
        CHECK_ERROR("of tensor w", load_checkpoint(other));
        overwrite(other, good);
        CHECK(load_checkpoint(other).step == 5);
    }

    TEST_CASE("checkpoint: names the part of a large file in which a byte changed") {
        TensorFile state;
        const std::pair<const char*, int64_t> sizes[] = {{"block1.weight", 100'003}, {"a", 1}, {"velocity", 150'001}};
        for (const auto& [name, count] : sizes) {
            state.tensors.push_back({name, Tensor::empty({count})});
            for (int64_t i = 0; i < count; ++i) state.tensors.back().value.data<float>()[i] = float(i % 977) / 977;
        }
        std::string bytes = encode_checkpoint(7, state);
        const size_t header = bytes.size() - 4 * (100'003 + 1 + 150'001);
        REQUIRE(bytes.size() > 1'000'000);
        Rng random(1, Purpose::test);
        for (int i = 0; i < 10'000; ++i) {
            // Every tenth byte is in the header, which is less than a thousandth of the file.
            const size_t at = random.uniform_below(uint32_t(i % 10 ? bytes.size() : header));
            const size_t word = at < header ? 0 : (at - header) / 4;
            const std::string part = at < header       ? "header"
                                     : word < 100'003  ? "of tensor block1.weight, "
                                     : word == 100'003 ? "of tensor a, "
                                                       : "of tensor velocity, ";
            const char before = std::exchange(bytes[at], char(bytes[at] ^ (1 + random.uniform_below(255))));
            const std::string error = error_of([&] { decode_checkpoint(bytes, "t"); });
            bytes[at] = before;
            if (!contains(error, part)) FAIL_CHECK("byte ", at, " (", part, "): ", error);
        }
        CHECK(decode_checkpoint(bytes, "t").step == 7);
    }

    TEST_CASE("checkpoint: reads or rejects files of other programs") {
        // Decodes once to read the correct checksum in the error, and then again with that checksum.
        const auto decode = [](const std::string& metadata) {
            const std::string header =
                "{\"__metadata__\": {\"format\": \"ringgrad checkpoint 2\", \"checksum\": \"0000000000000000\"" +
                metadata + "}}";
            std::string bytes = std::string(8, '\0') + header;
            bytes[0] = char(header.size());
            const std::string error = error_of([&] { decode_checkpoint(bytes, "t"); });
            bytes.replace(bytes.find("0000000000000000"), 16, error, error.find(", got ") + 6, 16);
            return decode_checkpoint(bytes, "t");
        };
        const std::string sums = ", \"tensor_checksums\": \"\"";
        const LoadedCheckpoint mixed = decode(", \"k\": \"v\", \"step\": \"4\"" + sums + ", \"z\": \"w\"");
        CHECK(mixed.step == 4);
        CHECK(mixed.state.metadata == Metadata{{"k", "v"}, {"z", "w"}});
        CHECK(decode_checkpoint(encode_checkpoint(4, mixed.state), "t").state.metadata == mixed.state.metadata);
        CHECK_ERROR("step of at least 0, got -1", decode(sums + ", \"step\": \"-1\""));
        CHECK_ERROR("metadata step", decode(sums));
        CHECK_ERROR("a checksum of each of 0 tensors, got 2 digits",
                    decode(", \"step\": \"1\", \"tensor_checksums\": \"00\""));
    }

    TEST_CASE("checkpoint: keeps the last K and removes only leftovers of killed writes") {
        TempDir dir;
        overwrite(dir / "notes.txt", "mine");
        overwrite(dir / "step-1.safetensors", "not our spelling");
        overwrite(dir / "step-00000002.safetensors.tmp-99", "half");
        for (int step : {10, 20, 30}) save_checkpoint(dir.path(), step, state_of(step), 2);
        CHECK(names_in(dir.path()) == std::set<std::string>{"notes.txt", "step-1.safetensors",
                                                            "step-00000020.safetensors", "step-00000030.safetensors"});
        CHECK(load_latest_checkpoint(dir.path()).step == 30);
        save_checkpoint(dir.path(), 25, state_of(25), 2); // a run that resumed from 20 discards 30
        CHECK(load_latest_checkpoint(dir.path()).step == 25);
        CHECK(load_latest_checkpoint(dir.path()).state.text("epoch") == "25");
        CHECK_FALSE(fs::exists(dir / "step-00000030.safetensors"));
        save_checkpoint(dir.path(), 123456789012, state_of(1), 1);
        CHECK(load_latest_checkpoint(dir.path()).step == 123456789012);
    }

    TEST_CASE("checkpoint: deletes nothing if a write fails") {
        TempDir dir;
        const std::string first = save_checkpoint(dir.path(), 1, state_of(1), 1);
        fs::create_directory(dir / "step-00000002.safetensors"); // makes the rename fail
        overwrite(dir / "step-00000002.safetensors/x", "x");
        CHECK_ERROR("cannot rename", save_checkpoint(dir.path(), 2, state_of(2), 1));
        CHECK(load_checkpoint(first).step == 1);
        CHECK(load_latest_checkpoint(dir.path()).step == 1);
    }

    TEST_CASE("checkpoint: falls back from damaged files with a warning, and throws if none is valid") {
        TempDir dir;
        const std::string a = save_checkpoint(dir.path(), 1, state_of(1), 3);
        const std::string b = save_checkpoint(dir.path(), 2, state_of(2), 3);
        const std::string c = save_checkpoint(dir.path(), 3, state_of(3), 3);
        overwrite(c, read_file(c).substr(0, 100));
        damage(b);
        const LoadedCheckpoint found = load_latest_checkpoint(dir.path());
        CHECK(found.step == 1);
        REQUIRE(found.warnings.size() == 2);
        CHECK(contains(found.warnings[0], c));
        CHECK(found.warnings[1] == Containing{b, "using step-00000001.safetensors instead"});
        damage(a);
        const std::string error = error_of([&] { load_latest_checkpoint(dir.path()); });
        for (const std::string& path : {a, b, c}) CHECK(contains(error, path));
        CHECK(contains(error, "none of the 3"));
    }

    TEST_CASE("checkpoint: skips a file beyond the size limit") {
        TempDir dir;
        save_checkpoint(dir.path(), 1, state_of(1), 3);
        const std::string huge = save_checkpoint(dir.path(), 2, state_of(2), 3);
        fs::resize_file(huge, uintmax_t{1} << 40); // a sparse file, which needs no more disk
        const LoadedCheckpoint found = load_latest_checkpoint(dir.path());
        CHECK(found.step == 1);
        REQUIRE(found.warnings.size() == 1);
        CHECK(contains(found.warnings[0], huge + ": expected at most 68719476736 bytes, got 1099511627776"));
    }

    TEST_CASE("checkpoint: throws if there is nothing to load or save") {
        TempDir dir;
        CHECK_ERROR("no folder", load_latest_checkpoint(dir / "none"));
        CHECK_ERROR("nothing to resume from", load_latest_checkpoint(dir.path()));
        save_tensors(dir / "model.safetensors", state_of(1).tensors, {{"k", "v"}});
        CHECK_ERROR("not a checkpoint", load_checkpoint(dir / "model.safetensors"));
        CHECK_ERROR("at least 0", save_checkpoint(dir.path(), -1, state_of(1), 1));
        CHECK_ERROR("keep at least 1", save_checkpoint(dir.path(), 1, state_of(1), 0));
        overwrite(dir / "file", "");
        CHECK_ERROR(dir / "file", save_checkpoint(dir / "file", 1, state_of(1), 1));
    }
}

} // namespace rg
