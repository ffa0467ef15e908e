// Evaluates the formulas of schedule.h in double. Callers round the result to float, once.
#include "core/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace rg {

void Schedule::check() const {
    RG_CHECK(std::isfinite(base) && base >= 0, "schedule: expected a learning rate of at least 0, got ", base);
    RG_CHECK(epochs > 0, "schedule: expected more than 0 epochs, got ", epochs);
    RG_CHECK(floor >= 0 && floor <= base, "schedule: expected a lowest rate from 0 to ", base, ", got ", floor);
    RG_CHECK((start >= 0 || start == -1) && start <= base, "schedule: expected a first rate from 0 to ", base,
             ", or -1, got ", start);
    RG_CHECK(factor > 0, "schedule: expected a drop factor above 0, got ", factor);
    RG_CHECK(peak >= 0 && peak < 1, "schedule: expected a peak of at least 0 and below 1, got ", peak);
    RG_CHECK(warmup >= 0 && warmup <= epochs, "schedule: expected a warm-up of 0 to ", epochs, " epochs, got ", warmup,
             "; make the warm-up shorter");
    for (size_t i = 0; i < drops.size(); ++i)
        RG_CHECK(drops[i] >= 0 && (i == 0 || drops[i] > drops[i - 1]), "schedule: expected rising drop epochs, got ",
                 drops[i], i == 0 ? "" : cat(" after ", drops[i - 1]));
}

double Schedule::rate_at(double progress) const {
    check();
    return progress < warmup ? progress / warmup * rate_without_warmup(progress) : rate_without_warmup(progress);
}

double Schedule::rate_without_warmup(double progress) const {
    const double fraction_done = std::min(progress / epochs, 1.0);
    switch (kind) {
    case ScheduleKind::constant: return base;
    case ScheduleKind::piecewise: {
        double rate = base;
        for (double drop : drops)
            if (progress >= drop) rate *= factor;
        return rate;
    }
    case ScheduleKind::cosine: return floor + (base - floor) * 0.5 * (1 + std::cos(std::numbers::pi * fraction_done));
    case ScheduleKind::triangular: {
        if (fraction_done >= peak) return floor + (base - floor) * ((1 - fraction_done) / (1 - peak));
        const double first = start >= 0 ? start : floor;
        return first + (base - first) * (fraction_done / peak);
    }
    }
    fail("schedule: kind ", int(kind), " does not exist");
}

std::vector<std::pair<std::string, ScheduleKind>> schedule_kinds() {
    return {{"constant", ScheduleKind::constant},
            {"piecewise", ScheduleKind::piecewise},
            {"cosine", ScheduleKind::cosine},
            {"triangular", ScheduleKind::triangular}};
}

} // namespace rg
