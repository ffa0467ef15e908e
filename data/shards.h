// Reads images from shards: objects of S3, or outputs of commands.
//
// A shard is a tar, a CIFAR file, a list of class names, or a batch of PNGs. A batch consists of PNGs that are S3
// objects of their own; one process of the S3 client (s3.h) fetches it. Class folders in train/ and test/ give the same
// sets as on a disk.
//
// Images form the test set if a word in the name of their shard or CIFAR file is test, val or the like. The name of an
// S3 shard is its key without the folders that all shards share. If a name has several such words, or train too, the
// last one decides. But if PNGs in class folders lie below a folder train, test or the like, the outermost such folder
// decides, and the class folders are below it. If there are no images for testing, a fraction of each class is held out
// (LoadOptions::test_fraction), as for a folder of images.
#pragma once

#include "ringgrad/data/decode.h"
#include "ringgrad/data/image_folder.h"
#include "ringgrad/data/s3.h"

namespace rg::data {

/// Returns true if a --data value begins with s3:// or pipe:, and so is not a folder.
bool is_remote(const std::string& path);

struct Shard {
    std::string url;    // s3://bucket/key or pipe:COMMAND; for a batch, the text with which all its URLs begin
    int64_t bytes = -1; // length, or -1 if unknown
    /// A batch: PNGs and angle tables that are fetched together, and whose bytes follow each other. Else empty.
    std::vector<S3Object> objects = {};
};

/// Expands ranges of numbers {000..007}, lists {a,b} and nested braces as bash does. Leaves ${...}, and braces in
/// quotes or after a backslash, to the shell. But a range such as {000..007} is expanded in quotes too, since it names
/// shards. Throws Error if there are more than 1000000 results.
std::vector<std::string> expand_braces(const std::string& text);

/// Returns true if a server must list the shards of this remote path. Otherwise, the path alone determines them.
bool is_listed(const std::string& path);

/// Returns the shards among the objects that S3 lists at a path: tars, CIFAR files and lists of class names, or else
/// batches of PNGs and angle tables. Throws Error if there are no tars, CIFAR files and PNGs, or if tars or CIFAR files
/// are mixed with PNGs. Beside PNGs, images in other formats are an Error too, unless options.skip_other_images.
std::vector<Shard> shards_of(const std::string& path, const std::vector<S3Object>& objects, const LoadOptions& options);

/// Returns the shards that a pipe: path or an S3 path with braces names, or those that S3 lists below a prefix. Throws
/// Error like expand_braces(), shards_of() and list_s3(), and for a line break or the bytes 1, 2 and 3 in the path.
std::vector<Shard> find_shards(const std::string& path, const LoadOptions& options);

/// Returns the bytes of a shard, unpacked if it was gzipped. Runs the command of a pipe: shard, so the caller must take
/// such a command only from the command line. Throws Error like fetch(), and for another length than the listed one,
/// bad gzip or tar, or a part of a CIFAR record.
std::string fetch_shard(const Shard& shard, const FetchOptions& options);

class ShardSet {
public:
    /// `path` is the --data value: error texts name it, and in a batch of PNGs it tells where class folders begin. Uses
    /// all options except `fetch`.
    ShardSet(std::string path, std::vector<Shard> shards, const LoadOptions& options = {});

    /// Decodes the next of the shards, in the order that the constructor got. Throws Error, with the shard and the
    /// member of a tar, for an unreadable image or label, or (unless skipped) another format. Also throws if an image
    /// differs from earlier ones in size or kind of label.
    void add(Bytes bytes);
    /// Returns the sets. Throws Error if shards are missing, if there are no images, or if there are none for training,
    /// unless test_fraction is 0. Also throws Error if an image has no class folder, or no angle although there is a
    /// table of angles, or if the number of class names is wrong. Also throws Error if a class folder has images for
    /// testing but none for training, unless no class folder has any for training.
    TrainTest finish();

private:
    enum class Labels : uint8_t { none_yet, folders, pairs, cifar10, cifar100 };
    enum class Part : uint8_t { unknown, train, test };
    struct Source { // images from one file
        Part part;
        std::string path; // the file's; for class folders below train/ or test/, only the part after that folder
        int64_t first, count;
        size_t shard;
        std::string member; // path of a PNG in the shard (Png::path); "" for CIFAR files
    };

    static Part part_of(const std::string& path);
    struct Png {
        std::string path;  // below the folder of the --data URL, or in the tar
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
    std::vector<std::string> names_; // names of the shards' files (see file_of()), without their common folders
    size_t next_ = 0;                // index of the next shard
    Labels labels_ = Labels::none_yet;
    std::string first_name_; // name of the first image, batch or CIFAR file, for error texts
    ImageSet images_;        // in order of arrival
    std::vector<Source> sources_;
    std::vector<std::string> class_names_; // from batches.meta.txt or fine_label_names.txt, if there is one
    std::vector<Angles> angles_;           // angles per shard, by Source::member
};

} // namespace rg::data
