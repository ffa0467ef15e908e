// The list of training programs.
#include "models/sweep/programs.h"

namespace rg {

const Program& find_program(const std::string& name) {
    std::string names;
    for (const Program* program : {&train_cifar, &train_digits, &train_digits_angles}) {
        if (name == program->name) return *program;
        names += (names.empty() ? "" : ", ") + std::string(program->name);
    }
    fail("programs: expected one of ", names, ", got \"", name, "\"");
}

} // namespace rg
