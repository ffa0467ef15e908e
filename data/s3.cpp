// One command line per client and purpose, and one parser for what each says to a listing: JSON from aws, a line of
// JSON per object from s5cmd, the XML of the protocol itself for curl. The clients' own retries are off where they can
// be: fetch() has them, and its are the ones that were asked for.
#include "data/s3.h"

#include "core/json.h"
#include "data/pipe.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <set>
#include <unistd.h>

namespace rg::data {

namespace {

constexpr std::string_view kScheme = "s3://";
// The SHA-256 of nothing: S3 wants that of the request's body among the headers, and older curls do not add it.
constexpr std::string_view kNoBody = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr const char* kClients[] = {"aws", "s5cmd", "curl"}; // by S3Client

std::string variable(const char* name, const char* otherwise = "") {
    const char* const value = std::getenv(name);
    return value && *value ? value : otherwise;
}

std::string region() { return variable("AWS_REGION", variable("AWS_DEFAULT_REGION", "us-east-1").c_str()); }

bool is_control(char c) { return uint8_t(c) < ' ' || c == '\x7f'; }

struct Place {
    std::string bucket, key;
};
Place place_of(const std::string& url) {
    RG_CHECK(url.starts_with(kScheme), "s3: expected s3://bucket/prefix, got ", url);
    const size_t slash = url.find('/', kScheme.size());
    Place place{url.substr(kScheme.size(), slash == url.npos ? slash : slash - kScheme.size()),
                slash == url.npos ? "" : url.substr(slash + 1)};
    RG_CHECK(!place.bucket.empty(), "s3: expected s3://bucket/prefix, got no bucket (", url, ")");
    return place;
}

/// Percent-encoded as the protocol's signature wants it: all but letters, digits, - . _ ~ and those in `kept`.
std::string encoded(const std::string& text, std::string_view kept) {
    static constexpr char kDigits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           std::string_view("-._~").find(c) != std::string_view::npos || kept.find(c) != kept.npos;
        out += plain ? std::string(1, c) : std::string{'%', kDigits[uint8_t(c) >> 4], kDigits[uint8_t(c) & 15]};
    }
    return out;
}

std::string aws(const std::string& arguments) {
    std::string command = variable("AWS_MAX_ATTEMPTS").empty() ? "AWS_MAX_ATTEMPTS=1 aws " : "aws ";
    command += arguments;
    if (const std::string at = variable("S3_ENDPOINT"); !at.empty()) command += " --endpoint-url " + shell_word(at);
    if (const std::string in = variable("AWS_REGION"); !in.empty()) command += " --region " + shell_word(in);
    return command;
}

bool is_pattern(const std::string& key) { return key.find_first_of("*?") != key.npos; }

std::string s5cmd(const std::string& arguments) {
    std::string command = "s5cmd --retry-count 0 ";
    if (const std::string at = variable("S3_ENDPOINT"); !at.empty())
        command += "--endpoint-url " + shell_word(at) + " ";
    return command + arguments;
}

/// The parameters of a query must be in order of their names: older curls sign them as they stand.
std::string curl(const Place& place, const std::string& object, const std::string& query) {
    const std::string at = variable("S3_ENDPOINT", cat("https://s3.", region(), ".amazonaws.com").c_str());
    const std::string target = cat(at, at.ends_with('/') ? "" : "/", encoded(place.bucket, ""), "/",
                                   encoded(object, "/"), query.empty() ? "" : "?", query);
    std::string command =
        cat("curl -sS --fail-with-body --path-as-is --connect-timeout 20 --speed-limit 1 --speed-time 60 ",
            shell_word(target));
    if (variable("AWS_ACCESS_KEY_ID").empty()) return command;
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}) {
        const std::string value = variable(name);
        RG_CHECK(std::none_of(value.begin(), value.end(), is_control) && value.find_first_of("\"\\") == value.npos,
                 "s3: expected ", name, " without quotes, backslashes and line breaks, got some; set it again");
    }
    const bool token = !variable("AWS_SESSION_TOKEN").empty();
    // printf is part of the shell: no process has the key in its arguments.
    return cat("printf 'user=\"%s:%s\"\\n", token ? "header=\"x-amz-security-token: %s\"\\n" : "",
               "' \"$AWS_ACCESS_KEY_ID\" \"$AWS_SECRET_ACCESS_KEY\"", token ? " \"$AWS_SESSION_TOKEN\"" : "", " | ",
               command, " -K - --aws-sigv4 ", shell_word(cat("aws:amz:", region(), ":s3")),
               " -H x-amz-content-sha256:", kNoBody);
}

std::string list_command(S3Client client, const std::string& url, const std::string& next) {
    const Place place = place_of(url);
    switch (client) {
    case S3Client::aws:
        return aws(cat("s3api list-objects-v2 --output json --query 'Contents[].[Key,Size]' --bucket ",
                       shell_word(place.bucket), " --prefix ", shell_word(place.key)));
    case S3Client::s5cmd:
        RG_CHECK(!is_pattern(place.key), "s3: expected a prefix without * and ?, which s5cmd takes for a pattern, got ",
                 excerpt(url), "; install aws or curl, or give a shorter prefix");
        return s5cmd("--json ls " + shell_word(cat(kScheme, place.bucket, "/", place.key, "*")));
    case S3Client::curl: break;
    }
    return curl(place, "",
                cat(next.empty() ? "" : cat("continuation-token=", encoded(next, ""), "&"),
                    "list-type=2&prefix=", encoded(place.key, "")));
}

/// The text between <tag> and </tag>, from `at` on, which moves behind it. False if there is none.
bool element(const std::string& xml, const std::string& tag, size_t& at, std::string& text) {
    const size_t begin = xml.find("<" + tag + ">", at);
    if (begin == xml.npos) return false;
    const size_t from = begin + tag.size() + 2, end = xml.find("</" + tag + ">", from);
    RG_CHECK(end != xml.npos, "s3: expected the end of <", tag, "> in the list of objects, got a cut answer");
    text = xml.substr(from, end - from);
    at = end + tag.size() + 3;
    return true;
}

/// The text with XML's own entities, and those of characters below 128 by number, as what they stand for.
std::string unescaped(const std::string& text) {
    constexpr size_t kLongestEntity = 10; // with & and ;
    static constexpr std::pair<std::string_view, char> kEntities[] = {
        {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}, {"amp", '&'}};
    const auto meaning = [&](std::string_view name) -> std::optional<char> {
        for (const auto& [entity, c] : kEntities)
            if (name == entity) return c;
        if (!name.starts_with('#')) return {};
        const bool hexadecimal = name.substr(1).starts_with('x');
        const std::string_view digits = name.substr(hexadecimal ? 2 : 1);
        unsigned code = 0;
        const auto [end, error] =
            std::from_chars(digits.data(), digits.data() + digits.size(), code, hexadecimal ? 16 : 10);
        const bool whole = error == std::errc() && end == digits.data() + digits.size();
        return whole && code < 128 ? std::optional(char(code)) : std::nullopt;
    };
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const std::string_view entity = std::string_view(text).substr(i, kLongestEntity);
        const size_t end = text[i] == '&' ? entity.find(';') : entity.npos;
        const std::optional<char> c = end == entity.npos ? std::nullopt : meaning(entity.substr(1, end - 1));
        out += c.value_or(text[i]);
        if (c) i += end;
    }
    return out;
}

std::vector<S3Object> parse_xml(const std::string& bucket, const std::string& xml, std::string& next) {
    RG_CHECK(xml.find("<ListBucketResult") != xml.npos && xml.find("</ListBucketResult>") != xml.npos,
             "s3: expected a list of objects, got another answer, or half of one");
    std::vector<S3Object> objects;
    std::string object, key, size;
    for (size_t at = 0; element(xml, "Contents", at, object);) {
        size_t in_key = 0, in_size = 0;
        int64_t bytes = -1;
        if (element(object, "Key", in_key, key) && element(object, "Size", in_size, size))
            std::from_chars(size.data(), size.data() + size.size(), bytes);
        RG_CHECK(bytes >= 0, "s3: expected a <Key> and a <Size> of every object, got ", excerpt(object));
        objects.push_back({cat(kScheme, bucket, "/", unescaped(key)), bytes});
    }
    size_t at = 0;
    next.clear();
    if (element(xml, "NextContinuationToken", at, next)) next = unescaped(next);
    return objects;
}

} // namespace

S3Client find_s3_client() {
    const std::string path = variable("PATH", "/usr/local/bin:/usr/bin:/bin");
    for (const S3Client client : {S3Client::aws, S3Client::s5cmd, S3Client::curl})
        for (size_t at = 0, end; at <= path.size(); at = end + 1) {
            end = std::min(path.find(':', at), path.size());
            const std::string file = cat(path.substr(at, end - at), "/", kClients[int(client)]);
            if (end > at && ::access(file.c_str(), X_OK) == 0) return client;
        }
    fail("s3: expected aws, s5cmd or curl, got none of them (PATH is ", path, "); install one");
}

std::string s3_name(const std::string& url) {
    const std::string at = variable("S3_ENDPOINT");
    return at.empty() ? url : cat(url, " at ", at);
}

void check_s3_object(const std::string& object_url, const std::string& url) {
    const Place asked = place_of(url);
    const std::string begin = cat(kScheme, asked.bucket, "/");
    RG_CHECK(object_url.starts_with(begin + asked.key), "s3: expected a list of objects below ", url, ", got ",
             excerpt(object_url));
    RG_CHECK(object_url.size() - begin.size() <= kMaxS3Key, "s3: expected keys of at most ", kMaxS3Key, " bytes, got ",
             object_url.size() - begin.size(), " (", excerpt(object_url), ")");
    RG_CHECK(std::none_of(object_url.begin(), object_url.end(), is_control),
             "s3: expected keys without control characters, got ", excerpt(object_url),
             "; rename that object, or give a longer prefix");
}

std::vector<S3Object> list_s3(S3Client client, const std::string& url, const FetchOptions& options) {
    const std::string bucket = place_of(url).bucket;
    std::vector<S3Object> objects;
    std::string next;
    std::set<std::string> seen; // tokens
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    const auto time_left = [&] {
        const double left_s = options.list_s - std::chrono::duration<double>(Clock::now() - begin).count();
        RG_CHECK(left_s > 0, "s3: expected a list of ", s3_name(url), " in ", options.list_s, " s, got ",
                 objects.size(), " objects in ", seen.size(), " parts, and more to come; give a longer prefix");
        return left_s;
    };
    do {
        std::vector<S3Object> part;
        std::string after;
        const auto parse = [&](const std::string& answer) { part = parse_s3_list(client, bucket, answer, after); };
        const double left_s = time_left();
        try {
            const std::string name =
                cat(s3_name(url), " (list by ", kClients[int(client)], next.empty() ? "" : " from ", next, ")");
            parse(fetch(name, list_command(client, url, next), parse, options, left_s));
        } catch (const Error&) {
            time_left(); // throws if the time is over, as between two parts
            throw;
        }
        RG_CHECK(after.empty() || seen.insert(after).second, "s3: expected a list of ", s3_name(url),
                 " with an end, got the token of part ", seen.size() + 1, " for the second time");
        objects.insert(objects.end(), part.begin(), part.end());
        next = after;
    } while (!next.empty());
    for (const S3Object& object : objects) check_s3_object(object.url, url);
    std::sort(objects.begin(), objects.end(), [](const S3Object& a, const S3Object& b) { return a.url < b.url; });
    return objects;
}

std::string s3_get_command(S3Client client, const std::string& url) {
    const Place place = place_of(url);
    switch (client) {
    case S3Client::aws: return aws(cat("s3 cp ", shell_word(url), " -"));
    case S3Client::s5cmd: // --raw: the key is no pattern. Old releases do not know it
        return s5cmd(cat("cat ", is_pattern(place.key) ? "--raw " : "", shell_word(url)));
    case S3Client::curl: break;
    }
    return curl(place, place.key, "");
}

std::vector<S3Object> parse_s3_list(S3Client client, const std::string& bucket, const std::string& answer,
                                    std::string& next) {
    next.clear();
    if (client == S3Client::curl) return parse_xml(bucket, answer, next);
    std::vector<S3Object> objects;
    if (client == S3Client::aws) {
        const Json list = Json::parse(answer, "list of aws");
        if (list.is_null()) return objects;
        for (const Json& entry : list.as_array()) {
            RG_CHECK(entry.as_array().size() == 2, "s3: expected key and size of every object, got ", entry.dump());
            objects.push_back(
                {cat(kScheme, bucket, "/", entry.as_array()[0].as_string()), entry.as_array()[1].as_int()});
        }
        return objects;
    }
    for (size_t at = 0, end; at < answer.size(); at = end + 1) {
        end = std::min(answer.find('\n', at), answer.size());
        if (end == at) continue;
        const Json entry = Json::parse(answer.substr(at, end - at), "list of s5cmd");
        if (entry.at("type").as_string() == "file")
            objects.push_back({entry.at("key").as_string(), entry.at("size").as_int()});
    }
    return objects;
}

} // namespace rg::data
