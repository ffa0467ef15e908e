// Looks up the context of the calling thread.
#include "core/context.h"

namespace rg {

const Context& context() {
    static const Context kDefault;
    const Context* const current = Scope::current().context;
    return current ? *current : kDefault;
}

} // namespace rg
