// Data sets that come through a command: s3://bucket/prefix and pipe:COMMAND.
//
// A data set is a list of shards, each one stream: a tar of PNGs in class folders, with or without angles.csv beside
// these, of KEY.png with KEY.cls (a number) as WebDataset has it, or of CIFAR binary files; or a CIFAR binary file by
// itself. Each may be gzipped. Which shards there are is known before any of them is read, so that ranks can share the
// reading; ShardSet puts them together, and the result does not depend on who has read what. CIFAR files and class
// folders become the set that the same files make on a disk, bit for bit, however they were divided; pairs stay in the
// order of the shards.
//
// Images in other formats are errors, as in a folder (data/image_folder.h); other members are ignored.
//
// Images whose folder, shard or CIFAR file is called test or val are the test set; without any, a fifth of each class
// is, as of a folder of images.
#pragma once

#include "data/dataset.h"
#include "data/fetch.h"
#include "data/image_folder.h"

namespace rg::data {

/// Whether a --data is one of these, and not a folder.
bool is_remote(const std::string& path);

struct Shard {
    std::string url;    // s3://bucket/key or pipe:COMMAND
    int64_t bytes = -1; // if they are known before
};

/// {000..007}, {a,b} and nests of them, as the shell expands them; ${...}, and what is in quotes, is left to it, but
/// for {000..007} there, which are shards as well.
std::vector<std::string> expand_braces(const std::string& text);

/// True if a server lists the shards of this path. Otherwise they follow from the path alone.
bool is_listed(const std::string& path);

/// The shards of a path with braces, or of what S3 lists below a prefix. Errors: no shards; as of fetch().
std::vector<Shard> find_shards(const std::string& path, const FetchOptions& options);

/// The bytes of a shard, unpacked. Runs the command of a pipe: that is given to it, so its caller takes one from
/// nowhere but the command line. Errors: as of fetch(); they are not all there, or no archive.
std::string fetch_shard(const Shard& shard, const FetchOptions& options);

class ShardSet {
public:
    /// `path` is for people; of the options it takes those for images.
    ShardSet(std::string path, std::vector<Shard> shards, const LoadOptions& options = {});

    /// Decodes the next shard. Errors, with shard and member: a bad image or label, an image that is not read, images
    /// of another size or labelled in another way than those before.
    void add(Bytes bytes);
    /// Requires that all shards were added. Errors: no images; a class of the test set that has none for training.
    TrainTest finish();

private:
    enum class Labels : uint8_t { none_yet, folders, pairs, cifar10, cifar100 };
    enum class Part : uint8_t { unknown, train, test };
    struct Piece { // images that come from one file
        Part part;
        std::string path; // of the file; of a class folder's: below train/ or test/, where there is one
        int64_t first, count;
        size_t shard;
        std::string member; // its name in the shard
    };

    static Part part_of(const std::string& path);
    void add_tar(Bytes archive);
    void add_cifar(const std::string& path, Part part, Bytes bytes, const std::string& name);
    void add_png(const std::string& path, Part part, Bytes bytes, const std::string& member);
    void expect(Labels labels, const std::string& name);
    void label_by_folder();
    void take_angles();

    std::string path_;
    LoadOptions options_;
    std::vector<Shard> shards_;
    std::vector<std::string> names_; // of the shards' files, without the folders that all of them are in
    size_t next_ = 0;                // shard to add
    Labels labels_ = Labels::none_yet;
    std::string first_; // name of the first image, for messages
    ImageSet images_;   // in order of arrival
    std::vector<Piece> pieces_;
    std::vector<std::string> class_names_; // from a file of names, if one came
    std::vector<Angles> angles_;           // of each shard, by member
};

} // namespace rg::data
