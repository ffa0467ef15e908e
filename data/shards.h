// Reads images from shards: objects of S3, or outputs of commands.
//
// A shard is an archive or a CIFAR file. PNGs that are objects of their own are fetched in batches, each by one process
// of the client, and a batch is treated like a shard. It gives the same set as a folder with the same files.
//
// Images whose folder, shard or CIFAR file is named test or val form the test set. If there are no such images, a
// fraction of each class is held out (LoadOptions::test_fraction), as for a folder of images.
#pragma once

#include "ringgrad/data/decode.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/s3.h"

namespace rg::data {

/// Returns true if a --data value begins with s3:// or pipe:, and so is not a folder.
bool is_remote(const std::string& path);

struct Shard {
    std::string url;    // s3://bucket/key or pipe:COMMAND; of a batch, the beginning of all its URLs
    int64_t bytes = -1; // length, or -1 if unknown
    /// A batch of PNGs: objects that are fetched together, and whose bytes follow each other. Else empty.
    std::vector<S3Object> objects = {};
};

/// Expands {000..007}, {a,b} and nested braces as the shell does. Leaves ${...}, and braces in quotes, to the shell.
/// But expands ranges such as {000..007} in quotes too, since they name shards.
std::vector<std::string> expand_braces(const std::string& text);

/// Returns true if a server must list the shards of this path. Otherwise, the path alone determines them.
bool is_listed(const std::string& path);

/// Returns the shards among the objects that S3 lists at a path: tars and CIFAR files, or else batches of PNGs. Throws
/// Error if there are none or both. Also throws if there are images that cannot be used beside PNGs, unless
/// options.skip_other_images.
std::vector<Shard> shards_of(const std::string& path, const std::vector<S3Object>& objects, const LoadOptions& options);

/// Returns the shards of a path with braces, or those that S3 lists below a prefix. Throws Error like shards_of() and
/// fetch().
std::vector<Shard> find_shards(const std::string& path, const LoadOptions& options);

/// Returns the bytes of a shard, unpacked. Runs the command of a pipe: shard, so the caller must take such a command
/// only from the command line. Throws Error like fetch(), and if the shard is incomplete or not an archive.
std::string fetch_shard(const Shard& shard, const FetchOptions& options);

class ShardSet {
public:
    /// `path` is for texts that users read. Of the options, uses all except `fetch`.
    ShardSet(std::string path, std::vector<Shard> shards, const LoadOptions& options = {});

    /// Decodes the next shard. Throws Error with shard and member for a damaged image or label, or an image in another
    /// format. Also throws Error if an image differs from earlier ones in size or kind of label.
    void add(Bytes bytes);
    /// Returns the sets. Requires that all shards were added. Throws Error if there are no images for training, unless
    /// test_fraction is 0. Also throws Error if images have class folders, and a class of the test set has no images
    /// for training.
    TrainTest finish();

private:
    enum class Labels : uint8_t { none_yet, folders, pairs, cifar10, cifar100 };
    enum class Part : uint8_t { unknown, train, test };
    struct Source { // images from one file
        Part part;
        std::string path; // the file's; if in a class folder, without the part up to train/ or test/
        int64_t first, count;
        size_t shard;
        std::string member; // the file's name in the shard
    };

    static Part part_of(const std::string& path);
    struct Png {
        std::string path;  // below the prefix of a bucket, or in the tar
        std::string name;  // for error texts
        std::string below; // Source::path
        Part part;
        Bytes bytes;
    };
    void add_tar(Bytes archive);
    void add_batch(Bytes bytes);
    void add_cifar(const std::string& path, Part part, Bytes bytes, const std::string& name);
    void add_angles(const std::string& path, Bytes table, const std::string& name);
    void add_pngs(const std::vector<Png>& pngs);
    static Png png_of_folder(const std::string& path, std::string name, Bytes bytes, Part part);
    void require_labels(Labels labels, const std::string& name);
    bool is_test_alone() const;
    void label_by_folder();
    void take_angles();

    std::string path_;
    LoadOptions options_;
    Conversion conversion_;
    std::vector<Shard> shards_;
    std::vector<std::string> names_; // names of the shards' files, without their common folders
    size_t next_ = 0;                // index of the next shard
    Labels labels_ = Labels::none_yet;
    std::string first_name_; // name of the first image, for error texts
    ImageSet images_;        // in order of arrival
    std::vector<Source> sources_;
    std::vector<std::string> class_names_; // from a file of names, if there is one
    std::vector<Angles> angles_;           // of each shard, by member
};

} // namespace rg::data
