// Tests safetensors files: exact bytes, round trips of every type and rank, and a message for each violation of the
// format. Also tests atomic files; a limit of the file size stands for a full disk.
#include "core/atomic_file.h"
#include "core/safetensors.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <cstring>
#include <doctest/doctest.h>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

namespace rg {
namespace {

/// Returns a tensor whose bytes differ from their neighbours and depend on `salt`.
Tensor patterned(const Shape& shape, DType type, int salt) {
    Tensor t = Tensor::empty(shape, type);
    for (int64_t i = 0; i < t.bytes(); ++i) t.bytes_data()[i] = std::byte(i * 7 + salt * 31 + 1);
    return t;
}

/// Returns a file with this header and this number of data bytes.
std::string raw(const std::string& header, size_t data_bytes) {
    std::string bytes(8, '\0');
    const uint64_t length = header.size();
    std::memcpy(bytes.data(), &length, 8);
    return bytes + header + std::string(data_bytes, 'd');
}

std::string error_of_file(const std::string& bytes) {
    return error_of([&] { decode_tensors(bytes, "f"); });
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("safetensors: writes the bytes of the format") {
        const float values[] = {1.0f, -2.0f};
        const std::string bytes = encode_tensors({{"w", Tensor::of<float>({1, 2}, values)}}, {{"k", "v"}});
        const std::string header =
            "{\"__metadata__\": {\"checksum\": \"7c093df626a8e212\", \"tensor_checksums\": "
            "\"62791a9c5a5a3fdd\", \"k\": \"v\"}, \"w\": {\"dtype\": \"F32\", \"shape\": [1, 2], "
            "\"data_offsets\": [0, 8]}}";
        const size_t padded = (header.size() + 7) / 8 * 8;
        REQUIRE(bytes.size() == 8 + padded + 8);
        CHECK(bytes.substr(0, 8) == std::string{char(padded), 0, 0, 0, 0, 0, 0, 0});
        CHECK(bytes.substr(8, padded) == header + std::string(padded - header.size(), ' '));
        CHECK(bytes.substr(8 + padded) == std::string("\0\0\x80\x3f\0\0\0\xc0", 8));
    }

    TEST_CASE("safetensors: loads every type, rank and empty shape in order") {
        std::vector<NamedTensor> tensors;
        int salt = 0;
        for (DType type : {DType::u8, DType::f32, DType::bf16, DType::i32, DType::f64, DType::i64})
            for (const Shape& shape : {Shape{}, Shape{3}, Shape{2, 5}, Shape{1, 3, 1}, Shape{2, 1, 3, 5}, Shape{0, 4}})
                tensors.push_back(
                    {cat(name_of(type), ".", shape.str(), " \"\xc3\xa9\\"), patterned(shape, type, ++salt)});
        const Metadata metadata = {{"b", "2"}, {"a", "line\n\"quoted\""}, {"", ""}};
        TempDir dir;
        save_tensors(dir / "all.safetensors", tensors, metadata);
        const TensorFile back = load_tensors(dir / "all.safetensors");
        CHECK(back.metadata == metadata);
        CHECK(back.source == dir / "all.safetensors");
        REQUIRE(back.tensors.size() == tensors.size());
        for (size_t i = 0; i < tensors.size(); ++i) {
            CAPTURE(tensors[i].name);
            CHECK(back.tensors[i].name == tensors[i].name);
            CHECK(same_bits(back.tensors[i].value, tensors[i].value));
        }
        CHECK(decode_tensors(encode_tensors({}, {}), "none").tensors.empty());
    }

    TEST_CASE("safetensors: aligns each tensor to its element size") {
        const TensorFile back = decode_tensors(
            encode_tensors({{"a", patterned({3}, DType::u8, 1)}, {"b", patterned({}, DType::i64, 2)}}, {}), "f");
        CHECK(same_bits(back.tensors[0].value, patterned({3}, DType::u8, 1)));
        const std::string bytes =
            encode_tensors({{"a", patterned({3}, DType::u8, 1)}, {"b", patterned({}, DType::i64, 2)}}, {});
        CHECK(contains(bytes, "\"a\": {\"dtype\": \"U8\", \"shape\": [3], \"data_offsets\": [8, 11]}"));
        CHECK(contains(bytes, "\"b\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [0, 8]}"));
    }

    TEST_CASE("safetensors: reads files with other spacing and order") {
        const TensorFile f = decode_tensors(raw("{\"b\":{\"data_offsets\":[4,8],\"shape\":[],\"dtype\":\"F32\"},"
                                                "\"a\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}}   ",
                                                8),
                                            "f");
        CHECK(f.tensors[0].name == "b");
        CHECK(f.tensors[1].value.shape() == Shape{2, 2});
    }

    TEST_CASE("safetensors: states what a lookup expected") {
        const TensorFile f = decode_tensors(
            encode_tensors({{"w", patterned({2}, DType::f32, 1)}}, {{"n", "-12"}, {"t", "12x"}}), "my.file");
        CHECK(f.find("v") == nullptr);
        CHECK(f.tensor("w", DType::f32, {2}).numel() == 2);
        CHECK(f.number("n") == -12);
        CHECK_ERROR("my.file: expected tensor w of f32 [3], got f32 [2]", f.tensor("w", DType::f32, {3}));
        CHECK_ERROR("w of i32 [2], got f32 [2]", f.tensor("w", DType::i32, {2}));
        CHECK_ERROR("tensor v of f32 [2], got no tensor", f.tensor("v", DType::f32, {2}));
        CHECK_ERROR("expected an integer as metadata t, got \"12x\"", f.number("t"));
        CHECK_ERROR("expected metadata u, got none", f.text("u"));
    }

    TEST_CASE("safetensors: does not write what it could not read") {
        const Tensor t = patterned({2}, DType::f32, 1);
        CHECK_ERROR("\"a\" twice", encode_tensors({{"a", t}, {"a", t}}, {}));
        CHECK_ERROR("expected a tensor name", encode_tensors({{"__metadata__", t}}, {}));
        CHECK_ERROR("expected a tensor name", encode_tensors({{"", t}}, {}));
        CHECK_ERROR("got undefined a", encode_tensors({{"a", Tensor()}}, {}));
        CHECK_ERROR("\"k\" twice", encode_tensors({{"a", t}}, {{"k", "1"}, {"k", "2"}}));
        CHECK_ERROR("valid UTF-8", encode_tensors({{"\xff", t}}, {}));
        CHECK_ERROR("valid UTF-8", encode_tensors({{"a", t}}, {{"k", "\xff"}}));
    }

    TEST_CASE("safetensors: rejects names and metadata that are not UTF-8") {
        CHECK(error_of_file(raw(R"({"__metadata__": {"k": "v"}})", 0)).empty());
        for (const char* header : {R"({"__metadata__": {"k": "\udcff"}})", R"({"__metadata__": {"\udcff": "v"}})",
                                   R"({"\udcff": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})"})
            CHECK(contains(error_of_file(raw(header, 0)), "valid UTF-8"));
    }

    TEST_CASE("safetensors: has a message for each violation of the format") {
        const auto tensor = [](const std::string& body) { return "{\"a\": {" + body + "}}"; };
        const std::string f32 = "\"dtype\": \"F32\", ";
        struct Case {
            std::string bytes;
            const char* message;
        };
        const Case cases[] = {
            {"1234567", "got a file of 7"},
            {std::string(8, '\xff'), "at most 10000000 bytes, got length 18446744073709551615"},
            {"\x89PNG\r\n\x1A\n and so on", "expected a safetensors file, which has '{' at offset 8, got another file"},
            {std::string("\x81\x96\x98\0\0\0\0\0{", 9), "at most 10000000 bytes, got length 10000001"},
            {std::string("\x09\0\0\0\0\0\0\0{}", 10), "expected a header of 9 bytes, got 2"},
            {raw("", 0), "got an empty header"},
            {raw(" {}", 0), "expected '{' at offset 8"},
            {raw("{}x", 0), "header: json: expected the end of the text"},
            {raw("{\"__metadata__\": 1}", 0), "__metadata__: expected an object, got an integer"},
            {raw("{\"__metadata__\": {\"k\": 1}}", 0), "expected a string for \"k\", got an integer"},
            {raw("{\"a\": 3}", 0), "tensor a: expected an object"},
            {raw(tensor("\"dtype\": \"F32\""), 0), "tensor a: expected a shape array, got none"},
            {raw(tensor("\"shape\": [1], \"data_offsets\": [0, 4]"), 4), "expected a dtype in quotes, got none"},
            {raw(tensor("\"dtype\": \"F16\", \"shape\": [1], \"data_offsets\": [0, 2]"), 2), "got F16"},
            {raw(tensor(f32 + "\"shape\": [1]"), 4), "expected data_offsets [begin, end], got none"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [0]"), 4),
             "expected data_offsets [begin, end], got [0]"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [0, 4.5]"), 4), "got [0, 4.5]"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [0, 4], \"x\": 1"), 4), "got \"x\""},
            {raw(tensor(f32 + "\"shape\": [-1], \"data_offsets\": [0, 4]"), 4), "non-negative integers, got -1"},
            {raw(tensor(f32 + "\"shape\": [1.5], \"data_offsets\": [0, 6]"), 6), "non-negative integers, got 1.5"},
            {raw(tensor(f32 + "\"shape\": [1,1,1,1,1], \"data_offsets\": [0, 4]"), 4), "at most 4 extents, got 5"},
            {raw(tensor(f32 + "\"shape\": [4294967296, 4294967296], \"data_offsets\": [0, 0]"), 0),
             "expected less than 2^63 bytes"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [4, 0]"), 4), "0 <= begin <= end, got [4, 0]"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [-4, 0]"), 4), "0 <= begin <= end"},
            {raw(tensor(f32 + "\"shape\": [250000000], \"data_offsets\": [0, 1000000000]"), 4), "4 data bytes, got"},
            {raw(tensor(f32 + "\"shape\": [2], \"data_offsets\": [0, 4]"), 4),
             "expected 8 bytes for shape [2] of F32, got 4"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [4, 8]"), 8), "tensor a at data offset 0,"},
            {raw(tensor(f32 + "\"shape\": [1], \"data_offsets\": [0, 4]"), 6),
             "expected 4 data bytes for all tensors, got 6"},
            {raw("{}", 3), "expected 0 data bytes for all tensors, got 3"},
            {raw("{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}, "
                 "\"b\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [2, 6]}}",
                 6),
             "tensor b at data offset 4, where the tensor before it ends, got 2"},
            {raw("{\"a\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0, 1]}, "
                 "\"a\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [1, 2]}}",
                 2),
             "\"a\" twice"},
            {raw("{\"__metadata__\": {\"checksum\": \"0123456789abcdef\"}}", 0), "expected both checksum and"},
            {raw("{\"__metadata__\": {\"tensor_checksums\": \"\"}}", 0), "expected both checksum and"},
        };
        for (const Case& c : cases) {
            const std::string error = error_of_file(c.bytes);
            INFO("message ", c.message, ", error ", error);
            CHECK(contains(error, c.message));
            CHECK(error.starts_with("safetensors f: "));
        }
    }

    TEST_CASE("safetensors: rejects every truncation and every changed byte") {
        const std::string good = encode_tensors(
            {{"a", patterned({2, 3}, DType::f32, 1)}, {"b", patterned({}, DType::i64, 2)}}, {{"k", "v"}});
        CHECK(decode_tensors(good, "f").has_checksums);
        for (size_t n = 0; n < good.size(); ++n) {
            CAPTURE(n);
            CHECK_FALSE(error_of_file(good.substr(0, n)).empty());
        }
        CHECK_FALSE(error_of_file(good + "x").empty());
        for (size_t i = 0; i < good.size(); ++i)
            for (int byte = 0; byte < 256; ++byte) {
                std::string bad = good;
                bad[i] = char(byte);
                if (bad != good && error_of_file(bad).empty()) FAIL_CHECK("byte ", i, " was changed to ", byte);
            }
    }

    TEST_CASE("safetensors: reads or rejects every changed header byte of a file without checksums") {
        const std::string good =
            raw(R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
        CHECK_FALSE(decode_tensors(good, "f").has_checksums);
        for (size_t i = 0; i < good.size() - 8; ++i)
            for (int byte = 0; byte < 256; ++byte) {
                std::string bad = good;
                bad[i] = char(byte);
                error_of_file(bad); // sanitizers and the memory limit detect a crash or a large allocation
            }
    }

    TEST_CASE("safetensors: ignores the checksums that another program has copied with the metadata") {
        // Python's safetensors writes a header without spaces.
        const std::string good = encode_tensors({{"a", patterned({2}, DType::f32, 1)}}, {{"k", "v"}});
        const std::string header = good.substr(8, good.size() - 16);
        std::string compact;
        for (const char c : header)
            if (c != ' ') compact += c;
        const TensorFile file = decode_tensors(raw(compact, 8), "f");
        CHECK_FALSE(file.has_checksums);
        CHECK(file.metadata == Metadata{{"k", "v"}});
        CHECK(decode_tensors(encode_tensors(file.tensors, file.metadata), "again").has_checksums);
        CHECK(contains(error_of_file(raw(header, 8)), "of tensor a, got "));
    }

    TEST_CASE("atomic file: replaces a file, and names the cause of each error") {
        TempDir dir;
        const std::string path = dir / "file";
        write_file_atomic(path, "one");
        CHECK(read_file(path) == "one");
        const std::string two(100000, '2');
        write_file_atomic(path, two);
        CHECK(read_file(path) == two);
        write_file_atomic(path, "");
        CHECK(read_file(path).empty());
        CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1); // no temporary file is left

        CHECK_ERROR(dir / "none: No such file or directory; check the path", read_file(dir / "none"));
        CHECK_ERROR("expected a regular file, got a folder", read_file(dir.path()));
        CHECK_ERROR("expected a regular file, got a device", read_file("/dev/zero"));
        REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
        CHECK_ERROR("expected a regular file", read_file(dir / "fifo"));
        std::ofstream(dir / "long") << "12345";
        CHECK(read_file(dir / "long", 5) == "12345");
        CHECK_ERROR(dir / "long: expected at most 4 bytes, got 5", read_file(dir / "long", 4));
        std::filesystem::resize_file(dir / "long", uintmax_t{1} << 40);
        CHECK_ERROR("expected at most 8589934592 bytes", read_file(dir / "long"));
        CHECK_ERROR("expected at most 68719476736 bytes", load_tensors(dir / "long"));
        CHECK_ERROR("No such file", write_file_atomic(dir / "no/file", "x"));
        std::filesystem::create_directory(dir / "folder");
        CHECK_ERROR("cannot rename", write_file_atomic(dir / "folder", "x"));
        CHECK_FALSE(contains(std::filesystem::directory_iterator(dir.path())->path().string(), kTempMark.data()));
        // A process with the same id on another machine may have a temporary file here.
        const std::string other = cat(dir / "shared", kTempMark, ::getpid());
        std::ofstream(other) << "half";
        write_file_atomic(dir / "shared", "whole");
        CHECK(read_file(dir / "shared") == "whole");
        REQUIRE(std::filesystem::exists(other));
        CHECK(read_file(other) == "half");
    }

    TEST_CASE("atomic file: keeps the permissions of a file, and follows links only for users") {
        TempDir dir;
        const auto mode = [&](const std::string& name) {
            struct stat info {};
            REQUIRE(::stat((dir / name).c_str(), &info) == 0);
            return info.st_mode & 0777;
        };
        const mode_t before = ::umask(022);
        write_file_atomic(dir / "new", "x");
        write_file_atomic(dir / "own", "x", Readers::owner);
        CHECK(mode("new") == 0644);
        CHECK(mode("own") == 0600);
        for (const mode_t wanted : {0600, 0640, 0666, 0444}) {
            REQUIRE(::chmod((dir / "new").c_str(), wanted) == 0);
            write_file_atomic(dir / "new", "y");
            CHECK(mode("new") == wanted);
            write_file_atomic(dir / "new", "y", Readers::owner);
            CHECK(mode("new") == 0600);
            REQUIRE(::chmod((dir / "own").c_str(), wanted) == 0);
            std::filesystem::create_symlink("own", dir / "link");
            write_output(dir / "link", "z");
            CHECK(std::filesystem::is_symlink(dir / "link"));
            CHECK(read_file(dir / "own") == "z");
            CHECK(mode("own") == wanted);
            write_file_atomic(dir / "link", "new");
            CHECK_FALSE(std::filesystem::is_symlink(dir / "link"));
            CHECK(mode("link") == 0644);
            std::filesystem::remove(dir / "link");
        }
        ::umask(before);
    }

    TEST_CASE("atomic file: keeps the old file and leaves no temporary file if the disk is full") {
        TempDir dir;
        const std::string path = dir / "file";
        write_file_atomic(path, "precious");
        const std::string error = error_on_full_disk(4096, [&] { write_file_atomic(path, std::string(100000, 'x')); });
        CHECK(contains(error, "write " + path + ": cannot write all bytes (100000 bytes): File too large"));
        CHECK(read_file(path) == "precious");
        CHECK(std::distance(std::filesystem::directory_iterator(dir.path()), {}) == 1);
    }
}

} // namespace rg
