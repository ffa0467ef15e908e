// Tests files of PyTorch's torch.save(): two that PyTorch has written, and files made of pickle instructions here,
// which also break the format in each way. tests/e2e/files.py compares more files with PyTorch, where that is
// installed.
#include "core/torch_file.h"
#include "tests/op_check.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <cstring>
#include <doctest/doctest.h>

namespace rg {
namespace {

/// Two files, in hexadecimal, that torch.save(Linear(2, 1).state_dict()) of PyTorch 1.13 has written: one in the older
/// format, and a zip file. The weight is [[1, -2]] and the bias [0.5].
constexpr const char* kFiles[] = {
    "80028a0a6cfc9c46f9206aa850192e80024de9032e80027d710028581000000070726f746f636f6c5f76657273696f6e71014de9"
    "03580d0000006c6974746c655f656e6469616e710288580a000000747970655f73697a657371037d710428580500000073686f72"
    "7471054b025803000000696e7471064b0458040000006c6f6e6771074b0475752e800263636f6c6c656374696f6e730a4f726465"
    "726564446963740a710029527101285806000000776569676874710263746f7263682e5f7574696c730a5f72656275696c645f74"
    "656e736f725f76320a71032828580700000073746f72616765710463746f7263680a466c6f617453746f726167650a7105580a00"
    "0000313032353133303735327106580300000063707571074b024e747108514b004b014b028671094b024b0186710a8968002952"
    "710b74710c52710d580400000062696173710e6803282868046805580a00000031303235313331343732710f68074b014e747110"
    "514b004b018571114b0185711289680029527113747114527115757d711658090000005f6d657461646174617117680029527118"
    "580000000071197d711a580700000076657273696f6e711b4b01737373622e80025d710028580a00000031303235313330373532"
    "7101580a000000313032353133313437327102652e02000000000000000000803f000000c001000000000000000000003f",
    "504b0304000008080000000000000000000000000000000000000a001800612f646174612e706b6c464214005a5a5a5a5a5a5a5a"
    "5a5a5a5a5a5a5a5a5a5a5a5a800263636f6c6c656374696f6e730a4f726465726564446963740a71002952710128580600000077"
    "6569676874710263746f7263682e5f7574696c730a5f72656275696c645f74656e736f725f76320a71032828580700000073746f"
    "72616765710463746f7263680a466c6f617453746f726167650a71055801000000307106580300000063707571074b0274710851"
    "4b004b014b028671094b024b0186710a8968002952710b74710c52710d580400000062696173710e680328286804680558010000"
    "0031710f68074b01747110514b004b018571114b0185711289680029527113747114527115757d711658090000005f6d65746164"
    "6174617117680029527118580000000071197d711a580700000076657273696f6e711b4b01737373622e504b0708a70b10142201"
    "000022010000504b03040000080800000000000000000000000000000000000008002800612f646174612f30464224005a5a5a5a"
    "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a0000803f000000c0504b0708562687c308000000"
    "08000000504b03040000080800000000000000000000000000000000000008004200612f646174612f3146423e005a5a5a5a5a5a"
    "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
    "5a5a5a5a0000003f504b070821f222970400000004000000504b0304000008080000000000000000000000000000000000000900"
    "0500612f76657273696f6e464201005a330a504b0708d19e67550200000002000000504b0102000000000808000000000000a70b"
    "101422010000220100000a0000000000000000000000000000000000612f646174612e706b6c504b010200000000080800000000"
    "0000562687c30800000008000000080000000000000000000000000072010000612f646174612f30504b01020000000008080000"
    "0000000021f2229704000000040000000800000000000000000000000000d8010000612f646174612f31504b0102000000000808"
    "000000000000d19e67550200000002000000090000000000000000000000000054020000612f76657273696f6e504b06062c0000"
    "00000000001e032d00000000000000000004000000000000000400000000000000db000000000000009202000000000000504b06"
    "07000000006d0300000000000001000000504b05060000000004000400db000000920200000000"};

std::string from_hex(std::string_view digits) {
    std::string bytes;
    for (size_t i = 0; i < digits.size(); i += 2)
        bytes += char(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
    return bytes;
}

/// Returns the number as little-endian bytes.
std::string le(uint64_t value, size_t size) {
    std::string bytes(std::max(size, sizeof value), '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes.substr(0, size);
}

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
    return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

// Instructions of a pickle that push a value.
std::string text(const std::string& value) { return "X" + le(value.size(), 4) + value; }
std::string number(int64_t value) { return "J" + le(uint64_t(value), 4); }
std::string call(const std::string& module, const std::string& name) { return "c" + module + "\n" + name + "\n"; }
std::string tuple(const std::vector<std::string>& items) {
    std::string all = "(";
    for (const std::string& item : items) all += item;
    return all + "t";
}
std::string tuple(const std::vector<int64_t>& values) {
    std::vector<std::string> items;
    for (const int64_t value : values) items.push_back(number(value));
    return tuple(items);
}
using Dict = std::vector<std::pair<std::string, std::string>>;
std::string dict(const Dict& entries) {
    std::string all = "}(";
    for (const auto& [key, value] : entries) all += text(key) + value;
    return all + "u";
}
std::string storage(const std::string& type, const std::string& key, int64_t count) {
    return tuple({text("storage"), call("torch", type + "Storage"), text(key), text("cpu"), number(count)}) + "Q";
}
std::string tensor(const std::string& of, int64_t offset, const std::vector<int64_t>& extents,
                   const std::vector<int64_t>& strides) {
    return call("torch._utils", "_rebuild_tensor_v2") +
           tuple({of, number(offset), tuple(extents), tuple(strides), "\x89",
                  call("collections", "OrderedDict") + ")R"}) +
           "R";
}
/// A tensor of one value, in the storage "0" of F32.
std::string one(int64_t offset = 0) { return tensor(storage("Float", "0", 2), offset, {}, {}); }

std::string pickle(const std::string& value) { return "\x80\2" + value + "."; }

/// Values of storages by key.
using Data = std::vector<std::pair<std::string, std::string>>;

std::string zip(const Data& members, uint64_t method = 0, uint64_t size = 0) {
    std::string file, directory;
    for (const auto& [name, bytes] : members) {
        const std::string sizes = le(size ? size : bytes.size(), 4) + le(size ? size : bytes.size(), 4);
        directory += "PK\1\2" + le(0, 6) + le(method, 2) + le(0, 8) + sizes + le(name.size(), 2) + le(0, 12) +
                     le(file.size(), 4) + name;
        file += "PK\3\4" + le(0, 4) + le(method, 2) + le(0, 8) + sizes + le(name.size(), 2) + le(3, 2) + name + "pad" +
                bytes;
    }
    return file + directory + "PK\5\6" + le(0, 4) + le(members.size(), 2) + le(members.size(), 2) +
           le(directory.size(), 4) + le(file.size(), 4) + le(0, 2);
}

std::string zip_file(const std::string& value, const Data& data, const std::string& order = "little") {
    Data members = {{"net/data.pkl", pickle(value)}, {"net/byteorder", order}, {"net/version", "3\n"}};
    for (const auto& [key, bytes] : data) members.push_back({"net/data/" + key, bytes});
    return zip(members);
}

/// The same in the older format. `width`: bytes per value.
std::string stream_file(const std::string& value, const Data& data, size_t width = 4,
                        const std::string& order = "\x88") {
    std::string keys = "](", values;
    for (const auto& [key, bytes] : data) keys += text(key), values += le(bytes.size() / width, 8) + bytes;
    return pickle("\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19") + pickle("M\xE9\3") +
           pickle(dict({{"protocol_version", number(1001)}, {"little_endian", order}})) + pickle(value) +
           pickle(keys + "e") + values;
}

TensorFile decode(const std::string& bytes) {
    REQUIRE(is_torch_file(bytes));
    return decode_torch_file(bytes, "f.pth");
}
std::string error_of_file(const std::string& bytes) {
    return error_of([&] { decode(bytes); });
}
std::string names_of(const TensorFile& file) {
    std::string names;
    for (const NamedTensor& t : file.tensors) names += t.name + " ";
    return names;
}

const Data kTwo = {{"0", bytes_of({1.0f, 2.0f})}};

} // namespace

TEST_SUITE("core") {
    TEST_CASE("torch file: reads the files that PyTorch has written") {
        for (const char* digits : kFiles) {
            const TensorFile file = decode(from_hex(digits));
            CHECK(file.source == "f.pth");
            CHECK(file.metadata.empty());
            CHECK(names_of(file) == "weight bias ");
            CHECK(file.tensor("weight", DType::f32, {1, 2}).shape() == Shape{1, 2});
            CHECK(list(file.tensors[0].value) == Floats{1, -2});
            CHECK(list(file.tensor("bias", DType::f32, {1})) == Floats{0.5});
        }
    }

    TEST_CASE("torch file: reads every type in both formats") {
        struct Case {
            const char* type;
            std::string bytes;
            Tensor expected;
        };
        const auto of = []<class T>(std::initializer_list<T> values) {
            return Tensor::of<T>({int64_t(values.size())}, {values.begin(), values.size()});
        };
        const float inf = INFINITY, smallest = 0x1p-24f;
        const Case cases[] = {
            {"Float", bytes_of({1.5f, -2.0f}), of({1.5f, -2.0f})},
            {"Double", bytes_of({1.5, -2.0}), of({1.5, -2.0})},
            {"Long", bytes_of<int64_t>({-1, int64_t{1} << 40}),
             of(std::initializer_list<int64_t>{-1, int64_t{1} << 40})},
            {"Int", bytes_of<int32_t>({-1, 7}), of({-1, 7})},
            {"Byte", bytes_of<uint8_t>({0, 255}), of(std::initializer_list<uint8_t>{0, 255})},
            {"Bool", bytes_of<uint8_t>({0, 1}), of(std::initializer_list<uint8_t>{0, 1})},
            {"BFloat16", bytes_of<uint16_t>({0x3F80, 0xC020}), of({1.0f, -2.5f})},
            // 1, -2.5, the largest, the smallest normal, the smallest and the largest subnormal value, -0, infinities
            {"Half", bytes_of<uint16_t>({0x3C00, 0xC100, 0x7BFF, 0x0400, 1, 0x83FF, 0x8000, 0x7C00, 0xFC00}),
             of({1.0f, -2.5f, 65504.0f, 0x1p-14f, smallest, -1023 * smallest, -0.0f, inf, -inf})},
        };
        for (const Case& c : cases) {
            CAPTURE(c.type);
            const int64_t count = c.expected.numel();
            const std::string value = dict({{"w", tensor(storage(c.type, "0", count), 0, {count}, {1})}});
            for (const std::string& file : {zip_file(value, {{"0", c.bytes}}),
                                            stream_file(value, {{"0", c.bytes}}, c.bytes.size() / size_t(count))})
                CHECK(same_bits(decode(file).tensors.at(0).value, c.expected));
        }
        const std::string nan = dict({{"w", tensor(storage("Half", "0", 1), 0, {}, {})}});
        CHECK(std::isnan(*decode(zip_file(nan, {{"0", le(0x7E01, 2)}})).tensors[0].value.data<float>()));
    }

    TEST_CASE("torch file: copies views of a storage") {
        const std::string all = storage("Float", "0", 6);
        const std::string value = dict({{"rows", tensor(all, 0, {2, 3}, {3, 1})},
                                        {"columns", tensor(all, 0, {3, 2}, {1, 3})},
                                        {"second", tensor(all, 3, {3}, {1})},
                                        {"every other", tensor(all, 1, {1, 1, 3, 1}, {7, 9, 2, 0})},
                                        {"repeated", tensor(all, 5, {2, 2}, {0, 0})},
                                        {"scalar", tensor(all, 4, {}, {})},
                                        {"empty", tensor(all, 0, {2, 0}, {1, 1})}});
        const Data data = {{"0", bytes_of({0.f, 1.f, 2.f, 3.f, 4.f, 5.f})}};
        for (const std::string& bytes : {zip_file(value, data), stream_file(value, data)}) {
            const TensorFile file = decode(bytes);
            CHECK(list(file.tensor("rows", DType::f32, {2, 3})) == Floats{0, 1, 2, 3, 4, 5});
            CHECK(list(file.tensor("columns", DType::f32, {3, 2})) == Floats{0, 3, 1, 4, 2, 5});
            CHECK(list(file.tensor("second", DType::f32, {3})) == Floats{3, 4, 5});
            CHECK(list(file.tensor("every other", DType::f32, {1, 1, 3, 1})) == Floats{1, 3, 5});
            CHECK(list(file.tensor("repeated", DType::f32, {2, 2})) == Floats{5, 5, 5, 5});
            CHECK(list(file.tensor("scalar", DType::f32, {})) == Floats{4});
            CHECK(file.tensor("empty", DType::f32, {2, 0}).numel() == 0);
        }
    }

    TEST_CASE("torch file: finds the only state dict of a training, and removes the prefix of DataParallel") {
        const std::string state = dict({{"a", one()}, {"b", one(1)}});
        const auto names = [](const std::string& value) { return names_of(decode(zip_file(value, kTwo))); };
        const auto error = [](const std::string& value) { return error_of_file(zip_file(value, kTwo)); };
        const std::string momentum = dict({{"state", dict({{"0", state}})},
                                           {"lr", "G12345678"},
                                           {"seed", "\x8A\x09"
                                                    "123456789"}});
        CHECK(names(dict(
                  {{"epoch", number(3)}, {"model", state}, {"optimizer", momentum}, {"rng", one()}, {"best", "N"}})) ==
              "a b ");
        // Under two keys, but the same: index 7 of the memo
        CHECK(names(dict({{"model", state + "q\7"}, {"ema", "h\7"}})) == "a b ");
        CHECK(error(dict({{"model", state}, {"ema", dict({{"a", one()}})}})) ==
              Containing{"f.pth: expected one of model and ema; "});
        CHECK(error(dict({{"epoch", number(3)}})) ==
              Containing{"f.pth: expected a state dict, got a dict without one; write one by"});
        CHECK(error("}") == Containing{"got a dict without one"});
        CHECK(error(dict({{"a", dict({{"model", state}})}})) == Containing{"got a dict without one"});
        CHECK(error(one()) == Containing{"expected a state dict, got another value"});
        CHECK(names(dict({{"module.a", one()}, {"module.b.module.c", one()}})) == "a b.module.c ");
        CHECK(names(dict({{"module.a", one()}, {"b", one()}})) == "module.a b ");
        CHECK(error(dict({{"module.", one()}})) == Containing{"expected distinct names of tensors in UTF-8, got \"\""});
        CHECK(error(dict({{"a", one()}, {"a", one(1)}})) == Containing{"expected distinct names", "got \"a\""});
        CHECK(error(dict({{"\xff", one()}})) == Containing{"expected distinct names of tensors in UTF-8"});
        // OrderedDict with attributes, parameters of this and of the first PyTorch, and the two forms of the memo
        const std::string first =
            call("torch._utils", "_rebuild_tensor") + tuple({storage("Float", "0", 2), number(1), ")", ")"}) + "R";
        CHECK(names(call("collections", "OrderedDict") + ")Rr" + le(1000, 4) + "(" + text("x") +
                    call("torch._utils", "_rebuild_parameter") + tuple({one(), "\x88", "}"}) + "R" + text("y") +
                    call("torch.nn.parameter", "Parameter") + first + "\x85R" + tuple({"\x88", "\x89", "}"}) + "buj" +
                    le(1000, 4) + "}" + text("_metadata") + "}sb") == "x y ");
    }

    TEST_CASE("torch file: executes nothing, and names what a file would call") {
        for (const auto& [module, name] : {std::pair("os", "system"),
                                           {"torchvision.models.resnet", "ResNet"},
                                           {"builtins", "eval"},
                                           {"torch._utils", "_rebuild_qtensor"},
                                           {"torch", "ShortStorage"},
                                           {"", ""}}) {
            const std::string value = dict({{"a", call(module, name) + text("echo") + "\x85R"}});
            for (const std::string& file : {zip_file(value, {}), stream_file(value, {})})
                CHECK(error_of_file(file) ==
                      Containing{cat("f.pth: expected a state dict, got a call of ", module, ".", name,
                                     "; write one by torch.save(model.state_dict(), FILE)")});
        }
        // Instructions that call or make other things: INST, OBJ, NEWOBJ, EXT1, EMPTY_SET, STRING, POP, a frame of
        // protocol 4
        for (const char* instruction : {"i", "o", "\x81", "\x82", "\x8F", "S", "0", "\x95"})
            CHECK(error_of_file(zip_file(instruction, {})) ==
                  Containing{"f.pth: expected instructions of a state dict, got other"});
    }

    TEST_CASE("torch file: has a message for each violation of the format") {
        const auto w = [](const std::string& value) { return dict({{"w", value}}); };
        const auto view = [&](int64_t offset, const std::vector<int64_t>& extents,
                              const std::vector<int64_t>& strides) {
            return zip_file(w(tensor(storage("Float", "0", 2), offset, extents, strides)), kTwo);
        };
        const std::string outside = "f.pth: tensor w: expected a view within its storage, got other bytes";
        const int64_t most = INT32_MAX;
        std::string many = dict({{"w0", tensor(storage("Byte", "0", 1000), 0, {1000}, {1}) + "q\1"}});
        for (int i = 1; i < 10; ++i) many += text(cat("w", i)) + "h\1s";
        struct Case {
            std::string bytes, message;
        };
        const Case cases[] = {
            {view(2, {}, {}), outside},
            {view(-1, {}, {}), outside},
            {view(1, {2}, {1}), outside},
            {view(0, {3}, {0}), outside}, // more values than the storage has
            {view(0, {2}, {-1}), outside},
            {view(0, {-2}, {1}), outside},
            {view(0, {2}, {}), outside},
            {view(0, {1, 2}, {1, most}), outside},
            {view(0, {most, most, most, most}, {0, 0, 0, 0}), outside},
            {view(0, {most, most, most, 0}, {0, 0, 0, 0}), outside},
            {view(0, {2, 2, 2, 2}, {most, most, most, most}), outside},
            {view(0, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}),
             "f.pth: tensor w: expected at most 4 extents, got 5; reshape the tensor"},
            {zip_file(w(one()), {}), outside}, // the storage is missing
            {zip_file(w(one()), {{"0", "1234567"}}), outside},
            {zip_file(w(one()), {{"0", "123456789"}}), outside},
            {stream_file(w(one()), {}), outside},
            {stream_file(w(one()), {{"1", "12345678"}}), "f.pth: expected a storage of the state dict, got other"},
            {stream_file(w(one()), {{"0", "1234"}}), "f.pth: expected a storage of the state dict, got other"},
            {zip_file(w(tensor(storage("Float", "0", most), 0, {}, {})), kTwo), "f.pth: expected a storage, got"},
            {zip_file(w(tensor(storage("Float", "0", -1), 0, {}, {})), kTwo), "f.pth: expected a storage, got"},
            {zip_file(dict({{"a", one()}, {"b", tensor(storage("Half", "0", 2), 0, {}, {})}}), kTwo),
             "f.pth: expected a storage, got"},
            {zip_file(w(")Q"), {}), "f.pth: expected a persistent id, got"},
            {zip_file(w(call("torch._utils", "_rebuild_tensor_v2") + "N\x85R"), {}),
             "f.pth: expected the arguments of a tensor, got"},
            {zip_file(w("N)R"), {}), "f.pth: expected a call, got"},
            {zip_file(many, {{"0", std::string(1000, 'x')}}), "f.pth: tensor w"},
            {zip_file(many, {{"0", std::string(1000, 'x')}}), "expected tensors of at most 4 times the file's size"},
            {zip_file(w(one()), kTwo, "big"), "f.pth: expected little-endian values"},
            {stream_file(w(one()), kTwo, 4, "\x89"), "f.pth: expected little-endian values"},
            {zip({{"net/data.pkl", "\x80\4."}}), "f.pth: expected protocol 2, got other bytes (before offset 47); the file is damaged, or of another "
                                                "protocol; write one by torch.save(model.state_dict(), FILE)"},
            {zip({{"net/data.pkl", pickle(w(one()))}}, 8),
             "f.pth: expected a member without compression, got net/data.pkl; write"},
            {zip({{"net/data.pkl", pickle(w(one()))}}, 0, UINT32_MAX),
             "f.pth: expected 4294967295 bytes at offset"}, // zip64
            {zip({{"a.txt", "hello"}}), "f.pth: expected data.pkl in the zip file, got none; write one"},
            {zip({{"a", "1"}, {"a", "2"}}), "f.pth: expected distinct members of a zip file"},
            {std::string("PK\3\4\0\0\0\0", 8), "f.pth: expected the directory at the end of a zip file"},
            {zip_file("", {}), "f.pth: expected a value, got"},
            {zip_file("t", {}), "f.pth: expected a mark, got"},
            {zip_file("\x87", {}), "f.pth: expected more values, got"},
            {zip_file("]s", {}), "f.pth: expected more values, got"},
            {zip_file("]NNs", {}), "f.pth: expected a list or a dict, got"},
            {zip_file("}(Nu", {}), "f.pth: expected a list or a dict, got"},
            {zip_file("(NNu", {}), "f.pth: expected a list or a dict, got"},
            {zip({{"net/data.pkl", pickle("").substr(0, 2) + std::string(10'000'001, ']')}}),
             "the end of a pickle of at most 10 MB"},
        };
        for (const Case& c : cases) {
            const std::string error = error_of_file(c.bytes);
            INFO("message ", c.message, ", error ", error);
            CHECK(contains(error, c.message));
            CHECK(error.starts_with("f.pth: "));
        }
        CHECK_FALSE(is_torch_file("\x80\2}."));
        CHECK_FALSE(is_torch_file(""));
    }

    TEST_CASE("torch file: takes depth and cycles") {
        const int depth = 100'000;
        std::string lists, tuples = "N";
        for (int i = 0; i < depth; ++i) lists += "](", tuples += "\x85";
        for (int i = 0; i < depth; ++i) lists += "e";
        const Dict deep = {{"a", lists}, {"b", tuples}, {"c", "]q\1h\1a"}, {"d", "}q\2" + text("d") + "h\2s"}};
        CHECK(error_of_file(zip_file(dict(deep), {})) == Containing{"got a dict without one"});
        Dict with_state = deep;
        with_state.push_back({"model", dict({{"w", one()}})});
        CHECK(names_of(decode(stream_file(dict(with_state), kTwo))) == "w ");
    }

    TEST_CASE("torch file: rejects every truncation, and reads or rejects every changed byte") {
        const std::string value = dict({{"epoch", number(3)}, {"net", dict({{"a", one()}, {"b", one(1)}})}});
        for (const std::string& good :
             {from_hex(kFiles[0]), from_hex(kFiles[1]), zip_file(value, kTwo), stream_file(value, kTwo)}) {
            for (size_t n = 0; n < good.size(); ++n) {
                CAPTURE(n);
                CHECK_FALSE(error_of([&] { decode_torch_file(good.substr(0, n), "f.pth"); }).empty());
            }
            for (size_t i = 0; i < good.size(); ++i)
                for (int bit = 0; bit < 8; ++bit) {
                    std::string bad = good;
                    bad[i] = char(bad[i] ^ 1 << bit);
                    error_of([&] { decode_torch_file(bad, "f.pth"); }); // sanitizers detect a crash
                }
        }
    }
}

} // namespace rg
