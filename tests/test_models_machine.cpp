// Which ranks take images, by the GPUs that they have.
#include "models/machine.h"

#include <doctest/doctest.h>

using namespace rg;

TEST_SUITE("models") {
    TEST_CASE("machine: ranks beyond the GPUs share them, or take no images") {
        // Two machines, of two GPUs and one, with three ranks each.
        const std::vector<std::string> gpus = {"a", "b", "a", "c", "c", "c"};
        const int places[] = {0, 1, 3, 2, 3, 3}; // 3: none
        int64_t images = 0;
        for (int rank = 0; rank < 6; ++rank) {
            CAPTURE(rank);
            const Workers sharing = workers_of(gpus, rank, false), some = workers_of(gpus, rank, true);
            CHECK(sharing.gpus == 3);
            CHECK(sharing.count == 6);
            CHECK(sharing.place == rank);
            CHECK(some.gpus == 3);
            CHECK(some.count == 3);
            CHECK(some.place == places[rank]);
            const data::Range mine = some.share_of(100);
            CHECK(mine.size() == (places[rank] == 3 ? 0 : places[rank] == 0 ? 34 : 33));
            images += mine.size();
        }
        CHECK(images == 100);
    }

    TEST_CASE("machine: a GPU for each rank: all work, whatever the option") {
        const std::vector<std::string> gpus = {"a", "b", "c"};
        for (int rank = 0; rank < 3; ++rank) {
            const Workers all = workers_of(gpus, rank, true);
            CHECK(all.gpus == 3);
            CHECK(all.count == 3);
            CHECK(all.place == rank);
        }
    }
}
