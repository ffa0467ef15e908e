// See model_file.h.
#include "ringgrad/models/run/model_file.h"

#include "ringgrad/core/json.h"

namespace rg {

Metadata describe_model(const data::ImageSet& images, const data::Normalise& normalise) {
    Json mean = Json::array(), deviation = Json::array();
    for (size_t c = 0; c < size_t(images.channels); ++c)
        mean.push(double(normalise.mean[c])), deviation.push(double(normalise.deviation[c]));
    return {{"classes", Json(Json::Array(images.classes.begin(), images.classes.end())).dump()},
            {"normalise", Json::object().set("mean", mean).set("deviation", deviation).dump()}};
}

data::Normalise stored_normalise(const TensorFile& file, const data::Normalise& fallback) {
    const std::string* text = file.find_text("normalise");
    if (!text) return fallback;
    const Json stored = Json::parse(*text, file.source + ": normalise");
    data::Normalise normalise;
    for (const auto& [name, values] : {std::pair("mean", &normalise.mean), {"deviation", &normalise.deviation}}) {
        const Json::Array& numbers = stored.at(name).as_array();
        RG_CHECK(numbers.size() <= values->size(), file.source, ": normalise: expected at most ", values->size(),
                 " channels, got ", numbers.size());
        for (size_t c = 0; c < numbers.size(); ++c) (*values)[c] = float(numbers[c].as_double());
    }
    return normalise;
}

} // namespace rg
