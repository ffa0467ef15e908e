// Builds one command line per client and purpose, and parses each client's list of objects: JSON from aws, one JSON
// object per line from s5cmd, and the protocol's XML from curl. The clients' own retries are switched off, unless
// AWS_MAX_ATTEMPTS sets those of aws, because fetch() retries as the user has asked.
#include "ringgrad/data/s3.h"

#include "ringgrad/core/atomic_file.h"
#include "ringgrad/core/clock.h"
#include "ringgrad/core/json.h"
#include "ringgrad/core/text.h"
#include "ringgrad/data/pipe.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <unistd.h>

namespace rg::data {

namespace {

namespace fs = std::filesystem;

constexpr int kTransfers = 16; // transfers of curl at the same time
constexpr std::string_view kScheme = "s3://";
// SHA-256 of an empty body. S3 requires it in a header that older versions of curl do not add.
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

/// Percent-encodes as the protocol's signature requires: everything except letters, digits, - . _ ~ and characters in
/// `kept`.
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

/// Returns " OPTION VALUE" with the value of an environment variable, or "" if that is not set.
std::string option(const char* name, const char* variable_name) {
    const std::string value = variable(variable_name);
    return value.empty() ? "" : cat(" ", name, " ", shell_word(value));
}

std::string aws(const std::string& arguments) {
    return cat(variable("AWS_MAX_ATTEMPTS").empty() ? "AWS_MAX_ATTEMPTS=1 " : "", "aws ", arguments,
               option("--endpoint-url", "S3_ENDPOINT"), option("--region", "AWS_REGION"));
}

bool is_pattern(const std::string& key) { return key.find_first_of("*?") != key.npos; }

/// Returns s5cmd's option --raw if a key has * or ?, which would else be a pattern. Old releases lack the option.
const char* raw(const std::string& key) { return is_pattern(key) ? "--raw " : ""; }

/// Returns a pattern of aws that matches this text alone.
std::string pattern_of(const std::string& text) {
    std::string pattern;
    for (const char c : text)
        pattern += std::string_view("*?[").find(c) == std::string_view::npos ? std::string(1, c) : cat("[", c, "]");
    return pattern;
}

/// Returns a text as one word of a configuration file of curl.
std::string config_word(const std::string& text) {
    std::string word = "\"";
    for (const char c : text) word += c == '"' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    return word + "\"";
}

std::string s5cmd(const std::string& arguments) {
    return cat("s5cmd --retry-count 0", option("--endpoint-url", "S3_ENDPOINT"), " ", arguments);
}

/// Returns the address of an object or a query. The query's parameters must be sorted by name: the signature requires
/// it, and older versions of curl do not sort them.
std::string address(const std::string& bucket, const std::string& object, const std::string& query) {
    const std::string endpoint = variable("S3_ENDPOINT", cat("https://s3.", region(), ".amazonaws.com").c_str());
    return cat(endpoint, endpoint.ends_with('/') ? "" : "/", encoded(bucket, ""), "/", encoded(object, "/"),
               query.empty() ? "" : "?", query);
}

/// Returns a curl command that signs its requests if AWS_ACCESS_KEY_ID is set. `arguments` has the addresses, or names
/// a file that has them.
std::string curl(const std::string& arguments) {
    std::string command =
        "curl -sS --fail-with-body --path-as-is --connect-timeout 20 --speed-limit 1 --speed-time 60 " + arguments;
    if (variable("AWS_ACCESS_KEY_ID").empty()) return command;
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}) {
        const std::string value = variable(name);
        RG_CHECK(std::none_of(value.begin(), value.end(), is_control) && value.find_first_of("\"\\") == value.npos,
                 "s3: expected ", name, " without quotes, backslashes and line breaks, got some; set it again");
    }
    const bool token = !variable("AWS_SESSION_TOKEN").empty();
    // printf is a shell builtin, so the key never appears among the arguments of a process.
    return cat("printf 'user=\"%s:%s\"\\n", token ? "header=\"x-amz-security-token: %s\"\\n" : "",
               "' \"$AWS_ACCESS_KEY_ID\" \"$AWS_SECRET_ACCESS_KEY\"", token ? " \"$AWS_SESSION_TOKEN\"" : "", " | ",
               command, " -K - --aws-sigv4 ", shell_word(cat("aws:amz:", region(), ":s3")),
               " -H x-amz-content-sha256:", kNoBody);
}

std::string list_command(S3Client client, const std::string& url, const std::string& next) {
    const Place place = place_of(url);
    if (client == S3Client::aws)
        return aws(cat("s3api list-objects-v2 --output json --query 'Contents[].[Key,Size]' --bucket ",
                       shell_word(place.bucket), " --prefix ", shell_word(place.key)));
    if (client == S3Client::s5cmd) {
        RG_CHECK(!is_pattern(place.key), "s3: expected a prefix without * and ?, which s5cmd takes for a pattern, got ",
                 excerpt(url), "; install aws or curl, or give a shorter prefix");
        return s5cmd("--json ls " + shell_word(cat(kScheme, place.bucket, "/", place.key, "*")));
    }
    return curl(shell_word(address(place.bucket, "",
                                   cat(next.empty() ? "" : cat("continuation-token=", encoded(next, ""), "&"),
                                       "list-type=2&prefix=", encoded(place.key, "")))));
}

/// Finds the next element <tag>TEXT</tag> from `position` on. Sets `text` to TEXT, and moves `position` past </tag>.
/// Returns false if there is no <tag>. Throws Error if </tag> is missing.
bool element(const std::string& xml, const std::string& tag, size_t& position, std::string& text) {
    const size_t begin = xml.find("<" + tag + ">", position);
    if (begin == xml.npos) return false;
    const size_t from = begin + tag.size() + 2, end = xml.find("</" + tag + ">", from);
    RG_CHECK(end != xml.npos, "s3: expected the end of <", tag, "> in the list of objects, got an incomplete answer");
    text = xml.substr(from, end - from);
    position = end + tag.size() + 3;
    return true;
}

/// Replaces XML's predefined entities, and numeric references to characters below 128, by their characters.
std::string unescaped(const std::string& text) {
    constexpr size_t kLongestEntity = 10; // including & and ;
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
             "s3: expected a list of objects, got another answer or an incomplete one");
    std::vector<S3Object> objects;
    std::string object, key, size;
    for (size_t position = 0; element(xml, "Contents", position, object);) {
        size_t key_position = 0, size_position = 0;
        int64_t bytes = -1;
        if (element(object, "Key", key_position, key) && element(object, "Size", size_position, size))
            std::from_chars(size.data(), size.data() + size.size(), bytes);
        RG_CHECK(bytes >= 0, "s3: expected a <Key> and a <Size> of every object, got ", excerpt(object));
        objects.push_back({cat(kScheme, bucket, "/", unescaped(key)), bytes});
    }
    size_t position = 0;
    next.clear();
    if (element(xml, "NextContinuationToken", position, next)) next = unescaped(next);
    return objects;
}

} // namespace

S3Client find_s3_client() {
    const std::string path = variable("PATH", "/usr/local/bin:/usr/bin:/bin");
    for (const S3Client client : {S3Client::aws, S3Client::s5cmd, S3Client::curl})
        for (const std::string& folder : split(path, ':')) {
            const std::string file = cat(folder, "/", kClients[int(client)]);
            if (!folder.empty() && ::access(file.c_str(), X_OK) == 0) return client;
        }
    fail("s3: expected aws, s5cmd or curl, got none of them (PATH is ", path, "); install one");
}

std::string s3_name(const std::string& url) {
    const std::string endpoint = variable("S3_ENDPOINT");
    return endpoint.empty() ? url : cat(url, " at ", endpoint);
}

void check_s3_object(const std::string& object_url, const std::string& url) {
    const Place requested = place_of(url);
    const std::string begin = cat(kScheme, requested.bucket, "/");
    RG_CHECK(object_url.starts_with(begin + requested.key), "s3: expected a list of objects below ", url, ", got ",
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
    std::set<std::string> tokens;
    const double end = seconds_now() + options.list_s;
    const auto time_left = [&] {
        const double left_s = end - seconds_now();
        RG_CHECK(left_s > 0, "s3: expected a list of ", s3_name(url), " in ", options.list_s, " s, got ",
                 objects.size(), " objects in ", tokens.size(), " parts, and more to come; give a longer prefix");
        return left_s;
    };
    do {
        std::vector<S3Object> part;
        std::string next_token;
        const auto parse = [&](const std::string& answer) { part = parse_s3_list(client, bucket, answer, next_token); };
        const double left_s = time_left();
        try {
            const std::string name =
                cat(s3_name(url), " (list by ", kClients[int(client)], next.empty() ? "" : " from ", next, ")");
            parse(fetch(name, list_command(client, url, next), parse, options, left_s));
        } catch (const Error&) {
            time_left(); // if the time is over, throws the error that says so
            throw;
        }
        RG_CHECK(next_token.empty() || tokens.insert(next_token).second, "s3: expected a list of ", s3_name(url),
                 " with an end, got the token of part ", tokens.size() + 1, " for the second time");
        objects.insert(objects.end(), part.begin(), part.end());
        next = next_token;
    } while (!next.empty());
    for (const S3Object& object : objects) check_s3_object(object.url, url);
    std::sort(objects.begin(), objects.end(), [](const S3Object& a, const S3Object& b) { return a.url < b.url; });
    return objects;
}

std::string s3_get_command(S3Client client, const std::string& url) {
    const Place place = place_of(url);
    if (client == S3Client::aws) return aws(cat("s3 cp ", shell_word(url), " -"));
    if (client == S3Client::s5cmd) return s5cmd(cat("cat ", raw(place.key), shell_word(url)));
    return curl(shell_word(address(place.bucket, place.key, "")));
}

S3Batch s3_get_batch(S3Client client, const std::string& url, std::span<const S3Object> objects,
                     const std::string& folder) {
    const std::string list_file = folder + "/list";
    std::string list;
    S3Batch batch;
    if (client == S3Client::aws) {
        // One --include per object would be slow, since aws compares each object of the folder with each pattern.
        const size_t begin = url.rfind('/') + 1;
        for (const S3Object& object : objects) {
            const fs::path file = object.url.substr(begin);
            RG_CHECK(file.is_relative() && file == file.lexically_normal() && *file.begin() != "..",
                     "s3: expected keys without empty folders, . and .., which aws cannot write, got ",
                     excerpt(object.url), "; install s5cmd or curl instead of aws, or rename that object");
            batch.files.push_back(fs::path(folder) / file);
        }
        batch.command =
            aws(cat("s3 cp --recursive --only-show-errors ", shell_word(url.substr(0, begin)), " ", shell_word(folder),
                    " --exclude '*' --include ", shell_word(pattern_of(url.substr(begin)) + "*")));
        return batch;
    }
    for (size_t i = 0; i < objects.size(); ++i) {
        const Place place = place_of(objects[i].url);
        batch.files.push_back(cat(folder, "/", i));
        list += client == S3Client::s5cmd
                    ? cat("cp ", raw(place.key), shell_word(objects[i].url), " ", i, "\n")
                    : cat("url=", config_word(address(place.bucket, place.key, "")), "\noutput=", i, "\n");
    }
    write_file_atomic(list_file, list, Readers::owner);
    batch.command =
        cat("cd ", shell_word(folder), " && ",
            client == S3Client::s5cmd ? s5cmd("run list")
                                      : curl(cat("--fail-early --parallel --parallel-max ", kTransfers, " -K list")));
    return batch;
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
    for (const std::string& line : split(answer, '\n')) {
        if (line.empty()) continue;
        const Json entry = Json::parse(line, "list of s5cmd");
        if (entry.at("type").as_string() == "file")
            objects.push_back({entry.at("key").as_string(), entry.at("size").as_int()});
    }
    return objects;
}

} // namespace rg::data
