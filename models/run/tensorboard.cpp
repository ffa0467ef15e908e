// See tensorboard.h. Each record is one write(), so a kill leaves at most one incomplete record, which TensorBoard
// ignores.
#include "ringgrad/models/run/tensorboard.h"

#include "ringgrad/core/clock.h"
#include "ringgrad/data/source.h"
#include "ringgrad/models/run/protobuf.h"

#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

namespace fs = std::filesystem;

namespace rg {

using namespace protobuf;

namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

/// Returns the form in which TFRecords store a CRC. They mask it, since the CRC of data that contain CRCs
/// detects errors badly.
uint32_t masked(uint32_t crc) { return std::rotr(crc, 15) + 0xa282ead8u; }

/// Returns an Event with the current time, `step`, and one more field, which is encoded already.
std::string event(int64_t step, const std::string& field) {
    return double_field(1, unix_seconds()) + int_field(2, step) + field;
}

/// Returns a file name that sorts after those of all event files in the folder, even if the clock was set back.
std::string next_name(const std::string& folder) {
    auto seconds = static_cast<long long>(std::time(nullptr));
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        if (const std::string name = entry.path().filename().string(); name.starts_with(kPrefix)) {
            long long others = 0;
            std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), others);
            seconds = std::max(seconds, others + 1);
        }
    return cat(kPrefix, seconds, ".", data::node_name(), ".", ::getpid());
}

} // namespace

uint32_t crc32c(std::string_view bytes) {
    uint32_t crc = ~0u;
    for (const char byte : bytes) {
        crc ^= uint8_t(byte);
        for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0u);
    }
    return ~crc;
}

EventFile::EventFile(const std::string& folder, int64_t step) : path_(folder + "/" + next_name(folder)), step_(step) {
    file_ = Descriptor(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    RG_CHECK(file_.get() >= 0, "tensorboard: cannot create ", path_, ": ", std::strerror(errno));
    write(event(0, bytes_field(3, "brain.Event:2")));
    write(event(step + 1, bytes_field(7, int_field(1, 1)))); // session_log with status START
}

void EventFile::add(const Json& line) {
    const Json* step = line.find("step");
    if (step) step_ = step->as_int();
    if (!step && !line.find("epoch")) return; // a line with totals at the end of the run
    std::string summary;
    for (const auto& [name, value] : line.as_object()) {
        if (name == "step" || name == "epoch" || !value.is_number()) continue;
        const std::string tag = (step ? "step/" : "epoch/") + name;
        summary += bytes_field(1, bytes_field(1, tag) + float_field(2, float(value.as_double())));
    }
    write(event(step_, bytes_field(5, summary)));
}

void EventFile::write(const std::string& event) {
    const std::string length = little_endian(uint64_t(event.size()));
    const std::string record =
        length + little_endian(masked(crc32c(length))) + event + little_endian(masked(crc32c(event)));
    ssize_t n;
    do n = ::write(file_.get(), record.data(), record.size());
    while (n < 0 && errno == EINTR);
    RG_CHECK(n == ssize_t(record.size()), "tensorboard: cannot append to ", path_, ": ",
             std::strerror(n < 0 ? errno : ENOSPC));
}

} // namespace rg
