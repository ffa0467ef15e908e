// Reads objects from S3 and compatible stores with a client that is installed: aws, s5cmd, or curl (7.76 or newer).
//
// aws and s5cmd find credentials and region as usual. curl signs with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
// AWS_SESSION_TOKEN if a key is set, else its requests are anonymous; its region is AWS_REGION, AWS_DEFAULT_REGION or
// us-east-1. The server is S3_ENDPOINT (http://host:port) if set. Commands contain the names of secret variables, not
// their values. So error texts and lists of processes do not show the secrets.
#pragma once

#include "ringgrad/data/fetch.h"

#include <span>

namespace rg::data {

enum class S3Client : uint8_t { aws, s5cmd, curl };

/// Returns the first of aws, s5cmd and curl that a folder of PATH has. Throws Error if there is none.
S3Client find_s3_client();

struct S3Object {
    std::string url; // s3://bucket/key
    int64_t bytes = 0;
};

/// Longest key that S3 allows, in bytes.
constexpr size_t kMaxS3Key = 1024;

/// Throws Error unless an object may occur in a list of `url`. Its URL must begin with `url`, and its key must have at
/// most kMaxS3Key bytes and no control characters. The check is needed because anyone who can write into a bucket
/// chooses the keys.
void check_s3_object(const std::string& object_url, const std::string& url);

/// Returns all objects whose URL begins with `url`, sorted by URL. Throws Error as fetch() does, if check_s3_object()
/// refuses one, if a continuation token comes twice, or if the list takes more than options.list_s seconds. For s5cmd,
/// also throws if the prefix contains * or ?.
std::vector<S3Object> list_s3(S3Client client, const std::string& url, const FetchOptions& options);

/// Returns the command that writes one object to standard output.
std::string s3_get_command(S3Client client, const std::string& url);

/// A command that fetches many objects in one process.
struct S3Batch {
    std::string command;
    std::vector<std::string> files; // for each object, the file that the command writes
};
/// Returns a command that downloads the objects into `folder`. For s5cmd and curl, writes a list of the objects there.
/// The URL of every object must begin with `url`. aws also downloads all other objects whose URL begins with `url`.
/// Throws Error if aws cannot write a file for a key.
S3Batch s3_get_batch(S3Client client, const std::string& url, std::span<const S3Object> objects,
                     const std::string& folder);

/// Returns the URL, plus " at " and the value of S3_ENDPOINT if that is set. Error texts and the cache use the result
/// as the object's name.
std::string s3_name(const std::string& url);

/// Parses a client's answer to a list request. Sets `next` to the token with which the next part of the list is
/// requested, or to "" if this is the last part.
std::vector<S3Object> parse_s3_list(S3Client client, const std::string& bucket, const std::string& answer,
                                    std::string& next);

} // namespace rg::data
