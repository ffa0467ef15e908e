// The list of training programs.
#include "models/sweep/programs.h"

namespace rg {

const Program& find_program(const std::string& name) {
    static constexpr Program kPrograms[] = {
        {"train_cifar", check_train_cifar, check_data_train_cifar, train_cifar},
        {"train_digits", check_train_digits, check_data_train_digits, train_digits},
        {"train_digits_angles", check_train_digits_angles, check_data_train_digits_angles, train_digits_angles},
    };
    std::string names;
    for (const Program& program : kPrograms) {
        if (name == program.name) return program;
        names += (names.empty() ? "" : ", ") + std::string(program.name);
    }
    fail("programs: expected one of ", names, ", got \"", name, "\"");
}

} // namespace rg
