// Reads and writes the format that message.h describes. The reader checks each length before it uses it.
#include "ringgrad/par/message.h"

#include <cstring>

namespace rg::par {

std::string pack_texts(std::span<const std::string> texts) {
    std::string message;
    const auto append = [&](uint64_t number) { message.append(reinterpret_cast<const char*>(&number), sizeof number); };
    append(texts.size());
    for (const std::string& text : texts) {
        append(text.size());
        message += text;
    }
    return message;
}

std::vector<std::string> unpack_texts(std::string_view message) {
    size_t position = 0;
    const auto take = [&](uint64_t size) {
        RG_CHECK(size <= message.size() - position, "message: expected ", size, " bytes at offset ", position, ", got ",
                 message.size() - position);
        const std::string_view part = message.substr(position, size_t(size));
        position += part.size();
        return part;
    };
    const auto number = [&] {
        uint64_t value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    };
    const uint64_t count = number();
    // Each text needs at least its length field, so this check bounds the memory that a damaged count can request.
    RG_CHECK(count <= (message.size() - position) / sizeof count, "message: expected ", count, " texts, got ",
             message.size() - position, " bytes");
    std::vector<std::string> texts;
    texts.reserve(size_t(count));
    for (uint64_t i = 0; i < count; ++i) texts.emplace_back(take(number()));
    RG_CHECK(position == message.size(), "message: expected its end at offset ", position, ", got ",
             message.size() - position, " bytes more");
    return texts;
}

} // namespace rg::par
