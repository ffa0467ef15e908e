// Tests JSON: valid texts, errors with their offsets, and round trips bit for bit.
#include "core/json.h"
#include "core/rng.h"
#include "tests/temp_dir.h"

#include <bit>
#include <cmath>
#include <doctest/doctest.h>
#include <limits>

namespace rg {
namespace {

Json parse(std::string_view text) { return Json::parse(text, "t"); }

/// Returns a random value. Deeper levels have fewer arrays and objects.
Json random_json(Rng& rng, int depth) {
    switch (rng.uniform_below(depth > 3 ? 5 : 7)) {
    case 0: return nullptr;
    case 1: return rng.uniform_below(2) == 1;
    case 2: return int64_t(uint64_t{rng.next()} << 32 | rng.next());
    case 3: {
        const double v = std::bit_cast<double>(uint64_t{rng.next()} << 32 | rng.next());
        return std::isfinite(v) ? Json(v) : Json(7.0);
    }
    case 4: {
        std::string s;
        const std::string letters("a\"\\\n\x01\x7f\xc3\xa9", 8);
        for (uint32_t n = rng.uniform_below(6); n > 0; --n) s += letters[rng.uniform_below(6)];
        return s + "\xf0\x9f\x98\x80\xe2\x82\xac";
    }
    case 5: {
        Json a = Json::array();
        for (uint32_t n = rng.uniform_below(4); n > 0; --n) a.push(random_json(rng, depth + 1));
        return a;
    }
    default: {
        Json o = Json::object();
        for (uint32_t n = rng.uniform_below(4); n > 0; --n)
            o.set(cat("k", rng.uniform_below(100)), random_json(rng, depth + 1));
        return o;
    }
    }
}

} // namespace

TEST_SUITE("core") {
    TEST_CASE("json: reads every kind of value") {
        const Json j = parse(" {\"n\": null, \"t\": true, \"f\": false, \"i\": -12, \"d\": 2.5e-3, "
                             "\"s\": \"a\\n\\u00e9\\ud83d\\ude00\\/\", \"a\": [1, [], {}]} \n");
        CHECK(j.at("n").is_null());
        CHECK(j.at("t").as_bool());
        CHECK_FALSE(j.at("f").as_bool());
        CHECK(j.at("i").as_int() == -12);
        CHECK(j.at("i").as_double() == -12.0);
        CHECK(j.at("d").as_double() == 2.5e-3);
        CHECK_FALSE(j.at("d").is_int());
        CHECK(j.at("s").as_string() == "a\n\xc3\xa9\xf0\x9f\x98\x80/");
        CHECK(j.at("a").as_array().size() == 3);
        CHECK(j.find("x") == nullptr);
        CHECK(j.as_object()[1].first == "t"); // members keep their order
        CHECK_ERROR("\"x\"", j.at("x"));
        CHECK_ERROR("expected an integer, got a string", j.at("s").as_int());
    }

    TEST_CASE("json: keeps 64-bit integers exact and doubles bit-exact") {
        CHECK(parse("9223372036854775807").as_int() == std::numeric_limits<int64_t>::max());
        CHECK(parse("-9223372036854775808").as_int() == std::numeric_limits<int64_t>::min());
        CHECK_FALSE(parse("9223372036854775808").is_int());
        CHECK(parse("9223372036854775808").as_double() == 9223372036854775808.0);
        CHECK(std::signbit(parse("-0").as_double()));
        for (double v : {0.1, 1.0 / 3, 1e-10, 1.7976931348623157e308, 5e-324, 2.302585092994046, 123456789.125, -0.0}) {
            CAPTURE(v);
            CHECK(std::bit_cast<uint64_t>(parse(Json(v).dump()).as_double()) == std::bit_cast<uint64_t>(v));
        }
        CHECK(Json(0.1).dump() == "0.1");
        CHECK(Json(2500.0).dump() == "2500.0");
        CHECK(Json(1e300).dump() == "1e+300");
        CHECK(Json(std::nan("")).dump() == "null");
        CHECK(Json(-std::numeric_limits<double>::infinity()).dump() == "null");
    }

    TEST_CASE("json: writes one line or an indented text") {
        const Json j =
            Json().set("step", 1).set("loss", 2.25).set("list", Json().push(1).push("x")).set("e", Json::array());
        CHECK(j.dump() == "{\"step\": 1, \"loss\": 2.25, \"list\": [1, \"x\"], \"e\": []}");
        CHECK(j.dump(2) ==
              "{\n  \"step\": 1,\n  \"loss\": 2.25,\n  \"list\": [\n    1,\n    \"x\"\n  ],\n  \"e\": []\n}");
        CHECK(Json("\"\\\n\x01").dump() == "\"\\\"\\\\\\n\\u0001\"");
        Json twice = Json().set("a", 1);
        CHECK(twice.set("a", 2).dump() == "{\"a\": 2}");
        CHECK_ERROR("expected an object", Json(1).set("a", 1));
    }

    TEST_CASE("json: reads back what it wrote") {
        Rng rng(7, Purpose::test);
        for (int i = 0; i < 300; ++i) {
            const Json j = random_json(rng, 0);
            CAPTURE(j.dump());
            CHECK(parse(j.dump()) == j);
            CHECK(parse(j.dump(3)) == j);
        }
    }

    TEST_CASE("json: rejects what RFC 8259 rejects") {
        const std::pair<const char*, const char*> cases[] = {
            {"", "the end at offset 0"},
            {"tru", "expected a value, got 't' at offset 0"},
            {"[1,]", "expected a value, got ']' at offset 3"},
            {"[1 2]", "expected ',' or ']', got '2' at offset 3"},
            {"{\"a\" 1}", "expected ':', got '1' at offset 5"},
            {"{\"a\": 1,}", "expected a key in quotes, got '}' at offset 8"},
            {"{a: 1}", "expected a key in quotes, got 'a' at offset 1"},
            {"{\"a\": 1, \"b\": 2, \"a\": 3}", "\"a\" twice"},
            {"01", "expected the end of the text, got '1' at offset 1"},
            {"1.", "expected a digit, got the end at offset 2"},
            {".5", "expected a value"},
            {"+1", "expected a value"},
            {"1e", "expected a digit"},
            {"-", "expected a digit"},
            {"1e999", "outside the range of a double at offset 0"},
            {"NaN", "expected a value"},
            {"\"a\nb\"", "no control character"},
            {"\"abc", "at the end of a string, got the end at offset 4"},
            {"\"\\x\"", "an escape"},
            {"\"\\u12g4\"", "four hexadecimal digits, got 'g' at offset 5"},
            {"\"\\udc00\"", "a high surrogate"},
            {"\"\\ud800x\"", "the low surrogate"},
            {"\"\\ud800\\u0041\"", "a low surrogate"},
            {"\"\xff\"", "valid UTF-8, got byte 255 at offset 1"},
            {"\"\xc0\x80\"", "valid UTF-8"},
            {"\"\xe0\x80\x80\"", "valid UTF-8"},
            {"\"\xed\xa0\x80\"", "valid UTF-8"},
            {"\"\xf4\x90\x80\x80\"", "valid UTF-8"},
            {"\"\xe2\x82\"", "valid UTF-8"},
            {"1 // c", "the end of the text"},
        };
        for (const auto& c : cases) {
            CAPTURE(c.first);
            const std::string error = error_of([&] { parse(c.first); });
            CAPTURE(error);
            CHECK(contains(error, c.second));
            CHECK(error.starts_with("t: json: "));
        }
        CHECK_ERROR("got byte 0 at offset 1", parse(std::string_view("1\0", 2)));
    }

    TEST_CASE("json: limits the depth") {
        const auto nested = [](int n) { return std::string(size_t(n), '[') + std::string(size_t(n), ']'); };
        CHECK(error_of([&] { parse(nested(Json::kMaxDepth)); }).empty());
        CHECK_ERROR("nesting deeper than 64 at offset 64", parse(nested(Json::kMaxDepth + 1)));
        CHECK_FALSE(error_of([&] { parse(std::string(1000000, '[')); }).empty());
    }

    TEST_CASE("json: writes any text so that it can be read back") {
        CHECK(Json("a\xff"
                   "b")
                  .dump() == "\"a\\udcffb\"");
        CHECK(Json("\xe2\x82").dump() == "\"\\udce2\\udc82\"");
        CHECK_ERROR("a high surrogate before the low one", parse("\"\\udc7f\""));
        CHECK_ERROR("a high surrogate before the low one", parse("\"\\udd00\""));
        CHECK(Json("\xe2\x82\xac").dump() == "\"\xe2\x82\xac\"");
        for (const char* bad :
             {"\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x9f\x98", "\x80"}) {
            const Json object = Json::object().set(bad, std::string(bad) + "x");
            const Json read = parse(object.dump());
            CHECK(read == object);
        }
    }

    TEST_CASE("json: parses or rejects every truncation and every changed byte") {
        const std::string good = "{\"a\": [1, -2.5e3, \"\\u00e9\xc3\xa9\", true, null], \"b\": {\"c\": \"\\\\\"}}";
        for (size_t n = 0; n < good.size(); ++n) {
            CAPTURE(n);
            CHECK_FALSE(error_of([&] { parse(std::string_view(good).substr(0, n)); }).empty());
        }
        for (size_t i = 0; i < good.size(); ++i)
            for (int byte = 0; byte < 256; ++byte) {
                std::string bad = good;
                bad[i] = char(byte);
                Json value;
                if (error_of([&] { value = parse(bad); }).empty()) CHECK(parse(value.dump()) == value);
            }
    }
}

} // namespace rg
