// Objects in S3 and compatible stores, by whichever client is installed: aws, s5cmd, or curl (7.76 or newer).
//
// aws and s5cmd find credentials as they always do. curl signs with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN if there is a key, and asks as anyone may if there is none. AWS_REGION, else AWS_DEFAULT_REGION,
// is the region; S3_ENDPOINT (http://host:port) the server, else Amazon's. Commands name the variables that are secret
// and do not hold their values, so that none is seen in error texts or lists of processes.
#pragma once

#include "data/fetch.h"

namespace rg::data {

enum class S3Client : uint8_t { aws, s5cmd, curl };

/// The first of them that is found along PATH. Error: none.
S3Client find_s3_client();

struct S3Object {
    std::string url; // s3://bucket/key
    int64_t bytes = 0;
};

/// Names of objects are at most that long in S3.
constexpr size_t kMaxS3Key = 1024;

/// Requires that an object of a list of `url` is what may be there: its URL begins with `url`, and its key has no
/// control characters and at most kMaxS3Key bytes. Whoever may write into a bucket chooses the keys.
void check_s3_object(const std::string& object_url, const std::string& url);

/// All objects whose URL begins with `url`, by name. Error: one that check_s3_object() refuses; a list that does not
/// end (a token comes twice, or options.list_s is over).
std::vector<S3Object> list_s3(S3Client client, const std::string& url, const FetchOptions& options);

/// The command that writes one object.
std::string s3_get_command(S3Client client, const std::string& url);

/// The URL, with its endpoint if that is not Amazon's: what messages and the cache call it.
std::string s3_name(const std::string& url);

/// What the clients answer to a request for a list. `next`: the token of its next part, or empty.
std::vector<S3Object> parse_s3_list(S3Client client, const std::string& bucket, const std::string& answer,
                                    std::string& next);

} // namespace rg::data
