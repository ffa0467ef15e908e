// Tests schedules at their corners, between them, and after the end.
#include "ringgrad/core/schedule.h"
#include "ringgrad/tests/temp_dir.h"

#include <cmath>
#include <doctest/doctest.h>

namespace rg {
TEST_SUITE("core") {
    TEST_CASE("schedule: constant keeps the base rate") {
        const Schedule s{.base = 0.1, .epochs = 50};
        for (double e : {0.0, 0.5, 49.99, 50.0, 1000.0}) CHECK(s.rate_at(e) == 0.1);
    }

    TEST_CASE("schedule: piecewise drops exactly at the end of the epoch") {
        const Schedule s{.kind = ScheduleKind::piecewise, .base = 0.1, .epochs = 50, .drops = {30, 45}, .factor = 0.1};
        CHECK(s.rate_at(0) == 0.1);
        CHECK(s.rate_at(30 - 1.0 / 196) == 0.1);
        CHECK(s.rate_at(double(30 * 196) / 196) == doctest::Approx(0.01).epsilon(1e-14));
        CHECK(s.rate_at(44.999) == doctest::Approx(0.01).epsilon(1e-14));
        CHECK(s.rate_at(45) == doctest::Approx(0.001).epsilon(1e-14));
        CHECK(s.rate_at(60) == doctest::Approx(0.001).epsilon(1e-14));
    }

    TEST_CASE("schedule: cosine goes from base to floor, and is half way in the middle") {
        const Schedule s{.kind = ScheduleKind::cosine, .base = 0.5, .epochs = 10, .floor = 0.1};
        CHECK(s.rate_at(0) == doctest::Approx(0.5).epsilon(1e-14));
        CHECK(s.rate_at(2.5) == doctest::Approx(0.3 + 0.2 * std::sqrt(0.5)).epsilon(1e-14));
        CHECK(s.rate_at(5) == doctest::Approx(0.3).epsilon(1e-14));
        CHECK(s.rate_at(10) == doctest::Approx(0.1).epsilon(1e-14));
        CHECK(s.rate_at(12) == s.rate_at(10));
    }

    TEST_CASE("schedule: triangular rises to base at the peak and falls to floor") {
        const Schedule s{.kind = ScheduleKind::triangular, .base = 1.0, .epochs = 10, .floor = 0.2, .peak = 0.25};
        CHECK(s.rate_at(0) == doctest::Approx(0.2).epsilon(1e-14));
        CHECK(s.rate_at(1.25) == doctest::Approx(0.6).epsilon(1e-14));
        CHECK(s.rate_at(2.5) == 1.0);
        CHECK(s.rate_at(6.25) == doctest::Approx(0.6).epsilon(1e-14));
        CHECK(s.rate_at(10) == doctest::Approx(0.2).epsilon(1e-14));
        CHECK(s.rate_at(11) == s.rate_at(10));
    }

    TEST_CASE("schedule: triangular can start elsewhere than it ends") {
        const Schedule s{
            .kind = ScheduleKind::triangular, .base = 1, .epochs = 10, .floor = 0.1, .peak = 0.25, .start = 0.2};
        CHECK(s.rate_at(0) == doctest::Approx(0.2).epsilon(1e-14));
        CHECK(s.rate_at(1.25) == doctest::Approx(0.6).epsilon(1e-14));
        CHECK(s.rate_at(2.5) == 1.0);
        CHECK(s.rate_at(10) == doctest::Approx(0.1).epsilon(1e-14));
        CHECK(contains(error_of([] { Schedule{.base = 0.1, .start = 0.2}.check(); }), "from 0 to 0.1, or -1, got 0.2"));
    }

    TEST_CASE("schedule: rejects values out of range, and parses drops") {
        CHECK(error_of([] { Schedule{}.check(); }).empty());
        CHECK(contains(error_of([] { Schedule{.base = -1}.check(); }), "learning rate of at least 0, got -1"));
        CHECK(contains(error_of([] { Schedule{.epochs = 0}.check(); }), "epochs"));
        CHECK(contains(error_of([] { Schedule{.base = 0.1, .floor = 0.2}.check(); }), "from 0 to 0.1, got 0.2"));
        CHECK(contains(error_of([] { Schedule{.factor = 0}.check(); }), "factor"));
        const Schedule linear{.kind = ScheduleKind::triangular, .base = 1, .epochs = 10, .peak = 0};
        CHECK(linear.rate_at(0) == 1);
        CHECK(linear.rate_at(2.5) == doctest::Approx(0.75));
        CHECK(contains(error_of([] { Schedule{.peak = 1}.check(); }), "peak"));
        CHECK(contains(error_of([] { (void)Schedule{.peak = 1}.rate_at(0); }), "peak"));
        CHECK(contains(error_of([] { Schedule{.drops = {45, 30}}.check(); }), "got 30 after 45"));
        CHECK(schedule_kinds().size() == 4);
    }
}
} // namespace rg
