// Tests the training programs as trials: the files that they save, and data that they reject.
#include "ringgrad/core/atomic_file.h"
#include "ringgrad/data/augment.h"
#include "ringgrad/data/digits.h"
#include "ringgrad/data/open.h"
#include "ringgrad/models/programs.h"
#include "ringgrad/models/run/model_file.h"
#include "ringgrad/tests/temp_dir.h"
#include "ringgrad/tests/thread_link.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
namespace {

class Quiet final : public Trial {
public:
    bool standalone() const override { return false; }
};

/// Trains in the run folder `name`.
void train(const Program& program, const TempDir& folder, const std::string& name, std::vector<std::string> args) {
    args.insert(args.end(),
                {"--runs=" + folder.path(), "--run-name=" + name, "--device=cpu", "--threads=1", "--precision=fp32"});
    par::run_threads(1, [&](par::Link& link) {
        par::Group group(link);
        Quiet trial;
        CHECK(program.run(group, args, trial) == 0);
    });
}

TEST_SUITE("models") {
    TEST_CASE("train_digits_angles: the saved model returns degrees") {
        const TempDir dir;
        data::write_digits(dir / "set", data::draw_digits(20, 1));
        train(train_digits_angles, dir, "a", {"--data=" + dir / "set", "--epochs=6", "--batch-size=16", "--seed=3"});
        const std::string metrics = read_file(dir / "a/metrics.jsonl");
        const size_t last = metrics.rfind("{\"epoch\"");
        const double rmse = Json::parse(metrics.substr(last, metrics.find('\n', last) - last), "metrics")
                                .at("test_angle_rmse")
                                .as_double();
        CHECK(rmse < 20); // a model that always returns 0 degrees has 26

        const data::ImageSet test = data::load(dir / "set", {.channels = 1, .test_fraction = 0.1, .seed = 3}).test;
        const data::Augmenter view(28, 28, 1, {}, data::kDigits);
        const Tensor x = Tensor::on_host({test.count, 28, 28, 1});
        for (int64_t i = 0; i < test.count; ++i) view.apply(test.image(i), 0, 0, i, x.data<float>() + i * 784);
        const TensorFile file = load_model(dir / "a");
        CHECK(file.text("targets") == R"([{"name": "angle", "unit": "degrees"}])");
        const Tensor degrees = make_network(file)->outputs(x, Mode::evaluate)[1];
        double squares = 0;
        for (size_t i = 0; i < test.targets.size(); ++i)
            squares += std::pow(double(degrees.span<float>()[i]) - double(test.targets[i]), 2);
        CHECK(std::sqrt(squares / double(test.count)) == doctest::Approx(rmse).epsilon(1e-3));
    }
}

} // namespace
} // namespace rg
