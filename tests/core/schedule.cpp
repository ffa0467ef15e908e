// Tests schedules at their corners, between them, and after the end.
#include "core/schedule.h"
#include "tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
TEST_SUITE("core") {
    TEST_CASE("schedule: has these rates at its corners, between them, and after the end") {
        using Kind = ScheduleKind;
        const struct {
            Schedule schedule;
            std::vector<std::pair<double, double>> rates; // by epoch
        } cases[] = {
            {{.base = 0.1, .epochs = 50}, {{0, 0.1}, {0.5, 0.1}, {49.99, 0.1}, {50, 0.1}, {1000, 0.1}}},
            // Drops exactly at the end of the epoch.
            {{.kind = Kind::piecewise, .base = 0.1, .epochs = 50, .drops = {30, 45}, .factor = 0.1},
             {{0, 0.1}, {30 - 1.0 / 196, 0.1}, {30, 0.01}, {44.999, 0.01}, {45, 0.001}, {60, 0.001}}},
            {{.kind = Kind::cosine, .base = 0.5, .epochs = 10, .floor = 0.1},
             {{0, 0.5}, {2.5, 0.3 + 0.2 * std::sqrt(0.5)}, {5, 0.3}, {10, 0.1}, {12, 0.1}}},
            {{.kind = Kind::triangular, .base = 1, .epochs = 10, .floor = 0.2, .peak = 0.25},
             {{0, 0.2}, {1.25, 0.6}, {2.5, 1}, {6.25, 0.6}, {10, 0.2}, {11, 0.2}}},
            {{.kind = Kind::triangular, .base = 1, .epochs = 10, .floor = 0.1, .peak = 0.25, .start = 0.2},
             {{0, 0.2}, {1.25, 0.6}, {2.5, 1}, {10, 0.1}}},
            {{.kind = Kind::triangular, .base = 1, .epochs = 10, .peak = 0}, {{0, 1}, {2.5, 0.75}}},
        };
        for (const auto& c : cases) {
            const Schedule& s = c.schedule;
            for (const std::pair<double, double>& point : c.rates) {
                INFO("kind ", int(s.kind), ", start ", s.start, ", epoch ", point.first);
                CHECK(s.rate_at(point.first) == doctest::Approx(point.second).epsilon(1e-14));
                if (point.second == s.base) CHECK(s.rate_at(point.first) == s.base);
            }
            for (const double after : {0.5, 2.0, 1000.0}) CHECK(s.rate_at(s.epochs + after) == s.rate_at(s.epochs));
        }
    }

    TEST_CASE("schedule: rejects values out of range, and parses drops") {
        CHECK(error_of([] { Schedule{}.check(); }).empty());
        CHECK_ERROR("learning rate of at least 0, got -1", Schedule{.base = -1}.check());
        CHECK_ERROR("epochs", Schedule{.epochs = 0}.check());
        CHECK_ERROR("from 0 to 0.1, got 0.2", Schedule{.base = 0.1, .floor = 0.2}.check());
        CHECK_ERROR("from 0 to 0.1, or -1, got 0.2", Schedule{.base = 0.1, .start = 0.2}.check());
        CHECK_ERROR("factor", Schedule{.factor = 0}.check());
        CHECK_ERROR("peak", Schedule{.peak = 1}.check());
        CHECK_ERROR("peak", (void)Schedule{.peak = 1}.rate_at(0));
        CHECK_ERROR("got 30 after 45", Schedule{.drops = {45, 30}}.check());
        CHECK(schedule_kinds().size() == 4);
    }
}
} // namespace rg
